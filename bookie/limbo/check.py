"""Verifies ledgers in limbo, and releases those of which the bookie certainly holds everything that it should.

A ledger leaves limbo when its metadata are gone, or when it is closed and this bookie holds every entry that the
ensembles place on it: from then on "no such entry" is true. An open ledger may end anywhere, so it stays until someone
has closed it; a closed one that lacks entries here stays until these were replicated, to here or elsewhere.

A released ledger is answered with "no such ledger" from then on, so the rules for deletions apply: only the metadata of
the bookie's own cluster count, and gone means missing in two passes a full period apart. A store that is temporarily
the wrong or an older one does not make proof of loss forgotten (S8).

Runs on the event loop, periodically. Not its job: which ledgers enter (`limbo`), copying what is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyroaring import BitMap64

from bookgate.bookie.collection.deletion_rules import Quarantine
from bookgate.bookie.limbo.placed_entries import placed_entries
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId, ledger_name, number_of
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs what touches the disk where the event loop does not wait for it."""


async def all_ledgers(metadata: LedgerManagerFactory, membership: Membership) -> list[int]:
    """Lists the numbers of all ledgers, of every scope, in the metadata of the bookie's own cluster.

    Raises:
        WrongClusterException: The store is that of another cluster, or lacks the bookie's cookie.
        BKException: The store can't be read.
    """
    await metadata.catch_up(None)
    manager = metadata.ledger_manager
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
        membership: The bookie and the cluster of its own cookie.
        wait_seconds: The period between two passes.
        rate: The most requests to the metadata store a second; 0 for no bound.
        clock: Seconds of a monotonic clock.
        in_thread: Runs what touches the disk.
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
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._membership = membership
        self._wait_seconds = wait_seconds
        self._quarantine = Quarantine(wait_seconds)
        self._rate = rate
        self._clock = clock
        self._in_thread = in_thread

    async def run(self) -> None:
        """A pass every period, as long as there is anything in limbo or may come to be."""
        while True:
            await asyncio.sleep(self._wait_seconds)
            try:
                await self.verify()
            except (BKException, OSError, TimeoutError) as error:
                log_event(_log, "limbo_not_verified", logging.WARNING, error=error, note="it is tried again")
            except Exception as error:
                log_bug(_log, "limbo_not_verified", error)

    async def verify(self) -> None:
        """One pass. Raises BKException, OSError."""
        waiting = self._storage.limbo()
        if not waiting:
            return
        await self._metadata.catch_up(None)
        left, gone = 0, list[int]()
        for start in range(0, len(waiting), _READ_AT_ONCE):
            numbers = waiting[start : start + _READ_AT_ONCE]
            records = await self._metadata.ledger_manager.read_many([LedgerId.of_number(number) for number in numbers])
            answers = list(zip(numbers, records, strict=True))
            gone += [number for number, record in answers if _is_gone(record)]
            left += await self._leave([number for number, record in answers if await self._is_settled(number, record)])
            if self._rate > 0:
                await asyncio.sleep(len(numbers) / self._rate)
        left += await self._leave(self._quarantine.due(sorted(gone), self._clock()))
        log_event(_log, "limbo_verified", ledgers=left, in_limbo=len(waiting) - left)

    async def _leave(self, numbers: Sequence[int]) -> int:
        """How many have left: all, if what was read of them is the own cluster's."""
        if numbers:
            await self._metadata.registration_manager.verify(self._membership)
            await self._in_thread(lambda: self._storage.leave_limbo(numbers))
        return len(numbers)

    async def _is_settled(self, number: int, record: LedgerRecord | BKException) -> bool:
        if isinstance(record, BKException) or not record.metadata.is_closed:
            return False
        metadata = record.metadata
        try:
            return bool(await self._in_thread(lambda: self._holds_its_part(number, metadata)))
        except StorageCorruptException as error:
            log_event(_log, "limbo_stays", logging.WARNING, ledger=ledger_name(number), error=error)
            return False

    def _holds_its_part(self, number: int, metadata: LedgerMetadata) -> bool:
        """On the thread for that."""
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
