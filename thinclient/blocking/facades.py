"""What the blocking client is made of by hand: how a call waits, and what has no asynchronous method of its own.

A facade holds an asynchronous object and the thread whose loop it belongs to. The methods that only wait for the
asynchronous method of the same name are generated (`generate`) into `client`, one class a facade; a method that stands
here is not generated.

One event loop in one background thread a process carries all blocking clients (`loop_thread`); what is under way when
the last one is closed ends with ClientClosedException. Handles and clients may be used from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import ClientClosedException
from bookgate.ledger.metadata_store import BookieSet, LedgerManager, RegisteredBookie, ServiceDiscovery
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord
from bookgate.ledger.streams import DEFAULT_SCOPE
from bookgate.runtime.unclosed import made_at
from bookgate.thinclient.blocking.loop_thread import LoopThread, check_may_wait, is_abandoned, iterate, result_of
from bookgate.thinclient.bookies.auth import ClientAuthProvider
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.streams.cursors import after
from bookgate.thinclient.gateways.tokens import Provider
from bookgate.thinclient.handles.advanced_write_handle import AdvancedWriteHandle
from bookgate.thinclient.handles.appending import Payload
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.record_writer import RecordWriter
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from bookgate.thinclient.streams.cursor import Cursor
from bookgate.thinclient.streams.directory import Streams
from bookgate.thinclient.streams.reader import StreamReader
from bookgate.thinclient.streams.stream import Stream
from bookgate.thinclient.streams.writer import StreamWriter

T = TypeVar("T")
Asynchronous = TypeVar("Asynchronous")
AnyClient = TypeVar("AnyClient", bound="Closable")
AnyHandle = TypeVar(
    "AnyHandle",
    bound=BaseWriteHandle | UnboundedWriteHandle | ReadHandle | RecordWriter | StreamWriter | StreamReader,
)
AnyReader = TypeVar("AnyReader", bound=ReadHandle | StreamReader)
AnyWriter = TypeVar("AnyWriter", bound=WriteHandle | UnboundedWriteHandle)

_APPEND_BATCH = 1000


def _taken(payload: T) -> T | bytes:
    """What is appended later in the loop's thread: a copy, where the caller may change the payload until then."""
    return bytes(payload) if isinstance(payload, bytearray | memoryview) else payload


class Closable(Protocol):
    """An asynchronous client."""

    async def close(self) -> None: ...


class Facade(Generic[Asynchronous]):
    """An asynchronous object whose calls are waited for."""

    def __init__(self, thread: LoopThread, asynchronous: Asynchronous) -> None:
        """Called by `BookKeeper`."""
        self._thread = thread
        self._asynchronous = asynchronous
        if hasattr(asynchronous, "made_at"):
            # Its own stack is that of the thread.
            asynchronous.made_at = made_at()

    def __repr__(self) -> str:
        return repr(self._asynchronous)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coroutine)


class _HandleFacade(Facade[AnyHandle]):
    """A handle is a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._asynchronous.__aexit__(kind, error, traceback))


class _ReaderFacade(_HandleFacade[AnyReader]):
    """Ends with a generator that was abandoned without a wait: nobody relies on a reader's end, as on a ledger's."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if is_abandoned(error):
            self._thread.start_end(self._asynchronous.__aexit__(kind, error, traceback))
        else:
            super().__exit__(kind, error, traceback)


class ReadHandleFacade(_ReaderFacade[ReadHandle]):
    """Adds nothing."""


class _AppendingFacade(_HandleFacade[AnyWriter]):
    """Appends with futures that another thread can wait for, and many appends from a plain iterable."""

    def append_future(self, payload: Payload) -> Future[int]:
        """Starts an append; appends that one thread starts get ids in that order. The future returns the entry id."""
        return self._thread.start(self._asynchronous.append(_taken(payload)))

    def append_all_future(self, payloads: Sequence[Payload]) -> Future[int]:
        """Starts appends of many entries; those that one thread starts keep their order. See `append_all`."""
        return self._thread.start(self._asynchronous.append_all(list(map(_taken, payloads))))

    def append_all(self, payloads: Iterable[Payload]) -> int:
        """Appends many entries, pipelined within the limits of `ClientConfig`.

        Args:
            payloads: The entries. They are taken in runs, each while the run before is being appended.

        Returns:
            The id of the last entry, once all are acknowledged; without payloads, the last entry id so far.

        Raises:
            BKException: As `append`. Entries up to `last_add_confirmed` are acknowledged and kept.
        """
        last = self._asynchronous.last_add_confirmed
        pending: Future[int] | None = None
        batch: list[Payload] = []
        for payload in payloads:
            batch.append(_taken(payload))  # the iterable may give the same buffer each time
            if len(batch) >= _APPEND_BATCH:
                # One batch is under way while the next is collected; two at once would mix their entries.
                if pending is not None:
                    last = result_of(pending)
                pending = self.append_all_future(batch)
                batch = []
        if pending is not None:
            last = result_of(pending)
        if batch:
            last = self._run(self._asynchronous.append_all(batch))
        return last


class WriteHandleFacade(_AppendingFacade[WriteHandle]):
    """Adds nothing."""


class UnboundedWriteHandleFacade(_AppendingFacade[UnboundedWriteHandle]):
    """Adds nothing."""


class RecordWriterFacade(_HandleFacade[RecordWriter]):
    """Appends with futures that another thread can wait for."""

    @property
    def handle(self) -> WriteHandle:
        """The asynchronous writer of the ledger's entries; its properties may be read here."""
        return self._asynchronous.handle

    def append_future(self, record: bytes) -> Future[RecordPosition]:
        """Starts an append; records that one thread starts keep their order. The future returns the position."""
        return self._thread.start(self._asynchronous.append(_taken(record)))


class AdvancedWriteHandleFacade(_HandleFacade[AdvancedWriteHandle]):
    """Appends with futures that another thread can wait for."""

    def append_future(self, entry_id: int, payload: Payload) -> Future[int]:
        """Starts an append: what comes before its turn must not be waited for. The future returns the entry id."""
        return self._thread.start(self._asynchronous.append(entry_id, _taken(payload)))


class LedgerManagerFacade(Facade[LedgerManager]):
    """Adds nothing."""


class ServiceDiscoveryFacade(Facade[ServiceDiscovery]):
    """Asks for all bookies unless told otherwise."""

    def bookies(self, bookie_set: BookieSet = BookieSet.ALL) -> Sequence[RegisteredBookie]:
        """The current set of bookies, ordered by bookie id."""
        return self._run(self._asynchronous.bookies(bookie_set))


class StreamWriterFacade(_HandleFacade[StreamWriter]):
    """Appends with futures that another thread can wait for, and many records from a plain iterable."""

    def append_future(
        self, record: Payload, *, producer: str = "", sequence: int | None = None
    ) -> Future[RecordPosition | None]:
        """Starts an append; records that one thread starts keep their order. See `append`."""
        return self._thread.start(self._asynchronous.append(_taken(record), producer=producer, sequence=sequence))

    def append_all(
        self, records: Iterable[Payload], *, producer: str = "", first_sequence: int | None = None
    ) -> RecordPosition | None:
        """Appends many records, pipelined.

        Args:
            records: The records, taken in runs.
            producer: A name of the records' source, for exactly-once appends.
            first_sequence: The number of the first record; the others follow it one by one.

        Returns:
            The position of the last record that was not there already, once all are acknowledged; None for none.

        Raises:
            BKException: As `append`. Records before the failed one may be in the stream.
        """
        last: RecordPosition | None = None
        rest = iter(records)
        while run := list(map(_taken, islice(rest, _APPEND_BATCH))):
            appended = self._run(self._asynchronous.append_all(run, producer=producer, first_sequence=first_sequence))
            last = appended or last
            first_sequence = None if first_sequence is None else first_sequence + len(run)
        return last


class StreamReaderFacade(_ReaderFacade[StreamReader]):
    """Knows what was delivered: the page that is fetched ahead is not, and must not be committed."""

    def __init__(self, thread: LoopThread, asynchronous: StreamReader) -> None:
        """Called by `Stream`."""
        super().__init__(thread, asynchronous)
        self._position = asynchronous.position

    def __repr__(self) -> str:
        return self._asynchronous._described(self._position)

    @property
    def position(self) -> RecordPosition:
        """The next record: after the last one that was delivered."""
        return self._position

    def seek(self, position: RecordPosition) -> None:
        """The next call of `records` or `records_batches` begins here; the cursor stays where it is."""
        self._position = position

    def records(self) -> Generator[StreamRecord, None, None]:
        """Yields records in order. Raises as `records_batches`."""
        with closing(self._pages()) as batches:
            for batch in batches:
                for record in batch:
                    self._position = after(record.position)
                    yield record

    def records_batches(self, max_entries: int = 1000) -> Generator[list[StreamRecord], None, None]:
        """Yields lists of records in order, each of the records of at most `max_entries` entries. Raises as
        `bookgate.streams.StreamReader.records_batches`.
        """
        with closing(self._pages(max_entries)) as batches:
            for batch in batches:
                self._position = after(batch[-1].position)
                yield batch

    def _pages(self, max_entries: int = 1000) -> Generator[list[StreamRecord], None, None]:
        # Fetches run ahead on the loop, also the last one of an iterator that was left: they share no position.
        return iterate(self._thread, self._asynchronous._batches_from(self._position, max_entries))

    def commit(self, position: RecordPosition | None = None) -> None:
        """Commits a position of the cursor; None: all that was delivered. Raises as
        `bookgate.streams.StreamReader.commit`.
        """
        self._run(self._asynchronous.commit(self._position if position is None else position))


class CursorFacade(Facade[Cursor]):
    """Adds nothing."""


class StreamFacade(Facade[Stream]):
    """Adds nothing."""


class StreamsFacade(Facade[Streams]):
    """Made by the application."""

    def __init__(self, bookkeeper: BookKeeperFacade, *, scope_id: int = DEFAULT_SCOPE) -> None:
        """
        Args:
            bookkeeper: The client. It stays open as long as streams are used.
            scope_id: The scope that holds the streams; a policy may give each team one.
        """
        streams = Streams(bookkeeper._asynchronous, scope_id=scope_id)
        super().__init__(bookkeeper._thread, streams)


class ClientFacade(Facade[AnyClient]):
    """A client keeps the loop's thread alive until it is closed, once however many threads do that. As a reader, it
    ends with a generator that was abandoned without a wait.
    """

    def __init__(self, thread: LoopThread, asynchronous: AnyClient) -> None:
        """Called by `connect`."""
        super().__init__(thread, asynchronous)
        self._closing = threading.Lock()
        """Taken for good by the first who closes the client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not is_abandoned(error):
            self.close()
        elif self._closing.acquire(blocking=False):
            self._thread.start_release(self._asynchronous.close)

    def close(self) -> None:
        """Closes all connections."""
        raise NotImplementedError

    @property
    def _closed(self) -> bool:
        return self._closing.locked()

    def _close_once(self) -> None:
        if self._closed:
            return
        check_may_wait()
        if self._closing.acquire(blocking=False):
            try:
                self._thread.run(self._asynchronous.close())
            finally:
                self._thread.release()


class BookKeeperFacade(ClientFacade[BookKeeper]):
    """Connecting and closing."""

    @classmethod
    def connect(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
        token_provider: Provider | None = None,
    ) -> Self:
        """Connects to a cluster through its gateways, or directly to its metadata store.

        Args:
            gateways: `grpc://host:port,host:port`, or the URI of a metadata store; None uses the configuration's
                `gateways`.
            config: The client configuration; None uses the defaults.
            auth_provider: Authenticates to bookies, instead of the provider that the configuration names.
            token_provider: Returns the token that shows gateways who this is, instead of the configuration's. It is
                called for each call to a gateway, on the client's event loop, and must not block.

        Returns:
            The client. Close it after use.

        Raises:
            MetaStoreException: No gateway responds, or the store is unreachable.
            IncorrectParameterException: The address is invalid, or the store's extra is not installed.
        """
        return cls._make(BookKeeper.connect(gateways, config, auth_provider, token_provider))

    @classmethod
    def connect_lazily(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
    ) -> Self:
        """Creates a client without contacting a gateway yet, for readers that already have ledger records.

        Args:
            gateways: As for `connect`, but gateways only.
            config: As for `connect`.
            auth_provider: As for `connect`.

        Returns:
            The client. Close it after use.

        Raises:
            IncorrectParameterException: The URI is that of a metadata store, which needs `connect`.
        """

        async def make() -> BookKeeper:
            return BookKeeper.connect_lazily(gateways, config, auth_provider)

        return cls._make(make())

    @classmethod
    def _make(cls, coroutine: Coroutine[Any, Any, BookKeeper]) -> Self:
        thread = LoopThread.acquire()
        try:
            return cls(thread, thread.run(coroutine))
        except BaseException:
            thread.release()
            raise

    def close(self) -> None:
        """Closes all connections; outstanding calls fail with ClientClosedException. Open ledgers are not closed."""
        self._close_once()

    def seed_addresses(self, bookies: Iterable[BookieServiceInfo]) -> None:
        """Seeds the address cache with known bookie addresses.

        Service discovery is consulted only if a bookie can't be reached at its seeded address, or has none.

        Args:
            bookies: Registrations, such as `bookies` returned elsewhere.
        """
        known = tuple(bookies)

        async def tell() -> None:
            self._asynchronous.seed_addresses(known)

        self._run(tell())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            coroutine.close()
            raise ClientClosedException("the client is closed")
        return super()._run(coroutine)
