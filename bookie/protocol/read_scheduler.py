"""Schedules reads: one queue per connection, served from memory on the event loop, otherwise by a reader thread.

A read of an entry that is in memory (write cache; read-ahead; index page and the kernel's page cache) is served at
once, unless another read of its connection waits. A read waits in its connection's queue while the client does not read
its responses, so that responses never pile up in memory. Reads that need the disk go to the reader thread in batches; a
connection has one batch there at a time, cut off after `READ_BATCH_BYTES`, the remainder returning to the front of the
queue. The event loop counts and encodes; the reader thread does everything that may wait for the disk: ledgers that are
not in memory, index, entry log.

Source: docs/protocol/wire.md#read_entry, docs/protocol/wire.md#batch_read_entry, docs/protocol/wire.md#the-known-lac,
docs/protocol/wire.md#long-polls, docs/protocol/wire.md#read_lac, docs/protocol/wire.md#get_list_of_entries.

Not its job: whether a read is allowed, and fencing, which precedes it (`request_processor`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from bookgate.bookie.entry_logs.record_run import run_of
from bookgate.bookie.statistics import BookieStatistics
from bookgate.bookie.storage.batch_size import BatchSize
from bookgate.bookie.storage.ledger_descriptor import DELETED
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.ledger.entry_availability import encode_runs
from bookgate.ledger.errors import DataUnknownException, EntryNotConfirmedException, NoSuchEntryException
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.fast_read import FastRead, Found, Reads, read_together
from bookgate.ledger.wire.messages import (
    LAST_ENTRY,
    MOST_FOLLOWING_BYTES,
    BatchReadRecords,
    BatchReadRequest,
    BatchReadResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Response,
    Status,
)
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

READ_BATCH = 128
"""Reads handed to the reader thread at once."""

READ_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of responses after which a batch ends early."""

MAX_PENDING_READS = 10_000
"""Maximum number of waiting reads of a connection; more are answered with too-many-requests."""

MAX_BATCH_READ_SIZE = 5 * 1024 * 1024
"""Default maximum bytes of a batch read's response, not counting its first entry: BookKeeper's maxBatchReadSize."""


class TailingRead(NamedTuple):
    """A long poll whose wait is over: it reads the known LAC and, if that passed `previous_lac`, the next entry."""

    request: ReadRequest
    lac_updated_ms: int | None

    @property
    def ledger_id(self) -> int:
        return self.request.ledger_id

    @property
    def previous_lac(self) -> int:
        return LAST_ENTRY if self.request.previous_lac is None else self.request.previous_lac


QueuedRead = TailingRead | ReadRequest | BatchReadRequest | ReadLacRequest | ListEntriesRequest


class ReadingClient(Protocol):
    """A connection as the scheduler sees it."""

    reads: deque[QueuedRead]
    """The waiting reads, in order."""
    reading: bool
    """Whether a batch of this connection is with the reader thread."""

    @property
    def is_open(self) -> bool: ...

    @property
    def takes_answers(self) -> bool:
        """False while the client does not read its responses."""

    def encode(self, response: Response) -> bytes:
        """The frame of a response."""

    def send(self, frame: bytes, count: int = 1) -> None:
        """Queues a response, or so many, one frame after the other; ignored once the connection is closed."""

    def flush(self) -> None:
        """Passes queued responses to the transport."""


class EntryReads:
    """Serves the reads of all connections. Belongs to the event loop."""

    def __init__(
        self,
        storage: LedgerStorage,
        reader: Executor,
        statistics: BookieStatistics,
        max_batch_read_size: int = MAX_BATCH_READ_SIZE,
    ) -> None:
        self._storage = storage
        self._max_batch_read_size = max_batch_read_size
        self._reader = reader
        self._statistics = statistics
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._found = Found(b"", 0)
        """Of the latest response."""

    def close(self) -> None:
        """Stops passing reads to the reader thread, which is about to end; connections have ended before."""
        self._closed = True

    def queue(self, client: ReadingClient, request: QueuedRead, *, first: bool = False) -> None:
        """Queues a read of a valid id, high-priority reads before the others; `pump` serves it."""
        if len(client.reads) >= MAX_PENDING_READS:
            self._send(client, _refusal(request, Status.ETOOMANYREQUESTS))
        elif first:
            client.reads.appendleft(request)
        else:
            client.reads.append(request)

    def serve_now(
        self, client: ReadingClient, first: FastRead, packets: Sequence[memoryview] = (), start: int = 0
    ) -> int:
        """Serves reads of one ledger that were received together, as far as their entries are in memory.

        Args:
            client: Who asks.
            first: The first read.
            packets: What was received with it.
            start: The packet after `first`, which may be another read of the ledger.

        Returns:
            How many were served; the next one must be queued. 0 is without any effect.
        """
        if client.reads or client.reading or not client.takes_answers:
            return 0
        ledger = self._storage.ledgers.recent(first.ledger_id)
        if ledger is None or ledger.term is not None:
            return 0
        reads = read_together(first, packets, start)
        served = 0
        while served < len(reads.entry_ids):
            end, in_a_row = reads.part(served)
            served = self._serve_part(client, ledger, reads, served, end, in_a_row)
            if served < end:
                break
        return served

    def _serve_part(
        self, client: ReadingClient, ledger: BookieLedgerState, reads: Reads, served: int, end: int, in_a_row: bool
    ) -> int:
        """Serves the reads from `served` to `end`; returns the first that is not served."""
        look_up = self._row_in_memory if in_a_row else self._scattered_in_memory
        while served < end and client.takes_answers:
            entries, known_lac = look_up(ledger, reads.entry_ids[served:end])
            if not entries or known_lac < 0:
                break
            self._send_found(client, reads, served, entries, known_lac)
            served += len(entries)
        return served

    def _send_found(
        self, client: ReadingClient, reads: Reads, start: int, entries: Sequence[bytes], known_lac: int
    ) -> None:
        found = self._found
        if found.of != (reads.ledger, known_lac):
            found = self._found = Found(reads.ledger, known_lac)
        client.send(found.frames(reads, start, entries), len(entries))
        self._statistics.reads += len(entries)
        self._statistics.read_bytes += sum(map(len, entries))

    def _row_in_memory(self, ledger: BookieLedgerState, entry_ids: Sequence[int]) -> tuple[list[bytes], int]:
        return self._in_memory(ledger, entry_ids[0], len(entry_ids))

    def _scattered_in_memory(self, ledger: BookieLedgerState, entry_ids: Sequence[int]) -> tuple[list[bytes], int]:
        """The first of these entries that are in memory, perhaps none, and the known LAC."""
        known_lac = self._storage.reader.loaded_lac(ledger)
        if known_lac is None:
            return self._in_memory(ledger, entry_ids[0], 1)
        packets, cached = self._storage.reader.read_scattered_in_memory(ledger, entry_ids)
        self._statistics.write_cache_hits += cached
        self._statistics.write_cache_misses += len(packets) - cached
        return packets, known_lac

    def _in_memory(self, ledger: BookieLedgerState, first_entry_id: int, count: int) -> tuple[list[bytes], int]:
        """The first of so many consecutive entries that are in memory, perhaps none, and the known LAC."""
        reader = self._storage.reader
        if ledger.term is not None and not ledger.shows(first_entry_id, None):
            return [], NO_ENTRY
        packets = reader.read_cached_run(ledger, first_entry_id, count)
        if packets:
            self._statistics.write_cache_hits += len(packets)
            return packets, ledger.known_lac
        known_lac = reader.loaded_lac(ledger)
        if known_lac is None:
            return [], NO_ENTRY
        packets = reader.read_in_memory(ledger, first_entry_id, count)
        self._statistics.write_cache_misses += len(packets)
        return packets, known_lac

    def pump(self, client: ReadingClient) -> None:
        """Serves waiting reads as long as the client reads its responses."""
        reads = client.reads
        while reads and client.takes_answers and not client.reading:
            answer = self._cached(reads[0])
            if answer is None:
                self._hand_over(client)
                return
            reads.popleft()
            self._send(client, answer)

    def _send(self, client: ReadingClient, response: Response) -> None:
        if isinstance(response, ReadResponse):
            if response.status:
                self._statistics.reads_refused += 1
            elif response.body is not None:
                self._statistics.reads += 1
                self._statistics.read_bytes += len(response.body) + len(response.following)
        elif isinstance(response, BatchReadRecords):
            self._statistics.reads += response.entries
            self._statistics.read_bytes += sum(map(len, response.records)) - 4 * response.entries
        elif isinstance(response, BatchReadResponse):
            self._statistics.reads_refused += 1
        elif isinstance(response, ReadLacResponse):
            self._statistics.read_lacs += 1
        client.send(client.encode(response))

    def _cached(self, request: QueuedRead) -> Response | None:
        """The response if it needs no I/O, or None."""
        ledger = self._storage.ledgers.recent(request.ledger_id)
        if ledger is None:
            return None
        if isinstance(request, TailingRead):
            return self._cached_tail(request, ledger)
        if not isinstance(request, ReadRequest) or request.entry_id == LAST_ENTRY or request.term is not None:
            return None
        if request.following:
            return None
        packets, known_lac = self._in_memory(ledger, request.entry_id, 1)
        return _read_response(request, packets[0], known_lac, ledger.term) if packets else None

    def _cached_tail(self, request: TailingRead, ledger: BookieLedgerState) -> Response | None:
        known_lac = self._storage.reader.loaded_lac(ledger)
        if known_lac is None or known_lac == LAST_ENTRY:
            return None
        if known_lac <= request.previous_lac:
            return _tail_response(request, known_lac)
        packet = self._storage.reader.read_cached(ledger, request.previous_lac + 1)
        if packet is None or packet is DELETED:
            return None
        return _tail_response(request, known_lac, packet, ledger.term)

    def _hand_over(self, client: ReadingClient) -> None:
        """Passes the reads at the front of the queue to the reader thread, at most one batch."""
        reads = client.reads
        if self._closed:
            # Fences may still become durable until storage is closed; nobody waits for the reads after them.
            reads.clear()
            return
        batch = [reads.popleft() for _ in range(min(READ_BATCH, len(reads)))]
        client.reading = True
        started = time.perf_counter()
        future = self._loop.run_in_executor(self._reader, self._look_up_batch, batch)
        future.add_done_callback(functools.partial(self._on_batch, client, batch, started))

    def _on_batch(
        self,
        client: ReadingClient,
        batch: Sequence[QueuedRead],
        started: float,
        future: asyncio.Future[list[Response]],
    ) -> None:
        client.reading = False
        taken = time.perf_counter() - started
        self._statistics.read_latency.success(taken)
        if not client.is_open or future.cancelled():
            return
        if future.exception() is not None:
            log_event(_log, "read_failed", logging.ERROR, error=future.exception())
            answers: list[Response] = [_refusal(request, Status.EIO) for request in batch]
        else:
            answers = future.result()
        client.reads.extendleft(reversed(batch[len(answers) :]))
        self._statistics.write_cache_misses += sum(type(request) is ReadRequest for request in batch[: len(answers)])
        for answer in answers:
            if isinstance(answer, ReadLacResponse):
                self._count_read_lac(answer, taken)
            self._send(client, answer)
        self.pump(client)
        client.flush()

    def _count_read_lac(self, answer: ReadLacResponse, seconds: float) -> None:
        latency = self._statistics.read_lac_latency
        if answer.status == Status.EOK:
            latency.success(seconds)
        else:
            latency.failure(seconds)

    # --- on the reader thread ---

    def _look_up_batch(self, batch: Sequence[QueuedRead]) -> list[Response]:
        """The responses to the first reads of the batch, as many as fit the byte limit."""
        answers: list[Response] = []
        size = 0
        for request in batch:
            answer = self._look_up(request)
            answers.append(answer)
            size += _body_size(answer)
            if size > READ_BATCH_BYTES:
                break
        return answers

    def _look_up(self, request: QueuedRead) -> Response:
        try:
            ledger = self._storage.ledgers.get(LedgerId.of_number(request.ledger_id))
            if ledger is None and self._storage.may_have_held(request.ledger_id):
                return _refusal(request, Status.EUNKNOWNLEDGERSTATE)
            if isinstance(request, ReadLacRequest):
                return self._lac(request, ledger)
            if ledger is None:
                return _refusal(request, Status.ENOLEDGER)
            if isinstance(request, ListEntriesRequest):
                runs = encode_runs(self._storage.reader.entry_ids(ledger))
                return ListEntriesResponse(request.txn_id, Status.EOK, request.ledger_id, runs)
            if isinstance(request, BatchReadRequest):
                return self._batch(request, ledger)
            if isinstance(request, TailingRead):
                return self._tail(request, ledger)
            if request.term is not None:
                return self._recover(request, ledger)
            packet = self._packet(ledger, request.entry_id, request.known_lac)
            following = self._behind_fence(request, ledger, packet)
            # The term as it is after the entry was read: an old one proves that the entry was of it.
            return _read_response(request, packet, self._known_lac(ledger), ledger.term, following)
        except NoSuchEntryException:
            return _refusal(request, Status.ENOENTRY)
        except EntryNotConfirmedException:
            return _refusal(request, Status.ENOTCONFIRMED)
        except DataUnknownException:
            return _refusal(request, Status.EUNKNOWNLEDGERSTATE)
        except Exception as error:
            log_event(_log, "read_failed", logging.ERROR, ledger=request.ledger_id, error=error)
            return _refusal(request, Status.EIO)

    def _recover(self, request: ReadRequest, ledger: BookieLedgerState) -> Response:
        """The response to a client that takes the ledger over: LAC and LAFR even if there is no entry (U6).

        If another client has taken the ledger over meanwhile, it is an error.
        """
        packet, following, status = None, b"", Status.EOK
        entry_id, reader = request.entry_id, self._storage.reader
        try:
            packet = reader.read_entry(ledger, reader.last_entry_id(ledger) if entry_id == LAST_ENTRY else entry_id)
            following = self._following(request, ledger, packet)
        except NoSuchEntryException:
            status = Status.ENOENTRY
        if ledger.term != request.term:
            return _refusal(request, Status.EINVALIDTERM)
        known_lac = self._known_lac(ledger)
        ids = request.ledger_id, entry_id
        return ReadResponse(request.txn_id, status, *ids, packet, known_lac, None, request.term, ledger.lafr, following)

    def _behind_fence(self, request: ReadRequest, ledger: BookieLedgerState, packet: bytes) -> bytes:
        """The records behind the wanted entry, for the recovery of an ordinary ledger; other readers read batches."""
        if not request.following or not request.fence:
            return b""
        following = self._following(request, ledger, packet)
        return following if ledger.term is None else b""

    def _following(self, request: ReadRequest, ledger: BookieLedgerState, packet: bytes) -> bytes:
        """The records of the entries behind the wanted one, whose packet this is; none if the next one can't be read,
        or is too large.
        """
        if not request.following or request.entry_id == LAST_ENTRY:
            return b""
        limit = MOST_FOLLOWING_BYTES - len(packet)
        batch = BatchSize(request.following, limit, self._max_batch_read_size)
        try:
            runs = self._storage.reader.read_batch(ledger, request.entry_id + 1, batch)
        except (NoSuchEntryException, DataUnknownException, OSError):
            return b""
        records = b"".join(run.records for run in runs)
        return records if len(records) <= limit else b""

    def _known_lac(self, ledger: BookieLedgerState) -> int | None:
        """The known LAC; None if unknown, which does not prevent serving an entry that the bookie holds."""
        try:
            return self._storage.reader.known_lac(ledger)
        except DataUnknownException:
            return None

    def _batch(self, request: BatchReadRequest, ledger: BookieLedgerState) -> BatchReadRecords:
        """The entries from the wanted one on. Raises for the first entry as a read does; a later failure ends the
        batch.

        A batch that starts at the last entry contains only that entry.
        """
        if request.entry_id == LAST_ENTRY:
            runs = [run_of([self._packet(ledger, LAST_ENTRY)])]
        else:
            batch = BatchSize(self._batch_count(request, ledger), request.max_size, self._max_batch_read_size)
            runs = self._storage.reader.read_batch(ledger, request.entry_id, batch)
        records = tuple(run.records for run in runs)
        count = sum(len(run.ends) for run in runs)
        return BatchReadRecords(request.txn_id, Status.EOK, request.ledger_id, request.entry_id, records, count)

    def _batch_count(self, request: BatchReadRequest, ledger: BookieLedgerState) -> int:
        """How many of the wanted entries the reader may see; 0 or less for any number."""
        if ledger.term is None:
            return request.max_count
        shown = self._storage.reader.known_lac(ledger) - request.entry_id + 1
        if shown <= 0:
            raise EntryNotConfirmedException(f"entry {request.entry_id} of ledger {ledger.ledger_id} may be dirty")
        return min(request.max_count, shown) if request.max_count > 0 else shown

    def _tail(self, request: TailingRead, ledger: BookieLedgerState) -> ReadResponse:
        """The known LAC, and the next entry if this bookie holds it. Raises as a read of the last entry does."""
        known_lac = self._storage.reader.known_lac(ledger)
        if known_lac == LAST_ENTRY and self._storage.reader.last_entry_id(ledger) == LAST_ENTRY:
            raise NoSuchEntryException(f"ledger {ledger.ledger_id} has neither entries nor a LAC here")
        if known_lac <= request.previous_lac:
            return _tail_response(request, known_lac)
        try:
            packet = self._storage.reader.read_entry(ledger, request.previous_lac + 1)
            return _tail_response(request, known_lac, packet, ledger.term)
        except NoSuchEntryException:
            return _tail_response(request, known_lac)

    def _packet(self, ledger: BookieLedgerState, entry_id: int, reader_lac: int | None = None) -> bytes:
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.reader.last_shown(ledger)
            if entry_id == LAST_ENTRY:
                raise NoSuchEntryException(f"ledger {ledger.ledger_id} has no entries here")
        elif not ledger.shows(entry_id, reader_lac) and entry_id > self._storage.reader.known_lac(ledger):
            raise EntryNotConfirmedException(f"entry {entry_id} of ledger {ledger.ledger_id} is not known as confirmed")
        return self._storage.reader.read_entry(ledger, entry_id)

    def _lac(self, request: ReadLacRequest, ledger: BookieLedgerState | None) -> ReadLacResponse:
        """Explicit LAC and last entry; for each combination of these the status is that of BookKeeper.

        Data that can't be read are not reported as absent (S3).
        """
        explicit = ledger.explicit_lac if ledger else None
        last_entry, status = None, Status.EOK if ledger else Status.ENOENTRY
        try:
            last_entry = self._packet(ledger, LAST_ENTRY) if ledger else None
        except EntryNotConfirmedException:
            status = Status.ENOENTRY if explicit is None else Status.EOK
        except NoSuchEntryException:
            status = Status.ENOENTRY if explicit is None else Status.EIO
        except DataUnknownException:
            explicit, status = None, Status.EUNKNOWNLEDGERSTATE
        except Exception as error:
            log_event(_log, "read_failed", logging.ERROR, ledger=request.ledger_id, entry="last", error=error)
            status = Status.EIO
        return ReadLacResponse(request.txn_id, status, request.ledger_id, explicit, last_entry)


def _tail_response(
    request: TailingRead, known_lac: int, packet: bytes | None = None, term: int | None = None
) -> ReadResponse:
    """The response to a long poll: without an entry its id is -1; the time is included if the LAC has passed."""
    asked = request.request
    entry_id = LAST_ENTRY if packet is None else request.previous_lac + 1
    updated_ms = request.lac_updated_ms if known_lac > request.previous_lac else None
    return ReadResponse(asked.txn_id, Status.EOK, asked.ledger_id, entry_id, packet, known_lac, updated_ms, term)


def _refusal(request: QueuedRead, status: Status) -> Response:
    return error_response(request.request if isinstance(request, TailingRead) else request, status)


def _body_size(answer: Response) -> int:
    if isinstance(answer, BatchReadRecords):
        return sum(map(len, answer.records))
    return len(answer.body) + len(answer.following) if isinstance(answer, ReadResponse) and answer.body else 0


def _read_response(
    request: ReadRequest, packet: bytes, known_lac: int | None, term: int | None, following: bytes = b""
) -> ReadResponse:
    """The response with the entry; that to a fencing read has no LAC (docs/protocol/wire.md#read_entry)."""
    max_lac = None if request.fence else known_lac
    ids = request.ledger_id, request.entry_id
    return ReadResponse(request.txn_id, Status.EOK, *ids, packet, max_lac, term=term, following=following)
