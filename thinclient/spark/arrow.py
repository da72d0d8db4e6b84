"""The Arrow form of the tables: one schema per table, and record batches built column by column.

Spark checks only the first batch against the declared schema, and fails without a clear message at a later mismatch.
Therefore the schemas here are the single definition: batches are built with them, and Spark's own types are derived
from them. Entries become Arrow arrays from one payload buffer and its offsets, without a Python or Arrow object per
entry. Batches stay far below Spark's limit of 64 MiB. Source: docs/spark.md#tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Protocol

import pyarrow as pa

from bookgate.ledger.bookie_info import Endpoint
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord, RegisteredBookie

MAX_BATCH_ENTRIES = 16 * 1024
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of payloads, and of custom metadata beside them, after which a batch is emitted; the largest entry may come on
top.
"""


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _list_of(kind: pa.DataType) -> pa.DataType:
    """A list type whose element field has the name that Spark uses."""
    return pa.list_(pa.field("element", kind))


ENTRIES_SCHEMA = pa.schema(
    [
        _required("scope_id", pa.int64()),
        _required("ledger_id", pa.int64()),
        _required("entry_id", pa.int64()),
        pa.field("payload", pa.binary()),
        _required("size", pa.int32()),
        _required("ledger_length", pa.int64()),
        _required("last_add_confirmed", pa.int64()),
    ]
)
"""`size` is that of the payload. `ledger_length` is the ledger's length in payload bytes up to and including the entry,
as the entry itself carries it; earlier releases called it `length`, and a read may still ask for it by that name."""

_LEDGER_COLUMNS = (
    pa.field("creation_time", pa.timestamp("us", tz="UTC")),
    _required("custom_metadata", pa.map_(pa.string(), pa.binary())),
)
LEDGER_COLUMNS = tuple(field.name for field in _LEDGER_COLUMNS)
"""Optional columns of `entries` with the ledger's metadata. They repeat in every row of a ledger, so they must be
requested.
"""
FORMER_NAMES = {"length": "ledger_length"}
"""Columns of `entries` that earlier releases called by another name: old name to new name."""


def entries_schema(*, payload_as_text: bool = False, with_ledger_columns: bool = False) -> pa.Schema:
    """The schema of table `entries` under these options."""
    schema = ENTRIES_SCHEMA
    if payload_as_text:
        index = schema.get_field_index("payload")
        schema = schema.set(index, pa.field("payload", pa.string()))
    for field in _LEDGER_COLUMNS if with_ledger_columns else ():
        schema = schema.append(field)
    return schema


LEDGERS_SCHEMA = pa.schema(
    [
        _required("scope_id", pa.int64()),
        _required("ledger_id", pa.int64()),
        _required("state", pa.string()),
        _required("ensemble_size", pa.int32()),
        _required("write_quorum_size", pa.int32()),
        _required("ack_quorum_size", pa.int32()),
        pa.field("length", pa.int64()),
        pa.field("last_entry_id", pa.int64()),
        _required(
            "fragments",
            _list_of(pa.struct([("first_entry_id", pa.int64()), ("ensemble", _list_of(pa.string()))])),
        ),
        pa.field("creation_time", pa.timestamp("us", tz="UTC")),
        _required("custom_metadata", pa.map_(pa.string(), pa.binary())),
        pa.field("digest_type", pa.string()),
        _required("metadata_version", pa.int64()),
        pa.field("term", pa.int64()),
    ]
)
"""`length` and `last_entry_id` are null until the ledger is closed, since they are unknown before. `term` is null for
all ledgers but unbounded ones.
"""

BOOKIES_SCHEMA = pa.schema(
    [
        _required("bookie_id", pa.string()),
        _required("writable", pa.bool_()),
        _required("read_only", pa.bool_()),
        _required(
            "endpoints",
            _list_of(
                pa.struct([("id", pa.string()), ("host", pa.string()), ("port", pa.int32()), ("protocol", pa.string())])
            ),
        ),
        _required("properties", pa.map_(pa.string(), pa.string())),
    ]
)


class EntryLike(Protocol):
    """The parts of an entry that a batch needs."""

    @property
    def entry_id(self) -> int: ...
    @property
    def last_add_confirmed(self) -> int: ...
    @property
    def ledger_length(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class EntryBatches:
    """Collects entries, ledger by ledger, into record batches with `entries_schema` or a subset of its columns.

    `add` yields the batches that became full, `finish` the remainder. Rows are in the order of the calls. Without
    `include_payload` the payload column is null. In text payloads, invalid UTF-8 is replaced by U+FFFD.
    """

    def __init__(
        self,
        include_payload: bool = True,
        max_entries: int = MAX_BATCH_ENTRIES,
        max_bytes: int = MAX_BATCH_BYTES,
        schema: pa.Schema = ENTRIES_SCHEMA,
    ) -> None:
        self._schema = schema
        self._include_payload = include_payload and "payload" in schema.names
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clear()

    def _clear(self) -> None:
        self._scope_ids, self._ledger_ids, self._entry_ids = array("q"), array("q"), array("q")
        self._lengths, self._last_adds_confirmed = array("q"), array("q")
        self._sizes = array("i")
        self._payloads: list[bytes] = []
        self._bytes = 0
        self._ledgers: list[LedgerMetadata | None] = []
        self._ledger_of = array("i")

    def add(
        self, ledger_id: LedgerId, entries: Sequence[EntryLike], ledger: LedgerMetadata | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Adds entries of one ledger, in order. `ledger` is needed only if the schema has ledger columns."""
        start, beside = 0, self._bytes_beside(ledger)
        while start < len(entries):
            end = self._room(entries, start, beside)
            some = entries if end - start == len(entries) else entries[start:end]
            if isinstance(some, EntryColumns):
                self._take_columns(ledger_id, some)
            else:
                self._take(ledger_id, some)
            self._note_ledger(ledger, end - start)
            self._bytes += beside * (end - start)
            start = end
            if len(self._entry_ids) >= self._max_entries or self._bytes >= self._max_bytes:
                yield self._batch()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The last, incomplete batch, if there is one."""
        if self._entry_ids:
            yield self._batch()

    def _bytes_beside(self, ledger: LedgerMetadata | None) -> int:
        """The size of the ledger's custom metadata, which each row of the ledger repeats."""
        if ledger is None or "custom_metadata" not in self._schema.names:
            return 0
        return sum(len(key) + len(value) for key, value in ledger.custom_metadata.items())

    def _room(self, entries: Sequence[EntryLike], start: int, beside: int) -> int:
        """Index of the first entry that goes into the next batch; takes at least one. `beside`: bytes of a row besides
        its payload.
        """
        end = min(len(entries), start + self._max_entries - len(self._entry_ids))
        if not self._include_payload:
            sizes: Iterable[int] = repeat(0, end - start)
            if not beside:
                return end
        elif isinstance(entries, EntryColumns):
            sizes = entries.sizes[start:end]
            if self._bytes + sum(sizes) + beside * (end - start) < self._max_bytes:
                return end
        else:
            sizes = (len(entries[index].payload) for index in range(start, end))
        of_rows = (size + beside for size in sizes)
        for index, total in enumerate(accumulate(of_rows, initial=self._bytes), start):
            if total >= self._max_bytes and index > start:
                return index
        return end

    def _note_ledger(self, ledger: LedgerMetadata | None, rows: int) -> None:
        if not self._ledgers or self._ledgers[-1] is not ledger:
            self._ledgers.append(ledger)
        self._ledger_of.extend(repeat(len(self._ledgers) - 1, rows))

    def _take(self, ledger_id: LedgerId, entries: Sequence[EntryLike]) -> None:
        self._scope_ids.extend(repeat(ledger_id.scope_id, len(entries)))
        self._ledger_ids.extend(repeat(ledger_id.low, len(entries)))
        self._entry_ids.extend([entry.entry_id for entry in entries])
        self._lengths.extend([entry.ledger_length for entry in entries])
        self._last_adds_confirmed.extend([entry.last_add_confirmed for entry in entries])
        payloads = [entry.payload for entry in entries]
        self._sizes.extend(map(len, payloads))
        if self._include_payload:
            self._payloads += payloads
            self._bytes += sum(map(len, payloads))

    def _take_columns(self, ledger_id: LedgerId, columns: EntryColumns) -> None:
        first, count = columns.first_entry_id, len(columns)
        self._scope_ids.extend(array("q", [ledger_id.scope_id]) * count)
        self._ledger_ids.extend(array("q", [ledger_id.low]) * count)
        self._entry_ids.extend(array("q", range(first, first + count)))
        self._lengths.extend(columns.lengths)
        self._last_adds_confirmed.extend(columns.last_adds_confirmed)
        self._sizes.extend(columns.sizes)
        if self._include_payload:
            self._payloads += columns.payloads
            self._bytes += sum(columns.sizes)

    def _batch(self) -> pa.RecordBatch:
        columns = [self._column(field) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._clear()
        return batch

    def _column(self, field: pa.Field) -> pa.Array:
        match FORMER_NAMES.get(field.name, field.name):
            case "scope_id":
                return _int64_array(self._scope_ids)
            case "ledger_id":
                return _int64_array(self._ledger_ids)
            case "entry_id":
                return _int64_array(self._entry_ids)
            case "payload" if not self._include_payload:
                return pa.nulls(len(self._entry_ids), field.type)
            case "payload":
                return payload_array(self._payloads, self._sizes, field.type)
            case "size":
                return pa.Array.from_buffers(pa.int32(), len(self._sizes), [None, pa.py_buffer(self._sizes)])
            case "ledger_length":
                return _int64_array(self._lengths)
            case "last_add_confirmed":
                return _int64_array(self._last_adds_confirmed)
            case "creation_time":
                values: Sequence[object] = [
                    None if each is None else creation_us(each.ctime_ms) for each in self._ledgers
                ]
            case "custom_metadata":
                values = [[] if each is None else list(each.custom_metadata.items()) for each in self._ledgers]
            case unknown:
                raise ValueError(f"table entries has no column {unknown}")
        return pa.array(values, field.type).take(pa.array(self._ledger_of, pa.int32()))


def _int64_array(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def payload_array(parts: Sequence[bytes], sizes: array[int], kind: pa.DataType) -> pa.Array:
    """An array of values with these sizes, which lie one after the other in the parts."""
    offsets = array("i", accumulate(sizes, initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    if kind != pa.string():
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
    text = pa.Array.from_buffers(pa.string(), len(sizes), buffers)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
        return pa.array([value.as_py().decode(errors="replace") for value in raw], pa.string())
    return text


_TIMES_MS = range(-62_104_060_800_000, 253_370_764_800_000)
"""The years 2 to 9998: Spark's timestamps hold a year more at each end, which Python does not show in each time zone.
The writer of a ledger may have set any time.
"""


def creation_us(created_ms: int | None) -> int | None:
    """A creation time in microseconds, as Spark's timestamps have it; None if it is outside their range."""
    return created_ms * 1000 if created_ms is not None and created_ms in _TIMES_MS else None


def nearest_us(time_ms: int) -> int:
    """A time in microseconds; of one outside that range the nearest in it."""
    return min(max(time_ms, _TIMES_MS[0]), _TIMES_MS[-1]) * 1000


def ledgers_batch(records: Sequence[LedgerRecord]) -> pa.RecordBatch:
    """A batch of LEDGERS_SCHEMA with one row per ledger."""
    return pa.RecordBatch.from_pylist([_ledger_row(record) for record in records], schema=LEDGERS_SCHEMA)


def _ledger_row(record: LedgerRecord) -> dict[str, object]:
    metadata: LedgerMetadata = record.metadata
    return {
        "scope_id": record.ledger_id.scope_id,
        "ledger_id": record.ledger_id.low,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "length": metadata.length if metadata.is_closed else None,
        "last_entry_id": metadata.last_entry_id if metadata.is_closed else None,
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "ensemble": list(fragment.ensemble)}
            for fragment in metadata.fragments
        ],
        "creation_time": creation_us(record.creation_ms),
        "custom_metadata": list(metadata.custom_metadata.items()),
        "digest_type": metadata.digest_type.name if metadata.digest_type else None,
        "metadata_version": record.version,
        "term": None if metadata.terms is None else metadata.terms.term,
    }


def bookies_batch(bookies: Sequence[RegisteredBookie]) -> pa.RecordBatch:
    """A batch of BOOKIES_SCHEMA with one row per bookie."""
    return pa.RecordBatch.from_pylist([_bookie_row(bookie) for bookie in bookies], schema=BOOKIES_SCHEMA)


def _bookie_row(bookie: RegisteredBookie) -> dict[str, object]:
    return {
        "bookie_id": bookie.bookie_id,
        "writable": bookie.writable,
        "read_only": bookie.read_only,
        "endpoints": [_endpoint_row(endpoint) for endpoint in bookie.info.endpoints],
        "properties": list(bookie.info.properties.items()),
    }


def _endpoint_row(endpoint: Endpoint) -> dict[str, object]:
    return {"id": endpoint.id, "host": endpoint.host, "port": endpoint.port, "protocol": endpoint.protocol}
