"""What a connection's principal may do at the entry port, decided once for each ledger and action.

`EntryGuard` is one connection's. What was decided is kept, so that an add costs a look into a set; it is forgotten when
the policy is read anew, a ledger is deleted, or the connection authenticates as somebody else. Which action a request
is the one table says (`runtime.security.actions`): a read that fences, or has a term, is `entry.fence`, an add with
RECOVERY_ADD `ledger.recover`.

The audit trail gets a line for the first of each kind on a connection and ledger. Rates of adds are charged to the
principal, over all its connections.

Invariant: A3. Source: docs/protocol/security.md#actions, docs/protocol/security.md#limits. Not its job: waiting for an
owner that is not known, and for a rate (`guarded_connection`).
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
"""Requests that reach no operation: they are told what is wrong with them, and nothing is done."""


class NoActionError(LookupError):
    """A request of which the table of actions says nothing: nobody may, until it does."""


class Answer(enum.Enum):
    """What becomes of a request."""

    ALLOWED = "it is served"
    DENIED = "it is told that it is not authorised"
    OWNER_UNKNOWN = "it depends on the ledger's owner, who is to be learnt first"


def action_of(request: Request) -> Action | None:
    """What a request does; None: something that nobody is asked for. Raises NoActionError."""
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
    """What all connections of a bookie share."""

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
        """Ledgers to which it may add."""
        self.may_read: set[int] = set()
        self._decided: dict[tuple[Action, int], bool] = {}
        self.adds = 0
        """Since they were charged the last time."""
        self.add_bytes = 0
        self.has_rates = False
        """Whether the policy bounds the principal's rate of adds."""
        self.refresh()

    def refresh(self) -> None:
        """Forgets what was decided where that may be different now. Once for all requests that came together."""
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
        """Whether the principal may."""
        try:
            action = action_of(request)
        except NoActionError as error:
            self._deny_unlisted(request, error)
            return Answer.DENIED
        if action is None:
            return Answer.ALLOWED
        number = getattr(request, "ledger_id", 0) if action.is_of_ledgers else 0
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
        """The owner could not be learnt, since there is no such ledger: it is nobody's."""
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
        """Charges the adds since the last time to the principal; seconds for which to read no more."""
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
