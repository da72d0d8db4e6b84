"""`bookgate ledger`: create, write, read, list, show, recover and delete ledgers."""

from __future__ import annotations

import enum
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import Codec, codec_of
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import (
    WRONG_USAGE,
    AsJson,
    Yes,
    confirm,
    end_quietly,
    fail,
    print_aside,
    print_json,
    progress,
)
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import (
    AckQuorumSize,
    Gateways,
    Password,
    WriteQuorumSize,
    complete_bookie,
    with_client,
)
from bookgate.thinclient.commands.entry_input import Delimited, LengthPrefixed, delimiter_of, entries_of
from bookgate.thinclient.commands.entry_output import (
    Encoded,
    EntriesAsJson,
    EntryFormat,
    Format,
    form_of,
    print_batches,
)
from bookgate.thinclient.commands.ledger_naming import (
    LedgerName,
    ScopeId,
    ledger_fields,
    names_ledger,
    parse_ledger,
    parse_scope,
)
from bookgate.thinclient.commands.ledger_output import describe, pairs_of, print_ledger
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.tools.single_replica import batches_of_bookie, ranges_of_bookie

ledger_app = new_group("Ledgers: create, write, read, list, recover, delete; their metadata.")


class Digests(enum.StrEnum):
    """Digest types by the names that people type."""

    CRC32 = "crc32"
    CRC32C = "crc32c"
    HMAC = "hmac"
    DUMMY = "dummy"


@ledger_app.command()
def create(
    context: typer.Context,
    ensemble_size: Annotated[int, typer.Option(min=1, help="Bookies that the ledger is spread over.")] = 3,
    write_quorum_size: WriteQuorumSize = None,
    ack_quorum_size: AckQuorumSize = None,
    digest: Annotated[Digests, typer.Option(help="Digest of the entries.")] = Digests.CRC32C,
    custom_metadata: Annotated[
        list[str] | None, typer.Option("--custom-metadata", "-m", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    ledger_id: Annotated[
        str | None, typer.Option("--id", help="A given id, qualified name or UUID; else the cluster chooses.")
    ] = None,
    ledger_scope_id: ScopeId = None,
    uuid_version: Annotated[
        int | None, typer.Option(help="4 or 7: the id is a new UUID, made here; no generator is asked.")
    ] = None,
    guaranteed_write_quorum: Annotated[
        bool,
        typer.Option(
            "--guaranteed-write-quorum", help="The ledger is closed only once each entry is on its whole write set."
        ),
    ] = False,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Creates a ledger, leaves it open and prints its id. `bookgate ledger write` fills it.

    JSON: the ledger, as `bookgate ledger show` has it.

    \b
    Example: bookgate ledger create --ensemble-size 5 -m owner=me
    """
    pairs = pairs_of(custom_metadata or [])
    given = None if ledger_id is None else parse_ledger(ledger_id, ledger_scope_id)
    scope_id = parse_scope(ledger_scope_id)

    async def work(bookkeeper: BookKeeper) -> LedgerRecord:
        handle = await bookkeeper.create_ledger(
            ensemble_size,
            write_quorum_size,
            ack_quorum_size,
            DigestType[digest.name],
            password.encode(),
            pairs,
            given,
            guaranteed_write_quorum=guaranteed_write_quorum,
            scope_id=scope_id,
            uuid_version=uuid_version,
        )
        return handle.record

    record = with_client(context, gateways, work)
    if as_json:
        print_json(describe(record))
    else:
        print(record.ledger_id)


@ledger_app.command()
@names_ledger
def write(
    context: typer.Context,
    ledger_id: LedgerName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines to append; - is standard input.")] = "-",
    delimiter: Annotated[
        str, typer.Option(metavar="TEXT", help=r"What ends an entry; \n, \r, \t, \0 and \xHH are as in C.")
    ] = r"\n",
    chomp: Annotated[
        bool, typer.Option("--chomp", help="Leave a carriage return at the end of an entry out of it (CRLF).")
    ] = False,
    length_prefixed: Annotated[
        bool,
        typer.Option("--length-prefixed", help="Each entry comes behind its length in 4 bytes, big-endian: any bytes."),
    ] = False,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Appends one entry a line to a ledger that was created and never written, and closes it.

    A ledger is written once, by one writer: one that has entries is refused. --length-prefixed takes what `ledger read
    --format length-prefixed` prints.

    JSON: {"ledger_id", "entries", "bytes"}.

    \b
    Example: bookgate ledger write 7 lines.txt
    """

    if length_prefixed and (chomp or delimiter != r"\n"):
        fail("--length-prefixed goes without --delimiter and --chomp", WRONG_USAGE)
    ends = delimiter_of(delimiter)

    async def work(bookkeeper: BookKeeper) -> tuple[int, int]:
        most = bookkeeper.config.max_packet_size
        framing = LengthPrefixed(most) if length_prefixed else Delimited(most, ends, chomp=chomp)
        with _open_input(file) as source, progress("writing", _size_of(source), "bytes") as done:
            handle = await bookkeeper.reopen_empty_ledger(ledger_id, password.encode())
            async with handle:
                await handle.append_all(entries_of(source, framing, done))
            return handle.last_add_confirmed + 1, handle.length

    entries, size = with_client(context, gateways, work)
    if as_json:
        print_json({**ledger_fields(ledger_id), "entries": entries, "bytes": size})
    else:
        print(f"{entries} entries, {size} bytes in ledger {ledger_id}")


@ledger_app.command()
@names_ledger
def read(
    context: typer.Context,
    ledger_id: LedgerName,
    first: Annotated[int, typer.Option("--from", min=0, help="First entry.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="Last entry; else all that are confirmed.")] = None,
    recover: Annotated[bool, typer.Option("--recover", help="Take an open ledger over and close it.")] = False,
    bookie: Annotated[
        str | None,
        typer.Option("--bookie", "-b", help="Read from this bookie alone.", autocompletion=complete_bookie),
    ] = None,
    entry_format: Format = EntryFormat.TEXT,
    encoded: Encoded = False,
    password: Password = "",
    gateways: Gateways = None,
    as_json: EntriesAsJson = False,
) -> None:
    """Prints the entries of a ledger, or the records in them where it has a codec (`bookgate.codec`).

    With --bookie only what that bookie holds is read, from it alone: what another would give does not count. A bookie
    that no fragment names is refused.

    JSON, an object a line: {"entry_id", "size", "ledger_length", "payload", "encoding": "text"}. The payload is base64
    where it is no text, and "encoding" says so; a record in an entry has its number as "record". "ledger_length" counts
    the ledger's bytes up to this entry. The former names "length" and "payload_base64" are there as well.

    \b
    Example: bookgate ledger read 7 --from 10 --to 19
    """
    chosen = form_of(entry_format, as_json)
    if last is not None and last < first:
        fail(f"--from {first} --to {last}: the first entry comes after the last one", WRONG_USAGE)

    async def work(bookkeeper: BookKeeper) -> None:
        async with await bookkeeper.open_ledger(ledger_id, password.encode(), recover) as reader:
            confirmed = reader.last_add_confirmed
            if first > max(confirmed, 0) or (last is not None and last > confirmed):
                asked = first if first > confirmed else last
                until = f"its last confirmed entry is {confirmed}" if confirmed >= 0 else "it has no confirmed entry"
                fail(f"there is no entry {asked} to read: ledger {ledger_id} is {_state(reader)}, and {until}")
            end = confirmed if last is None else last
            if bookie is None:
                await print_batches(reader.read_batches(first, end), chosen, _codec(reader.record, encoded))
                return
            record = reader.record
        _check_named(record, bookie)
        if first <= end and next(ranges_of_bookie(record.metadata, bookie, first, end), None) is None:
            print_aside(f"note: none of the entries {first} to {end} is due on bookie {bookie}")
        from_one = batches_of_bookie(bookkeeper, record, password.encode(), bookie, first, end)
        await print_batches(from_one, chosen, _codec(record, encoded))

    try:
        with_client(context, gateways, work)
    except BrokenPipeError:
        end_quietly()


@ledger_app.command()
@names_ledger
def tail(
    context: typer.Context,
    ledger_id: LedgerName,
    first: Annotated[int, typer.Option("--from", min=0, help="First entry.")] = 0,
    new: Annotated[bool, typer.Option("--new", help="Only entries after those that are confirmed now.")] = False,
    poll: Annotated[bool, typer.Option("--poll", help="Ask at intervals instead of long polls.")] = False,
    entry_format: Format = EntryFormat.TEXT,
    encoded: Encoded = False,
    password: Password = "",
    gateways: Gateways = None,
    as_json: EntriesAsJson = False,
) -> None:
    """Prints the entries of a ledger as they are confirmed, until it is closed. Its writer is left alone.

    JSON: an object a line, as `bookgate ledger read` has it.

    \b
    Example: bookgate ledger tail 7 --new
    """
    chosen = form_of(entry_format, as_json)

    async def work(bookkeeper: BookKeeper) -> None:
        async with await bookkeeper.open_ledger(ledger_id, password.encode()) as reader:
            start = reader.last_add_confirmed + 1 if new else first
            codec = _codec(reader.record, encoded)
            await print_batches(reader.tail_batches(start, long_poll=not poll), chosen, codec)

    try:
        with_client(context, gateways, work)
    except BrokenPipeError:
        end_quietly()


@ledger_app.command()
@names_ledger
def show(context: typer.Context, ledger_id: LedgerName, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Shows the metadata of a ledger. Its password is not shown.

    JSON: {"ledger_id", "scope_id", "version", "state", "last_entry_id", "length", "ensemble_size",
    "write_quorum_size", "ack_quorum_size", "digest_type", "fragments": [{"first_entry_id", "bookies"}],
    "custom_metadata", "created_ms"}.

    \b
    Example: bookgate ledger show 7
    """
    print_ledger(with_client(context, gateways, lambda client: client.read_record(ledger_id)), as_json)


@ledger_app.command()
@names_ledger
def recover(
    context: typer.Context,
    ledger_id: LedgerName,
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
@names_ledger
def delete(
    context: typer.Context,
    ledger_id: LedgerName,
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
        print_json({**ledger_fields(ledger_id), "deleted": True})
    else:
        print(f"ledger {ledger_id} is deleted")


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


def _check_named(record: LedgerRecord, bookie: str) -> None:
    """A bookie that has never been a member holds nothing by rule: printed as nothing, a typing error is not seen."""
    named = record.metadata.bookies
    if bookie not in named:
        fail(f"no fragment of ledger {record.ledger_id} names bookie {bookie}; they name {', '.join(sorted(named))}")


def _size_of(source: int) -> int | None:
    """Bytes of a file; None for what has no end yet."""
    found = os.fstat(source)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _codec(record: LedgerRecord, encoded: bool) -> Codec:
    return Codec.PLAIN if encoded else codec_of(record.metadata.custom_metadata)


def _state(reader: ReadHandle) -> str:
    return reader.record.metadata.state.name.replace("_", " ").lower()
