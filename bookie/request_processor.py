"""What a bookie does with a request: the rules of the entry protocol applied to storage.

Runs on the event loop, which owns connections and ledger states. An add or a fence is handed to storage together with
its answer; storage gives the answer back once the journal has made it durable, and only then does it leave. Reads that
the write cache can't answer go to a reader thread in batches, so that a hop between threads is paid once a batch.

Invariants: S5 and S6 (no answer before durability; for a fence not even the error of the read behind it), S7, P7, P8.
Source: wire-protocol page, sections 4.3 to 4.8.

Not here: bytes on the wire (`connection`), what is durable and how (`storage`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol, cast

from bookie.core import admission
from bookie.core.ledger_state import LedgerState
from bookie.statistics import BookieStatistics
from bookie.storage import Storage
from ledger import requests
from ledger.entry_availability import encode_runs
from ledger.errors import NoSuchEntryException
from ledger.ledger_id import LedgerId
from ledger.protocol_v3 import encode_response, refusal
from ledger.requests import LAST_ENTRY, AddRequest, ReadRequest, Request, Status

if TYPE_CHECKING:
    from collections import deque

_log = logging.getLogger(__name__)

READ_BATCH = 128
"""Reads handed to the reader thread at once."""

READ_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of answers after which a batch ends early, the rest waiting for the client to take what it has."""

MAX_PENDING_READS = 10_000
"""Reads a connection may have waiting; more are answered with too-many-requests."""

_DISABLED_PLUGIN = "AuthDisabledPlugin"


class Client(Protocol):
    """The processor's view of a connection."""

    reads: deque[ReadRequest | requests.ReadLacRequest]
    """Reads that wait for their turn."""
    reading: bool
    """Whether a batch of this connection is with the reader thread."""

    @property
    def takes_answers(self) -> bool:
        """False while the client does not take what was sent to it."""

    def send(self, frame: bytes) -> None:
        """Queues an answer; ignored once the connection is closed."""

    def flush(self) -> None:
        """Hands what is queued to the transport."""

    def wait_for_room(self) -> None:
        """Stops reading requests until storage has room."""


_Token = tuple[Client, bytes | ReadRequest]
"""What is handed to storage with a record: whose answer it is, and the answer, or the fenced read to go on with."""


class RequestProcessor:
    """Serves the requests of all connections of one bookie."""

    def __init__(self, storage: Storage, reader: Executor, statistics: BookieStatistics) -> None:
        self._storage = storage
        self._reader = reader
        self._statistics = statistics
        self._loop = asyncio.get_running_loop()

    def process(self, client: Client, request: Request) -> None:
        """Serves one request; its answer may come later. Never raises."""
        try:
            self._dispatch(client, request)
        except OSError as error:
            _log.error("request %s failed: %s", type(request).__name__, error)
            client.send(encode_response(refusal(request, Status.EIO)))
        except Exception:
            _log.exception("request %s failed", type(request).__name__)
            client.send(encode_response(refusal(request, Status.EBADREQ)))

    def _dispatch(self, client: Client, request: Request) -> None:
        match request:
            case AddRequest():
                self._add(client, request)
            case ReadRequest():
                self._read(client, request)
            case requests.ReadLacRequest():
                self._queue_read(client, request)
            case requests.WriteLacRequest():
                self._write_lac(client, request)
            case requests.ForceLedgerRequest():
                response = requests.ForceLedgerResponse(request.txn_id, Status.EOK, request.ledger_id)
                self._storage.force(LedgerId.unscoped(request.ledger_id), (client, encode_response(response)))
            case requests.GetBookieInfoRequest():
                client.send(encode_response(self._bookie_info(request)))
            case requests.ListEntriesRequest():
                self._list_entries(client, request)
            case requests.AuthRequest():
                response_ = requests.AuthResponse(request.txn_id, Status.EOK, _DISABLED_PLUGIN, b"", request.priority)
                client.send(encode_response(response_))
            case requests.StartTlsRequest():
                client.send(encode_response(refusal(request, Status.EBADREQ)))
            case requests.InvalidRequest():
                client.send(encode_response(refusal(request, request.status)))

    # --- writing ---

    def _add(self, client: Client, request: AddRequest) -> None:
        status = admission.check_add(request)
        if status is Status.EOK:
            ledger = self._open_ledger(request.ledger_id, request.master_key)
            status = ledger.check_add(request.master_key, recovery=request.recovery)
        if status is not Status.EOK:
            self._statistics.adds_refused += 1
            client.send(encode_response(refusal(request, status)))
            return
        answer = encode_response(requests.AddResponse(request.txn_id, Status.EOK, request.ledger_id, request.entry_id))
        self._statistics.adds += 1
        self._statistics.add_bytes += len(request.body)
        self._storage.add_entry(ledger, request.entry_id, request.body, (client, answer))
        if not self._storage.accepts_adds:
            client.wait_for_room()

    def _write_lac(self, client: Client, request: requests.WriteLacRequest) -> None:
        status = admission.check_write_lac(request)
        if status is Status.EOK:
            ledger = self._open_ledger(request.ledger_id, request.master_key)
            status = ledger.check_key(request.master_key)
        if status is not Status.EOK:
            client.send(encode_response(refusal(request, status)))
            return
        answer = encode_response(requests.WriteLacResponse(request.txn_id, Status.EOK, request.ledger_id))
        self._storage.write_explicit_lac(ledger, request.body, (client, answer))

    def _open_ledger(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """A ledger exists on a bookie from the first add, fence or explicit LAC that reaches it."""
        wanted = LedgerId(0, ledger_id)
        return self._storage.ledger(wanted) or self._storage.create_ledger(wanted, master_key)

    def durable(self, tokens: Sequence[object]) -> None:
        """Sends the answers whose records the journal has made durable; goes on with the reads behind fences."""
        clients: dict[Client, None] = {}
        for client, answer in cast("Sequence[_Token]", tokens):
            if isinstance(answer, bytes):
                client.send(answer)
            else:
                self._statistics.fences += 1
                client.reads.append(answer)
            clients[client] = None
        for client in clients:
            self.pump_reads(client)
            client.flush()

    # --- reading ---

    def _read(self, client: Client, request: ReadRequest) -> None:
        status = admission.check_read(request)
        if status is Status.EOK and request.previous_lac is not None and not request.fence:
            status = Status.EBADREQ
        if status is Status.EOK and request.fence:
            status = self._fence(client, request)
            if status is Status.EOK:
                return
        if status is not Status.EOK:
            self._statistics.reads_refused += 1
            client.send(encode_response(refusal(request, status)))
            return
        self._queue_read(client, request)

    def _fence(self, client: Client, request: ReadRequest) -> Status:
        """Fences first; the read goes on in `durable`."""
        key = request.master_key or b""
        ledger = self._open_ledger(request.ledger_id, key)
        status = ledger.check_key(key)
        if status is Status.EOK:
            self._storage.fence(ledger, (client, request))
        return status

    def _queue_read(self, client: Client, request: ReadRequest | requests.ReadLacRequest) -> None:
        if len(client.reads) >= MAX_PENDING_READS:
            client.send(encode_response(refusal(request, Status.ETOOMANYREQUESTS)))
            return
        client.reads.append(request)

    def pump_reads(self, client: Client) -> None:
        """Serves waiting reads as long as the client takes answers: from the write cache here, others by the reader."""
        reads = client.reads
        while reads and client.takes_answers and not client.reading:
            request = reads[0]
            try:
                ledger = self._storage.ledger(LedgerId(0, request.ledger_id))
            except OSError as error:
                _log.error("ledger %d can't be read: %s", request.ledger_id, error)
                client.send(encode_response(refusal(reads.popleft(), Status.EIO)))
                continue
            answer = self._read_cached(request, ledger)
            if answer is None:
                self._hand_to_reader(client, ledger)
                return
            reads.popleft()
            client.send(answer)

    def _read_cached(self, request: ReadRequest | requests.ReadLacRequest, ledger: LedgerState | None) -> bytes | None:
        if ledger is None or not isinstance(request, ReadRequest) or request.entry_id == LAST_ENTRY:
            return None
        packet = self._storage.read_cached(ledger, request.entry_id)
        return None if packet is None else self._read_answer(request, packet, ledger.known_lac)

    def _read_answer(self, request: ReadRequest, packet: bytes, known_lac: int) -> bytes:
        self._statistics.reads += 1
        self._statistics.read_bytes += len(packet)
        max_lac = None if request.fence else known_lac
        return encode_response(
            requests.ReadResponse(request.txn_id, Status.EOK, request.ledger_id, request.entry_id, packet, max_lac)
        )

    def _hand_to_reader(self, client: Client, ledger: LedgerState | None) -> None:
        """Hands over the reads at the front that are of one ledger, at most a batch of them."""
        reads = client.reads
        batch = [reads.popleft()]
        while reads and len(batch) < READ_BATCH and reads[0].ledger_id == batch[0].ledger_id:
            batch.append(reads.popleft())
        client.reading = True
        future = self._loop.run_in_executor(self._reader, self._read_batch, batch, ledger)
        future.add_done_callback(functools.partial(self._batch_read, client, batch))

    def _read_batch(
        self, batch: Sequence[ReadRequest | requests.ReadLacRequest], ledger: LedgerState | None
    ) -> list[bytes]:
        """On the reader thread: the answers to the first requests of the batch, as many as fit the byte limit."""
        answers: list[bytes] = []
        size = 0
        for request in batch:
            answers.append(self._read_stored(request, ledger))
            size += len(answers[-1])
            if size > READ_BATCH_BYTES:
                break
        return answers

    def _batch_read(
        self,
        client: Client,
        batch: Sequence[ReadRequest | requests.ReadLacRequest],
        future: asyncio.Future[list[bytes]],
    ) -> None:
        client.reading = False
        if future.cancelled() or future.exception():
            _log.error("reading failed: %s", "cancelled" if future.cancelled() else future.exception())
            answers = [encode_response(refusal(request, Status.EIO)) for request in batch]
        else:
            answers = future.result()
        client.reads.extendleft(reversed(batch[len(answers) :]))
        for answer in answers:
            client.send(answer)
        self.pump_reads(client)
        client.flush()

    def _read_stored(self, request: ReadRequest | requests.ReadLacRequest, ledger: LedgerState | None) -> bytes:
        try:
            if not isinstance(request, ReadRequest):
                return encode_response(self._read_lac(request, ledger))
            if ledger is None:
                return encode_response(refusal(request, Status.ENOLEDGER))
            packet = self._packet(ledger, request.entry_id)
            return self._read_answer(request, packet, self._storage.known_lac(ledger))
        except NoSuchEntryException:
            status = Status.ENOENTRY
        except Exception as error:
            _log.error("reading entry of ledger %d failed: %s", request.ledger_id, error)
            status = Status.EIO
        self._statistics.reads_refused += 1
        return encode_response(refusal(request, status))

    def _packet(self, ledger: LedgerState, entry_id: int) -> bytes:
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.last_entry_id(ledger)
            if entry_id == LAST_ENTRY:
                raise NoSuchEntryException(f"ledger {ledger.ledger_id} has no entries here")
        return self._storage.read_entry(ledger, entry_id)

    def _read_lac(self, request: requests.ReadLacRequest, ledger: LedgerState | None) -> requests.ReadLacResponse:
        """Explicit LAC and last entry; the status follows BookKeeper's (wire-protocol page, section 4.7)."""
        explicit = ledger.explicit_lac if ledger else None
        last_entry, status = None, Status.EOK
        try:
            last_entry = self._packet(ledger, LAST_ENTRY) if ledger else None
        except Exception as error:
            if not isinstance(error, NoSuchEntryException):
                _log.error("reading the last entry of ledger %d failed: %s", request.ledger_id, error)
            status = Status.EIO
        if explicit is None and last_entry is None:
            status = Status.ENOENTRY
        return requests.ReadLacResponse(request.txn_id, status, request.ledger_id, explicit, last_entry)

    # --- the rest ---

    def _bookie_info(self, request: requests.GetBookieInfoRequest) -> requests.GetBookieInfoResponse:
        usage = self._storage.usage()
        return requests.GetBookieInfoResponse(
            request.txn_id,
            Status.EOK,
            usage.total_bytes if request.requested & requests.TOTAL_DISK_CAPACITY else None,
            usage.free_bytes if request.requested & requests.FREE_DISK_SPACE else None,
        )

    def _list_entries(self, client: Client, request: requests.ListEntriesRequest) -> None:
        if request.ledger_id < 0:
            client.send(encode_response(refusal(request, Status.EBADREQ)))
            return
        ledger = self._storage.ledger(LedgerId(0, request.ledger_id))
        if ledger is None:
            client.send(encode_response(refusal(request, Status.ENOLEDGER)))
            return
        future = self._loop.run_in_executor(self._reader, self._listed, request, ledger)
        future.add_done_callback(functools.partial(self._listed_entries, client, request))

    def _listed(self, request: requests.ListEntriesRequest, ledger: LedgerState) -> bytes:
        runs = encode_runs(self._storage.entry_ids(ledger))
        return encode_response(requests.ListEntriesResponse(request.txn_id, Status.EOK, request.ledger_id, runs))

    def _listed_entries(
        self, client: Client, request: requests.ListEntriesRequest, future: asyncio.Future[bytes]
    ) -> None:
        if future.cancelled() or future.exception():
            client.send(encode_response(refusal(request, Status.EIO)))
        else:
            client.send(future.result())
        client.flush()
