"""What a reader of a ledger knows: the metadata, how far may be read, and how both move on.

The *last add confirmed* (LAC) is that of a closed ledger's end, else the greatest that metadata, bookies and entries
have told so far; it never falls. While a view listens, newer metadata replace the older ones. A range that can't be
read is tried again by newer metadata.

An unbounded ledger has no entries below its watermark. In its last fragment each bookie serves what it knows itself to
be confirmed, which lags behind the greatest LAC by what is in flight: a range that no bookie serves for that reason
alone is tried again for as long as one bookie's answer may take.

`read_handle` is what the application has of it, `tail` follows it. One ranged read under way is a `range_read`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple, TypeVar

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    BKException,
    EntryNotConfirmedException,
    LedgerClosedException,
    LedgerTrimmedException,
    NoSuchLedgerExistsOnMetadataServerException,
    ReadException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import deleted_before
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets
from bookgate.thinclient.handles.lac_reads import LongPoll, try_read_last_confirmed
from bookgate.thinclient.handles.range_read import ReadSession
from bookgate.thinclient.handles.recovery import read_last_confirmed
from bookgate.thinclient.handles.single_read import SingleReads

_Piece = TypeVar("_Piece", list[Entry], EntryColumns)

RangeCheck = Callable[[int, int, int], None]
"""Looks at first, last and the size of a piece; raises what is wrong with them."""


class _Waiting(NamedTuple):
    """For bookies to learn that an entry is confirmed: for which, and until when in loop time."""

    first: int
    until: float


class LedgerView:
    """One reader's knowledge of one ledger."""

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        last_add_confirmed: int,
        *,
        asks_metadata: bool = True,
    ) -> None:
        """`asks_metadata`: look for newer metadata when a range can't be read."""
        self.context = context
        self.record = record
        self.last_add_confirmed = last_add_confirmed
        self.without_batches: set[str] = set()
        """Bookies that don't know batch reads."""
        self._secrets = secrets
        self._singles: SingleReads | None = None
        self._asks_metadata = asks_metadata
        self._listening = False
        self._deleted = False
        self._closed = False
        self._client_error: BKException | None = None
        self._changed: asyncio.Future[None] | None = None
        context.active_handles[self] = None

    @property
    def ledger_id(self) -> LedgerId:
        return self.record.ledger_id

    @property
    def is_closed(self) -> bool:
        """The ledger has its final end."""
        return self.record.metadata.is_closed

    # Metadata

    async def listen(self) -> None:
        """Follows the ledger's metadata until `close`: a ledger that gets closed shows its end here."""
        if not self._listening and not self.is_closed and not self._closed:
            self._listening = True
            await self.context.ledger_manager.register_listener(self.ledger_id, self._on_metadata)

    async def close(self) -> None:
        """Ends the listening, and whoever waits for a change."""
        self._closed = True
        self._tell_changed()
        if self._listening:
            self._listening = False
            await self.context.ledger_manager.unregister_listener(self.ledger_id, self._on_metadata)

    def client_closed(self, error: BKException) -> None:
        """Ends with its client."""
        self._client_error = error
        self._tell_changed()

    def changed(self) -> asyncio.Future[None]:
        """Ends with the next change of the metadata, or when the view is closed. Not to be cancelled."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def check_readable(self) -> None:
        """Raises if the handle or the client was closed, or the ledger deleted."""
        if self._client_error is not None:
            raise self._client_error
        if self._closed:
            raise LedgerClosedException(f"the handle of ledger {self.ledger_id} was closed")
        if self._deleted:
            raise NoSuchLedgerExistsOnMetadataServerException(f"ledger {self.ledger_id} was deleted")

    async def refresh(self) -> None:
        """Reads the metadata anew."""
        self._adopt(await self.context.ledger_manager.read(self.ledger_id))

    def _on_metadata(self, _ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        if record is not None:
            self._adopt(record)
            return
        self._deleted = True
        self._tell_changed()

    def _adopt(self, record: LedgerRecord) -> None:
        if record.version <= self.record.version:
            return
        self.record = record
        if record.metadata.is_closed:
            self.last_add_confirmed = record.metadata.last_entry_id
        else:
            self._learn(known_last_entry(record))
        self._tell_changed()

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    # How far may be read

    async def read_last_confirmed(self) -> int:
        """See `ReadHandle.read_last_confirmed`."""
        if not self.is_closed:
            await self.refresh()
        if not self.is_closed:
            with self.context.metrics.timed("READ_LAC"):
                read = await read_last_confirmed(self.context, self.record, self._secrets)
            self._learn(read.result)
        return self.last_add_confirmed

    async def try_read_last_confirmed(self) -> int:
        """See `ReadHandle.try_read_last_confirmed`."""
        if not self.is_closed:
            await try_read_last_confirmed(
                self.context, self.record, self._secrets, self.last_add_confirmed, self._learn
            )
        return self.last_add_confirmed

    def long_poll(self, entry_id: int, parallel: bool, timeout: float | None = None) -> LongPoll:
        """Starts waiting for an entry above the LAC."""
        known = self.last_add_confirmed
        return LongPoll(
            self.context,
            self.record,
            self._secrets,
            entry_id,
            known,
            self._learn,
            timeout=timeout,
            parallel=parallel,
        )

    def _learn(self, lac: int) -> None:
        if self.is_closed:
            return
        if lac > self.last_add_confirmed:
            self.last_add_confirmed = lac
            self.context.metrics.count("LAC_UPDATE_HITS")
        else:
            self.context.metrics.count("LAC_UPDATE_MISSES")

    # Reading

    def batches_of(
        self, first: int, last: int, max_entries: int, check: RangeCheck | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """The entries first … last, after `check` has looked at the arguments; without one as they are."""
        return self._pieces(first, last, max_entries, check, ReadSession.next_batch, columns=False)

    def columns_of(
        self, first: int, last: int, max_entries: int, check: RangeCheck
    ) -> AsyncGenerator[EntryColumns, None]:
        """The same as columns, in the pieces in which they came."""
        return self._pieces(first, last, max_entries, check, ReadSession.next_columns, columns=True)

    async def _pieces(
        self,
        first: int,
        last: int,
        max_entries: int,
        check: RangeCheck | None,
        take: Callable[[ReadSession, int], Awaitable[_Piece | None]],
        *,
        columns: bool,
    ) -> AsyncGenerator[_Piece, None]:
        if check is not None:
            check(first, last, max_entries)
        if first <= last:
            self.check_not_trimmed(first)
        if first == last and not columns:
            found = await self._single_reads().read(first, self._known_lac)
            if found is not None:
                self._learn(found.max_lac)
                yield [found.entry]  # type: ignore[misc]  # not columns
                return
        waiting: _Waiting | None = None
        while first <= last:
            session = self._session(first, last, columns)
            try:
                while piece := await take(session, max_entries):
                    first += len(piece)
                    self._learn(session.max_lac)
                    yield piece
                    if session.reader.finished:
                        return
            finally:
                session.close()
            waiting = await self._look_again(session, first, waiting)

    def _session(self, first: int, last: int, columns: bool) -> ReadSession:
        return ReadSession(
            self.context, self.record, self._secrets, first, last, self.without_batches, columns, self._known_lac
        )

    @property
    def _known_lac(self) -> int | None:
        """What bookies are told in reads of an unbounded ledger: the end of the complete fragments.

        Never the LAC: a bookie that joined the last fragment, or has left it, may hold an entry of an earlier term at
        an id that another term has confirmed on other bookies (U4). It alone knows whether it has been truncated since,
        and its own LAC tells.
        """
        return known_last_entry(self.record) if self.record.metadata.is_unbounded else None

    def check_not_trimmed(self, entry_id: int) -> None:
        """Raises LedgerTrimmedException for an entry below the watermark of an unbounded ledger."""
        metadata = self.record.metadata
        if metadata.is_unbounded and entry_id < deleted_before(metadata):
            first = deleted_before(metadata)
            raise LedgerTrimmedException(
                f"entry {entry_id} of ledger {self.ledger_id} was deleted by a trim; the first one that can be read is "
                f"{first}",
                first,
                ledger_id=self.ledger_id,
            )

    def _single_reads(self) -> SingleReads:
        reads = self._singles
        if reads is None or reads.record is not self.record:
            reads = self._singles = SingleReads(self.context, self.record, self._secrets)
        return reads

    async def _look_again(self, session: ReadSession, first: int, waiting: _Waiting | None) -> _Waiting | None:
        """Returns if there are newer metadata to read the rest of a range by, or bookies may yet learn that it is
        confirmed; else raises why it can't be read.
        """
        failure = session.reader.failure or ReadException(f"entry {first} of ledger {self.ledger_id} did not come")
        if await self._moved(session.record, failure):
            self.check_not_trimmed(first)
            return None
        if isinstance(failure, EntryNotConfirmedException):
            now = asyncio.get_running_loop().time()
            if waiting is None or waiting.first != first:
                waiting = _Waiting(first, now + self.context.config.read_timeout_seconds)
            if now < waiting.until:
                await asyncio.sleep(self.context.config.tail_poll_interval_seconds)
                return waiting
        self.context.metrics.read_entry.failures += 1
        failure.ledger_id = self.ledger_id
        raise failure

    async def _moved(self, tried: LedgerRecord, failure: BKException) -> bool:
        """There are newer metadata than those by which a range could not be read."""
        if self.record.version == tried.version and self._asks_metadata:
            try:
                await self.refresh()
            except NoSuchLedgerExistsOnMetadataServerException as gone:
                raise gone from failure
            except BKException:
                return False
        return self.record.version > tried.version


def known_last_entry(record: LedgerRecord) -> int:
    """The last confirmed entry that the metadata alone tells."""
    metadata = record.metadata
    return metadata.last_entry_id if metadata.is_closed else max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
