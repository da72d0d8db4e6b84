"""A bookie and a metadata store in memory, behind the interfaces that the client meets.

The fake bookie keeps BookKeeper's rules for keys, fences and missing entries, and has switches for faults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from bookgate import BookKeeper, ClientConfig, ReadHandle, WriteHandle
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.entry import decode_header
from bookgate.ledger.errors import (
    BookieHandleNotAvailableException,
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import (
    BookieSet,
    BookiesListener,
    ClusterInfo,
    LedgerManager,
    LedgerMetadataListener,
    LedgerRecord,
    RegisteredBookie,
    ServiceDiscovery,
)
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.frames import FrameDecoder
from bookgate.ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
    WriteLacRequest,
    WriteLacResponse,
)
from bookgate.ledger.wire.v3 import decode_request, encode_response


@dataclass
class RawLedgerRecord:
    """What a fake bookie keeps of a ledger."""

    master_key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    explicit_lac: bytes | None = None


class FakeBookie:
    """An entry-protocol server in memory."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.ledgers: dict[int, RawLedgerRecord] = {}
        self.requests: list[Request] = []
        self.silent = False
        """Requests are taken in and not answered."""
        self.garbage: bytes | None = None
        """Sent instead of an answer."""
        self.override: Callable[[Request], Status | None] = lambda request: None
        """A status to answer with instead of serving the request."""
        self.tamper: Callable[[Response], Response] = lambda response: response
        self.held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.holding = False
        """Answers are kept back until `let_go`."""
        self.batches = True
        """Batch reads are served; without, they close the connection, as in bookies that don't know them."""
        self.long_polls = True
        """Without, a long poll is taken for a read of the last entry, as by bookies that don't know it."""
        self.parked_reads: list[tuple[ReadRequest, asyncio.StreamWriter, Callable[[Response], bytes]]] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._requested = asyncio.Event()
        self._left = asyncio.Event()
        self.writers: set[asyncio.StreamWriter] = set()

    @property
    def bookie_id(self) -> str:
        return self.name or f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and every connection, as a killed process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.parked_reads.clear()
        for writer in list(self.writers):
            writer.transport.abort()

    async def until_requested(self, count: int, kind: type = object) -> None:
        """Returns once `count` requests of a kind have come."""
        while sum(isinstance(request, kind) for request in self.requests) < count:
            self._requested.clear()
            await self._requested.wait()

    async def until_left(self) -> None:
        """Returns once its end of every connection is closed."""
        while self.writers:
            self._left.clear()
            await self._left.wait()

    def let_go(self) -> None:
        self.holding = False
        held, self.held = self.held, []
        for writer, frame in held:
            writer.write(frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        decoder = FrameDecoder()
        try:
            while data := await reader.read(1 << 16):
                for packet in decoder.feed(data):
                    if packet[0] == 0x0A:
                        self._take(decode_request(packet), writer, encode_response)
                    else:
                        self._take_v2(packet, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self.writers.discard(writer)
            self._left.set()

    def _take_v2(self, packet: memoryview, writer: asyncio.StreamWriter) -> None:
        request = v2.decode_request(packet).request
        if isinstance(request, AddRequest):
            ids = decode_header(request.body)
            request = request._replace(ledger_id=ids.ledger_id, entry_id=ids.entry_id)
        if isinstance(request, BatchReadRequest) and not self.batches:
            writer.transport.abort()
            return
        self._take(request, writer, v2.encode_response)

    def _take(self, request: Request, writer: asyncio.StreamWriter, encode: Callable[[Response], bytes]) -> None:
        self.requests.append(request)
        self._requested.set()
        if self.silent:
            return
        if self.garbage is not None:
            writer.write(self.garbage)
            return
        status = self.override(request)
        if status is None and self._parks(request):
            parked = (request, writer, encode)
            self.parked_reads.append(parked)
            asyncio.get_running_loop().call_later((request.timeout_ms or 0) / 1000, self._time_out, parked)
            return
        self._answer(request, status, writer, encode)
        if isinstance(request, AddRequest):
            self.wake(request.ledger_id)

    @property
    def parked_count(self) -> int:
        """Long polls that wait here."""
        return len(self.parked_reads)

    def wake(self, ledger_id: int, everyone: bool = False) -> None:
        """Answers the long polls whose LAC was passed; with `everyone` all, as a fence does."""
        for parked in list(self.parked_reads):
            if parked[0].ledger_id == ledger_id and (everyone or not self._parks(parked[0])):
                self.parked_reads.remove(parked)
                self._answer(parked[0], None, *parked[1:])

    def _parks(self, request: Request) -> TypeGuard[ReadRequest]:
        if not isinstance(request, ReadRequest) or request.previous_lac is None or not self.long_polls:
            return False
        ledger = self.ledgers.get(request.ledger_id)
        return ledger is not None and bool(ledger.entries) and self._lac(ledger) <= request.previous_lac

    def _time_out(self, parked: tuple[ReadRequest, asyncio.StreamWriter, Callable[[Response], bytes]]) -> None:
        if parked in self.parked_reads:
            self.parked_reads.remove(parked)
            self._answer(parked[0], None, *parked[1:])

    @staticmethod
    def _lac(ledger: RawLedgerRecord) -> int:
        return max(decode_header(body).last_add_confirmed for body in ledger.entries.values())

    def _answer(
        self,
        request: Request,
        status: Status | None,
        writer: asyncio.StreamWriter,
        encode: Callable[[Response], bytes],
    ) -> None:
        response = error_response(request, status) if status is not None else self.tamper(self.handle(request))
        frame = encode(response)
        if self.holding:
            self.held.append((writer, frame))
        else:
            writer.write(frame)

    def handle(self, request: Request) -> Response:
        match request:
            case AddRequest():
                return self._add(request)
            case ReadRequest():
                return self._read(request)
            case ReadLacRequest():
                return self._read_lac(request)
            case WriteLacRequest():
                self.ledgers.setdefault(
                    request.ledger_id, RawLedgerRecord(request.master_key)
                ).explicit_lac = request.body
                return WriteLacResponse(request.txn_id, Status.EOK, request.ledger_id)
            case ForceLedgerRequest():
                return ForceLedgerResponse(request.txn_id, Status.EOK, request.ledger_id)
            case BatchReadRequest():
                return self._read_batch(request)
        return error_response(request, Status.EBADREQ)

    def _add(self, request: AddRequest) -> Response:
        ledger = self.ledgers.setdefault(request.ledger_id, RawLedgerRecord(request.master_key))
        if ledger.master_key != request.master_key:
            return error_response(request, Status.EUA)
        if ledger.fenced and not request.recovery:
            return error_response(request, Status.EFENCED)
        ledger.entries[request.entry_id] = request.body
        return AddResponse(request.txn_id, Status.EOK, request.ledger_id, request.entry_id, request.term)

    def _read(self, request: ReadRequest) -> Response:
        if request.fence:
            if request.master_key is None:
                return error_response(request, Status.EUA)
            ledger = self.ledgers.setdefault(request.ledger_id, RawLedgerRecord(request.master_key))
            if ledger.master_key != request.master_key:
                return error_response(request, Status.EUA)
            ledger.fenced = True
        if request.ledger_id not in self.ledgers:
            return error_response(request, Status.ENOLEDGER)
        entries = self.ledgers[request.ledger_id].entries
        if request.previous_lac is not None and self.long_polls and entries:
            return self._piggyback(request, self.ledgers[request.ledger_id])
        entry_id = max(entries, default=-1) if request.entry_id == -1 else request.entry_id
        if entry_id not in entries:
            return error_response(request, Status.ENOENTRY)
        lac = self._lac(self.ledgers[request.ledger_id])
        return ReadResponse(
            request.txn_id, Status.EOK, request.ledger_id, request.entry_id, entries[entry_id], max_lac=lac
        )

    def _piggyback(self, request: ReadRequest, ledger: RawLedgerRecord) -> Response:
        lac, wanted = self._lac(ledger), (-1 if request.previous_lac is None else request.previous_lac) + 1
        body = ledger.entries.get(wanted) if lac >= wanted else None
        entry_id = -1 if body is None else wanted
        return ReadResponse(request.txn_id, Status.EOK, request.ledger_id, entry_id, body, max_lac=lac)

    def _read_batch(self, request: BatchReadRequest) -> Response:
        first = self._read(ReadRequest(request.txn_id, request.ledger_id, request.entry_id))
        if first.status != Status.EOK:
            return error_response(request, Status(first.status))
        entries, entry_id, size = self.ledgers[request.ledger_id].entries, request.entry_id, 36
        bodies: list[bytes] = []
        while entry_id in entries and (request.max_count <= 0 or len(bodies) < request.max_count):
            size += len(entries[entry_id]) + 4
            if bodies and size > request.max_size:
                break
            bodies.append(entries[entry_id])
            entry_id += 1
        return BatchReadResponse(request.txn_id, Status.EOK, request.ledger_id, request.entry_id, tuple(bodies))

    def _read_lac(self, request: ReadLacRequest) -> Response:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None or not ledger.entries:
            return error_response(request, Status.ENOENTRY)
        last = ledger.entries[max(ledger.entries)]
        return ReadLacResponse(request.txn_id, Status.EOK, request.ledger_id, ledger.explicit_lac, last)


class InMemoryLedgerManager(LedgerManager):
    """Compare-and-set in a dictionary."""

    def __init__(self) -> None:
        self.records: dict[LedgerId, LedgerRecord] = {}
        self.listeners: dict[LedgerId, list[LedgerMetadataListener]] = {}
        self.creations = 0
        self.before_write: Callable[[LedgerId, LedgerMetadata], None] = lambda ledger_id, metadata: None

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        ledger_id = ledger_id or LedgerId.unscoped(len(self.records))
        if ledger_id in self.records:
            raise LedgerExistException(f"ledger {ledger_id} exists")
        self.creations += 1
        return self._store(LedgerRecord(ledger_id, metadata, 0, incarnation=self.creations))

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        if ledger_id not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")
        return self.records[ledger_id]

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        self.before_write(ledger_id, metadata)
        before = await self.read(ledger_id)
        if before.version != expected_version:
            raise MetadataVersionException(f"ledger {ledger_id} is not at version {expected_version}")
        return self._store(replace(before, metadata=metadata, version=expected_version + 1))

    def change(self, ledger_id: LedgerId, **changes: Any) -> None:
        """A change by somebody else."""
        record = self.records[ledger_id]
        self._store(replace(record, metadata=replace(record.metadata, **changes), version=record.version + 1))

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        found = await self.read(ledger_id)
        if expected_version not in (None, found.version):
            raise MetadataVersionException(f"version {found.version}")
        del self.records[ledger_id]
        for listener in list(self.listeners.get(ledger_id, [])):
            listener(ledger_id, None)

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        for ledger_id in sorted(self.records):
            if ledger_id.scope_id == scope_id and (start_after is None or ledger_id.low > start_after):
                yield [ledger_id.low]

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.setdefault(ledger_id, []).append(listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners[ledger_id].remove(listener)

    def _store(self, record: LedgerRecord) -> LedgerRecord:
        self.records[record.ledger_id] = record
        for listener in self.listeners.get(record.ledger_id, []):
            listener(record.ledger_id, record)
        return record


class FakeDiscovery(ServiceDiscovery):
    """Knows the fake bookies."""

    def __init__(self, bookies: Sequence[FakeBookie]) -> None:
        self.registered = list(bookies)
        self.lookups: list[str] = []
        self.asked = 0
        """How often for a set of bookies."""
        self.listeners: list[BookiesListener] = []
        self.properties: dict[str, str] = {}
        """Of each bookie."""

    def _describe(self, bookie: FakeBookie) -> RegisteredBookie:
        endpoints = BookieServiceInfo.legacy(f"127.0.0.1:{bookie.port}").endpoints
        info = BookieServiceInfo(bookie.bookie_id, endpoints, self.properties)
        return RegisteredBookie(info, writable=True, read_only=False)

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        self.asked += 1
        await asyncio.sleep(0)
        return [self._describe(bookie) for bookie in self.registered]

    def tell(self) -> None:
        """Has those who watch hear of the bookies registered now."""
        for listener in self.listeners:
            listener([self._describe(bookie) for bookie in self.registered])

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        self.lookups.append(bookie_id)
        for bookie in self.registered:
            if bookie.bookie_id == bookie_id:
                return self._describe(bookie)
        raise BookieHandleNotAvailableException(f"bookie {bookie_id} is not registered")

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        """Tells nothing before `tell`."""
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo("instance", "fake")


class FakeCluster:
    """Bookies, metadata, and clients of them."""

    def __init__(self, bookies: list[FakeBookie]) -> None:
        self.bookies = bookies
        self.discovery = FakeDiscovery(bookies)
        self.metadata = InMemoryLedgerManager()
        self.clients: list[BookKeeper] = []

    def client(self, **settings: Any) -> BookKeeper:
        config = ClientConfig(**settings)
        client = BookKeeper(self.metadata, self.discovery, config, rng=random.Random(7))
        self.clients.append(client)
        return client

    def bookie(self, bookie_id: str) -> FakeBookie:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def ensemble(self, metadata: LedgerMetadata) -> list[FakeBookie]:
        """The last ensemble's bookies in index order."""
        return [self.bookie(bookie_id) for bookie_id in metadata.last_fragment.ensemble]


@asynccontextmanager
async def fake_cluster(size: int = 3, names: Sequence[str] = ()) -> AsyncIterator[FakeCluster]:
    """A cluster of `size` fake bookies, with ids other than their addresses where `names` are given."""
    bookies = [FakeBookie(names[i] if i < len(names) else "") for i in range(size)]
    for bookie in bookies:
        await bookie.start()
    cluster = FakeCluster(bookies)
    try:
        yield cluster
    finally:
        for client in cluster.clients:
            await client.close()
        for bookie in bookies:
            await bookie.stop()


async def ledger_of(cluster: FakeCluster, count: int, **settings: object) -> WriteHandle:
    """A ledger with the entries 0, 1, … by a client of these settings; the password is p."""
    ledger = await cluster.client(**settings).create_ledger(password=b"planted-p")
    await ledger.append_all(b"%d" % i for i in range(count))
    return ledger


async def payloads(reader: ReadHandle) -> list[bytes]:
    """Of everything that is confirmed."""
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]
