"""Over-replicated ledgers: closed ledgers whose fragments were all moved to other bookies.

A ledger of this bookie is deleted only if each of these holds (R16): its metadata, in the bookie's own cluster, is
CLOSED and names this bookie in no fragment, in two passes a whole period apart; nobody holds its lock, and this bookie
obtains it; the metadata says the same again afterwards, from a store that has caught up; nothing was written to the
ledger meanwhile; the lock is still held. A worker that copies to this bookie holds the lock from before the first copy
until the metadata names the bookie. A pass that would delete most of what is held deletes nothing. Any error keeps the
ledger.

Not its job: ledgers without metadata (`ledger_collector`), copies of one fragment while another fragment of the same
ledger still names this bookie. Source: docs/protocol/storage.md#garbage-collection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bookgate.bookie.collection.deletion_rules import Quarantine, is_mass_deletion
from bookgate.bookie.collection.ledger_collector import InThread
from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.ledger.errors import BKException, IllegalOpException
from bookgate.ledger.ledger_id import LedgerId, ledger_name
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.number_array import NumberArray
from bookgate.ledger.replication_store import LedgerLock, ReplicationMetadata
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100

T = TypeVar("T")


def is_over_replicated(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether this bookie's copies are surplus: the ledger is closed, and no fragment names the bookie."""
    return metadata.is_closed and all(bookie_id not in fragment.ensemble for fragment in metadata.fragments)


class OverReplicatedCollector:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        config: GarbageCollectionConfig,
        storage: LedgerStorage,
        metadata: LedgerManagerFactory,
        membership: Membership,
        statistics: GcStatistics,
        clock: Callable[[], float],
        in_thread: InThread,
        deleting: InThread,
    ) -> None:
        """`membership` is from the bookie's own cookie. `deleting` runs what deletes; it may raise
        DeletionSuspendedException, which ends the pass.
        """
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._membership = membership
        self._statistics = statistics
        self._clock = clock
        self._in_thread = in_thread
        self._deleting = deleting
        self._quarantine = Quarantine(config.over_replicated_wait_seconds)
        self._last = clock()

    async def collect_if_due(self) -> None:
        """One pass, if due. Raises StoppedException or OSError of storage; any other failure keeps ledgers."""
        every = self._config.over_replicated_wait_seconds
        if every <= 0 or self._clock() - self._last < every:
            return
        self._last = self._clock()
        try:
            replication = self._metadata.replication_metadata
        except IllegalOpException:
            return
        try:
            await self._collect(replication)
        except (BKException, TimeoutError) as error:
            log_event(_log, "surplus_not_collected", logging.WARNING, error=error, note="the next pass tries again")

    async def _collect(self, replication: ReplicationMetadata) -> None:
        await self._verify()
        unscoped = await self._in_thread(self._storage.ledger_ids)
        local = NumberArray(unscoped)
        local.extend(await self._in_thread(self._storage.scoped_ledgers))
        surplus: list[int] = []
        for start in range(0, len(local), _READ_AT_ONCE):
            surplus += await self._surplus_of(local[start : start + _READ_AT_ONCE])
        due = self._quarantine.due(surplus, self._clock())
        config = self._config
        if is_mass_deletion(len(due), len(local), config.max_deleted_share, config.mass_deletion_ledgers):
            log_event(
                _log,
                "surplus_held_back",
                logging.ERROR,
                count=len(due),
                of=len(local),
                first_ledger=ledger_name(due[0]),
            )
            return
        for number in due:
            await self._collect_one(replication, number)

    async def _surplus_of(self, numbers: Sequence[int]) -> list[int]:
        """The ledgers that are over-replicated according to their metadata; those whose metadata can't be read are
        not.
        """
        ids = [LedgerId.of_number(number) for number in numbers]
        answers = await self._within_timeout(self._metadata.ledger_manager.read_many(ids))
        if self._config.metadata_rate > 0:
            await asyncio.sleep(len(ids) / self._config.metadata_rate)
        return [
            number
            for number, answer in zip(numbers, answers, strict=True)
            if isinstance(answer, LedgerRecord) and self._is_surplus(answer)
        ]

    def _is_surplus(self, record: LedgerRecord) -> bool:
        return is_over_replicated(record.metadata, self._membership.bookie_id)

    async def _collect_one(self, replication: ReplicationMetadata, number: int) -> None:
        with self._storage.watch_writes([number]):
            lock = await replication.try_lock(number, self._membership.bookie_id)
            if lock is None:
                return
            try:
                if await self._still_surplus(replication, lock):
                    await self._delete(number)
            finally:
                await replication.release(lock)

    async def _still_surplus(self, replication: ReplicationMetadata, lock: LedgerLock) -> bool:
        """Checks again while the lock is held, in a store that has caught up with everything before that."""
        await self._verify()
        ledger_id = LedgerId.of_number(lock.ledger_id)
        record = await self._within_timeout(self._metadata.ledger_manager.read(ledger_id))
        return self._is_surplus(record) and await self._within_timeout(replication.is_held(lock))

    async def _delete(self, number: int) -> None:
        deleted = await self._deleting(lambda: self._storage.delete_ledgers([number], unwritten=True))
        self._statistics.over_replicated_ledgers += len(deleted)
        self._statistics.active_ledgers -= len(deleted)
        if deleted:
            log_event(_log, "surplus_collected", ledger=ledger_name(number))

    async def _verify(self) -> None:
        """Raises WrongClusterException, or the error of a store that does not catch up."""
        await self._within_timeout(self._metadata.catch_up(None))
        await self._within_timeout(self._metadata.registration_manager.verify(self._membership))

    async def _within_timeout(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._config.metadata_timeout_seconds):
            return await call
