"""The RegistrationService: bookies without access to the metadata store register through a gateway.

The gateway registers the bookie in its own name and maintains the registration while the bookie's lease runs: for
`lease_seconds` after the bookie's last request, whether or not its stream is still open. States of a registration here:

    pending → registered ⇄ pending (the bookie changes its mode or its endpoints)
    any → replaced   a newer stream of the same lease arrived at this gateway; nothing is removed from the store
    any → dropped    lease expired, or unregistered: removed from the store, retried until that succeeds
    any → refused    another owner has the id: a live process, or the bookie that hosts this gateway

When a bookie moves to another gateway, that gateway replaces the registration in the store
(`BookieServiceInfo.may_replace`); a later drop here removes only what still belongs to this gateway. If two processes
use one bookie id, the second waits for the first one's lease to end, for slightly more than a lease, and is then
rejected. Anyone who knows a lease id can act as that bookie, so the id never leaves this module, which keeps only its
digest.

Not its job: how a store maintains a registration across its sessions (the store's `RegistrationManager`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable

import grpc

from bookgate.gateway.services.caller import AccessDeniedException, caller, require_still
from bookgate.gateway.services.leased_registration import Answers, LeasedRegistration, Outcome
from bookgate.gateway.services.messages import status_code
from bookgate.gateway.services.status import Context, abort_with, outcome_of
from bookgate.ledger.bookie_info import (
    BookieServiceInfo,
    Endpoint,
    Lease,
    check_bookie_id,
    check_stored_bookie_id,
    same_life,
)
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
)
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceServicer
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource

_LOG = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS = 10.0
MAX_CONTENT_BYTES = 64 * 1024
"""Maximum bytes of the content of a registration or a cookie."""

_RETRY_SECONDS = 0.5
_LEAVE_SECONDS = 2.0
"""Seconds that bookies have to leave a gateway that drains."""

_LEASE_ID = re.compile(r"[A-Za-z0-9-]{1,64}")

_REGISTERED = pb.RegistrationState.REGISTRATION_STATE_REGISTERED
_PENDING = pb.RegistrationState.REGISTRATION_STATE_PENDING
_HELD = pb.RegistrationState.REGISTRATION_STATE_HELD_BY_ANOTHER
_SUSPENDED = pb.RegistrationState.REGISTRATION_STATE_SUSPENDED
_DRAINING = pb.RegistrationState.REGISTRATION_STATE_DRAINING
_UNREGISTERED = pb.RegistrationState.REGISTRATION_STATE_UNREGISTERED

_LEASE_LOGGED = 12
"""Number of characters of a lease digest that are logged: enough to distinguish leases."""


class RegistrationService(RegistrationServiceServicer):
    """The service; see the module. One per gateway."""

    def __init__(self, factory: LedgerManagerFactory, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> None:
        self._factory = factory
        self._lease_seconds = lease_seconds
        self._held: dict[str, LeasedRegistration] = {}
        self._streams: dict[Answers, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()

    # The generated base class names the methods as the proto file does.
    # ruff: noqa: N802

    @property
    def leases(self) -> int:
        """Number of bookies that this gateway keeps registered."""
        return len(self._held)

    async def Register(
        self, request_iterator: AsyncIterator[pb.RegisterRequest], context: Context
    ) -> AsyncIterator[pb.RegisterResponse]:
        if self._draining.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this gateway is stopping; register at another one")
        answers = Answers()
        self._streams[answers] = None
        reader = asyncio.get_running_loop().create_task(self._read(request_iterator, answers))
        try:
            while (answer := await answers.get()) is not None:
                yield answer
            if reader.done() and (error := reader.exception()) is not None:
                raise error
        except Exception as error:
            await abort_with(context, "Register", error)
        finally:
            self._streams.pop(answers, None)
            reader.cancel()

    async def ReadCookie(self, request: pb.ReadCookieRequest, context: Context) -> pb.ReadCookieResponse:
        try:
            check_stored_bookie_id(request.bookie_id)
            cookie = await self._factory.registration_manager.read_cookie(request.bookie_id)
        except IncorrectParameterException as error:
            return pb.ReadCookieResponse(code=StatusCode.BAD_REQUEST, message=str(error))
        except Exception as error:
            return await abort_with(context, "ReadCookie", error)
        if cookie is None:
            return pb.ReadCookieResponse(code=StatusCode.SUCCESS)
        return pb.ReadCookieResponse(code=StatusCode.SUCCESS, cookie=cookie.value, version=cookie.version)

    async def WriteCookie(self, request: pb.WriteCookieRequest, context: Context) -> pb.WriteCookieResponse:
        version = request.expected_version if request.HasField("expected_version") else None
        if len(request.cookie) > MAX_CONTENT_BYTES:
            message = f"the cookie has {len(request.cookie)} bytes, more than the {MAX_CONTENT_BYTES} that it may have"
            return pb.WriteCookieResponse(code=StatusCode.BAD_REQUEST, message=message)

        async def change() -> None:
            bookie_id = check_bookie_id(request.bookie_id)
            await self._factory.registration_manager.write_cookie(bookie_id, request.cookie, version)

        code, message = await _changed(context, "WriteCookie", change())
        return pb.WriteCookieResponse(code=code, message=message)

    async def RemoveCookie(self, request: pb.RemoveCookieRequest, context: Context) -> pb.RemoveCookieResponse:
        async def change() -> None:
            bookie_id = check_stored_bookie_id(request.bookie_id)
            await self._factory.registration_manager.remove_cookie(bookie_id, request.expected_version)

        code, message = await _changed(context, "RemoveCookie", change())
        return pb.RemoveCookieResponse(code=code, message=message)

    def drain(self) -> None:
        """Asks every bookie to register elsewhere; ends the streams that are still open after a short while."""
        self._draining.set()
        for answers in self._streams:
            answers.put(pb.RegisterResponse(state=_DRAINING, lease_ms=self._lease_ms))
            asyncio.get_running_loop().call_later(_LEAVE_SECONDS, answers.put, None)

    async def close(self) -> None:
        """Stops all work. The store's `RegistrationManager` removes the registrations."""
        for registration in list(self._held.values()):
            self._forget(registration)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the stream ---------------------------------------------------------------------------------------------

    @property
    def _lease_ms(self) -> int:
        return int(self._lease_seconds * 1000)

    async def _read(self, requests: AsyncIterator[pb.RegisterRequest], answers: Answers) -> None:
        """Reads the requests of one stream. It ends after the last request, or after one that can't be served."""
        registration: LeasedRegistration | None = None
        try:
            async for request in requests:
                await answers.room()
                try:
                    if registration is None:
                        registration = self._open(request, answers)
                    elif not self._take(registration, request):
                        return
                except (IncorrectParameterException, AccessDeniedException) as error:
                    _write_down_refusal(request, registration, error)
                    answers.put(
                        pb.RegisterResponse(code=status_code(error), sequence=request.sequence, message=str(error))
                    )
                    return
        finally:
            answers.put(None)

    def _open(self, request: pb.RegisterRequest, answers: Answers) -> LeasedRegistration:
        if not _LEASE_ID.fullmatch(request.lease.lease_id) or request.lease.epoch < 0:
            raise IncorrectParameterException(
                "the first request needs a lease: an id of letters, digits and -, an epoch"
            )
        lease = Lease.of(request.lease.lease_id, request.lease.epoch)
        info = _of_caller(_info(request, lease))
        expires = asyncio.get_running_loop().time() + self._lease_seconds
        wanted = (request.sequence, info, request.read_only)
        registration = LeasedRegistration(info.bookie_id, lease, answers, expires, wanted)
        self._work(registration)
        return registration

    def _take(self, registration: LeasedRegistration, request: pb.RegisterRequest) -> bool:
        """Handles one request of a stream; returns False to stop reading."""
        _may_register(registration.bookie_id)
        if registration.over or registration.gone.is_set():
            self._answer(registration, request.sequence, _HELD, registration.refusal)
            return False
        registration.expires = asyncio.get_running_loop().time() + self._lease_seconds
        if request.unregister:
            self._start(self._unregister(registration, request.sequence))
        elif request.HasField("bookie"):
            info = _of_caller(_info(request, registration.lease))
            if info.bookie_id != registration.bookie_id:
                raise IncorrectParameterException("a stream registers one bookie")
            registration.wanted = (request.sequence, info, request.read_only)
            self._work(registration)
        else:
            self._answer(registration, request.sequence, self._state(registration))
        return True

    def _state(self, registration: LeasedRegistration) -> pb.RegistrationState:
        if self._draining.is_set():
            return _DRAINING
        if not self._factory.connected:
            return _SUSPENDED
        return _REGISTERED if registration.registered else _PENDING

    def _answer(
        self, registration: LeasedRegistration, sequence: int, state: pb.RegistrationState, message: str = ""
    ) -> None:
        code = StatusCode.UNEXPECTED if state == _HELD else StatusCode.SUCCESS
        registration.answers.put(
            pb.RegisterResponse(code=code, sequence=sequence, state=state, lease_ms=self._lease_ms, message=message)
        )

    # --- the store ----------------------------------------------------------------------------------------------

    def _work(self, registration: LeasedRegistration) -> None:
        if registration.worker is None:
            registration.worker = self._start(self._register(registration))

    async def _register(self, registration: LeasedRegistration) -> None:
        """Writes the requested registration to the store."""
        try:
            await self._claim(registration)
            while not registration.registered and not registration.over:
                await self._put(registration)
        except LedgerExistException as error:
            self._refuse(registration, str(error), Outcome.REFUSED)
        except BKException as error:
            # Not retried: the store has rejected it permanently.
            _log(registration, "failed", logging.ERROR, reason=error)
            self._refuse(registration, str(error), outcome_of(error))
        finally:
            registration.worker = None

    async def _claim(self, registration: LeasedRegistration) -> None:
        """Makes this the gateway's only registration of the bookie id, unless it ends first.

        Raises LedgerExistException.
        """
        deadline = asyncio.get_running_loop().time() + 1.2 * self._lease_seconds
        while not registration.over:
            other = self._held.get(registration.bookie_id)
            if other is None or other is registration:
                break
            if same_life(other.lease, registration.lease) and not other.over:
                if _principal_of(other) != _principal_of(registration):
                    raise LedgerExistException(f"the lease of bookie {registration.bookie_id} is another principal's")
                if other.lease.epoch >= registration.lease.epoch:
                    raise LedgerExistException(f"bookie {registration.bookie_id} has opened a newer stream since")
                await self._replace(other, registration)
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await other.gone.wait()
            except TimeoutError:
                raise LedgerExistException(
                    f"another live process holds the bookie id {registration.bookie_id}; stop it or choose another id"
                ) from None
        if registration.over:
            self._forget(registration)
        elif registration.bookie_id not in self._held:
            self._held[registration.bookie_id] = registration
            self._set_timer(registration)

    async def _replace(self, other: LeasedRegistration, newer: LeasedRegistration) -> None:
        """Ends the older registration of the same process: its work must be over before that of the newer stream
        begins.
        """
        other.over = True
        if other.worker is not None:
            await asyncio.gather(other.worker, return_exceptions=True)
        if newer.over:
            # The process has left meanwhile, and what the older one stored is nobody else's to remove.
            await self._drop(other)
        self._forget(other)
        _log(other, "replaced")
        other.answers.put(None)

    async def _put(self, registration: LeasedRegistration) -> None:
        sequence, info, read_only = registration.wanted
        began = time.perf_counter()
        try:
            await self._factory.registration_manager.register_bookie(info, read_only=read_only)
        except MetaStoreException as error:
            _log(registration, "pending", logging.WARNING, reason=error)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        registration.done = sequence
        registration.write_down(Outcome.REGISTERED, time.perf_counter() - began)
        _log(registration, "registered", mode="read-only" if read_only else "writable")
        self._answer(registration, sequence, _REGISTERED)

    def _refuse(self, registration: LeasedRegistration, reason: str, outcome: str) -> None:
        _log(registration, "refused", logging.WARNING, reason=reason)
        registration.write_down(outcome)
        registration.refusal = reason
        registration.over = True
        if self._held.get(registration.bookie_id) is registration:
            self._start(self._drop(registration))
        else:
            self._forget(registration)
        self._answer(registration, registration.wanted[0], _HELD, reason)
        registration.answers.put(None)

    def _forget(self, registration: LeasedRegistration) -> None:
        if registration.timer is not None:
            registration.timer.cancel()
        if self._held.get(registration.bookie_id) is registration:
            del self._held[registration.bookie_id]
        registration.gone.set()

    # --- the lease ----------------------------------------------------------------------------------------------

    def _set_timer(self, registration: LeasedRegistration) -> None:
        loop = asyncio.get_running_loop()
        registration.timer = loop.call_at(registration.expires, self._lease_over, registration)

    def _lease_over(self, registration: LeasedRegistration) -> None:
        if registration.expires > asyncio.get_running_loop().time():
            self._set_timer(registration)
            return
        if registration.over:
            return
        _log(registration, "over", logging.WARNING, silent_seconds=self._lease_seconds)
        self._start(self._drop(registration, Outcome.LOST))

    async def _unregister(self, registration: LeasedRegistration, sequence: int) -> None:
        await self._drop(registration, Outcome.UNREGISTERED)
        self._answer(registration, sequence, _UNREGISTERED)
        registration.answers.put(None)

    async def _drop(self, registration: LeasedRegistration, outcome: Outcome | None = None) -> None:
        """Removes the registration from the store, retrying until that succeeds. `outcome` is None if the audit trail
        already has it.
        """
        registration.over = True
        if self._held.get(registration.bookie_id) is not registration:
            # It still waits for the bookie id and must not get it any more.
            self._forget(registration)
        while self._held.get(registration.bookie_id) is registration:
            if registration.worker is not None:
                await asyncio.gather(registration.worker, return_exceptions=True)
            began = time.perf_counter()
            try:
                await self._factory.registration_manager.unregister_bookie(registration.bookie_id, registration.lease)
            except BKException as error:
                _log(registration, "leaving", logging.WARNING, reason=error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            _log(registration, "dropped")
            if outcome is not None:
                registration.write_down(outcome, time.perf_counter() - began)
            self._forget(registration)

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _log(registration: LeasedRegistration, state: str, level: int = logging.INFO, **fields: object) -> None:
    lease = registration.lease
    subject = {"bookie": registration.bookie_id, "lease": lease.digest[:_LEASE_LOGGED], "epoch": lease.epoch}
    log_event(_LOG, "lease", level, state=state, **subject, **fields)


def _info(request: pb.RegisterRequest, lease: Lease) -> BookieServiceInfo:
    """The registration that a request asks for. Raises IncorrectParameterException."""
    bookie = request.bookie
    endpoints = tuple(
        Endpoint(e.id, e.host, e.port, e.protocol, tuple(e.auth), tuple(e.extensions)) for e in bookie.endpoints
    )
    info = BookieServiceInfo(check_bookie_id(bookie.bookie_id), endpoints, dict(bookie.properties)).with_lease(lease)
    size = len(info.encode())
    if size > MAX_CONTENT_BYTES:
        raise IncorrectParameterException(
            f"the registration has {size} bytes, more than the {MAX_CONTENT_BYTES} that it may have"
        )
    return info


def _may_register(bookie_id: str) -> None:
    """Raises AccessDeniedException if the caller may not register this bookie id."""
    require_still(Action.BOOKIE_REGISTER, Resource(bookie_id=bookie_id))


def _of_caller(info: BookieServiceInfo) -> BookieServiceInfo:
    """The registration with its principal added. Raises AccessDeniedException."""
    _may_register(info.bookie_id)
    who = caller()
    return info.with_principal(str(who.principal) if who is not None and who.principal.is_authenticated else None)


def _write_down_refusal(
    request: pb.RegisterRequest, registration: LeasedRegistration | None, error: BKException
) -> None:
    who = caller()
    if who is not None:
        bookie_id = request.bookie.bookie_id if registration is None else registration.bookie_id
        who.done(Action.BOOKIE_REGISTER, Resource(bookie_id=bookie_id), outcome_of(error), 0.0)


def _principal_of(registration: LeasedRegistration) -> str | None:
    return registration.wanted[1].principal


async def _changed(context: Context, method: str, change: Awaitable[None]) -> tuple[StatusCode, str]:
    """Status code and message of a cookie change."""
    try:
        await change
    except (IncorrectParameterException, MetadataVersionException) as error:
        return status_code(error), str(error)
    except Exception as error:
        return await abort_with(context, method, error)
    return StatusCode.SUCCESS, ""
