"""Changes for a caller of HTTP, over a store of which a replica may lag."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.bookie.http.callers_ledgers import CallersLedgers
from bookgate.gateway.http.caller import ANYBODY
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from tests.unit.thinclient.fakes import InMemoryLedgerManager

SEVEN = LedgerId.unscoped(7)
METADATA = LedgerMetadata.new(["b-1"], 1, 1)


@pytest.mark.asyncio
async def test_whoever_meets_another_version_is_shown_it_at_the_next_look() -> None:
    """Whoever goes by the version that was shown would otherwise try again at once, and without end."""
    store, caught_up = InMemoryLedgerManager(), list[int | None]()
    await store.create(SEVEN, METADATA)

    async def catch_up(revision: int | None) -> None:
        caught_up.append(revision)

    factory = cast(Any, SimpleNamespace(ledger_manager=store, catch_up=catch_up))
    ledgers = CallersLedgers(factory, ANYBODY)
    await ledgers.write(SEVEN, METADATA, 0)
    await ledgers.write_once(SEVEN, METADATA, 1)
    assert caught_up == []
    for number, change in enumerate(
        (ledgers.write(SEVEN, METADATA, 0), ledgers.write_once(SEVEN, METADATA, 0), ledgers.remove(SEVEN, 0)), 1
    ):
        with pytest.raises(MetadataVersionException):
            await change
        assert len(caught_up) == number
    await ledgers.remove(SEVEN, 2)
