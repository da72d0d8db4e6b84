"""The writer of an unbounded ledger in one term.

`core.unbounded.writing` defines the rules; this module connects them to connections, timers, the metadata and the
application's futures. An append returns at ack quorum; the handle keeps the entry until its whole write set has it.
Everything runs on the event loop on which the client was created.

| state | entered by | accepts |
|---|---|---|
| open | creation, or a take-over | appends |
| released | `release`, `abandon`, or the end of `async with`: the ledger stays open for the next writer | nothing |
| closed | `close`: the ledger has its final end | nothing; if it failed, `close` again, or `release` |
| ended | another client took over, the ledger was deleted, or the metadata store stayed unreachable | nothing; calls
raise the reason |

Not its job: the beginning of a term (`taking_over`), reading (`read_handle`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from bookgate.ledger.entry import encode_entry, header_size_of
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IncorrectParameterException,
    LedgerClosedException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    TermSupersededException,
    WriteException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import terms_of
from bookgate.ledger.wire.messages import EOK, AddResponse, Response
from bookgate.runtime.logs import log_bug, log_event
from bookgate.runtime.shared_tasks import has_failed, shared_task
from bookgate.runtime.unclosed import made_at, warn_unclosed
from bookgate.thinclient.bookies.pool import V3
from bookgate.thinclient.core.recovery import Replace
from bookgate.thinclient.core.unbounded.adds import (
    Add,
    ChooseEnsemble,
    Confirmed,
    Effect,
    FailedAdds,
    Place,
    RetryLater,
    SendAdd,
    StoreFragment,
)
from bookgate.thinclient.core.unbounded.changes import Holder, NewFragment, Transform, closing, storing, trimming
from bookgate.thinclient.core.unbounded.writing import UnboundedWriter
from bookgate.thinclient.gateways.retry_policy import doubling
from bookgate.thinclient.handles.appending import Appending, Payload, payload_bytes
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets
from bookgate.thinclient.handles.explicit_lac_timer import ExplicitLacTimer
from bookgate.thinclient.handles.in_flight_window import InFlightWindow
from bookgate.thinclient.handles.metadata_cas import update
from bookgate.thinclient.handles.patience import end_after_error
from bookgate.thinclient.handles.unbounded.bookie_finder import BookieFinder
from bookgate.thinclient.handles.unbounded.term_requests import TermAddSender, add_failure
from bookgate.thinclient.metrics import SAMPLED

_log = logging.getLogger(__name__)

_ENDED_ELSEWHERE = (
    TermSupersededException,
    LedgerClosedException,
    NoSuchLedgerExistsOnMetadataServerException,
)
"""Errors of the metadata after which no attempt of this writer to close the ledger succeeds."""


class UnboundedWriteHandle(Appending[Add]):
    """The writer of an unbounded ledger, until another client takes over. Use it as an async context manager: at the
    end it is released, and the ledger stays open.
    """

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        *,
        last_entry_id: int = NO_ENTRY,
        length: int = 0,
        max_fragment_seconds: float | None = None,
    ) -> None:
        """Called by `BookKeeper`. `last_entry_id` and `length` are those before the term."""
        super().__init__()
        config, terms = context.config, terms_of(record.metadata)
        self.record = record
        """The ledger metadata with its version, as last written by this handle."""
        self._context = context
        self._digest = secrets.digest
        self._number = record.ledger_id.number
        self._holder = Holder(terms.term, terms.holder)
        self._loop = asyncio.get_running_loop()
        self._writer = UnboundedWriter(record.ledger_id, record.metadata, last_entry_id, length)
        if last_entry_id != NO_ENTRY:
            self._writer.last_replicated.packet = encode_entry(
                secrets.digest, self._number, last_entry_id, last_entry_id - 1, length, b""
            )
        self._adds = TermAddSender(context, record.ledger_id, secrets, terms.term, self._on_answer)
        self._finder = BookieFinder(context)
        self._window = InFlightWindow(config.max_in_flight_entries, config.max_in_flight_bytes)
        self._released, self._released_length = self._writer.lafr, self._writer.replicated_length
        """The last entry that the window no longer counts as retained, and the ledger's length up to it."""
        self._max_payload = config.max_packet_size - header_size_of(self._number) - secrets.digest.length
        self._work: asyncio.Task[None] | None = None
        self._metadata_turn = asyncio.Lock()
        self._retry: asyncio.TimerHandle | None = None
        self._replicated: asyncio.Future[None] | None = None
        self._fragment_seconds = max_fragment_seconds
        self._fragment_timer: asyncio.TimerHandle | None = None
        self._explicit_lac: ExplicitLacTimer | None = None
        if config.explicit_lac_interval_seconds and config.wire_protocol == V3:
            self._explicit_lac = ExplicitLacTimer(context, self._lac_state, self._number, secrets, record.metadata)
        self._closing: asyncio.Task[None] | None = None
        self.made_at = made_at()
        """The line of the application that created the handle, for the warning that it was not released."""
        context.active_handles[self] = None
        self._time_fragment()

    def __repr__(self) -> str:
        ended = self._writer.error
        state = f"ended by {type(ended).__name__}" if ended else "open" if self._closing is None else "closed"
        return (
            f"<{type(self).__name__} of ledger {self.ledger_id}, {state}, term {self.term}, "
            f"last add confirmed {self.last_add_confirmed}, {self.length} bytes>"
        )

    def __del__(self) -> None:
        if getattr(self, "_closing", self) is None and self._writer.error is None:
            warn_unclosed(f"the writer of unbounded ledger {self.ledger_id}", self.made_at, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.release()
        else:
            await self._close_after_error(self.release)

    async def _close_after_error(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Calls `close`, which releases this handle, after an error in the body of `async with`."""
        await end_after_error(close, self._abandon, self._context.config.add_timeout_seconds)

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self.record.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self.ledger_id.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last written by this handle."""
        return self.record.metadata

    @property
    def term(self) -> int:
        """The term in which this handle writes."""
        return self._writer.term

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest entry id up to which all entries are acknowledged; -1 for none."""
        return self._writer.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """The LAFR: the highest entry id up to which all entries are on their whole write sets; -1 for none."""
        return self._writer.lafr

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to `last_add_confirmed`, deleted ones included."""
        return self._writer.confirmed_length

    @property
    def max_entry_bytes(self) -> int:
        """The largest payload of an entry."""
        return self._max_payload

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Members of the last ensemble that failed and were not replaced, with their errors."""
        return self._writer.failed_bookies

    @property
    def pending_adds(self) -> int:
        """Appends not yet acknowledged."""
        return self._writer.unconfirmed_count

    # Adding

    def _check(self, payload: Payload) -> bytes:
        if self._writer.error is not None:
            # One error serves many callers; without this each of them would add its frames to the same traceback.
            raise self._writer.error.with_traceback(None)
        if self._closing is not None:
            raise LedgerClosedException(f"ledger {self.ledger_id} is closed; entries can't be appended any more")
        data = payload if isinstance(payload, bytes) else payload_bytes(payload)
        if not 0 < len(data) <= self._max_payload:
            raise IncorrectParameterException(
                f"an entry of an unbounded ledger has 1 to {self._max_payload} bytes, not {len(data)} (an empty one "
                f"means that a term began; the bookies' frame limit is {self._context.config.max_frame_size_bytes})"
            )
        return data

    def _begin_with_future(self, payload: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._begin(payload, future)
        return future

    def _begin_run(self, payloads: Sequence[bytes]) -> Add:
        return [self._begin(payload) for payload in payloads][-1]

    def _begin(self, payload: bytes, future: asyncio.Future[int] | None = None) -> Add:
        size = len(payload)
        try:
            if self._closing is not None:
                raise LedgerClosedException(f"ledger {self.ledger_id} was closed before the entry could be appended")
            add, sends = self._writer.begin_add(size)
        except BKException:
            self._window.leave(1, size)
            self._window.release(size)
            raise
        add.packet = encode_entry(self._digest, self._number, add.entry_id, add.last_add_confirmed, add.length, payload)
        add.token = future
        if not add.entry_id & SAMPLED:
            add.began = time.perf_counter()
        if self._explicit_lac is not None and self._explicit_lac.idle:
            self._explicit_lac.start()
        for _, places, truncate in sends:
            self._adds.send(add, places, truncate=truncate)
        return add

    async def _confirmed(self, add: Add | None) -> int:
        if add is None:
            return self._writer.last_add_pushed
        if self.last_add_confirmed >= add.entry_id:
            return add.entry_id
        if self._writer.error is not None:
            raise self._writer.error.with_traceback(None)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        return await future

    def _on_answer(self, place: Place, add: Add, response: Response | None, error: BKException | None) -> None:
        if type(response) is AddResponse and response.status == EOK and response.term is not None:
            effects = self._writer.on_ack(add, place, response.term)
            if effects:
                self._perform(effects)
            elif self._writer.lafr > self._released:
                self._let_go()
            return
        failure = add_failure(self.record.ledger_id, place, add, response, error)
        self._context.health.on_error(place.bookie_id, failure)
        self._context.metrics.count("ADD_ENTRY_UR")
        self._perform(self._writer.on_failure(place, failure, add))

    # Effects of the core

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Confirmed(adds):
                    self._settle(adds, None)
                case SendAdd(add, places, truncate):
                    self._adds.send(add, places, truncate=truncate)
                case FailedAdds(adds, error):
                    self._end(adds, error)
                case Replace() as wanted:
                    self._start(self._replace(wanted))
                case ChooseEnsemble():
                    self._start(self._choose())
                case StoreFragment(new):
                    self._start(self._store(new))
                case RetryLater():
                    self._retry_later()
        self._let_go()

    def _let_go(self) -> None:
        """Drops fully replicated adds."""
        if self._writer.lafr > self._released:
            self._forget(self._writer.lafr, self._writer.replicated_length)
        if self._replicated is not None and not self._writer.pending_count and not self._replicated.done():
            self._replicated.set_result(None)

    def _forget(self, entry_id: int, length: int) -> None:
        """Tells the window that no entry up to this one is retained any more; `length` is the ledger's up to it."""
        self._window.release(length - self._released_length, entry_id - self._released)
        self._released, self._released_length = entry_id, length

    def _settle(self, adds: Sequence[Add], error: BKException | None) -> None:
        """Completes the application's futures, in entry order."""
        size = 0
        for add in adds:
            size += add.size
            future: Any = add.token
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(add.entry_id)
            else:
                future.set_exception(error)
        self._window.leave(len(adds), size)
        if adds:
            self._count(adds, error is None)

    def _count(self, adds: Sequence[Add], stored: bool) -> None:
        stats = self._context.metrics.add_entry
        if not stored:
            stats.failures += len(adds)
            return
        stats.successes += len(adds)
        sampled = -adds[0].entry_id & SAMPLED
        if sampled < len(adds):
            stats.succeeded.record(time.perf_counter() - adds[sampled].began)

    def _lac_state(self) -> UnboundedWriter:
        return self._writer

    # Changes of the fragments

    def _start(self, work: Coroutine[Any, Any, Sequence[Effect]]) -> None:
        """Runs one step of a change; the core requests the next one only after the last has ended."""
        self._work = self._loop.create_task(self._step(work))

    async def _step(self, work: Coroutine[Any, Any, Sequence[Effect]]) -> None:
        try:
            self._perform(await work)
        except BKException as error:
            self._perform(self._writer.disengage(error))
        except Exception as error:  # an error of a driver: for the application, not for the event loop
            log_bug(_log, "ensemble_change", error, state="failed", ledger=self.ledger_id)
            failed = WriteException(f"ledger {self.ledger_id}: the ensemble could not be changed: {error}")
            self._perform(self._writer.disengage(failed))

    async def _replace(self, wanted: Replace) -> Sequence[Effect]:
        found = await self._finder.replacements(self.record, wanted, self._writer.avoided)
        return self._writer.on_replacements(found)

    async def _choose(self) -> Sequence[Effect]:
        return self._writer.on_ensemble(await self._finder.ensemble(self.record))

    async def _store(self, new: NewFragment) -> Sequence[Effect]:
        before = self.metadata.last_fragment.ensemble
        limit = self._context.config.ensemble_change_timeout_seconds
        error: BKException | None = None
        retries = self._context.config.retries
        pauses = doubling(retries.ensemble_change_first_pause_seconds, retries.ensemble_change_longest_pause_seconds)
        try:
            async with asyncio.timeout(limit):
                while True:
                    try:
                        await self._change(storing(self._holder, new))
                        break
                    except (MetaStoreException, MetadataVersionException) as failed:
                        error = failed
                        await asyncio.sleep(next(pauses))
        except TimeoutError:
            reason = error or "the metadata store gave no answer"
            raise MetaStoreException(
                f"unbounded ledger {self.ledger_id} takes no more entries from this writer: its next fragment could "
                f"not be stored within {limit:g} s ({reason}). Take it over again",
                ledger_id=self.ledger_id,
                bookies=self._writer.failed_bookies,
            ) from None
        ensemble = new.fragment.ensemble
        if ensemble != before:
            self._context.metrics.count("NUM_ENSEMBLE_CHANGE")
        first, names = new.fragment.first_entry_id, ",".join(ensemble)
        log_event(
            _log,
            "ensemble_changed",
            ledger=self.ledger_id,
            first_entry=first,
            before=",".join(before),
            after=names,
        )
        self._time_fragment()
        return self._writer.on_stored()

    async def _change(self, transform: Transform) -> None:
        async with self._metadata_turn:
            self.record = await update(
                self._context.ledger_manager, self.record, transform, self._context.config.retries
            )

    def _retry_later(self) -> None:
        if self._retry is None and self._writer.error is None:
            self._retry = self._loop.call_later(self._context.config.failed_bookie_interval_seconds, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._perform(self._writer.retry())

    def _time_fragment(self) -> None:
        if self._fragment_timer is not None:
            self._fragment_timer.cancel()
        if self._fragment_seconds is not None:
            self._fragment_timer = self._loop.call_later(self._fragment_seconds, self._fragment_is_old)

    def _fragment_is_old(self) -> None:
        self._perform(self._writer.end_fragment())
        self._time_fragment()

    # Retention

    async def trim(self, before_entry_id: int) -> int:
        """Deletes the entries below `before_entry_id`, as far as complete fragments reach.

        Args:
            before_entry_id: The first entry to keep.

        Returns:
            The first entry that can be read from now on; lower than requested if the rest is in the last fragment.

        Raises:
            BKException: The metadata could not be changed.
        """
        await self._change(trimming(before_entry_id))
        return self.metadata.fragments[0].first_entry_id

    # The end

    async def close(self) -> None:
        """Waits until all appends are acknowledged and on their whole write sets, then ends the ledger for good.

        Afterwards no client can write to it or take it over; all its entries are fully replicated (G2). Repeated calls
        share the outcome of the first; if the metadata could not be changed they try again, or `release` the handle.

        Raises:
            LedgerClosedException: The handle was released, and the ledger is still open.
            TermSupersededException: Another client has taken over the ledger.
            BKException: The error that ended the writer, or the metadata could not be changed.
        """
        if self._closing is None or has_failed(self._closing):
            self._closing = shared_task(self._close())
        await asyncio.shield(self._closing)
        if self._writer.error is not None and not self.metadata.is_closed:
            # What this call has waited for was a release.
            raise self._writer.error.with_traceback(None)

    async def _close(self) -> None:
        await self._wait_until_replicated()
        if self._writer.error is not None:
            raise self._writer.error.with_traceback(None)
        try:
            await self._change(closing(self._holder, self._writer.last_add_pushed, self._writer.length))
        except _ENDED_ELSEWHERE as error:
            self._perform(self._writer.disengage(error))
            raise
        last, length = self.last_add_confirmed, self.length
        log_event(_log, "ledger_closed", ledger=self.ledger_id, last_entry=last, length=length)
        self._perform(self._writer.disengage(LedgerClosedException(f"ledger {self.ledger_id} is closed")))

    async def _wait_until_replicated(self) -> None:
        if self._writer.pending_count and self._writer.error is None:
            self._replicated = self._loop.create_future()
            await self._replicated

    async def release(self) -> None:
        """Waits until all appends are acknowledged or have failed, tells readers, and ends the handle; the ledger stays
        open.

        The next writer takes the ledger over, which is faster the more entries are fully replicated.
        """
        if self._closing is not None:
            # A close under way may fail, and then has released nothing.
            await asyncio.wait((self._closing,))
        if (self._closing is None or has_failed(self._closing)) and self._writer.error is None:
            self._closing = shared_task(self._release())
        if self._closing is not None:
            await asyncio.wait((self._closing,))

    async def _release(self) -> None:
        await self._window.wait_until_idle()
        if self._explicit_lac is not None and self._writer.error is None:
            await self._explicit_lac.send_now()
        if self._writer.error is None:
            self._abandon()

    async def abandon(self) -> None:
        """Ends the handle at once: appends that are not acknowledged fail, and may still become part of the ledger,
        which stays open.
        """
        self._abandon()

    def _abandon(self) -> None:
        error = LedgerClosedException(f"the writer of unbounded ledger {self.ledger_id} was released")
        self._perform(self._writer.disengage(error))

    def client_closed(self, error: BKException) -> None:
        """Ends the writer with its client; the ledger stays open in the metadata."""
        self._perform(self._writer.disengage(error))

    def _end(self, failed: Sequence[Add], error: BKException) -> None:
        lac = self.last_add_confirmed
        level = logging.INFO if isinstance(error, ClientClosedException | LedgerClosedException) else logging.WARNING
        log_event(_log, "writer_ended", level, ledger=self.ledger_id, last_add_confirmed=lac, error=error)
        if self._explicit_lac is not None:
            self._explicit_lac.stop()
        for timer in (self._retry, self._fragment_timer):
            if timer is not None:
                timer.cancel()
        if self._work is not None and self._work is not asyncio.current_task(self._loop):
            self._work.cancel()
        self._context.active_handles.pop(self, None)
        self._settle(failed, error)
        self._forget(self._writer.last_add_pushed, self._writer.length)
        self._window.fail(error)
