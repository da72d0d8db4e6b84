"""`bookgate ledger`: create, write, read, list, show, recover and delete ledgers."""

from __future__ import annotations

import base64
import enum
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import (
    AsJson,
    Yes,
    confirm,
    end_quietly,
    fail,
    print_json,
    print_result,
    print_table,
)
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import Gateways, LedgerNumber, Password, in_daemon_thread, with_client
from bookgate.thinclient.tools.single_replica import batches_of_bookie

_CHUNK = 256 * 1024
"""Bytes of input read at once."""

ledger_app = new_group("Ledgers: create, write, read, list, recover, delete; their metadata.")


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
    """Creates a ledger, leaves it open and prints its id. `bookgate ledger write` fills it.

    JSON: the ledger, as `bookgate ledger show` has it.

    \b
    Example: bookgate ledger create --ensemble-size 5 -m owner=me
    """
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
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines to append; - is standard input.")] = "-",
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Appends one entry a line to a ledger that was created and never written, and closes it.

    A ledger is written once, by one writer: one that has entries is refused.

    JSON: {"ledger_id", "entries", "bytes"}.

    \b
    Example: bookgate ledger write 7 lines.txt
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
    bookie: Annotated[str | None, typer.Option("--bookie", "-b", help="Read from this bookie alone.")] = None,
    entry_format: Annotated[
        EntryFormat, typer.Option("--format", help="text: a line an entry; raw: payloads only; json: an object a line.")
    ] = EntryFormat.TEXT,
    password: Password = "",
    gateways: Gateways = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prints the entries of a ledger.

    With --bookie only what that bookie holds is read, from it alone: what another would give does not count.

    JSON, an object a line: {"entry_id", "length", "payload"}, or "payload_base64" where it is no text.

    \b
    Example: bookgate ledger read 7 --from 10 --to 19
    """
    chosen = EntryFormat.JSON if as_json else entry_format

    async def work(bookkeeper: BookKeeper) -> None:
        async with await bookkeeper.open_ledger(ledger_id, password.encode(), recover) as reader:
            end = max(reader.last_add_confirmed if last is None else last, first - 1)
            if bookie is None:
                await _print_batches(reader.read_batches(first, end), chosen)
                return
            record = reader.record
        await _print_batches(batches_of_bookie(bookkeeper, record, password.encode(), bookie, first, end), chosen)

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
    """Prints the entries of a ledger as they are confirmed, until it is closed. Its writer is left alone.

    JSON: an object a line, as `bookgate ledger read` has it.

    \b
    Example: bookgate ledger tail 7 --new
    """
    chosen = EntryFormat.JSON if as_json else entry_format

    async def work(bookkeeper: BookKeeper) -> None:
        async with await bookkeeper.open_ledger(ledger_id, password.encode()) as reader:
            start = reader.last_add_confirmed + 1 if new else first
            await _print_batches(reader.tail_batches(start, long_poll=not poll), chosen)

    try:
        with_client(context, gateways, work)
    except BrokenPipeError:
        end_quietly()


@ledger_app.command("list")
def list_ledgers(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    start_after: Annotated[int | None, typer.Option(min=0, help="Only ids above this one.")] = None,
    bookie: Annotated[
        str | None, typer.Option("--bookie", "-b", help="Only those with entries on this bookie, as metadata tells.")
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists ledgers in ascending order of their ids.

    JSON: a list of ledgers, each as `bookgate ledger show` has it.

    \b
    Example: bookgate ledger list --limit 10 --bookie bookie-1
    """

    async def work(bookkeeper: BookKeeper) -> list[LedgerRecord]:
        records: list[LedgerRecord] = []
        async for page in bookkeeper.list_ledgers(start_after=start_after, page_size=min(limit or 0, 1000)):
            records += page if bookie is None else [record for record in page if bookie in record.metadata.bookies]
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
    """Shows the metadata of a ledger. Its password is not shown.

    JSON: {"ledger_id", "scope_id", "version", "state", "last_entry_id", "length", "ensemble_size",
    "write_quorum_size", "ack_quorum_size", "digest_type", "fragments": [{"first_entry_id", "bookies"}],
    "custom_metadata", "created_ms"}.

    \b
    Example: bookgate ledger show 7
    """
    print_result(describe(with_client(context, gateways, lambda client: client.read_record(ledger_id))), as_json)


@ledger_app.command()
def recover(
    context: typer.Context,
    ledger_id: LedgerNumber,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Takes an open ledger from its writer: fences it, finds its end, makes that durable and closes it.

    JSON: the ledger, as `bookgate ledger show` has it, with "recovered": false where it was closed before.

    \b
    Example: bookgate ledger recover 7
    """

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
    yes: Yes = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Deletes a ledger for good. Its bookies free the space later.

    JSON: {"ledger_id", "deleted": true}.

    \b
    Example: bookgate ledger delete 7 --yes
    """
    confirm(f"Delete ledger {ledger_id}", yes)

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
        "created_ms": record.creation_ms,
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


async def _print_batches(source: AsyncGenerator[list[Entry], None], form: EntryFormat) -> None:
    async with aclosing(source) as batches:
        async for batch in batches:
            sys.stdout.buffer.write(b"".join(_rendered(entry, form) for entry in batch))
            sys.stdout.buffer.flush()


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
