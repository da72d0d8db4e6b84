"""The commands of `bookgate bookie` that ask over the network: which bookies there are and how they are."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, RegisteredBookie
from bookgate.ledger.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    Operation,
    Status,
)
from bookgate.runtime.command_line.groups import StartByDefault, new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_json, print_result, print_table
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import (
    BookieId,
    Gateways,
    client_config,
    complete_bookie,
    with_client,
    with_pool,
)
from bookgate.thinclient.commands.draining import decommission, drain
from bookgate.thinclient.commands.http_options import BookieName, HttpAddress, Token, TokenFile, admin_of
from bookgate.thinclient.tools.sanity import is_sane

bookies_app = new_group("The cluster's bookies.", StartByDefault)
bookies_app.command()(drain)
bookies_app.command()(decommission)


_NOT_REGISTERED = "not registered"


@bookies_app.command("list")
def list_bookies(
    context: typer.Context,
    writable: Annotated[bool, typer.Option("--writable", "-rw", help="Only those that take writes.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", "-ro", help="Only those that are read-only.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All, also those known by their cookie only; the default.")
    ] = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists bookies with their state and where they listen.

    JSON: a list of {"bookie_id", "state": "writable" | "read-only" | "not registered", "endpoints": [{"id", "host",
    "port", "protocol"}], "properties"}.

    \b
    Example: bookgate bookie list --read-only
    """
    found: Sequence[RegisteredBookie] = with_client(
        context, gateways, lambda bookkeeper: bookkeeper.bookies(BookieSet.ALL)
    )
    if (writable or read_only) and not everything:
        found = [bookie for bookie in found if (writable and bookie.writable) or (read_only and _is_read_only(bookie))]
    if as_json:
        print_json([_describe(bookie) for bookie in found])
        return
    table = Table("bookie", "state", "endpoints")
    for bookie in found:
        endpoints = ", ".join(f"{e.protocol} {e.address}" for e in bookie.info.endpoints)
        table.add_row(bookie.bookie_id, _state(bookie), endpoints)
    print_table(table)


@bookies_app.command()
def endpoints(context: typer.Context, bookie: BookieId, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Shows all that one registered bookie tells of itself: where it listens, how, and its properties.

    JSON: {"bookie_id", "state", "endpoints": [{"id", "host", "port", "protocol", "auth", "extensions"}], "properties"}.

    \b
    Example: bookgate bookie endpoints bookie-1
    """

    async def work(bookkeeper: BookKeeper) -> RegisteredBookie:
        return await bookkeeper.service_discovery.bookie_service_info(bookie)

    found = with_client(context, gateways, work)
    shown = _describe(found)
    shown["endpoints"] = [
        {
            "id": each.id,
            "host": each.host,
            "port": each.port,
            "protocol": each.protocol,
            "auth": list(each.auth),
            "extensions": list(each.extensions),
        }
        for each in found.info.endpoints
    ]
    print_result(shown, as_json)


@dataclass(frozen=True, slots=True)
class _Space:
    """Bytes at one bookie, or why it did not tell."""

    bookie_id: str
    total: int | None = None
    free: int | None = None
    error: str | None = None


@bookies_app.command()
def info(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BOOKIE",
            help="Ids; default: all that are known.",
            show_default=False,
            autocompletion=complete_bookie,
        ),
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Asks bookies for the room on their disks. Exit code 1 when one does not answer, or is not registered.

    JSON: {"bookies": [{"bookie_id", "total_bytes", "free_bytes", "error"}], "total_bytes", "free_bytes"}.

    \b
    Example: bookgate bookie info bookie-1 bookie-2
    """
    timeout = client_config(context, gateways).connect_timeout_seconds

    async def work(pool: BookiePool, known: Sequence[RegisteredBookie]) -> list[_Space]:
        wanted = names or [bookie.bookie_id for bookie in known]
        if not wanted:
            fail("no bookie is registered; start one: bookgate bookie start")
        absent = {bookie.bookie_id for bookie in known if not bookie.registered}
        return list(await asyncio.gather(*(_space(pool, each, timeout, each not in absent) for each in wanted)))

    spaces = with_pool(context, gateways, work)
    told = [each for each in spaces if each.error is None]
    every = _Space("all", sum(each.total or 0 for each in told), sum(each.free or 0 for each in told))
    if as_json:
        rows = [
            {"bookie_id": each.bookie_id, "total_bytes": each.total, "free_bytes": each.free, "error": each.error}
            for each in spaces
        ]
        print_json({"bookies": rows, "total_bytes": every.total, "free_bytes": every.free})
    else:
        table = Table("bookie", "free", "total", "used", "error")
        for each in [*spaces, *([every] if told else [])]:
            table.add_row(each.bookie_id, *_space_cells(each), each.error or "")
        print_table(table)
    if len(told) < len(spaces):
        raise typer.Exit(1)


async def _space(pool: BookiePool, bookie_id: str, timeout: float, registered: bool) -> _Space:
    if not registered:
        return _Space(bookie_id, error=_NOT_REGISTERED)
    request = GetBookieInfoRequest(pool.next_txn_id(), FREE_DISK_SPACE | TOTAL_DISK_CAPACITY)
    try:
        response = await pool.request(bookie_id, Operation.GET_BOOKIE_INFO, request, timeout)
    except BKException as error:
        return _Space(bookie_id, error=str(error))
    if not isinstance(response, GetBookieInfoResponse) or response.status != Status.EOK:
        return _Space(bookie_id, error=f"it refuses to tell (status {response.status})")
    return _Space(bookie_id, response.total_disk_capacity, response.free_disk_space)


def _space_cells(space: _Space) -> list[str]:
    if space.error is not None:
        return ["", "", ""]
    free, total = space.free or 0, space.total or 0
    used = f"{1 - free / total:.1%}" if total else ""
    return [f"{free / 2**30:,.1f} GiB", f"{total / 2**30:,.1f} GiB", used]


@bookies_app.command()
def sanity(
    context: typer.Context,
    bookie: BookieId,
    entries: Annotated[int, typer.Option("--entries", "-e", min=1, help="Entries to write.")] = 10,
    timeout: Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds for all of it.")] = 30.0,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Writes a ledger to one bookie, reads it back and deletes it. Exit code 1 when that fails.

    JSON: {"bookie_id", "passed", "reason"}.

    \b
    Example: bookgate bookie sanity bookie-1 --entries 100
    """

    async def work(bookkeeper: BookKeeper) -> tuple[bool, str | None]:
        try:
            async with asyncio.timeout(timeout):
                passed = await is_sane(bookkeeper, bookie, entries)
        except TimeoutError:
            return False, f"not done within {timeout:g} s"
        except BKException as error:
            return False, str(error)
        return passed, None if passed else "what was read is not what was written, or another bookie took over"

    passed, reason = with_client(context, gateways, work)
    print_result({"bookie_id": bookie, "passed": passed, "reason": reason}, as_json)
    if not passed:
        raise typer.Exit(1)


@bookies_app.command()
def state(
    context: typer.Context,
    bookie: BookieName = None,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows whether a bookie runs, is read-only or shuts down, over its HTTP admin.

    JSON: {"running", "readOnly", "shuttingDown", "availableForHighPriorityWrites"}.

    \b
    Example: bookgate bookie state bookie-1
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    print_result(admin.get("/api/v1/bookie/state"), as_json)


class _Mode(enum.StrEnum):
    ON = "on"
    OFF = "off"


@bookies_app.command("read-only")
def set_read_only(
    context: typer.Context,
    mode: Annotated[_Mode, typer.Argument(help="on: no new entries from now on; off: writable again.")],
    bookie: BookieName = None,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Makes a bookie read-only, or writable again, over its HTTP admin. `bookgate bookie state` shows it.

    JSON: {"readOnly"}: the mode that follows.

    \b
    Example: bookgate bookie read-only on bookie-1
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    print_result(admin.put("/api/v1/bookie/state/readonly", {"readOnly": mode is _Mode.ON}), as_json)


def _is_read_only(bookie: RegisteredBookie) -> bool:
    return bookie.read_only and not bookie.writable


def _state(bookie: RegisteredBookie) -> str:
    return "writable" if bookie.writable else "read-only" if bookie.read_only else _NOT_REGISTERED


def _describe(bookie: RegisteredBookie) -> dict[str, object]:
    return {
        "bookie_id": bookie.bookie_id,
        "state": _state(bookie),
        "endpoints": [
            {"id": e.id, "host": e.host, "port": e.port, "protocol": e.protocol} for e in bookie.info.endpoints
        ],
        "properties": dict(bookie.info.properties),
    }
