"""`bookgate scope`: the scopes of a cluster, what is in them, and removing one.

Scope 0 is where ledgers are that have no scope. Not its job: single ledgers (`bookgate ledger`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from bookgate.ledger.errors import (
    BKException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import HALF_MASK, LedgerId
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, Yes, confirm, fail, print_json, print_result, progress
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import Gateways, with_client
from bookgate.thinclient.commands.ledger_naming import parse_scope

scope_app = new_group("Scopes: which there are, what is in them, removing all ledgers of one.")

_DELETED_TOGETHER = 64
"""Ledgers that are removed side by side."""

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="A number, or 0x and hex digits.", show_default=False)]


@dataclass
class Contents:
    """What a scope holds, as its metadata tell: only closed ledgers have a length."""

    scope_id: int
    complete: bool
    """False: a policy shows only a part of the scope to the caller."""
    ledgers: int = 0
    closed: int = 0
    payload_bytes: int = 0
    stored_bytes: int = 0
    """Payload by the number of copies."""
    by_state: dict[str, int] = field(default_factory=lambda: {state.name: 0 for state in LedgerState})

    def add(self, record: LedgerRecord) -> None:
        metadata = record.metadata
        self.ledgers += 1
        self.by_state[metadata.state.name] += 1
        if metadata.is_closed:
            self.closed += 1
            self.payload_bytes += metadata.length
            self.stored_bytes += metadata.length * metadata.write_quorum_size

    def row(self) -> dict[str, Any]:
        return {
            "scope_id": self.scope_id,
            "scope": f"{self.scope_id & HALF_MASK:016x}",
            "complete": self.complete,
            "ledgers": self.ledgers,
            "closed": self.closed,
            "payload_bytes": self.payload_bytes,
            "stored_bytes": self.stored_bytes,
        }


async def contents_of(client: BookKeeper, scope_id: int) -> Contents:
    """Reads the metadata of all ledgers of a scope, or of those that the caller may see."""
    demand = client.ledger_manager.demand_complete_listings
    demand()
    try:
        return await _added_up(client, Contents(scope_id, complete=True))
    except UnauthorizedAccessException:
        demand(False)
        return await _added_up(client, Contents(scope_id, complete=False))


async def _added_up(client: BookKeeper, found: Contents) -> Contents:
    async for page in client.list_ledgers(found.scope_id):
        for record in page:
            found.add(record)
    return found


@scope_app.command("list")
def list_scopes(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")] = None,
    start_after: Annotated[str | None, typer.Option(metavar="SCOPE", help="Only scopes above this one.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Also ledgers and bytes of each, from its metadata.")] = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists the scopes, other than 0, that have a ledger.

    JSON: a list of {"scope_id", "scope": 16 hex digits}, with --count what `bookgate scope show` has.

    \b
    Example: bookgate scope list --count
    """
    after = parse_scope(start_after)

    async def work(client: BookKeeper) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async for run in client.ledger_manager.scopes(after):
            for scope_id in run:
                if limit is not None and len(rows) >= limit:
                    return rows
                shown = {"scope_id": scope_id, "scope": f"{scope_id & HALF_MASK:016x}"}
                rows.append((await contents_of(client, scope_id)).row() if count else shown)
        return rows

    rows = with_client(context, gateways, work)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        seen = "" if not count or row["complete"] else ", as far as you may see them"
        counted = f"  {row['ledgers']} ledgers, {row['payload_bytes']} bytes{seen}" if count else ""
        print(f"{row['scope']}  {row['scope_id']}{counted}")


@scope_app.command()
def show(context: typer.Context, scope: Scope, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Shows how many ledgers a scope has and how large they are: `0` for ledgers without a scope.

    Only closed ledgers have a length; `stored_bytes` counts each copy. `complete` is false where a policy shows only a
    part of the scope to you.

    JSON: {"scope_id", "scope": 16 hex digits, "complete", "ledgers", "closed", "payload_bytes", "stored_bytes",
    "states": {state: ledgers}}.

    \b
    Example: bookgate scope show 0x2a
    """
    scope_id = parse_scope(scope)
    found = with_client(context, gateways, lambda client: contents_of(client, scope_id))
    print_result({**found.row(), "states": found.by_state}, as_json)


@scope_app.command()
def delete(
    context: typer.Context,
    scope: Scope,
    yes: Yes = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Deletes all ledgers of a scope for good; not those of scope 0. Bookies free the space later.

    Run again, it goes on where it was broken off. Ledgers that are made in the scope meanwhile may stay. Fails
    and deletes nothing for whoever may not see all ledgers of the scope.

    JSON: {"scope_id", "deleted": ledgers, "failed": [{"ledger_id", "error"}]}.

    \b
    Example: bookgate scope delete 0x2a --yes
    """
    scope_id = parse_scope(scope)
    if scope_id == 0:
        fail("scope 0 has the ledgers without a scope: delete those one by one, or all by `bookgate cluster format`")

    wanted = with_client(context, gateways, lambda client: _all_ledgers(client, scope_id))
    confirm(f"Delete the {len(wanted)} ledgers of scope {scope_id & HALF_MASK:016x}", yes)
    failed: list[dict[str, Any]] = []

    async def work(client: BookKeeper) -> int:
        gone = 0
        with progress("deleting", len(wanted), "ledgers") as done:
            for start in range(0, len(wanted), _DELETED_TOGETHER):
                part = wanted[start : start + _DELETED_TOGETHER]
                gone += await _delete_all(client, scope_id, part, failed)
                done(gone)
        return gone

    deleted = with_client(context, gateways, work)
    if as_json:
        print_json({"scope_id": scope_id, "deleted": deleted, "failed": failed})
    else:
        print(f"{deleted} ledgers of scope {scope_id & HALF_MASK:016x} are deleted")
    if failed:
        fail(f"{len(failed)} ledgers are left, the first: {failed[0]['ledger_id']}: {failed[0]['error']}")


async def _all_ledgers(client: BookKeeper, scope_id: int) -> list[int]:
    """Demands all of them: a scope of which a policy shows a part would look empty once that part is deleted."""
    client.ledger_manager.demand_complete_listings()
    return [number async for run in client.ledger_manager.ledger_ranges(scope_id) for number in run]


async def _delete_all(client: BookKeeper, scope_id: int, numbers: Sequence[int], failed: list[dict[str, Any]]) -> int:
    """How many are gone; those that are not are added to `failed`."""

    async def remove(number: int) -> BKException | None:
        try:
            await client.ledger_manager.remove(LedgerId(scope_id, number))
        except NoSuchLedgerExistsOnMetadataServerException:
            return None
        except BKException as error:
            return error
        return None

    errors = await asyncio.gather(*map(remove, numbers))
    left = [(number, error) for number, error in zip(numbers, errors, strict=True) if error is not None]
    failed += [{"ledger_id": number, "error": str(error)} for number, error in left]
    return len(numbers) - len(left)
