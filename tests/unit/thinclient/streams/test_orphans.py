"""Deleting orphans where one of them may not be deleted: the others go, and both are told."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import DEFAULT_SCOPE, NAME_KEY
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands import stream_orphans
from bookgate.thinclient.core.streams.orphans import Orphan, candidates
from bookgate.thinclient.core.undeletable import NotAllDeletedException
from bookgate.thinclient.streams.orphans import delete_orphans

FORGED = 10


class Client:
    """Ledgers of streams that were never made. The first one has another principal, and the mark all the same."""

    def __init__(self) -> None:
        made = LedgerMetadata.new(("a",), 1, 1)
        self.records = {
            LedgerId(DEFAULT_SCOPE, number): LedgerRecord(
                LedgerId(DEFAULT_SCOPE, number), replace(made, custom_metadata={NAME_KEY: b"s%d" % number}), 1, 1
            )
            for number in (FORGED, 11, 12)
        }

    def found(self) -> list[Orphan]:
        return candidates(self.records.values(), before_ms=100)

    async def read_record(self, ledger_id: LedgerId) -> LedgerRecord:
        if ledger_id not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException
        return self.records[ledger_id]

    async def delete_ledger(self, ledger_id: LedgerId, _version: int) -> bool:
        if ledger_id.low == FORGED:
            raise UnauthorizedAccessException("me may not do ledger.delete")
        del self.records[ledger_id]
        return True


@pytest.mark.asyncio
async def test_an_orphan_that_may_not_be_deleted_does_not_keep_the_others() -> None:
    client = Client()
    with pytest.raises(NotAllDeletedException, match=r"may not delete 1 \(me may not do ledger.delete\)") as told:
        await delete_orphans(cast(BookKeeper, client), client.found())
    assert told.value.deleted == 2
    assert [each.low for each in client.records] == [FORGED]
    with pytest.raises(NotAllDeletedException, match="deleted 0 ledgers"):
        await delete_orphans(cast(BookKeeper, client), client.found())


def test_the_command_tells_what_it_deleted_and_then_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = iter([Client().found(), NotAllDeletedException("left are 10", 2)])

    def with_client(*_: object) -> object:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(stream_orphans, "with_client", with_client)
    with pytest.raises(NotAllDeletedException, match="left are 10"):
        stream_orphans.orphans(cast(Any, SimpleNamespace()), "0s", delete=True, yes=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["orphans"], told["deleted"]) == (3, 2)
