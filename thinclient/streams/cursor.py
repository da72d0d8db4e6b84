"""A cursor: the named position of a consumer in a stream, stored in the metadata, moved by compare-and-set.

Two consumers with one name share the work badly: the slower one's commit fails, and it reads the cursor again.

Not its job: delivering records (`reader`), the rule (`core.streams.cursors`). Source: docs/protocol/streams.md#cursors.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from bookgate.ledger.errors import (
    CursorMovedException,
    IllegalOpException,
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import CURSOR_KEY, CommittedCursor
from bookgate.thinclient.core.streams.cursors import committed

_MOST_TRIED = 1000
"""Where the metadata can be read and take no change, each commit adds one. If one that is not remembered was stored
after all, the next commit raises CursorMovedException.
"""


class Cursor:
    """A cursor, as this consumer knows it."""

    def __init__(self, manager: LedgerManager, record: LedgerRecord, found: CommittedCursor) -> None:
        """Called by `Stream`."""
        self._manager = manager
        self._record = record
        self._found = found
        self._tried: deque[CommittedCursor] = deque(maxlen=_MOST_TRIED)
        """The last values written here of which it is not known whether they were stored."""

    def __repr__(self) -> str:
        entry_id, number = self.position
        return f"<Cursor {self.name!r} of stream {self._found.stream!r} at entry {entry_id} record {number}>"

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._found.name

    @property
    def position(self) -> RecordPosition:
        """The first record that is not committed, as last read or written here."""
        return self._found.position

    @property
    def committed_ms(self) -> int:
        """When it was committed, in milliseconds since 1970."""
        return self._found.committed_ms

    async def commit(self, position: RecordPosition) -> None:
        """Commits a position: everything before it is processed.

        Args:
            position: The first record that is not processed; not below the committed one.

        Raises:
            CursorMovedException: Another consumer has moved the cursor since it was read here, or made it anew. Read it
                again.
            IncorrectParameterException: The position is below the committed one.
            NoSuchLedgerExistsOnMetadataServerException: The cursor was deleted, perhaps with its stream.
            MetaStoreException: The metadata are out of reach; the commit may have happened. Repeat it.
        """
        if committed(self._found, position, now_ms()) is not None:
            await self._change(lambda cursor: committed(cursor, position, now_ms()))

    async def reset(self, position: RecordPosition) -> None:
        """Moves the cursor to any position, also back. Raises as `commit`."""
        await self._change(lambda cursor: cursor.moved(position, now_ms()))

    async def refresh(self) -> RecordPosition:
        """Reads the cursor again; returns its position. Raises as `commit`."""
        self._take(await self._manager.read(self._record.ledger_id))
        return self.position

    async def _change(self, change: Callable[[CommittedCursor], CommittedCursor | None]) -> None:
        """Stores what `change` makes of the cursor, by compare-and-set. Raises as `commit`."""
        before = self._found
        # A cursor that was deleted and made anew may be at the version that this one had.
        await self.refresh()
        # An earlier call may have been carried out although it failed: no other consumer was there then.
        while self._found == before or self._found in self._tried:
            moved = change(self._found)
            if moved is None:
                return
            self._tried.append(moved)
            changed = _with_cursor(self._record, moved)
            try:
                self._take(await self._manager.write_to(self._record, changed))
            except UnknownOutcomeException:
                await self.refresh()
                if self._found != moved:
                    raise
            except MetadataVersionException:
                await self.refresh()
            if self._found == moved:
                # Written, perhaps by a repeated call that conflicts with itself.
                self._tried.clear()
                return
            # Where nothing has moved, only the record's bookie was replaced, or a name of somebody else's was added.
        entry_id, number = self.position
        raise CursorMovedException(
            f"another consumer has moved cursor {self.name!r} of stream {self._found.stream!r} to entry {entry_id} "
            f"record {number}: go on from there"
        )

    def _take(self, record: LedgerRecord) -> None:
        if not is_cursor_of(record, self._found.stream, self._found.ledger):
            raise NoSuchLedgerExistsOnMetadataServerException(
                f"cursor {self.name!r} was deleted with stream {self._found.stream!r}: open the one made since",
                ledger_id=record.ledger_id,
            )
        self._record, self._found = record, CommittedCursor.of(record.metadata.custom_metadata)


async def read_cursor(manager: LedgerManager, record_id: LedgerId, stream: str, ledger: str) -> Cursor | None:
    """The cursor stored at this id; None if there is none, or one of an earlier stream of this name.

    Raises:
        IllegalOpException: Something else is stored there.
    """
    record = await _stored(manager, record_id)
    if record is None:
        return None
    found = _found_in(record, stream)
    return Cursor(manager, record, found) if (found.stream, found.ledger) == (stream, ledger) else None


async def store_cursor(
    manager: LedgerManager,
    record_id: LedgerId,
    bookie_id: str,
    wanted: CommittedCursor,
    still_there: Callable[[], Awaitable[None]],
    most_unknown: int,
) -> Cursor:
    """Creates a cursor, in place of one of an earlier stream of this name; returns the other one if another consumer
    was faster.

    Raises:
        IllegalOpException: Something else is stored there.
        UnknownOutcomeException: The responses of `most_unknown` writes were lost.
        BKException: What `still_there` raises if the stream is not there any more: the other one may be of a later
            stream.
    """
    unknown = 0
    while True:
        try:
            created = await manager.create(record_id, record_of(bookie_id, {CURSOR_KEY: wanted.encoded()}))
            return Cursor(manager, created, wanted)
        except LedgerExistException:
            record = await _stored(manager, record_id)
        if record is not None:
            found = _found_in(record, wanted.stream)
            if (found.stream, found.ledger) == (wanted.stream, wanted.ledger):
                return Cursor(manager, record, found)
        await still_there()
        if record is None:
            continue
        try:
            written = await manager.write_to(record, _with_cursor(record, wanted))
            return Cursor(manager, written, wanted)
        except UnknownOutcomeException:
            unknown += 1
            # A store that is read and takes no change answers like this each time, and at once.
            if unknown >= most_unknown:
                raise
        except (MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException):
            pass  # it was changed or removed meanwhile: the next turn looks again


async def _stored(manager: LedgerManager, record_id: LedgerId) -> LedgerRecord | None:
    try:
        return await manager.read(record_id)
    except NoSuchLedgerExistsOnMetadataServerException:
        return None


def is_cursor_of(record: LedgerRecord, stream: str, ledger: str) -> bool:
    """Whether this is a cursor of a stream with this ledger. Raises MetadataFormatException."""
    custom = record.metadata.custom_metadata
    if CURSOR_KEY not in custom:
        return False
    found = CommittedCursor.of(custom)
    return (found.stream, found.ledger) == (stream, ledger)


def _found_in(record: LedgerRecord, stream: str) -> CommittedCursor:
    """The cursor of a record, of whatever stream. Raises IllegalOpException if it is none."""
    if CURSOR_KEY not in record.metadata.custom_metadata:
        raise IllegalOpException(
            f"ledger {record.ledger_id} is no cursor of stream {stream!r}; delete it, or use another name"
        )
    return CommittedCursor.of(record.metadata.custom_metadata)


def _with_cursor(record: LedgerRecord, cursor: CommittedCursor) -> LedgerMetadata:
    custom = {**record.metadata.custom_metadata, CURSOR_KEY: cursor.encoded()}
    return dataclasses.replace(record.metadata, custom_metadata=custom)


def record_of(bookie_id: str, custom_metadata: Mapping[str, bytes]) -> LedgerMetadata:
    """The metadata of a record: a closed ledger without entries."""
    return LedgerMetadata.new([bookie_id], 1, 1, custom_metadata=custom_metadata).close(NO_ENTRY, 0)


def now_ms() -> int:
    """Now, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
