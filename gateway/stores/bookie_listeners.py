"""Listeners to the set of bookies, for any store.

A store reports only that bookies may have changed; this table then reads the complete set and calls the listeners for
which it is new. Reads never overlap, a change during a read causes one more read, and a failed read is repeated as long
as there are listeners. Every call delivers a complete set, so a listener that missed one is correct again with the
next. A listener is told nothing that was read before it was added: that may be older than what its client has seen
(M4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, BookiesListener, RegisteredBookie
from bookgate.runtime.logs import log_bug, log_event

_LOG = logging.getLogger(__name__)


def select(bookies: Iterable[RegisteredBookie], bookie_set: BookieSet) -> tuple[RegisteredBookie, ...]:
    """The members of a set, ordered by bookie id."""
    chosen = [
        bookie
        for bookie in bookies
        if bookie_set is BookieSet.ALL or (bookie.writable if bookie_set is BookieSet.WRITABLE else bookie.read_only)
    ]
    return tuple(sorted(chosen, key=lambda bookie: bookie.bookie_id))


class _Registration:
    """A listener and the set it received last."""

    __slots__ = ("bookie_set", "listener", "told")

    def __init__(self, bookie_set: BookieSet, listener: BookiesListener) -> None:
        self.bookie_set = bookie_set
        self.listener = listener
        self.told: tuple[RegisteredBookie, ...] | None = None


class BookieListeners:
    """Listeners to the set of bookies. Belongs to one event loop."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Sequence[RegisteredBookie]]],
        idle: Callable[[], None] = lambda: None,
        retry_delay_seconds: float = 0.2,
    ) -> None:
        """`read` returns all bookies; `idle` is called when the last listener was removed."""
        self._read = read
        self._idle = idle
        self._retry_delay = retry_delay_seconds
        self._registrations: dict[_Registration, None] = {}
        self._changed = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._registrations)

    def add(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        """The listener is called soon with the complete set; the returned function removes it."""
        registration = _Registration(bookie_set, listener)
        self._registrations[registration] = None
        self.changed()

        def remove() -> None:
            if registration not in self._registrations:
                return
            self._registrations.pop(registration, None)
            if not self._registrations:
                self._idle()

        return remove

    def changed(self) -> None:
        """Bookies may have changed."""
        if not self._registrations:
            return
        self._changed = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read_while_changed())

    async def settled(self) -> None:
        """Returns when the current read, if any, has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        self._registrations.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read_while_changed(self) -> None:
        try:
            while self._changed and self._registrations:
                self._changed = False
                known = list(self._registrations)
                try:
                    bookies = await self._read()
                except BKException as error:
                    log_event(_LOG, "bookies_not_read", logging.WARNING, error=error, note="it is tried again")
                except Exception as error:
                    # A single bookie's invalid registration must not end the notifications about all bookies.
                    log_bug(_LOG, "bookies_not_read", error)
                else:
                    self._tell(bookies, known)
                    continue
                self._changed = True
                await asyncio.sleep(self._retry_delay)
        finally:
            self._task = None

    def _tell(self, bookies: Sequence[RegisteredBookie], known: Iterable[_Registration]) -> None:
        for registration in known:
            chosen = select(bookies, registration.bookie_set)
            if chosen == registration.told or registration not in self._registrations:
                continue
            registration.told = chosen
            try:
                registration.listener(chosen)
            except Exception as error:
                log_bug(_LOG, "bookies_listener_failed", error)
