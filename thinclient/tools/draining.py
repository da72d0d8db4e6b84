"""The progress of emptying a bookie, and waiting for its end.

A bookie is empty when no ledger's metadata name it; marks come and go. One listing of all ledgers finds those that name
it, after that only these are read again, and when none is left another listing must find none, since ledgers may have
been written to the bookie meanwhile.

Not its job: requesting it (`ledger.replication_control`), doing it (the bookies' auditor and workers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookgate.ledger import replication_control as control
from bookgate.ledger.errors import (
    IllegalOpException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, LedgerRecord
from bookgate.ledger.replication_control import draining_obstacle, ledgers_naming, unrecoverable_at
from bookgate.runtime.clock import now_ms
from bookgate.runtime.estimates import Estimate, Progress

_READ_AT_ONCE = 500
_SHORTEST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_PAUSE_SHARE = 5
"""Each pause takes this many times as long as the preceding look."""


@dataclass(frozen=True, slots=True)
class DrainingProgress:
    """The result of one look at the ledgers."""

    left: tuple[LedgerId, ...]
    """Ledgers that name the bookie."""
    still_written: int
    """Those of them that may still be written there: they are moved once the writer changes its ensemble, or closes."""
    unrecoverable: tuple[LedgerId, ...]
    """Those of them that were tried since the bookie is away or to be emptied, and can't be moved, because entries have
    no copy left. Ledgers with a scope are included, because auto-recovery does not move them.
    """
    problem: str | None
    """Why nothing is moved at all, and what to do; None: no problem."""

    @property
    def is_stuck(self) -> bool:
        """Whether only ledgers that can't be moved are left."""
        return bool(self.left) and len(self.unrecoverable) == len(self.left)


@dataclass(frozen=True, slots=True)
class Emptied:
    """The result of waiting."""

    moved: int
    """Number of ledgers moved meanwhile."""
    given_up: tuple[LedgerId, ...] = ()
    """Ledgers that can't be moved, because entries of them have no copy left."""


async def look(factory: LedgerManagerFactory, bookie_id: str) -> DrainingProgress:
    """Looks at all ledgers.

    Raises:
        BKException: The listing can't be completed, or a ledger can't be read.
    """
    await factory.catch_up(None)
    records = [record async for page in ledgers_naming(factory.ledger_manager, bookie_id) for record in page]
    return await _judged(factory, bookie_id, records)


async def wait_until_empty(
    factory: LedgerManagerFactory,
    bookie_id: str,
    tell: Callable[[DrainingProgress, Estimate], None],
    *,
    give_up: bool = False,
) -> Emptied:
    """Waits until no ledger names the bookie.

    Args:
        factory: The metadata.
        bookie_id: The bookie.
        tell: Called after each look.
        give_up: Unrecoverable ledgers may stay, except those with a scope, which may still have all their copies.

    Returns:
        The ledgers that were moved and those that were not.

    Raises:
        IllegalOpException: Waiting would never end: auto-recovery does not work, or the ledgers left have no copies to
            move.
        BKException: The ledgers can't be listed or read.
    """
    clock, progress, estimate = asyncio.get_running_loop().time, Progress(), Estimate(0, None, None)
    found = await look(factory, bookie_id)
    if found.left and found.problem is not None:
        raise IllegalOpException(f"{len(found.left)} ledgers are on bookie {bookie_id}, and {found.problem}")
    while found.left:
        estimate = progress.take(len(found.left), clock())
        tell(found, estimate)
        if found.is_stuck:
            if not give_up:
                raise IllegalOpException(_stuck(bookie_id, found.unrecoverable))
            found = await look(factory, bookie_id)
            if found.is_stuck:
                return Emptied(estimate.total - len(found.left), found.left)
            continue
        began = clock()
        records = await _naming_still(factory.ledger_manager, bookie_id, found.left)
        found = await _judged(factory, bookie_id, records)
        if found.left:
            pause = _PAUSE_SHARE * (clock() - began)
            await asyncio.sleep(min(max(pause, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS))
        else:
            found = await look(factory, bookie_id)
    return Emptied(estimate.total)


async def decommission(
    factory: LedgerManagerFactory,
    bookie_id: str,
    tell: Callable[[DrainingProgress, Estimate], None],
    *,
    force: bool = False,
) -> tuple[Emptied, bool]:
    """Takes a stopped bookie out of the cluster: waits until no ledger names it, then removes its cookie.

    Args:
        factory: The metadata.
        bookie_id: The bookie.
        tell: Called after each look.
        force: Ledgers that can't be moved, since entries have no copy left, are given up: they still name the bookie,
            and what is recorded of each tells so.

    Returns:
        How the wait has ended, and whether there was a cookie.

    Raises:
        IllegalOpException: It is registered, nobody works on it, or what is left has no copies to be moved.
        BKException: The store can't be read or written.
    """
    await control.require_unregistered(factory, bookie_id, "it is decommissioned")
    await control.begin_draining(factory, bookie_id, now_ms())
    emptied = await wait_until_empty(factory, bookie_id, tell, give_up=force)
    given_up = [ledger_id.number for ledger_id in emptied.given_up]
    return emptied, await control.remove_emptied(factory, bookie_id, given_up, now_ms())


def _stuck(bookie_id: str, ledgers: Sequence[LedgerId]) -> str:
    some = ", ".join(str(ledger_id) for ledger_id in ledgers[:10]) + (", …" if len(ledgers) > 10 else "")
    return (
        f"{len(ledgers)} ledgers can't leave bookie {bookie_id}, since entries of them have no copy left: {some}; "
        "bring bookies that hold copies back, delete the ledgers, or give them up once the bookie is stopped: "
        f"`bookgate bookie decommission {bookie_id} --force`"
    )


async def _judged(factory: LedgerManagerFactory, bookie_id: str, records: Sequence[LedgerRecord]) -> DrainingProgress:
    unrecoverable = await unrecoverable_at(factory.replication_metadata, bookie_id)
    return DrainingProgress(
        tuple(record.ledger_id for record in records),
        sum(_is_written_at(record, bookie_id) for record in records),
        tuple(record.ledger_id for record in records if record.ledger_id.number in unrecoverable),
        await draining_obstacle(factory, bookie_id),
    )


def _is_written_at(record: LedgerRecord, bookie_id: str) -> bool:
    return not record.metadata.is_closed and bookie_id in record.metadata.last_fragment.ensemble


async def _naming_still(manager: LedgerManager, bookie_id: str, ledgers: Sequence[LedgerId]) -> list[LedgerRecord]:
    """Those of the ledgers that still name the bookie, read anew. Raises BKException if one can't be read."""
    naming: list[LedgerRecord] = []
    for start in range(0, len(ledgers), _READ_AT_ONCE):
        wanted = ledgers[start : start + _READ_AT_ONCE]
        for ledger_id, record in zip(wanted, await manager.read_many(wanted), strict=True):
            if isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
                continue
            if isinstance(record, MetadataFormatException):
                raise MetadataFormatException(f"the metadata of ledger {ledger_id} can't be read: {record}")
            if not isinstance(record, LedgerRecord):
                raise record
            if bookie_id in record.metadata.bookies:
                naming.append(record)
    return naming
