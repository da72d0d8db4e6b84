"""The decision: may this principal do this to that. Pure: (policy, principal, action, resource) in, an answer out.

A binding allows an action where all of it fits: principal, action of its role, scope and owner of the ledger or id of
the bookie. The first binding in the file's order that allows it is named; no binding: denied. More principals, scopes
or bindings never take anything away (property tests).

A listing is not asked ledger by ledger where one binding covers all of a scope: `reach` says whether a principal may do
something to all ledgers of a scope, to its own only, or to none. For every ledger `decide` says the same as `reach`.

What a policy says of one principal (`Rights`) is worked out once and kept with the policy, so a decision is a few
look-ups however many bindings there are. With authentication and without a policy whoever is authenticated may do
everything, and nobody else anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.policy import MOST_PRINCIPALS, Binding, Limits, Policy, parse_scope, unsigned_scope
from bookgate.runtime.security.principal import Principal

NO_BINDING = "no binding allows it"


@dataclass(frozen=True, slots=True)
class Resource:
    """What an action is done to; without a scope and a bookie id the cluster."""

    scope_id: int | None = None
    """Of the ledger, signed or not."""
    owner: str | None = None
    """The principal that created the ledger, as the ledger carries it; None: nobody is known."""
    bookie_id: str | None = None
    name: str = ""
    """For people who read the audit trail."""

    def __str__(self) -> str:
        if self.name:
            return self.name
        if self.bookie_id is not None:
            return f"bookie:{self.bookie_id}"
        return "cluster" if self.scope_id is None else f"scope:{self.scope_id}"


CLUSTER = Resource()


class Reach(Enum):
    """Which ledgers of a scope."""

    NONE = auto()
    OWNED = auto()
    ALL = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it may be done, and the binding that said so."""

    allowed: bool
    rule: str

    def __bool__(self) -> bool:
        return self.allowed


class _Rules:
    """One principal's rules for one action. Of several that say the same the first counts."""

    __slots__ = ("_allowed", "bookies", "every_scope", "owned_every_scope", "owned_scopes", "scopes")

    def __init__(self) -> None:
        self.every_scope: Binding | None = None
        self.scopes: dict[int, Binding] = {}
        self.owned_every_scope: Binding | None = None
        self.owned_scopes: dict[int, Binding] = {}
        self.bookies: list[Binding] = []
        self._allowed: dict[int, Decision] = {}

    def add(self, binding: Binding) -> None:
        self.bookies.append(binding)
        if binding.scopes is None:
            if binding.owned:
                self.owned_every_scope = self.owned_every_scope or binding
            else:
                self.every_scope = self.every_scope or binding
        else:
            for scope in binding.scopes:
                (self.owned_scopes if binding.owned else self.scopes).setdefault(scope, binding)

    def of_ledger(self, scope: int) -> Binding | None:
        return _first(self.every_scope, self.scopes.get(scope))

    def of_own_ledger(self, scope: int) -> Binding | None:
        return _first(self.owned_every_scope, self.owned_scopes.get(scope))

    def allowed(self, binding: Binding) -> Decision:
        """That this binding allows it; made once."""
        found = self._allowed.get(binding.number)
        if found is None:
            found = self._allowed[binding.number] = Decision(True, str(binding))
        return found


def _first(one: Binding | None, other: Binding | None) -> Binding | None:
    if one is None or other is None:
        return one or other
    return one if one.number <= other.number else other


_DENIED = Decision(False, NO_BINDING)
_MOST_REACHES = 1024
"""Of actions and scopes that are kept of one principal."""


class Rights:
    """What a policy says of one principal, worked out: asked many times, as the functions below."""

    __slots__ = ("_name", "_principal", "_reaches", "_rules", "limits")

    def __init__(self, policy: Policy, principal: Principal) -> None:
        self._reaches: dict[tuple[Action, int], Reach] = {}
        self._principal = principal
        self._name = str(principal)
        self._rules: dict[Action, _Rules] = {}
        self.limits: Limits | None = policy.limits_of(principal)
        """None: as much as the server gives anybody."""
        for binding in policy.bindings:
            if binding.has(principal):
                for action in binding.actions:
                    self._rules.setdefault(action, _Rules()).add(binding)

    def decide(self, action: Action, resource: Resource = CLUSTER) -> Decision:
        rules = self._rules.get(action)
        if rules is None:
            return _DENIED
        binding = self._deciding(rules, action, resource)
        return _DENIED if binding is None else rules.allowed(binding)

    def reach(self, action: Action, scope_id: int) -> Reach:
        found = self._reaches.get((action, scope_id))
        if found is None:
            if len(self._reaches) >= _MOST_REACHES:
                self._reaches.clear()
            found = self._reaches[action, scope_id] = self._work_out_reach(action, scope_id)
        return found

    def _work_out_reach(self, action: Action, scope_id: int) -> Reach:
        rules = self._rules.get(action)
        if rules is None:
            return Reach.NONE
        scope = unsigned_scope(scope_id)
        if rules.of_ledger(scope) is not None:
            return Reach.ALL
        return Reach.NONE if rules.of_own_ledger(scope) is None else Reach.OWNED

    def may_somewhere(self, action: Action) -> bool:
        return action in self._rules

    def narrowed_by(self, action: Action, scope_id: int | None = None) -> str | None:
        """The rule that keeps ledgers of a scope (None: of some scope) from the principal; None: it may have all."""
        rules = self._rules.get(action)
        if rules is None:
            return NO_BINDING
        if rules.every_scope is not None or (scope_id is not None and self.reach(action, scope_id) is Reach.ALL):
            return None
        own = None if scope_id is None else rules.of_own_ledger(unsigned_scope(scope_id))
        return str(own or rules.bookies[0])

    def _deciding(self, rules: _Rules, action: Action, resource: Resource) -> Binding | None:
        if action.is_of_bookies:
            bookie_id = resource.bookie_id
            fitting = (
                each for each in rules.bookies if bookie_id is None or each.covers_bookie(self._principal, bookie_id)
            )
            return next(fitting, None)
        if not action.is_of_ledgers:
            return rules.bookies[0]
        scope = unsigned_scope(resource.scope_id or 0)
        binding = rules.of_ledger(scope)
        if resource.owner is None or resource.owner != self._name:
            return binding
        return _first(binding, rules.of_own_ledger(scope))


class _WithoutPolicy(Rights):
    """Everything, or nothing."""

    __slots__ = ("_decision",)

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.limits = None

    def decide(self, action: Action, resource: Resource = CLUSTER) -> Decision:
        return self._decision

    def reach(self, action: Action, scope_id: int) -> Reach:
        return Reach.ALL if self._decision else Reach.NONE

    def may_somewhere(self, action: Action) -> bool:
        return self._decision.allowed

    def narrowed_by(self, action: Action, scope_id: int | None = None) -> str | None:
        return None if self._decision else self._decision.rule


_EVERYTHING = _WithoutPolicy(Decision(True, "no policy: whoever is authenticated may do all"))
_NOTHING = _WithoutPolicy(Decision(False, "no policy, and not authenticated"))


def rights_of(policy: Policy | None, principal: Principal) -> Rights:
    """Those of a principal; policy None: there is none."""
    if policy is None:
        return _EVERYTHING if principal.is_authenticated else _NOTHING
    known: Rights | None = policy.worked_out.get(principal)
    if known is None:
        if len(policy.worked_out) >= MOST_PRINCIPALS:
            policy.worked_out.clear()
        known = policy.worked_out[principal] = Rights(policy, principal)
    return known


def decide(policy: Policy, principal: Principal, action: Action, resource: Resource = CLUSTER) -> Decision:
    """Whether the principal may do it."""
    return rights_of(policy, principal).decide(action, resource)


def reach(policy: Policy, principal: Principal, action: Action, scope_id: int) -> Reach:
    """For which ledgers of a scope the principal may do it."""
    return rights_of(policy, principal).reach(action, scope_id)


def may_somewhere(policy: Policy, principal: Principal, action: Action) -> bool:
    """Whether there is anything to which the principal may do it."""
    return rights_of(policy, principal).may_somewhere(action)


# --- resources as people write them -----------------------------------------------------------------------------


def parse_resource(text: str) -> Resource:
    """Reads `cluster`, `bookie:ID`, `scope:N`, `ledger:ID` or `ledger:SCOPE/ID`; the last three may have `,owner=NAME`.

    Raises IncorrectParameterException.
    """
    if text == "cluster":
        return CLUSTER
    kind, _, rest = text.partition(":")
    if kind == "bookie" and rest:
        return Resource(bookie_id=rest)
    rest, comma, owner = rest.partition(",owner=")
    try:
        if kind not in ("scope", "ledger") or (comma and not owner):
            raise ValueError(text)
        scope, _, ledger = rest.rpartition("/") if kind == "ledger" else (rest, "", "0")
        int(ledger, 0)
        return Resource(parse_scope(scope) if scope else 0, owner or None, name=f"{kind}:{rest}")
    except ValueError:
        raise IncorrectParameterException(
            f"resource {text!r} is none of cluster, bookie:ID, scope:N, ledger:ID and ledger:SCOPE/ID, the last three "
            "with ,owner=PRINCIPAL where it matters"
        ) from None


def owned_by(principal: Principal, scope_id: int) -> Resource:
    """A ledger that the principal is about to create."""
    return Resource(scope_id, str(principal))
