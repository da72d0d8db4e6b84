"""The guard before every RPC of a gateway with security: authenticates and authorises the caller.

It authenticates each call (`authorization: Bearer …`, else the connection's certificate), counts it against the
principal's rate of calls, rejects actions that the policy denies, and makes calls and rejections wait for their turn:

* RPCs of the cluster, of bookies and of auto-recovery are decided here, from the request; their outcome is written to
  the audit trail here;
* RPCs of ledgers, and streams, are decided by the services, ledger by ledger (`caller`); here the caller must be
  allowed the action for at least one object;
* an RPC that the table of actions lacks is always rejected;
* a unary call over its rate is rejected; where its rejection is held back, it is admitted if its turn comes meanwhile.

Not its job: calling the guard (`interceptor`); later requests of streams, and everything that needs the ledger's owner.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc

from bookgate.gateway.services.caller import (
    DOOR,
    AccessDeniedException,
    Caller,
    OverLimitException,
    caller,
    set_caller,
)
from bookgate.gateway.services.status import Context, abort_not_applied, abort_with
from bookgate.gateway.services.turns import Turns
from bookgate.ledger.replication_store import RecordKind
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as replication
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import OPEN, RPC_ACTIONS, Action
from bookgate.runtime.security.authenticators import NotAuthenticatedException, bearer_of, is_loopback
from bookgate.runtime.security.decision import CLUSTER, Resource, Rights
from bookgate.runtime.security.principal import ANONYMOUS, CertificateNames, Kind, Principal
from bookgate.runtime.security.rate_limits import MOST_HELD_SECONDS, RefusalPace

_ADMINISTERED = (RecordKind.DRAINING_BOOKIE.value, RecordKind.SETTING.value)
"""Kinds of records that operators write; auditors and workers write the others."""

_ABOUT_LEDGERS = (
    replication.MarkRequest,
    replication.DeleteMarkRequest,
    replication.TryLock,
    replication.ReleaseLock,
)

_SHOWN: ContextVar[str | bytes | None] = ContextVar("bookgate_authorization", default=None)
"""The header `authorization` of this call, from the interceptor; reading it in the handler would decode all again."""

_MOST_PASSES = 4096


class _Pass:
    """A caller with a static token, and the gates that admitted it with this header."""

    __slots__ = ("counted", "gates", "principal", "rights")

    def __init__(self, principal: Principal, rights: Rights) -> None:
        self.principal = principal
        self.rights = rights
        self.counted = (DOOR, principal.kind, "allowed")
        self.gates: set[MethodGate] = set()


class Guard:
    """See the module. One per gateway."""

    def __init__(self, access: AccessControl, turns: Turns) -> None:
        self._access = access
        self._pace = RefusalPace()
        self.turns = turns
        self._beginnings = Turns(under_way=sys.maxsize)
        """Turns of streams and rejections, which do not wait for calls to the store: bookies keep leases by streams."""
        self._passes: dict[str | bytes | None, _Pass] = {}
        """Admitted callers by header, valid until tokens or policy change."""
        self._generation = -1

    def gate(self, method: str) -> MethodGate | None:
        """The gate of a method, given its full name; None if everybody may call it."""
        action = RPC_ACTIONS.get(method)
        return None if action is OPEN and method in RPC_ACTIONS else MethodGate(self, method, action)

    def saw(self, headers: Iterable[tuple[str, str | bytes]]) -> None:
        """Records the headers of the call that is about to begin in this task."""
        shown = None
        for key, value in headers:
            if key == "authorization":
                shown = value
        _SHOWN.set(shown)

    def lets_in_again(self, gate: MethodGate, context: Context) -> bool:
        """Whether the gate has admitted this header and still would; then the call may begin."""
        generation = self._access.generation()
        if generation != self._generation:
            self._generation = generation
            self._passes.clear()
        known = self._passes.get(_SHOWN.get())
        if known is None or gate not in known.gates:
            return False
        set_caller(Caller(self._access, known.principal, context.peer, known.rights))
        self._access.counts[known.counted] += 1
        return True

    def remember(self, gate: MethodGate, who: Caller) -> None:
        """Remembers that the gate admitted this header, unless each call must be checked: for a rate, or an expiry."""
        if who.principal.kind is not Kind.TOKEN or who.has_limits:
            return
        known = self._passes.get(_SHOWN.get())
        if known is None:
            if len(self._passes) >= _MOST_PASSES:
                self._passes.clear()
            known = self._passes[_SHOWN.get()] = _Pass(who.principal, who.rights)
        known.gates.add(gate)

    def identify(self, context: Context, *, is_stream: bool) -> Caller:
        """Authenticates the caller. Raises NotAuthenticatedException."""
        peer, shown = context.peer(), _SHOWN.get()
        bearer = certificate = None
        if shown is None:
            certificate = _certificate(context)
        else:
            bearer = bearer_of(shown if isinstance(shown, str) else shown.decode("latin-1")) or ""
        nothing = shown is None and certificate is None
        principal = self._access.authenticate(
            door=DOOR, peer=peer, bearer=bearer, certificate=certificate, loopback=nothing and _is_local(peer)
        )
        rights = None if is_stream else self._access.rights(principal)
        return Caller(self._access, principal, peer, rights)

    async def before_refusal(self, principal: Principal) -> None:
        """Delays a rejection to the principal's turn. Raises OverLimitException if too many of its calls wait."""
        if (held := self._hold(principal)) > 0:
            await asyncio.sleep(held)
        await self.turn_to_begin(principal)

    async def turn_by_rate(self, who: Caller) -> bool:
        """Delays a call over its rate as long as its rejection would be.

        Returns whether its turn has come meanwhile, and was taken; otherwise it is to be rejected now.
        """
        if (held := self._hold(who.principal)) <= 0:
            return False
        wait = who.take_in_advance("calls_per_second")
        if wait > MOST_HELD_SECONDS:
            who.give_back("calls_per_second")
            await asyncio.sleep(held)
            return False
        try:
            await asyncio.sleep(wait)
        except asyncio.CancelledError:
            who.give_back("calls_per_second")
            raise
        return True

    def _hold(self, principal: Principal) -> float:
        return self._pace.hold(principal, asyncio.get_running_loop().time())

    async def turn_to_begin(self, principal: Principal) -> None:
        """Waits for the turn of a call that stops counting once it has begun. Raises OverLimitException."""
        if not self._beginnings.enter_at_once():
            await self._beginnings.wait(principal)
        self._beginnings.leave()

    def let_in(self, principal: Principal) -> None:
        """Counts an admitted call."""
        self._access.counts[DOOR, principal.kind, "allowed"] += 1


class MethodGate:
    """The guard of one method."""

    def __init__(self, guard: Guard, method: str, action: Action | None) -> None:
        """`action` is None if the table of actions lacks the method."""
        self._guard = guard
        self._method = method
        self._short = method.rpartition("/")[2]
        self._action = action
        self._of_ledgers = action is not None and action.is_of_ledgers
        # A write may be a recovery.
        self._any_of = (action, Action.LEDGER_RECOVER) if action is Action.LEDGER_WRITE else (action,)

    def enter(self, request: Any, context: Context) -> Coroutine[Any, Any, None] | None:
        """Admits a unary call. The caller must call `leave` when it has ended.

        Returns None, or a coroutine to await first: it waits for the call's turn, or ends the call.
        """
        guard = self._guard
        if not guard.lets_in_again(self, context):
            try:
                who = self._admit(request, context, is_stream=False)
            except OverLimitException as error:
                return self._over_rate(request, context, error)
            except (NotAuthenticatedException, AccessDeniedException) as error:
                return self._refuse(context, error)
            if self._of_ledgers:
                # The decision did not depend on the request.
                guard.remember(self, who)
        return None if guard.turns.enter_at_once() else self._wait(context)

    def leave(self, request: Any, outcome: str, seconds: float) -> None:
        """A unary call has ended, with this code and after this many seconds."""
        self._guard.turns.leave()
        action = self._action
        if action is None or self._of_ledgers:
            return
        who = caller()
        if who is not None and who.is_written_down(action):
            resource = _resource_of(action, request)
            subject = who.subject or _ledger_of(request) or resource
            named = Resource(bookie_id=resource.bookie_id, name=f"{subject} {self._short}")
            who.done(_action_of(action, request), named, outcome, seconds)

    async def enter_stream(self, request: Any, context: Context) -> Caller:
        """Admits a stream, or ends it. `request` is None if the requests are a stream too."""
        try:
            who = self._admit(request, context, is_stream=True)
            await self._guard.turn_to_begin(who.principal)
            return who
        except (NotAuthenticatedException, AccessDeniedException, OverLimitException) as error:
            await self._refuse(context, error)

    def _admit(self, request: Any, context: Context, *, is_stream: bool) -> Caller:
        """Authenticates and authorises the caller of this call.

        Raises NotAuthenticatedException, AccessDeniedException, OverLimitException.
        """
        who = self._guard.identify(context, is_stream=is_stream)
        set_caller(who)
        who.take("calls_per_second")
        self._authorise(who, request)
        return who

    def _authorise(self, who: Caller, request: Any) -> None:
        self._require(who, request)
        self._guard.let_in(who.principal)

    def _require(self, who: Caller, request: Any) -> None:
        action = self._action
        if action is None:
            raise AccessDeniedException(f"{self._method} is not in the table of actions")
        if self._of_ledgers or request is None:
            # The service knows the object; callers that may do this to no object are rejected here.
            who.require_anywhere(*self._any_of)
            return
        who.require(_action_of(action, request), _resource_of(action, request))

    async def _wait(self, context: Context) -> None:
        who = caller()
        assert who is not None, "let in"
        try:
            await self._guard.turns.wait(who.principal)
        except OverLimitException as error:
            await self._refuse(context, error)

    async def _over_rate(self, request: Any, context: Context, error: OverLimitException) -> None:
        """Ends a unary call over its rate; or admits it, if its turn comes while its rejection is held back."""
        who = caller()
        assert who is not None, "identified"
        refused: Exception = error
        if await self._guard.turn_by_rate(who):
            try:
                self._authorise(who, request)
            except AccessDeniedException as denied:
                refused = denied
            else:
                if not self._guard.turns.enter_at_once():
                    await self._wait(context)
                return
        with suppress(OverLimitException):
            await self._guard.turn_to_begin(who.principal)
        await self._abort(context, refused)

    async def _refuse(self, context: Context, error: Exception) -> NoReturn:
        who = None if isinstance(error, NotAuthenticatedException) else caller()
        with suppress(OverLimitException):
            await self._guard.before_refusal(who.principal if who is not None else ANONYMOUS)
        await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        who = None if isinstance(error, NotAuthenticatedException) else caller()
        shown = who is not None and who.principal != ANONYMOUS
        if isinstance(error, NotAuthenticatedException) or (isinstance(error, AccessDeniedException) and not shown):
            # A caller without credentials is asked for some: a client then looks for its token.
            await abort_not_applied(context, grpc.StatusCode.UNAUTHENTICATED, NotAuthenticatedException.PUBLIC)
        await abort_with(context, self._short, error)


def _action_of(action: Action, request: Any) -> Action:
    """The action of a request of auto-recovery, which may depend on its content."""
    if isinstance(request, replication.ChangeSettingsRequest):
        return Action.REPLICATION_WORK if request.HasField("check_ended") else Action.REPLICATION_ADMIN
    if isinstance(request, (replication.WriteRecordRequest, replication.RemoveRecordRequest)):
        return Action.REPLICATION_ADMIN if request.kind in _ADMINISTERED else Action.REPLICATION_WORK
    return action


def _resource_of(action: Action, request: Any) -> Resource:
    return Resource(bookie_id=request.bookie_id) if action.is_of_bookies else CLUSTER


def _ledger_of(request: Any) -> str | None:
    """The ledger that a change of auto-recovery concerns, if the request names one."""
    if isinstance(request, replication.ClaimRequest):
        request = getattr(request, request.WhichOneof("action") or "", None)
    if isinstance(request, _ABOUT_LEDGERS):
        return f"ledger:{request.ledger_id}"
    return None


def _is_local(peer: str) -> bool:
    """Whether a peer is on this machine: `ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`, or a socket path."""
    family, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return family == "unix" or is_loopback(host)


def _certificate(context: Context) -> CertificateNames | None:
    """The names of the client's certificate, which gRPC has verified; None without one."""
    found: Mapping[str, Any] = context.auth_context() or {}
    subject = _texts(found, "x509_subject")
    if not subject and "x509_pem_cert" not in found:
        return None
    return CertificateNames(next(iter(subject), ""), _texts(found, "peer_uri"), _texts(found, "peer_dns"))


def _texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(value.decode("utf-8", "replace") for value in found.get(name, ()))
