"""Orphans, and names of streams, beside marks that another principal has written: they keep nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import CURSOR_KEY, DEFAULT_SCOPE, NAME_KEY, STREAM_KEY, encoded_stream
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands import stream_orphans
from bookgate.thinclient.core.streams.orphans import Orphan, candidates
from bookgate.thinclient.core.undeletable import NotAllDeletedException
from bookgate.thinclient.streams.directory import Streams
from bookgate.thinclient.streams.orphans import delete_orphans, find_orphans

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
        self.ledger_manager = SimpleNamespace(demand_complete_listings=lambda: None)

    def forge(self, custom: dict[str, bytes]) -> None:
        """The marks of the other principal's ledger."""
        forged = self.records[LedgerId(DEFAULT_SCOPE, FORGED)]
        marked = replace(forged.metadata, custom_metadata=custom)
        self.records[forged.ledger_id] = replace(forged, metadata=marked)

    async def list_ledgers(self, _scope_id: int) -> AsyncIterator[list[LedgerRecord]]:
        yield list(self.records.values())

    def found(self) -> list[Orphan]:
        return candidates(self.records.values(), before_ms=100)

    async def read_record(self, ledger_id: LedgerId) -> LedgerRecord:
        if ledger_id.scope_id != DEFAULT_SCOPE:
            raise UnauthorizedAccessException("me may not do ledger.read")
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


_CURSOR = {"stream": "s", "ledger": "x", "name": "c", "entry": 0, "record": 0, "committed_ms": 0}
_FORGED_MARKS = {
    "deep": {STREAM_KEY: b"[" * 100_000},
    "no-text": {STREAM_KEY: json.dumps({"name": "\ud800", "ledger": "0" * 32}).encode()},
    "cursor-without-place": {CURSOR_KEY: json.dumps({**_CURSOR, "entry": None}).encode()},
    "cursor-at-infinity": {CURSOR_KEY: json.dumps({**_CURSOR, "entry": float("inf")}).encode()},
    "cursor-without-text": {CURSOR_KEY: json.dumps({**_CURSOR, "name": "\ud800"}).encode()},
    "ledger-of-no-name": {NAME_KEY: b"a\nb"},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("marks", _FORGED_MARKS.values(), ids=_FORGED_MARKS)
async def test_marks_that_can_not_be_read_hide_no_orphan_and_no_name(marks: dict[str, bytes]) -> None:
    client = Client()
    client.forge(marks)
    found = await find_orphans(cast(BookKeeper, client), before_ms=100)
    assert [each.record.ledger_id.low for each in found] == [11, 12]
    names = [page async for page in Streams(cast(BookKeeper, client)).names()]
    assert names == []


@pytest.mark.asyncio
async def test_a_mark_that_names_what_may_not_be_read_hides_no_orphan() -> None:
    client = Client()
    client.forge({STREAM_KEY: encoded_stream("x", LedgerId(5, 5))})
    found = await find_orphans(cast(BookKeeper, client), before_ms=100)
    assert [each.record.ledger_id.low for each in found] == [11, 12]
    names = [page async for page in Streams(cast(BookKeeper, client)).names()]
    assert names == [["x"]]


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
