"""A bookie that lacks a ledger says so, whether the ledger is closed or still written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from bookgate.ledger.errors import BKException, NoSuchLedgerExistsException, ReadException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.jobs import orphans
from bookgate.thinclient.spark.jobs.orphans import NOT_HELD, UNKNOWN_TO_METADATA, _ask_bookie, _verdict
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.worker_client import WorkerClients
from tests.unit.thinclient.spark.reading.test_entries import Lagging, as_client, ledger, moved


class FakeClient:
    """A bookie's responses to reads, by a handle that reads as far as its record goes."""

    def __init__(self, response: BKException | None) -> None:
        self.response = response

    def open_record(self, record: LedgerRecord, password: bytes) -> FakeClient:
        self.last = record.metadata.last_entry_id
        return self

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def read_columns(self, first: int, last: int) -> Iterator[None]:
        if last > self.last:
            raise ReadException(f"the last add confirmed is {self.last}")
        if self.response is not None:
            raise self.response
        yield None


def verdict(response: BKException | None, bookie_id: str, *, is_closed: bool) -> str | None:
    metadata = LedgerMetadata.new(["a", "b"], 2, 2).with_ensemble(5, ["a", "c"])
    record = LedgerRecord(LedgerId.unscoped(7), metadata.close(9, 90) if is_closed else metadata, 1)
    return _ask_bookie(cast(BookKeeper, FakeClient(response)), record, bookie_id, Options(gateways="g"))


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_bookie_that_lacks_a_finished_fragment_is_told(is_closed: bool) -> None:
    lacks = NoSuchLedgerExistsException("no such ledger")
    assert verdict(lacks, "b", is_closed=is_closed) == "it should hold entry 0"
    assert verdict(None, "b", is_closed=is_closed) is None
    assert verdict(ReadException("busy"), "b", is_closed=is_closed) is None
    # What is still written proves nothing.
    assert verdict(lacks, "c", is_closed=is_closed) == ("it should hold entry 5" if is_closed else None)


class LackingBookies(Lagging):
    """No bookie has the ledger."""

    def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
        return NoSuchLedgerExistsException("no such ledger")


def test_nothing_is_confirmed_by_what_a_gateway_that_lags_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def confirmed(client: Lagging, kind: str, bookie_id: str) -> str | None:
        monkeypatch.setattr(orphans, "clients", WorkerClients(lambda *_: as_client(client)))
        return _verdict(Options(gateways="g"), kind, bookie_id, 1)

    assert confirmed(Lagging(ledger(1)), UNKNOWN_TO_METADATA, "b:1") is None
    assert confirmed(Lagging(older=[ledger(1)]), UNKNOWN_TO_METADATA, "b:1") == "deleted, or never created"
    moved_away = LackingBookies(moved(ledger(1), 0), older=[ledger(1)])
    assert confirmed(moved_away, NOT_HELD, "b:1") is None
    assert confirmed(moved_away, NOT_HELD, "c:1") == "it should hold entry 0"
    assert confirmed(LackingBookies(ledger(1)), NOT_HELD, "b:1") == "it should hold entry 0"
