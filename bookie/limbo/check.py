"""Verifies ledgers in limbo, and releases a ledger once this bookie certainly holds every entry that it should.

| ledger | what the check does |
|---|---|
| closed, every entry placed on this bookie is here | fences and releases it: "no such entry" is true from then on |
| closed, entries are missing here | marks it for auto-recovery, once; it stays until they are replicated, anywhere |
| closed, names this bookie no more | adds it to the list of `storage.closed_before`, and releases it |
| not closed | keeps it, since it may end anywhere |
| deleted: no metadata in two passes | releases it |
| known here by a foreign master key | deletes what is here and creates the ledger again, fenced, with its own key |

The bookie may have lost an earlier fence (R9). The check therefore fences a closed ledger that names this bookie before
it releases it. One that names it no more is listed instead, since nothing of it need be here: the bookie rejects its
writer all the same. The check marks nothing where auto-recovery does not run.

For a released ledger that it does not hold the bookie answers "no such ledger", so the rules for deletions apply: the
metadata must be those of the bookie's own cluster, and a ledger counts as deleted when two passes, a full period apart,
found no metadata. A store that is temporarily wrong or out of date therefore does not erase the proof of loss (S8).

The check runs on the event loop, periodically. Not its job: which ledgers enter limbo (`storage.limbo`,
`former_life`), copying missing entries (`replication.repairs`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyroaring import BitMap64

from bookgate.bookie.collection.deletion_rules import Quarantine
from bookgate.bookie.limbo.foreign_key import Key, judge_key, own_key
from bookgate.bookie.limbo.placed_entries import placed_entries
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
    WriteException,
)
from bookgate.ledger.ledger_id import LedgerId, ledger_name, number_of
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.replication_control import obstacle
from bookgate.ledger.replication_store import ReplicationMetadata
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100
_FIRST_PASS_SECONDS = 5.0
"""The first pass comes soon after a start, so that what the start put into limbo is marked soon."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function that uses the disk in a thread, so that the event loop does not wait for it."""
Fence = Callable[[LedgerId, bytes], Awaitable[None]]
"""Fences a ledger on this bookie, durably. The arguments are the ledger and its master key."""


async def all_ledgers(metadata: LedgerManagerFactory, membership: Membership) -> list[int]:
    """Lists the numbers of all ledgers, of every scope, in the metadata of the bookie's own cluster.

    Raises:
        WrongClusterException: The store belongs to another cluster, or lacks the bookie's cookie.
        BKException: The store can't be read.
    """
    await metadata.catch_up(None)
    manager = metadata.ledger_manager
    manager.demand_complete_listings()
    listed = [number async for ids in manager.ledger_ranges() for number in ids]
    async for scopes in manager.scopes():
        for scope_id in scopes:
            listed += [number_of(scope_id, each) async for ids in manager.ledger_ranges(scope_id) for each in ids]
    await metadata.registration_manager.verify(membership)
    return listed


class LimboCheck:
    """Verifies the ledgers in limbo; see the module.

    Args:
        storage: The bookie's storage.
        metadata: The cluster's metadata.
        membership: The bookie, and the cluster that its cookie names.
        wait_seconds: The period between two passes.
        rate: The most requests to the metadata store a second; 0 for no bound.
        clock: Seconds of a monotonic clock.
        in_thread: Runs what touches the disk.
        fence: Fences a ledger in the bookie's storage.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        metadata: LedgerManagerFactory,
        membership: Membership,
        wait_seconds: float,
        rate: float,
        clock: Callable[[], float],
        in_thread: InThread,
        fence: Fence,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._membership = membership
        self._wait_seconds = wait_seconds
        self._quarantine = Quarantine(wait_seconds)
        self._rate = rate
        self._clock = clock
        self._in_thread = in_thread
        self._fence = fence
        self._marks: ReplicationMetadata | None = None
        """Where the current pass asks for copies; None if it asks nobody."""
        self._marked: set[int] = set()
        """Ledgers that this process has marked. Each is marked once, since some can't be repaired."""
        self._told: set[int] = set()
        """Ledgers for which this process has logged why their key keeps them in limbo."""

    async def run(self) -> None:
        """Verifies once a period, until it is cancelled."""
        pause = due = min(_FIRST_PASS_SECONDS, self._wait_seconds)
        while True:
            await asyncio.sleep(pause)
            due -= pause
            try:
                await self.let_begin_again()
                if due <= 0:
                    due = self._wait_seconds
                    await self.verify()
            except (BKException, OSError, TimeoutError) as error:
                log_event(_log, "limbo_not_verified", logging.WARNING, error=error, note="it is tried again")
            except Exception as error:
                log_bug(_log, "limbo_not_verified", error)

    async def let_begin_again(self) -> None:
        """Removes ids that belong to an open ledger now from the list of ledgers closed before this bookie began.

        Such a ledger was deleted, and a new ledger has its id. Only ids that a client requested here are looked up.

        Raises:
            BKException: The store can't be read.
            OSError: The list can't be written.
        """
        asked = self._storage.asked_for()
        if not asked:
            return
        await self._metadata.catch_up(None)
        records = await self._metadata.ledger_manager.read_many([LedgerId.of_number(number) for number in asked])
        again = [
            record.ledger_id.number
            for record in records
            if isinstance(record, LedgerRecord) and record.metadata.state is LedgerState.OPEN
        ]
        if again:
            await self._metadata.registration_manager.verify(self._membership)
            await self._in_thread(lambda: self._storage.begin_again(again))
            log_event(_log, "ledger_ids_used_again", ledgers=len(again))

    async def verify(self) -> None:
        """Makes one pass over the ledgers in limbo. Raises BKException, OSError."""
        waiting = self._storage.limbo()
        if not waiting:
            return
        await self._metadata.catch_up(None)
        self._marks = await self._find_marks()
        left, gone = 0, list[int]()
        for start in range(0, len(waiting), _READ_AT_ONCE):
            numbers = waiting[start : start + _READ_AT_ONCE]
            records = await self._metadata.ledger_manager.read_many([LedgerId.of_number(number) for number in numbers])
            answers = list(zip(numbers, records, strict=True))
            gone += [number for number, record in answers if _is_gone(record)]
            settled = [number for number, record in answers if await self._is_settled(number, record)]
            elsewhere = [number for number, record in answers if self._is_closed_elsewhere(record)]
            left += await self._leave(settled, elsewhere)
            if self._rate > 0:
                await asyncio.sleep(len(numbers) / self._rate)
        left += await self._leave(self._quarantine.due(sorted(gone), self._clock()))
        log_event(_log, "limbo_verified", ledgers=left, in_limbo=len(waiting) - left)

    async def _leave(self, numbers: Sequence[int], closed_elsewhere: Sequence[int] = ()) -> int:
        """Releases the ledgers, if the metadata just read are those of the own cluster. Returns how many."""
        if numbers:
            await self._metadata.registration_manager.verify(self._membership)
            await self._in_thread(lambda: self._storage.leave_limbo(numbers, closed_elsewhere))
        return len(numbers)

    def _is_closed_elsewhere(self, record: LedgerRecord | BKException) -> bool:
        if isinstance(record, BKException):
            return False
        return record.metadata.is_closed and not record.metadata.names(self._membership.bookie_id)

    async def _is_settled(self, number: int, record: LedgerRecord | BKException) -> bool:
        if isinstance(record, BKException):
            return False
        metadata = record.metadata
        if not metadata.names(self._membership.bookie_id):
            return metadata.is_closed
        try:
            await self._see_to_its_key(record)
            if not metadata.is_closed:
                return False
            if await self._in_thread(lambda: self._holds_its_part(number, metadata)):
                return await self._is_fenced(record)
        except StorageCorruptException as error:
            log_event(_log, "limbo_stays", logging.WARNING, ledger=ledger_name(number), error=error)
        except WriteException as error:
            # There is no space for a fence; the next pass may find some.
            log_event(_log, "limbo_stays", logging.WARNING, ledger=ledger_name(number), error=error)
            return False
        await self._mark(record.ledger_id)
        return False

    async def _is_fenced(self, record: LedgerRecord) -> bool:
        """Fences the ledger, and returns whether it is fenced.

        If the bookie holds nothing of the ledger, the key is derived from the password in the metadata.
        """
        key = own_key(record.metadata)
        if key is None and self._storage.ledgers.get(record.ledger_id) is None:
            self._tell_once(record, "it can't be fenced: nothing of it is here, and its password is not known")
            return False
        await self._fence(record.ledger_id, key or b"")
        return True

    async def _see_to_its_key(self, record: LedgerRecord) -> None:
        """Replaces a foreign key, with which the bookie would reject whoever repairs the ledger."""
        found = await self._in_thread(lambda: judge_key(self._storage, record))
        if found is Key.DOUBTFUL:
            self._tell_once(
                record,
                "it is known here by another master key than its password in the metadata makes, and entries of it are "
                "here: it takes no copies; see `bookgate bookie inspect` for what is here",
            )
        key = own_key(record.metadata)
        if found is not Key.FOREIGN or key is None:
            return
        await self._metadata.registration_manager.verify(self._membership)
        await self._in_thread(lambda: self._storage.delete_ledgers([record.ledger_id.number]))
        await self._fence(record.ledger_id, key)
        note = "a request with another key than the ledger's was the first here; what came with it is given up"
        log_event(_log, "limbo_key_replaced", logging.WARNING, ledger=record.ledger_id, note=note)

    def _tell_once(self, record: LedgerRecord, reason: str) -> None:
        number = record.ledger_id.number
        if number not in self._told:
            self._told.add(number)
            log_event(_log, "limbo_stays", logging.WARNING, ledger=ledger_name(number), error=reason)

    async def _find_marks(self) -> ReplicationMetadata | None:
        """The store that takes marks; None if nobody would make copies, or this bookie may not ask for them."""
        try:
            store = self._metadata.replication_metadata
            return store if await obstacle(store) is None else None
        except BKException:
            return None

    async def _mark(self, ledger_id: LedgerId) -> None:
        if self._marks is None or ledger_id.number in self._marked:
            return
        try:
            await self._marks.mark(ledger_id.number, [self._membership.bookie_id], int(time.time() * 1000))
        except MetadataFormatException:
            pass  # it is marked, and a worker looks at it
        except BKException as error:
            self._marks = None
            log_event(_log, "limbo_not_marked", logging.WARNING, ledger=ledger_id, error=error)
            return
        self._marked.add(ledger_id.number)

    def _holds_its_part(self, number: int, metadata: LedgerMetadata) -> bool:
        """Whether this bookie holds every entry that the ensembles place on it. Reads files, so it runs in a thread."""
        placed = [ids for ids in placed_entries(metadata, self._membership.bookie_id) if ids]
        if not placed:
            return True
        ledger = self._storage.ledgers.get(LedgerId.of_number(number))
        if ledger is None:
            return False
        held = BitMap64()
        for first, count in self._storage.reader.entry_ids(ledger):
            held.update(range(first, first + count))
        return all(entry_id in held for ids in placed for entry_id in ids)


def _is_gone(record: LedgerRecord | BKException) -> bool:
    return isinstance(record, NoSuchLedgerExistsOnMetadataServerException)
