"""`bookgate bookie drain` and `decommission`: bookies that are to be emptied, and those that are gone for good."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from bookgate.ledger import replication_control as control
from bookgate.ledger.ledger_id import number_in_json
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.command_line.output import AsJson, fail, print_aside, print_result
from bookgate.runtime.estimates import Estimate
from bookgate.thinclient.commands.client_options import BookieId, Gateways, with_metadata
from bookgate.thinclient.tools import draining as tools
from bookgate.thinclient.tools.draining import DrainingProgress, Emptied, look, wait_until_empty


def drain(
    context: typer.Context,
    bookie: BookieId,
    undo: Annotated[bool, typer.Option("--undo", help="Leave on it what is not moved yet.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when no ledger is on it; progress goes to stderr.")
    ] = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Has auto-recovery move all ledgers from a bookie to others, while it runs. Shows how many are left.

    The bookie serves on, and its copies are moved as those of a lost bookie are. Make it read-only first, so that it
    gets no new ones. The auditor takes notice at once. Run it again to see how far it is; broken off, --wait
    ends nothing. Exit code 1 when --wait can't come to an end, as when auto-recovery is disabled. An auditor of
    BookKeeper's does not know of it, and --wait ends with that: `bookgate bookie recover` moves the ledgers there.

    JSON: {"bookie_id", "draining": whether it is to be emptied, "changed", "ledgers_left", "still_written": of these
    such as are open there, "problems": [what is in the way]}; the numbers are null with --undo.

    \b
    Example: bookgate bookie drain bookie-5 --wait
    """
    if undo and wait:
        fail("--undo and --wait do not go together")
    if undo:
        changed = with_metadata(
            context, gateways, lambda factory: control.end_draining(factory.replication_metadata, bookie)
        )
        _print(bookie, as_json, draining=False, changed=changed)
        return

    async def work(factory: LedgerManagerFactory) -> tuple[bool, DrainingProgress, list[str]]:
        changed = await control.begin_draining(factory, bookie, int(time.time() * 1000))
        problems = await _problems(factory, bookie)
        if wait:
            _warn(problems)
            await wait_until_empty(factory, bookie, _Teller(bookie))
            return changed, DrainingProgress((), 0, (), None), problems
        return changed, await look(factory, bookie), problems

    changed, found, problems = with_metadata(context, gateways, work)
    if found.problem is not None:
        problems = [found.problem, *problems]
    if not wait:
        _warn(problems)
    _print(bookie, as_json, draining=True, changed=changed, found=found, problems=problems)


def decommission(
    context: typer.Context,
    bookie: BookieId,
    force: Annotated[
        bool, typer.Option("--force", help="Give up ledgers that can't be moved, since entries have no copy left.")
    ] = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Takes a stopped bookie out of the cluster: waits until no ledger names it, then removes its cookie.

    Refused while the bookie is registered, writable or read-only. Ledgers of which only this bookie has entries can't
    be moved any more; `bookgate bookie drain` before it is stopped moves them. With --force these are given up: the
    cookie goes when nothing else is left, the ledgers still name the bookie, and what is recorded of each tells that it
    was given up. Broken off, it may be run again.

    JSON: {"bookie_id", "ledgers_moved": while it waited, "ledgers_given_up": [ledger ids or qualified names],
    "cookie_removed": false where it had none}.

    \b
    Example: bookgate bookie decommission bookie-5
    """

    async def work(factory: LedgerManagerFactory) -> tuple[Emptied, bool]:
        await control.require_unregistered(factory, bookie, "it is decommissioned")
        _warn(await _problems(factory, bookie))
        return await tools.decommission(factory, bookie, _Teller(bookie), force=force)

    emptied, removed = with_metadata(context, gateways, work)
    print_result(
        {
            "bookie_id": bookie,
            "ledgers_moved": emptied.moved,
            "ledgers_given_up": [number_in_json(ledger_id.number) for ledger_id in emptied.given_up],
            "cookie_removed": removed,
        },
        as_json,
    )


async def _problems(factory: LedgerManagerFactory, bookie: str) -> list[str]:
    """What delays it, beside that nobody works on it at all."""
    found = await control.find_bookie(factory, bookie)
    if found is None:
        return []
    if found.writable:
        return [f"bookie {bookie} takes new ledgers; `bookgate bookie read-only on {bookie}` ends that"]
    seconds = await factory.replication_metadata.lost_bookie_delay()
    if not found.read_only and seconds:
        return [
            f"bookie {bookie} is not registered, and its ledgers are moved when it has been away for {seconds} s; "
            "`bookgate autorecovery delay` changes that"
        ]
    return []


def _warn(problems: list[str]) -> None:
    for problem in problems:
        print_aside(f"note: {problem}")


class _Teller:
    """Prints the progress to standard error, a line for each change."""

    def __init__(self, bookie: str) -> None:
        self._bookie = bookie
        self._told = ""

    def __call__(self, found: DrainingProgress, estimate: Estimate) -> None:
        line = f"{self._bookie}: {len(found.left)} of {estimate.total} ledgers left{_details(found, estimate)}"
        if line != self._told:
            print_aside(line)
        self._told = line


def _details(found: DrainingProgress, estimate: Estimate) -> str:
    details = ""
    if found.still_written:
        details += f", {found.still_written} of them still written"
    if found.unrecoverable:
        details += f", {len(found.unrecoverable)} of them without all their entries"
    if estimate.a_minute is not None and estimate.seconds_left is not None:
        details += f"; {estimate.a_minute:.1f} a minute, about {duration(estimate.seconds_left)} to go"
    return details + (f"; {found.problem}" if found.problem is not None else "")


def duration(seconds: float) -> str:
    """For people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _print(
    bookie: str,
    as_json: bool,
    *,
    draining: bool,
    changed: bool,
    found: DrainingProgress | None = None,
    problems: list[str] | None = None,
) -> None:
    print_result(
        {
            "bookie_id": bookie,
            "draining": draining,
            "changed": changed,
            "ledgers_left": None if found is None else len(found.left),
            "still_written": None if found is None else found.still_written,
            "problems": problems or [],
        },
        as_json,
    )
