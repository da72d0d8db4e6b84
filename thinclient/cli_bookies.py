"""`bookgate bookies`: which bookies there are."""

from __future__ import annotations

import typer
from rich.table import Table

from ledger.manager import BookieSet, RegisteredBookie
from thinclient.cli_support import AsJson, Gateways, print_json, print_table, with_client

bookies_app = typer.Typer(no_args_is_help=True, help="The cluster's bookies.")


@bookies_app.callback()
def bookies() -> None:
    """The cluster's bookies."""


@bookies_app.command("list")
def list_bookies(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Lists every bookie, registered now or known by its cookie."""
    found = with_client(context, gateways, lambda bookkeeper: bookkeeper.bookies(BookieSet.ALL))
    if as_json:
        print_json([_describe(bookie) for bookie in found])
        return
    table = Table("bookie", "state", "endpoints")
    for bookie in found:
        endpoints = ", ".join(f"{e.protocol} {e.address}" for e in bookie.info.endpoints)
        table.add_row(bookie.bookie_id, _state(bookie), endpoints)
    print_table(table)


def _state(bookie: RegisteredBookie) -> str:
    return "writable" if bookie.writable else "read-only" if bookie.read_only else "not registered"


def _describe(bookie: RegisteredBookie) -> dict[str, object]:
    return {
        "bookie_id": bookie.bookie_id,
        "state": _state(bookie),
        "endpoints": [
            {"id": e.id, "host": e.host, "port": e.port, "protocol": e.protocol} for e in bookie.info.endpoints
        ],
        "properties": dict(bookie.info.properties),
    }
