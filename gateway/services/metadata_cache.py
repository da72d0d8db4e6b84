"""A cache of ledger metadata whose entries are valid while a store watch guards them.

Every entry is a listener of its ledger at the store's manager, which uses one store watch per ledger whatever the
number of listeners (M7); a cache entry and the subscribers of a Watch share it. An entry is

    unread → reading → current ⇄ reading (it may have changed) → dropped

and is served only while current, in the connection epoch in which it was read, and while the store is connected,
because a lost connection removes the watch. A caller that arrives during a read waits for that read, so equal
concurrent reads become one (single flight). A caller that arrives after a change was noticed during that read waits for
the next one.

The cache is bounded in bytes and evicts the least recently used entry first. Entries unused for a while are dropped,
and their watches with them. `freshness`, called before the cache, keeps responses from being older than what the client
has seen.

Invariants: a response was the ledger's state at some moment after the read it waited for began, or is guarded by a live
watch (M4); dropped entries leave no listener behind (M7).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass

from bookgate.gateway.services.encoded_responses import BatchItem, EncodedLedger, encode_ledger
from bookgate.gateway.stores.ledger_listeners import LedgerFollower
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

BYTES_BESIDES = 1500
"""Cost of an entry in bytes besides its response: the object, its place in the cache, the listener, the store
client.
"""

_PATIENCE_SECONDS = 1.0
"""Seconds that a read waits for an entry before it reads from the store: after a lost connection listeners are slow."""

_RELEASED_A_TURN = 200


@dataclass(slots=True)
class CacheCounts:
    """Counters for the metrics."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def hit_ratio(self) -> float:
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A ledger's response, its revision, and the response as an item of a batch, which shares the ledger's bytes."""

    ledger: EncodedLedger
    revision: int
    batch_item: BatchItem


_Waiters = asyncio.Future[EncodedLedger | None]


class _Entry(LedgerFollower):
    """One ledger. For its states see the module."""

    __slots__ = (
        "answer",
        "begun_epoch",
        "cache",
        "changed",
        "cost",
        "epoch",
        "ledger",
        "ledger_id",
        "now",
        "soon",
        "used",
    )

    def __init__(self, cache: MetadataCache, ledger_id: LedgerId) -> None:
        self.cache = cache
        self.ledger_id = ledger_id
        self.ledger: EncodedLedger | None = None
        """The latest state received."""
        self.answer: CachedAnswer | None = None
        """The response for `ledger`, built at the first request."""
        self.epoch: int | None = None
        """While current: the connection epoch of the read that made it current."""
        self.begun_epoch: int | None = None
        """While reading: the epoch in which the read began."""
        self.changed = False
        """A change was noticed since the last read began."""
        self.now: _Waiters | None = None
        """Callers that wait for the read in progress."""
        self.soon: _Waiters | None = None
        """Callers that wait for the next read."""
        self.used = 0.0
        self.cost = BYTES_BESIDES

    def wait(self) -> _Waiters:
        """Joins the read in progress, or the next one if that may be too old. None: the caller must read from the
        store.
        """
        if self.begun_epoch is not None and not self.changed:
            self.now = self.now or _waiters()
            return self.now
        self.soon = self.soon or _waiters()
        return self.soon

    def finish(self, error: BKException | None = None) -> None:
        """Releases all waiting callers, because no further read will do so."""
        for waiters in (self.now, self.soon):
            if waiters is None or waiters.done():
                continue
            if error is None:
                waiters.set_result(None)
            else:
                waiters.set_exception(error)
        self.now = self.soon = None

    # --- as a listener ------------------------------------------------------------------------------------------

    def __call__(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        # If the new state can't be encoded, the old one must not be served in its place.
        self.answer = self.ledger = None
        if record is None:
            self.cache.gone(self)
        else:
            self.ledger = encode_ledger(record)

    def outdated(self) -> None:
        self.epoch = None
        self.changed = True

    def reading(self) -> None:
        self.begun_epoch = self.cache.connection_epoch
        self.changed = False
        self.now, self.soon = self.soon, None

    def was_read(self, error: BKException | None, holds: bool) -> None:
        begun, self.begun_epoch = self.begun_epoch, None
        if error is not None:
            self.finish(error)
            self.cache.drop(self)
            return
        waiters, self.now = self.now, None
        if waiters is not None and not waiters.done():
            waiters.set_result(self.ledger)
        if holds and self.ledger is not None:
            self.epoch = begun
            self.cache.became_current(self)


class MetadataCache:
    """The cache; see the module. One per gateway, on one event loop; `run` must be running while it is used."""

    def __init__(self, factory: LedgerManagerFactory, max_bytes: int, idle_seconds: float) -> None:
        self._factory = factory
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._entries: OrderedDict[LedgerId, _Entry] = OrderedDict()
        self._epoch = factory.connection_epoch
        self._dropped: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self.bytes = 0
        """Total cost of the entries."""
        self.counts = CacheCounts()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def connection_epoch(self) -> int:
        return self._factory.connection_epoch

    async def run(self) -> None:
        """Removes listeners of dropped entries, and drops unused entries, until cancelled."""
        pause = max(0.05, min(1.0, self._idle_seconds / 10))
        while True:
            if not self._dropped:
                self._wake.clear()
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    self._drop_idle()
            await self._release()

    async def close(self) -> None:
        """Drops all entries and their listeners."""
        self.suspend()
        while self._dropped:
            await self._release()

    def suspend(self) -> None:
        """Drops all entries: the store's connection was lost, and with it the watches that guard them."""
        self._epoch = self._factory.connection_epoch
        for entry in list(self._entries.values()):
            self.drop(entry)

    # --- reading ------------------------------------------------------------------------------------------------

    def get(self, ledger_id: LedgerId) -> CachedAnswer | None:
        """The response if it can be served at once. Counts a hit or a miss."""
        entry = self._entries.get(ledger_id)
        if entry is None or entry.answer is None or not self._is_current(entry):
            self.counts.misses += 1
            return None
        self.counts.hits += 1
        self._use(entry)
        return entry.answer

    def peek(self, ledger_id: LedgerId) -> EncodedLedger | None:
        """The state if it is certain to be current; not counted as a hit or a miss."""
        entry = self._entries.get(ledger_id)
        return entry.ledger if entry is not None and self._is_current(entry) else None

    async def fetch(self, ledger_id: LedgerId) -> CachedAnswer:
        """Reads from the store what `get` did not have, and caches it.

        Raises NoSuchLedgerExistsOnMetadataServerException, MetadataFormatException, MetaStoreException.
        """
        if self._factory.connected:
            entry = self._entries.get(ledger_id) or await self._add(ledger_id)
            self._use(entry)
            current = entry.ledger if self._is_current(entry) else None
            ledger = current or await _patiently(entry.wait())
            if ledger is not None:
                return await self._answer(ledger, entry)
        # Disconnected, slow, removed, dropped, or recreated under the same id: the store decides.
        return await self._answer(encode_ledger(await self._factory.ledger_manager.read(ledger_id)))

    def changed_here(self, ledger_id: LedgerId) -> None:
        """This gateway changed a ledger, or may have: earlier knowledge is no longer served."""
        entry = self._entries.get(ledger_id)
        if entry is not None:
            self.drop(entry)

    def _is_current(self, entry: _Entry) -> bool:
        epoch = self._factory.connection_epoch
        if epoch != self._epoch:
            self.suspend()
        return entry.epoch == epoch and self._factory.connected

    def _use(self, entry: _Entry) -> None:
        entry.used = self._now()
        # The entry may have been dropped meanwhile.
        if entry.ledger_id in self._entries:
            self._entries.move_to_end(entry.ledger_id)

    async def _answer(self, ledger: EncodedLedger, entry: _Entry | None = None) -> CachedAnswer:
        # Read after the state: a client that sends this revision to another gateway gets nothing older than this state.
        revision = await self._factory.revision()
        answer = CachedAnswer(ledger, revision, ledger.batch_item(revision))
        if entry is not None and entry.ledger is ledger:
            entry.answer = answer
        return answer

    # --- the entries --------------------------------------------------------------------------------------------

    async def _add(self, ledger_id: LedgerId) -> _Entry:
        entry = self._entries[ledger_id] = _Entry(self, ledger_id)
        self.bytes += entry.cost
        try:
            await self._factory.ledger_manager.register_listener(ledger_id, entry)
        except BaseException:
            self._take_out(entry)
            raise
        return entry

    def became_current(self, entry: _Entry) -> None:
        """Accounts for the entry's size, and evicts others if needed."""
        if self._entries.get(entry.ledger_id) is not entry or entry.ledger is None:
            return
        # Twice: callers that may not see the password get a response of its own.
        cost = BYTES_BESIDES + 2 * len(entry.ledger.data)
        self.bytes += cost - entry.cost
        entry.cost = cost
        while self.bytes > self._max_bytes and self._entries:
            self.counts.evictions += 1
            self.drop(next(iter(self._entries.values())))

    def gone(self, entry: _Entry) -> None:
        """The ledger was removed, and the listener with it."""
        self._take_out(entry)

    def drop(self, entry: _Entry) -> None:
        """Drops an entry and soon removes its listener; callers that wait for it read from the store."""
        if self._take_out(entry):
            self._dropped.append(entry)
            self._wake.set()

    def _take_out(self, entry: _Entry) -> bool:
        entry.epoch = None
        entry.finish()
        if self._entries.get(entry.ledger_id) is not entry:
            return False
        del self._entries[entry.ledger_id]
        self.bytes -= entry.cost
        assert self.bytes >= 0, "what leaves the cache was counted"
        return True

    def _drop_idle(self) -> None:
        longest_unused = self._now() - self._idle_seconds
        while self._entries and (oldest := next(iter(self._entries.values()))).used < longest_unused:
            self.drop(oldest)

    async def _release(self) -> None:
        """Removes some listeners, yielding to the event loop in between."""
        for _ in range(min(len(self._dropped), _RELEASED_A_TURN)):
            entry = self._dropped.popleft()
            try:
                await self._factory.ledger_manager.unregister_listener(entry.ledger_id, entry)
            except BKException as error:
                log_event(_LOG, "listener_not_removed", logging.WARNING, ledger=entry.ledger_id, error=error)
        await asyncio.sleep(0)


def _waiters() -> _Waiters:
    waiters: _Waiters = asyncio.get_running_loop().create_future()
    # All waiting callers may have gone; then nobody retrieves the exception.
    waiters.add_done_callback(_retrieve)
    return waiters


def _retrieve(waiters: _Waiters) -> None:
    if not waiters.cancelled():
        waiters.exception()


async def _patiently(waiters: _Waiters) -> EncodedLedger | None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await asyncio.shield(waiters)
    except TimeoutError:
        return None
