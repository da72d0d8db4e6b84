"""Processes requests: the rules of the entry protocol, applied to storage.

Runs on the event loop, which owns connections and ledger states. An add or a fence enters storage together with its
response; storage returns the response once the journal has made the record durable, and only then is it sent. The
exception is an add with a deferred sync: its response is sent once the record is written, and a later force makes it
durable.

Invariants: S5 and S6 (no response before durability; for a fence, not even the error of the read that follows it), S7,
P7, P8, U1. Source: docs/protocol/wire.md#operations, docs/protocol/unbounded-ledgers.md#bookie.

Not its job: bytes on the wire (`connection`), reading (`read_scheduler`), what is durable and how (`storage`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from bookgate.bookie.index.file_format import MAX_ENTRY_ID
from bookgate.bookie.mode.mode import BookieMode
from bookgate.bookie.protocol import admission
from bookgate.bookie.protocol.completions import (
    AddCompletion,
    AddRunCompletion,
    Client,
    FencedRead,
    RequestCompletion,
)
from bookgate.bookie.protocol.long_polls import LongPolls
from bookgate.bookie.protocol.read_scheduler import EntryReads
from bookgate.bookie.protocol.refusal_log import RefusalLog
from bookgate.bookie.statistics import SAMPLED, BookieStatistics
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_state import BookieLedgerState, is_acceptable_key
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Completion, CompletionClient, Timer
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.varint import encode_varint
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.fast_add import AddRun, FastAdd, FastTermAdd
from bookgate.ledger.wire.messages import (
    LAST_ENTRY,
    AddRequest,
    AddResponse,
    BatchReadRequest,
    ReadRequest,
    Request,
    Status,
)
from bookgate.runtime.clock import monotonic
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_ADDS = AddCompletion, AddRunCompletion


class RequestProcessor:
    """Serves the requests of all connections of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        reads: EntryReads,
        long_polls: LongPolls,
        statistics: BookieStatistics,
        mode: BookieMode,
        *,
        max_entry_gap: int = 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`max_entry_gap` is the maximum distance of an entry id from the ledger's last entry id; 0 for no limit."""
        self._storage = storage
        self._ledgers = storage.ledgers
        self._writer = storage.writer
        self.reads = reads
        self.long_polls = long_polls
        self._awaited = long_polls.awaited
        self._statistics = statistics
        self._mode = mode
        self._max_gap = max_entry_gap
        self._gap = max_entry_gap or MAX_ENTRY_ID + 1
        self._refused = RefusalLog(clock)
        self._until_timed = SAMPLED
        """Adds that are accepted before the next one is timed."""

    def process(self, client: Client, request: Request) -> None:
        """Processes one request; the response may follow later. Never raises."""
        try:
            if type(request) is AddRequest:  # the most frequent request
                self._add(client, request)
            else:
                self._dispatch(client, request)
        except OSError as error:
            log_event(_log, "request_failed", logging.ERROR, **_about(request), error=error)
            client.answer(error_response(request, Status.EIO))
        except IncorrectParameterException as error:
            self._refused.tell(error, **_about(request))
            client.answer(error_response(request, Status.EBADREQ))
        except Exception as error:
            log_bug(_log, "request_failed", error, **_about(request))
            client.answer(error_response(request, Status.EBADREQ))

    def _dispatch(self, client: Client, request: Request) -> None:
        match request:
            case ReadRequest() | BatchReadRequest():
                self._read(client, request)
            case messages.ReadLacRequest() | messages.ListEntriesRequest():
                if request.ledger_id < 0:
                    client.answer(error_response(request, Status.EBADREQ))
                else:
                    self.reads.queue(client, request)
            case messages.WriteLacRequest():
                self._write_lac(client, request)
            case messages.ForceLedgerRequest():
                self._force(client, request)
            case messages.GetBookieInfoRequest():
                started = time.perf_counter()
                client.answer(self._bookie_info(request))
                self._statistics.info_latency.success(time.perf_counter() - started)
            case messages.AuthRequest():
                response_ = messages.AuthResponse(
                    request.txn_id, Status.EOK, messages.AUTH_DISABLED, b"", request.priority
                )
                client.answer(response_)
            case messages.StartTlsRequest():
                if not client.start_tls(request.txn_id):
                    client.answer(error_response(request, Status.EBADREQ))
            case messages.InvalidRequest():
                client.answer(error_response(request, request.status))

    # --- writing ---

    def add(self, client: Client, add: FastAdd | FastTermAdd) -> bool:
        """Processes an add on the fast path; returns False if `process` has to decide."""
        if type(add) is FastTermAdd:
            return self._add_at_term(client, add)
        _, ledger_id, entry_id, last_add_confirmed, master_key, _, _ = add
        ledger = self._open_for_adds(ledger_id)
        if ledger is None or self._decides_long(ledger, master_key, entry_id):
            return False
        if last_add_confirmed > ledger.known_lac:
            ledger.known_lac = last_add_confirmed
        return self._put(client, ledger, add)

    def _open_for_adds(self, ledger_id: int) -> LedgerDescriptor | None:
        """The ledger if it is in memory, without a term, and not fenced."""
        ledger = self._ledgers.recent(ledger_id)
        return None if ledger is None or ledger.term is not None or ledger.fenced else ledger

    def add_run(self, client: Client, run: AddRun) -> bool:
        """The same for a run of adds: all of them, or none."""
        stored, ledger_id, entry_ids, last_add_confirmed, master_key, bodies = run
        ledger = self._open_for_adds(ledger_id)
        if ledger is None or any(
            self._decides_long(ledger, master_key, each) for each in (entry_ids[0], entry_ids[-1])
        ):
            return False
        ledger.known_lac = max(ledger.known_lac, last_add_confirmed)
        self._until_timed -= len(bodies)
        timer = None if self._until_timed > 0 else self._time_add()
        completion = AddRunCompletion(client, stored, timer, bodies)
        try:
            self._writer.add_checked_run(ledger, entry_ids, bodies, completion)
        except Exception:
            return False  # the general path responds to each, or makes it anew
        self._added(client, ledger_id, ledger)
        return True

    def _added(self, client: Client, ledger_id: int, ledger: BookieLedgerState) -> None:
        if ledger_id in self._awaited:
            self.long_polls.lac_moved(ledger)
        self._wait_where_full(client)

    def add_copy(self, client: Client, add: FastAdd | FastTermAdd) -> bool:
        """The same for a recovery add; no fence stops that of a bounded ledger."""
        if type(add) is FastTermAdd:
            return self._add_at_term(client, add)
        ledger = self._ledgers.recent(add.ledger_id)
        if ledger is None or ledger.term is not None or self._decides_long(ledger, add.master_key, add.entry_id):
            return False
        ledger.known_lac = max(ledger.known_lac, add.last_add_confirmed)
        return self._put(client, ledger, add)

    def _put(self, client: Client, ledger: LedgerDescriptor, add: FastAdd) -> bool:
        stored, ledger_id, entry_id, _, _, body, txn_id = add
        self._until_timed -= 1
        timer = None if self._until_timed > 0 else self._time_add()
        try:
            completion = AddCompletion(client, stored, timer, body, txn_id)
            if ledger.term is None:
                self._writer.add_checked_entry(ledger, entry_id, body, completion)
            else:
                # The term stands in the same journal, before the entry: what makes the entry durable makes it, too.
                self._writer.add_at_known_term(ledger, entry_id, body, completion)
        except Exception:
            return False  # the general path responds, or makes it anew
        self._added(client, ledger_id, ledger)
        return True

    def _decides_long(self, ledger: LedgerDescriptor, master_key: bytes, entry_id: int) -> bool:
        """Whether the general path decides: the add may be refused, not for a fence, or needs a look at the disk."""
        return (
            ledger.master_key != master_key
            or not is_acceptable_key(master_key)  # the ledger's own may be unset
            or self._mode.read_only
            or not 0 < entry_id <= MAX_ENTRY_ID
            or entry_id - ledger.last_entry_id > self._gap
        )

    def _add_at_term(self, client: Client, at_term: FastTermAdd) -> bool:
        """The same for an add of an unbounded ledger, also in a take-over, at the term that the ledger has already."""
        add, term, lafr = at_term
        _, ledger_id, entry_id, last_add_confirmed, master_key, _, _ = add
        ledger = self._ledgers.recent(ledger_id)
        if ledger is None or ledger.term != term or ledger.fenced or self._decides_long(ledger, master_key, entry_id):
            return False
        ledger.known_lac = max(ledger.known_lac, last_add_confirmed)
        ledger.lafr = max(ledger.lafr, lafr)
        return self._put(client, ledger, add)

    def _add(self, client: Client, request: AddRequest) -> None:
        status = admission.check_add(request, self._mode)
        if status is Status.EOK:
            status = self._check_reach(request)
        if status is Status.EOK and not request.recovery:
            status = self._check_beginning(request.ledger_id)
        if status is Status.EOK:
            ledger = self._open_ledger(request.ledger_id, request.master_key)
            if ledger is None and request.recovery:
                # A repair may store a copy; the ledger's writer must not (AR12).
                ledger = self._writer.create_fenced_ledger(LedgerId.of_number(request.ledger_id), request.master_key)
            if ledger is None:
                status = Status.EFENCED
            else:
                status = ledger.check_add(request.master_key, recovery=request.recovery, term=request.term)
            if status is Status.EOK and request.truncate and ledger is not None:
                status = ledger.check_truncate(request.entry_id)
        if status is not Status.EOK or ledger is None:
            self._statistics.adds_refused += 1
            self._statistics.adds_refused_read_only += status is Status.EREADONLY
            self._statistics.old_terms += status is Status.EINVALIDTERM
            client.answer(error_response(request, status))
            return
        self._store(client, ledger, request)
        self._added(client, request.ledger_id, ledger)

    def _store(self, client: Client, ledger: BookieLedgerState, request: AddRequest) -> None:
        ids = request.ledger_id, request.entry_id
        stored = client.encode(AddResponse(request.txn_id, Status.EOK, *ids, request.term))
        self._until_timed -= 1
        timer = None if self._until_timed > 0 else self._time_add()
        completion = AddCompletion(client, stored, timer, request.body, encode_varint(request.txn_id))
        if request.term is not None:
            self._statistics.truncations += request.truncate
            self._writer.add_at_term(ledger, request, completion)
            return
        deferred = bool(request.write_flags & messages.DEFERRED_SYNC) and not request.recovery
        self._writer.add_entry(ledger, request.entry_id, request.body, completion, sync=not deferred)

    def raises_term(self, request: AddRequest) -> bool:
        """Whether an ordinary add shuts out other writers of a ledger that exists here: those of an earlier term, or
        those without a term.

        True also for a ledger whose index can't be read, since a later attempt to read it may succeed.
        """
        if request.recovery or request.term is None or request.ledger_id < 0:
            return False
        try:
            ledger = self._ledgers.recent(request.ledger_id) or self._ledgers.get(LedgerId.of_number(request.ledger_id))
        except (StorageCorruptException, OSError):
            return True
        return ledger is not None and (ledger.term is None or request.term > ledger.term)

    def _time_add(self) -> Timer:
        """Starts a timer for an add."""
        self._until_timed = SAMPLED
        return Timer(self._statistics.add_latency, time.perf_counter())

    def _check_reach(self, request: AddRequest) -> Status:
        """Checks the entry id before the ledger is created, so that a rejected add leaves nothing behind."""
        ledger = self._ledgers.recent(request.ledger_id) or self._ledgers.get(LedgerId.of_number(request.ledger_id))
        last_entry_id = NO_ENTRY if ledger is None else ledger.last_entry_id
        highest = admission.highest_entry_id(last_entry_id, self._max_gap, MAX_ENTRY_ID)
        if request.entry_id <= highest:
            return Status.EOK
        error = f"the ledger takes ids up to {highest} now; its last is {last_entry_id}, max_entry_gap {self._max_gap}"
        self._refused.tell(error, **_about(request))
        return Status.EBADREQ

    def _check_beginning(self, ledger_id: int) -> Status:
        """Whether a writer may create a ledger on this bookie: not if it may have been fenced here before (R9).

        A rejected request leaves nothing behind, so that the first master key is that of the repair.
        """
        if self._ledgers.recent(ledger_id) is not None or not self._storage.may_have_held(ledger_id):
            return Status.EOK
        known = self._ledgers.get(LedgerId.of_number(ledger_id)) is not None
        return Status.EOK if known else Status.EUNKNOWNLEDGERSTATE

    def _write_lac(self, client: Client, request: messages.WriteLacRequest) -> None:
        status = admission.check_write_lac(request, self._mode)
        if status is Status.EOK:
            status = self._check_beginning(request.ledger_id)
        if status is Status.EOK:
            ledger = self._open_ledger(request.ledger_id, request.master_key)
            status = Status.ENOLEDGER if ledger is None else ledger.check_key(request.master_key)
        if status is not Status.EOK or ledger is None:
            client.answer(error_response(request, status))
            return
        answer = client.encode(messages.WriteLacResponse(request.txn_id, Status.EOK, request.ledger_id))
        timer = Timer(self._statistics.write_lac_latency, time.perf_counter())
        self._writer.write_explicit_lac(ledger, request.body, RequestCompletion(client, answer, timer, request))
        self.long_polls.lac_moved(ledger)
        self._wait_where_full(client)

    def _wait_where_full(self, client: Client) -> None:
        if not self._writer.accepts_adds:
            self._wait_for_capacity(client)

    def _wait_for_capacity(self, client: Client) -> None:
        if self._mode.is_out_of_space:
            # The lack of space may last. Adds are rejected meanwhile; reads and fences must continue.
            return
        client.pause_reading()

    def _open_ledger(self, ledger_id: int, master_key: bytes) -> BookieLedgerState | None:
        """Finds or creates a ledger: it exists on a bookie from the first add, fence or explicit LAC on.

        None for a ledger that was fenced and recently deleted: a late add of its writer must not create it again.
        """
        ledger = self._ledgers.recent(ledger_id)
        if ledger is not None:
            return ledger
        wanted = LedgerId.of_number(ledger_id)
        ledger = self._ledgers.get(wanted)
        if ledger is None and not self._storage.was_fenced_and_deleted(wanted):
            ledger = self._writer.create_ledger(wanted, master_key)
        return ledger

    def stored(self, completions: Sequence[Completion]) -> None:
        """Sends the responses whose records are durable; continues the reads whose fences are."""
        clients: dict[CompletionClient, None] = {}
        latest: CompletionClient | None = None
        adds = add_bytes = 0
        for completion in completions:
            client = completion.client
            if isinstance(completion, _ADDS):  # by far the most frequent
                adds += completion.count
                add_bytes += completion.size
            if completion.timer is not None:
                completion.timer.latency.success(time.perf_counter() - completion.timer.started)
            if completion.frame:
                client.send(completion.frame, completion.count)
            elif isinstance(completion, FencedRead):
                self._go_on(completion)
            if client is not latest:
                clients[client] = None
                latest = client
        self._statistics.adds += adds
        self._statistics.add_bytes += add_bytes
        for client in clients:
            client.flush()

    def _go_on(self, fenced: FencedRead) -> None:
        request = fenced.request
        if isinstance(request, ReadRequest) and request.term is not None:
            fenced.ledger.durable_term = max(request.term, fenced.ledger.durable_term or 0)
        elif fenced.ledger.term is None:
            fenced.ledger.fence_is_durable = True
        self._statistics.fences += request.fence
        self.reads.queue(fenced.client, fenced.request, first=True)
        self.reads.pump(fenced.client)

    def not_stored(self, completions: Sequence[Completion]) -> None:
        """Sends errors for requests whose records found no space: they are not acknowledged, now or later."""
        for completion in completions:
            if isinstance(completion, _ADDS):
                self._statistics.adds_refused += completion.count
            elif completion.timer is not None:
                completion.timer.latency.failure(time.perf_counter() - completion.timer.started)
            for response in completion.refusals(Status.EIO):
                completion.client.answer(response)
        for client in dict.fromkeys(completion.client for completion in completions):
            client.flush()

    # --- reading ---

    def _read(self, client: Client, request: ReadRequest | BatchReadRequest) -> None:
        status = admission.check_read(request)
        term = request.term if isinstance(request, ReadRequest) else None
        if status is Status.EOK and (request.fence or term is not None):
            status = self._fence(client, request, term)
            if status is Status.EOK:
                return
        elif status is Status.EOK and isinstance(request, ReadRequest) and request.previous_lac is not None:
            status = self._long_poll(client, request)
            if status is Status.EOK:
                return
        if status is not Status.EOK:
            self._statistics.reads_refused += 1
            self._statistics.old_terms += status is Status.EINVALIDTERM
            client.answer(error_response(request, status))
            return
        self.reads.queue(client, request, first=request.priority > 0)

    def _long_poll(self, client: Client, request: ReadRequest) -> Status:
        if request.piggyback and request.entry_id != LAST_ENTRY:
            return Status.EBADREQ
        ledger = self._ledgers.get(LedgerId.of_number(request.ledger_id))
        if ledger is None:
            unknown = self._storage.may_have_held(request.ledger_id)
            return Status.EUNKNOWNLEDGERSTATE if unknown else Status.ENOLEDGER
        self._statistics.long_polls += 1
        if self.long_polls.take(client, request, ledger):
            return Status.EOK
        self._statistics.long_poll_latency.failure(0)
        return Status.ETOOMANYREQUESTS

    def _fence(self, client: Client, request: ReadRequest | BatchReadRequest, term: int | None) -> Status:
        """Fences first, for good or below a term; the read continues in `stored`."""
        key = request.master_key or b""
        ledger = self._open_ledger(request.ledger_id, key)
        if ledger is None:
            return Status.ENOLEDGER
        status = ledger.check_key(key)
        if status is Status.EOK and term is not None:
            status = ledger.check_term(term)
        if status is not Status.EOK:
            return status
        if term is not None and term == ledger.term == ledger.durable_term:
            self.reads.queue(client, request)
            return status
        if term is None and ledger.term is None and ledger.fence_is_durable:
            self.reads.queue(client, request, first=request.priority > 0)
            return status
        is_new = not ledger.fenced
        fenced = FencedRead(client, Timer(self._statistics.fence_latency, time.perf_counter()), request, ledger)
        if term is not None:
            self._writer.fence_at_term(ledger, term, fenced)
        else:
            self._writer.fence(ledger, fenced)
            if is_new:
                self.long_polls.wake(request.ledger_id)
        self._wait_where_full(client)
        return status

    # --- the rest ---

    def _bookie_info(self, request: messages.GetBookieInfoRequest) -> messages.GetBookieInfoResponse:
        usage = self._storage.usage()
        return messages.GetBookieInfoResponse(
            request.txn_id,
            Status.EOK,
            usage.total_bytes if request.requested & messages.TOTAL_DISK_CAPACITY else None,
            usage.free_bytes if request.requested & messages.FREE_DISK_SPACE else None,
        )

    def _force(self, client: Client, request: messages.ForceLedgerRequest) -> None:
        if request.ledger_id < 0:
            client.answer(error_response(request, Status.EBADREQ))
            return
        answer = client.encode(messages.ForceLedgerResponse(request.txn_id, Status.EOK, request.ledger_id))
        timer = Timer(self._statistics.force_latency, time.perf_counter())
        self._writer.force(LedgerId.of_number(request.ledger_id), RequestCompletion(client, answer, timer, request))
        self._wait_where_full(client)


def _about(request: Request) -> dict[str, object]:
    """The fields of a request for the log."""
    found = {"ledger": getattr(request, "ledger_id", None), "entry": getattr(request, "entry_id", None)}
    return {"request": type(request).__name__, **{name: value for name, value in found.items() if value is not None}}
