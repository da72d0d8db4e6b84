"""Long polls: reads that wait until the LAC of their ledger passes the one that the client knows.

A request is parked in `LacWaiters`, and continues as an ordinary read in its connection's queue when its wait ends. If
the LAC has not been needed since the ledger was loaded, it is loaded first, so that a request whose response is on disk
does not wait. The request is parked before the LAC is looked up, so no growth in between is missed.

Belongs to the event loop; only the loading happens on the reader thread. Source: docs/protocol/wire.md#long-polls.

Not its job: which waiters wake (`lac_waiters`), the response (`read_scheduler`), whether the request is allowed
(`request_processor`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from bookgate.bookie.protocol.lac_waiters import LacWaiters, Waiter
from bookgate.bookie.protocol.read_scheduler import EntryReads, ReadingClient, TailingRead
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.ledger.wire.messages import ReadRequest
from bookgate.runtime.clock import monotonic, time_of_day
from bookgate.runtime.latency import OpStats
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

MAX_PARKED = 10_000
"""Long polls that a connection may have parked; more are answered with too-many-requests."""

_LONGEST_TIMER_SECONDS = 3600.0
_Waiter = Waiter[ReadingClient, ReadRequest]


class LongPolls:
    """The long polls of all connections of one bookie. `clock` is in seconds, `wall_clock` in seconds of the epoch."""

    def __init__(
        self,
        storage: LedgerStorage,
        reads: EntryReads,
        reader: Executor,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time_of_day,
    ) -> None:
        self._storage = storage
        self._reads = reads
        self._reader = reader
        self._clock = clock
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._waiters: LacWaiters[ReadingClient, ReadRequest] = LacWaiters(MAX_PARKED)
        self._loading: set[BookieLedgerState] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.latency = OpStats()
        """Duration from the request to the end of its wait."""
        self.awaited = self._waiters.ledgers
        """The ledgers with waiters: `lac_moved` has nothing to do for others."""

    @property
    def parked(self) -> int:
        """Number of parked requests."""
        return len(self._waiters)

    def take(self, client: ReadingClient, request: ReadRequest, ledger: BookieLedgerState) -> bool:
        """Serves the request, now or later; False if the client has too many parked."""
        if request.timeout_ms is None or request.timeout_ms <= 0:
            self.latency.success(0)
            self._go_on(client, request, None)
            return True
        if not self._waiters.has_room(client):
            return False
        known = self._storage.reader.loaded_lac(ledger)
        previous = request.previous_lac if request.previous_lac is not None else -1
        if known is not None and known > previous:
            self.latency.success(0)
            self._go_on(client, request, None)
            return True
        deadline = self._clock() + request.timeout_ms / 1000
        self._waiters.park(Waiter(client, request, request.ledger_id, previous, deadline))
        if known is None:
            self._load(ledger)
        self._set_timer()
        return True

    def lac_moved(self, ledger: BookieLedgerState) -> None:
        """An add or an explicit LAC was accepted."""
        woken = self._waiters.lac_is(ledger.ledger_id.number, ledger.known_lac)
        self._answer(woken, int(self._wall_clock() * 1000))

    def wake(self, ledger_id: int) -> None:
        """The ledger was fenced or deleted."""
        self._answer(self._waiters.wake(ledger_id), None)

    def forget(self, client: ReadingClient) -> None:
        """The client is gone."""
        self._waiters.forget(client)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _load(self, ledger: BookieLedgerState) -> None:
        if ledger in self._loading:
            return
        self._loading.add(ledger)
        future = self._loop.run_in_executor(self._reader, self._storage.reader.known_lac, ledger)
        future.add_done_callback(functools.partial(self._loaded, ledger))

    def _loaded(self, ledger: BookieLedgerState, future: asyncio.Future[int]) -> None:
        self._loading.discard(ledger)
        if future.cancelled():
            return
        ledger_id = ledger.ledger_id.number
        if future.exception() is not None:
            # The read with which each of them continues meets the same error, and responds with it.
            log_event(_log, "lac_not_read", logging.ERROR, ledger=ledger_id, error=future.exception())
            self.wake(ledger_id)
            return
        self._answer(self._waiters.lac_is(ledger_id, max(future.result(), ledger.known_lac)), None)

    def _go_on(self, client: ReadingClient, request: ReadRequest, lac_updated_ms: int | None) -> None:
        self._reads.queue(client, TailingRead(request, lac_updated_ms) if request.piggyback else request)

    def _answer(self, woken: Iterable[_Waiter], lac_updated_ms: int | None) -> None:
        clients: dict[ReadingClient, None] = {}
        for waiter in woken:
            parked = waiter.deadline - (waiter.token.timeout_ms or 0) / 1000
            self.latency.success(self._clock() - parked)
            self._go_on(waiter.owner, waiter.token, lac_updated_ms)
            clients[waiter.owner] = None
        for client in clients:
            self._reads.pump(client)
            client.flush()

    def _set_timer(self) -> None:
        deadline = self._waiters.next_deadline()
        self.close()
        if deadline is not None:
            delay = min(max(0.0, deadline - self._clock()), _LONGEST_TIMER_SECONDS)
            self._timer = self._loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._answer(self._waiters.expire(self._clock()), None)
        self._set_timer()
