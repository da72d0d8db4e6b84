"""The driver's side of a streaming read of records, over streams in memory: where it ends, and of which stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord
from bookgate.thinclient.spark.offsets import NOTHING, OffsetError, StreamOffset
from bookgate.thinclient.spark.records import record_reads
from bookgate.thinclient.spark.records.record_options import parse_record_options
from bookgate.thinclient.spark.records.record_reads import RECORDS_SCHEMA, RecordsReader, RecordsStreamReader
from bookgate.thinclient.spark.worker_metrics import DIRECTORY_VARIABLE
from bookgate.thinclient.streams.places import From, Start


@dataclass
class FakeStream:
    name: str
    ledger_id: LedgerId
    entries: int

    def position_of(self, start: From) -> RecordPosition:
        return RecordPosition(self.entries if start is Start.LATEST else 0, 0)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    """The stream that the name means."""
    made = FakeStream("orders", LedgerId(4711, 1), 10)

    class OneClient:
        @contextmanager
        def plan(self, _gateways: str, _settings: object) -> Iterator[None]:
            yield

    monkeypatch.setattr(record_reads, "clients", OneClient())
    monkeypatch.setattr(record_reads, "opened_stream", lambda _client, _options, _name: made)
    return made


def reader(**options: str) -> RecordsStreamReader:
    return RecordsStreamReader(parse_record_options({"gateways": "g:1", "stream": "orders", **options}))


def _json(document: Any) -> Any:
    return json.loads(json.dumps(document))


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize("entries", [3, 10, 11])
def test_another_stream_of_the_same_name_is_refused(orders: FakeStream, available_now: bool, entries: int) -> None:
    """Also by a query that ends with what is there, and where the new stream is shorter than the checkpoint."""
    first = reader()
    offset = _json(first.latestOffset(_json(first.initialOffset()), ReadAllAvailable()))
    orders.ledger_id, orders.entries = LedgerId(4711, 2), entries
    again = reader()
    if available_now:
        again.prepareForTriggerAvailableNow()
    with pytest.raises(IllegalOpException, match="'orders' was deleted and created again"):
        again.latestOffset(offset, ReadAllAvailable())


def test_available_now_ends_where_the_stream_ended_at_its_start(orders: FakeStream) -> None:
    query = reader()
    offset = _json(query.initialOffset())
    query.prepareForTriggerAvailableNow()
    orders.entries = 20
    ends = []
    for _ in range(4):
        offset = _json(query.latestOffset(offset, ReadMaxRows(4)))
        ends.append(offset["entry"])
    assert ends == [4, 8, 10, 10]


@pytest.mark.parametrize("partitions", [{}, {"streamPartitions": "1"}])
def test_a_checkpoint_of_ledgers_is_refused(orders: FakeStream, partitions: dict[str, str]) -> None:
    """As of a query that was given option stream later, and the other way round."""
    query = reader(**partitions)
    ledgers = NOTHING.to_json()
    with pytest.raises(OffsetError, match="none of a read with option stream: give the query a new checkpoint"):
        query.latestOffset(ledgers, ReadAllAvailable())
    with pytest.raises(OffsetError, match="none of a read with option stream"):
        query.partitions(ledgers, ledgers)
    with pytest.raises(OffsetError, match=r"none of a read of ledgers .* give the query a new checkpoint"):
        StreamOffset.from_json(_json(query.initialOffset()))


def test_tasks_that_read_records_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    options = parse_record_options({"gateways": "g:1", "stream": "orders"})
    for each in (RecordsReader(options), RecordsStreamReader(options)):
        assert list(each.read(InputPartition(None))) == []
    (file,) = tmp_path.iterdir()
    assert 'bookgate_spark_tasks_total{table="records",outcome="ok"' in file.read_text()


def test_a_record_of_any_time_is_read() -> None:
    """Its writer may have said any, which stands in all records from then on."""
    records = [StreamRecord(3, 0, b"x", time_ms) for time_ms in (-(2**63), 0, 1, 253_402_300_800_000, 2**63 - 1)]
    batch = record_reads._batch(records, 0, RECORDS_SCHEMA, True)
    assert [row["append_time"].year for row in batch.to_pylist()] == [2, 1970, 1970, 9998, 9998]
    assert batch.column("append_time").to_pylist() == sorted(batch.column("append_time").to_pylist())
