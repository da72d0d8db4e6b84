"""`bookgate gc`: garbage collection and compaction of one bookie, over its HTTP admin."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, print_json, print_result, print_table, shown_time
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.commands.client_options import Gateways
from bookgate.thinclient.commands.http_options import BookieName, HttpAddress, Token, TokenFile, admin_of
from bookgate.thinclient.tools import collection
from bookgate.thinclient.tools.collection import GC, GC_DETAILS, SuspendedGc

gc_app = new_group("Garbage collection and compaction of a bookie, over its HTTP admin.")

Major = Annotated[bool, typer.Option("--major", help="Major compaction.")]
Minor = Annotated[bool, typer.Option("--minor", help="Minor compaction.")]

Ledgers = Annotated[bool, typer.Option("--ledgers", help="The deletion of ledgers that no metadata names.")]

_SHOWN = ("forced_run", "major_suspended", "minor_suspended", "ledgers_suspended")


@gc_app.command()
def trigger(
    context: typer.Context,
    bookie: BookieName = None,
    major: Major = False,
    minor: Minor = False,
    ledgers: Annotated[
        bool,
        typer.Option(
            "--force-ledgers", help="Ledgers without metadata go at once, however many: no second run is waited for."
        ),
    ] = False,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Collects garbage now; with --major or --minor that compaction runs whether it is due or not.

    A ledger goes when two runs, `gc_wait_seconds` apart, find no metadata of it; runs in between free what earlier ones
    have let go. --force-ledgers is for when you know that the metadata is right: it skips that wait, and the check
    that a run does not delete most of what the bookie holds.

    JSON: {"triggered": true, "major": …, "minor": …, "ledgers": …}.

    \b
    Example: bookgate gc trigger bookie-1 --major
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    collection.trigger(admin, major=major, minor=minor, force_ledgers=ledgers)
    print_result({"triggered": True, "major": major, "minor": minor, "ledgers": ledgers}, as_json)


@gc_app.command()
def status(
    context: typer.Context,
    bookie: BookieName = None,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows what garbage collection does, what it did last, and what is suspended.

    JSON: {"forced_run", "major_suspended", "minor_suspended", "ledgers_suspended", "stores": [one object a storage
    directory, as /api/v1/bookie/gc_details has it], "index_compactions": {path: under way}}.

    \b
    Example: bookgate gc status bookie-1 --json
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    found = {
        "forced_run": admin.get(GC)["is_in_force_gc"] == "true",
        **_facts(collection.suspended(admin)),
        "stores": admin.get(GC_DETAILS),
        "index_compactions": collection.index_compactions(admin),
    }
    if as_json:
        print_json(found)
        return
    print_result({name: found[name] for name in _SHOWN}, False)
    table = Table("store", "compacting", "last major", "last minor", "majors", "minors")
    for number, store in enumerate(found["stores"]):
        table.add_row(str(number), *_row(store))
    print_table(table)


def _facts(found: SuspendedGc) -> dict[str, Any]:
    return {
        "major_suspended": found.major,
        "minor_suspended": found.minor,
        "ledgers_suspended": found.ledgers,
    }


def _row(store: dict[str, Any]) -> list[str]:
    kinds = [kind for kind in ("major", "minor") if store[f"{kind}Compacting"]]
    return [
        ", ".join(kinds) or "no",
        _last_time(store, "Major"),
        _last_time(store, "Minor"),
        str(store["majorCompactionCounter"]),
        str(store["minorCompactionCounter"]),
    ]


def _last_time(store: dict[str, Any], kind: str) -> str:
    """What the bookie tells before the first compaction is the time of its start."""
    ended = store[f"{kind.lower()}CompactionCounter"]
    return shown_time(store[f"last{kind}CompactionTime"], "never") if ended else "never"


@gc_app.command()
def suspend(
    context: typer.Context,
    bookie: BookieName = None,
    major: Major = False,
    minor: Minor = False,
    ledgers: Ledgers = False,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Suspends compaction, both kinds unless one is named. Garbage itself is still collected.

    With --ledgers it suspends the deletion of ledgers instead, until it is resumed, over restarts of the bookie. A run
    under way deletes nothing more.

    JSON: {"major_suspended", "minor_suspended", "ledgers_suspended"}.

    \b
    Example: bookgate gc suspend bookie-1 --major
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    print_result(_facts(collection.change(admin, "suspend", major=major, minor=minor, ledgers=ledgers)), as_json)


@gc_app.command()
def resume(
    context: typer.Context,
    bookie: BookieName = None,
    major: Major = False,
    minor: Minor = False,
    ledgers: Ledgers = False,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Resumes compaction, both kinds unless one is named; with --ledgers the deletion of ledgers.

    JSON: {"major_suspended", "minor_suspended", "ledgers_suspended"}.

    \b
    Example: bookgate gc resume bookie-1
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    print_result(_facts(collection.change(admin, "resume", major=major, minor=minor, ledgers=ledgers)), as_json)


@gc_app.command("compact-index")
def compact_index(
    context: typer.Context,
    bookie: BookieName = None,
    paths: Annotated[
        list[str] | None, typer.Option("--path", help="Only this index; repeatable. `gc status` names them.")
    ] = None,
    http: HttpAddress = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Compacts the indexes of a bookie that keeps them in RocksDB. Returns once it has begun.

    JSON: {"compacting": [paths]}.

    \b
    Example: bookgate gc compact-index bookie-1
    """
    admin = admin_of(context, gateways, bookie, http, token, token_file)
    print_result({"compacting": collection.compact_index(admin, paths)}, as_json)
