"""The part of garbage collection that decides which ledgers are deleted.

The order is: the local ids, then the complete listing of the metadata, then each candidate once more.

Nothing is deleted unless the listing reached its end in order, and the store has caught up with what it knew when the
listing began. The cluster is checked before the listing and before each batch of deletions: only metadata of the
cluster in the bookie's own cookie count. (Listings through a gateway are checked by the client, page by page.) A
missing ledger must be missing in the next run as well, a period later, and the missing ones must not be most of what is
held, unless an operator forces the run (`deletion_rules`). Then each candidate's metadata is read, and only the
response that there is no such ledger allows its deletion; to rely on the listing alone, turn `verify_metadata` off. A
ledger that is written to after that check stays: it was created again under its id. In every other case – an error, a
timeout, or metadata that still exists – the ledger is kept (S2, F13).

The listing runs on the event loop, storage on the thread that `in_thread` uses. Source:
docs/protocol/storage.md#garbage-collection. Not its job: the rules (`rules`), when runs begin, the bytes in entry logs
(`entry_log_collector`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from bookgate.bookie.collection.deletion_rules import Quarantine, is_mass_deletion
from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.rules import LedgerComparison
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException, WrongClusterException
from bookgate.ledger.ledger_id import LedgerId, by_scope, ledger_name, number_of
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100
_DELETE_AT_ONCE = 100
_LISTED_FROM = 100
"""Number of local ledgers in a scope from which on the scope is listed."""

T = TypeVar("T")


class InThread(Protocol):
    """Runs disk access on a thread, so that the event loop does not wait for it."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class LedgerCollector:
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
        self._quarantine = Quarantine(config.wait_seconds)
        self._statistics = statistics
        self._clock = clock
        self._in_thread = in_thread
        self._deleting = deleting

    async def collect(self, *, forced: bool = False) -> None:
        """One pass; `forced`: without waiting period, and regardless of the share that would be deleted."""
        local = await self._in_thread(self._storage.ledger_ids)
        scoped = await self._in_thread(self._storage.scoped_ledgers)
        self._statistics.active_ledgers = len(local) + len(scoped)
        try:
            await self._require_own_cluster()
            missing = await self._missing_in_metadata(local, scoped)
        except Exception as error:
            # Any error means that the metadata are unknown.
            self._not_listed(error)
            return
        chosen = self._chosen(missing, len(local) + len(scoped), forced)
        for start in range(0, len(chosen), _DELETE_AT_ONCE):
            candidates = chosen[start : start + _DELETE_AT_ONCE]
            with self._storage.watch_writes(candidates):
                confirmed = await self._confirmed(candidates)
                try:
                    await self._require_own_cluster()
                except (BKException, TimeoutError) as error:
                    self._not_listed(error)
                    return
                await self._delete(confirmed)

    def _not_listed(self, error: Exception) -> None:
        self._statistics.failed_listings += 1
        known = isinstance(error, (BKException, TimeoutError)) and not isinstance(error, WrongClusterException)
        log_event(
            _log,
            "ledgers_not_listed",
            logging.WARNING if known else logging.ERROR,
            error=error or type(error).__name__,
            note="no ledger is collected",
        )

    async def _require_own_cluster(self) -> None:
        """Raises WrongClusterException."""
        await self._within_timeout(self._metadata.registration_manager.verify(self._membership))

    def _chosen(self, missing: Sequence[int], local: int, forced: bool) -> Sequence[int]:
        """The missing ledgers that are to be deleted now."""
        due = self._quarantine.due(missing, self._clock())
        if forced:
            due = missing
        config, statistics = self._config, self._statistics
        held_back = not forced and is_mass_deletion(
            len(due), local, config.max_deleted_share, config.mass_deletion_ledgers
        )
        statistics.held_back_ledgers = len(due) if held_back else 0
        if not held_back:
            return due
        log_event(
            _log,
            "ledgers_held_back",
            logging.ERROR,
            count=len(due),
            of=local,
            first_ledger=ledger_name(due[0]),
            note="the metadata lacks most ledgers; if they were deleted, run `bookgate gc trigger --force-ledgers`",
        )
        return ()

    async def _missing_in_metadata(self, local: Sequence[int], scoped: Sequence[int]) -> Sequence[int]:
        """Local numbers missing in the metadata, ascending: those of scope 0 and those of other scopes.

        Both arguments were taken before the listing. Other scopes are listed like scope 0, except those with only a few
        local ledgers: with ids that are UUIDs, each ledger has a scope of its own. Ledgers of such scopes are looked up
        one by one.
        """
        await self._within_timeout(self._metadata.catch_up(None))
        missing = await self._unlisted(0, local)
        few: list[int] = []
        unlisted: list[int] = []
        for scope_id, numbers in by_scope(scoped):
            if len(numbers) < _LISTED_FROM:
                few += numbers
            else:
                unlisted += await self._unlisted(scope_id, numbers)
        unlisted += await self._unreadable(few)
        return [*missing, *sorted(unlisted)] if unlisted else missing

    async def _unlisted(self, scope_id: int, local: Sequence[int]) -> Sequence[int]:
        """Local numbers of a scope that are missing in a complete listing."""
        comparison = LedgerComparison(local)
        ranges = aiter(self._metadata.ledger_manager.ledger_ranges(scope_id))
        while (ids := await self._next_range(ranges)) is not None:
            comparison.add_range(ids if scope_id == 0 else [number_of(scope_id, each) for each in ids])
            await self._pace(1)
        missing = comparison.finish()
        self._storage.compared(scope_id, local, missing)
        return missing

    async def _unreadable(self, numbers: Sequence[int]) -> list[int]:
        """The ledgers of which the metadata store says that they do not exist."""
        missing: list[int] = []
        for start in range(0, len(numbers), _READ_AT_ONCE):
            part = numbers[start : start + _READ_AT_ONCE]
            missing += [
                number for number, gone in zip(part, map(_is_gone, await self._read(part)), strict=True) if gone
            ]
        gone = set(missing)
        for scope_id, held in by_scope(numbers):
            self._storage.compared(scope_id, held, [number for number in held if number in gone])
        return missing

    async def _next_range(self, ranges: AsyncIterator[Sequence[int]]) -> Sequence[int] | None:
        try:
            async with asyncio.timeout(self._config.metadata_timeout_seconds):
                return await anext(ranges)
        except StopAsyncIteration:
            return None

    async def _confirmed(self, candidates: Sequence[int]) -> list[int]:
        """The candidates of which the metadata store itself says that they do not exist."""
        if not self._config.verify_metadata:
            return list(candidates)
        gone: list[int] = []
        for number, answer in zip(candidates, await self._read(candidates), strict=True):
            if _is_gone(answer):
                gone.append(number)
                continue
            self._statistics.kept_candidates += 1
            reason = f"can't be read: {answer}" if isinstance(answer, BKException) else "is there"
            log_event(
                _log,
                "ledger_kept",
                logging.WARNING,
                ledger=ledger_name(number),
                reason=f"it was not listed, but its metadata {reason}",
            )
        return gone

    async def _read(self, numbers: Sequence[int]) -> Sequence[LedgerRecord | BKException]:
        """For each ledger its metadata, or the error that keeps it from being read."""
        ids = [LedgerId.of_number(number) for number in numbers]
        try:
            answers = await self._within_timeout(self._metadata.ledger_manager.read_many(ids))
        except (BKException, TimeoutError) as error:
            unknown = error if isinstance(error, BKException) else BKException("the metadata store does not answer")
            return [unknown] * len(ids)
        await self._pace(len(ids))
        return answers

    async def _delete(self, numbers: Sequence[int]) -> None:
        """Deletes the ledgers that were not written to since they are watched."""
        if not numbers:
            return
        deleted = await self._deleting(lambda: self._storage.delete_ledgers(numbers, unwritten=True))
        self._statistics.deleted_ledgers += len(deleted)
        self._statistics.active_ledgers -= len(deleted)
        if deleted:
            log_event(_log, "ledgers_collected", count=len(deleted), first_ledger=ledger_name(deleted[0]))

    async def _within_timeout(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._config.metadata_timeout_seconds):
            return await call

    async def _pace(self, operations: int) -> None:
        if self._config.metadata_rate > 0:
            await asyncio.sleep(operations / self._config.metadata_rate)


def _is_gone(answer: LedgerRecord | BKException) -> bool:
    return isinstance(answer, NoSuchLedgerExistsOnMetadataServerException)
