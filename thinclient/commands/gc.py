"""`bookgate gc`: garbage collection and compaction of one bookie, over its HTTP admin."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_json, print_result, print_table, shown_time
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.commands.client_options import Gateways
from bookgate.thinclient.commands.http_options import BookieName, HttpAddress, Token, TokenFile, admin_of
from bookgate.thinclient.tools.admin_client import AdminHttp, AdminRefusedException

gc_app = new_group("Garbage collection and compaction of a bookie, over its HTTP admin.")

Major = Annotated[bool, typer.Option("--major", help="Major compaction.")]
Minor = Annotated[bool, typer.Option("--minor", help="Minor compaction.")]

Ledgers = Annotated[bool, typer.Option("--ledgers", help="The deletion of ledgers that no metadata names.")]

_GC = "/api/v1/bookie/gc"
_SHOWN = ("forced_run", "major_suspended", "minor_suspended", "ledgers_suspended")
_LOCATIONS = "/api/v1/bookie/entry_location_compact"


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
    body = {"forceMajor": major, "forceMinor": minor} if major or minor else {}
    if ledgers:
        body["forceLedgers"] = True
    admin_of(context, gateways, bookie, http, token, token_file).put(_GC, body or None)
    print_result({"triggered": True, "major": major, "minor": minor, "ledgers": ledgers}, as_json)


@gc_app.command()
def status(
    context: typer.Context,
    bookie: BookieName = None,
    http: HttpAddress = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows what garbage collection does, what it did last, and what is suspended.

    JSON: {"forced_run", "major_suspended", "minor_suspended", "ledgers_suspended", "stores": [one object a storage
    directory, as /api/v1/bookie/gc_details has it], "index_compactions": {path: under way}}.

    \b
    Example: bookgate gc status bookie-1 --json
    """
    admin = admin_of(context, gateways, bookie, http)
    suspended = admin.get(f"{_GC}/suspend_compaction")
    found = {
        "forced_run": admin.get(_GC)["is_in_force_gc"] == "true",
        "major_suspended": suspended["isMajorGcSuspended"] == "true",
        "minor_suspended": suspended["isMinorGcSuspended"] == "true",
        "ledgers_suspended": _ledgers_suspended(admin),
        "stores": admin.get("/api/v1/bookie/gc_details"),
        "index_compactions": admin.get(_LOCATIONS),
    }
    if as_json:
        print_json(found)
        return
    print_result({name: found[name] for name in _SHOWN}, False)
    table = Table("store", "compacting", "last major", "last minor", "majors", "minors")
    for number, store in enumerate(found["stores"]):
        table.add_row(str(number), *_row(store))
    print_table(table)


def _ledgers_suspended(admin: AdminHttp) -> bool:
    """False for a bookie that can't suspend it."""
    try:
        return bool(admin.get(f"{_GC}/suspend_ledgers")["isLedgerCollectionSuspended"] == "true")
    except AdminRefusedException:
        return False


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

    With --ledgers it suspends the deletion of ledgers instead, until it is resumed, over restarts of the bookie.

    JSON: {"major_suspended", "minor_suspended", "ledgers_suspended"}.

    \b
    Example: bookgate gc suspend bookie-1 --major
    """
    _change(admin_of(context, gateways, bookie, http, token, token_file), "suspend", major, minor, ledgers, as_json)


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
    _change(admin_of(context, gateways, bookie, http, token, token_file), "resume", major, minor, ledgers, as_json)


def _change(admin: AdminHttp, verb: str, major: bool, minor: bool, ledgers: bool, as_json: bool) -> None:
    """Suspends or resumes: both kinds unless something is named; then shows what is suspended."""
    both = not (major or minor)
    if ledgers:
        admin.put(f"{_GC}/{verb}_ledgers")
    if major or minor or not ledgers:
        admin.put(f"{_GC}/{verb}_compaction", {f"{verb}Major": major or both, f"{verb}Minor": minor or both})
    answer = admin.get(f"{_GC}/suspend_compaction")
    print_result(
        {
            "major_suspended": answer["isMajorGcSuspended"] == "true",
            "minor_suspended": answer["isMinorGcSuspended"] == "true",
            "ledgers_suspended": _ledgers_suspended(admin),
        },
        as_json,
    )


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
    known = list(admin.get(_LOCATIONS))
    chosen = paths or known
    if any("," in path for path in chosen):
        fail("a path with a comma in it can't be named over HTTP; leave --path out to compact all")
    admin.put(_LOCATIONS, {"entryLocationRocksDBCompact": True, "entryLocations": ",".join(chosen)})
    print_result({"compacting": list(chosen)}, as_json)
