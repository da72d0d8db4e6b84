"""A connection to a bookie with a policy: each request passes the guard of its principal (`entry_access`).

A request that waits for the owner of its ledger is parked, and later requests of the same ledger after it. Meanwhile
nothing more is read from the connection, so only requests that were received together are parked. Afterwards each of
them is decided by itself. A number that no ledger id has belongs to nobody, and nothing waits for its owner. If a
principal exceeds its rate, the bookie stops reading from this connection for as long as its requests exceeded the rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set

from bookgate.bookie.protocol.auth_gate import unauthorised
from bookgate.bookie.protocol.completions import Client
from bookgate.bookie.protocol.connection import AcceptedConnection, FastPath, Serve
from bookgate.bookie.protocol.connections import Connections
from bookgate.bookie.protocol.entry_access import Answer, EntryAccess, EntryGuard
from bookgate.bookie.protocol.request_processor import RequestProcessor
from bookgate.bookie.protocol.security import Security
from bookgate.bookie.statistics import BookieStatistics
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import is_number
from bookgate.ledger.wire import fast_add, fast_read
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.fast_add import AddRun
from bookgate.ledger.wire.messages import (
    OPERATIONS,
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
    Status,
)
from bookgate.ledger.wire.v2 import CURRENT_VERSION
from bookgate.runtime.logs import log_bug, log_event
from bookgate.runtime.security.principal import Principal

_log = logging.getLogger(__name__)

_LONGEST_READ = 64
"""Maximum bytes of a read on the fast path; an add is longer because of its key and its packet's header."""
_OWNER = "the owner of a ledger"
_RATE = "its principal's rate"
"""A further reason to stop reading, besides storage and the client."""


class GuardedConnection(AcceptedConnection):
    """See the module."""

    def __init__(
        self,
        processor: RequestProcessor,
        connections: Connections,
        statistics: BookieStatistics,
        max_frame_size: int,
        security: Security,
        access: EntryAccess,
    ) -> None:
        self._access = access
        self._guard: EntryGuard | None = None
        self._may_add: Set[int] = frozenset()
        """The guard's own set, so that an add costs one look-up."""
        self._may_read: Set[int] = frozenset()
        self._parked: dict[int, list[tuple[Client, Request]]] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        super().__init__(processor, connections, statistics, max_frame_size, security)

    def connection_lost(self, error: Exception | None) -> None:
        for lookup in self._lookups:
            lookup.cancel()
        self._parked.clear()
        super().connection_lost(error)

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self._charge()

    def _charge(self) -> None:
        if self._guard is not None and self._guard.adds:
            seconds = self._guard.charge()
            if seconds > 0 and self.is_open:
                self._wait(_RATE)
                asyncio.get_running_loop().call_later(seconds, self._go_on, _RATE)

    def _behind_gate(self) -> Serve:
        return self._serve_guarded

    def _fast_path(self, serve: Serve) -> FastPath | None:
        guard = self._guard
        if guard is None:
            return None
        guard.refresh()
        return self._serve_fast_counted if guard.has_rates else self._serve_fast_guarded

    def _serve_fast_counted(self, packets: Sequence[memoryview], at: int, is_v3: bool) -> int:
        guard = self._own_guard()
        served = self._serve_fast_guarded(packets, at, is_v3)
        if served and len(packets[at]) > _LONGEST_READ:
            guard.adds += served
            guard.add_bytes += served * len(packets[at])
        return served

    def _serve_fast_guarded(self, packets: Sequence[memoryview], at: int, is_v3: bool) -> int:
        packet = packets[at]
        run = self._adds.read_run(packets, at) if is_v3 else None
        if run is not None and (served := self._serve_adds(run)):
            return served
        add = self._adds.read(packet) if is_v3 else fast_add.read_v2(packet)
        if add is not None:
            if add.ledger_id not in self._may_add:
                return 0
            return self._processor.add(self if is_v3 else self._binary_client(CURRENT_VERSION), add)
        read = fast_read.read_v3(packet) if is_v3 else fast_read.read_v2(packet)
        if read is None or read.ledger_id not in self._may_read:
            return 0
        return self._serve_reads(read, packets, at, is_v3)

    def _serve_adds(self, run: AddRun) -> int:
        if run.ledger_id in self._may_add:
            return super()._serve_adds(run)
        self._adds.read_singly(len(run.entry_ids))
        return 0

    def _serve_guarded(self, client: Client, request: Request) -> None:
        if isinstance(request, AuthRequest):
            self._serve_at_gate(client, request)
            self._may_be_somebody_else()
            return
        if isinstance(request, StartTlsRequest):
            self._processor.process(client, request)
            return
        self._served_in_clear = True
        parked = self._parked.get(getattr(request, "ledger_id", -1))
        if parked is not None:
            parked.append((client, request))
            return
        if not self._serve_decided(client, request):
            if is_number(getattr(request, "ledger_id", -1)):
                self._park(client, request)
            else:
                client.answer(error_response(request, Status.EBADREQ))

    def _serve_decided(self, client: Client, request: Request) -> bool:
        """Serves or refuses a request; returns False if that depends on an unknown owner."""
        answer = self._own_guard().check(request)
        if answer is Answer.ALLOWED and isinstance(request, AddRequest) and request.term is not None:
            answer = self._check_term(request)
        if answer is Answer.ALLOWED:
            self._process(client, request)
        elif answer is Answer.DENIED:
            self._refuse(client, request)
        return answer is not Answer.OWNER_UNKNOWN

    def _check_term(self, add: AddRequest) -> Answer:
        """Checks an add with a term that the principal may send if it takes the ledger from nobody."""
        if self._processor.raises_term(add):
            return self._own_guard().check_taking(add.ledger_id)
        return Answer.ALLOWED

    def _process(self, client: Client, request: Request) -> None:
        if isinstance(request, AddRequest):
            guard = self._own_guard()
            guard.adds += 1
            guard.add_bytes += len(request.body)
        self._processor.process(client, request)

    def _may_be_somebody_else(self) -> None:
        """After AUTH: discards the permissions of the previous principal, and charges its adds."""
        if self._guard is not None and self._guard.principal != self._principal:
            self._charge()
            self._guard = None
            self._may_add = self._may_read = frozenset()

    @property
    def _principal(self) -> Principal:
        assert self._gate is not None, "where principals count there is a gate"
        return self._gate.principal

    def _own_guard(self) -> EntryGuard:
        """The guard of the current principal, which only AUTH changes once a request was served."""
        if self._guard is None:
            self._guard = self._access.guard(self._principal, self.peer)
            self._may_add, self._may_read = self._guard.may_add, self._guard.may_read
        return self._guard

    def _refuse(self, client: Client, request: Request) -> None:
        if client is self and type(request) in OPERATIONS:
            client.answer(unauthorised(request))
        elif isinstance(request, AddRequest | ReadRequest | BatchReadRequest):
            client.answer(error_response(request, Status.EUA))
        else:
            self.close()

    def _refuse_ownerless(self, client: Client, request: Request, *, failed: bool) -> None:
        """Refuses a request whose owner does not exist, or, if `failed`, could not be learnt."""
        if failed:
            client.answer(error_response(request, Status.EIO))
        else:
            self._own_guard().deny(request)
            self._refuse(client, request)

    def _park(self, client: Client, request: Request) -> None:
        number: int = getattr(request, "ledger_id", -1)
        self._parked[number] = [(client, request)]
        self._wait(_OWNER)
        lookup = asyncio.get_running_loop().create_task(self._learn(number))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)

    async def _learn(self, number: int) -> None:
        exists, failed = False, False
        try:
            exists = await self._access.owners.learn(number)
        except BKException as error:
            failed = True
            log_event(_log, "owner_unknown", logging.WARNING, ledger=number, error=error)
        except Exception as error:  # else nothing would be read from the connection again
            failed = True
            log_bug(_log, "owner_unknown", error, ledger=number)
        # The policy may be another one by now, and so may the ledger.
        self._own_guard().refresh()
        for client, request in self._parked.pop(number, ()):
            if exists:
                self._serve_guarded(client, request)
            elif not self._serve_decided(client, request):
                self._refuse_ownerless(client, request, failed=failed)
        self._charge()
        if not self._parked:
            self._go_on(_OWNER)
        self._pump()
        self.flush()
