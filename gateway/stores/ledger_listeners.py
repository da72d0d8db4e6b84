"""Listeners to the metadata of ledgers, for any store.

A store reports only *that* a ledger may have changed (a watch fired, a change row appeared, a session was restored);
this table then reads the ledger and passes new states to its listeners.

A watched ledger is idle, being read, or being read with a further change noted. There is one read per ledger at a time,
so responses can't overtake each other; any number of changes during a read cause one more read. Each listener receives
strictly increasing versions (M1), finally the newest one (M2), and one None when the ledger is gone, then nothing. A
ledger that was removed and created again with the same id is another ledger: the store gives each creation its own
incarnation number, and a listener of the old ledger receives None; one that has received nothing yet is a listener of
the new one. A failed read is repeated as long as there are
listeners; `settled` does not wait for it, since reads of a ledger may fail for ever.

The number of concurrent reads is bounded (many are due after a lost session): the others wait in a queue, from which a
few readers take them. With one task per ledger, the garbage collection of hundreds of thousands of objects would stall
the process for longer than a session lasts, and the next session would begin with the same load.

A listener that is a `LedgerFollower` is also called when what it has received may be outdated, when a read begins, and
when it ends, so that a cache knows when it may serve.

Not its job: setting the store's watches; the read function does that in the same step as reading.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bookgate.ledger.errors import BKException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerMetadataListener, LedgerRecord
from bookgate.runtime.cooperative_yield import giving_way
from bookgate.runtime.logs import log_bug, log_event

_LOG = logging.getLogger(__name__)

_UNSEEN = -1

_STARTED_A_SLICE = 50
"""Reads started in one slice when all ledgers must be read, so that the event loop is not blocked by all of them."""


class IncarnatedRecord(NamedTuple):
    """A ledger's record, and the number of its creation: assigned by the store, higher than those of ledgers that had
    the id before.
    """

    record: LedgerRecord
    incarnation: int

    def marked(self) -> LedgerRecord:
        """The record with its incarnation."""
        return replace(self.record, incarnation=self.incarnation)


class LedgerFollower(ABC):
    """A listener that must know whether what it has received is still current."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        """Receives records like every listener."""

    @abstractmethod
    def outdated(self) -> None:
        """The ledger may have changed and will be read."""

    @abstractmethod
    def reading(self) -> None:
        """A read begins; a watch that it sets is effective from here on."""

    @abstractmethod
    def was_read(self, error: BKException | None, holds: bool) -> None:
        """The read has ended, after the call with its result. `holds`: no change was noticed meanwhile.

        After an error the ledger's state is unknown.
        """


class _Watched:
    """A ledger with listeners, each with the last version it received."""

    __slots__ = ("busy", "changed", "incarnation", "listeners")

    def __init__(self) -> None:
        self.listeners: dict[LedgerMetadataListener, int] = {}
        self.incarnation: int | None = None
        self.changed = False
        self.busy = False
        """The ledger waits for a reader, or is being read."""

    def outdated(self) -> None:
        """Marks the ledger to be read, once more if it is being read now."""
        self.changed = True
        for follower in _followers(self):
            follower.outdated()


class _Settling:
    """Waits until everything that is busy at one moment is done."""

    def __init__(self, busy: Iterable[_Watched]) -> None:
        self._busy = set(busy)
        self._done = asyncio.Event()
        self._look()

    def ended(self, watched: _Watched) -> None:
        self._busy.discard(watched)
        self._look()

    def _look(self) -> None:
        if not self._busy:
            self._done.set()

    async def wait(self) -> None:
        await self._done.wait()


class LedgerListeners:
    """Listeners by ledger. Belongs to one event loop."""

    def __init__(
        self,
        read: Callable[[LedgerId], Awaitable[IncarnatedRecord | None]],
        released: Callable[[LedgerId], None] = lambda _: None,
        parallel_reads: int = 64,
        retry_delay_seconds: float = 0.2,
    ) -> None:
        """`read` returns None for a ledger that does not exist; `released` is called when the last listener was
        removed.
        """
        self._read = read
        self._released = released
        self._parallel_reads = parallel_reads
        self._due: deque[tuple[LedgerId, _Watched]] = deque()
        # Ordered, unlike sets: listeners are called in the order of their requests, and simulations are repeatable.
        self._busy: dict[_Watched, None] = {}
        self._readers: dict[asyncio.Task[None], None] = {}
        self._settling: dict[_Settling, None] = {}
        self._retry_delay = retry_delay_seconds
        self._ledgers: dict[LedgerId, _Watched] = {}
        self._sweep: asyncio.Task[None] | None = None
        """Starts the reads of all ledgers."""
        self._all_due = False
        """All ledgers may have changed since the sweep last looked which are outdated."""

    def __len__(self) -> int:
        """Number of watched ledgers."""
        return len(self._ledgers)

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._ledgers

    def add(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """The listener is called soon with the current state."""
        watched = self._ledgers.get(ledger_id)
        if watched is None:
            watched = self._ledgers[ledger_id] = _Watched()
        watched.listeners.setdefault(listener, _UNSEEN)
        self._start_read(ledger_id, watched)

    def remove(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Removes a listener; an unknown one is ignored."""
        watched = self._ledgers.get(ledger_id)
        if watched is None or watched.listeners.pop(listener, None) is None or watched.listeners:
            return
        del self._ledgers[ledger_id]
        if not watched.busy:
            self._released(ledger_id)

    def changed(self, ledger_id: LedgerId) -> None:
        """The ledger may have changed; unwatched ones are ignored."""
        watched = self._ledgers.get(ledger_id)
        if watched is not None:
            self._start_read(ledger_id, watched)

    def all_changed(self) -> None:
        """Every watched ledger may have changed. There may be very many, so their reads are started in slices."""
        self._all_due = True
        for watched in self._ledgers.values():
            watched.outdated()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().create_task(self._start_reads())

    async def settled(self) -> None:
        """Returns when every read that is running or due now has succeeded or failed."""
        if self._sweep is not None:
            await asyncio.wait([self._sweep])
        settling = _Settling(self._busy)
        self._settling[settling] = None
        try:
            await settling.wait()
        finally:
            self._settling.pop(settling, None)

    async def close(self) -> None:
        """Removes all listeners without calling them."""
        tasks = list(self._readers)
        if self._sweep is not None:
            tasks.append(self._sweep)
        self._ledgers.clear()
        self._due.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for watched in list(self._busy):
            self._ended(watched)

    async def _start_reads(self) -> None:
        """Starts reads of all ledgers that are outdated when their turn comes and are not being read.

        Once more from the beginning if all may have changed meanwhile: the ones that were read already may have lost
        their watch again.
        """
        try:
            while self._all_due:
                self._all_due = False
                await self._start_reads_once()
        finally:
            self._sweep = None

    async def _start_reads_once(self) -> None:
        due = [ledger_id for ledger_id, watched in self._ledgers.items() if watched.changed]
        for start in range(0, len(due), _STARTED_A_SLICE):
            async with giving_way():
                for ledger_id in due[start : start + _STARTED_A_SLICE]:
                    watched = self._ledgers.get(ledger_id)
                    if watched is not None and watched.changed:
                        self._read_soon(ledger_id, watched)

    def _start_read(self, ledger_id: LedgerId, watched: _Watched) -> None:
        watched.outdated()
        self._read_soon(ledger_id, watched)

    def _read_soon(self, ledger_id: LedgerId, watched: _Watched) -> None:
        if watched.busy:
            return
        watched.busy = True
        self._busy[watched] = None
        self._due.append((ledger_id, watched))
        if len(self._readers) < self._parallel_reads:
            self._readers[asyncio.get_running_loop().create_task(self._read_due())] = None

    async def _read_due(self) -> None:
        """A reader: runs until no read is due. It counts as running up to that moment, so later reads start another
        one.
        """
        try:
            while self._due:
                ledger_id, watched = self._due.popleft()
                try:
                    await self._read_while_changed(ledger_id, watched)
                except Exception as error:
                    log_bug(_LOG, "watched_ledger_not_read", error, ledger=ledger_id)
        finally:
            if (task := asyncio.current_task()) is not None:
                self._readers.pop(task, None)

    def _ended(self, watched: _Watched) -> None:
        watched.busy = False
        self._busy.pop(watched, None)
        for settling in self._settling:
            settling.ended(watched)

    async def _read_while_changed(self, ledger_id: LedgerId, watched: _Watched) -> None:
        try:
            while watched.changed and watched.listeners:
                watched.changed = False
                followers: list[LedgerFollower] = []
                try:
                    followers = _followers(watched)
                    for follower in followers:
                        follower.reading()
                    stored = await self._read(ledger_id)
                except MetadataFormatException as error:
                    # Reading again would not help; a later change may.
                    log_event(_LOG, "watched_ledger_damaged", logging.ERROR, ledger=ledger_id, error=error)
                    self._was_read(followers, error, False)
                    continue
                except BKException as error:
                    log_event(
                        _LOG,
                        "watched_ledger_not_read",
                        logging.WARNING,
                        ledger=ledger_id,
                        error=error,
                        note="it is tried again",
                    )
                    self._read_failed(ledger_id, watched, followers, error)
                    return
                except Exception as error:
                    log_bug(_LOG, "watched_ledger_not_read", error, ledger=ledger_id)
                    unforeseen = BKException(f"ledger {ledger_id} could not be read; the gateway's log says why")
                    self._read_failed(ledger_id, watched, followers, unforeseen)
                    return
                self._tell(ledger_id, watched, stored)
                self._was_read(followers, None, not watched.changed)
        finally:
            self._ended(watched)
            # A successor may watch the same id by now; the store's watch is then the successor's.
            if ledger_id not in self._ledgers:
                self._released(ledger_id)

    def _read_failed(
        self, ledger_id: LedgerId, watched: _Watched, followers: list[LedgerFollower], error: BKException
    ) -> None:
        asyncio.get_running_loop().call_later(self._retry_delay, self._retry, ledger_id, watched)
        self._was_read(followers, error, False)

    def _retry(self, ledger_id: LedgerId, watched: _Watched) -> None:
        if self._ledgers.get(ledger_id) is watched:
            self._start_read(ledger_id, watched)

    def _tell(self, ledger_id: LedgerId, watched: _Watched, stored: IncarnatedRecord | None) -> None:
        if stored is None:
            self._end(ledger_id, watched, list(watched.listeners))
            return
        if watched.incarnation not in (None, stored.incarnation):
            self._end(ledger_id, watched, [each for each, seen in watched.listeners.items() if seen != _UNSEEN])
        watched.incarnation = stored.incarnation
        record = stored.marked()
        for listener, seen in list(watched.listeners.items()):
            if record.version > seen and listener in watched.listeners:
                watched.listeners[listener] = record.version
                self._call(listener, ledger_id, record)

    def _end(self, ledger_id: LedgerId, watched: _Watched, listeners: Sequence[LedgerMetadataListener]) -> None:
        """Tells listeners that their ledger is gone."""
        for listener in listeners:
            del watched.listeners[listener]
        if not watched.listeners and self._ledgers.get(ledger_id) is watched:
            del self._ledgers[ledger_id]
        for listener in listeners:
            self._call(listener, ledger_id, None)

    @staticmethod
    def _was_read(followers: list[LedgerFollower], error: BKException | None, holds: bool) -> None:
        for follower in followers:
            follower.was_read(error, holds)

    @staticmethod
    def _call(listener: LedgerMetadataListener, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        try:
            listener(ledger_id, record)
        except Exception as error:
            log_bug(_LOG, "ledger_listener_failed", error, ledger=ledger_id)


def _followers(watched: _Watched) -> list[LedgerFollower]:
    return [listener for listener in watched.listeners if isinstance(listener, LedgerFollower)]
