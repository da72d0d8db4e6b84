"""The caller of an RPC: its identity, and the permission checks that services make before they act for it.

Each RPC has its own task, and tasks that it starts know its caller too (a context variable). In a gateway without
security `caller()` is None, and the services check nothing.

For a ledger that the caller may not use, the checks raise AccessDeniedException: gRPC's PERMISSION_DENIED for a whole
call, the code of that name for one ledger of many. Listings leave such a ledger out. That a ledger does not exist is
told to everybody who may use some ledger of its scope, so that an owner learns that its ledger is gone.

Not its job: evaluating a policy (`runtime.security`); rejecting calls that name no ledger (`access`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
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
"""Outcomes without an audit line here: denials and quotas have separate lines, calls over a limit have none."""


class AccessDeniedException(UnauthorizedAccessException):
    """The caller may not do this; nothing was done."""


class OverLimitException(TooManyRequestsException):
    """The caller is over one of its limits; nothing was done."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaReachedException(OverLimitException):
    """The caller, or the scope, has reached its quota of ledgers; nothing was created."""


class Caller:
    """See the module. One per RPC."""

    __slots__ = ("_access", "_peer", "_rights", "principal", "subject")

    def __init__(
        self,
        access: AccessControl,
        principal: Principal,
        peer: str | Callable[[], str],
        rights: Rights | None = None,
    ) -> None:
        """`peer`: its address, or what tells it, which only denials and audit lines need.

        `rights` are those of a unary call, which keeps the policy at its beginning; a stream uses the current one.
        """
        self._access = access
        self._peer = peer
        self._rights = rights
        self.principal = principal
        self.subject = ""
        """The subject of the call for the audit trail, if only the service knows it."""

    @property
    def peer(self) -> str:
        """The address that the call comes from."""
        return self._peer if isinstance(self._peer, str) else self._peer()

    @property
    def policy(self) -> Policy:
        """The current policy; a new object after each change."""
        return self._access.policy

    @property
    def rights(self) -> Rights:
        """The rights of the caller."""
        return self._rights or self._access.rights(self.principal)

    def reach(self, action: Action, scope_id: int) -> Reach:
        """The ledgers of a scope for which the caller has this permission."""
        return (self._rights or self.rights).reach(action, scope_id)

    def may(self, action: Action, scope_id: int, owner: str | None) -> bool:
        """Whether the caller may do this to a ledger. Writes no audit line."""
        found = (self._rights or self.rights).reach(action, scope_id)
        return found is Reach.ALL or (found is Reach.OWNED and owner == str(self.principal))

    def may_administer(self) -> bool:
        return self.rights.decide(Action.CLUSTER_ADMIN, CLUSTER).allowed

    def require(self, action: Action, resource: Resource = CLUSTER, request_token: bytes = b"") -> None:
        """Raises AccessDeniedException, with an audit line, if the caller may not do this."""
        decision = self.rights.decide(action, resource)
        if not decision:
            self.deny(action, resource, decision, request_token)

    def require_anywhere(self, *actions: Action) -> None:
        """Raises AccessDeniedException if the caller may do none of these actions to any object."""
        for action in actions:
            if self.rights.may_somewhere(action):
                return
        self.deny(actions[0], CLUSTER, Decision(False, NO_BINDING))

    def require_anywhere_in(self, scope_id: int, *actions: Action) -> None:
        """Raises AccessDeniedException if the caller may do none of these actions to any ledger of the scope."""
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
        """Like `require`, for a ledger; `scope_id` is for a ledger without an id."""
        if not self.may(action, scope_id if ledger_id is None else ledger_id.scope_id, owner):
            resource = ledger_resource(ledger_id, owner, scope_id)
            self.deny(action, resource, self.rights.decide(action, resource), request_token)

    def require_some(self, action: Action, scope_id: int) -> Reach:
        """Raises AccessDeniedException if the caller may do this to no ledger of the scope."""
        found = self.reach(action, scope_id)
        if found is Reach.NONE:
            resource = Resource(scope_id)
            self.deny(action, resource, self.rights.decide(action, resource))
        return found

    def require_all(self, actions: Iterable[Action], scope_id: int | None = None) -> None:
        """Raises AccessDeniedException unless the caller may do all of these actions to all ledgers of the scope.

        With `scope_id` None the check is for every scope.
        """
        for action in actions:
            if (rule := self.rights.narrowed_by(action, scope_id)) is not None:
                resource = CLUSTER if scope_id is None else Resource(scope_id)
                self.deny(action, resource, Decision(False, f"a complete listing is demanded, and {rule} narrows it"))

    def deny(self, action: Action, resource: Resource, decision: Decision, request_token: bytes = b"") -> None:
        """Writes an audit line and raises AccessDeniedException."""
        self._access.denied(
            self.principal, action, resource, decision, door=DOOR, peer=self.peer, request_token=request_token
        )
        raise AccessDeniedException(f"{self.principal} may not do {action} to {resource}: {decision.rule}")

    def is_written_down(self, action: Action) -> bool:
        """Whether the audit trail records allowed actions of this type by the caller."""
        return self._access.audit.wants(action, allowed=True)

    def done(
        self, action: Action, resource: Resource, outcome: str, seconds: float, request_token: bytes = b""
    ) -> None:
        """Writes the outcome of an allowed action to the audit trail, unless a limit or a denial prevented it."""
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
        """The caller's limit of concurrent objects; None if only the general limit applies."""
        limits = self.rights.limits
        return None if limits is None else getattr(limits, limit)

    # --- limits -------------------------------------------------------------------------------------------------

    def take(self, rate: str, amount: float = 1.0) -> None:
        """Counts an amount against one of the caller's rates. Raises OverLimitException."""
        if (self._rights or self.rights).limits is None:
            return
        wait = self._access.take(self.principal, rate, _now(), amount, door=DOOR, peer=self.peer)
        if wait > 0:
            raise OverLimitException(f"{self.principal} is over its limit of {rate}; try again in {wait:.3g} s", wait)

    def take_in_advance(self, rate: str) -> float:
        """Takes from a rate that has nothing left; returns the seconds until it has."""
        return self._access.rates.charge(self._access.policy, self.principal, rate, _now(), 1.0)

    def give_back(self, rate: str) -> None:
        """Gives back what was taken in advance."""
        self._access.rates.charge(self._access.policy, self.principal, rate, _now(), -1.0)

    async def pay(self, rate: str, amount: float) -> None:
        """Counts what a stream has sent, and waits until the rate covers it."""
        wait = self._access.charge(self.principal, rate, _now(), amount, door=DOOR)
        if wait > 0:
            await asyncio.sleep(wait)

    @property
    def has_limits(self) -> bool:
        """Whether the policy limits any of the caller's rates."""
        return (self._rights or self.rights).limits is not None

    def owe(self, rate: str, amount: float) -> None:
        """Counts what a unary call has sent; it delays what the caller's next `take` permits."""
        self._access.owe(self.principal, rate, _now(), amount)

    def quotas(self, scope_id: int) -> tuple[int | None, int | None]:
        """The quotas of ledgers of the caller and of the scope; None for no quota."""
        limits = self.rights.limits if self.principal.is_authenticated else None
        quota = self._access.policy.quota_of(scope_id)
        return None if limits is None else limits.ledgers, None if quota is None else quota.ledgers

    def quota_reached(self, scope_id: int, rule: str, retry_after_seconds: float) -> NoReturn:
        """Writes an audit line and raises QuotaReachedException."""
        self._access.quota_reached(self.principal, Resource(scope_id), rule, door=DOOR, peer=self.peer)
        raise QuotaReachedException(f"{rule}; delete some before more can be created", retry_after_seconds)


def ledger_resource(ledger_id: LedgerId | None, owner: str | None, scope_id: int = 0) -> Resource:
    """A ledger as a resource of the policy; `ledger_id` is None for a ledger to be created that has no id yet."""
    if ledger_id is None:
        return Resource(scope_id, owner, name="ledger:new")
    where = f"{ledger_id.scope_id}/" if ledger_id.scope_id else ""
    return Resource(ledger_id.scope_id, owner, name=f"ledger:{where}{ledger_id.low}")


_CALLER: ContextVar[Caller | None] = ContextVar("bookgate_caller", default=None)


def caller() -> Caller | None:
    """The caller of the current RPC; None in a gateway without security."""
    return _CALLER.get()


def require_still(action: Action, resource: Resource = CLUSTER) -> None:
    """Checks again during a stream, since the policy may have changed. Raises AccessDeniedException."""
    if (who := caller()) is not None:
        who.require(action, resource)


def set_caller(who: Caller | None) -> None:
    """Sets the caller for this task and for the tasks that it starts from now on."""
    _CALLER.set(who)


def _now() -> float:
    return asyncio.get_running_loop().time()
