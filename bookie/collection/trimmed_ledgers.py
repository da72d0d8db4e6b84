"""Unbounded ledgers of which a trim has deleted the first entries: these entries leave the index.

A ledger's entries below its watermark are deleted only if each of these holds (U7): its metadata, in the bookie's own
cluster and from a store that has caught up, have had at least this watermark in two passes a whole period apart, unless
an operator forces the run. The last entry held stays, whatever the watermark: the index's proof of what a file must
have tells of it. The ledger itself stays, with its term. Any error keeps the entries.

States of a ledger: *seen* at a watermark, since a time → *trimmed* up to it, and seen at the present one. A watermark
that falls begins anew: a store was restored.

Which ledgers have a term is read from the headers of the index, of each ledger once a process: or until it has a term,
or a fence or an entry, with which an ordinary ledger never gets one. (An explicit LAC may come before the term.)

Not its job: the bytes in entry logs (`entry_log_collector`). Source: docs/protocol/unbounded-ledgers.md#collection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from bookgate.bookie.collection.ledger_collector import InThread
from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.index.index_list_records import id_set
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId, ledger_name
from bookgate.ledger.ledger_numbers import LedgerNumbers, union
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.unbounded import deleted_before
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100

T = TypeVar("T")


class _Seen(NamedTuple):
    """A watermark, and since when it has been at least this."""

    watermark: int
    since: float


class Watermarks:
    """The watermarks of the last passes. `wait_seconds` is the period; all times are seconds of one clock."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._seen: dict[int, _Seen] = {}

    def due(self, found: dict[int, int], now: float) -> dict[int, int]:
        """Called once a pass with the watermark of each ledger: up to where which of them may be trimmed."""
        due: dict[int, int] = {}
        seen: dict[int, _Seen] = {}
        for number, watermark in found.items():
            before = self._seen.get(number)
            if before is None or watermark < before.watermark:
                seen[number] = _Seen(watermark, now)
            elif now - before.since < self._wait_seconds:
                seen[number] = before
            else:
                due[number] = before.watermark
                seen[number] = _Seen(watermark, now)
        self._seen = seen
        return due


class TrimmedLedgerCollector:
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
        self._watermarks = Watermarks(config.wait_seconds)
        self._ordinary = LedgerNumbers()
        """Ledgers that never get a term: they have a fence or an entry, but none."""
        self._unbounded = LedgerNumbers()
        self.trimmed: frozenset[int] = frozenset()
        """Ledgers with a watermark above 0."""

    async def collect(self, *, forced: bool = False) -> None:
        """One pass; `forced`: without waiting period. Raises OSError of storage; any other failure keeps entries."""
        numbers = await self._in_thread(self._find_unbounded)
        if not numbers:
            self.trimmed = frozenset()
            return
        try:
            await self._verify()
            found = await self._found(numbers)
            due = self._watermarks.due(found, self._clock())
            await self._verify()
        except (BKException, TimeoutError) as error:
            log_event(_log, "trimmed_not_collected", logging.WARNING, error=error or type(error).__name__)
            return
        self.trimmed = frozenset(found)
        for number, before in (found if forced else due).items():
            await self._deleting(partial(self._trim, number, before))

    def _find_unbounded(self) -> list[int]:
        """Blocking: the ledgers with a term. The headers of those are read that may have got one since."""
        held = [_held_in(store) for store in self._storage.stores]
        everything = union(held)
        self._ordinary, self._unbounded = self._ordinary & everything, self._unbounded & everything
        for store, numbers in zip(self._storage.stores, held, strict=True):
            for number in numbers - self._ordinary - self._unbounded:
                self._look_at(store, number)
        return list(self._unbounded)

    def _look_at(self, store: LedgerStore, number: int) -> None:
        try:
            header, last_entry_id = store.index.read_header(LedgerId.of_number(number)) or (None, NO_ENTRY)
        except StorageCorruptException:
            return
        if header is None:
            return
        if header.terms is not None:
            self._unbounded.add(number)
        elif header.fenced or last_entry_id != NO_ENTRY:
            self._ordinary.add(number)

    async def _found(self, numbers: Sequence[int]) -> dict[int, int]:
        """The watermarks above 0; of ledgers whose metadata can't be read none."""
        found: dict[int, int] = {}
        for start in range(0, len(numbers), _READ_AT_ONCE):
            part = numbers[start : start + _READ_AT_ONCE]
            ids = [LedgerId.of_number(number) for number in part]
            answers = await self._within_timeout(self._metadata.ledger_manager.read_many(ids))
            for number, answer in zip(part, answers, strict=True):
                if isinstance(answer, LedgerRecord) and answer.metadata.is_unbounded:
                    watermark = deleted_before(answer.metadata)
                    if watermark > 0:
                        found[number] = watermark
            if self._config.metadata_rate > 0:
                await asyncio.sleep(len(ids) / self._config.metadata_rate)
        return found

    def _trim(self, number: int, before: int) -> None:
        if self._storage.delete_below(number, before):
            self._statistics.trimmed_ledgers += 1
            log_event(_log, "ledger_trimmed", ledger=ledger_name(number), first_entry=before)

    async def _verify(self) -> None:
        """Raises WrongClusterException, or the error of a store that does not catch up."""
        await self._within_timeout(self._metadata.catch_up(None))
        await self._within_timeout(self._metadata.registration_manager.verify(self._membership))

    async def _within_timeout(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._config.metadata_timeout_seconds):
            return await call


def _held_in(store: LedgerStore) -> LedgerNumbers:
    held = store.all_ledgers()
    return LedgerNumbers.of_parts(id_set(held.unscoped), held.scoped)
