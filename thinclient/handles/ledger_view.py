"""A reader's knowledge of a ledger: the metadata, the LAC, and how both advance.

The *last add confirmed* (LAC) is the end of a closed ledger, else the highest that metadata, bookies and entries have
shown so far; it never decreases. While a view listens, newer metadata replace the older ones. A range that can't be
read is tried again with newer metadata.

An unbounded ledger has no entries below its watermark. In its last fragment each bookie serves only entries that it
knows to be confirmed, which may be fewer than the highest LAC says: a range that no bookie serves for this reason alone
is tried again for as long as one bookie's response may take. While a client takes the ledger over, what was read of its
last fragment counts only once the metadata, read afterwards, show that the take-over still goes on.

Not its job: the application's interface (`read_handle`), following a ledger (`tail`), a single ranged read
(`range_read`).
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
from bookgate.ledger.metadata_store import LedgerRecord, require_same
from bookgate.ledger.unbounded import deleted_before, goes_on, is_provisional
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets
from bookgate.thinclient.handles.lac_reads import LongPoll, try_read_last_confirmed
from bookgate.thinclient.handles.range_read import ReadSession
from bookgate.thinclient.handles.recovery import read_last_confirmed
from bookgate.thinclient.handles.single_read import SingleReads

_Piece = TypeVar("_Piece", list[Entry], EntryColumns)

RangeCheck = Callable[[int, int, int], None]
"""Checks first entry, last entry and maximum list size; raises if they are invalid."""


class _Waiting(NamedTuple):
    """A wait until bookies know an entry to be confirmed: the entry, and the end of the wait in loop time."""

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
        """`asks_metadata`: read newer metadata if a range can't be read."""
        self.context = context
        self.record = record
        self.last_add_confirmed = last_add_confirmed
        self.without_batches: set[str] = set()
        """Bookies that do not support batch reads."""
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
        """Whether the ledger is closed."""
        return self.record.metadata.is_closed

    # Metadata

    async def listen(self) -> None:
        """Follows the ledger's metadata until `close`, so that the view learns the end of a ledger that is closed."""
        if not self._listening and not self.is_closed and not self._closed:
            self._listening = True
            await self.context.ledger_manager.register_listener(self.ledger_id, self._on_metadata)

    async def close(self) -> None:
        """Stops listening, and ends all waits for a change."""
        self._closed = True
        self._tell_changed()
        if self._listening:
            self._listening = False
            await self.context.ledger_manager.unregister_listener(self.ledger_id, self._on_metadata)

    def client_closed(self, error: BKException) -> None:
        """Ends the view because its client was closed."""
        self._client_error = error
        self._tell_changed()

    def changed(self) -> asyncio.Future[None]:
        """Done at the next change of the metadata, or when the view is closed. Callers must not cancel it."""
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
        """Reads the metadata again. Raises NoSuchLedgerExistsOnMetadataServerException, also if another ledger has
        the id by now.
        """
        record = await self.context.ledger_manager.read(self.ledger_id)
        require_same(self.record, record)
        self._adopt(record)

    def _on_metadata(self, _ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        if record is not None and not record.is_another(self.record):
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

    # The LAC

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
        """The entries first … last in lists, after `check` (if any) has accepted the arguments."""
        return self._pieces(first, last, max_entries, check, ReadSession.next_batch, columns=False)

    def columns_of(
        self, first: int, last: int, max_entries: int, check: RangeCheck
    ) -> AsyncGenerator[EntryColumns, None]:
        """Like `batches_of`, as columns of the sizes in which they arrived."""
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
        if first == last and not columns:
            self.check_not_trimmed(first)
            tried = self.record
            found = await self._single_reads().read(first, self._known_lac)
            if found is not None and await self._counts(tried, first):
                self._learn(found.max_lac)
                yield [found.entry]  # type: ignore[misc]  # not columns
                return
        waiting: _Waiting | None = None
        while first <= last:
            self.check_not_trimmed(first)
            session = self._session(first, last, columns)
            try:
                while piece := await take(session, max_entries):
                    if not await self._counts(session.record, first + len(piece) - 1):
                        break
                    first += len(piece)
                    self._learn(session.max_lac)
                    yield piece
                    if session.reader.finished:
                        return
            finally:
                session.close()
            if not piece:
                waiting = await self._look_again(session, first, waiting)

    def _session(self, first: int, last: int, columns: bool) -> ReadSession:
        return ReadSession(
            self.context, self.record, self._secrets, first, last, self.without_batches, columns, self._known_lac
        )

    async def _counts(self, tried: LedgerRecord, last: int) -> bool:
        """Whether entries up to `last`, read with these metadata, may be shown (`is_provisional`). If not, there are
        newer metadata to read them with.
        """
        if not is_provisional(tried.metadata, last):
            return True
        await self.context.catch_up()
        await self.refresh()
        return goes_on(tried.metadata, self.record.metadata)

    @property
    def _known_lac(self) -> int | None:
        """The confirmed entry id that reads of an unbounded ledger pass to bookies: the end of the complete fragments.

        It is never the LAC: a bookie that joined or left the last fragment may hold an entry of an earlier term at an
        id that another term has confirmed on other bookies (U4). Only the bookie's own LAC shows whether that entry was
        truncated since.
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
        """Returns if newer metadata may help to read the rest of a range, or bookies may yet learn that it is
        confirmed; else raises the reason why it can't be read.
        """
        failure = session.reader.failure or ReadException(f"entry {first} of ledger {self.ledger_id} did not come")
        if await self._moved(session.record, failure):
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
        """Whether the metadata are newer than those with which a range could not be read."""
        if self.record.version == tried.version and self._asks_metadata:
            try:
                await self.refresh()
            except NoSuchLedgerExistsOnMetadataServerException as gone:
                raise gone from failure
            except BKException:
                return False
        return self.record.version > tried.version


def known_last_entry(record: LedgerRecord) -> int:
    """The last confirmed entry according to the metadata alone."""
    metadata = record.metadata
    return metadata.last_entry_id if metadata.is_closed else max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
