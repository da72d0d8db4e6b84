"""Verifies ledgers in limbo, and lets go of those of which it is certain that the bookie holds all it has to.

A ledger leaves limbo when its metadata are gone, or when it is closed and this bookie holds every entry that the
ensembles place on it: from then on "no such entry" is true. An open ledger may end anywhere, so it stays until somebody
has closed it, and a closed one that lacks entries here until these were replicated, to here or elsewhere.

Runs on the event loop, from time to time. Not its job: who enters (`limbo`), copying what is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyroaring import BitMap64

from bookgate.bookie.limbo.placed_entries import placed_entries
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs what touches the disk where the event loop does not wait for it."""


async def all_ledgers(metadata: LedgerManagerFactory) -> list[int]:
    """Ids of all ledgers that there are, of scope 0. Raises BKException."""
    await metadata.catch_up(None)
    return [number async for ids in metadata.ledger_manager.ledger_ranges() for number in ids]


class LimboCheck:
    """See the module. `rate` bounds the requests to the metadata store a second; 0 for no bound."""

    def __init__(
        self, storage: LedgerStorage, metadata: LedgerManagerFactory, bookie_id: str, rate: float, in_thread: InThread
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._rate = rate
        self._in_thread = in_thread

    async def run(self, interval: float) -> None:
        """A pass every `interval` seconds, as long as there is anything in limbo or may come to be."""
        while True:
            await asyncio.sleep(interval)
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
        left = 0
        for start in range(0, len(waiting), _READ_AT_ONCE):
            left += await self._verify_some(waiting[start : start + _READ_AT_ONCE])
        log_event(_log, "limbo_verified", ledgers=left, in_limbo=len(waiting) - left)

    async def _verify_some(self, numbers: Sequence[int]) -> int:
        """How many of them have left."""
        records = await self._metadata.ledger_manager.read_many([LedgerId.unscoped(number) for number in numbers])
        settled = [
            number for number, record in zip(numbers, records, strict=True) if await self._is_settled(number, record)
        ]
        if settled:
            await self._in_thread(lambda: self._storage.leave_limbo(settled))
        if self._rate > 0:
            await asyncio.sleep(len(numbers) / self._rate)
        return len(settled)

    async def _is_settled(self, number: int, record: LedgerRecord | BKException) -> bool:
        if isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
            return True
        if isinstance(record, BKException) or not record.metadata.is_closed:
            return False
        metadata = record.metadata
        try:
            return bool(await self._in_thread(lambda: self._holds_its_part(number, metadata)))
        except StorageCorruptException as error:
            log_event(_log, "limbo_stays", logging.WARNING, ledger=number, error=error)
            return False

    def _holds_its_part(self, number: int, metadata: LedgerMetadata) -> bool:
        """On the thread for that."""
        placed = [ids for ids in placed_entries(metadata, self._bookie_id) if ids]
        if not placed:
            return True
        ledger = self._storage.ledgers.get(LedgerId.unscoped(number))
        if ledger is None:
            return False
        held = BitMap64()
        for first, count in self._storage.reader.entry_ids(ledger):
            held.update(range(first, first + count))
        return all(entry_id in held for ids in placed for entry_id in ids)
