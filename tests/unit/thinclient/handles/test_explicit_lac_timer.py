"""The last explicit LAC of a writer that is released."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from bookgate.ledger.digest import digest_for
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets
from bookgate.thinclient.handles.explicit_lac_timer import ExplicitLacTimer

pytestmark = pytest.mark.asyncio

NUMBER = 7


class Writer:
    """All members of its ensemble have entries of an earlier term: none of them may get a LAC."""

    last_add_confirmed = last_add_pushed = previous_last_add_confirmed = 5

    def lac_receivers(self, last_add_confirmed: int) -> tuple[str, ...]:
        assert last_add_confirmed == self.last_add_confirmed
        return ()


async def test_nobody_is_waited_for_where_no_bookie_may_get_the_lac() -> None:
    config = SimpleNamespace(explicit_lac_interval_seconds=3600.0, add_timeout_seconds=1.0)
    context, metadata = cast("ClientContext", SimpleNamespace(config=config)), LedgerMetadata.new(["b1"], 1, 1)
    secrets = LedgerSecrets(b"", digest_for(DigestType.CRC32C, b""))
    timer = ExplicitLacTimer(context, Writer, NUMBER, secrets, metadata)
    timer.start()
    async with asyncio.timeout(10):
        await timer.send_now()
    timer.stop()
