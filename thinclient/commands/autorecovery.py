"""`bookgate autorecovery`, and what `bookgate ledger` knows of it: as far as the metadata alone can tell.

They work through gateways or in the store itself, also in a cluster whose auditor and workers are BookKeeper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bookgate.ledger import replication_control as control
from bookgate.ledger.ledger_id import number_in_json
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_checks import Check, order_check
from bookgate.ledger.replication_progress import cluster_progress, facts_of
from bookgate.ledger.replication_store import RecordKind
from bookgate.ledger.replication_survey import survey
from bookgate.runtime.clock import now_ms
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import (
    WRONG_USAGE,
    AsJson,
    fail,
    print_json,
    print_note,
    print_result,
    print_table,
    shown_time,
)
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.commands.client_options import Gateways, with_metadata

autorecovery_app = new_group("Auto-recovery: copies again what lost bookies held.")
marks_app = new_group("Ledgers that need repair.")

_MIB = 1024 * 1024
_MOST_MIB = 2**31
_MOST_SECONDS = 2**31 - 1
"""A setting of BookKeeper's, which keeps it in 32 bits."""
_LOSSES_SHOWN = 20
_CHECKS = {
    PeriodicCheck.ALL_LEDGERS: "ledgers_checked",
    PeriodicCheck.PLACEMENT_POLICY: "placement_checked",
    PeriodicCheck.REPLICAS: "replicas_checked",
}


@autorecovery_app.callback()
@marks_app.callback()
def group() -> None:
    """Keeps these groups with few commands."""


@marks_app.command("under-replicated")
def under_replicated(
    context: typer.Context,
    missing: Annotated[str | None, typer.Option(metavar="BOOKIE", help="Only marks that name this bookie.")] = None,
    not_missing: Annotated[
        str | None, typer.Option(metavar="BOOKIE", help="Only marks that do not name this bookie.")
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists the ledgers that are marked for repair: the bookies whose copies are missing, since when, who works on it.

    A mark without bookies says that the ledger is only misplaced, or that a scrub found damaged copies, which are named
    then. A mark whose bytes are damaged is worked on like any other. An unrecoverable ledger has entries of which no
    copy is left. Ledgers of all scopes are listed, those with a scope by their qualified names.

    JSON: a list of {"ledger_id", "missing_replicas": [bookie ids], "marked_ms": milliseconds or null, "locked_by":
    host or null, "unrecoverable", "damaged", "corrupt_at": [bookie ids], "loss": null or {"entries": how many have no
    copy left, "first_entries": [ids], "end_is_lost", "lost_bookies": [ids], "answers": {bookie id: "lost", "lacks n",
    "corrupt n" or "complete"}, "found_ms"}}.

    \b
    Example: bookgate ledger under-replicated --missing bookie-3:3181
    """

    async def work(factory: LedgerManagerFactory) -> list[dict[str, Any]]:
        store = factory.replication_metadata
        holders = await store.lock_holders()
        unrecoverable = await store.records(RecordKind.UNRECOVERABLE_LEDGER)
        losses = {ledger: control.loss_of(record.value) for ledger, record in unrecoverable.items()}
        corrupt = await store.records(RecordKind.CORRUPT_LEDGER)
        corrupt_at = {ledger: sorted(control.corrupt_copies_of(record.value)) for ledger, record in corrupt.items()}
        return [
            {
                "ledger_id": number_in_json(mark.value.ledger_id),
                "missing_replicas": list(mark.value.replicas),
                "marked_ms": mark.value.ctime_ms,
                "locked_by": holders.get(mark.value.ledger_id),
                "unrecoverable": str(mark.value.ledger_id) in unrecoverable,
                "damaged": mark.value.damaged is not None,
                "corrupt_at": corrupt_at.get(str(mark.value.ledger_id), []),
                "loss": losses.get(str(mark.value.ledger_id)),
            }
            async for page in control.marks_of(store, missing, not_missing)
            for mark in page
        ]

    rows = with_metadata(context, gateways, work)
    if as_json:
        print_json([{**row, "loss": row["loss"] and row["loss"].facts} for row in rows])
        return
    table = Table("ledger", "missing replicas", "marked", "locked by", "")
    for row in rows:
        replicas, marked = row["missing_replicas"], row["marked_ms"]
        table.add_row(
            str(row["ledger_id"]), ", ".join(replicas), shown_time(marked), row["locked_by"] or "", _notes(row)
        )
    print_table(table)
    print_note(f"{len(rows)} ledgers")


def _notes(row: Mapping[str, Any]) -> str:
    words = ["damaged"] if row["damaged"] else []
    words += [f"corrupt copies at {bookie_id}" for bookie_id in row["corrupt_at"]]
    if row["unrecoverable"]:
        words.append(": ".join(filter(None, ("unrecoverable", str(row["loss"])))))
    return ", ".join(words)


@autorecovery_app.command()
def status(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Shows whether auto-recovery is enabled, who is auditor, what is marked, how far repairs are, and when checks last
    ended.

    The oldest mark is that of a ledger that lacks copies and can be repaired. What is endangered by class, what is
    repaired now, rates and the time that is left are as the workers tell, a few seconds old; BookKeeper's tell nothing.
    Entries and bytes that are left are at most so many: bookies may hold some of them already. Of unrecoverable
    ledgers the first 20 are shown; `bookgate ledger under-replicated` shows all.

    \b
    JSON: {"enabled", "auditor": bookie id or null, "under_replicated_ledgers", "oldest_mark": time or null,
    "locked_ledgers", "unrecoverable_ledgers", "corrupt_ledgers", "missed_bookies": [ids], "draining_bookies": [ids],
    "lost_bookie_delay_seconds", "ledgers_checked", "placement_checked", "replicas_checked": time or null,
    "workers": that have something to do,
    "classes": [{"class": "unrecoverable", "last_copy", "below_ack_quorum", "below_write_quorum", "moving", "misplaced"
    or "unknown", "ledgers", "entries", "bytes"}],
    "bookies": [{"bookie_id", "ledgers_left", "ledgers_done", "seconds_left"}],
    "repairing": [{"ledger_id", "since_ms", "entries", "bytes": copied by now, "due_entries", "due_bytes", "holder"}],
    "ledgers_left", "entries_left", "bytes_left", "entries_a_second", "bytes_a_second", "ledgers_a_minute",
    "seconds_left": number or null,
    "unrecoverable": [{"ledger_id", and what "loss" of `bookgate ledger under-replicated` has}]}.

    \b
    Example: bookgate autorecovery status --gateways grpc://gw-1:4181
    """

    async def work(factory: LedgerManagerFactory) -> dict[str, object]:
        store = factory.replication_metadata
        times = {name: await store.check_time(check) for check, name in _CHECKS.items()}
        found = await survey(store)
        return {
            "enabled": await store.is_enabled(),
            "auditor": await store.auditor(),
            "under_replicated_ledgers": found.marked,
            "oldest_mark": None if found.oldest_mark_ms is None else shown_time(found.oldest_mark_ms),
            "locked_ledgers": len(await store.lock_holders()),
            "unrecoverable_ledgers": found.unrecoverable,
            "corrupt_ledgers": found.corrupt,
            "missed_bookies": sorted(found.missed_since),
            "draining_bookies": sorted(found.draining),
            "lost_bookie_delay_seconds": await store.lost_bookie_delay(),
            **{name: shown_time(time) if time else None for name, time in times.items()},
            **facts_of(await cluster_progress(store, now_ms())),
            "unrecoverable": [
                {"ledger_id": number_in_json(ledger_id), **loss.facts}
                for ledger_id, loss in control.losses_in(
                    await store.records(RecordKind.UNRECOVERABLE_LEDGER), _LOSSES_SHOWN
                )
            ],
        }

    print_result(with_metadata(context, gateways, work), as_json)


@autorecovery_app.command()
def enable(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Switches auto-recovery on for the whole cluster.

    JSON: {"enabled": true, "changed": whether it was off}.

    \b
    Example: bookgate autorecovery enable
    """
    _switch(context, gateways, as_json, enabled=True)


@autorecovery_app.command()
def disable(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Switches auto-recovery off for the whole cluster, as for maintenance: nothing is marked or repaired anew.

    JSON: {"enabled": false, "changed": whether it was on}.

    \b
    Example: bookgate autorecovery disable
    """
    _switch(context, gateways, as_json, enabled=False)


def _switch(context: typer.Context, gateways: str | None, as_json: bool, *, enabled: bool) -> None:
    changed = with_metadata(context, gateways, lambda factory: control.switch(factory.replication_metadata, enabled))
    if as_json:
        print_json({"enabled": enabled, "changed": changed})
        return
    print(f"auto-recovery is {'enabled' if enabled else 'disabled'}{'' if changed else ' already'}")


@autorecovery_app.command()
def delay(
    context: typer.Context,
    seconds: Annotated[
        int | None, typer.Argument(metavar="SECONDS", min=0, max=_MOST_SECONDS, help="The new delay.")
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows or sets how long a bookie may be away before its ledgers are marked. Once set it overrides the settings.

    JSON: {"lost_bookie_delay_seconds": number or null}.

    \b
    Example: bookgate autorecovery delay 600
    """

    async def work(factory: LedgerManagerFactory) -> int | None:
        store = factory.replication_metadata
        return await store.lost_bookie_delay() if seconds is None else await store.set_lost_bookie_delay(seconds)

    print_result({"lost_bookie_delay_seconds": with_metadata(context, gateways, work)}, as_json)


@autorecovery_app.command()
def rate(
    context: typer.Context,
    mib: Annotated[
        float | None,
        typer.Argument(metavar="MIB", min=0, max=_MOST_MIB, help="The new limit in MiB a second; 0: none."),
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Shows or sets how much all workers of the cluster together read and store a second, beside their own limits.

    A change holds within seconds, also for repairs under way. BookKeeper's workers do not know of it.

    JSON: {"replication_rate_mb_per_second": number; 0: no limit}.

    \b
    Example: bookgate autorecovery rate 200
    """
    if mib is not None and math.isnan(mib):
        fail("a limit is a number of MiB a second, 0 for none", WRONG_USAGE)

    async def work(factory: LedgerManagerFactory) -> float:
        store = factory.replication_metadata
        if mib is not None:
            await control.set_cluster_rate(store, math.ceil(mib * _MIB))
        return await control.cluster_rate(store) / _MIB

    print_result({"replication_rate_mb_per_second": with_metadata(context, gateways, work)}, as_json)


@autorecovery_app.command()
def trigger(
    context: typer.Context,
    check: Annotated[
        Check | None, typer.Option("--check", help="Not lost bookies: begin this check of all ledgers.")
    ] = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Makes the auditor look for lost bookies now, or begin a check. Returns at once.

    The checks: whether bookies hold what the metadata say (replicas), whether ledgers lie as the placement policy wants
    them (placement), whether the digests of all copies are right (scrub, unless its rate is 0). The auditor begins
    within seconds, also one that by its settings it never does; BookKeeper's with its next start. `status` tells when
    they end.

    JSON: {"auditor": bookie id, "check": as ordered, or null}.

    \b
    Example: bookgate autorecovery trigger --check replicas
    """

    async def work(factory: LedgerManagerFactory) -> str:
        store = factory.replication_metadata
        return await control.order_audit(store) if check is None else await order_check(store, check)

    auditor = with_metadata(context, gateways, work)
    print_result({"auditor": auditor, "check": None if check is None else check.value}, as_json)
