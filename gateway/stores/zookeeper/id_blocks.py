"""Reserves ledger ids from a generator in blocks, ahead of demand.

One reservation runs at a time, however many callers wait for an id. A block is as large as the demand, and twice the
last one if that was used up within `_BUSY_SECONDS`, else half of it; a store with one creation per minute thus loses at
most one id at the end, and a busy one has a reservation every `_MAX_BLOCK` ids. The next block is requested when half
of the last one is used, so that under steady demand nobody waits.

States: idle → reserving (a caller waits, or few ids are left) → idle. A failed reservation is raised to the callers
that wait for it; the next caller tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from bookgate.gateway.stores.zookeeper.id_generator import IdGenerator
from bookgate.ledger.errors import BKException, MetaStoreException
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_MAX_BLOCK = 1024
_BUSY_SECONDS = 2.0


class IdBlocks:
    """Ids in the order of their reservation. Belongs to one event loop."""

    def __init__(self, generator: IdGenerator) -> None:
        self._generator = generator
        self._ready: deque[int] = deque()
        self._missing = 0
        self._size = 1
        self._reserved_at = 0.0
        self._reservation: asyncio.Task[BKException | None] | None = None

    async def take(self) -> int:
        """Returns one id. Raises the generator's errors."""
        return (await self.take_many(1))[0]

    async def take_many(self, count: int) -> list[int]:
        """Returns `count` ids, not always consecutive. Raises the generator's errors; then none is taken."""
        taken: list[int] = []
        try:
            while True:
                while self._ready and len(taken) < count:
                    taken.append(self._ready.popleft())
                missing = count - len(taken)
                if missing or 0 < self._size // 2 > len(self._ready):
                    self._reserve(missing)
                if not missing:
                    return taken
                await self._reserved(missing)
        except BaseException:
            self._ready.extendleft(reversed(taken))
            raise

    async def close(self) -> None:
        """Ends the current reservation."""
        if self._reservation is not None:
            self._reservation.cancel()
            await asyncio.gather(self._reservation, return_exceptions=True)

    async def _reserved(self, missing: int) -> None:
        """Waits for the running reservation."""
        assert self._reservation is not None
        self._missing += missing
        try:
            error = await asyncio.shield(self._reservation)
        finally:
            self._missing -= missing
        if error is not None:
            raise error

    def _reserve(self, missing: int) -> None:
        if self._reservation is None:
            self._reservation = asyncio.get_running_loop().create_task(self._fill(missing))

    async def _fill(self, missing: int) -> BKException | None:
        loop = asyncio.get_running_loop()
        # Callers in the same turn of the loop are counted as well.
        await asyncio.sleep(0)
        busy = loop.time() - self._reserved_at < _BUSY_SECONDS
        size = self._size * 2 if busy else self._size // 2
        self._size = min(_MAX_BLOCK, max(size, missing, self._missing, 1))
        try:
            self._ready.extend(await self._generator.reserve(self._size))
            self._reserved_at = loop.time()
        except BKException as error:
            log_event(_LOG, "ids_not_reserved", logging.DEBUG, error=error)
            return error
        except asyncio.CancelledError:
            # Only `close` cancels; callers must not take that for a cancellation of their own.
            return MetaStoreException("the metadata store was closed before a ledger id was reserved")
        finally:
            self._reservation = None
        return None
