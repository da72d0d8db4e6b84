"""Permissions of a connection's principal at the entry port, decided once for each ledger and action.

Each connection has an `EntryGuard`. It keeps its decisions, so that an add costs one look-up in a set, and discards
them when the policy is reloaded, a ledger is deleted, or the connection authenticates as another principal. The table
in `runtime.security.actions` maps requests to actions: a read that fences, or has a term, is `entry.fence`, an add with
RECOVERY_ADD is `ledger.recover`. An add that raises the term of a ledger of this bookie needs `entry.fence` too.

The audit trail gets a line for the first request of each action on a connection and ledger. Adds count against the rate
of the principal, over all its connections.

Invariant: A3. Source: docs/protocol/security.md#actions, docs/protocol/security.md#limits. Not its job: waiting for an
unknown owner, or for a rate (`guarded_connection`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from bookgate.bookie.protocol.ledger_owners import LedgerOwners
from bookgate.bookie.protocol.principals import DOOR
from bookgate.ledger.ledger_id import ledger_name, scope_of
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import OPERATIONS, AddRequest, BatchReadRequest, ReadRequest, Request, fences
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import ENTRY_ACTIONS, Action
from bookgate.runtime.security.decision import NO_BINDING, Decision, Reach, Resource
from bookgate.runtime.security.principal import Principal

_MOST_DECIDED = 100_000

ASK_NOBODY: frozenset[type] = frozenset((messages.InvalidRequest,))
"""Requests that reach no operation, and need no permission: they are answered with their error."""


class NoActionError(LookupError):
    """A request that the table of actions lacks: nobody may send it."""


class Answer(enum.Enum):
    """The decision on a request."""

    ALLOWED = "it is served"
    DENIED = "it is told that it is not authorised"
    OWNER_UNKNOWN = "it depends on the ledger's owner, who is to be learnt first"


def action_of(request: Request) -> Action | None:
    """The action of a request; None if it needs no permission. Raises NoActionError."""
    if isinstance(request, AddRequest) and request.recovery:
        return Action.LEDGER_RECOVER
    if isinstance(request, ReadRequest | BatchReadRequest) and fences(request):
        return Action.ENTRY_FENCE
    operation = OPERATIONS.get(type(request))
    if operation is not None and operation in ENTRY_ACTIONS:
        return ENTRY_ACTIONS[operation]
    if type(request) in ASK_NOBODY:
        return None
    raise NoActionError(f"{type(request).__name__} has no action")


class EntryAccess:
    """The state that all connections of a bookie share."""

    def __init__(self, access: AccessControl, owners: LedgerOwners, clock: Callable[[], float]) -> None:
        self.control = access
        self.owners = owners
        self.clock = clock

    def guard(self, principal: Principal, peer: str) -> EntryGuard:
        """The guard of one connection."""
        return EntryGuard(self, principal, peer)


class EntryGuard:
    """See the module."""

    def __init__(self, shared: EntryAccess, principal: Principal, peer: str) -> None:
        self._shared = shared
        self.principal = principal
        self._peer = peer
        self._policy: object = None
        self._generation = -1
        self.may_add: set[int] = set()
        """Numbers of ledgers to which the principal may add."""
        self.may_read: set[int] = set()
        self._decided: dict[tuple[Action, int], bool] = {}
        self.adds = 0
        """Adds since the last charge."""
        self.add_bytes = 0
        self.has_rates = False
        """Whether the policy limits the principal's rate of adds."""
        self.refresh()

    def refresh(self) -> None:
        """Discards decisions that may have changed. Called once for all requests that arrive together."""
        policy, generation = self._shared.control.policy, self._shared.owners.generation
        if policy is not self._policy or generation != self._generation:
            self._policy, self._generation = policy, generation
            limits = policy.limits_of(self.principal)
            self.has_rates = limits is not None and not (limits.adds_per_second is limits.add_bytes_per_second is None)
            self._forget()

    def _forget(self) -> None:
        self.may_add.clear()
        self.may_read.clear()
        self._decided.clear()

    def check(self, request: Request) -> Answer:
        """Whether the principal may send this request."""
        try:
            action = action_of(request)
        except NoActionError as error:
            self._deny_unlisted(request, error)
            return Answer.DENIED
        if action is None:
            return Answer.ALLOWED
        return self._answer(action, getattr(request, "ledger_id", 0) if action.is_of_ledgers else 0)

    def check_taking(self, number: int) -> Answer:
        """Whether the principal may take this ledger from other clients, as a fence does."""
        return self._answer(Action.ENTRY_FENCE, number)

    def _answer(self, action: Action, number: int) -> Answer:
        allowed = self._decided.get((action, number))
        if allowed is None:
            allowed = self._decide(action, number)
            if allowed is None:
                return Answer.OWNER_UNKNOWN
            self._keep(action, number, allowed)
        return Answer.ALLOWED if allowed else Answer.DENIED

    def _decide(self, action: Action, number: int) -> bool | None:
        control = self._shared.control
        if not action.is_of_ledgers:
            return bool(control.decide(self.principal, action))
        reach = control.reach(self.principal, action, scope_of(number))
        if reach is not Reach.OWNED:
            return reach is Reach.ALL
        owners = self._shared.owners
        return owners.owner(number) == str(self.principal) if owners.knows(number) else None

    def deny(self, request: Request) -> None:
        """Denies a request because its ledger does not exist, and so has no owner."""
        action = action_of(request)
        assert action is not None, "what nobody is asked for waits for nothing"
        self._tell(action, getattr(request, "ledger_id", 0), allowed=False)

    def _deny_unlisted(self, request: Request, error: NoActionError) -> None:
        decision = Decision(False, str(error))
        name = type(request).__name__
        self._shared.control.denied(self.principal, name, Resource(), decision, door=DOOR, peer=self._peer)

    def _keep(self, action: Action, number: int, allowed: bool) -> None:
        if len(self._decided) >= _MOST_DECIDED:
            self._forget()
        self._decided[action, number] = allowed
        if allowed and action is Action.ENTRY_ADD:
            self.may_add.add(number)
        elif allowed and action is Action.ENTRY_READ:
            self.may_read.add(number)
        self._tell(action, number, allowed=allowed)

    def _tell(self, action: Action, number: int, *, allowed: bool) -> None:
        control = self._shared.control
        of_ledger = action.is_of_ledgers
        resource = Resource(scope_of(number), name=f"ledger:{ledger_name(number)}") if of_ledger else Resource()
        if allowed:
            control.done(self.principal, action, resource, "allowed", door=DOOR, peer=self._peer)
        else:
            decision = Decision(False, NO_BINDING)
            control.denied(self.principal, action, resource, decision, door=DOOR, peer=self._peer)

    def charge(self) -> float:
        """Charges the adds since the last charge to the principal; returns the seconds for which to stop reading."""
        adds, size = self.adds, self.add_bytes
        if not adds:
            return 0.0
        self.adds = self.add_bytes = 0
        control = self._shared.control
        policy, rates = control.policy, control.rates
        if not policy.limits:
            return 0.0
        now = self._shared.clock()
        wait = max(
            rates.charge(policy, self.principal, "adds_per_second", now, adds),
            rates.charge(policy, self.principal, "add_bytes_per_second", now, size),
        )
        if wait > 0:
            control.counts[DOOR, self.principal.kind, "limited"] += 1
        return wait
