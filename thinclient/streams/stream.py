"""A stream: opens its writer and its readers, keeps its cursors, deletes what its retention does not keep.

It holds no connection and no state beside what it last read of the metadata.

Not its job: the directory (`directory`), following and batching (`reader`, `writer`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import decode_stream_entry
from bookgate.ledger.streams import (
    CURSORS_KEY,
    SETTINGS_KEY,
    CommittedCursor,
    Retention,
    StreamSettings,
    cursor_names_of,
    cursor_record_id,
    encoded_cursor_names,
    stream_of,
)
from bookgate.ledger.unbounded import deleted_before, terms_of
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.core.streams.retention import RetentionBounds, first_to_keep
from bookgate.thinclient.handles.opening_call import opens
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.streams.cursor import Cursor, is_cursor_of, now_ms, read_cursor, store_cursor
from bookgate.thinclient.streams.lookups import (
    first_since,
    first_with_records,
    first_within,
    last_with_records,
    length_before,
    snapshot_of,
)
from bookgate.thinclient.streams.places import From, Start
from bookgate.thinclient.streams.reader import StreamReader
from bookgate.thinclient.streams.removal import remove_record, write_again
from bookgate.thinclient.streams.retention_timer import RetentionTimer
from bookgate.thinclient.streams.writer import StreamWriter, begin_term

_TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True)
class CursorState:
    """A cursor and how far it is behind.

    Attributes:
        name: Its name.
        position: The first record that is not committed.
        committed_ms: When it was committed, in milliseconds since 1970.
        lag_entries: Confirmed entries from the position on.
        lag_bytes: Their payload bytes, with those of the entry that the position is in.
    """

    name: str
    position: RecordPosition
    committed_ms: int
    lag_entries: int
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it is now.

    Attributes:
        name: Its name.
        ledger_id: The unbounded ledger that it lies in.
        term: The number of writers that it has had.
        first_entry_id: The first entry that can be read.
        last_entry_id: The last confirmed entry; below the first if there is none.
        fragments: Fragments that the metadata list.
        bytes: Payload bytes that can be read.
        last_append_ms: The time of the last records, in milliseconds since 1970; None for none.
        retention: What is deleted.
        cursors: Its cursors, by name.
    """

    name: str
    ledger_id: LedgerId
    term: int
    first_entry_id: int
    last_entry_id: int
    fragments: int
    bytes: int
    last_append_ms: int | None
    retention: Retention
    cursors: tuple[CursorState, ...]


class Stream:
    """A stream of records, which any number of readers and one writer at a time use."""

    def __init__(self, bookkeeper: BookKeeper, record: LedgerRecord, password: bytes) -> None:
        """Called by `Streams`."""
        found = stream_of(record.metadata.custom_metadata)
        if found is None:
            raise IllegalOpException(f"ledger {record.ledger_id} is no record of a stream")
        self._name, self._ledger_id = found
        self._bookkeeper = bookkeeper
        self._record = record
        self._password = password
        self._settings = StreamSettings.of(record.metadata.custom_metadata)

    def __repr__(self) -> str:
        return f"<Stream {self._name!r}, ledger {self.ledger_id}>"

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._name

    @property
    def ledger_id(self) -> LedgerId:
        """The unbounded ledger that the stream lies in."""
        return self._ledger_id

    @property
    def retention(self) -> Retention:
        """What is deleted, as last read or written here."""
        return self._settings.retention

    # Writing

    @opens
    async def writer(
        self,
        *,
        linger_seconds: float = 0.005,
        batch_bytes: int = 64 * 1024,
        retention_interval_seconds: float = 60.0,
    ) -> StreamWriter:
        """Begins to write. The writer before, if there is one, fails from then on.

        A call that is cancelled ends at once, whatever bookies are there; the next writer begins as after any other.

        Args:
            linger_seconds: How long the first record of a batch waits for others, in seconds.
            batch_bytes: Bytes of records that fill a batch.
            retention_interval_seconds: The writer deletes what the retention does not keep, this often.

        Returns:
            The writer. It is known to have all records that were acknowledged to any writer before.

        Raises:
            TermSupersededException: Another writer began at the same time, and was faster.
            LedgerRecoveryException: Too few bookies responded. Try again later.
            NotEnoughBookiesException: Too few writable bookies are available.
            UnauthorizedAccessException: The password is wrong.
            BKException: As `BookKeeper.take_over`.
        """
        if linger_seconds < 0 or batch_bytes < 1 or retention_interval_seconds <= 0:
            raise IncorrectParameterException(
                "linger_seconds is 0 or more, batch_bytes 1 or more, retention_interval_seconds above 0"
            )
        with self._deletion_named():
            handle = await self._bookkeeper.take_over(
                self.ledger_id, self._password, max_fragment_seconds=self._settings.max_fragment_seconds
            )
        try:
            async with await self._open() as reader:
                appends = await begin_term(handle, reader, batch_bytes)
        except BaseException:
            # The opening entry may wait for bookies that are away; nothing depends on it.
            await handle.abandon()
            raise
        writer = StreamWriter(self._name, handle, appends, linger_seconds)
        timer = RetentionTimer(self._name, self._apply_as_writer, retention_interval_seconds)
        lags = self._bookkeeper.metrics.cursor_lags
        lags.setdefault(self.ledger_id, 0.0)
        writer.on_close(timer.stop)
        writer.on_close(lambda: lags.pop(self.ledger_id, None))
        timer.start()
        return writer

    # Reading

    @opens
    async def reader(
        self, start: From = Start.EARLIEST, *, cursor: str | None = None, follow: bool = True
    ) -> StreamReader:
        """Begins to read.

        Args:
            start: A position, a time (the first record appended then or later), or an end of the stream. A cursor that
                exists begins where it stands instead.
            cursor: The name of a cursor, which is created at `start` if the stream has none of this name.
            follow: False ends the reader at the last record that is confirmed now.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The stream was deleted.
            IncorrectParameterException: The start is none, or a time without a time zone.
            UnauthorizedAccessException: The password is wrong.
            BKException: The bookies could not be read.
        """
        handle = await self._open()
        try:
            found = None if cursor is None else await self._existing_cursor(cursor)
            position = await self._position(handle, start) if found is None else found.position
            if cursor is not None and found is None:
                found = await self._create_cursor(cursor, position)
                position = found.position
        except BaseException:
            await handle.close()
            raise
        return StreamReader(self._name, handle, position, found, follow=follow)

    async def position_of(self, start: From) -> RecordPosition:
        """The position where a reader that begins at `start` would begin. Raises as `reader`."""
        if isinstance(start, RecordPosition):
            return start
        async with await self._open() as handle:
            return await self._position(handle, start)

    async def _position(self, handle: ReadHandle, start: From) -> RecordPosition:
        if start is Start.EARLIEST:
            return RecordPosition(handle.first_entry_id, 0)
        if isinstance(start, RecordPosition):
            return start
        await handle.read_last_confirmed()
        if start is Start.LATEST:
            return RecordPosition(handle.last_add_confirmed + 1, 0)
        if not isinstance(start, datetime) or start.tzinfo is None:
            raise IncorrectParameterException(
                f"start is a Start, a RecordPosition, or a datetime with a time zone, not {start!r}"
            )
        return RecordPosition(await first_since(handle, round(start.timestamp() * 1000)), 0)

    async def _open(self) -> ReadHandle:
        with self._deletion_named():
            return await self._bookkeeper.open_ledger(self.ledger_id, self._password)

    @contextmanager
    def _deletion_named(self) -> Iterator[None]:
        """A deleted stream may be seen for a moment: the error names it, not its ledger or record."""
        try:
            yield
        except NoSuchLedgerExistsOnMetadataServerException:
            raise NoSuchLedgerExistsOnMetadataServerException(
                f"there is no stream {self._name!r} any more: it was deleted", ledger_id=self.ledger_id
            ) from None

    # Cursors

    async def cursors(self) -> list[Cursor]:
        """The cursors of the stream, by name. Raises BKException."""
        await self._refresh()
        names = sorted(cursor_names_of(self._record.metadata.custom_metadata))
        found = [await self.find_cursor(name) for name in names]
        return [cursor for cursor in found if cursor is not None]

    async def cursor(self, name: str, start: From = Start.EARLIEST) -> Cursor:
        """A cursor, which is created at `start` if the stream has none of this name. Raises as `reader`."""
        found = await self._existing_cursor(name)
        if found is None:
            found = await self._create_cursor(name, await self.position_of(start))
        return found

    async def find_cursor(self, name: str) -> Cursor | None:
        """A cursor; None if the stream has none of this name. Raises BKException."""
        manager = self._bookkeeper.ledger_manager
        return await read_cursor(manager, self._cursor_id(name), self._name, self.ledger_id.qualified_name)

    async def delete_cursor(self, name: str) -> bool:
        """Removes a cursor, so that no retention waits for it. Returns whether it was there. Raises BKException."""
        # Its name goes last. Whoever may not change the stream's record is refused here, before the cursor is gone.
        await write_again(self._bookkeeper, self._record.ledger_id, self._is_own)
        existed = await remove_record(
            self._bookkeeper,
            self._cursor_id(name),
            lambda record: is_cursor_of(record, self._name, self.ledger_id.qualified_name),
        )
        await self._change_cursors(removed=name)
        if await self.find_cursor(name) is not None:
            # It was made anew by somebody who still found the name there.
            await self._change_cursors(added=name)
        return existed

    def _cursor_id(self, name: str) -> LedgerId:
        return cursor_record_id(self._name, name, self.ledger_id.scope_id)

    async def _existing_cursor(self, name: str) -> Cursor | None:
        found = await self.find_cursor(name)
        if found is not None:
            # Whoever created it may have died before the stream had its name.
            await self._change_cursors(added=name)
        return found

    async def _create_cursor(self, name: str, position: RecordPosition) -> Cursor:
        await self._refresh()
        ledger, token = self.ledger_id.qualified_name, secrets.token_hex(_TOKEN_BYTES)
        cursor = CommittedCursor(self._name, ledger, name, position, now_ms(), token)
        manager, bookie = self._bookkeeper.ledger_manager, self._record.metadata.last_fragment.ensemble[0]
        most_unknown = self._bookkeeper.config.retries.metadata_unknown_outcomes
        created = await store_cursor(manager, self._cursor_id(name), bookie, cursor, self._refresh, most_unknown)
        await self._change_cursors(added=name)
        return created

    async def _change_cursors(self, added: str | None = None, removed: str | None = None) -> None:
        while True:
            await self._refresh()
            names = cursor_names_of(self._record.metadata.custom_metadata)
            if (added is None or added in names) and removed not in names:
                return
            kept = tuple(name for name in names if name != removed)
            changes = {CURSORS_KEY: encoded_cursor_names(kept if added is None else (*kept, added))}
            if await self._changed(changes):
                return

    async def _changed(self, changes: dict[str, bytes]) -> bool:
        """Changes the custom metadata as last read; False if others changed them meanwhile."""
        try:
            self._take(
                await self._bookkeeper.update_custom_metadata(self._record.ledger_id, changes, self._record.version)
            )
        except MetadataVersionException:
            return False
        return True

    async def _refresh(self) -> None:
        with self._deletion_named():
            self._take(await self._bookkeeper.read_record(self._record.ledger_id))

    def _is_own(self, record: LedgerRecord) -> bool:
        return stream_of(record.metadata.custom_metadata) == (self._name, self._ledger_id)

    def _take(self, record: LedgerRecord) -> None:
        if not self._is_own(record):
            raise IllegalOpException(f"stream {self._name!r} was deleted and created again: open it again")
        self._record, self._settings = record, StreamSettings.of(record.metadata.custom_metadata)

    # Retention

    async def set_retention(self, retention: Retention) -> None:
        """Changes what is deleted; writers notice it at their next look. Raises BKException."""
        while True:
            await self._refresh()
            settings = StreamSettings(retention, self._settings.max_fragment_seconds)
            if await self._changed({SETTINGS_KEY: settings.encoded()}):
                return

    async def apply_retention(self) -> int:
        """Deletes what the retention does not keep, as a writer does from time to time.

        Returns:
            The first entry that can be read.

        Raises:
            BKException: The metadata or the bookies could not be read.
        """
        return await self._apply_retention(written_here=False)

    async def _apply_as_writer(self) -> int:
        try:
            return await self._apply_retention(written_here=True)
        except (NoSuchLedgerExistsOnMetadataServerException, IllegalOpException):
            # The stream was deleted: nobody lags behind it any more, whether its writer is closed or not.
            self._bookkeeper.metrics.cursor_lags.pop(self.ledger_id, None)
            raise

    async def _apply_retention(self, *, written_here: bool) -> int:
        await self._refresh()
        cursors = [cursor.position for cursor in await self.cursors()]
        async with await self._open() as reader:
            self._note_lag(await _lag_of(cursors, reader), written_here)
            limits = RetentionBounds(
                None
                if self.retention.max_age_seconds is None
                else await first_since(reader, now_ms() - round(self.retention.max_age_seconds * 1000)),
                None if self.retention.max_bytes is None else await first_within(reader, self.retention.max_bytes),
            )
            before = first_to_keep(self.retention, limits, cursors, await self._last_snapshot(reader))
            return await self._trim(reader, before)

    def _note_lag(self, seconds: float, written_here: bool) -> None:
        """For the metrics, where somebody measures it again or takes it out: while this client has a writer."""
        lags = self._bookkeeper.metrics.cursor_lags
        if written_here or self.ledger_id in lags:
            lags[self.ledger_id] = seconds

    async def trim(self, before: RecordPosition | int) -> int:
        """Deletes the records before a position, whatever cursors stand there, as far as complete fragments reach.

        Args:
            before: The first record to keep, or the first entry.

        Returns:
            The first entry that can be read; lower than requested where the rest is in the last fragment, or the next
            writer needs it.

        Raises:
            BKException: The metadata or the bookies could not be read.
        """
        wanted = before.entry_id if isinstance(before, RecordPosition) else before
        async with await self._open() as reader:
            return await self._trim(reader, min(wanted, await self._last_snapshot(reader)))

    async def _trim(self, reader: ReadHandle, before: int) -> int:
        if before <= reader.first_entry_id:
            return reader.first_entry_id
        return deleted_before((await self._bookkeeper.trim_ledger(self.ledger_id, before)).metadata)

    async def _last_snapshot(self, reader: ReadHandle) -> int:
        found = await last_with_records(reader, reader.last_add_confirmed)
        return NO_ENTRY if found is None else snapshot_of(*found)

    # Being looked at

    async def state(self) -> StreamState:
        """The stream, its cursors and how far they are behind. Raises BKException."""
        cursors = await self.cursors()
        async with await self._open() as reader:
            await reader.read_last_confirmed()
            first, last = reader.first_entry_id, reader.last_add_confirmed
            before, end = await length_before(reader, first), await length_before(reader, last + 1)
            newest = await last_with_records(reader, last)
            return StreamState(
                self._name,
                self.ledger_id,
                terms_of(reader.metadata).term,
                first,
                last,
                len(reader.metadata.fragments),
                end - before,
                None if newest is None else newest[1].append_time_ms,
                self.retention,
                tuple([await _state_of(cursor, reader, first, last, end) for cursor in cursors]),
            )


async def _state_of(cursor: Cursor, reader: ReadHandle, first: int, last: int, end: int) -> CursorState:
    at = max(cursor.position.entry_id, first)
    behind = end - await length_before(reader, min(at, last + 1))
    return CursorState(cursor.name, cursor.position, cursor.committed_ms, max(0, last + 1 - at), max(0, behind))


async def _lag_of(cursors: Sequence[RecordPosition], reader: ReadHandle) -> float:
    """The age in seconds of the oldest record that a cursor has not committed; 0 for none."""
    if not cursors:
        return 0.0
    start = max(min(cursors).entry_id, reader.first_entry_id)
    entry = await first_with_records(reader, start, reader.last_add_confirmed)
    if entry is None:
        return 0.0
    return max(0.0, (now_ms() - decode_stream_entry(entry.payload).append_time_ms) / 1000)
