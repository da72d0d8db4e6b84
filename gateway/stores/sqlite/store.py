"""The SQLite file behind the embedded metadata store: schema, transactions, and the two threads that access it.

Tables:

* `meta` - single values: the cluster's instance id, the next ledger id, the global revision.
* `ledgers` - one row per ledger. The key is 16 bytes, scope then ledger id, big-endian, so that scopes never alias (D1)
  and byte order is the order of unsigned ids. The metadata has the same bytes as a znode would have.
* `cookies`, `registrations` - the bookies' data; a registration is a lease (see `registration`).
* `replication_marks`, `replication_scoped_marks`, `replication_values`, `replication_claims` - auto-recovery's marks,
  those of ledgers with a scope by the keys of `ledgers`, its switches, times and records, and its locks and votes,
  which are leases. Files of earlier versions get these tables when they are opened.
* `changes` - what changed at which revision, so that other processes can notify their listeners. Only the newest
  `CHANGES_KEPT` rows stay; a process that missed older ones reads everything anew.

Every change happens in one IMMEDIATE transaction that also raises the global revision by one and is on disk
(synchronous=FULL) when the call returns. Versions are ZooKeeper's: 0 at creation, one more after each change.

Two threads per process access the tables, each by a connection of its own; asyncio code passes functions to them. One
makes the changes, those that keep a lease first (see `store_thread`), and waits for the write lock that the processes
share. The other reads, and because of WAL it never waits for a change: not for those of this process, nor for a process
that was stopped inside a transaction. Such a process holds up the changes of all others, so leases end meanwhile. A
read sees one state, with every change whose caller was told its end before the read began.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import sqlite3
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from bookgate.gateway.stores.cluster_admin import NO_SETTINGS
from bookgate.gateway.stores.sqlite.store_thread import StoreThread
from bookgate.ledger.errors import LedgerExistException, MetaStoreException, UnknownOutcomeException
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.logs import log_event

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

SCHEMA_VERSION = 1
APPLICATION_ID = 0x626F6F6B
CHANGES_KEPT = 10_000
_BUSY_TIMEOUT_SECONDS = 10.0
_LOOK_FOR_LOCK_SECONDS = 0.001
"""SQLite looks ten times a second, but other processes under load leave the write lock free for a fraction of a
millisecond between two transactions: it could miss all of these moments for longer than a lease."""
_LOOK_FOR_ROOM_SECONDS = 1.0

LEDGER_CHANGE = 0
BOOKIES_CHANGE = 1
REPLICATION_CHANGE = 2

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE ledgers (
    key BLOB PRIMARY KEY, version INTEGER NOT NULL, created_revision INTEGER NOT NULL,
    metadata BLOB NOT NULL, created_ms INTEGER);
CREATE TABLE cookies (bookie_id TEXT PRIMARY KEY, version INTEGER NOT NULL, content BLOB NOT NULL);
CREATE TABLE registrations (
    bookie_id TEXT PRIMARY KEY, read_only INTEGER NOT NULL, content BLOB NOT NULL,
    owner TEXT NOT NULL, process TEXT NOT NULL, expires_at_ms INTEGER NOT NULL);
CREATE TABLE changes (revision INTEGER PRIMARY KEY, kind INTEGER NOT NULL, key BLOB);
"""

_REPLICATION_SCHEMA = """
CREATE TABLE IF NOT EXISTS replication_marks (
    ledger_id INTEGER PRIMARY KEY, version INTEGER NOT NULL, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS replication_scoped_marks (
    key BLOB PRIMARY KEY, version INTEGER NOT NULL, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS replication_values (
    kind TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS replication_claims (
    kind TEXT NOT NULL, key INTEGER NOT NULL, number INTEGER NOT NULL, content BLOB NOT NULL,
    owner TEXT NOT NULL, process TEXT NOT NULL, expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""


class ReplicationChange(enum.IntEnum):
    """The kinds of changes in auto-recovery's metadata."""

    MARKS = 0
    SWITCH = 1
    """The switch, or the bookies to be emptied."""
    DELAY = 2
    CLAIMS = 3


class SqliteStore:
    """One open database file. Every method may be called from the event loop; none blocks it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.on_commit: Callable[[], None] = lambda: None
        """Called on the event loop after each change made here, even if its caller did not wait for it."""
        self._connection: sqlite3.Connection | None = None
        """Makes the changes, on the thread of changes."""
        self._reading: sqlite3.Connection | None = None
        """Opened and closed on the thread of changes, used by that of reads in between."""
        self._glance: sqlite3.Connection | None = None
        """Opened and closed on the thread of changes, used by the event loop in between."""
        self._changes = StoreThread("metadata-sqlite")
        self._reads = StoreThread("metadata-sqlite-reads")
        self._healthy = False
        self._closed = False
        self._looking_for_room: asyncio.Task[None] | None = None

    @property
    def writable(self) -> bool:
        """False from a change that the file system rejected (no space, read-only) until one that succeeds."""
        return self._looking_for_room is None

    @property
    def healthy(self) -> bool:
        """False before `open`, after `close`, and after an operation that failed because of the file system."""
        return self._healthy

    async def open(self) -> None:
        """Opens a cluster's file. Raises MetaStoreException, which names the file, also if it is not a cluster's."""
        await self._run(self._changes, lambda: self._open(_check))

    async def create(self, settings: Mapping[str, bytes] = NO_SETTINGS) -> None:
        """Creates a new cluster with these records of `RecordKind.SETTING` in an empty file, and opens it.

        Raises like `open`, and LedgerExistException.
        """
        await self._run(self._changes, lambda: self._open(partial(_create, settings)))

    async def close(self) -> None:
        """Releases the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._healthy = False
        if self._looking_for_room is not None:
            self._looking_for_room.cancel()
            await asyncio.gather(self._looking_for_room, return_exceptions=True)
        last_read = self._reads.submit_last(lambda: None)
        await asyncio.wrap_future(self._changes.submit_last(lambda: self._close(last_read)))
        self._reads.shutdown()
        self._changes.shutdown()

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `operation` as a reader of one state, which waits for no change.

        Raises MetaStoreException when the file can't be read.
        """
        return await self._run(self._reads, lambda: self._look(operation))

    def data_version(self) -> int | None:
        """A number that changes with every commit, of this process or another; None if it can't be had at once.

        It reads no table and waits for no lock (`PRAGMA data_version`: 4 µs), so it is asked on the event loop: a trip
        to the thread of reads costs as much as twenty of them.
        """
        if self._glance is None or self._closed:
            return None
        try:
            version: int = self._glance.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return version

    async def change(self, operation: Callable[[Transaction], T], *, keeps_lease: bool = False) -> T:
        """Runs `operation` in one transaction that is on disk on return; an exception rolls it back.

        One that keeps a lease goes before all others that wait.
        """
        loop = asyncio.get_running_loop()

        def transact() -> T:
            try:
                return self._transact(operation)
            finally:
                # Called from here, since the caller may be cancelled while the change goes on.
                loop.call_soon_threadsafe(self.on_commit)

        try:
            return await self._run(self._changes, transact, keeps_lease=keeps_lease)
        except MetaStoreException as error:
            if _takes_no_change(error.__cause__) and self.writable and not self._closed:
                self._report_no_change(error)
                self._looking_for_room = asyncio.get_running_loop().create_task(self._look_for_room())
            raise

    def _report_no_change(self, error: MetaStoreException) -> None:
        note = "it can be read, not changed"
        if _is_want_of_room(error.__cause__):
            log_event(_LOG, "metadata_disk_full", logging.ERROR, path=self.path, note=note)
        else:
            log_event(_LOG, "metadata_not_writable", logging.ERROR, path=self.path, error=error, note=note)

    async def _look_for_room(self) -> None:
        """Tries until a change succeeds: callers may send no changes while they know that the store accepts none."""
        while not self._closed:
            await asyncio.sleep(_LOOK_FOR_ROOM_SECONDS)
            try:
                # More than most changes need, in a transaction of its own, because data that is removed at once is not
                # written.
                await self._run(self._changes, lambda: self._transact(_fill_room))
                await self._run(self._changes, lambda: self._transact(_leave_room))
            except MetaStoreException:
                continue
            log_event(_LOG, "metadata_disk_has_room", path=self.path)
            self._looking_for_room = None
            return

    async def _run(self, thread: StoreThread, operation: Callable[[], T], *, keeps_lease: bool = False) -> T:
        if self._closed:
            raise MetaStoreException(f"the metadata database {self.path} is closed")
        try:
            outcome = thread.submit(operation, keeps_lease=keeps_lease)
        except RuntimeError as error:
            raise MetaStoreException(f"the metadata database {self.path} can't be used: {error}") from error
        try:
            result = await asyncio.wrap_future(outcome)
        except sqlite3.Error as error:
            # Reads are still possible.
            self._healthy = _takes_no_change(error) and not self._closed
            raise MetaStoreException(
                f"the metadata database {self.path} can't be used: {error}{_advice(error)}"
            ) from error
        self._healthy = self._connection is not None and not self._closed
        return result

    # --- on the thread of reads ---------------------------------------------------------------------------------

    def _look(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._opened(self._reading)
        # Between two statements of their own, changes could be committed.
        connection.execute("BEGIN")
        try:
            return operation(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    # --- on the thread of changes -------------------------------------------------------------------------------

    def _opened(self, connection: sqlite3.Connection | None) -> sqlite3.Connection:
        if connection is None:
            raise MetaStoreException(f"the metadata database {self.path} is not open")
        return connection

    def _open(self, establish: Callable[[sqlite3.Connection, str], None]) -> None:
        # SQLite would create the file.
        if not Path(self.path).is_file():
            raise _no_cluster(self.path)
        connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            _in_one_transaction(connection, lambda: establish(connection, self.path))
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
            # From here on only the beginning of a transaction waits for others, as `_begin` does.
            connection.execute("PRAGMA busy_timeout=0")
            glance = self._elsewhere(timeout=0)
            reading = self._elsewhere(timeout=_BUSY_TIMEOUT_SECONDS)
        except BaseException:
            connection.close()
            raise
        self._connection, self._glance, self._reading = connection, glance, reading

    def _elsewhere(self, timeout: float) -> sqlite3.Connection:
        """A connection that another thread uses."""
        return sqlite3.connect(self.path, timeout=timeout, isolation_level=None, check_same_thread=False)

    def _close(self, last_read: Future[None]) -> None:
        last_read.result()
        for connection in (self._glance, self._reading, self._connection):
            if connection is not None:
                connection.close()
        self._glance = self._reading = self._connection = None

    def _transact(self, operation: Callable[[Transaction], T]) -> T:
        connection = self._opened(self._connection)
        _begin(connection)
        try:
            result = operation(Transaction(connection))
        except BaseException:
            # SQLite rolls back some transactions by itself, for example when the disk is full.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                raise
            raise UnknownOutcomeException(f"the metadata database {self.path} failed to commit: {error}") from error
        return result


def _begin(connection: sqlite3.Connection) -> None:
    """Begins a change, once no other process makes one. Raises sqlite3.Error if that takes too long."""
    end = time.monotonic() + _BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(_LOOK_FOR_LOCK_SECONDS)


def _is_want_of_room(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


_NOT_WRITTEN = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}
"""SQLite's errors for a file system that became read-only, and for a broken one."""


def _takes_no_change(error: BaseException | None) -> bool:
    """Whether the error affects changes only, for whatever reason of the file system."""
    code = getattr(error, "sqlite_errorcode", 0) if isinstance(error, sqlite3.Error) else 0
    return _is_want_of_room(error) or code in _NOT_WRITTEN or code & 0xFF == sqlite3.SQLITE_READONLY


def _advice(error: sqlite3.Error) -> str:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return ""
    return (
        f"; give it and its directory to this process's user ({os.geteuid()}), on a file system that is not read-only"
    )


def _fill_room(transaction: Transaction) -> None:
    transaction.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('room', zeroblob(65536))")


def _leave_room(transaction: Transaction) -> None:
    transaction.execute("DELETE FROM meta WHERE name = 'room'")


class Transaction:
    """The operations of a change: SQL, and one new revision for each changed object."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute

    def ledger_changed(self, key: bytes) -> int:
        """Records the change of a ledger; returns its revision."""
        return self._changed(LEDGER_CHANGE, key)

    def bookies_changed(self) -> int:
        """Records a change of cookies or registrations; returns its revision."""
        return self._changed(BOOKIES_CHANGE, None)

    def replication_changed(self, what: ReplicationChange) -> int:
        """Records a change of auto-recovery's metadata; returns its revision.

        Its key has the form of a ledger's, which earlier versions that share the file expect of keys unknown to them.
        """
        return self._changed(REPLICATION_CHANGE, struct.pack(">qq", 0, what))

    def _changed(self, kind: int, key: bytes | None) -> int:
        revision: int = self.execute(
            "UPDATE meta SET value = value + 1 WHERE name = 'revision' RETURNING value"
        ).fetchone()[0]
        self.execute("INSERT INTO changes (revision, kind, key) VALUES (?, ?, ?)", (revision, kind, key))
        self.execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_KEPT,))
        return revision


def revision_of(connection: sqlite3.Connection) -> int:
    """The global revision: the number of all changes ever made."""
    revision: int = connection.execute("SELECT value FROM meta WHERE name = 'revision'").fetchone()[0]
    return revision


def _no_cluster(path: str) -> MetaStoreException:
    return MetaStoreException(
        f"there is no cluster at {path}; is the path right, and its file system mounted? If there is to be a new "
        "cluster, `bookgate cluster init` makes it"
    )


def _in_one_transaction(connection: sqlite3.Connection, work: Callable[[], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work()
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: str) -> None:
    """Raises MetaStoreException if the file is not a cluster's, or of another version."""
    if not _is_cluster(connection, path):
        raise _no_cluster(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise MetaStoreException(
            f"the metadata database {path} has schema version {version}, this program knows {SCHEMA_VERSION}; "
            "use the version of Bookgate that wrote it"
        )
    _add_creation_time(connection)
    _add_replication(connection)


def _is_cluster(connection: sqlite3.Connection, path: str) -> bool:
    """False for an empty file. Raises MetaStoreException for a database with other contents."""
    if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
        return True
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise MetaStoreException(f"{path} is a database of something else, not a metadata database")
    return False


def _add_creation_time(connection: sqlite3.Connection) -> None:
    """Adds the column that files of the first version lack. That version can still use the file, because the column is
    optional.
    """
    columns = {row[1] for row in connection.execute("PRAGMA table_info(ledgers)")}
    if "created_ms" not in columns:
        connection.execute("ALTER TABLE ledgers ADD COLUMN created_ms INTEGER")


def _add_replication(connection: sqlite3.Connection) -> None:
    for statement in _REPLICATION_SCHEMA.split(";"):
        connection.execute(statement)


def _create(settings: Mapping[str, bytes], connection: sqlite3.Connection, path: str) -> None:
    """Creates the cluster; of several concurrent attempts one succeeds. Raises LedgerExistException,
    MetaStoreException.
    """
    if _is_cluster(connection, path):
        raise LedgerExistException(f"{path} is a cluster's already; to begin anew, use `bookgate cluster nuke` first")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    _add_replication(connection)
    connection.executemany(
        "INSERT INTO meta (name, value) VALUES (?, ?)",
        [("instance_id", str(uuid.uuid4())), ("revision", 0), ("next_ledger_id", 0)],
    )
    connection.executemany(
        "INSERT INTO replication_values (kind, key, version, content) VALUES (?, ?, 0, ?)",
        [(RecordKind.SETTING.value, key, content) for key, content in settings.items()],
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
