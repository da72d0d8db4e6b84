"""The results of the commands of `bookgate spark`: stored once, and shown as a table or as JSON.

Not its job: computing them (`jobs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from enum import Enum
from itertools import chain, count
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from bookgate.runtime.command_line.output import print_json, print_note, print_table
from bookgate.runtime.command_line.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


class Format(str, Enum):  # noqa: UP042  typer shows the values of this form
    """File format of a result."""

    PARQUET = "parquet"
    JSON = "json"


def store_result(found: DataFrame, job: str, output: str | None, output_format: Format) -> DataFrame:
    """The result, computed once: from the files if `output` is given, else from Spark's storage."""
    from bookgate.thinclient.spark.jobs.output_directory import make_ready

    if output is None:
        kept = found.persist()
        kept.count()
        return kept
    make_ready(found.sparkSession, output, job)
    found.write.mode("append").format(output_format.value).save(output)
    return found.sparkSession.read.schema(found.schema).format(output_format.value).load(output)


def show_result(
    summary: Mapping[str, Any], rows: Sequence[Row], as_json: bool, *, rows_name: str | None = None
) -> None:
    plain = [row.asDict(recursive=True) for row in rows]
    if as_json:
        print_json({**summary, rows_name: plain} if rows_name else dict(summary))
        return
    if plain:
        print_table(table_of(plain))
    if summary:
        print_note(", ".join(f"{_label(name)}: {value}" for name, value in summary.items()))


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    numbers = [name for name, value in rows[0].items() if isinstance(value, int)]
    table = Table(*(_label(name) for name in rows[0]), right=[_label(name) for name in numbers])
    for row in rows:
        table.add_row(*(_shown_value(value) for value in row.values()))
    return table


def _label(name: str) -> str:
    return name.replace("_", " ")


def _shown_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        texts = [_shown_value(each) for each in value[:3]]
        return "; ".join(texts) + (" …" if len(value) > 3 else "")
    if isinstance(value, dict) and "fault" not in value:
        return ", ".join(f"{key}={_shown_value(each)}" for key, each in value.items())
    if isinstance(value, dict):  # a range of the audit
        return f"{value.get('fault')} {value.get('first_entry_id')}–{value.get('last_entry_id')}: {value.get('detail')}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def printable(row: Row) -> dict[str, Any]:
    """A row's values as JSON can hold them: bytes as text (invalid UTF-8 as U+FFFD), times in ISO 8601, and as text
    what JSON has no form for. Of columns of one name the second is NAME_2.
    """
    shown: dict[str, Any] = {}
    for name, value in zip(row.__fields__, row, strict=True):
        names = chain([name], (f"{name}_{number}" for number in count(2)))
        shown[next(each for each in names if each not in shown)] = _plain(value)
    return shown


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float() if isfinite(value):
            return value
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case tuple() if hasattr(value, "__fields__"):
            return printable(cast("Row", value))
        case datetime() | time():
            return value.isoformat()
        case _:
            return str(value)
