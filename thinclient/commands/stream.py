"""`bookgate stream`: logs of records by name: create, append, tail, cursors, retention, delete.

Not its job: the unbounded ledger below a stream (`bookgate ledger show` shows it).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, contextmanager
from typing import Annotated, Any

import typer

from bookgate.ledger.ledger_id import HALF_MASK
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord
from bookgate.ledger.streams import Retention
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import (
    WRONG_USAGE,
    AsJson,
    Yes,
    confirm,
    end_quietly,
    fail,
    json_line,
    print_json,
    print_result,
)
from bookgate.runtime.command_line.tables import separated
from bookgate.runtime.control_characters import visible
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import (
    AckQuorumSize,
    Gateways,
    Password,
    WriteQuorumSize,
    with_client,
)
from bookgate.thinclient.commands.entry_input import Delimited, delimiter_of, entries_of
from bookgate.thinclient.commands.entry_output import (
    EntriesAsJson,
    EntryFormat,
    Format,
    form_of,
    framed,
    payload_fields,
)
from bookgate.thinclient.commands.stream_options import (
    Begin,
    DeleteConsumed,
    IgnoreCursors,
    MaxAge,
    MaxBytes,
    Scope,
    StreamName,
    in_directory,
    retention_of,
    streams_of,
)
from bookgate.thinclient.commands.stream_orphans import orphans
from bookgate.thinclient.handles.ledger_options import ledger_options
from bookgate.thinclient.streams.directory import Streams
from bookgate.thinclient.streams.places import place_of
from bookgate.thinclient.streams.stream import CursorState, Stream, StreamState

stream_app = new_group("Streams: logs of records by name, their writers, cursors and retention.")
stream_app.command("orphans")(orphans)


@stream_app.command()
def create(
    context: typer.Context,
    stream: StreamName,
    ensemble_size: Annotated[int, typer.Option(min=1, help="Bookies that the stream is spread over at a time.")] = 3,
    write_quorum_size: WriteQuorumSize = None,
    ack_quorum_size: AckQuorumSize = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    delete_consumed: DeleteConsumed = False,
    ignore_cursors: IgnoreCursors = False,
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Creates a stream. Its records are kept for ever unless an age, a size or --delete-consumed says otherwise.

    JSON: {"stream", "ledger_id"}.

    \b
    Example: bookgate stream create orders --max-age 604800
    """
    retention = retention_of(max_age, max_bytes, delete_consumed, ignore_cursors)
    options = ledger_options(ensemble_size, write_quorum_size, ack_quorum_size, password=password.encode())

    async def work(streams: Streams) -> Stream:
        return await streams.create(stream, options, retention=retention)

    made = in_directory(context, gateways, scope, work)
    print_result({"stream": made.name, "ledger_id": str(made.ledger_id)}, as_json)


@stream_app.command()
def append(
    context: typer.Context,
    stream: StreamName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Records to append; - is standard input.")] = "-",
    delimiter: Annotated[
        str, typer.Option(metavar="TEXT", help=r"What ends a record; \n, \r, \t, \0 and \xHH are as in C.")
    ] = r"\n",
    producer: Annotated[
        str, typer.Option(help="A name of the input: records are numbered from 0, and none is appended twice.")
    ] = "",
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Appends one record a line. The writer before, if there is one, fails from then on.

    With --producer the same input may be given again after a failure: what the stream has is passed over.

    JSON: {"stream", "records": how many were read, "last_entry_id"}.

    \b
    Example: bookgate stream append orders orders.jsonl --producer orders.jsonl
    """
    ends = delimiter_of(delimiter)
    count = 0

    async def counted(records: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        nonlocal count
        async for record in records:
            count += 1
            yield record

    async def work(client: BookKeeper) -> int:
        opened = await streams_of(client, scope).open(stream, password.encode())
        framing = Delimited(client.config.max_packet_size, ends)
        with _input(file) as source:
            async with await opened.writer() as writer:
                records = counted(entries_of(source, framing))
                await writer.append_all(records, producer=producer, first_sequence=0 if producer else None)
            return writer.last_add_confirmed

    last = with_client(context, gateways, work)
    if as_json:
        print_json({"stream": stream, "records": count, "last_entry_id": last})
    else:
        print(f"{count} records, the last in entry {last} of stream {stream}")


@contextmanager
def _input(file: str) -> Any:
    if file == "-":
        yield sys.stdin.fileno()
        return
    try:
        source = os.open(file, os.O_RDONLY)
    except OSError as error:
        fail(f"{file} can't be read: {error.strerror}")
    try:
        yield source
    finally:
        os.close(source)


@stream_app.command()
def tail(
    context: typer.Context,
    stream: StreamName,
    begin: Begin = "earliest",
    cursor: Annotated[
        str | None, typer.Option(help="Go on where this cursor stands, and commit what was printed.")
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="End at the last record that is there now.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many records.")] = None,
    entry_format: Format = EntryFormat.TEXT,
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: EntriesAsJson = False,
) -> None:
    """Prints the records of a stream as they come, from where --from or the cursor says.

    JSON, an object a line: {"entry_id", "record", "append_time_ms", "size", "payload", "encoding"}.

    \b
    Example: bookgate stream tail orders --from 2026-01-31T12:00:00Z
    """
    form, start = form_of(entry_format, as_json), place_of(begin)

    async def work(streams: Streams) -> None:
        opened = await streams.open(stream, password.encode())
        async with await opened.reader(start, cursor=cursor, follow=not no_follow) as reader:
            left = limit
            async with aclosing(reader.records_batches()) as batches:
                async for batch in batches:
                    shown = batch if left is None else batch[:left]
                    sys.stdout.buffer.write(b"".join(_rendered(record, form) for record in shown))
                    sys.stdout.buffer.flush()
                    if cursor is not None:
                        await reader.commit(_after(shown[-1]))
                    if left is not None:
                        left -= len(shown)
                        if not left:
                            return

    try:
        in_directory(context, gateways, scope, work)
    except BrokenPipeError:
        end_quietly()


def _after(record: StreamRecord) -> RecordPosition:
    return RecordPosition(record.entry_id, record.number + 1)


def _rendered(record: StreamRecord, form: EntryFormat) -> bytes:
    plain = framed(record.payload, form)
    if plain is not None:
        return plain
    fields: dict[str, Any] = {
        "entry_id": record.entry_id,
        "record": record.number,
        "append_time_ms": record.append_time_ms,
        "size": len(record.payload),
        **payload_fields(record.payload),
    }
    if form is EntryFormat.TSV:
        return separated([str(value) for value in fields.values()]).encode()
    return json_line(fields).encode() + b"\n"


@stream_app.command("take-over")
def take_over(
    context: typer.Context,
    stream: StreamName,
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Ends the writer of a stream, wherever it runs: it can append nothing more. The next one may begin.

    JSON: {"stream", "term"}.

    \b
    Example: bookgate stream take-over orders
    """

    async def work(streams: Streams) -> int:
        async with await (await streams.open(stream, password.encode())).writer() as writer:
            return writer.term

    print_result({"stream": stream, "term": in_directory(context, gateways, scope, work)}, as_json)


@stream_app.command()
def trim(
    context: typer.Context,
    stream: StreamName,
    before: Annotated[str | None, typer.Option(metavar="WHERE", help="The first record to keep, as --from.")] = None,
    yes: Yes = False,
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Deletes records of a stream: those before --before, also of cursors; without it, what its retention lets go.

    The last fragment stays, and what the next writer needs.

    JSON: {"stream", "first_entry_id": the first that is left}.

    \b
    Example: bookgate stream trim orders --before 2026-01-31T12:00:00Z --yes
    """
    start = None if before is None else place_of(before)
    if before is not None:
        confirm(f"Delete the records of stream {stream} before {before}", yes)

    async def work(streams: Streams) -> int:
        opened = await streams.open(stream, password.encode())
        if start is None:
            return await opened.apply_retention()
        return await opened.trim(await opened.position_of(start))

    first = in_directory(context, gateways, scope, work)
    print_result({"stream": stream, "first_entry_id": first}, as_json)


@stream_app.command("retention")
def set_retention(
    context: typer.Context,
    stream: StreamName,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    delete_consumed: DeleteConsumed = False,
    ignore_cursors: IgnoreCursors = False,
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Changes what is deleted of a stream; what is not given has no limit. Writers notice it within a minute.

    JSON: {"stream", "max_age_seconds", "max_bytes", "delete_consumed", "keep_for_cursors"}.

    \b
    Example: bookgate stream retention orders --max-bytes 1000000000
    """
    retention = retention_of(max_age, max_bytes, delete_consumed, ignore_cursors)

    async def work(streams: Streams) -> None:
        await (await streams.open(stream)).set_retention(retention)

    in_directory(context, gateways, scope, work)
    print_result({"stream": stream, **_retention_fields(retention)}, as_json)


@stream_app.command()
def cursor(
    context: typer.Context,
    stream: StreamName,
    name: Annotated[str, typer.Argument(metavar="CURSOR", help="The name of the cursor.", show_default=False)],
    reset: Annotated[
        str | None, typer.Option("--reset", metavar="WHERE", help="Move it, also back; as --from of `tail`.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove it: no retention waits for it then.")] = False,
    yes: Yes = False,
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows a cursor of a stream, creates it at the earliest record, moves or removes it.

    JSON: {"stream", "cursor", "entry_id", "record", "committed_ms"}, or {"stream", "cursor", "deleted"}.

    \b
    Example: bookgate stream cursor orders billing --reset latest
    """
    if reset is not None and delete:
        fail("--reset and --delete don't go together", WRONG_USAGE)
    start = None if reset is None else place_of(reset)
    if delete:
        confirm(f"Delete cursor {name} of stream {stream}", yes)

    async def work(streams: Streams) -> dict[str, object]:
        opened = await streams.open(stream, password.encode())
        if delete:
            return {"stream": stream, "cursor": name, "deleted": await opened.delete_cursor(name)}
        found = await opened.cursor(name)
        if start is not None:
            await found.reset(await opened.position_of(start))
        entry_id, number = found.position
        return {
            "stream": stream,
            "cursor": name,
            "entry_id": entry_id,
            "record": number,
            "committed_ms": found.committed_ms,
        }

    print_result(in_directory(context, gateways, scope, work), as_json)


@stream_app.command("list")
def list_streams(
    context: typer.Context, scope: Scope = None, gateways: Gateways = None, as_json: AsJson = False
) -> None:
    """Lists the names of all streams of a scope.

    JSON: a list of names.

    \b
    Example: bookgate stream list
    """

    async def work(streams: Streams) -> list[str]:
        return sorted([name async for page in streams.names() for name in page])

    names = in_directory(context, gateways, scope, work)
    if as_json:
        print_json(names)
        return
    for name in names:
        print(visible(name))


@stream_app.command()
def show(
    context: typer.Context,
    stream: StreamName,
    password: Password = "",
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows a stream: its writers so far (term), what it holds, its retention, and how far its cursors are behind.

    JSON: {"stream", "ledger_id", "scope", "term", "first_entry_id", "last_entry_id", "fragments", "bytes",
    "last_append_ms", "retention": {…}, "cursors": [{"cursor", "entry_id", "record", "committed_ms", "lag_entries",
    "lag_bytes"}]}.

    \b
    Example: bookgate stream show orders
    """

    async def work(streams: Streams) -> StreamState:
        return await (await streams.open(stream, password.encode())).state()

    print_result(_described(in_directory(context, gateways, scope, work)), as_json)


def _described(state: StreamState) -> dict[str, object]:
    return {
        "stream": state.name,
        "ledger_id": str(state.ledger_id),
        "scope": f"{state.ledger_id.scope_id & HALF_MASK:016x}",
        "term": state.term,
        "first_entry_id": state.first_entry_id,
        "last_entry_id": state.last_entry_id,
        "fragments": state.fragments,
        "bytes": state.bytes,
        "last_append_ms": state.last_append_ms,
        "retention": _retention_fields(state.retention),
        "cursors": [_cursor_fields(each) for each in state.cursors],
    }


def _retention_fields(retention: Retention) -> dict[str, object]:
    return {
        "max_age_seconds": retention.max_age_seconds,
        "max_bytes": retention.max_bytes,
        "delete_consumed": retention.delete_consumed,
        "keep_for_cursors": retention.keep_for_cursors,
    }


def _cursor_fields(state: CursorState) -> dict[str, object]:
    return {
        "cursor": state.name,
        "entry_id": state.position.entry_id,
        "record": state.position.number,
        "committed_ms": state.committed_ms,
        "lag_entries": state.lag_entries,
        "lag_bytes": state.lag_bytes,
    }


@stream_app.command()
def delete(
    context: typer.Context,
    stream: StreamName,
    yes: Yes = False,
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Deletes a stream with its cursors for good. Its bookies free the space later.

    JSON: {"stream", "deleted"}.

    \b
    Example: bookgate stream delete orders --yes
    """
    confirm(f"Delete stream {stream}", yes)

    async def work(streams: Streams) -> bool:
        return await streams.delete(stream)

    deleted = in_directory(context, gateways, scope, work)
    if not deleted:
        fail(f"there is no stream {stream}")
    print_result({"stream": stream, "deleted": deleted}, as_json)
