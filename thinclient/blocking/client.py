"""The client without asyncio: the same names, each call returning when it is done.

One event loop in one background thread a process carries all blocking clients (`loop_thread`); what is under way when
the last one is closed ends with ClientClosedException. Iterators are plain iterators that fetch whole batches, so that
the hop between threads is paid once a batch, not once an entry; the next batch is fetched while the present one is
being used.

Handles and clients may be used from several threads.
"""

from __future__ import annotations

from collections.abc import (
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from bookgate.ledger import metadata_store
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import BKException, ClientClosedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet, ClusterInfo, LedgerRecord, RegisteredBookie
from bookgate.thinclient import client as asynchronous
from bookgate.thinclient.blocking.loop_thread import LoopThread, flat, iterate, result_of
from bookgate.thinclient.bookies.auth import ClientAuthProvider
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.tailing import LastConfirmedAndEntry
from bookgate.thinclient.handles import advanced_write_handle, base_write_handle, read_handle, write_handle
from bookgate.thinclient.handles.base_write_handle import Payload
from bookgate.thinclient.handles.ledger_options import LedgerOptions, takes_ledger_options
from bookgate.thinclient.metrics import ClientMetrics

T = TypeVar("T")
AnyWriteHandle = TypeVar("AnyWriteHandle", bound=base_write_handle.BaseWriteHandle)

_APPEND_BATCH = 1000


class _BaseWriteHandle(Generic[AnyWriteHandle]):
    """What the handles of every kind of writer have in common."""

    def __init__(self, thread: LoopThread, handle: AnyWriteHandle) -> None:
        self._thread = thread
        self._handle = handle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.run(self._handle.__aexit__(kind, error, traceback))

    @property
    def ledger_id(self) -> LedgerId:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def record(self) -> LedgerRecord:
        return self._handle.record

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    def length(self) -> int:
        return self._handle.length

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        return self._handle.failed_bookies

    def force(self) -> None:
        """Returns once everything acknowledged so far is durable on every bookie of the ensemble."""
        self._thread.run(self._handle.force())

    def close(self, *, force: bool = True) -> None:
        """Waits for outstanding appends, then closes the ledger."""
        self._thread.run(self._handle.close(force=force))


class AdvancedWriteHandle(_BaseWriteHandle[advanced_write_handle.AdvancedWriteHandle]):
    """The one writer of an advanced ledger; see `bookgate.AdvancedWriteHandle`."""

    def append(self, entry_id: int, payload: Payload) -> int:
        """Appends an entry under `entry_id`; returns the id once it and all lower ones are acknowledged."""
        return self._thread.run(self._handle.append(entry_id, payload))

    def append_future(self, entry_id: int, payload: Payload) -> Future[int]:
        """Starts an append: what comes before its turn must not be waited for."""
        return self._thread.start(self._handle.append(entry_id, payload))


class WriteHandle(_BaseWriteHandle[write_handle.WriteHandle]):
    """The one writer of a ledger; see `bookgate.WriteHandle`."""

    def append(self, payload: Payload) -> int:
        """Appends an entry; returns its id once it is acknowledged."""
        return self._thread.run(self._handle.append(payload))

    def append_future(self, payload: Payload) -> Future[int]:
        """Starts an append; appends started in order by one thread get ids in that order."""
        return self._thread.start(self._handle.append(payload))

    def append_all_future(self, payloads: Sequence[Payload]) -> Future[int]:
        """Starts appends of many entries; those that one thread starts keep their order. See `append_all`."""
        return self._thread.start(self._handle.append_all(payloads))

    def append_all(self, payloads: Iterable[Payload]) -> int:
        """Appends many entries; returns the last id once all are acknowledged."""
        last = self._handle.last_add_confirmed
        pending: Future[int] | None = None
        batch: list[Payload] = []
        for payload in payloads:
            batch.append(payload)
            if len(batch) >= _APPEND_BATCH:
                # One batch is under way while the next is collected; two at once would mix their entries.
                if pending is not None:
                    last = result_of(pending)
                pending = self._thread.start(self._handle.append_all(batch))
                batch = []
        if pending is not None:
            last = result_of(pending)
        if batch:
            last = self._thread.run(self._handle.append_all(batch))
        return last


class ReadHandle:
    """A ledger that is read; see `bookgate.ReadHandle`."""

    def __init__(self, thread: LoopThread, handle: read_handle.ReadHandle) -> None:
        self._thread = thread
        self._handle = handle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ledger_id(self) -> LedgerId:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def record(self) -> LedgerRecord:
        return self._handle.record

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    def is_closed(self) -> bool:
        return self._handle.is_closed

    @property
    def length(self) -> int:
        return self._handle.length

    def close(self) -> None:
        """Ends what the handle keeps up."""
        self._thread.run(self._handle.close())

    def read_last_confirmed(self) -> int:
        """Asks for the newest last add confirmed."""
        return self._thread.run(self._handle.read_last_confirmed())

    def try_read_last_confirmed(self) -> int:
        """The same, satisfied by the first bookie that has news."""
        return self._thread.run(self._handle.try_read_last_confirmed())

    def read_last_confirmed_and_entry(
        self, entry_id: int, timeout: float | None = None, parallel: bool = False
    ) -> LastConfirmedAndEntry:
        """Waits until `entry_id` may be read."""
        return self._thread.run(self._handle.read_last_confirmed_and_entry(entry_id, timeout, parallel))

    def read(self, first: int, last: int) -> Generator[Entry, None, None]:
        """The entries first … last in order."""
        return flat(self.read_batches(first, last))

    def read_batches(self, first: int, last: int, max_entries: int = 1000) -> Generator[list[Entry], None, None]:
        """The entries first … last in order, in lists of at most `max_entries`."""
        return iterate(self._thread, self._handle.read_batches(first, last, max_entries))

    def read_columns(self, first: int, last: int, max_entries: int = 16384) -> Generator[EntryColumns, None, None]:
        """The entries first … last in order, in columns of at most `max_entries`."""
        return iterate(self._thread, self._handle.read_columns(first, last, max_entries))

    def read_unconfirmed(self, first: int, last: int) -> Generator[Entry, None, None]:
        """The entries first … last, also above `last_add_confirmed`."""
        return flat(self.read_unconfirmed_batches(first, last))

    def read_unconfirmed_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> Generator[list[Entry], None, None]:
        """The same in lists of at most `max_entries`."""
        return iterate(self._thread, self._handle.read_unconfirmed_batches(first, last, max_entries))

    def read_last_entry(self) -> Entry:
        """The last confirmed entry, asked for anew."""
        return self._thread.run(self._handle.read_last_entry())

    def tail(
        self, from_entry: int = 0, *, long_poll: bool = True, parallel: bool = False
    ) -> Generator[Entry, None, None]:
        """The entries from `from_entry` on, as they are confirmed, until the ledger is closed."""
        return flat(self.tail_batches(from_entry, long_poll=long_poll, parallel=parallel))

    def tail_batches(
        self, from_entry: int = 0, max_entries: int = 1000, *, long_poll: bool = True, parallel: bool = False
    ) -> Generator[list[Entry], None, None]:
        """The same in lists of at most `max_entries`."""
        tail = self._handle.tail_batches(from_entry, max_entries, long_poll=long_poll, parallel=parallel)
        return iterate(self._thread, tail)


class ServiceDiscovery:
    """Which bookies there are; see `bookgate.ledger.metadata_store.ServiceDiscovery`."""

    def __init__(self, thread: LoopThread, discovery: metadata_store.ServiceDiscovery) -> None:
        self._thread = thread
        self._discovery = discovery

    def bookies(self, bookie_set: BookieSet = BookieSet.ALL) -> Sequence[RegisteredBookie]:
        """The set as it stands, ordered by bookie id."""
        return self._thread.run(self._discovery.bookies(bookie_set))

    def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        """Raises BookieHandleNotAvailableException for a bookie that is not registered."""
        return self._thread.run(self._discovery.bookie_service_info(bookie_id))

    def cluster_info(self) -> ClusterInfo:
        """What the metadata store says of the cluster."""
        return self._thread.run(self._discovery.cluster_info())


class LedgerManager:
    """Ledger metadata by compare-and-set; see `bookgate.ledger.metadata_store.LedgerManager`."""

    def __init__(self, thread: LoopThread, ledgers: metadata_store.LedgerManager) -> None:
        self._thread = thread
        self._ledgers = ledgers

    def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        """Creates a ledger at version 0; `None` generates an id."""
        return self._thread.run(self._ledgers.create(ledger_id, metadata))

    def read(self, ledger_id: LedgerId) -> LedgerRecord:
        """A ledger's record."""
        return self._thread.run(self._ledgers.read(ledger_id))

    def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        """Many records in one round trip; a failure as its exception."""
        return self._thread.run(self._ledgers.read_many(ledger_ids))

    def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata if it is at `expected_version`."""
        return self._thread.run(self._ledgers.write(ledger_id, metadata, expected_version))

    def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        """Removes a ledger."""
        self._thread.run(self._ledgers.remove(ledger_id, expected_version))

    def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> Iterator[Sequence[int]]:
        """All ledger ids of a scope in ascending order, in runs."""
        return iterate(self._thread, self._ledgers.ledger_ranges(scope_id, start_after, end_before))


class BookKeeper:
    """A client of one cluster; see `bookgate.BookKeeper`."""

    def __init__(self, thread: LoopThread, bookkeeper: asynchronous.BookKeeper) -> None:
        self._thread = thread
        self._client = bookkeeper
        self._closed = False

    @classmethod
    def connect(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
    ) -> Self:
        """A client of the cluster behind `grpc://host:port,host:port`."""
        return cls._make(asynchronous.BookKeeper.connect(gateways, config, auth_provider))

    @classmethod
    def connect_lazily(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
    ) -> Self:
        """The same without asking a gateway now."""

        async def make() -> asynchronous.BookKeeper:
            return asynchronous.BookKeeper.connect_lazily(gateways, config, auth_provider)

        return cls._make(make())

    @classmethod
    def _make(cls, coroutine: Coroutine[Any, Any, asynchronous.BookKeeper]) -> Self:
        thread = LoopThread.acquire()
        try:
            return cls(thread, thread.run(coroutine))
        except BaseException:
            thread.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection. Ledgers are not closed."""
        if not self._closed:
            self._closed = True
            try:
                self._thread.run(self._client.close())
            finally:
                self._thread.release()

    @property
    def config(self) -> ClientConfig:
        return self._client.config

    @property
    def metrics(self) -> ClientMetrics:
        """What this client counts."""
        return self._client.metrics

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return ServiceDiscovery(self._thread, self._client.service_discovery)

    @property
    def ledger_manager(self) -> LedgerManager:
        return LedgerManager(self._thread, self._client.ledger_manager)

    @takes_ledger_options
    def create_ledger(self, *, options: LedgerOptions) -> WriteHandle:
        """Creates a ledger on bookies that the placement policy chooses; takes the fields of `options` as well."""
        return WriteHandle(self._thread, self._run(self._client.create_ledger(options=options)))

    @takes_ledger_options
    def create_advanced_ledger(self, *, options: LedgerOptions) -> AdvancedWriteHandle:
        """Creates a ledger whose entry ids the application chooses; takes the fields of `options` as well."""
        return AdvancedWriteHandle(self._thread, self._run(self._client.create_advanced_ledger(options=options)))

    def open_ledger(self, ledger_id: int | LedgerId, password: bytes = b"", recovery: bool = False) -> ReadHandle:
        """Opens a ledger to read it, taking it from its writer with `recovery`."""
        return ReadHandle(self._thread, self._run(self._client.open_ledger(ledger_id, password, recovery)))

    def open_record(self, record: LedgerRecord, password: bytes = b"") -> ReadHandle:
        """A reader of a ledger whose record is at hand, without asking for metadata."""
        return ReadHandle(self._thread, self._client.open_record(record, password))

    def last_adds_confirmed(self, records: Sequence[LedgerRecord], password: bytes = b"") -> list[int | BKException]:
        """How far each ledger may be read now; a failure as its exception."""
        return self._run(self._client.last_adds_confirmed(records, password))

    def reopen_empty_ledger(self, ledger_id: int | LedgerId, password: bytes = b"") -> WriteHandle:
        """Takes up writing an OPEN ledger that holds no entry."""
        return WriteHandle(self._thread, self._run(self._client.reopen_empty_ledger(ledger_id, password)))

    def delete_ledger(self, ledger_id: int | LedgerId) -> None:
        """Removes a ledger."""
        self._run(self._client.delete_ledger(ledger_id))

    def read_record(self, ledger_id: int | LedgerId) -> LedgerRecord:
        """A ledger's metadata and version."""
        return self._run(self._client.read_record(ledger_id))

    def seed_addresses(self, bookies: Iterable[BookieServiceInfo]) -> None:
        """Where bookies are, from one who has asked already; see `bookgate.BookKeeper.seed_addresses`."""
        known = tuple(bookies)

        async def tell() -> None:
            self._client.seed_addresses(known)

        self._run(tell())

    def list_ledgers(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> Iterator[list[LedgerRecord]]:
        """All ledgers of a scope, in pages."""
        return iterate(self._thread, self._client.list_ledgers(scope_id, start_after, end_before, page_size))

    def watch_ledger(self, ledger_id: int | LedgerId) -> Iterator[LedgerRecord]:
        """A ledger's record now, then after each change; ends when the ledger is deleted."""
        return iterate(self._thread, self._client.watch_ledger(ledger_id))

    def bookies(self, bookie_set: BookieSet = BookieSet.ALL) -> Sequence[RegisteredBookie]:
        """The bookies of the cluster, ordered by id."""
        return self._run(self._client.bookies(bookie_set))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            coroutine.close()
            raise ClientClosedException("the client is closed")
        return self._thread.run(coroutine)
