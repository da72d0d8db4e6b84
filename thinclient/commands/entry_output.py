"""How commands print entries."""

from __future__ import annotations

import base64
import enum
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import typer

from bookgate.ledger.entry import Entry
from bookgate.runtime.command_line.output import OutputForm, chosen_form
from bookgate.runtime.command_line.tables import separated


class EntryFormat(enum.StrEnum):
    """How entries are printed."""

    TEXT = "text"
    RAW = "raw"
    JSON = "json"
    TSV = "tsv"


Format = Annotated[
    EntryFormat,
    typer.Option(
        "--format", help="text: a line an entry; raw: payloads only; json: an object a line; tsv: a row an entry."
    ),
]
EntriesAsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


async def print_batches(source: AsyncGenerator[list[Entry], None], form: EntryFormat) -> None:
    async with aclosing(source) as batches:
        async for batch in batches:
            sys.stdout.buffer.write(b"".join(_rendered(entry, form) for entry in batch))
            sys.stdout.buffer.flush()


def form_of(entry_format: EntryFormat, as_json: bool) -> EntryFormat:
    if as_json:
        return EntryFormat.JSON
    return EntryFormat.TSV if chosen_form() in (OutputForm.TSV, OutputForm.TABLE) else entry_format


def _rendered(entry: Entry, entry_format: EntryFormat) -> bytes:
    if entry_format is EntryFormat.RAW:
        return entry.payload
    if entry_format is EntryFormat.TEXT:
        return entry.payload + b"\n"
    described = _described(entry)
    if entry_format is EntryFormat.TSV:
        names = ("entry_id", "size", "ledger_length", "encoding", "payload")
        return separated([str(described[name]) for name in names]).encode()
    return json.dumps(described, ensure_ascii=False).encode() + b"\n"


def _described(entry: Entry) -> dict[str, Any]:
    """An entry for a program, with the former names of its fields."""
    described: dict[str, Any] = {
        "entry_id": entry.entry_id,
        "size": entry.size,
        "ledger_length": entry.ledger_length,
        "length": entry.ledger_length,
    }
    try:
        return {**described, "payload": entry.payload.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        encoded = base64.b64encode(entry.payload).decode()
        return {**described, "payload": encoded, "encoding": "base64", "payload_base64": encoded}
