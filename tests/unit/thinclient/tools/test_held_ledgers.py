"""Which ledgers are unknown to the metadata, asked of a gateway that lags behind its store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from bookgate.ledger.errors import BKException, MetaStoreException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.thinclient.gateways.discovery import NoRevisionException
from bookgate.thinclient.tools.held_ledgers import HeldLedgers, unknown_to_metadata

HELD = HeldLedgers(0, {7: ["a", "b"], 8: ["a"]})


class Lagging:
    """The store has ledger 7; its gateway learns of it as it catches up, which may end with an error."""

    def __init__(self, error: BKException | None = None) -> None:
        self.error = error
        self.known: dict[int, LedgerRecord] = {}
        self.ledger_manager = self

    async def catch_up(self, revision: int | None) -> None:
        assert revision is None
        if self.error is not None:
            raise self.error
        self.known[7] = LedgerRecord(LedgerId(0, 7), LedgerMetadata.new(("a", "b"), 2, 1), 0)

    async def read_many(self, ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        return [self.known.get(each.low, NoSuchLedgerExistsOnMetadataServerException()) for each in ids]


async def unknown(gateway: Lagging) -> dict[int, list[str]]:
    return await unknown_to_metadata(cast(LedgerManagerFactory, gateway), HELD)


@pytest.mark.asyncio
async def test_no_ledger_is_unknown_that_its_gateway_does_not_know_yet() -> None:
    assert await unknown(Lagging()) == {8: ["a"]}
    with pytest.raises(MetaStoreException, match="out of reach"):
        await unknown(Lagging(MetaStoreException("out of reach")))
    # It can't catch up, and is asked all the same.
    assert await unknown(Lagging(NoRevisionException("older"))) == HELD.holders
