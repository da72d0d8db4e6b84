"""`bookgate stream orphans`: what interrupted creations and deletions of streams have left, and its removal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from bookgate.ledger.streams import DEFAULT_SCOPE
from bookgate.runtime.command_line.output import AsJson, Yes, confirm, print_json, print_table, shown_time
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import Gateways, with_client
from bookgate.thinclient.commands.ledger_naming import parse_scope
from bookgate.thinclient.commands.ledger_output import milliseconds_of
from bookgate.thinclient.commands.stream_options import Scope
from bookgate.thinclient.core.streams.orphans import Orphan
from bookgate.thinclient.core.undeletable import NotAllDeletedException
from bookgate.thinclient.streams.orphans import delete_orphans, find_orphans


def orphans(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Longer than any creation takes: 90s, 30m, 12h, 7d.", show_default=True)
    ] = "1d",
    delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False,
    yes: Yes = False,
    scope: Scope = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists what interrupted creations and deletions of streams left in a scope, and deletes it on demand.

    Kinds: a ledger that no stream names, a cursor whose stream is gone, a stream whose ledger is gone. Fails for
    whoever may not see all ledgers of the scope.

    JSON: {"orphans", "deleted", "ledgers": [{"kind", "stream", "cursor", "ledger_id", "created_ms"}, …]}.

    \b
    Example: bookgate stream orphans --older-than 7d --delete
    """
    before_ms = milliseconds_of(older_than, "--older-than", datetime.now(UTC))
    scope_id = DEFAULT_SCOPE if scope is None else parse_scope(scope)

    async def look(client: BookKeeper) -> list[Orphan]:
        return await find_orphans(client, before_ms, scope_id)

    found = with_client(context, gateways, look)
    deleted, refusal = 0, None
    if delete and found:
        confirm(f"Delete {len(found)} ledgers", yes)

        async def remove(client: BookKeeper) -> int:
            return len(await delete_orphans(client, found, scope_id))

        try:
            deleted = with_client(context, gateways, remove)
        except NotAllDeletedException as error:
            deleted, refusal = error.deleted, error
    _print(found, deleted, as_json=as_json)
    if refusal is not None:
        raise refusal


def _print(found: list[Orphan], deleted: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"orphans": len(found), "deleted": deleted, "ledgers": [_row(each) for each in found]})
        return
    if found:
        table = Table("kind", "stream", "cursor", "ledger", "created")
        for each in found:
            record = each.record
            table.add_row(
                each.kind.value, each.stream, each.cursor, str(record.ledger_id), shown_time(record.creation_ms)
            )
        print_table(table)
    typer.echo(f"orphans: {len(found)}, deleted: {deleted}")


def _row(orphan: Orphan) -> dict[str, object]:
    return {
        "kind": orphan.kind.value,
        "stream": orphan.stream,
        "cursor": orphan.cursor,
        "ledger_id": str(orphan.record.ledger_id),
        "created_ms": orphan.record.creation_ms,
    }
