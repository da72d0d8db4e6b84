"""The caller of an RPC: who it is, and what the services ask before they do something for it.

Each RPC has a task of its own, and tasks that it starts know its caller too (a context variable). Where the gateway has
no security there is none, and `caller()` is None: the services then do what they always did.

A ledger that the caller may not have is AccessDeniedException: gRPC's PERMISSION_DENIED for a call as a whole, the code
of that name for one ledger of many. Listings leave it out. A ledger that does not exist is answered as such to
everybody who may have some ledger of its scope: an owner is to learn that its ledger is gone.

Not its job: what a policy says (`runtime.security`); refusing calls that name no ledger (`access`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NoReturn

from bookgate.ledger.errors import TooManyRequestsException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import CLUSTER, NO_BINDING, Decision, Reach, Resource, Rights
from bookgate.runtime.security.policy import Policy
from bookgate.runtime.security.principal import Principal

DOOR = "grpc"

_NOTHING_DONE = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED")
"""A denial and a quota have lines of their own; a flood over a limit is to have none."""


class AccessDeniedException(UnauthorizedAccessException):
    """The caller may not do this; nothing was done."""


class OverLimitException(TooManyRequestsException):
    """The caller is over one of its limits; nothing was done."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaReachedException(OverLimitException):
    """The caller, or the scope, has as many ledgers as it may have; nothing was created."""


class Caller:
    """See the module. One per RPC."""

    __slots__ = ("_access", "_rights", "peer", "principal", "subject")

    def __init__(self, access: AccessControl, principal: Principal, peer: str, rights: Rights | None = None) -> None:
        """`rights`: of a unary call, which goes by the policy that it began with. A stream goes by the present one."""
        self._access = access
        self._rights = rights
        self.principal = principal
        self.peer = peer
        self.subject = ""
        """What the call is about, for the audit trail, where only the service learns it."""

    @property
    def policy(self) -> Policy:
        """By which is decided now; another object where it has changed."""
        return self._access.policy

    @property
    def rights(self) -> Rights:
        """What the caller may do."""
        return self._rights or self._access.rights(self.principal)

    def reach(self, action: Action, scope_id: int) -> Reach:
        """For which ledgers of a scope the caller may do it."""
        return (self._rights or self.rights).reach(action, scope_id)

    def may(self, action: Action, scope_id: int, owner: str | None) -> bool:
        """Whether the caller may do it to a ledger. Tells nobody."""
        found = (self._rights or self.rights).reach(action, scope_id)
        return found is Reach.ALL or (found is Reach.OWNED and owner == str(self.principal))

    def may_administer(self) -> bool:
        return self.rights.decide(Action.CLUSTER_ADMIN, CLUSTER).allowed

    def require(self, action: Action, resource: Resource = CLUSTER, request_token: bytes = b"") -> None:
        """Raises AccessDeniedException, which is in the audit trail then."""
        decision = self.rights.decide(action, resource)
        if not decision:
            self.deny(action, resource, decision, request_token)

    def require_anywhere(self, *actions: Action) -> None:
        """Raises AccessDeniedException where the caller may do none of these to anything."""
        for action in actions:
            if self.rights.may_somewhere(action):
                return
        self.deny(actions[0], CLUSTER, Decision(False, NO_BINDING))

    def require_anywhere_in(self, scope_id: int, *actions: Action) -> None:
        """Raises AccessDeniedException where the caller may do none of these to any ledger of the scope."""
        if all(self.reach(action, scope_id) is Reach.NONE for action in actions):
            self.deny(actions[0], Resource(scope_id), Decision(False, NO_BINDING))

    def require_ledger(
        self,
        action: Action,
        ledger_id: LedgerId | None,
        owner: str | None,
        request_token: bytes = b"",
        scope_id: int = 0,
    ) -> None:
        """The same for a ledger. `scope_id`: of one that has no id yet."""
        if not self.may(action, scope_id if ledger_id is None else ledger_id.scope_id, owner):
            resource = ledger_resource(ledger_id, owner, scope_id)
            self.deny(action, resource, self.rights.decide(action, resource), request_token)

    def require_some(self, action: Action, scope_id: int) -> Reach:
        """Raises AccessDeniedException where the caller may do it to no ledger of the scope."""
        found = self.reach(action, scope_id)
        if found is Reach.NONE:
            resource = Resource(scope_id)
            self.deny(action, resource, self.rights.decide(action, resource))
        return found

    def require_all(self, actions: Iterable[Action], scope_id: int | None = None) -> None:
        """Raises AccessDeniedException where the caller may not do all of these to all ledgers of the scope.

        `scope_id` None: of every scope.
        """
        for action in actions:
            if (rule := self.rights.narrowed_by(action, scope_id)) is not None:
                resource = CLUSTER if scope_id is None else Resource(scope_id)
                self.deny(action, resource, Decision(False, f"a complete listing is demanded, and {rule} narrows it"))

    def deny(self, action: Action, resource: Resource, decision: Decision, request_token: bytes = b"") -> None:
        """Raises AccessDeniedException, and writes it down."""
        self._access.denied(
            self.principal, action, resource, decision, door=DOOR, peer=self.peer, request_token=request_token
        )
        raise AccessDeniedException(f"{self.principal} may not do {action} to {resource}: {decision.rule}")

    def is_written_down(self, action: Action) -> bool:
        """Whether the audit trail has what the caller was allowed of this."""
        return self._access.audit.wants(action, allowed=True)

    def done(
        self, action: Action, resource: Resource, outcome: str, seconds: float, request_token: bytes = b""
    ) -> None:
        """Writes down how what was allowed has ended; not where nothing was done for a limit or a denial."""
        if outcome in _NOTHING_DONE:
            return
        self._access.done(
            self.principal,
            action,
            resource,
            outcome,
            door=DOOR,
            peer=self.peer,
            request_token=request_token,
            seconds=seconds,
            counted=False,
        )

    def most(self, limit: str) -> int | None:
        """How many the caller may have at a time; None: as many as anybody."""
        limits = self.rights.limits
        return None if limits is None else getattr(limits, limit)

    # --- limits -------------------------------------------------------------------------------------------------

    def take(self, rate: str, amount: float = 1.0) -> None:
        """Takes from one of the caller's rates. Raises OverLimitException."""
        if (self._rights or self.rights).limits is None:
            return
        wait = self._access.take(self.principal, rate, _now(), amount, door=DOOR, peer=self.peer)
        if wait > 0:
            raise OverLimitException(f"{self.principal} is over its limit of {rate}; try again in {wait:.3g} s", wait)

    async def pay(self, rate: str, amount: float) -> None:
        """Takes what a stream has sent, and waits until it is paid."""
        wait = self._access.charge(self.principal, rate, _now(), amount, door=DOOR)
        if wait > 0:
            await asyncio.sleep(wait)

    @property
    def has_limits(self) -> bool:
        """Whether the policy bounds any of the caller's rates."""
        return (self._rights or self.rights).limits is not None

    def owe(self, rate: str, amount: float) -> None:
        """Takes what a unary call has sent. The caller's next `take` waits for it."""
        self._access.owe(self.principal, rate, _now(), amount)

    def quotas(self, scope_id: int) -> tuple[int | None, int | None]:
        """How many ledgers the caller may own, and how many a scope may have; None: any number."""
        limits = self.rights.limits if self.principal.is_authenticated else None
        quota = self._access.policy.quota_of(scope_id)
        return None if limits is None else limits.ledgers, None if quota is None else quota.ledgers

    def quota_reached(self, scope_id: int, rule: str, retry_after_seconds: float) -> NoReturn:
        """Raises QuotaReachedException, and writes it down."""
        self._access.quota_reached(self.principal, Resource(scope_id), rule, door=DOOR, peer=self.peer)
        raise QuotaReachedException(f"{rule}; delete some before more can be created", retry_after_seconds)


def ledger_resource(ledger_id: LedgerId | None, owner: str | None, scope_id: int = 0) -> Resource:
    """A ledger, by its name for people; None: one that is to be created, and has no id yet."""
    if ledger_id is None:
        return Resource(scope_id, owner, name="ledger:new")
    where = f"{ledger_id.scope_id}/" if ledger_id.scope_id else ""
    return Resource(ledger_id.scope_id, owner, name=f"ledger:{where}{ledger_id.low}")


_CALLER: ContextVar[Caller | None] = ContextVar("bookgate_caller", default=None)


def caller() -> Caller | None:
    """Who has called; None where the gateway has no security."""
    return _CALLER.get()


def require_still(action: Action, resource: Resource = CLUSTER) -> None:
    """Asks once more on a stream under way, since the policy may have changed. Raises AccessDeniedException."""
    if (who := caller()) is not None:
        who.require(action, resource)


def set_caller(who: Caller | None) -> None:
    """For this task, and those that it starts from now on."""
    _CALLER.set(who)


def _now() -> float:
    return asyncio.get_running_loop().time()
