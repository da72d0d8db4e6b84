"""How commands print entries."""

from __future__ import annotations

import base64
import enum
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any

import typer

from bookgate.ledger.entry import Entry
from bookgate.ledger.payload_codec import Codec, records_of
from bookgate.runtime.command_line.output import OutputForm, chosen_form, json_line
from bookgate.runtime.command_line.tables import separated
from bookgate.runtime.control_characters import visible
from bookgate.thinclient.commands.entry_input import LENGTH_BYTES


class EntryFormat(enum.StrEnum):
    """How entries are printed."""

    TEXT = "text"
    RAW = "raw"
    LENGTH_PREFIXED = "length-prefixed"
    JSON = "json"
    TSV = "tsv"


Format = Annotated[
    EntryFormat,
    typer.Option(
        "--format",
        help="text: a line an entry, on a terminal with escapes for what it would obey; raw: payloads only; "
        "length-prefixed: each behind its length in 4 bytes, big-endian; json: an object a line; tsv: a row an entry.",
    ),
]
EntriesAsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


Encoded = Annotated[
    bool,
    typer.Option("--encoded", help="Print entries as they are stored, also those of a ledger of records."),
]


async def print_batches(
    source: AsyncGenerator[list[Entry], None], form: EntryFormat, codec: Codec = Codec.PLAIN
) -> None:
    """Prints the entries, or of a codec the records in them."""
    async with aclosing(source) as batches:
        async for batch in batches:
            sys.stdout.buffer.write(b"".join(_lines(batch, form, codec)))
            sys.stdout.buffer.flush()


def _lines(batch: list[Entry], form: EntryFormat, codec: Codec) -> Iterator[bytes]:
    for entry in batch:
        if codec is Codec.PLAIN:
            yield _rendered(entry.payload, form, entry)
            continue
        for record in records_of(codec, [entry]):
            yield _rendered(record.payload, form, entry, record.number)


def form_of(entry_format: EntryFormat, as_json: bool) -> EntryFormat:
    if as_json:
        return EntryFormat.JSON
    return EntryFormat.TSV if chosen_form() in (OutputForm.TSV, OutputForm.TABLE) else entry_format


def _rendered(payload: bytes, entry_format: EntryFormat, entry: Entry, record: int | None = None) -> bytes:
    plain = framed(payload, entry_format)
    if plain is not None:
        return plain
    described = _described(payload, entry, record)
    if entry_format is EntryFormat.TSV:
        names = (
            "entry_id",
            *(["record"] if record is not None else []),
            "size",
            "ledger_length",
            "encoding",
            "payload",
        )
        return separated([str(described[name]) for name in names]).encode()
    return json_line(described).encode() + b"\n"


def _described(payload: bytes, entry: Entry, record: int | None) -> dict[str, Any]:
    """An entry or a record for a program, with the former names of its fields."""
    described: dict[str, Any] = {
        "entry_id": entry.entry_id,
        **({} if record is None else {"record": record}),
        "size": len(payload),
        "ledger_length": entry.ledger_length,
        "length": entry.ledger_length,
    }
    shown = payload_fields(payload)
    former = {"payload_base64": shown["payload"]} if shown["encoding"] == "base64" else {}
    return {**described, **shown, **former}


def payload_fields(payload: bytes) -> dict[str, str]:
    """A payload for a program: as text, or as base64 where it is none."""
    try:
        return {"payload": payload.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def framed(payload: bytes, entry_format: EntryFormat) -> bytes | None:
    """A payload as the formats without facts print it; None for the others."""
    if entry_format is EntryFormat.RAW:
        return payload
    if entry_format is EntryFormat.LENGTH_PREFIXED:
        return len(payload).to_bytes(LENGTH_BYTES) + payload
    return _text_line(payload) if entry_format is EntryFormat.TEXT else None


def _text_line(payload: bytes) -> bytes:
    """The payload; on a terminal with escapes, tabs excepted, since whoever may append could erase or forge lines."""
    if not sys.stdout.isatty():
        return payload + b"\n"
    return "\t".join(map(visible, payload.decode(errors="backslashreplace").split("\t"))).encode() + b"\n"
