"""The rows of a frame as what is written: one column, as lists of bytes. Sinks of ledgers and of streams use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from bookgate.thinclient.spark.options.read_options import OptionError

PAYLOAD = "payload"
MAX_CHUNK_ENTRIES = 2000
MAX_CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes passed to the client at once; two such chunks are in memory at a time, besides Spark's batch."""


def payload_column(schema: StructType) -> int:
    """The index of the column to write. Raises OptionError if the frame has none."""
    names = schema.fieldNames()
    if PAYLOAD not in names and len(names) != 1:
        raise OptionError(
            f"the sink writes the column {PAYLOAD!r}, or the only one there is; this frame has "
            f"{', '.join(names) or 'none'}: select one, or name it {PAYLOAD!r}"
        )
    index = names.index(PAYLOAD) if PAYLOAD in names else 0
    if names.count(PAYLOAD) > 1 or not isinstance(schema[index].dataType, BinaryType | StringType):
        raise OptionError(
            f"column {names[index]!r} is {schema[index].dataType.simpleString()}; the sink writes one column of "
            "binary or string: cast it, or make it JSON with to_json"
        )
    return index


def refuse_overwrite(overwrite: bool) -> None:
    """Raises OptionError."""
    if overwrite:
        raise OptionError(
            "the sink appends and never replaces anything: use mode 'append' (streams: outputMode 'append')"
        )


def chunks(batches: Iterator[pa.RecordBatch], column: int) -> Iterator[list[bytes]]:
    """The payloads of record batches, in non-empty lists of bounded size. Raises ValueError for a null."""
    for batch in batches:
        payloads = _binary(batch.column(column))
        if payloads.null_count:
            name = batch.schema.names[column]
            raise ValueError(
                f"column {name!r} has {payloads.null_count} nulls among {len(payloads)} rows; a payload may be empty, "
                "but not null: filter them out, or use coalesce"
            )
        step = MAX_CHUNK_ENTRIES
        if payloads.nbytes > MAX_CHUNK_BYTES:
            step = max(1, min(step, len(payloads) * MAX_CHUNK_BYTES // payloads.nbytes))
        for start in range(0, len(payloads), step):
            yield payloads.slice(start, step).to_pylist()


def _binary(column: Any) -> Any:
    """The column with strings as their UTF-8 bytes, without a copy."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())
