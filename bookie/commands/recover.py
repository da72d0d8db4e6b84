"""`bookgate bookie recover` and `replace`: what bookies hold is copied to others by this process, and nobody else.

`bookgate bookie drain` and `decommission` leave that to auto-recovery; these are for where it does not run or is
disabled, for single ledgers, and for a bookie whose place a certain other one takes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.copies.copying import Copied
from bookgate.bookie.replication.repairs.by_hand import End, Ended, Order, Plan, Recovery, make_plan
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.ledger import replication_control as control
from bookgate.ledger.errors import IllegalOpException, IncorrectParameterException
from bookgate.ledger.ledger_id import ledger_name, number_in_json
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.command_line.output import (
    WRONG_USAGE,
    AsJson,
    fail,
    print_aside,
    print_json,
    print_result,
    print_table,
)
from bookgate.runtime.command_line.tables import Table
from bookgate.runtime.estimates import Progress
from bookgate.thinclient.commands.client_options import Gateways, client_config, complete_bookie, with_metadata
from bookgate.thinclient.commands.draining import duration
from bookgate.thinclient.commands.ledger_naming import parse_ledger
from bookgate.thinclient.config import ClientConfig

_MIB = 1024 * 1024
_TELL_SECONDS = 1.0
_NOTHING = Plan((), ())
_NAMED = 5
_NOT_DONE = (End.STILL_WRITTEN, End.UNRECOVERABLE, End.FAILED)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be copied.")]
SkipOpen = Annotated[
    bool, typer.Option("--skip-open-ledgers", help="Leave ledgers alone that are not closed; none is fenced then.")
]
Grace = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds that a bookie has to be away where a ledger is written before its writer is fenced."
    ),
]
Rate = Annotated[float, typer.Option(min=0, help="MiB a second that are read and stored; 0: without limit.")]


def recover(
    context: typer.Context,
    bookies: Annotated[
        list[str] | None,
        typer.Argument(metavar="BOOKIE", help="Ids.", show_default=False, autocompletion=complete_bookie),
    ] = None,
    ledgers: Annotated[
        list[str] | None,
        typer.Option(
            "--ledger", "-l", help="Only this ledger: an id, a qualified name or a UUID; may be given several times."
        ),
    ] = None,
    dry_run: DryRun = False,
    skip_open: SkipOpen = False,
    grace: Grace = 30.0,
    rate: Rate = 50.0,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Copies what bookies hold to others, in this process, until no ledger names them; progress goes to stderr.

    Works without auto-recovery and where it is disabled; beside it too, as each ledger is locked while it is repaired.
    A bookie that is not registered counts as lost at once, and a ledger that is written there is closed after the
    grace, if its writer has not gone on elsewhere by then. One that is registered is emptied while it serves: make it
    read-only first. With --ledger alone those ledgers get the copies that they lack. Cookies stay. Broken off, it may
    be run again. Exit code 1 when a ledger could not be moved, or has begun to name them meanwhile: run it again then.
    That is not looked at with --ledger or --skip-open-ledgers.

    JSON: {"ledgers": how many named them, "moved", "deleted": meanwhile, "skipped": open ones, "left": [{"ledger_id",
    "state": "still written" | "unrecoverable" | "failed", "reason"}], "named_meanwhile": [ledgers that have begun to
    name them], "unreadable": [ledgers with damaged metadata], "entries_copied", "bytes_copied"}; with --dry-run
    {"ledgers": [{"ledger_id", "is_open", "fragments", "entries", "bytes": in closed ledgers, "copies_left"}],
    "fragments", "entries", "bytes", "unreadable"}.

    \b
    Example: bookgate bookie recover bookie-3 bookie-4 --skip-open-ledgers
    """
    if not bookies and not ledgers:
        fail("name bookies, or ledgers with --ledger")
    try:
        numbers = [parse_ledger(name).number for name in ledgers or ()]
    except IncorrectParameterException as error:
        fail(str(error), WRONG_USAGE)
    order = Order(frozenset(bookies or ()), tuple(dict.fromkeys(numbers)), None, skip_open, grace)
    config = client_config(context, gateways)

    async def work(factory: LedgerManagerFactory) -> tuple[Plan, Mapping[int, Ended], Copied, Plan]:
        plan = await _plan_of(factory, order)
        if dry_run:
            return plan, {}, Copied(), _NOTHING
        await _warn_of_writable(factory, order)
        ended, copied = await _carried_out(factory, config, order, plan, rate)
        again = _NOTHING if order.ledgers or order.skip_open else await make_plan(factory, order)
        return plan, ended, copied, again

    plan, ended, copied, again = with_metadata(context, gateways, work)
    if dry_run:
        _show_plan(plan, as_json)
        return
    _show_result(order, plan, ended, copied, again, as_json)


def replace(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The bookie that goes.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The one that takes its place.", show_default=False)],
    grace: Grace = 30.0,
    rate: Rate = 50.0,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Copies what a bookie holds to another one, in this process, and then takes the first out of the cluster.

    As `recover OLD`, with NEW in the place of OLD wherever it takes the copies: where it is in the ensemble already,
    or full, the placement policy chooses. OLD may be lost, or serve (make it read-only first); NEW has to be writable.
    When no ledger names OLD any more its cookie is removed if it is stopped; else stop it, and run
    `bookgate bookie decommission OLD`. Exit code 1 when a ledger could not be moved, or has begun to name OLD
    meanwhile; the cookie stays then.

    JSON: as of `recover`, and "cookie_removed".

    \b
    Example: bookgate bookie replace bookie-3 bookie-7
    """
    if old == new:
        fail("a bookie can't take its own place; a wiped one is refilled by `bookgate bookie recover --ledger`")
    order = Order(frozenset({old}), target=new, grace_seconds=grace)
    config = client_config(context, gateways)

    async def work(factory: LedgerManagerFactory) -> tuple[Plan, Mapping[int, Ended], Copied, Plan, bool]:
        found = await control.find_bookie(factory, new)
        if found is None or not found.writable:
            raise IllegalOpException(f"bookie {new} does not take writes: start it before it replaces another one")
        plan = await _plan_of(factory, order)
        await _warn_of_writable(factory, order)
        ended, copied = await _carried_out(factory, config, order, plan, rate)
        return plan, ended, copied, *await _taken_out(factory, order, old)

    plan, ended, copied, again, removed = with_metadata(context, gateways, work)
    _show_result(order, plan, ended, copied, again, as_json, cookie_removed=removed)


async def _taken_out(factory: LedgerManagerFactory, order: Order, old: str) -> tuple[Plan, bool]:
    """The ledgers that name it still, and whether its cookie was removed: not while a ledger may name it, or while it
    is registered (AR30).
    """
    found = await control.find_bookie(factory, old)
    again = await make_plan(factory, order)
    if again != _NOTHING:
        _note(f"the cookie of bookie {old} stays: ledgers may name it still")
        return again, False
    if found is not None and found.registered:
        _note(f"bookie {old} is empty; stop it, then `bookgate bookie decommission {old}` removes its cookie")
        return again, False
    return again, await control.remove_emptied(factory, old)


async def _plan_of(factory: LedgerManagerFactory, order: Order) -> Plan:
    """Raises UnknownBookieException for a bookie that nothing knows."""
    for bookie_id in sorted(order.bookies):
        await control.require_known(factory, bookie_id)
    return await make_plan(factory, order)


async def _warn_of_writable(factory: LedgerManagerFactory, order: Order) -> None:
    for bookie_id in sorted(order.bookies):
        found = await control.find_bookie(factory, bookie_id)
        if found is not None and found.writable:
            _note(f"bookie {bookie_id} takes new ledgers; `bookgate bookie read-only on {bookie_id}` ends that")


async def _carried_out(
    factory: LedgerManagerFactory, config: ClientConfig, order: Order, plan: Plan, rate: float
) -> tuple[Mapping[int, Ended], Copied]:
    tools = WorkerTools(factory, config, random.SystemRandom(), CopyLimits(worker=rate * _MIB))
    try:
        teller = _Teller(len(plan.ledgers))
        ended = await Recovery(factory, tools.repair, order, teller).run(each.ledger_id for each in plan.ledgers)
    finally:
        await tools.close()
    return ended, tools.copied


class _Teller:
    """Prints the progress to standard error, a line a second."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._clock = asyncio.get_running_loop().time
        self._progress = Progress()
        self._progress.take(total, self._clock())
        self._again_at = self._clock()

    def __call__(self, left: int) -> None:
        now = self._clock()
        if left and now < self._again_at:
            return
        self._again_at = now + _TELL_SECONDS
        estimate = self._progress.take(left, now)
        line = f"{left} of {self._total} ledgers left"
        if left and estimate.a_minute is not None and estimate.seconds_left is not None:
            line += f"; {estimate.a_minute:.1f} a minute, about {duration(estimate.seconds_left)} to go"
        print_aside(line)


def _note(text: str) -> None:
    print_aside(f"note: {text}")


def _show_plan(plan: Plan, as_json: bool) -> None:
    sums: dict[str, object] = {
        "fragments": sum(each.fragments for each in plan.ledgers),
        "entries": sum(each.entries for each in plan.ledgers),
        "bytes": sum(each.bytes for each in plan.ledgers),
        "unreadable": [number_in_json(number) for number in plan.unreadable],
    }
    if as_json:
        rows = [{**asdict(each), "ledger_id": number_in_json(each.ledger_id)} for each in plan.ledgers]
        print_json({"ledgers": rows, **sums})
        return
    table = Table("ledger", "", "fragments", "entries", "bytes", "copies left")
    for each in plan.ledgers:
        cells = (each.fragments, each.entries, each.bytes, each.copies_left)
        table.add_row(ledger_name(each.ledger_id), "open" if each.is_open else "", *(f"{cell:,}" for cell in cells))
    print_table(table)
    print_result({"ledgers": len(plan.ledgers), **sums}, as_json=False)


def _show_result(
    order: Order,
    plan: Plan,
    ended: Mapping[int, Ended],
    copied: Copied,
    again: Plan,
    as_json: bool,
    **more: object,
) -> None:
    """Exit code 1 if a ledger was not moved, or `again`, of a listing after all was done, has one that is not known."""
    counts = Counter(each.end for each in ended.values())
    not_done = {ledger_id: each for ledger_id, each in sorted(ended.items()) if each.end in _NOT_DONE}
    left = [
        {"ledger_id": number_in_json(ledger_id), "state": each.end.value, "reason": each.reason}
        for ledger_id, each in not_done.items()
    ]
    meanwhile = sorted(each.ledger_id for each in again.ledgers if each.ledger_id not in not_done)
    unreadable = sorted({*plan.unreadable, *again.unreadable})
    result: dict[str, object] = {
        "ledgers": len(plan.ledgers),
        "moved": counts[End.MOVED],
        "deleted": counts[End.DELETED],
        "skipped": counts[End.SKIPPED],
        "left": left,
        "named_meanwhile": [number_in_json(number) for number in meanwhile],
        "unreadable": [number_in_json(number) for number in unreadable],
        "entries_copied": copied.entries,
        "bytes_copied": copied.bytes,
        **more,
    }
    print_result(result, as_json)
    if meanwhile:
        _note(_told_of(meanwhile, order.bookies))
    if left or meanwhile or unreadable:
        raise typer.Exit(1)


def _told_of(meanwhile: Sequence[int], bookies: Collection[str]) -> str:
    some = [*map(ledger_name, meanwhile[:_NAMED]), *(["…"] if len(meanwhile) > _NAMED else [])]
    return (
        f"since this began, ledgers have come to name {', '.join(sorted(bookies))} ({len(meanwhile)}): "
        f"{', '.join(some)}; run it again"
    )
