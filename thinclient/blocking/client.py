"""The client without asyncio: the same names, each call returning when it is done.

Iterators are plain iterators that fetch whole pages, so that the hop between threads is paid once a page, not once an
entry; the next page is fetched while the present one is being used.

Generated from the asynchronous client by `make blocking`; not edited by hand. What is not generated is in `facades`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from uuid import UUID

from bookgate.ledger.bookie_registry import ClusterInfo, RegisteredBookie
from bookgate.ledger.connection_state import ConnectionListener
from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_manager import CreateRequest, LedgerRecord
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet
from bookgate.ledger.payload_codec import Compression, Record, RecordPosition
from bookgate.ledger.streams import Retention
from bookgate.thinclient.blocking.facades import (
    AdvancedWriteHandleFacade,
    BookKeeperFacade,
    CursorFacade,
    LedgerManagerFacade,
    ReadHandleFacade,
    RecordWriterFacade,
    ServiceDiscoveryFacade,
    StreamFacade,
    StreamReaderFacade,
    StreamsFacade,
    StreamWriterFacade,
    UnboundedWriteHandleFacade,
    WriteHandleFacade,
)
from bookgate.thinclient.blocking.loop_thread import flat, iterate
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.tailing import LastConfirmedAndEntry
from bookgate.thinclient.handles.appending import Payload
from bookgate.thinclient.handles.ledger_options import LedgerOptions, takes_ledger_options
from bookgate.thinclient.metrics import ClientMetrics
from bookgate.thinclient.streams.places import From, Start
from bookgate.thinclient.streams.stream import StreamState


class WriteHandle(WriteHandleFacade):
    """The one writer of a ledger. Use it as a context manager, or call `close`."""

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._asynchronous.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self._asynchronous.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last written or read by this handle."""
        return self._asynchronous.metadata

    @property
    def record(self) -> LedgerRecord:
        """The ledger metadata with its version, as last written or read by this handle."""
        return self._asynchronous.record

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest entry id up to which all entries are acknowledged; -1 for none."""
        return self._asynchronous.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to `last_add_confirmed`."""
        return self._asynchronous.length

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Bookies of the ensemble that failed and could not be replaced, with their errors; they are not written to for
        a while.
        """
        return self._asynchronous.failed_bookies

    def force(self) -> None:
        """Makes all entries acknowledged so far durable on every bookie of the ensemble.

        With deferred sync only this moves the LAC. A failure loses nothing; `force` can be called again.

        Raises:
            LedgerClosedException: The handle was closed.
            BKException: The error of the first bookie that failed, or the error that ended the ledger.
        """
        self._run(self._asynchronous.force())

    def close(self, *, force: bool = True) -> None:
        """Waits for outstanding appends to be acknowledged or to fail, then closes the ledger in the metadata.

        The ledger then ends at `last_add_confirmed`, finally and for every reader. Repeated calls share the outcome of
        the first, except for a `force=False` call after a failed force.

        Args:
            force: With deferred sync, makes all acknowledged entries durable first, so that none is cut off. If that
                fails the ledger stays open, and `close(force=False)` ends it at the last entry forced before.

        Raises:
            LedgerFencedException: Another client has taken over the ledger and closes it.
            MetadataVersionException: The ledger was closed by someone else.
            MetaStoreException: The metadata is unreachable.
        """
        self._run(self._asynchronous.close(force=force))

    def append(self, payload: Payload) -> int:
        """Appends an entry. Concurrent calls are pipelined, in the order of the calls.

        Waits while the limits of `ClientConfig` on outstanding appends are reached.

        Args:
            payload: The entry's bytes.

        Returns:
            The entry id, once the entry is acknowledged.

        Raises:
            LedgerFencedException: Another client has taken over the ledger.
            NotEnoughBookiesException: Failed bookies can't be replaced and the ack quorum is out of reach.
            LedgerClosedException: The handle was closed.
            BKException: Another error has ended the ledger for this writer.
        """
        return self._run(self._asynchronous.append(payload))


class UnboundedWriteHandle(UnboundedWriteHandleFacade):
    """The writer of an unbounded ledger, until another client takes over. Use it as a context manager: at the
    end it is released, and the ledger stays open.
    """

    def append(self, payload: Payload) -> int:
        """Appends an entry. Concurrent calls are pipelined, in the order of the calls.

        Waits while the limits of `ClientConfig` on outstanding appends are reached.

        Args:
            payload: The entry's bytes.

        Returns:
            The entry id, once the entry is acknowledged.

        Raises:
            LedgerFencedException: Another client has taken over the ledger.
            NotEnoughBookiesException: Failed bookies can't be replaced and the ack quorum is out of reach.
            LedgerClosedException: The handle was closed.
            BKException: Another error has ended the ledger for this writer.
        """
        return self._run(self._asynchronous.append(payload))

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._asynchronous.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self._asynchronous.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last written by this handle."""
        return self._asynchronous.metadata

    @property
    def term(self) -> int:
        """The term in which this handle writes."""
        return self._asynchronous.term

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest entry id up to which all entries are acknowledged; -1 for none."""
        return self._asynchronous.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """The LAFR: the highest entry id up to which all entries are on their whole write sets; -1 for none."""
        return self._asynchronous.last_add_fully_replicated

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to `last_add_confirmed`, deleted ones included."""
        return self._asynchronous.length

    @property
    def max_entry_bytes(self) -> int:
        """The largest payload of an entry."""
        return self._asynchronous.max_entry_bytes

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Members of the last ensemble that failed and were not replaced, with their errors."""
        return self._asynchronous.failed_bookies

    @property
    def pending_adds(self) -> int:
        """Appends not yet acknowledged."""
        return self._asynchronous.pending_adds

    def trim(self, before_entry_id: int) -> int:
        """Deletes the entries below `before_entry_id`, as far as complete fragments reach.

        Args:
            before_entry_id: The first entry to keep.

        Returns:
            The first entry that can be read from now on; lower than requested if the rest is in the last fragment.

        Raises:
            BKException: The metadata could not be changed.
        """
        return self._run(self._asynchronous.trim(before_entry_id))

    def close(self) -> None:
        """Waits until all appends are acknowledged and on their whole write sets, then ends the ledger for good.

        Afterwards no client can write to it or take it over; all its entries are fully replicated (G2). Repeated calls
        share the outcome of the first; if the metadata could not be changed they try again, or `release` the handle.

        Raises:
            LedgerClosedException: The handle was released, and the ledger is still open.
            TermSupersededException: Another client has taken over the ledger.
            BKException: The error that ended the writer, or the metadata could not be changed.
        """
        self._run(self._asynchronous.close())

    def release(self) -> None:
        """Waits until all appends are acknowledged or have failed, tells readers, and ends the handle; the ledger stays
        open.

        The next writer takes the ledger over, which is faster the more entries are fully replicated.
        """
        self._run(self._asynchronous.release())

    def abandon(self) -> None:
        """Ends the handle at once: appends that are not acknowledged fail, and may still become part of the ledger,
        which stays open.
        """
        self._run(self._asynchronous.abandon())

    def client_closed(self, error: BKException) -> None:
        """Ends the writer with its client; the ledger stays open in the metadata."""
        self._asynchronous.client_closed(error)


class RecordWriter(RecordWriterFacade):
    """The one writer of a ledger of records. Use it as a context manager, or call `close`."""

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._asynchronous.ledger_id

    def append(self, record: bytes) -> RecordPosition:
        """Appends a record. Concurrent calls share entries, in the order of the calls.

        Args:
            record: The record's bytes; may be empty.

        Returns:
            The position of the record, once its entry is acknowledged.

        Raises:
            IncorrectParameterException: The record is not bytes, or larger than an entry may be.
            LedgerClosedException: The writer was closed.
            BKException: As `WriteHandle.append`.
        """
        return self._run(self._asynchronous.append(record))

    def flush(self) -> None:
        """Sends the current batch and waits until all records so far are acknowledged or have failed."""
        self._run(self._asynchronous.flush())

    def close(self) -> None:
        """Waits for all records, then closes the ledger. Raises as `WriteHandle.close`."""
        self._run(self._asynchronous.close())


class AdvancedWriteHandle(AdvancedWriteHandleFacade):
    """The one writer of an advanced ledger. Use it as a context manager, or call `close`.

    Ids may arrive in any order, each once. An entry is acknowledged when it and all entries from 0 up to it are stored,
    so every id must eventually be appended: `close` ends the ledger before the first missing id and fails the appends
    that wait for it.
    """

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._asynchronous.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self._asynchronous.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last written or read by this handle."""
        return self._asynchronous.metadata

    @property
    def record(self) -> LedgerRecord:
        """The ledger metadata with its version, as last written or read by this handle."""
        return self._asynchronous.record

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest entry id up to which all entries are acknowledged; -1 for none."""
        return self._asynchronous.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to `last_add_confirmed`."""
        return self._asynchronous.length

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Bookies of the ensemble that failed and could not be replaced, with their errors; they are not written to for
        a while.
        """
        return self._asynchronous.failed_bookies

    def force(self) -> None:
        """Makes all entries acknowledged so far durable on every bookie of the ensemble.

        With deferred sync only this moves the LAC. A failure loses nothing; `force` can be called again.

        Raises:
            LedgerClosedException: The handle was closed.
            BKException: The error of the first bookie that failed, or the error that ended the ledger.
        """
        self._run(self._asynchronous.force())

    def close(self, *, force: bool = True) -> None:
        """Waits for outstanding appends to be acknowledged or to fail, then closes the ledger in the metadata.

        The ledger then ends at `last_add_confirmed`, finally and for every reader. Repeated calls share the outcome of
        the first, except for a `force=False` call after a failed force.

        Args:
            force: With deferred sync, makes all acknowledged entries durable first, so that none is cut off. If that
                fails the ledger stays open, and `close(force=False)` ends it at the last entry forced before.

        Raises:
            LedgerFencedException: Another client has taken over the ledger and closes it.
            MetadataVersionException: The ledger was closed by someone else.
            MetaStoreException: The metadata is unreachable.
        """
        self._run(self._asynchronous.close(force=force))

    def append(self, entry_id: int, payload: Payload) -> int:
        """Appends an entry with a given id.

        Waits while the limits of `ClientConfig` on outstanding appends are reached, unless the entry has the lowest
        missing id, for which the others wait.

        Args:
            entry_id: The id, 0 or above.
            payload: The entry's bytes.

        Returns:
            `entry_id`, once this entry and all lower ones are acknowledged.

        Raises:
            DuplicateEntryIdException: The id was used before.
            BKException: As `WriteHandle.append`.
        """
        return self._run(self._asynchronous.append(entry_id, payload))


class ReadHandle(ReadHandleFacade):
    """A reader of one ledger. Only `read_unconfirmed` returns entries above `last_add_confirmed`."""

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._asynchronous.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self._asynchronous.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last read by this handle."""
        return self._asynchronous.metadata

    @property
    def record(self) -> LedgerRecord:
        """The ledger metadata with its version, as last read by this handle."""
        return self._asynchronous.record

    @property
    def first_entry_id(self) -> int:
        """The first entry that may be read: 0, or the first that no trim of an unbounded ledger has deleted."""
        return self._asynchronous.first_entry_id

    @property
    def last_add_confirmed(self) -> int:
        """The LAC that this handle knows: the highest entry id that may be read; -1 for none."""
        return self._asynchronous.last_add_confirmed

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its end is final."""
        return self._asynchronous.is_closed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; 0 if it is not closed."""
        return self._asynchronous.length

    def close(self) -> None:
        """Ends the handle's background work and its tailing readers; the ledger itself is not changed."""
        self._run(self._asynchronous.close())

    def read_last_confirmed(self) -> int:
        """Reads the latest LAC: from the metadata of a closed ledger, otherwise from the bookies.

        Returns:
            The LAC. It is never lower than the LAC carried by any entry acknowledged before the call; the last few
            acknowledged entries may therefore not be covered yet.

        Raises:
            ReadException: Too few bookies responded.
            TimeoutException: Too few bookies responded in time.
        """
        return self._run(self._asynchronous.read_last_confirmed())

    def try_read_last_confirmed(self) -> int:
        """Reads a newer LAC without metadata, from the first bookie that has one: cheaper, but without a guarantee.

        Returns:
            The LAC that this handle now knows.

        Raises:
            LedgerRecoveryException: No bookie gave a valid response.
        """
        return self._run(self._asynchronous.try_read_last_confirmed())

    def read_last_confirmed_and_entry(
        self, entry_id: int, timeout: float | None = None, parallel: bool = False
    ) -> LastConfirmedAndEntry:
        """Waits until `entry_id` may be read (long poll).

        Args:
            entry_id: The entry to wait for.
            timeout: Seconds to wait at each bookie, approximately; None uses `long_poll_timeout_seconds`.
            parallel: Asks all bookies at once instead of one after the other.

        Returns:
            The LAC, and the entry if the responding bookie held it. If not, read it once the LAC has reached it.

        Raises:
            NoSuchEntryException: The bookies hold no such entry yet.
            NoSuchLedgerExistsException: The bookies hold nothing of the ledger yet.
            BKException: No bookie gave a valid response; the retained one of their errors.
        """
        return self._run(self._asynchronous.read_last_confirmed_and_entry(entry_id, timeout, parallel))

    def read(self, first: int, last: int) -> Generator[Entry, None, None]:
        """Yields the entries first … last in order, with read-ahead. Raises as `read_batches`."""
        return flat(self.read_batches(first, last))

    def read_batches(self, first: int, last: int, max_entries: int = 1000) -> Generator[list[Entry], None, None]:
        """Yields the entries first … last in order, in lists.

        Args:
            first: First entry id.
            last: Last entry id, included; first - 1 for an empty range.
            max_entries: Maximum entries per list.

        Raises:
            IncorrectParameterException: The range is invalid.
            ReadException: The range goes beyond `last_add_confirmed`.
            LedgerTrimmedException: A trim has deleted entry `first` of an unbounded ledger.
            BKException: No replica could serve an entry; raised after all entries before it were delivered.
        """
        return iterate(self._thread, self._asynchronous.read_batches(first, last, max_entries))

    def read_columns(self, first: int, last: int, max_entries: int = 16384) -> Generator[EntryColumns, None, None]:
        """Yields the entries first … last in order as columns of at most `max_entries`, for building tables.

        The columns have the sizes in which the entries arrived from the bookies, and no Python object is created per
        entry. Raises as `read_batches`.
        """
        return iterate(self._thread, self._asynchronous.read_columns(first, last, max_entries))

    def read_unconfirmed(self, first: int, last: int) -> Generator[Entry, None, None]:
        """Yields the entries first … last, including those above `last_add_confirmed`.

        An entry above it may be missing (NoSuchEntryException), may still be replaced, and may never become part of the
        ledger. Raises IllegalOpException for an unbounded ledger, whose bookies show no such entries.
        """
        return flat(self.read_unconfirmed_batches(first, last))

    def read_unconfirmed_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> Generator[list[Entry], None, None]:
        """Like `read_unconfirmed`, in lists of at most `max_entries`."""
        return iterate(self._thread, self._asynchronous.read_unconfirmed_batches(first, last, max_entries))

    def read_records(self, first: int, last: int) -> Generator[Record, None, None]:
        """Yields the records of the entries first … last in order. Raises as `read_records_batches`."""
        return flat(self.read_records_batches(first, last))

    def read_records_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> Generator[list[Record], None, None]:
        """Yields the records of the entries first … last in order, in the lists of `read_batches`.

        In a ledger without a codec (`bookgate.codec` in its custom metadata) each entry is one record.

        Raises:
            PayloadCodecException: This version does not support the codec, or an entry is not encoded with it.
            IllegalOpException: The library for its compression is not installed.
            BKException: As `read_batches`.
        """
        return iterate(self._thread, self._asynchronous.read_records_batches(first, last, max_entries))

    def tail_records(self, from_entry: int = 0) -> Generator[Record, None, None]:
        """Yields records from entry `from_entry` on as they are confirmed. See `tail_batches`."""
        return flat(self.tail_records_batches(from_entry))

    def tail_records_batches(self, from_entry: int = 0, max_entries: int = 1000) -> Generator[list[Record], None, None]:
        """Yields lists of records as they are confirmed. Raises as `tail_batches` and `read_records_batches`."""
        return iterate(self._thread, self._asynchronous.tail_records_batches(from_entry, max_entries))

    def read_last_entry(self) -> Entry:
        """Reads the latest LAC, then the entry there.

        Raises:
            NoSuchEntryException: No entry is confirmed.
        """
        return self._run(self._asynchronous.read_last_entry())

    def tail(
        self, from_entry: int = 0, *, long_poll: bool = True, parallel: bool = False
    ) -> Generator[Entry, None, None]:
        """Yields the entries from `from_entry` on as they are confirmed, until the ledger is closed. See
        `tail_batches`.
        """
        return flat(self.tail_batches(from_entry, long_poll=long_poll, parallel=parallel))

    def tail_batches(
        self, from_entry: int = 0, max_entries: int = 1000, *, long_poll: bool = True, parallel: bool = False
    ) -> Generator[list[Entry], None, None]:
        """Yields lists of entries from `from_entry` on as they are confirmed, until the ledger is closed.

        An entry becomes readable once a later entry, an explicit LAC or the ledger's end shows that it is confirmed.
        Entries that are readable already arrive in large lists.

        Args:
            from_entry: First entry id.
            max_entries: Maximum entries per list.
            long_poll: True waits at the bookies for news; False asks them every `tail_poll_interval_seconds`.
            parallel: Waits at all bookies at once instead of one after the other.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The ledger was deleted.
            LedgerTrimmedException: A trim has deleted the next entry of an unbounded ledger.
            LedgerClosedException: This handle was closed meanwhile.
            BKException: The bookies have not served this reader for `tail_failure_timeout_seconds`; their error.
        """
        return iterate(
            self._thread,
            self._asynchronous.tail_batches(from_entry, max_entries, long_poll=long_poll, parallel=parallel),
        )


class ServiceDiscovery(ServiceDiscoveryFacade):
    """Which bookies exist."""

    def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        """The registration of one bookie.

        Raises:
            BookieHandleNotAvailableException: The bookie is not registered.
        """
        return self._run(self._asynchronous.bookie_service_info(bookie_id))

    def cluster_info(self) -> ClusterInfo:
        """The cluster's id and layout.

        Raises:
            MetaStoreException: The cluster was never initialised, or the store is unreachable.
        """
        return self._run(self._asynchronous.cluster_info())


class LedgerManager(LedgerManagerFacade):
    """Ledger metadata with compare-and-set."""

    def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        """Creates a ledger at version 0.

        Args:
            ledger_id: The id to use; None generates one in scope 0.
            metadata: The initial metadata, with its first ensemble.

        Returns:
            The created ledger with its id and version 0.

        Raises:
            LedgerExistException: The given id is in use.
            LedgerIdOverflowException: The generator has no ids left.
            UnknownOutcomeException: The response was lost; the ledger may or may not exist.
        """
        return self._run(self._asynchronous.create(ledger_id, metadata))

    def read(self, ledger_id: LedgerId) -> LedgerRecord:
        """Reads the metadata of a ledger.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            MetadataFormatException: The stored bytes are not valid metadata.
        """
        return self._run(self._asynchronous.read(ledger_id))

    def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata if its stored version is `expected_version`.

        Args:
            ledger_id: The ledger.
            metadata: The new metadata.
            expected_version: The version that the caller has read.

        Returns:
            The ledger with the new metadata and the new version.

        Raises:
            MetadataVersionException: The stored version is another one.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The response was lost; the metadata may or may not have been replaced.
        """
        return self._run(self._asynchronous.write(ledger_id, metadata, expected_version))

    def write_once(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata as `write` does, without a second attempt where the response was lost: others may have
        removed the ledger and created it anew since, at the same version.

        Managers whose `write` makes further attempts override this.

        Args:
            ledger_id: The ledger.
            metadata: The new metadata.
            expected_version: The version that the caller has read.

        Raises:
            BKException: As `write`.
        """
        return self._run(self._asynchronous.write_once(ledger_id, metadata, expected_version))

    def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        """Replaces the metadata of the record's ledger as `write` does at its version, but not those of another ledger
        that has its id by now: versions begin anew with each creation.

        Args:
            record: The ledger, as the caller has read it.
            metadata: The new metadata.

        Returns:
            The ledger with the new metadata and the new version.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger, or another one with its id.
            BKException: As `write`.
        """
        return self._run(self._asynchronous.write_to(record, metadata))

    def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        """Removes a ledger.

        Args:
            ledger_id: The ledger.
            expected_version: The version that the caller has read; None removes any version.

        Raises:
            MetadataVersionException: The stored version is another one.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The response was lost; the ledger may or may not have been removed.
        """
        self._run(self._asynchronous.remove(ledger_id, expected_version))

    def remove_record(self, record: LedgerRecord) -> None:
        """Removes the record's ledger as `remove` does at its version, but not another one that has its id by now.

        Args:
            record: The ledger, as the caller has read it.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger, or another one with its id.
            BKException: As `remove`.
        """
        self._run(self._asynchronous.remove_record(record))

    def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        """Creates several ledgers, each as `create` does.

        The creates are independent: some may succeed while others fail. Stores that can create many ledgers in one
        round trip override this sequential loop.

        Args:
            requests: The ledgers to create.

        Returns:
            One result per request, in the same order: the created ledger, or the exception of that create.
        """
        return self._run(self._asynchronous.create_many(requests))

    def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        """Reads several ledgers, each as `read` does.

        Args:
            ledger_ids: The ledgers.

        Returns:
            One result per id, in the same order: the ledger, or the exception of that read.
        """
        return self._run(self._asynchronous.read_many(ledger_ids))

    def demand_complete_listings(self, demanded: bool = True) -> None:
        """From now on listings fail where ledgers would be left out that this process may not see, or do not any more.

        For whoever concludes from what is not listed. Stores list everything, and need nothing for it.
        """
        self._asynchronous.demand_complete_listings(demanded)

    def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> Generator[Sequence[int], None, None]:
        """Lists all ledger ids of a scope in strictly ascending `unsigned` order, as bounded, non-empty runs.

        A ledger that exists throughout the listing appears exactly once. A listing that can't be completed raises. It
        never ends early, because garbage collection deletes ledgers that a complete listing lacks.

        Args:
            scope_id: The scope, bits 64–127 of the ledger ids.
            start_after: Lists only ids above this one.
            end_before: Lists only ids below this one.

        Yields:
            Runs of ids, bits 0–63.

        Raises:
            BKException: The listing can't be completed.
        """
        return iterate(self._thread, self._asynchronous.ledger_ranges(scope_id, start_after, end_before))

    def scopes(self, start_after: int = 0) -> Generator[Sequence[int], None, None]:
        """Lists the scopes above `start_after` that have a ledger, ascending by their bits, as non-empty runs.

        A scope whose last ledger is removed meanwhile may be listed or not. The default is that of a store that keeps
        ledgers of scope 0 only: none.
        """
        return iterate(self._thread, self._asynchronous.scopes(start_after))

    def ledger_records(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> Generator[Sequence[LedgerRecord], None, None]:
        """Like `ledger_ranges`, with the metadata: pages of records in ascending order of id, none empty.

        Ledgers that are deleted meanwhile are left out; one that can't be read ends the listing with its error. No
        page has more than `page_size` records; 0: what suits the store, which here is a run. Stores that list ids and
        metadata together override this.
        """
        return iterate(self._thread, self._asynchronous.ledger_records(scope_id, start_after, end_before, page_size))


class BookKeeper(BookKeeperFacade):
    """A client of one cluster. It may be used from several threads; close it, or use it as a context
    manager.
    """

    @property
    def config(self) -> ClientConfig:
        """The configuration of this client."""
        return self._asynchronous.config

    @property
    def metrics(self) -> ClientMetrics:
        """The client's metrics: `snapshot()`, or `collector()` for a prometheus-client registry."""
        return self._asynchronous.metrics

    @property
    def ledger_manager(self) -> LedgerManager:
        """Direct access to ledger metadata, below the level of ledger handles."""
        return LedgerManager(self._thread, self._asynchronous.ledger_manager)

    @property
    def service_discovery(self) -> ServiceDiscovery:
        """Direct access to the bookie registrations of the cluster."""
        return ServiceDiscovery(self._thread, self._asynchronous.service_discovery)

    @takes_ledger_options
    def create_ledger(self, *, options: LedgerOptions) -> WriteHandle:
        """Creates a ledger on bookies that the placement policy chooses.

        Args:
            options: Properties of the ledger; the default is `LedgerOptions()`. Its fields are also accepted as
                arguments, in their order or by name, and take precedence:
                `create_ledger(3, 3, 2, password=b"secret")`, `create_ledger(options=options, ledger_id=7)`.

        Raises:
            IncorrectParameterException: The options contradict each other.
            NotEnoughBookiesException: Fewer writable bookies are available than the ensemble needs.
            LedgerExistException: The given id is in use.
            UnknownOutcomeException: The response was lost, and retries could not establish whether the ledger exists.
            IllegalOpException: Deferred sync or an id with a scope, in a client of protocol v2.
        """
        return WriteHandle(self._thread, self._run(self._asynchronous.create_ledger(options=options)))

    @takes_ledger_options
    def create_advanced_ledger(self, *, options: LedgerOptions) -> AdvancedWriteHandle:
        """Creates a ledger whose entry ids the application chooses, in any order; see `AdvancedWriteHandle`.

        Takes the arguments of `create_ledger`, except a guaranteed write quorum, and raises the same exceptions.
        """
        return AdvancedWriteHandle(self._thread, self._run(self._asynchronous.create_advanced_ledger(options=options)))

    def create_record_ledger(
        self,
        options: LedgerOptions | None = None,
        *,
        compression: Compression = Compression.NONE,
        linger_seconds: float = 0.005,
        batch_bytes: int = 64 * 1024,
    ) -> RecordWriter:
        """Creates a ledger of small records, which are gathered into entries and compressed.

        Its custom metadata name the codec (`bookgate.codec`), by which `ReadHandle.read_records` and other readers that
        know it take entries apart.

        Args:
            options: Properties of the ledger; the default is `LedgerOptions()`.
            compression: Of each batch: none, LZ4 (quick) or ZSTD (small). Needs the extra `bookgate[compression]`.
            linger_seconds: How long the first record of a batch waits for others, in seconds.
            batch_bytes: Bytes of records that fill a batch.

        Raises:
            IllegalOpException: The library of the compression is not installed.
            IncorrectParameterException: The options contradict each other.
            BKException: As `create_ledger`.
        """
        return RecordWriter(
            self._thread,
            self._run(
                self._asynchronous.create_record_ledger(
                    options, compression=compression, linger_seconds=linger_seconds, batch_bytes=batch_bytes
                )
            ),
        )

    def create_unbounded_ledger(
        self,
        options: LedgerOptions | None = None,
        *,
        max_fragment_bytes: int | None = None,
        max_fragment_entries: int | None = None,
        max_fragment_seconds: float | None = None,
    ) -> UnboundedWriteHandle:
        """Creates an unbounded ledger: a log without an end, which any client may take over (`take_over`).

        Args:
            options: Properties of the ledger; the default is `LedgerOptions()`.
            max_fragment_bytes: Payload bytes after which a fragment ends, and the next begins on other bookies; None
                for no limit. All writers of the ledger keep it.
            max_fragment_entries: The same in entries.
            max_fragment_seconds: The same in seconds, for this writer only.

        Returns:
            The ledger's writer at term 0.

        Raises:
            NotEnoughBookiesException: Fewer writable bookies that honour terms are available than the ensemble needs.
            IncorrectParameterException: The options contradict each other, or ask for deferred sync.
            IllegalOpException: The client speaks protocol v2, which carries no terms.
            BKException: As `create_ledger`.
        """
        return UnboundedWriteHandle(
            self._thread,
            self._run(
                self._asynchronous.create_unbounded_ledger(
                    options,
                    max_fragment_bytes=max_fragment_bytes,
                    max_fragment_entries=max_fragment_entries,
                    max_fragment_seconds=max_fragment_seconds,
                )
            ),
        )

    def take_over(
        self,
        ledger_id: int | LedgerId | UUID,
        password: bytes = b"",
        *,
        scope_id: int = 0,
        max_fragment_seconds: float | None = None,
    ) -> UnboundedWriteHandle:
        """Takes an unbounded ledger over from whoever writes to it, whose appends fail from then on.

        What the last writer left is found and put on all its bookies. An append of it that was acknowledged is in the
        ledger, one that was not may be.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            password: The password given when the ledger was created.
            scope_id: The scope of a ledger given by a number.
            max_fragment_seconds: Seconds after which this writer begins a new fragment; None for no limit.

        Returns:
            The ledger's writer at the next term.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            IncorrectParameterException: The ledger is not unbounded, or the limit is not above 0.
            UnauthorizedAccessException: The password is wrong.
            LedgerClosedException: The ledger is closed, for good.
            TermSupersededException: Another client took it over at the same time, and was faster.
            LedgerRecoveryException: Too few bookies responded. Try again later.
            NotEnoughBookiesException: What the last writer left can't be put on as many bookies as there have to be.
            IllegalOpException: The client speaks protocol v2, which carries no terms.
        """
        return UnboundedWriteHandle(
            self._thread,
            self._run(
                self._asynchronous.take_over(
                    ledger_id, password, scope_id=scope_id, max_fragment_seconds=max_fragment_seconds
                )
            ),
        )

    def trim_ledger(self, ledger_id: int | LedgerId | UUID, before_entry_id: int, *, scope_id: int = 0) -> LedgerRecord:
        """Deletes the first entries of an unbounded ledger, as far as complete fragments reach. A writer goes on beside
        it.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            before_entry_id: The first entry to keep.
            scope_id: The scope of a ledger given by a number.

        Returns:
            The ledger as it is stored then; its first fragment begins at the first entry that can be read.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            IncorrectParameterException: The ledger is not unbounded.
        """
        return self._run(self._asynchronous.trim_ledger(ledger_id, before_entry_id, scope_id=scope_id))

    def open_ledger(
        self, ledger_id: int | LedgerId | UUID, password: bytes = b"", recovery: bool = False, *, scope_id: int = 0
    ) -> ReadHandle:
        """Opens a ledger for reading.

        A closed ledger opens the same way with and without recovery.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            password: The password given when the ledger was created.
            recovery: True takes an unclosed ledger from its writer: it is fenced, its end is found and made durable,
                and it is closed. False leaves its writer alone; the handle reads up to the last entry known to be
                confirmed, and `ReadHandle.read_last_confirmed` looks further.
            scope_id: The scope of a ledger given by a number.

        Returns:
            A handle to read the ledger.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            UnauthorizedAccessException: The password is wrong (detected before any bookie is contacted).
            LedgerRecoveryException: Too few bookies responded. The ledger can be opened again later.
            IllegalOpException: Recovery of an unbounded ledger, which is taken over instead (`take_over`).
        """
        return ReadHandle(
            self._thread, self._run(self._asynchronous.open_ledger(ledger_id, password, recovery, scope_id=scope_id))
        )

    def open_record(self, record: LedgerRecord, password: bytes = b"") -> ReadHandle:
        """Opens a ledger whose record is at hand, without reading metadata.

        Only of an unbounded ledger that was being taken over, the metadata are read to learn whether it still is.

        Args:
            record: The ledger's metadata and version. If it was not closed at that time, the handle knows only the
                entries before its last fragment; `ReadHandle.read_last_confirmed` looks further.
            password: The password given when the ledger was created.

        Returns:
            A handle to read the ledger.

        Raises:
            UnauthorizedAccessException: The password is wrong.
        """
        return ReadHandle(self._thread, self._asynchronous.open_record(record, password))

    def last_adds_confirmed(self, records: Sequence[LedgerRecord], password: bytes = b"") -> list[int | BKException]:
        """Finds out how far each ledger can be read now.

        The metadata of a closed ledger states its end. For the others it asks the bookies, for many ledgers at once and
        without fencing.

        Args:
            records: The ledgers.
            password: The password of all of them.

        Returns:
            The LAC of each ledger (-1 if nothing can be read), or its exception, in the order of `records`.

        Raises:
            UnauthorizedAccessException: The password is wrong.
        """
        return self._run(self._asynchronous.last_adds_confirmed(records, password))

    def reopen_empty_ledger(
        self, ledger_id: int | LedgerId | UUID, password: bytes = b"", *, scope_id: int = 0
    ) -> WriteHandle:
        """Resumes writing an OPEN ledger without entries, created by a process that is gone.

        A ledger has one writer. Therefore no bookie may hold an entry of it (checked without fencing), and the new
        writer first marks the custom metadata by compare-and-set, so that of several only one succeeds. The caller must
        be certain that the handle that created the ledger no longer writes.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            password: The password given when the ledger was created.
            scope_id: The scope of a ledger given by a number.

        Returns:
            The handle of the ledger's only writer.

        Raises:
            IllegalOpException: The ledger is not OPEN, holds entries, or was resumed by another client.
        """
        return WriteHandle(
            self._thread, self._run(self._asynchronous.reopen_empty_ledger(ledger_id, password, scope_id=scope_id))
        )

    def delete_ledger(
        self, ledger_id: int | LedgerId | UUID, expected_version: int | None = None, *, scope_id: int = 0
    ) -> bool:
        """Removes a ledger's metadata; bookies delete its entries later.

        Args:
            ledger_id: The ledger.
            expected_version: Removes it only in this version (`LedgerRecord.version`), so that nothing that was changed
                meanwhile is lost; None removes any.
            scope_id: The scope of a ledger given by a number.

        Returns:
            Whether it was there. Removing a ledger that does not exist succeeds; one whose answer was lost counts as
            removed, though another client may have been faster.

        Raises:
            MetadataVersionException: It has another version than the expected one.
        """
        return self._run(self._asynchronous.delete_ledger(ledger_id, expected_version, scope_id=scope_id))

    def update_custom_metadata(
        self,
        ledger_id: int | LedgerId | UUID,
        changes: Mapping[str, bytes | None],
        expected_version: int | None = None,
        *,
        scope_id: int = 0,
    ) -> LedgerRecord:
        """Sets and removes names of a ledger's custom metadata, in whatever state it is; the others stay.

        It is a compare-and-set, repeated while others change the ledger. A writer goes on beside it.

        Args:
            ledger_id: The ledger.
            changes: New values by name; None removes a name.
            expected_version: Changes it only in this version; None changes any.
            scope_id: The scope of a ledger given by a number.

        Returns:
            The ledger as it is stored then.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            MetadataVersionException: It has another version than the expected one.
            IncorrectParameterException: A value is no bytes.
        """
        return self._run(
            self._asynchronous.update_custom_metadata(ledger_id, changes, expected_version, scope_id=scope_id)
        )

    def add_connection_listener(self, listener: ConnectionListener) -> Callable[[], None]:
        """Has a listener told when the client reaches its gateways, loses all of them, and is closed.

        Args:
            listener: Called on the event loop with a `ConnectionState`, at once with the present one. What it raises is
                logged.

        Returns:
            A function that removes the listener.

        Raises:
            IllegalOpException: The client uses a metadata store directly.
        """
        return self._asynchronous.add_connection_listener(listener)

    def catch_up(self) -> None:
        """Ensures that nothing that this client reads of the metadata from now on is older than this call.

        What one client reads never goes back in time. A new one does not know what others have seen, and a gateway may
        be behind: call it before conclusions are drawn from what another client did.

        Raises:
            MetaStoreException: No gateway responds, the store is unreachable, or the gateway tells no revision.
        """
        self._run(self._asynchronous.catch_up())

    def read_record(self, ledger_id: int | LedgerId | UUID, *, scope_id: int = 0) -> LedgerRecord:
        """Reads a ledger's metadata and version. `scope_id` is the scope of a ledger given by a number.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
        """
        return self._run(self._asynchronous.read_record(ledger_id, scope_id=scope_id))

    def watch_ledger(
        self, ledger_id: int | LedgerId | UUID, *, scope_id: int = 0
    ) -> Generator[LedgerRecord, None, None]:
        """Yields a ledger's current record, then one after each change, until the ledger is deleted.

        A slow consumer receives only the latest record. After an outage of a gateway the watch resumes without missing
        the latest state. `scope_id` is the scope of a ledger given by a number.

        Raises:
            ClientClosedException: The client was closed meanwhile.
            UnauthorizedAccessException: The gateway lets this client not read the ledger.
        """
        return iterate(self._thread, self._asynchronous.watch_ledger(ledger_id, scope_id=scope_id))

    def bookies(self, bookie_set: BookieSet = BookieSet.ALL) -> Sequence[RegisteredBookie]:
        """The bookies of the cluster, ordered by id."""
        return self._run(self._asynchronous.bookies(bookie_set))

    def list_ledgers(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> Generator[Sequence[LedgerRecord], None, None]:
        """Lists all ledgers of a scope with their metadata, in ascending order of id.

        Args:
            scope_id: The scope, bits 64–127 of the ledger ids; BookKeeper's own ledgers are in scope 0.
            start_after: Lists only ids above this one.
            end_before: Lists only ids below this one.
            page_size: Ledgers per page; 0 uses the gateway's page size.

        Yields:
            Pages of ledgers. The iteration ends normally only when all ledgers were listed. A page from a gateway is a
            `LedgerColumns` where its ledgers fit into one, which makes a record when it is accessed.

        Raises:
            BKException: The listing could not be completed.
        """
        return iterate(self._thread, self._asynchronous.list_ledgers(scope_id, start_after, end_before, page_size))


class Cursor(CursorFacade):
    """A cursor, as this consumer knows it."""

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._asynchronous.name

    @property
    def position(self) -> RecordPosition:
        """The first record that is not committed, as last read or written here."""
        return self._asynchronous.position

    @property
    def committed_ms(self) -> int:
        """When it was committed, in milliseconds since 1970."""
        return self._asynchronous.committed_ms

    def commit(self, position: RecordPosition) -> None:
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
        self._run(self._asynchronous.commit(position))

    def reset(self, position: RecordPosition) -> None:
        """Moves the cursor to any position, also back. Raises as `commit`."""
        self._run(self._asynchronous.reset(position))

    def refresh(self) -> RecordPosition:
        """Reads the cursor again; returns its position. Raises as `commit`."""
        return self._run(self._asynchronous.refresh())


class StreamWriter(StreamWriterFacade):
    """The writer of a stream, until another one begins. Use it as a context manager, or call `close`."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._asynchronous.name

    @property
    def term(self) -> int:
        """The term in which it writes; each writer of a stream has a higher one than the writer before it."""
        return self._asynchronous.term

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is acknowledged."""
        return self._asynchronous.last_add_confirmed

    def last_sequence(self, producer: str) -> int | None:
        """The highest sequence number of a producer, of any writer; None if the stream has none of it.

        A source that begins again goes on after it. A stream remembers its last 1,000 producers.
        """
        return self._asynchronous.last_sequence(producer)

    def append(self, record: Payload, *, producer: str = "", sequence: int | None = None) -> RecordPosition | None:
        """Appends a record. Concurrent calls share entries, in the order of the calls.

        Args:
            record: The record's bytes; may be empty.
            producer: A name of the record's source, for exactly-once appends.
            sequence: The record's number at its source, higher than of the record before it. A number at or below one
                that the stream has of this producer is not appended again, also by another writer.

        Returns:
            The position of the record once it is acknowledged; None if the stream has it already.

        Raises:
            TermSupersededException: Another writer has begun.
            IncorrectParameterException: The record is too large, or no bytes; the sequence has no producer.
            LedgerClosedException: The writer was closed.
            BKException: The error that has ended the writer. Open another one and append the record again.
        """
        return self._run(self._asynchronous.append(record, producer=producer, sequence=sequence))

    def flush(self) -> None:
        """Sends the current batch and waits until all records so far are acknowledged or have failed."""
        self._run(self._asynchronous.flush())

    def close(self) -> None:
        """Waits for all records and ends the writer; the stream stays open for the next one.

        Nothing is appended from the call on. A call that is cancelled does not stop it; others wait for the same end.
        """
        self._run(self._asynchronous.close())


class StreamReader(StreamReaderFacade):
    """A reader of a stream. Use it as a context manager, or call `close`."""

    @property
    def cursor(self) -> Cursor | None:
        """The cursor, if it reads with one."""
        found = self._asynchronous.cursor
        return None if found is None else Cursor(self._thread, found)

    def close(self) -> None:
        """Ends the reader; the stream and the cursor stay as they are."""
        self._run(self._asynchronous.close())


class Stream(StreamFacade):
    """A stream of records, which any number of readers and one writer at a time use."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._asynchronous.name

    @property
    def ledger_id(self) -> LedgerId:
        """The unbounded ledger that the stream lies in."""
        return self._asynchronous.ledger_id

    @property
    def retention(self) -> Retention:
        """What is deleted, as last read or written here."""
        return self._asynchronous.retention

    def writer(
        self, *, linger_seconds: float = 0.005, batch_bytes: int = 64 * 1024, retention_interval_seconds: float = 60.0
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
        return StreamWriter(
            self._thread,
            self._run(
                self._asynchronous.writer(
                    linger_seconds=linger_seconds,
                    batch_bytes=batch_bytes,
                    retention_interval_seconds=retention_interval_seconds,
                )
            ),
        )

    def reader(self, start: From = Start.EARLIEST, *, cursor: str | None = None, follow: bool = True) -> StreamReader:
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
        return StreamReader(self._thread, self._run(self._asynchronous.reader(start, cursor=cursor, follow=follow)))

    def position_of(self, start: From) -> RecordPosition:
        """The position where a reader that begins at `start` would begin. Raises as `reader`."""
        return self._run(self._asynchronous.position_of(start))

    def cursors(self) -> list[Cursor]:
        """The cursors of the stream, by name. Raises BKException."""
        return [Cursor(self._thread, each) for each in self._run(self._asynchronous.cursors())]

    def cursor(self, name: str, start: From = Start.EARLIEST) -> Cursor:
        """A cursor, which is created at `start` if the stream has none of this name. Raises as `reader`."""
        return Cursor(self._thread, self._run(self._asynchronous.cursor(name, start)))

    def find_cursor(self, name: str) -> Cursor | None:
        """A cursor; None if the stream has none of this name. Raises BKException."""
        found = self._run(self._asynchronous.find_cursor(name))
        return None if found is None else Cursor(self._thread, found)

    def delete_cursor(self, name: str) -> bool:
        """Removes a cursor, so that no retention waits for it. Returns whether it was there. Raises BKException."""
        return self._run(self._asynchronous.delete_cursor(name))

    def set_retention(self, retention: Retention) -> None:
        """Changes what is deleted; writers notice it at their next look. Raises BKException."""
        self._run(self._asynchronous.set_retention(retention))

    def apply_retention(self) -> int:
        """Deletes what the retention does not keep, as a writer does from time to time.

        Returns:
            The first entry that can be read.

        Raises:
            BKException: The metadata or the bookies could not be read.
        """
        return self._run(self._asynchronous.apply_retention())

    def trim(self, before: RecordPosition | int) -> int:
        """Deletes the records before a position, whatever cursors stand there, as far as complete fragments reach.

        Args:
            before: The first record to keep, or the first entry.

        Returns:
            The first entry that can be read; lower than requested where the rest is in the last fragment, or the next
            writer needs it.

        Raises:
            BKException: The metadata or the bookies could not be read.
        """
        return self._run(self._asynchronous.trim(before))

    def state(self) -> StreamState:
        """The stream, its cursors and how far they are behind. Raises BKException."""
        return self._run(self._asynchronous.state())


class Streams(StreamsFacade):
    """The streams in one scope of a cluster."""

    @property
    def scope_id(self) -> int:
        """The scope that holds the streams, signed."""
        return self._asynchronous.scope_id

    def create(
        self,
        name: str,
        options: LedgerOptions | None = None,
        *,
        retention: Retention | None = None,
        max_fragment_bytes: int | None = 256 * 1024 * 1024,
        max_fragment_entries: int | None = None,
        max_fragment_seconds: float | None = 600.0,
    ) -> Stream:
        """Creates a stream.

        Args:
            name: Its name: 1 to 255 bytes of printable text.
            options: Ensemble, quorums, digest, password and custom metadata; the default is `LedgerOptions()`.
            retention: What is deleted; None keeps everything.
            max_fragment_bytes: Payload bytes after which a fragment ends; retention deletes complete fragments only.
            max_fragment_entries: The same in entries.
            max_fragment_seconds: The same in seconds.

        Raises:
            LedgerExistException: There is a stream of this name.
            IncorrectParameterException: The name is none, or the options contradict each other.
            NotEnoughBookiesException: Fewer writable bookies that honour terms are available than the ensemble needs.
            BKException: As `BookKeeper.create_unbounded_ledger`.
        """
        return Stream(
            self._thread,
            self._run(
                self._asynchronous.create(
                    name,
                    options,
                    retention=retention,
                    max_fragment_bytes=max_fragment_bytes,
                    max_fragment_entries=max_fragment_entries,
                    max_fragment_seconds=max_fragment_seconds,
                )
            ),
        )

    def open(self, name: str, password: bytes = b"") -> Stream:
        """Opens a stream.

        Args:
            name: Its name.
            password: The password given when it was created.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no stream of this name.
            IllegalOpException: Another stream has the id of this name; choose another name.
        """
        return Stream(self._thread, self._run(self._asynchronous.open(name, password)))

    def open_or_create(
        self,
        name: str,
        password: bytes = b"",
        *,
        options: LedgerOptions | None = None,
        retention: Retention | None = None,
    ) -> Stream:
        """Opens a stream; creates it if there is none of this name.

        Args:
            name: Its name.
            password: The password of the stream.
            options: Of a stream that is created; its password is `password`.
            retention: Of a stream that is created.

        Raises:
            BKException: As `open` and `create`.
        """
        return Stream(
            self._thread,
            self._run(self._asynchronous.open_or_create(name, password, options=options, retention=retention)),
        )

    def names(self) -> Generator[list[str], None, None]:
        """Lists the names of all streams, in pages without order. Leaves out records that can't be read.

        Raises:
            BKException: The listing could not be completed.
        """
        return iterate(self._thread, self._asynchronous.names())

    def delete(self, name: str) -> bool:
        """Deletes a stream with its cursors; bookies delete its entries later.

        Returns:
            Whether it was there.

        Raises:
            UnauthorizedAccessException: The policy lets this client not write the stream's record, and nothing is gone;
                or not delete a cursor, the ledger or the record, and what comes before that is gone, in this order.
            BKException: The metadata could not be changed; repeat it.
        """
        return self._run(self._asynchronous.delete(name))
