"""Auto-recovery's metadata in the embedded store: rows with the bytes that ZooKeeper's nodes would have.

Source: docs/protocol/auto-recovery.md#contents. Not its job: how locks and votes end (`claims`).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from bookgate.gateway.stores.sqlite.claims import (
    LOCK,
    SCOPED_LOCK,
    VOTE,
    Claim,
    ClaimRow,
    SqliteReplicationClaims,
    number_of_key,
)
from bookgate.gateway.stores.sqlite.ledger_manager import replace_metadata
from bookgate.gateway.stores.sqlite.registration import DEFAULT_LEASE_SECONDS
from bookgate.gateway.stores.sqlite.store import ReplicationChange, SqliteStore, Transaction
from bookgate.ledger.errors import BKException, IllegalOpException, LockLostException
from bookgate.ledger.ledger_id import MAX_UNSCOPED, LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerRecord, Versioned
from bookgate.ledger.replication import (
    PeriodicCheck,
    UnderreplicatedLedger,
    check_markable,
    decode_delay,
    decode_lock,
    decode_vote,
    encode_delay,
    encode_lock,
    encode_vote,
)
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
    ReplicationListener,
    ReplicationMetadata,
    SwitchChanged,
    VoteListener,
    VoteState,
    check_key,
    record_conflict,
)
from bookgate.runtime.auditor_votes import Vote
from bookgate.runtime.background import keep_running
from bookgate.runtime.ledger_feeds import LedgerFeeds
from bookgate.runtime.logs import log_event
from bookgate.runtime.replication_listeners import ReplicationListeners

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_CLUSTER = "cluster"
"""Kind of the values that BookKeeper has too: switch, delay, times of checks."""
_DISABLE, _DELAY = "disable", "lostBookieRecoveryDelay"
_UNWRITTEN = -1
"""Version of a delay that was never set."""


class SqliteReplicationMetadata(ReplicationMetadata):
    """See the module. The factory reports changes to it."""

    def __init__(
        self,
        store: SqliteStore,
        interest_changed: Callable[[], None],
        catch_up: Callable[[], Awaitable[None]],
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
    ) -> None:
        """`interest_changed` is called when listeners come or go; `catch_up` returns when all changes were reported."""
        self._store = store
        self._interest_changed = interest_changed
        self.listeners = ReplicationListeners(self._listeners_changed)
        self._feeds = LedgerFeeds(self._feeds_changed, catch_up)
        self._claims = SqliteReplicationClaims(store, self._claim_lost, interest_changed, lease_seconds)
        self._votes: dict[Claim, Vote] = {}
        self._due: set[ReplicationChange] = set()
        self._delay_notified: int | None = None
        """The version of the delay that was reported last."""
        self._wake = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @property
    def wants_changes(self) -> bool:
        """Whether this process has listeners, or holds a lock or a vote, and so needs to be notified of changes."""
        return len(self._claims) > 0 or len(self.listeners) > 0 or len(self._feeds) > 0

    def ledgers_changed(self, ledger_ids: Collection[int] | None) -> None:
        """Reports that ledgers, by their numbers, have changed; None: it is unknown which."""
        if ledger_ids is not None:
            self._feeds.touched(ledger_ids)
        elif len(self._feeds):
            self._feeds.lost()
            self._feeds.began()

    def changed(self, what: Collection[ReplicationChange]) -> None:
        """Reads what has changed, and reports it."""
        if not what or not (len(self.listeners) or len(self._claims)):
            return
        self._due.update(what)
        self._wake.set()
        if self._reader is None:
            self._reader = keep_running("changes of auto-recovery", self._read_changes)

    async def close(self) -> None:
        """Releases locks and votes."""
        self.listeners.clear()
        self._feeds.clear()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._claims.close()

    # --- marks --------------------------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int | None = None) -> Mark:
        check_markable(ledger_id)

        def put(transaction: Transaction) -> Mark:
            before = _mark(transaction, ledger_id)
            marked = UnderreplicatedLedger(ledger_id) if before is None else before.value
            mark = marked.with_replicas(replicas, ctime_ms)
            # Not the number of writes: a mark that is made anew would have the versions of the one that was deleted.
            version = transaction.replication_changed(ReplicationChange.MARKS)
            table, column, key = _place(ledger_id)
            transaction.execute(
                f"INSERT OR REPLACE INTO {table} ({column}, version, content) VALUES (?, ?, ?)",
                (key, version, mark.encode()),
            )
            return Versioned(mark, version)

        return await self._store.change(put)

    async def read_mark(self, ledger_id: int) -> Mark | None:
        check_markable(ledger_id)
        return await self._store.read(lambda connection: _mark(connection, ledger_id))

    async def marks(self, start_after: int | None = None, page_size: int = 1000) -> AsyncIterator[Sequence[Mark]]:
        last = -1 if start_after is None else start_after
        while page := await self._store.read(partial(_marks_after, last, page_size)):
            yield page
            last = page[-1].value.ledger_id

    async def delete_mark(self, ledger_id: int, expected_version: int) -> bool:
        def delete(transaction: Transaction) -> bool:
            table, column, key = _place(ledger_id)
            row = transaction.execute(f"SELECT version FROM {table} WHERE {column} = ?", (key,)).fetchone()
            if row is None or row[0] != expected_version:
                return row is None
            transaction.replication_changed(ReplicationChange.MARKS)
            transaction.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))
            return True

        check_markable(ledger_id)
        return await self._store.change(delete)

    # --- locks and votes ----------------------------------------------------------------------------------------

    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        claim = await self._claims.claim(_kind_of_lock(ledger_id), check_markable(ledger_id), encode_lock(holder))
        return None if claim is None else _lock(claim)

    async def release(self, lock: LedgerLock) -> None:
        await self._claims.give_up(_claim(lock))

    async def is_held(self, lock: LedgerLock) -> bool:
        return await self._claims.stands(_claim(lock))

    async def lock_holders(self) -> Mapping[int, str]:
        rows = [*await self._claims.standing(LOCK), *await self._claims.standing(SCOPED_LOCK)]
        return {row.claim.key: decode_lock(row.content) for row in rows}

    async def write_ledger(self, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        ledger_id, data, claim = LedgerId.of_number(lock.ledger_id), encode(metadata), _claim(lock)

        def write(transaction: Transaction) -> None:
            if not self._claims.is_own(transaction, claim):
                raise LockLostException(f"the lock of ledger {ledger_id} is lost: nothing was written under it")
            # Numbers of claims are revisions, too: what was read under the lock was not of a ledger that came later.
            replace_metadata(transaction, ledger_id, data, expected_version, created_before=claim.number)

        try:
            await self._store.change(write)
        except LockLostException:
            self._claims.lose(claim)
            raise
        return LedgerRecord(ledger_id, metadata, expected_version + 1)

    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> AuditorVote:
        claim = await self._claims.claim(VOTE, None, encode_vote(voter))
        assert claim is not None, "a vote is a row of its own"

        async def take_back(vote: Vote) -> None:
            self._votes.pop(claim, None)
            await self._claims.give_up(claim)

        vote = Vote(voter, str(claim.number), listener, take_back)
        self._votes[claim] = vote
        self.changed([ReplicationChange.CLAIMS])
        return vote

    async def auditor(self) -> str | None:
        votes = await self._claims.standing(VOTE)
        return decode_vote(votes[0].content) if votes else None

    # --- switches, times, records -------------------------------------------------------------------------------

    async def is_enabled(self) -> bool:
        return await self._value(_CLUSTER, _DISABLE) is None

    async def set_enabled(self, enabled: bool) -> None:
        def switch(transaction: Transaction) -> None:
            if (_value(transaction, _CLUSTER, _DISABLE) is None) == enabled:
                raise IllegalOpException(f"auto-recovery is {'enabled' if enabled else 'disabled'} already")
            transaction.replication_changed(ReplicationChange.SWITCH)
            if enabled:
                _remove(transaction, _CLUSTER, _DISABLE)
            else:
                _put(transaction, _CLUSTER, _DISABLE, b"", 0)

        await self._store.change(switch)

    async def lost_bookie_delay(self) -> int | None:
        found = await self._value(_CLUSTER, _DELAY)
        return None if found is None else decode_delay(found.value)

    async def set_lost_bookie_delay(self, seconds: int, *, only_if_absent: bool = False) -> int:
        content = encode_delay(seconds)

        def put(transaction: Transaction) -> int:
            found = _value(transaction, _CLUSTER, _DELAY)
            if found is not None and only_if_absent:
                return decode_delay(found.value)
            transaction.replication_changed(ReplicationChange.DELAY)
            _put(transaction, _CLUSTER, _DELAY, content, 0 if found is None else found.version + 1)
            return seconds

        return await self._store.change(put)

    async def check_time(self, check: PeriodicCheck) -> int | None:
        found = await self._value(_CLUSTER, check.value)
        return None if found is None else check.decode(found.value)

    async def set_check_time(self, check: PeriodicCheck, ctime_ms: int) -> None:
        await self._store.change(
            lambda transaction: _put(transaction, _CLUSTER, check.value, check.encode(ctime_ms), 0)
        )

    async def records(self, kind: RecordKind) -> Mapping[str, Versioned[bytes]]:
        def select(connection: sqlite3.Connection) -> dict[str, Versioned[bytes]]:
            rows = connection.execute(
                "SELECT key, content, version FROM replication_values WHERE kind = ? ORDER BY key", (kind.value,)
            )
            return {key: Versioned(content, version) for key, content, version in rows}

        return await self._store.read(select)

    async def read_record(self, kind: RecordKind, key: str) -> Versioned[bytes] | None:
        return await self._value(kind.value, check_key(key))

    async def write_record(self, kind: RecordKind, key: str, value: bytes, expected_version: int | None) -> int:
        check_key(key)

        def put(transaction: Transaction) -> int:
            found = _value(transaction, kind.value, key)
            version = None if found is None else found.version
            if expected_version not in (ANY_VERSION, version):
                raise record_conflict(kind, key, expected_version)
            written = 0 if version is None else version + 1
            _put(transaction, kind.value, key, value, written)
            _tell_of(transaction, kind)
            return written

        return await self._store.change(put)

    async def remove_record(self, kind: RecordKind, key: str, expected_version: int = ANY_VERSION) -> None:
        check_key(key)

        def remove(transaction: Transaction) -> None:
            found = _value(transaction, kind.value, key)
            if found is None:
                return
            if expected_version not in (ANY_VERSION, found.version):
                raise record_conflict(kind, key, expected_version)
            _remove(transaction, kind.value, key)
            _tell_of(transaction, kind)

        await self._store.change(remove)

    async def _value(self, kind: str, key: str) -> Versioned[bytes] | None:
        return await self._store.read(lambda connection: _value(connection, kind, key))

    # --- changes ------------------------------------------------------------------------------------------------

    def watch(self, listener: ReplicationListener) -> Callable[[], None]:
        return self.listeners.add(listener)

    def watch_ledgers(self, listener: LedgerFeedListener) -> LedgerFeed:
        return self._feeds.add(listener)

    def _feeds_changed(self) -> None:
        self._interest_changed()
        if len(self._feeds):
            # The next report covers everything since somebody last listened.
            self._feeds.began()

    def _listeners_changed(self) -> None:
        self._delay_notified = None
        self._interest_changed()
        self.changed([ReplicationChange.SWITCH, ReplicationChange.DELAY])

    def _claim_lost(self, claim: Claim) -> None:
        vote = self._votes.pop(claim, None)
        if vote is not None:
            vote.become(VoteState.LOST)
        if claim.kind != VOTE:
            self.listeners.tell(LockLost(_lock(claim)))

    async def _read_changes(self) -> None:
        """Processes one change after the other; also checks when the next vote would expire, which no change
        reports.
        """
        next_look: float | None = None
        while True:
            try:
                async with asyncio.timeout(next_look):
                    await self._wake.wait()
            except TimeoutError:
                self._due.add(ReplicationChange.CLAIMS)
            self._wake.clear()
            due, self._due = self._due, set()
            try:
                await self._tell(due)
                next_look = await self._follow_election()
            except BKException as error:
                log_event(_LOG, "auto_recovery_not_watched", logging.WARNING, error=error, note="it is tried again")
                self._due |= due
                next_look = _RETRY_SECONDS

    async def _tell(self, due: Collection[ReplicationChange]) -> None:
        if ReplicationChange.CLAIMS in due:
            await self._claims.look()
        if ReplicationChange.SWITCH in due:
            self.listeners.tell(SwitchChanged(await self.is_enabled()))
            self.listeners.tell(DrainsChanged())
        if ReplicationChange.DELAY in due:
            await self._tell_delay()
        if ReplicationChange.MARKS in due:
            self.listeners.tell(MarksChanged())

    async def _tell_delay(self) -> None:
        """Reports each write of the delay once, however often it is read: writing the same delay again requests an
        audit.
        """
        found = await self._value(_CLUSTER, _DELAY)
        written = _UNWRITTEN if found is None else found.version
        if written != self._delay_notified:
            self._delay_notified = written
            self.listeners.tell(DelayChanged(None if found is None else decode_delay(found.value)))

    async def _follow_election(self) -> float | None:
        """Reports the state of this process's votes; returns the seconds until the next check."""
        if not self._votes:
            return None
        standing = await self._claims.standing(VOTE)
        for place, row in enumerate(standing):
            vote = self._votes.get(row.claim)
            if vote is not None:
                vote.become(VoteState.WAITING if place else VoteState.ELECTED)
        return self._until_end(standing[0]) if standing else _RETRY_SECONDS

    def _until_end(self, first: ClaimRow) -> float:
        """Seconds until the first vote's lease ends, but not less than a minimum below which a check is pointless."""
        return max(0.05, (first.expires_at_ms - self._claims.now_ms() + 1) / 1000)


def _lock(claim: Claim) -> LedgerLock:
    return LedgerLock(claim.key, str(claim.number))


def _claim(lock: LedgerLock) -> Claim:
    return Claim(_kind_of_lock(lock.ledger_id), lock.ledger_id, int(lock.token) if lock.token.isdigit() else 0)


def _mark(connection: sqlite3.Connection | Transaction, ledger_id: int) -> Mark | None:
    table, column, key = _place(ledger_id)
    row = connection.execute(f"SELECT content, version FROM {table} WHERE {column} = ?", (key,)).fetchone()
    return None if row is None else Versioned(UnderreplicatedLedger.decode(ledger_id, row[0]), row[1])


def _marks_after(last: int, most: int, connection: sqlite3.Connection) -> list[Mark]:
    """The marks above a number, a page of one table."""
    for start in (last, max(last, MAX_UNSCOPED + 1)):
        table, column, key = _place(start)
        rows = connection.execute(
            f"SELECT {column}, version, content FROM {table} WHERE {column} > ? ORDER BY {column} LIMIT ?", (key, most)
        ).fetchall()
        if rows:
            return [
                Versioned(UnderreplicatedLedger.decode(number_of_key(stored), content), version)
                for stored, version, content in rows
            ]
    return []


def _place(number: int) -> tuple[str, str, int | bytes]:
    """Table, column and key of a ledger's mark."""
    if number <= MAX_UNSCOPED:
        return "replication_marks", "ledger_id", number
    return "replication_scoped_marks", "key", number.to_bytes(16)


def _kind_of_lock(number: int) -> str:
    return LOCK if number <= MAX_UNSCOPED else SCOPED_LOCK


def _value(connection: sqlite3.Connection | Transaction, kind: str, key: str) -> Versioned[bytes] | None:
    row = connection.execute(
        "SELECT content, version FROM replication_values WHERE kind = ? AND key = ?", (kind, key)
    ).fetchone()
    return None if row is None else Versioned(row[0], row[1])


def _put(transaction: Transaction, kind: str, key: str, content: bytes, version: int) -> None:
    transaction.execute(
        "INSERT OR REPLACE INTO replication_values (kind, key, version, content) VALUES (?, ?, ?, ?)",
        (kind, key, version, content),
    )


def _tell_of(transaction: Transaction, kind: RecordKind) -> None:
    """Records the change as a kind that older processes know, because they would fail on an unknown one."""
    if kind is RecordKind.DRAINING_BOOKIE:
        transaction.replication_changed(ReplicationChange.SWITCH)


def _remove(transaction: Transaction, kind: str, key: str) -> None:
    transaction.execute("DELETE FROM replication_values WHERE kind = ? AND key = ?", (kind, key))
