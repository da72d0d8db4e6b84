"""Auto-recovery's metadata in the simple store of `metadata`: a round trip away, and its claims end with their session.

A process's locks and votes end when the store has not heard of it for a session's time: it died, stands still or is cut
off. A process that is heard of again is told then what it has lost.

Not its job: ZooKeeper's nodes and SQLite's leases, which pass the same contract (`test_memory_replication`).
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    LockLostException,
    MetaStoreException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord, Versioned
from bookgate.ledger.replication import PeriodicCheck, UnderreplicatedLedger, check_markable, encode_delay
from bookgate.ledger.replication_store import (
    ANY_VERSION,
    AuditorVote,
    DelayChanged,
    DrainsChanged,
    LedgerFeed,
    LedgerFeedListener,
    LedgerLock,
    LockLost,
    Mark,
    MarksChanged,
    RecordKind,
    ReplicationEvent,
    ReplicationListener,
    ReplicationMetadata,
    SwitchChanged,
    VoteListener,
    VoteState,
    check_key,
    record_conflict,
)
from bookgate.runtime.auditor_votes import Vote
from bookgate.runtime.ledger_feeds import LedgerFeeds
from bookgate.runtime.replication_listeners import ReplicationListeners
from tests.simulation.loop import CURRENT, Process

if TYPE_CHECKING:
    from tests.simulation.metadata import MemoryMetadata

T = TypeVar("T")

_HEARTBEAT_SECONDS = 0.5
_FEED_GAP_SECONDS = 0.1, 3.0
_FEED_GAPS = 0.02


@dataclass(slots=True)
class _Session:
    """What the store knows of one process."""

    process: Process
    heard_at: float
    locks: dict[int, LedgerLock] = field(default_factory=dict)
    votes: dict[str, str] = field(default_factory=dict)
    """Voters by the names of their votes."""

    @property
    def claims(self) -> bool:
        return bool(self.locks or self.votes)


class _Marks(dict[int, Mark]):
    """By ledger; listed in order, page by page, also when there are very many."""

    def __init__(self) -> None:
        super().__init__()
        self._ascending: list[int] | None = None

    def after(self, ledger_id: int, count: int) -> list[Mark]:
        """The next ones in ascending order."""
        if self._ascending is None:
            self._ascending = sorted(self)
        start = bisect_right(self._ascending, ledger_id)
        return [self[each] for each in self._ascending[start : start + count]]

    def __setitem__(self, ledger_id: int, mark: Mark) -> None:
        if ledger_id not in self:
            self._ascending = None
        super().__setitem__(ledger_id, mark)

    def __delitem__(self, ledger_id: int) -> None:
        self._ascending = None
        super().__delitem__(ledger_id)


class ReplicationState:
    """The store's side, one a world."""

    def __init__(self, store: MemoryMetadata, session_seconds: float) -> None:
        self.store = store
        self.marks = _Marks()
        self.locks: dict[int, tuple[LedgerLock, str]] = {}
        """With the names of their holders."""
        self._locked_at: dict[int, float] = {}
        self.votes: dict[str, str] = {}
        """Voters by the names of their votes, the oldest first."""
        self.enabled = True
        self._disabled_at = 0.0
        self.delay: int | None = None
        self.delay_written = 0
        """How often."""
        self.check_times: dict[PeriodicCheck, int] = {}
        self.records: dict[tuple[RecordKind, str], Versioned[bytes]] = {}
        self.on_mark: list[Callable[[int, Sequence[str]], None]] = []
        self.on_unmark: list[Callable[[int], None]] = []
        """Told before a mark is removed."""
        self.on_repair: list[Callable[[LedgerRecord, LedgerMetadata], None]] = []
        """Told before a ledger is written under its lock: its record, and what is to be written."""
        self.on_record: list[Callable[[RecordKind, str, bytes], None]] = []
        self.removed_records: dict[tuple[RecordKind, str], tuple[float, bytes]] = {}
        """When each was removed the last time, and what it was."""
        """Told of a record that is written."""
        self.on_step: list[Callable[[], None]] = []
        """Told before each change that anybody asks for."""
        self.feed_gaps = _FEED_GAPS
        """Share of the changes at which a process's feed breaks."""
        self._session_seconds = session_seconds
        self._clients: list[MemoryReplication] = []
        self._mark_versions = itertools.count(1)
        self._numbers = itertools.count(1)
        self._beating = False

    def client(self) -> MemoryReplication:
        """For the process that calls."""
        client = MemoryReplication(self, CURRENT.get())
        self._clients.append(client)
        return client

    @property
    def disabled_for(self) -> float:
        """Seconds; 0 while it is enabled."""
        return 0.0 if self.enabled else self.store.loop.time() - self._disabled_at

    def switch(self, enabled: bool) -> None:
        """Raises IllegalOpException."""
        if self.enabled is enabled:
            raise IllegalOpException(f"auto-recovery is {'enabled' if enabled else 'disabled'} already")
        self.enabled, self._disabled_at = enabled, self.store.loop.time()
        self.tell(SwitchChanged(enabled))

    def set_delay(self, seconds: int) -> None:
        """The same one again is told too."""
        self.delay, self.delay_written = seconds, self.delay_written + 1
        for client in self._clients:
            if len(client.listeners):
                self.store.tell_in_order(client.session.process, client.hear_of_delay, self.delay_written, seconds)

    def mark_version(self) -> int:
        """No mark has one that another had (R8)."""
        return next(self._mark_versions)

    def token(self) -> str:
        return f"{next(self._numbers):010d}"

    def end_sessions_of(self, process: Process) -> None:
        """As if the store had not heard of a process for a session's time."""
        for client in self._clients:
            if client.session.process is process:
                client.session.heard_at = -self._session_seconds
                self._look_at(client)

    def claimed(self) -> None:
        """From the first claim on the store looks which processes it hears of."""
        if not self._beating:
            self._beating = True
            self._beat()

    def _beat(self) -> None:
        for client in self._clients:
            self._look_at(client)
        self._clients = [client for client in self._clients if client.session.process.alive or client.session.claims]
        loop = self.store.loop
        loop.call_at_exact(loop.time() + _HEARTBEAT_SECONDS, self._beat, context=loop.outside.context)

    def _look_at(self, client: MemoryReplication) -> None:
        session, now = client.session, self.store.loop.time()
        if now - session.heard_at > self._session_seconds:
            self.end_claims(session)
        if self.store.hears(session.process):
            session.heard_at = now
            self.store.tell_in_order(session.process, client.hear_of_losses)

    def end_claims(self, session: _Session) -> None:
        for ledger_id, lock in list(session.locks.items()):
            self.drop_lock(session, ledger_id, lock)
        for name in list(session.votes):
            self.drop_vote(session, name)

    def lock(self, session: _Session, lock: LedgerLock, holder: str) -> None:
        self.locks[lock.ledger_id] = lock, holder
        self._locked_at[lock.ledger_id] = self.store.loop.time()
        session.locks[lock.ledger_id] = lock

    def locked_for(self, ledger_id: int) -> float:
        """For how many seconds a ledger has been locked; 0 if it is not."""
        return self.store.loop.time() - self._locked_at[ledger_id] if ledger_id in self.locks else 0.0

    def drop_lock(self, session: _Session, ledger_id: int, lock: LedgerLock) -> None:
        if session.locks.get(ledger_id) == lock:
            del session.locks[ledger_id], self.locks[ledger_id]

    def drop_vote(self, session: _Session, name: str) -> None:
        if session.votes.pop(name, None) is not None:
            del self.votes[name]
            self.votes_changed()

    def votes_changed(self) -> None:
        first = next(iter(self.votes), None)
        for client in self._clients:
            if first in client.session.votes:
                self.store.tell_in_order(client.session.process, client.hear_of_election, first)

    def ledger_changed(self, number: int) -> None:
        """Tells every feed, or breaks it."""
        for client in self._clients:
            if not client.is_fed:
                continue
            process = client.session.process
            if not self._reaches(process) or self.store.rng.random() < self.feed_gaps:
                self.break_feed(client)
            else:
                self.store.tell_in_order(process, client.feeds.touched, (number,))

    def _reaches(self, process: Process) -> bool:
        return self.store.hears(process) and self.store.sees(process) is self.store

    def break_feeds_of(self, host: str) -> None:
        """Its way to the store leads elsewhere, or back."""
        for client in self._clients:
            if client.session.process.host == host and client.is_fed:
                self.break_feed(client)

    def break_feed(self, client: MemoryReplication) -> None:
        client.is_fed = False
        self.store.tell_in_order(client.session.process, client.feeds.lost)
        self.feed_soon(client, self.store.rng.uniform(*_FEED_GAP_SECONDS))

    def feed_soon(self, client: MemoryReplication, seconds: float) -> None:
        """Begins the feed of a process that wants one."""
        loop = self.store.loop
        loop.call_at_exact(loop.time() + seconds, self._feed, client, context=loop.outside.context)

    def _feed(self, client: MemoryReplication) -> None:
        process = client.session.process
        if client.is_fed or not len(client.feeds) or not process.alive:
            return
        if not self._reaches(process):
            self.feed_soon(client, _HEARTBEAT_SECONDS)
            return
        client.is_fed = True
        self.store.tell_in_order(process, client.feeds.began)

    def tell(self, event: ReplicationEvent) -> None:
        for client in self._clients:
            if len(client.listeners):
                self.store.tell_in_order(client.session.process, client.listeners.tell, event)


class MemoryReplication(ReplicationMetadata):
    """One process's way to it."""

    def __init__(self, state: ReplicationState, process: Process) -> None:
        self._state = state
        self._store = state.store
        self.session = _Session(process, self._store.loop.time())
        self.listeners = ReplicationListeners(lambda: None)
        self.feeds = LedgerFeeds(self._feed_wanted, self._caught_up)
        self.is_fed = False
        """The store tells this process of every change."""
        self._held: dict[int, LedgerLock] = {}
        """Locks that this process believes to hold."""
        self._given_back: list[LedgerLock] = []
        """Locks of which the store may not have heard yet that they are free."""
        self._votes: dict[str, Vote] = {}
        self._delay_heard = -1

    def hear_of_losses(self) -> None:
        """What the store has ended without this process; it tells what it has given back in turn."""
        self._give_back()
        for ledger_id, lock in list(self._held.items()):
            if self.session.locks.get(ledger_id) != lock:
                del self._held[ledger_id]
                self.listeners.tell(LockLost(lock))
        for name, vote in list(self._votes.items()):
            if name not in self.session.votes:
                del self._votes[name]
                vote.become(VoteState.LOST)

    def hear_of_election(self, name: str) -> None:
        vote = self._votes.get(name)
        if vote is not None:
            vote.become(VoteState.ELECTED)

    def hear_of_delay(self, written: int, seconds: int | None) -> None:
        """Each writing is told once: the same delay again orders an audit."""
        if written > self._delay_heard:
            self._delay_heard = written
            self.listeners.tell(DelayChanged(seconds))

    async def close(self) -> None:
        """Gives locks and votes back."""
        self.listeners.clear()
        self.feeds.clear()
        self.is_fed = False
        self._held.clear()
        self._votes.clear()
        self._state.end_claims(self.session)

    async def _read(self, look: Callable[[], T]) -> T:
        await self._store.request()
        found = look()
        await self._store.answer()
        return found

    async def _change(self, change: Callable[[], T]) -> T:
        await self._store.request()
        for hear in self._state.on_step:
            hear()
        outcome: T | BKException
        try:
            outcome = change()
        except BKException as error:
            outcome = error
        try:
            await self._store.answer()
        except MetaStoreException as error:
            raise UnknownOutcomeException(str(error)) from error
        if isinstance(outcome, BKException):
            raise outcome
        return outcome

    @property
    def _elsewhere(self) -> bool:
        return self._store.seen is not self._store

    # --- marks

    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int | None = None) -> Mark:
        check_markable(ledger_id)

        def put() -> Mark:
            marks = {} if self._elsewhere else self._state.marks
            before = marks.get(ledger_id)
            marked = UnderreplicatedLedger(ledger_id) if before is None else before.value
            marks[ledger_id] = Versioned(marked.with_replicas(replicas, ctime_ms), self._state.mark_version())
            if not self._elsewhere:
                self._state.tell(MarksChanged())
                for hear in self._state.on_mark:
                    hear(ledger_id, replicas)
            return marks[ledger_id]

        return await self._change(put)

    async def read_mark(self, ledger_id: int) -> Mark | None:
        return await self._read(lambda: None if self._elsewhere else self._state.marks.get(ledger_id))

    async def marks(self, start_after: int | None = None, page_size: int = 1000) -> AsyncIterator[Sequence[Mark]]:
        after = -1 if start_after is None else start_after

        def page() -> list[Mark]:
            return [] if self._elsewhere else self._state.marks.after(after, page_size)

        while found := await self._read(page):
            yield found
            after = found[-1].value.ledger_id

    async def delete_mark(self, ledger_id: int, expected_version: int) -> bool:
        def delete() -> bool:
            mark = None if self._elsewhere else self._state.marks.get(ledger_id)
            if mark is None:
                return True
            if mark.version != expected_version:
                return False
            for hear in self._state.on_unmark:
                hear(ledger_id)
            del self._state.marks[ledger_id]
            return True

        return await self._change(delete)

    # --- locks

    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        check_markable(ledger_id)
        state, lock = self._state, LedgerLock(ledger_id, self._state.token())

        def take() -> LedgerLock | None:
            if self._elsewhere or ledger_id in state.locks:
                return None
            state.lock(self.session, lock, holder)
            self._held[ledger_id] = lock
            state.claimed()
            return lock

        try:
            return await self._change(take)
        except BaseException:
            self._forget(lock)
            raise

    def _forget(self, lock: LedgerLock) -> None:
        if self._held.get(lock.ledger_id) == lock:
            del self._held[lock.ledger_id]
        self._state.drop_lock(self.session, lock.ledger_id, lock)

    async def release(self, lock: LedgerLock) -> None:
        if self._held.get(lock.ledger_id) == lock:
            del self._held[lock.ledger_id]
        self._given_back.append(lock)
        await self._change(self._give_back)

    def _give_back(self) -> None:
        """Also what an earlier call that was lost on its way has not given back."""
        for lock in self._given_back:
            self._state.drop_lock(self.session, lock.ledger_id, lock)
        self._given_back.clear()

    async def is_held(self, lock: LedgerLock) -> bool:
        return await self._read(lambda: self.session.locks.get(lock.ledger_id) == lock)

    async def lock_holders(self) -> Mapping[int, str]:
        return await self._read(lambda: {number: holder for number, (_, holder) in sorted(self._state.locks.items())})

    async def write_ledger(self, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        def write() -> LedgerRecord:
            if self._elsewhere or self.session.locks.get(lock.ledger_id) != lock:
                raise LockLostException(f"the lock of ledger {lock.ledger_id} is lost")
            ledger_id = LedgerId.of_number(lock.ledger_id)
            before = self._store.found(ledger_id)
            if before.version == expected_version:
                for hear in self._state.on_repair:
                    hear(before, metadata)
            return self._store.replace(ledger_id, metadata, expected_version)

        return await self._change(write)

    # --- the auditor

    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> AuditorVote:
        vote = Vote(voter, self._state.token(), listener, self._withdraw)

        def cast() -> None:
            if self._elsewhere:
                raise MetaStoreException("the store is another one")
            self._state.votes[vote.name] = self.session.votes[vote.name] = voter
            self._votes[vote.name] = vote
            self._state.claimed()

        try:
            await self._change(cast)
        except BaseException:
            self._votes.pop(vote.name, None)
            self._state.drop_vote(self.session, vote.name)
            raise
        if vote.name in self._votes:
            first = next(iter(self._state.votes), None) == vote.name
            vote.become(VoteState.ELECTED if first else VoteState.WAITING)
        return vote

    async def _withdraw(self, vote: Vote) -> None:
        self._votes.pop(vote.name, None)
        await self._change(lambda: self._state.drop_vote(self.session, vote.name))

    async def auditor(self) -> str | None:
        return await self._read(lambda: next(iter(self._state.votes.values()), None))

    # --- switches, times, records

    async def is_enabled(self) -> bool:
        return await self._read(lambda: self._state.enabled)

    async def set_enabled(self, enabled: bool) -> None:
        await self._change(lambda: self._state.switch(enabled))

    async def lost_bookie_delay(self) -> int | None:
        return await self._read(lambda: self._state.delay)

    async def set_lost_bookie_delay(self, seconds: int, *, only_if_absent: bool = False) -> int:
        encode_delay(seconds)

        def put() -> int:
            if self._state.delay is not None and only_if_absent:
                return self._state.delay
            self._state.set_delay(seconds)
            return seconds

        return await self._change(put)

    async def check_time(self, check: PeriodicCheck) -> int | None:
        return await self._read(lambda: self._state.check_times.get(check))

    async def set_check_time(self, check: PeriodicCheck, ctime_ms: int) -> None:
        await self._change(lambda: self._state.check_times.update({check: ctime_ms}))

    async def records(self, kind: RecordKind) -> Mapping[str, Versioned[bytes]]:
        return await self._read(
            lambda: {key: found for (of, key), found in sorted(self._state.records.items(), key=str) if of is kind}
        )

    async def read_record(self, kind: RecordKind, key: str) -> Versioned[bytes] | None:
        return await self._read(lambda: self._state.records.get((kind, key)))

    async def write_record(self, kind: RecordKind, key: str, value: bytes, expected_version: int | None) -> int:
        check_key(key)

        def put() -> int:
            found = self._state.records.get((kind, key))
            if expected_version != ANY_VERSION and (found.version if found else None) != expected_version:
                raise record_conflict(kind, key, expected_version)
            version = 0 if found is None else found.version + 1
            self._state.records[kind, key] = Versioned(value, version)
            for hear in self._state.on_record:
                hear(kind, key, value)
            self._tell_of(kind)
            return version

        return await self._change(put)

    async def remove_record(self, kind: RecordKind, key: str, expected_version: int = ANY_VERSION) -> None:
        def remove() -> None:
            found = self._state.records.get((kind, key))
            if found is None:
                return
            if expected_version not in (ANY_VERSION, found.version):
                raise record_conflict(kind, key, expected_version)
            del self._state.records[kind, key]
            self._state.removed_records[kind, key] = self._state.store.loop.time(), found.value
            self._tell_of(kind)

        await self._change(remove)

    def _tell_of(self, kind: RecordKind) -> None:
        if kind is RecordKind.DRAINING_BOOKIE:
            self._state.tell(DrainsChanged())

    # --- changes

    def watch(self, listener: ReplicationListener) -> Callable[[], None]:
        if not len(self.listeners):
            self._delay_heard = -1
        end = self.listeners.add(listener)
        state = self._state
        self._store.tell_in_order(self.session.process, self.listeners.tell, SwitchChanged(state.enabled))
        self._store.tell_in_order(self.session.process, self.hear_of_delay, state.delay_written, state.delay)
        return end

    def watch_ledgers(self, listener: LedgerFeedListener) -> LedgerFeed:
        return self.feeds.add(listener)

    def _feed_wanted(self) -> None:
        if len(self.feeds):
            self._state.feed_soon(self, _FEED_GAP_SECONDS[0])
        else:
            self.is_fed = False

    async def _caught_up(self) -> None:
        await self._store.request()
        if not self.is_fed:
            raise MetaStoreException("the feed of changed ledgers is broken")
        told = asyncio.get_running_loop().create_future()
        self._store.tell_in_order(self.session.process, told.set_result, None)
        await told
