"""The code shared by all kinds of ledger writers.

`core.writing` defines the rules; this module connects them to connections, timers and the application's futures.
Everything runs on the event loop on which the client was created. Not its job: how entries arrive and get their ids
(`write_handle`, `advanced_write_handle`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from itertools import compress
from types import TracebackType
from typing import Any, Self

from bookgate.ledger.entry import encode_entries, header_size_of
from bookgate.ledger.errors import (
    AddEntryQuorumTimeoutException,
    BKException,
    ClientClosedException,
    DuplicateEntryIdException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerFencedException,
    LedgerIdTakenException,
    WriteException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.messages import ADD_ENTRY, EOK, ForceLedgerRequest, Operation, Response
from bookgate.runtime.logs import log_event
from bookgate.runtime.shared_tasks import has_failed, shared_task
from bookgate.runtime.unclosed import made_at, warn_unclosed
from bookgate.thinclient.bookies.connection import AddSink, BookieConnection
from bookgate.thinclient.bookies.pool import V3, AddEncoder
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.writing import Changed, LedgerWriter, Member, PendingAdd, WriterRules
from bookgate.thinclient.handles import first_refusal
from bookgate.thinclient.handles.appending import Payload, payload_bytes
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, status_error
from bookgate.thinclient.handles.deferred_sync import UnforcedAdds, forgotten
from bookgate.thinclient.handles.ensemble_changer import EnsembleChanger, writer_rules
from bookgate.thinclient.handles.explicit_lac_timer import ExplicitLacTimer
from bookgate.thinclient.handles.in_flight_window import InFlightWindow
from bookgate.thinclient.handles.metadata_cas import close_by_writer, update
from bookgate.thinclient.metrics import SAMPLED

_log = logging.getLogger(__name__)


class BaseWriteHandle:
    """Base class of the write handles."""

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        *,
        deferred_sync: bool = False,
        id_given: bool | None = None,
    ) -> None:
        """`id_given`, for a ledger created just now: whether the application chose its id. None for an existing
        ledger.
        """
        metadata = record.metadata
        self._id_given = id_given
        self._explaining: asyncio.Task[None] | None = None
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._writer = self._make_writer(record, writer_rules(context.config, deferred_sync))
        self._deferred_sync = deferred_sync
        self._write_quorum_size = metadata.write_quorum_size
        self._number = record.ledger_id.number
        self._digest = secrets.digest
        self._encoder: AddEncoder = context.pool.add_encoder(self._number, secrets.master_key)
        self._unforced: UnforcedAdds | None = None
        if deferred_sync:
            ensemble = metadata.last_fragment.ensemble
            self._encoder = self._unforced = UnforcedAdds(context.pool, self._number, secrets.master_key, ensemble)
        self._window = self._make_window(context.config)
        self._changer = EnsembleChanger(context, self._writer, record, self._on_changed, self._end)
        self._targets: list[tuple[Member, BookieConnection, AddSink]] = []
        self._aim()
        context.active_handles[self._changer] = None
        self._explicit_lac: ExplicitLacTimer | None = None
        if context.config.explicit_lac_interval_seconds and context.config.wire_protocol == V3:
            self._explicit_lac = ExplicitLacTimer(context, self._lac_state, self._number, secrets, metadata)
        self._quorum_timer: asyncio.TimerHandle | None = None
        if context.config.add_quorum_timeout_seconds:
            self._watch_head(None)
        self._max_payload = context.config.max_packet_size - header_size_of(self._number) - secrets.digest.length
        self._add_timeout = context.config.add_timeout_seconds
        self._lost = False
        self.made_at = made_at()
        """The line of the application that created the handle, for the warning that it was not closed."""
        self._closing: asyncio.Task[None] | None = None

    def _make_writer(self, record: LedgerRecord, rules: WriterRules) -> LedgerWriter:
        metadata = record.metadata
        return LedgerWriter(
            record.ledger_id,
            metadata.last_fragment.ensemble,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            rules=rules,
        )

    def _make_window(self, config: ClientConfig) -> InFlightWindow:
        return InFlightWindow(config.max_in_flight_entries, config.max_in_flight_bytes)

    def __repr__(self) -> str:
        metadata = self.metadata
        sizes = f"{metadata.ensemble_size}/{metadata.write_quorum_size}/{metadata.ack_quorum_size}"
        ended = self._writer.error
        state = f"ended by {type(ended).__name__}" if ended else "open" if self._closing is None else "closed"
        return (
            f"<{type(self).__name__} of ledger {self.ledger_id}, {state}, {sizes}, "
            f"last add confirmed {self.last_add_confirmed}, {self.length} bytes>"
        )

    def __del__(self) -> None:
        if getattr(self, "_closing", self) is not None:
            return
        if self._writer.error is None or isinstance(self._writer.error, ClientClosedException):
            warn_unclosed(f"the writer of ledger {self.ledger_id}, which stays open for readers,", self.made_at, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._close_after_error(self.close)

    async def _close_after_error(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Calls `close`, which closes this handle, after an error in the body of `async with`."""
        # The caller must see the body's own error; a ledger that stays open can be recovered.
        await asyncio.gather(close(), return_exceptions=True)

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._changer.record.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self.ledger_id.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last written or read by this handle."""
        return self._changer.record.metadata

    @property
    def record(self) -> LedgerRecord:
        """The ledger metadata with its version, as last written or read by this handle."""
        return self._changer.record

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest entry id up to which all entries are acknowledged; -1 for none."""
        return self._writer.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to `last_add_confirmed`."""
        return self._writer.confirmed_length

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Bookies of the ensemble that failed and could not be replaced, with their errors; they are not written to for
        a while.
        """
        return self._writer.failed_bookies

    async def force(self) -> None:
        """Makes all entries acknowledged so far durable on every bookie of the ensemble.

        With deferred sync only this moves the LAC. A failure loses nothing; `force` can be called again.

        Raises:
            LedgerClosedException: The handle was closed.
            BKException: The error of the first bookie that failed, or the error that ended the ledger.
        """
        if self._writer.error is not None:
            raise self._writer.error.with_traceback(None)
        if self._closing is not None:
            raise LedgerClosedException(f"ledger {self.ledger_id} is closed; it can't be forced any more")
        with self._context.metrics.timed("FORCE"):
            await self._force()

    async def _force(self) -> None:
        entry_id, length = self._writer.sequence_head, self._writer.acknowledged_length
        if entry_id == NO_ENTRY:
            return
        await asyncio.gather(*map(self._force_bookie, self._writer.ensemble))
        if self._writer.error is not None:
            raise self._writer.error.with_traceback(None)
        self._writer.on_forced(entry_id, length)
        if self._unforced is not None and self._writer.last_add_pushed == entry_id:
            self._unforced.forced()

    async def _force_bookie(self, bookie_id: str) -> None:
        pool = self._context.pool
        if self._unforced is not None and self._unforced.may_have_forgotten(bookie_id):
            self._end(forgotten(self.ledger_id, bookie_id, self.last_add_confirmed))
            return
        request = ForceLedgerRequest(pool.next_txn_id(), self._number)
        response = await pool.request(bookie_id, Operation.FORCE_LEDGER, request, self._add_timeout)
        if response.status != EOK:
            raise status_error(response.status, bookie_id, self.ledger_id, "the force", WriteException)

    async def close(self, *, force: bool = True) -> None:
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
        if self._closing is None or (has_failed(self._closing) and self._deferred_sync and not force):
            self._begin_gathered()
            self._closing = shared_task(self._close(force))
        await asyncio.shield(self._closing)

    async def _close(self, force: bool) -> None:
        self._give_up(self._writer.unreachable())
        try:
            await self._wait_until_settled()
        finally:
            self._stop()
        if isinstance(self._writer.error, LedgerFencedException | LedgerIdTakenException):
            raise self._writer.error
        if self._deferred_sync and force and self._writer.error is None:
            await self._force()
        transform = close_by_writer(self.ledger_id, self.last_add_confirmed, self.length)
        changer = self._changer
        changer.record = await update(
            self._context.ledger_manager, changer.record, transform, self._context.config.retries
        )
        last, length = self.last_add_confirmed, self.length
        log_event(_log, "ledger_closed", ledger=self.ledger_id, last_entry=last, length=length)

    async def _wait_until_settled(self) -> None:
        """Waits until the ledger can be closed at its LAC. Raises the error that ended it, if it can't be any more."""
        await self._window.wait_until_idle()

    def _stop(self) -> None:
        self._changer.stop()
        if self._explicit_lac is not None:
            self._explicit_lac.stop()
        if self._quorum_timer is not None:
            self._quorum_timer.cancel()
        self._context.active_handles.pop(self._changer, None)

    def _give_up(self, adds: Sequence[PendingAdd]) -> None:
        if adds:
            self._settle(adds, LedgerClosedException(f"ledger {self.ledger_id} was closed; an entry before is missing"))

    # Adding

    def _check(self, payload: Payload) -> bytes:
        """The bytes to append, after all checks: nothing is counted before it is certain that the append can begin."""
        if self._writer.error is not None:
            # One error serves many callers; without this each of them would add its frames to the same traceback.
            raise self._writer.error.with_traceback(None)
        if self._closing is not None:
            raise LedgerClosedException(f"ledger {self.ledger_id} is closed; entries can't be appended any more")
        data = payload if isinstance(payload, bytes) else payload_bytes(payload)
        if len(data) > self._max_payload:
            raise IncorrectParameterException(
                f"an entry of {len(data)} bytes is too large for ledger {self.ledger_id}: at most "
                f"{self._max_payload} bytes fit (the bookies' frame limit is "
                f"{self._context.config.max_frame_size_bytes})"
            )
        return data

    def _watch_head(self, before: PendingAdd | None) -> None:
        """Ends the ledger if the same add blocks all others for `add_quorum_timeout_seconds`."""
        head = self._writer.oldest_incomplete
        if head is not None and head is before:
            seconds = self._context.config.add_quorum_timeout_seconds
            self._end(
                AddEntryQuorumTimeoutException(
                    f"ledger {self.ledger_id} takes no more entries: entry {head.entry_id} was acknowledged by "
                    f"{head.acks} bookies of {', '.join(self._writer.ensemble)} within {seconds:g} s, and needs "
                    f"{self.metadata.ack_quorum_size}. Open it with recovery, and write on in a new one",
                    ledger_id=self.ledger_id,
                    first_entry_id=self.metadata.last_fragment.first_entry_id,
                    bookies=self._writer.failed_bookies,
                )
            )
            return
        self._quorum_timer = self._loop.call_later(
            self._context.config.add_quorum_timeout_seconds, self._watch_head, self._writer.oldest_incomplete
        )

    def _lac_state(self) -> LedgerWriter:
        return self._writer

    def _begin_gathered(self) -> None:
        """Sends what was accepted and not sent yet, in the writers that gather entries."""

    def _begin(
        self,
        payloads: Sequence[bytes],
        futures: Iterator[asyncio.Future[int]] | None = None,
        entry_id: int = NO_ENTRY,
    ) -> PendingAdd:
        """Sends entries that the window has already counted, as many as can begin.

        Args:
            payloads: The entries.
            futures: Those of the entry ids, if somebody waits for each; what could not begin leaves its future here.
            entry_id: The id of the entry, where the application chooses it.

        Returns:
            The last add.

        Raises:
            BKException: The entries from some one on could not begin.
        """
        rest, adds = payloads, self._begun(payloads, entry_id)
        while True:
            for add, future in zip(adds, futures or (), strict=False):
                add.token = future
            self._send(adds, rest[: len(adds)])
            rest = rest[len(adds) :]
            if not rest:
                return adds[-1]
            adds = self._begun(rest, entry_id)

    def _begun(self, payloads: Sequence[bytes], entry_id: int) -> Sequence[PendingAdd]:
        """Begins the adds of the first entry and as many others as the ledger's writer takes at once."""
        sizes = list(map(len, payloads))
        try:
            if self._closing is not None:
                raise LedgerClosedException(f"ledger {self.ledger_id} was closed before the entry could be appended")
            return self._begin_adds(sizes, entry_id)
        except BKException as error:
            self._window.leave(len(sizes), sum(sizes))
            self._window.release(sum(sizes), len(sizes))
            if self._writer.error is not None:
                self._ended(self._writer.unreachable())
            elif not isinstance(error, DuplicateEntryIdException):
                self._window.fail(error)
            raise

    def _begin_adds(self, sizes: Sequence[int], entry_id: int) -> Sequence[PendingAdd]:
        return self._writer.begin_adds(sizes)

    def _send(self, adds: Sequence[PendingAdd], payloads: Sequence[bytes]) -> None:
        """Sends adds of consecutive entries that have just begun."""
        first, pool = adds[0], self._context.pool
        for add in adds[-first.entry_id & SAMPLED :: SAMPLED + 1]:
            add.began = time.perf_counter()
        if self._explicit_lac is not None and self._explicit_lac.idle:
            self._explicit_lac.start()
        lengths = [add.length for add in adds]
        packets = encode_entries(
            self._digest, self._number, first.entry_id, first.last_add_confirmed, lengths, payloads
        )
        for add, packet in zip(adds, packets, strict=True):
            add.packet = packet
        txn_ids = [pool.next_txn_id() for _ in adds]
        frames = self._encoder.encode_run(txn_ids, first.entry_id, packets)
        deadline = self._loop.time() + self._add_timeout
        if len(first.indexes) == len(self._targets):
            for _, connection, sink in self._targets:
                connection.send_adds(txn_ids, frames, deadline, sink, adds)
        else:
            for index, (_, connection, sink) in enumerate(self._targets):
                own = [index in add.indexes for add in adds]
                some = list(compress(txn_ids, own)), list(compress(frames, own)), list(compress(adds, own))
                connection.send_adds(some[0], some[1], deadline, sink, some[2])
        if first.unsettled < self._write_quorum_size:  # while members are out, an add begins alone
            self._began_short(first)

    def _began_short(self, add: PendingAdd) -> None:
        """An add was sent to fewer bookies than its write set has."""
        if self._writer.change_wanted:
            self._changer.start()
        if not add.unsettled:
            self._let_go(add.size)

    def _let_go(self, size: int, count: int = 1) -> None:
        """No bookie has yet to respond to adds with together `size` bytes."""
        self._window.release(size, count)

    def _on_answer(self, member: Member, add: PendingAdd, response: Response | None, error: BKException | None) -> None:
        if response is not None and response.status == EOK:
            self._on_stored(member, (add,))
            return
        self._heard_of((add,))
        self._on_refusal(member, add, response, error)

    def _on_stored(self, member: Member, adds: Sequence[PendingAdd]) -> None:
        """A bookie has stored these adds."""
        self._heard_of(adds)
        confirmed = self._writer.on_acks(adds, member)
        if confirmed:
            self._settle(confirmed, None)

    def _heard_of(self, adds: Sequence[PendingAdd]) -> None:
        """One more bookie has responded to these adds, or failed."""
        count = size = 0
        for add in adds:
            add.unsettled -= 1
            if not add.unsettled:
                count += 1
                size += add.size
        if count:
            self._let_go(size, count)

    def _on_refusal(
        self, member: Member, add: PendingAdd, response: Response | None, error: BKException | None
    ) -> None:
        if response is not None:
            what = f"the add of entry {add.entry_id}"
            error = status_error(response.status, member.bookie_id, self.ledger_id, what, WriteException)
        self._on_failure(member, error or WriteException(), add)

    def _on_failure(self, member: Member, error: BKException, add: PendingAdd | None) -> None:
        self._context.health.on_error(member.bookie_id, error)
        self._context.metrics.count("ADD_ENTRY_UR")
        if self._explaining is not None:
            return
        untouched = self._id_given is not None and self._writer.sequence_head == NO_ENTRY and self._writer.error is None
        failed = self._writer.on_failure(member, error, add)
        if untouched and self._writer.error is error and isinstance(error, first_refusal.REFUSALS):
            self._changer.stop()
            self._explaining = self._loop.create_task(self._explain(error, failed))
        elif self._writer.error is not None:
            self._ended(failed)
        elif self._writer.change_wanted:
            self._changer.start()

    async def _explain(self, error: BKException, failed: Sequence[PendingAdd]) -> None:
        """Ends a new ledger whose first entries were rejected, and gives waiting appends the reason."""
        record, id_given = self.record, bool(self._id_given)
        try:
            self._writer.error = await first_refusal.explained(self._context, record, error, id_given=id_given)
        finally:
            self._ended(failed)

    # Ensemble changes, and the end of the ledger

    def _on_changed(self, changed: Changed) -> None:
        self._aim()
        deadline = self._loop.time() + self._add_timeout
        for add, index in changed.resend:
            if not add.unsettled:
                self._keep_again(add)
            add.unsettled += 1
            txn_id = self._context.pool.next_txn_id()
            frame = self._encoder.encode(txn_id, add.entry_id, add.packet)
            _, connection, sink = self._targets[index]
            connection.send(ADD_ENTRY, txn_id, frame, deadline, sink, add)
        if changed.confirmed:
            self._settle(changed.confirmed, None)
        if self._writer.error is not None:
            self._ended(changed.failed)

    def _keep_again(self, add: PendingAdd) -> None:
        """An add that was let go is sent to a bookie again."""
        self._window.retain(add.size)

    def _aim(self) -> None:
        """Recomputes where the adds of each index are sent, and which sinks receive their responses."""
        pool, known = self._context.pool, {target[0]: target for target in self._targets}
        self._targets = [
            known.get(member) or (member, pool.connection(member.bookie_id, self._number), self._sink(member))
            for member in self._writer.members
        ]

    def _sink(self, member: Member) -> AddSink:
        return AddSink(partial(self._on_answer, member), partial(self._on_stored, member))

    def _end(self, error: BKException) -> None:
        """Ends the ledger for this writer: it accepts no more entries."""
        if self._explaining is not None:
            self._explaining.cancel()
        self._ended(self._writer.abort(error))

    def _ended(self, failed: Sequence[PendingAdd]) -> None:
        error = self._writer.error
        assert error is not None
        if not self._lost:
            self._lost = True
            lac = self.last_add_confirmed
            level = logging.INFO if isinstance(error, ClientClosedException) else logging.WARNING
            log_event(_log, "writer_ended", level, ledger=self.ledger_id, last_add_confirmed=lac, error=error)
        self._stop()
        self._settle(failed, error)
        self._window.fail(error)

    def _settle(self, adds: Sequence[PendingAdd], error: BKException | None) -> None:
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

    def _count(self, adds: Sequence[PendingAdd], stored: bool) -> None:
        stats = self._context.metrics.add_entry
        if not stored:
            stats.failures += len(adds)
            return
        stats.successes += len(adds)
        sampled = -adds[0].entry_id & SAMPLED
        if sampled < len(adds):
            stats.succeeded.record(time.perf_counter() - adds[sampled].began)
