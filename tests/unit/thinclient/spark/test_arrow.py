"""Record batches: exact rows, one schema that Spark agrees with, bounded sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import TimestampType

from bookgate.ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord, RegisteredBookie
from bookgate.thinclient.spark.arrow import (
    BOOKIES_SCHEMA,
    ENTRIES_SCHEMA,
    LEDGERS_SCHEMA,
    MAX_BATCH_BYTES,
    EntryBatches,
    bookies_batch,
    creation_us,
    entries_schema,
    ledgers_batch,
)

LEDGER = LedgerId.unscoped(7)


@dataclass
class FakeEntry:
    entry_id: int
    payload: bytes
    ledger_length: int = 0
    last_add_confirmed: int = -1


def entries_of(payloads: Sequence[bytes], first: int = 0) -> list[FakeEntry]:
    return [FakeEntry(first + i, payload, 10 * i, first + i - 1) for i, payload in enumerate(payloads)]


def gather(batches: EntryBatches, *parts: tuple[LedgerId, list[FakeEntry]]) -> list[pa.RecordBatch]:
    result = [batch for ledger_id, entries in parts for batch in batches.add(ledger_id, entries)]
    result += batches.finish()
    for batch in result:
        batch.validate(full=True)
    return result


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "schema", [ENTRIES_SCHEMA, LEDGERS_SCHEMA, BOOKIES_SCHEMA], ids=["entries", "ledgers", "bookies"]
)
def test_spark_sees_exactly_this_schema_nullability_included(schema: pa.Schema) -> None:
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema)


def test_entries_of_several_ledgers_keep_values_and_order() -> None:
    scoped = LedgerId(-3, -4)
    payloads = [b"", b"\x00\xff", b"line"]
    batches = gather(EntryBatches(), (LEDGER, entries_of(payloads)), (scoped, entries_of([b"x"], first=5)))
    assert len(batches) == 1
    assert batches[0].schema.equals(ENTRIES_SCHEMA)
    assert [tuple(row.values()) for row in rows(batches)] == [
        (0, 7, 0, b"", 0, 0, -1),
        (0, 7, 1, b"\x00\xff", 2, 10, 0),
        (0, 7, 2, b"line", 4, 20, 1),
        (-3, -4, 5, b"x", 1, 0, 4),
    ]


def test_some_columns_only_in_any_order_by_former_names_too() -> None:
    schema = pa.schema([pa.field("length", pa.int64()), pa.field("size", pa.int32()), pa.field("entry_id", pa.int64())])
    [batch] = gather(EntryBatches(schema=schema, max_bytes=1), (LEDGER, entries_of([b"abc", b""])))
    assert batch.schema.equals(schema)
    assert [tuple(row.values()) for row in rows([batch])] == [(0, 3, 0), (10, 0, 1)]


def test_payloads_as_text_say_where_they_are_none() -> None:
    batches = gather(
        EntryBatches(schema=entries_schema(payload_as_text=True)), (LEDGER, entries_of([b"\xc3\xa4", b"a"]))
    )
    assert [row["payload"] for row in rows(batches)] == ["ä", "a"]
    batches = gather(EntryBatches(schema=entries_schema(payload_as_text=True)), (LEDGER, entries_of([b"ok", b"a\xff"])))
    assert [row["payload"] for row in rows(batches)] == ["ok", "a\ufffd"]


def test_columns_of_the_ledger_stand_beside_each_of_its_entries() -> None:
    schema = entries_schema(with_ledger_columns=True)
    batches = EntryBatches(schema=schema)
    first = LedgerMetadata.new(["b"], 1, 1, custom_metadata={"app": b"x"}, ctime_ms=1_000)
    second = LedgerMetadata.new(["b"], 1, 1)
    made = [*batches.add(LEDGER, entries_of([b"1", b"2"]), first), *batches.add(LEDGER, entries_of([b"3"], 2), second)]
    got = rows([*made, *batches.finish()])
    assert [row["custom_metadata"] for row in got] == [[("app", b"x")], [("app", b"x")], []]
    assert [row["creation_time"] and row["creation_time"].timestamp() for row in got] == [1.0, 1.0, None]


@pytest.mark.parametrize("include_payload", [True, False])
@pytest.mark.parametrize("size", [8_000, 200_000])
def test_custom_metadata_that_rows_repeat_do_not_make_batches_larger(include_payload: bool, size: int) -> None:
    """An Arrow array has at most 2 GiB, which 16,384 rows with 200,000 bytes each would exceed."""
    ledger = LedgerMetadata.new(["b"], 1, 1, custom_metadata={"app": b"x" * size})
    entries = [Entry(7, i, i - 1, i, b"line") for i in range(16 * 1024 if size < 10_000 else 500)]
    for run in (entries, EntryColumns.of(7, 0, entries)):
        batches = EntryBatches(include_payload, schema=entries_schema(with_ledger_columns=True))
        made = [*batches.add(LEDGER, run, ledger), *batches.finish()]
        assert all(batch.nbytes < MAX_BATCH_BYTES + (1 << 20) for batch in made)
        assert [entry_id for batch in made for entry_id in batch.column("entry_id").to_pylist()] == [
            entry.entry_id for entry in entries
        ]


def test_batches_are_cut_at_the_entry_bound() -> None:
    batches = gather(EntryBatches(max_entries=4), (LEDGER, entries_of([b"a"] * 3)), (LEDGER, entries_of([b"b"] * 6, 3)))
    assert [batch.num_rows for batch in batches] == [4, 4, 1]
    assert [row["entry_id"] for row in rows(batches)] == list(range(9))


def test_batches_are_cut_at_the_byte_bound_and_take_one_entry_at_least() -> None:
    batches = gather(EntryBatches(max_bytes=10), (LEDGER, entries_of([b"x" * 4] * 4 + [b"y" * 50, b"z"])))
    assert [batch.num_rows for batch in batches] == [3, 2, 1]
    assert [len(row["payload"]) for row in rows(batches)] == [4, 4, 4, 4, 50, 1]


def test_the_largest_entries_stay_under_what_spark_takes() -> None:
    entry = FakeEntry(0, b"x" * (5 * 1024 * 1024))
    batches = gather(EntryBatches(), (LEDGER, [entry] * 12))
    assert len(batches) > 1
    assert all(batch.nbytes < 64 * 1024 * 1024 for batch in batches)
    assert all(batch.nbytes <= MAX_BATCH_BYTES + 6 * 1024 * 1024 for batch in batches)


def test_without_payload_the_column_is_null_and_no_bytes_are_held() -> None:
    batches = gather(EntryBatches(include_payload=False, max_bytes=1), (LEDGER, entries_of([b"x" * 1000] * 5)))
    assert [batch.num_rows for batch in batches] == [5]
    assert batches[0].column("payload").null_count == 5
    assert batches[0].nbytes < 1000


def test_nothing_gives_no_batch() -> None:
    assert gather(EntryBatches(), (LEDGER, [])) == []


def test_ledger_rows() -> None:
    metadata = LedgerMetadata.new(
        ["a:1", "b:1"], 2, 1, DigestType.HMAC, b"pw", {"app": b"\xff"}, ctime_ms=1_700_000_000_123
    )
    closed = metadata.with_ensemble(5, ["a:1", "c:1"]).close(9, 90)
    batch = ledgers_batch([LedgerRecord(LEDGER, closed, 3), LedgerRecord(LedgerId.unscoped(8), metadata, 0)])
    assert batch.schema.equals(LEDGERS_SCHEMA)
    first, second = batch.to_pylist()
    assert first["creation_time"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert {**first, "creation_time": None} == {
        "scope_id": 0,
        "ledger_id": 7,
        "state": "CLOSED",
        "ensemble_size": 2,
        "write_quorum_size": 2,
        "ack_quorum_size": 1,
        "length": 90,
        "last_entry_id": 9,
        "fragments": [
            {"first_entry_id": 0, "ensemble": ["a:1", "b:1"]},
            {"first_entry_id": 5, "ensemble": ["a:1", "c:1"]},
        ],
        "creation_time": None,
        "custom_metadata": [("app", b"\xff")],
        "digest_type": "HMAC",
        "metadata_version": 3,
        "term": None,
    }
    assert (second["state"], second["length"], second["last_entry_id"]) == ("OPEN", None, None)


def test_a_ledger_of_the_oldest_format_has_no_digest_type() -> None:
    metadata = LedgerMetadata.new(["a:1"], 1, 1)
    oldest = LedgerMetadata(1, 1, 1, metadata.fragments, digest_type=None, password=None, format_version=1)
    assert ledgers_batch([LedgerRecord(LEDGER, oldest, 0)]).to_pylist()[0]["digest_type"] is None


@pytest.mark.parametrize(
    "created_ms", [2**63 - 1, 2**63 // 1000 + 1, 253_370_764_800_000, -(2**63), -62_104_060_800_001]
)
def test_a_creation_time_that_no_calendar_has_is_not_known(created_ms: int) -> None:
    times = [253_370_764_799_999, created_ms, -62_104_060_800_000, 0]
    metadata = [LedgerMetadata.new(["a:1"], 1, 1, ctime_ms=each) for each in times]
    rows = ledgers_batch([LedgerRecord(LEDGER, each, 0) for each in metadata]).to_pylist()
    assert [row["creation_time"] and row["creation_time"].year for row in rows] == [9998, None, 2, 1970]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_every_creation_time_can_be_collected_in_every_time_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python makes a local time of it: one that whoever wrote the ledger has made up must not end a query."""
    monkeypatch.setenv("TZ", zone)
    try:
        time.tzset()
        for year in (1, 2, 9998, 9999):
            for moment in (datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)):
                known = creation_us((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
                assert (known is not None) == (year in (2, 9998))
                assert known is None or TimestampType().fromInternal(known)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_bookie_rows() -> None:
    info = BookieServiceInfo("b-1", (Endpoint("e", "::1", 3181, BOOKIE_RPC),), {"features": "x"})
    batch = bookies_batch([RegisteredBookie(info, writable=True, read_only=False)])
    assert batch.schema.equals(BOOKIES_SCHEMA)
    assert batch.to_pylist() == [
        {
            "bookie_id": "b-1",
            "writable": True,
            "read_only": False,
            "endpoints": [{"id": "e", "host": "::1", "port": 3181, "protocol": "bookie-rpc"}],
            "properties": [("features", "x")],
        }
    ]


@pytest.mark.parametrize(
    "limits", [{}, {"max_entries": 4}, {"max_bytes": 10}, {"max_bytes": 1}, {"include_payload": False}]
)
def test_columns_become_the_batches_that_entries_become(limits: dict[str, Any]) -> None:
    payloads = [b"x" * 4] * 4 + [b"y" * 50, b"", b"z"] * 2
    entries = [Entry(7, i, i - 1, 10 * i, payload) for i, payload in enumerate(payloads)]
    columns = [EntryColumns.of(7, 0, entries[:3]), EntryColumns.of(7, 3, entries[3:])]
    of_entries, of_columns = EntryBatches(**limits), EntryBatches(**limits)
    expected = [*of_entries.add(LEDGER, entries), *of_entries.finish()]
    found = [batch for run in columns for batch in of_columns.add(LEDGER, run)] + [*of_columns.finish()]
    assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in expected]
    for batch in found:
        batch.validate(full=True)
