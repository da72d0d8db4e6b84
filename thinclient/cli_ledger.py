"""`bookgate ledger`: create, write, read, list, show, recover and delete ledgers."""

from __future__ import annotations

import base64
import enum
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ledger.entry import Entry
from ledger.errors import IncorrectParameterException
from ledger.manager import LedgerRecord
from ledger.metadata import DigestType
from thinclient.cli_support import (
    AsJson,
    Gateways,
    LedgerNumber,
    Password,
    end_quietly,
    fail,
    in_daemon_thread,
    print_json,
    print_table,
    with_client,
)
from thinclient.client import BookKeeper

_CHUNK = 256 * 1024
"""Bytes of input read at once."""

ledger_app = typer.Typer(no_args_is_help=True, help="Ledgers: create, write, read, list, show, recover, delete.")


class Digests(enum.StrEnum):
    """Digest types by the names that people type."""

    CRC32 = "crc32"
    CRC32C = "crc32c"
    HMAC = "hmac"
    DUMMY = "dummy"


class EntryFormat(enum.StrEnum):
    """How entries are printed."""

    TEXT = "text"
    RAW = "raw"
    JSON = "json"


@ledger_app.command()
def create(
    context: typer.Context,
    ensemble_size: Annotated[int, typer.Option(min=1, help="Bookies that the ledger is spread over.")] = 3,
    write_quorum_size: Annotated[int, typer.Option(min=1, help="Bookies that get each entry.")] = 3,
    ack_quorum_size: Annotated[int, typer.Option(min=1, help="Bookies that must have stored an entry.")] = 2,
    digest: Annotated[Digests, typer.Option(help="Digest of the entries.")] = Digests.CRC32C,
    custom_metadata: Annotated[
        list[str] | None, typer.Option("--custom-metadata", "-m", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    ledger_id: Annotated[int | None, typer.Option("--id", min=0, help="A given id; else the cluster chooses.")] = None,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Creates a ledger, leaves it open and prints its id. `bookgate ledger write` fills it."""
    pairs = _pairs(custom_metadata or [])

    async def work(bookkeeper: BookKeeper) -> LedgerRecord:
        handle = await bookkeeper.create_ledger(
            ensemble_size,
            write_quorum_size,
            ack_quorum_size,
            DigestType[digest.name],
            password.encode(),
            pairs,
            ledger_id,
        )
        return handle.record

    record = with_client(context, gateways, work)
    if as_json:
        print_json(describe(record))
    else:
        print(record.ledger_id)


@ledger_app.command()
def write(
    context: typer.Context,
    ledger_id: LedgerNumber,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Lines to append; - is standard input.")] = "-",
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Appends one entry a line to a ledger that was created and never written, and closes it.

    A ledger is written once, by one writer: one that has entries is refused.
    """

    async def work(bookkeeper: BookKeeper) -> tuple[int, int]:
        with _open_input(file) as source:
            handle = await bookkeeper.reopen_empty_ledger(ledger_id, password.encode())
            async with handle:
                await handle.append_all(_entries(source))
            return handle.last_add_confirmed + 1, handle.length

    entries, size = with_client(context, gateways, work)
    if as_json:
        print_json({"ledger_id": ledger_id, "entries": entries, "bytes": size})
    else:
        print(f"{entries} entries, {size} bytes in ledger {ledger_id}")


@ledger_app.command()
def read(
    context: typer.Context,
    ledger_id: LedgerNumber,
    first: Annotated[int, typer.Option("--from", min=0, help="First entry.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="Last entry; else all that are confirmed.")] = None,
    recover: Annotated[bool, typer.Option("--recover", help="Take an open ledger over and close it.")] = False,
    entry_format: Annotated[
        EntryFormat, typer.Option("--format", help="text: a line an entry; raw: payloads only; json: an object a line.")
    ] = EntryFormat.TEXT,
    password: Password = "",
    gateways: Gateways = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prints the entries of a ledger."""
    chosen = EntryFormat.JSON if as_json else entry_format

    async def work(bookkeeper: BookKeeper) -> None:
        async with await bookkeeper.open_ledger(ledger_id, password.encode(), recover) as reader:
            end = reader.last_add_confirmed if last is None else last
            async for batch in reader.read_batches(first, max(end, first - 1)):
                sys.stdout.buffer.write(b"".join(_rendered(entry, chosen) for entry in batch))
                sys.stdout.buffer.flush()

    try:
        with_client(context, gateways, work)
    except BrokenPipeError:
        end_quietly()


@ledger_app.command()
def tail(
    context: typer.Context,
    ledger_id: LedgerNumber,
    first: Annotated[int, typer.Option("--from", min=0, help="First entry.")] = 0,
    new: Annotated[bool, typer.Option("--new", help="Only entries after those that are confirmed now.")] = False,
    poll: Annotated[bool, typer.Option("--poll", help="Ask at intervals instead of long polls.")] = False,
    entry_format: Annotated[
        EntryFormat, typer.Option("--format", help="text: a line an entry; raw: payloads only; json: an object a line.")
    ] = EntryFormat.TEXT,
    password: Password = "",
    gateways: Gateways = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prints the entries of a ledger as they are confirmed, until it is closed. Its writer is left alone."""
    chosen = EntryFormat.JSON if as_json else entry_format

    async def work(bookkeeper: BookKeeper) -> None:
        async with await bookkeeper.open_ledger(ledger_id, password.encode()) as reader:
            start = reader.last_add_confirmed + 1 if new else first
            async with aclosing(reader.tail_batches(start, long_poll=not poll)) as batches:
                async for batch in batches:
                    sys.stdout.buffer.write(b"".join(_rendered(entry, chosen) for entry in batch))
                    sys.stdout.buffer.flush()

    try:
        with_client(context, gateways, work)
    except BrokenPipeError:
        end_quietly()


@ledger_app.command("list")
def list_ledgers(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    start_after: Annotated[int | None, typer.Option(min=0, help="Only ids above this one.")] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists ledgers in ascending order of their ids."""

    async def work(bookkeeper: BookKeeper) -> list[LedgerRecord]:
        records: list[LedgerRecord] = []
        async for page in bookkeeper.list_ledgers(start_after=start_after, page_size=min(limit or 0, 1000)):
            records += page
            if limit is not None and len(records) >= limit:
                break
        return records[:limit]

    records = with_client(context, gateways, work)
    if as_json:
        print_json([describe(record) for record in records])
        return
    table = Table("ledger", "state", "entries", "bytes", "E/Qw/Qa", "custom metadata")
    for record in records:
        table.add_row(str(record.ledger_id), *_row(record))
    print_table(table)


@ledger_app.command()
def show(context: typer.Context, ledger_id: LedgerNumber, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Shows the metadata of a ledger. Its password is not shown."""
    record = with_client(context, gateways, lambda bookkeeper: bookkeeper.read_record(ledger_id))
    description = describe(record)
    if as_json:
        print_json(description)
        return
    table = Table(show_header=False)
    for key, value in description.items():
        table.add_row(key.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
    print_table(table)


@ledger_app.command()
def recover(
    context: typer.Context,
    ledger_id: LedgerNumber,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Takes an open ledger from its writer: fences it, finds its end, makes that durable and closes it."""

    async def work(bookkeeper: BookKeeper) -> tuple[bool, LedgerRecord]:
        was_closed = (await bookkeeper.read_record(ledger_id)).metadata.is_closed
        async with await bookkeeper.open_ledger(ledger_id, password.encode(), recovery=True) as reader:
            return was_closed, reader.record

    was_closed, record = with_client(context, gateways, work)
    if as_json:
        print_json({**describe(record), "recovered": not was_closed})
        return
    what = "was closed before" if was_closed else "is recovered and closed"
    metadata = record.metadata
    print(f"ledger {ledger_id} {what}: {metadata.last_entry_id + 1} entries, {metadata.length} bytes")


@ledger_app.command()
def delete(
    context: typer.Context,
    ledger_id: LedgerNumber,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Deletes a ledger for good. Its bookies free the space later."""
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"Delete ledger {ledger_id} for good?", err=True)):
        fail(f"ledger {ledger_id} was not deleted; confirm with --yes")

    async def work(bookkeeper: BookKeeper) -> None:
        await bookkeeper.read_record(ledger_id)
        await bookkeeper.delete_ledger(ledger_id)

    with_client(context, gateways, work)
    if as_json:
        print_json({"ledger_id": ledger_id, "deleted": True})
    else:
        print(f"ledger {ledger_id} is deleted")


def describe(record: LedgerRecord) -> dict[str, Any]:
    """A ledger for a program: everything but the password."""
    metadata = record.metadata
    closed = metadata.is_closed
    return {
        "ledger_id": record.ledger_id.ledger_id,
        "scope_id": record.ledger_id.scope_id,
        "version": record.version,
        "state": metadata.state.name,
        "last_entry_id": metadata.last_entry_id if closed else None,
        "length": metadata.length if closed else None,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "digest_type": metadata.digest_type.name if metadata.digest_type else None,
        "fragments": [{"first_entry_id": f.first_entry_id, "bookies": list(f.ensemble)} for f in metadata.fragments],
        "custom_metadata": {
            key: value.decode(errors="backslashreplace") for key, value in metadata.custom_metadata.items()
        },
        "created_ms": metadata.ctime_ms,
    }


def _row(record: LedgerRecord) -> list[str]:
    metadata = record.metadata
    custom = ", ".join(f"{k}={v.decode(errors='backslashreplace')}" for k, v in metadata.custom_metadata.items())
    quorums = f"{metadata.ensemble_size}/{metadata.write_quorum_size}/{metadata.ack_quorum_size}"
    counts = [str(metadata.last_entry_id + 1), str(metadata.length)] if metadata.is_closed else ["", ""]
    return [metadata.state.name, *counts, quorums, custom]


def _pairs(texts: list[str]) -> dict[str, bytes]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise IncorrectParameterException(f"--custom-metadata {text!r} is not KEY=VALUE")
        pairs[key] = value.encode()
    return pairs


@contextmanager
def _open_input(file: str) -> Iterator[int]:
    """A file descriptor."""
    if file == "-":
        yield sys.stdin.fileno()
        return
    try:
        opened = Path(file).open("rb", buffering=0)  # noqa: SIM115  # closed below, whatever the caller does
    except OSError as error:
        fail(f"{file} can't be read: {error.strerror}")
    with opened:
        yield opened.fileno()


async def _entries(source: int) -> AsyncIterator[bytes]:
    """A line without its end is an entry; an empty line is an empty entry.

    The source may be slow (a terminal, the end of a log): it is read beside the event loop, so that what was read goes
    out meanwhile and an interrupt is heard.
    """
    rest = bytearray()
    while chunk := await in_daemon_thread(os.read, source, _CHUNK):
        lines = chunk.split(b"\n")
        rest += lines[0]
        if len(lines) == 1:
            continue
        yield bytes(rest)
        for line in lines[1:-1]:
            yield line
        rest = bytearray(lines[-1])
    if rest:
        yield bytes(rest)


def _rendered(entry: Entry, entry_format: EntryFormat) -> bytes:
    if entry_format is EntryFormat.RAW:
        return entry.payload
    if entry_format is EntryFormat.TEXT:
        return entry.payload + b"\n"
    described: dict[str, Any] = {"entry_id": entry.entry_id, "length": entry.length}
    try:
        described["payload"] = entry.payload.decode()
    except UnicodeDecodeError:
        described["payload_base64"] = base64.b64encode(entry.payload).decode()
    return json.dumps(described, ensure_ascii=False).encode() + b"\n"
