"""What the commands of streams share: options, where to begin, the scope that holds the streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from bookgate.ledger.streams import DEFAULT_SCOPE, Retention
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import with_client
from bookgate.thinclient.commands.ledger_naming import parse_scope
from bookgate.thinclient.streams.directory import Streams

T = TypeVar("T")

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The name of the stream.", show_default=False)]
Scope = Annotated[
    str | None,
    typer.Option("--scope", metavar="N", help="The scope that holds the streams; a number, or 0x and hex digits."),
]
MaxAge = Annotated[float | None, typer.Option("--max-age", min=0.001, metavar="SECONDS", help="Delete older records.")]
MaxBytes = Annotated[int | None, typer.Option("--max-bytes", min=1, help="Delete the oldest records beyond so many.")]
DeleteConsumed = Annotated[
    bool, typer.Option("--delete-consumed", help="Delete what all cursors have committed, if there is a cursor.")
]
IgnoreCursors = Annotated[
    bool, typer.Option("--ignore-cursors", help="Delete by age and size also what a cursor has not committed.")
]
Begin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="earliest, latest, an entry's id, ENTRY:RECORD, or a time as 2026-01-31T12:00:00Z.",
    ),
]


def in_directory(
    context: typer.Context, gateways: str | None, scope: str | None, work: Callable[[Streams], Awaitable[T]]
) -> T:
    """Does `work` with the streams of a scope. Raises what it raises."""

    async def run(client: BookKeeper) -> T:
        return await work(streams_of(client, scope))

    return with_client(context, gateways, run)


def streams_of(client: BookKeeper, scope: str | None) -> Streams:
    """The streams of a scope."""
    return Streams(client, scope_id=DEFAULT_SCOPE if scope is None else parse_scope(scope))


def retention_of(
    max_age: float | None, max_bytes: int | None, delete_consumed: bool, ignore_cursors: bool
) -> Retention:
    """Raises IncorrectParameterException."""
    return Retention(max_age, max_bytes, delete_consumed, not ignore_cursors)
