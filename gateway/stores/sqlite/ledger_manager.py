"""Ledger metadata in SQLite, with the outcomes and versions of ZooKeeper."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from bookgate.gateway.stores.ledger_listeners import IncarnatedRecord, LedgerListeners
from bookgate.gateway.stores.sqlite.change_feed import ledger_id_of, ledger_key, lows_of
from bookgate.gateway.stores.sqlite.store import SqliteStore, Transaction
from bookgate.ledger.errors import (
    BKException,
    LedgerExistException,
    LedgerIdOverflowException,
    MetadataFormatException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import HALF_MASK, LedgerId, scope_of
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import decode, encode
from bookgate.ledger.metadata_store import (
    CreateRequest,
    LedgerManager,
    LedgerMetadataListener,
    LedgerRecord,
    RawLedgerRecord,
    made_anew,
)

_RUN = 10_000
"""Ledgers per query of a listing."""

_TOGETHER = 500
"""Ledgers in one transaction, whose end other writers have to wait for."""

_LARGEST_ID = (1 << 63) - 1
_LAST_SCOPE = -1
"""The last scope in the unsigned order."""


class SqliteLedgerManager(LedgerManager):
    """See the module. `LedgerListeners` serves the listeners; the factory reports changes to it."""

    def __init__(self, store: SqliteStore, interest_changed: Callable[[], None]) -> None:
        self._store = store
        self._interest_changed = interest_changed
        self.listeners = LedgerListeners(self._read_stored, lambda _: interest_changed())

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        data = encode(metadata)
        return await self._store.change(lambda transaction: _insert(transaction, ledger_id, metadata, data))

    async def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        """Creates up to `_TOGETHER` ledgers per transaction; a failed creation leaves nothing behind in it."""
        results: list[LedgerRecord | BKException] = []
        for start in range(0, len(requests), _TOGETHER):
            part = requests[start : start + _TOGETHER]
            try:
                results += await self._store.change(_inserts(part))
            except BKException as error:
                results += [error] * len(part)
        return results

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        stored = await self._read_stored(ledger_id)
        if stored is None:
            raise _missing(ledger_id)
        return stored.marked()

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        results: list[LedgerRecord | BKException] = []
        for start in range(0, len(ledger_ids), _TOGETHER):
            part = ledger_ids[start : start + _TOGETHER]
            rows = await self._store.read(partial(_rows, ledger_ids=part))
            results += [_record_or_error(ledger_id, row) for ledger_id, row in zip(part, rows, strict=True)]
        return results

    async def read_listed(self, ledger_ids: Sequence[LedgerId], max_bytes: int) -> list[RawLedgerRecord | BKException]:
        """One query per `_TOGETHER` ledgers. Ledgers between two listed ones are listed too, or were created since."""
        results: list[RawLedgerRecord | BKException] = []
        size = 0
        for start in range(0, len(ledger_ids), _TOGETHER):
            part = ledger_ids[start : start + _TOGETHER]
            # Records are made on the store's thread: of many listings at once, the loop would make all in one turn.
            found, size = await self._store.read(partial(_listed, ledger_ids=part, size=size, max_bytes=max_bytes))
            results += found
            if size >= max_bytes:
                return results
        return results

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        data = encode(metadata)
        created = await self._store.change(lambda change: replace_metadata(change, ledger_id, data, expected_version))
        return LedgerRecord(ledger_id, metadata, expected_version + 1, incarnation=created)

    async def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        if record.incarnation is None:
            return await super().write_to(record, metadata)
        data, created = encode(metadata), record.incarnation
        await self._store.change(
            lambda change: replace_metadata(change, record.ledger_id, data, record.version, created=created)
        )
        return LedgerRecord(record.ledger_id, metadata, record.version + 1, incarnation=created)

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        await self._store.change(lambda transaction: _delete(transaction, ledger_id, expected_version))

    async def remove_record(self, record: LedgerRecord) -> None:
        if record.incarnation is None:
            await super().remove_record(record)
            return
        await self._store.change(
            lambda transaction: _delete(transaction, record.ledger_id, record.version, record.incarnation)
        )

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        last = ledger_key(LedgerId(scope_id, -1)) if scope_id else ledger_key(LedgerId(0, _LARGEST_ID))
        first = ledger_key(LedgerId(scope_id, 0))
        if start_after is not None and not (scope_id == 0 and start_after < 0):
            first = ledger_key(LedgerId(scope_id, start_after)) + b"\0"
        if end_before is not None:
            if scope_id == 0 and end_before <= 0:
                return
            last = _before(ledger_key(LedgerId(scope_id, end_before)))
        while True:
            keys = await self._store.read(_page(first, last))
            if keys:
                yield lows_of(keys)
            if len(keys) < _RUN:
                return
            first = keys[-1] + b"\0"

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        while start_after != _LAST_SCOPE:
            found = await self._store.read(_scopes_after(start_after))
            if found:
                yield found
            if len(found) < _RUN:
                return
            start_after = found[-1]

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.add(ledger_id, listener)
        self._interest_changed()

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.remove(ledger_id, listener)
        self._interest_changed()

    async def _read_stored(self, ledger_id: LedgerId) -> IncarnatedRecord | None:
        row = await self._store.read(lambda connection: _row(connection, ledger_id))
        return None if row is None else _stored(ledger_id, row)


def replace_metadata(
    transaction: Transaction,
    ledger_id: LedgerId,
    data: bytes,
    expected_version: int,
    created_before: int | None = None,
    created: int | None = None,
) -> int:
    """Replaces a ledger's metadata, if it was created before or at that revision; returns the revision of its creation.

    Raises NoSuchLedgerExistsOnMetadataServerException, MetadataVersionException.
    """
    created = _require_version(transaction, ledger_id, expected_version, created_before, created)
    transaction.ledger_changed(ledger_key(ledger_id))
    transaction.execute(
        "UPDATE ledgers SET version = version + 1, metadata = ? WHERE key = ?", (data, ledger_key(ledger_id))
    )
    return created


_Row = tuple[int, int, bytes, int | None]
"""Version, revision of the creation, metadata, creation time."""

_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


_ListedRow = tuple[bytes, int, bytes, int | None]
"""Key, version, metadata, creation time."""


def _row(connection: sqlite3.Connection, ledger_id: LedgerId) -> _Row | None:
    row: _Row | None = connection.execute(
        "SELECT version, created_revision, metadata, created_ms FROM ledgers WHERE key = ?", (ledger_key(ledger_id),)
    ).fetchone()
    return row


def _rows(connection: sqlite3.Connection, ledger_ids: Sequence[LedgerId]) -> list[_Row | None]:
    return [_row(connection, ledger_id) for ledger_id in ledger_ids]


def _stored(ledger_id: LedgerId, row: _Row) -> IncarnatedRecord:
    version, created_revision, data, created_ms = row
    return IncarnatedRecord(RawLedgerRecord(ledger_id, data, version, created_ms).record(), created_revision)


def _record_or_error(ledger_id: LedgerId, row: _Row | None) -> LedgerRecord | BKException:
    if row is None:
        return _missing(ledger_id)
    try:
        return _stored(ledger_id, row).marked()
    except BKException as error:
        return error


def _insert(
    transaction: Transaction, ledger_id: LedgerId | None, metadata: LedgerMetadata, data: bytes
) -> LedgerRecord:
    """Creates a ledger. Raises before it changes anything."""
    chosen = _next_id(transaction) if ledger_id is None else ledger_id
    select = "SELECT created_revision, metadata FROM ledgers WHERE key = ?"
    row = transaction.execute(select, (ledger_key(chosen),)).fetchone()
    if row is not None:
        _check_own_create(chosen, metadata, row[1])
        return LedgerRecord(chosen, metadata, 0, incarnation=row[0])
    revision = transaction.ledger_changed(ledger_key(chosen))
    transaction.execute(
        f"INSERT INTO ledgers (key, version, created_revision, metadata, created_ms) VALUES (?, 0, ?, ?, {_NOW_MS})",
        (ledger_key(chosen), revision, data),
    )
    return LedgerRecord(chosen, metadata, 0, incarnation=revision)


def _inserts(requests: Sequence[CreateRequest]) -> Callable[[Transaction], list[LedgerRecord | BKException]]:
    """For each request its record, or the error."""

    def insert_all(transaction: Transaction) -> list[LedgerRecord | BKException]:
        results: list[LedgerRecord | BKException] = []
        for request in requests:
            try:
                results.append(_insert(transaction, request.ledger_id, request.metadata, encode(request.metadata)))
            except BKException as error:
                results.append(error)
        return results

    return insert_all


def decode_of(ledger_id: LedgerId, data: bytes) -> LedgerMetadata:
    """Decodes stored metadata. Raises MetadataFormatException naming the ledger."""
    try:
        return decode(data)
    except MetadataFormatException as error:
        raise MetadataFormatException(f"metadata of ledger {ledger_id}: {error}") from error


def _page(first: bytes, last: bytes) -> Callable[[sqlite3.Connection], list[bytes]]:
    """The keys of one page, from `first` to `last`, both included."""

    def select(connection: sqlite3.Connection) -> list[bytes]:
        rows = connection.execute(
            "SELECT key FROM ledgers WHERE key >= ? AND key <= ? ORDER BY key LIMIT ?", (first, last, _RUN)
        )
        return [key for (key,) in rows]

    return select


def _scopes_after(scope_id: int) -> Callable[[sqlite3.Connection], list[int]]:
    """The scopes of one page, with one index lookup for each."""

    def select(connection: sqlite3.Connection) -> list[int]:
        found: list[int] = []
        last = scope_id
        while len(found) < _RUN and last != _LAST_SCOPE:
            following = ledger_key(LedgerId(scope_of((last & HALF_MASK) + 1 << 64), 0))
            row = connection.execute("SELECT min(key) FROM ledgers WHERE key >= ?", (following,)).fetchone()
            if row[0] is None:
                break
            last = ledger_id_of(row[0]).scope_id
            found.append(last)
        return found

    return select


def _listed(
    connection: sqlite3.Connection, ledger_ids: Sequence[LedgerId], size: int, max_bytes: int
) -> tuple[list[RawLedgerRecord | BKException], int]:
    """The records of ascending ids, or the error where there is no such ledger; and `size` plus the metadata's bytes.

    Ends with the ledger that makes this size reach `max_bytes`.
    """
    last = ledger_key(ledger_ids[-1])
    rows: list[_ListedRow] = []
    for row in connection.execute(
        "SELECT key, version, metadata, created_ms FROM ledgers WHERE key >= ? AND key <= ? ORDER BY key",
        (ledger_key(ledger_ids[0]), last),
    ):
        rows.append(row)
        size += len(row[2])
        if size >= max_bytes:
            last = row[0]
            break
    found = lows_of([row[0] for row in rows])
    if found == [ledger_id.low for ledger_id in ledger_ids[: len(found)]] and (rows and rows[-1][0] == last):
        # Nothing was created or removed since the ids were listed.
        return [RawLedgerRecord(id_, row[2], row[1], row[3]) for id_, row in zip(ledger_ids, rows, strict=False)], size
    by_low = dict(zip(found, rows, strict=True))
    results: list[RawLedgerRecord | BKException] = []
    for ledger_id in ledger_ids:
        if ledger_key(ledger_id) > last:
            break
        there = by_low.get(ledger_id.low)
        results.append(
            _missing(ledger_id) if there is None else RawLedgerRecord(ledger_id, there[2], there[1], there[3])
        )
    return results, size


def _before(key: bytes) -> bytes:
    """The preceding key."""
    return (int.from_bytes(key) - 1).to_bytes(len(key))


def _next_id(transaction: Transaction) -> LedgerId:
    """The next id of scope 0 that is not taken.

    Applications may have taken a million ids in a row, while other changes wait: runs of them are passed over at once.
    """
    candidate: int = transaction.execute("SELECT value FROM meta WHERE name = 'next_ledger_id'").fetchone()[0]
    run = 1
    while candidate <= _LARGEST_ID:
        run = min(run, _LARGEST_ID - candidate + 1)
        if _all_taken(transaction, candidate, run):
            candidate, run = candidate + run, run * 2
        elif run > 1:
            run //= 2
        else:
            # 2**63 does not fit into a column.
            stored = min(candidate + 1, _LARGEST_ID)
            transaction.execute("UPDATE meta SET value = ? WHERE name = 'next_ledger_id'", (stored,))
            return LedgerId.unscoped(candidate)
    raise LedgerIdOverflowException("there are no ledger ids left in scope 0")


def _all_taken(transaction: Transaction, first: int, run: int) -> bool:
    """Whether a ledger of scope 0 has each of these ids: of those from the first on, the last is in its place."""
    row = transaction.execute(
        "SELECT key FROM ledgers WHERE key >= ? ORDER BY key LIMIT 1 OFFSET ?",
        (ledger_key(LedgerId.unscoped(first)), run - 1),
    ).fetchone()
    return row is not None and row[0] == ledger_key(LedgerId.unscoped(first + run - 1))


def _check_own_create(ledger_id: LedgerId, metadata: LedgerMetadata, data: bytes) -> None:
    """A repeated create that carries the token of the first one finds its own ledger; any other finds it taken."""
    if metadata.creator_token:
        stored = decode_of(ledger_id, data)
        if stored.creator_token == metadata.creator_token:
            return
    raise LedgerExistException(f"ledger {ledger_id} exists already")


def _require_version(
    transaction: Transaction,
    ledger_id: LedgerId,
    expected_version: int | None,
    created_before: int | None = None,
    created: int | None = None,
) -> int:
    """The revision of the ledger's creation. Raises unless it has the version, and was created before or at that."""
    select = "SELECT version, created_revision FROM ledgers WHERE key = ?"
    row = transaction.execute(select, (ledger_key(ledger_id),)).fetchone()
    if row is None:
        raise _missing(ledger_id)
    if created is not None and row[1] != created:
        raise made_anew(ledger_id)
    if expected_version is not None and row[0] != expected_version:
        raise MetadataVersionException(f"ledger {ledger_id} is at version {row[0]}, not {expected_version}")
    if created_before is not None and row[1] > created_before:
        raise MetadataVersionException(f"ledger {ledger_id} was deleted, and another created with its id")
    found: int = row[1]
    return found


def _delete(
    transaction: Transaction, ledger_id: LedgerId, expected_version: int | None, created: int | None = None
) -> None:
    _require_version(transaction, ledger_id, expected_version, created=created)
    transaction.ledger_changed(ledger_key(ledger_id))
    transaction.execute("DELETE FROM ledgers WHERE key = ?", (ledger_key(ledger_id),))


def _missing(ledger_id: LedgerId) -> NoSuchLedgerExistsOnMetadataServerException:
    return NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")
