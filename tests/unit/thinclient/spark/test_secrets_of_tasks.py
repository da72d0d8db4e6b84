"""What Spark sends to executors, keeps in checkpoints and gets back holds no secret that is not needed there."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from bookgate.ledger.bookie_registry import ClusterInfo
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.spark.jobs import copies_table
from bookgate.thinclient.spark.options.write_options import parse_write_options
from bookgate.thinclient.spark.reading import batch
from bookgate.thinclient.spark.source import BookKeeperDataSource
from bookgate.thinclient.spark.streaming import stream
from bookgate.thinclient.spark.writing import sink
from bookgate.thinclient.spark.writing.sink import BatchSink, TaskMessage
from tests.told_secrets import MARK
from tests.unit.thinclient.spark.reading.test_entries import FakeClient, ledger
from tests.unit.thinclient.spark.writing.test_sink import Client as WritingClient

_OTHER = f"{MARK}of-another-ledger"
_TOKEN = f"{MARK}token"
_OWN = b"planted-pw"
_OPTIONS = {
    "gateways": "grpc://127.0.0.1:1",
    "password": _OTHER,
    "passwords": json.dumps({"1": _OWN.decode(), "2": "", "9": _OTHER}),
    "client.token": _TOKEN,
}


class _Ledgers(FakeClient):
    """Ledger 1 has a password, ledger 2 has none."""

    def __init__(self) -> None:
        without = ledger(2)
        super().__init__(ledger(1), replace(without, metadata=replace(without.metadata, password=b"")))

        self.service_discovery = self

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo("one", "")

    def bookies(self, _which: object) -> list[object]:
        return []

    def last_adds_confirmed(self, records: list[LedgerRecord], _password: bytes) -> list[int]:
        return [record.metadata.last_entry_id for record in records]

    def ledger_ranges(self, *_range: object) -> Iterator[list[int]]:
        yield [1, 2]


class _OneClient:
    def __init__(self, client: object) -> None:
        self._client = client

    @contextmanager
    def use(self, _gateways: str, _settings: object) -> Iterator[Any]:
        yield self._client

    plan = use


def _source(**given: str) -> BookKeeperDataSource:
    """Each ledger's own password is for entries alone."""
    options = {**_OPTIONS, **given}
    if given.get("table", "entries") != "entries":
        options.pop("passwords")
    return BookKeeperDataSource(options)


@pytest.mark.parametrize("table", ["ledgers", "bookies", "held-ledgers"])
def test_who_opens_no_ledger_gets_no_password(table: str) -> None:
    made = _source(table=table)
    travels = pickle.dumps(made.reader(made.schema()))
    assert _OTHER.encode() not in travels
    # It asks gateways, as somebody.
    assert _TOKEN.encode() in travels


@pytest.mark.parametrize("table", ["entries", "copies"])
def test_partitions_hold_the_passwords_of_their_ledgers_alone(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batch, copies_table):
        monkeypatch.setattr(module, "clients", _OneClient(_Ledgers()))
    made = _source(table=table, maxEntriesPerPartition="10")
    reader = made.reader(made.schema())
    first, second = map(pickle.dumps, reader.partitions())
    if table == "entries":
        # The tasks' copy of the reader, which each of them gets besides its own partition.
        assert MARK.encode() not in pickle.dumps(reader).replace(_TOKEN.encode(), b"")
    assert _OWN in first
    for travels in (first, second):
        assert _OTHER.encode() not in travels
        assert _TOKEN.encode() not in travels
    assert MARK.encode() not in second


def test_a_streams_offsets_hold_none_and_its_partitions_those_of_their_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "clients", _OneClient(_Ledgers()))
    made = _source(maxEntriesPerPartition="10")
    reader = cast(stream.EntriesStreamReader, made.streamReader(made.schema()))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    checkpoint = json.dumps([start, end, reader.reportLatestOffset()])
    assert "1" in checkpoint
    assert MARK not in checkpoint
    first, second = map(pickle.dumps, reader.partitions(start, end))
    assert MARK.encode() not in pickle.dumps(reader).replace(_TOKEN.encode(), b"")
    assert _OWN in first
    assert MARK.encode() not in first.replace(_OWN, b"")
    assert MARK.encode() not in second


def test_what_a_task_tells_the_driver_of_its_ledger_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    client = WritingClient()
    monkeypatch.setattr(sink, "clients", _OneClient(client))
    given = {name: value for name, value in _OPTIONS.items() if name != "passwords"}
    writer = BatchSink(parse_write_options(given), 0)
    rows = pa.RecordBatch.from_arrays([pa.array([b"a"], pa.binary())], names=["payload"])
    told = writer.write(iter([rows]))
    assert isinstance(told, TaskMessage)
    assert told.written is not None
    assert told.written.ledger_id == LedgerId(0, 7)
    # The task itself makes the ledger with it.
    assert _OTHER.encode() in client.arguments
    assert MARK.encode() not in pickle.dumps(told)
