"""`bookgate ledger list`: ledgers as the cluster tells them, page by page, however many there are."""

from __future__ import annotations

import enum
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from bookgate.ledger.ledger_filter import LedgerFilter
from bookgate.ledger.metadata import LedgerState
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import WRONG_USAGE, AsJson, PrintedListing, fail
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import Gateways, complete_bookie, with_client
from bookgate.thinclient.commands.ledger_naming import ScopeId, parse_scope
from bookgate.thinclient.commands.ledger_output import (
    COLUMNS,
    bytes_of,
    columns_of,
    describe,
    milliseconds_of,
    wanted_pairs_of,
)

_PAGE = 1000

list_app = new_group("Lists of ledgers.")


class States(enum.StrEnum):
    """States by the names that people type."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


@list_app.callback()
def group() -> None:
    """Keeps this group with its one command."""


@list_app.command("list")
def list_ledgers(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")] = None,
    start_after: Annotated[int | None, typer.Option(help="Only ids above this one.")] = None,
    ledger_scope_id: ScopeId = None,
    state: Annotated[States | None, typer.Option(help="Only those in this state.")] = None,
    bookie: Annotated[
        str | None,
        typer.Option(
            "--bookie",
            "-b",
            help="Only those with entries on this bookie, as metadata tells.",
            autocompletion=complete_bookie,
        ),
    ] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only younger ones: 7d (s, m, h, d, w ago) or 2026-11-24T10:30.")
    ] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="Only older ones.")] = None,
    min_size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Only closed ones with so many payload bytes: 4096, 64KiB, 1GB.")
    ] = None,
    max_size: Annotated[str | None, typer.Option(metavar="BYTES", help="Only closed ones with no more.")] = None,
    custom_metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--custom-metadata",
            "-m",
            metavar="KEY[=VALUE]",
            help="Only those with it; repeatable, all must match.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help=f"Columns of the table, in this order, of {', '.join(COLUMNS)}."),
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists ledgers in ascending order of their ids, as they arrive.

    With --limit a line on standard error tells how to go on where there are more. Filters are applied here, so that a
    search reads the metadata of all ledgers. A ledger that is not closed has no size yet, one of an old client may have
    no creation time: filters on those leave it out.

    JSON: a list of ledgers, each as `bookgate ledger show` has it; with --output jsonl a ledger a line.

    \b
    Example: bookgate ledger list --limit 10 --state closed --created-before 7d --min-size 1MiB -m owner=me
    """
    scope_id = parse_scope(ledger_scope_id)
    now = datetime.now(UTC)
    wanted = LedgerFilter(
        state=None if state is None else LedgerState[state.name],
        bookie=bookie,
        created_from_ms=None if created_after is None else milliseconds_of(created_after, "--created-after", now),
        created_before_ms=None if created_before is None else milliseconds_of(created_before, "--created-before", now),
        min_bytes=None if min_size is None else bytes_of(min_size, "--min-size"),
        max_bytes=None if max_size is None else bytes_of(max_size, "--max-size"),
        custom_metadata=wanted_pairs_of(custom_metadata or []),
    )
    if as_json and columns is not None:
        fail("--columns is for table and tsv; JSON has every field", WRONG_USAGE)
    listing = PrintedListing(
        columns_of(columns), describe, as_json=as_json, right=frozenset({"ledger", "entries", "bytes"})
    )

    async def work(bookkeeper: BookKeeper) -> int | None:
        """The last id that was printed, where there are more."""
        last, left = start_after, limit
        async for page in bookkeeper.list_ledgers(
            scope_id, start_after=start_after, page_size=min(limit or _PAGE, _PAGE)
        ):
            found = wanted.of(page)
            shown = found[:left]
            listing.write(shown)
            last = shown[-1].ledger_id.low if shown else last
            if len(found) > len(shown):
                return last
            left = None if left is None else left - len(shown)
        return None

    more = with_client(context, gateways, work)
    listing.end()
    if more is not None:
        print(f"more: add --start-after {more}", file=sys.stderr)
