"""A policy: roles, and which principals have them for which ledgers and bookies. Pure: text in, a frozen value out.

    [roles.etl]
    actions = ["ledger.read", "ledger.list", "discovery.read"]

    [[bindings]]
    principals = ["jwt:spark-*", "group:analysts"]
    role = "etl"
    scopes = ["0", "0x5f00000000000001"]   # default: every scope
    owned = true                           # only ledgers that the principal created
    bookies = ["{name}"]                   # bookie.* and cookie.*: which bookie ids; default: every one

    [[limits]]                             # docs/protocol/security.md#limits
    principals = ["*"]
    calls_per_second = 1000
    ledgers = 100000                       # that it owns at a time

    [[quotas]]
    scopes = ["0x5f00000000000001"]        # each of them; default: every scope
    ledgers = 5000

Nothing denies: what no binding allows is denied (docs/protocol/security.md#policy). `*` in principals and bookies
stands for any characters, in actions for the rest of the name; the built-in roles are `BUILT_IN_ROLES`.

Not its job: the decision (`decision`), the file (`policy_file`).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.principal import Kind, Principal

_WRITER = ("ledger.*", "discovery.read", "entry.*")
_READER = ("ledger.read", "ledger.list", "ledger.watch", "discovery.read", "entry.read")
_OPERATOR = (
    *("ledger.read", "ledger.list", "ledger.watch", "ledger.recover", "discovery.read", "cookie.*", "replication.*"),
    *("cluster.admin", "http.*", "entry.read", "entry.fence"),
)
_BOOKIE = (
    *("bookie.register", "cookie.*", "discovery.read", "replication.read", "replication.work", "ledger.read"),
    *("ledger.list", "ledger.watch", "ledger.secret", "ledger.recover", "entry.read", "entry.fence"),
)

BUILT_IN_ROLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"admin": ("*",), "operator": _OPERATOR, "writer": _WRITER, "reader": _READER, "bookie": _BOOKIE}
)
"""Always there; a policy may define others, not these."""

_MASK_64 = (1 << 64) - 1

MOST_PRINCIPALS = 4096
"""Worked out and kept at a time; one that comes back later is worked out anew."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Gives a role to principals."""

    number: int
    """Its place in the file, from 1: how explanations name it."""
    principals: tuple[str, ...]
    role: str
    actions: frozenset[Action]
    scopes: frozenset[int] | None = None
    """Unsigned; None: every scope."""
    owned: bool = False
    bookies: tuple[str, ...] | None = None
    """Patterns of bookie ids, `{name}` being the principal's name; None: every one."""

    def __str__(self) -> str:
        return f"binding {self.number} (role {self.role})"

    def has(self, principal: Principal) -> bool:
        """Whether it is for this principal."""
        return matches(self.principals, principal)

    def covers_bookie(self, principal: Principal, bookie_id: str) -> bool:
        """Whether it is for this bookie id, of those that the principal may have."""
        patterns = self.bookies
        return patterns is None or any(_fits(bookie_id, pattern, principal) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Limits:
    """What each of the principals may have; None: as much as the server gives anybody."""

    principals: tuple[str, ...] = ("*",)
    calls_per_second: float | None = None
    creates_per_second: float | None = None
    changes_per_second: float | None = None
    listed_ids_per_second: float | None = None
    metadata_bytes_per_second: float | None = None
    adds_per_second: float | None = None
    add_bytes_per_second: float | None = None
    streams: int | None = None
    subscriptions: int | None = None
    ledgers: int | None = None
    """Owned at a time."""


_NOT_WORKED_OUT = Limits(())


@dataclass(frozen=True, slots=True)
class Quota:
    """What each of the scopes may have, whoever creates it."""

    ledgers: int
    scopes: frozenset[int] | None = None
    """Unsigned; None: every scope."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All bindings and limits, as `parse_policy` makes them."""

    bindings: tuple[Binding, ...] = ()
    limits: tuple[Limits, ...] = ()
    quotas: tuple[Quota, ...] = ()
    worked_out: dict[Principal, Any] = field(default_factory=dict, compare=False, repr=False)
    """What `decision` has worked out of single principals."""
    limits_worked_out: dict[Principal, Limits | None] = field(default_factory=dict, compare=False, repr=False)

    def limits_of(self, principal: Principal) -> Limits | None:
        """The first entry that is for this principal."""
        if not self.limits:
            return None
        known = self.limits_worked_out
        found = known.get(principal, _NOT_WORKED_OUT)
        if found is _NOT_WORKED_OUT:
            if len(known) >= MOST_PRINCIPALS:
                known.clear()
            found = next((each for each in self.limits if matches(each.principals, principal)), None)
            known[principal] = found
        return found

    def quota_of(self, scope_id: int) -> Quota | None:
        """The first quota that is for this scope."""
        if not self.quotas:
            return None
        scope = unsigned_scope(scope_id)
        return next((each for each in self.quotas if each.scopes is None or scope in each.scopes), None)

    @property
    def bounds_owners(self) -> bool:
        """Whether there is a quota on what principals own."""
        return any(each.ledgers is not None for each in self.limits)


def matches(patterns: Iterable[str], principal: Principal) -> bool:
    """Whether one of the patterns fits one of the principal's names.

    `*` alone is everybody who is authenticated, or on this machine; `anonymous` has to be named.
    """
    names = principal.names
    for pattern in patterns:
        if pattern == "*":
            if principal.kind is not Kind.ANONYMOUS:
                return True
        elif any(name == pattern or ("*" in pattern and fnmatchcase(name, _star_only(pattern))) for name in names):
            return True
    return False


def _star_only(pattern: str) -> str:
    """Only `*` is special: names may have brackets and question marks."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _fits(bookie_id: str, pattern: str, principal: Principal) -> bool:
    """Whether a bookie id is of a pattern. The principal's name is put in as it is, whatever characters it has."""
    before, braces, after = pattern.partition("{name}")
    if not braces:
        return fnmatchcase(bookie_id, _star_only(pattern))
    # The subject of a certificate without a mapping rule: CN=bookie-1 may claim bookie-1.
    name = principal.name.removeprefix("CN=")
    start = bookie_id.find(name)
    while name and start >= 0:
        end = start + len(name)
        if fnmatchcase(bookie_id[:start], _star_only(before)) and fnmatchcase(bookie_id[end:], _star_only(after)):
            return True
        start = bookie_id.find(name, start + 1)
    return False


def unsigned_scope(scope_id: int) -> int:
    """Scopes are carried signed and written unsigned."""
    return scope_id & _MASK_64


def parse_scope(text: str) -> int:
    """A scope as people write it: a number, also in hex with 0x, also negative. Raises ValueError."""
    scope = int(text, 0)
    if not -(1 << 63) <= scope <= _MASK_64:
        raise ValueError(f"scope {text} does not fit 64 bits")
    return unsigned_scope(scope)


# --- reading ----------------------------------------------------------------------------------------------------


class PolicyError(IncorrectParameterException):
    """A policy that can't be used; names each place and what is wrong there."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def parse_policy(text: str) -> Policy:
    """Reads a policy. Raises PolicyError with everything that is wrong."""
    try:
        return _Reader(tomllib.loads(text)).policy()
    except (ValueError, RecursionError) as error:
        # Of numbers beyond 4300 digits, too, which Python neither reads nor, in a message, writes.
        raise PolicyError([f"no TOML: {error}"]) from error


class _Reader:
    """Collects what is wrong, so that one look at a policy shows everything."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self._problems: list[str] = []

    def policy(self) -> Policy:
        self._only(self._content, ("roles", "bindings", "limits", "quotas"), "the policy")
        roles = self._roles(self._content.get("roles", {}))
        bindings = [
            self._binding(number, table, roles) for number, table in enumerate(self._tables("bindings"), start=1)
        ]
        limits = [self._limits(number, table) for number, table in enumerate(self._tables("limits"), start=1)]
        quotas = [self._quota(number, table) for number, table in enumerate(self._tables("quotas"), start=1)]
        if self._problems:
            raise PolicyError(self._problems)
        return Policy(tuple(bindings), tuple(limits), tuple(quotas))

    def _tables(self, key: str) -> list[Mapping[str, Any]]:
        value = self._content.get(key, [])
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return value
        self._problems.append(f"{key} is not a list of tables; begin each with [[{key}]]")
        return []

    def _only(self, table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in table:
            if key not in known:
                self._problems.append(f"{where}: there is no key {key!r}; there are {', '.join(known)}")

    def _roles(self, tables: Any) -> dict[str, frozenset[Action]]:
        roles = {name: self._actions(actions, name) for name, actions in BUILT_IN_ROLES.items()}
        if not isinstance(tables, dict):
            self._problems.append("roles is no table; begin each with [roles.NAME]")
            return roles
        for name, table in tables.items():
            where = f"role {name}"
            if name in BUILT_IN_ROLES:
                self._problems.append(f"{where}: it is built in; choose another name")
            elif not isinstance(table, dict):
                self._problems.append(f"{where}: it is no table; begin it with [roles.{name}]")
            else:
                self._only(table, ("actions",), where)
                roles[name] = self._actions(self._strings(table, "actions", where), where)
        return roles

    def _actions(self, patterns: Iterable[str], where: str) -> frozenset[Action]:
        found: set[Action] = set()
        for pattern in patterns:
            fitting = _fitting_actions(pattern)
            if not fitting:
                self._problems.append(f"{where}: no action is {pattern!r}; there are {', '.join(Action)}")
            found |= fitting
        return frozenset(found)

    def _binding(self, number: int, table: Mapping[str, Any], roles: Mapping[str, frozenset[Action]]) -> Binding:
        where = f"binding {number}"
        self._only(table, ("principals", "role", "scopes", "owned", "bookies"), where)
        role = table.get("role")
        if not isinstance(role, str) or role not in roles:
            self._problems.append(f"{where}: there is no role {role!r}; there are {', '.join(roles)}")
            role = "reader"
        owned = table.get("owned", False)
        if not isinstance(owned, bool):
            self._problems.append(f"{where}: owned is {owned!r}, neither true nor false")
        scopes = self._scopes(table, where)
        registers = Action.BOOKIE_REGISTER in roles[role] and Action.CLUSTER_ADMIN not in roles[role]
        if registers and (scopes is not None or owned):
            self._problems.append(
                f"{where}: a role that registers bookies goes without scopes and owned: a bookie has to be shown every "
                "ledger, since it takes those that it is not shown for deleted, or for never made"
            )
        return Binding(
            number,
            self._principals(table, where),
            role,
            roles[role],
            scopes,
            owned is True,
            self._strings(table, "bookies", where) if "bookies" in table else None,
        )

    def _principals(self, table: Mapping[str, Any], where: str) -> tuple[str, ...]:
        patterns = self._strings(table, "principals", where)
        kinds = (*Kind, "group")
        for pattern in patterns:
            kind, colon, name = pattern.partition(":")
            alone = pattern in ("*", Kind.LOCAL, Kind.ANONYMOUS)
            if not alone and not (colon and name and (kind in kinds or "*" in kind)):
                self._problems.append(
                    f"{where}: principal {pattern!r} is not kind:name; kinds are tls, token, jwt and group, and local "
                    "and anonymous stand alone"
                )
        return patterns

    def _scopes(self, table: Mapping[str, Any], where: str) -> frozenset[int] | None:
        if "scopes" not in table:
            return None
        found = set()
        for text in self._strings(table, "scopes", where):
            if text == "*":
                return None
            scope = self._scope(text, where)
            if scope is not None:
                found.add(scope)
        return frozenset(found)

    def _scope(self, text: object, where: str) -> int | None:
        try:
            return parse_scope(str(text))
        except ValueError:
            self._problems.append(f"{where}: scope {text!r} is neither a 64-bit number nor *")
            return None

    def _strings(self, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        value = table.get(key)
        if isinstance(value, list) and value and all(isinstance(each, str) and each for each in value):
            return tuple(value)
        self._problems.append(f"{where}: {key} is not a list of names")
        return ()

    def _limits(self, number: int, table: Mapping[str, Any]) -> Limits:
        where = f"limits {number}"
        rates = [each.name for each in fields(Limits) if each.name != "principals"]
        self._only(table, ("principals", *rates), where)
        values = {key: self._rate(table[key], key, where) for key in rates if key in table}
        return Limits(self._principals(table, where), **values)  # type: ignore[arg-type]

    def _quota(self, number: int, table: Mapping[str, Any]) -> Quota:
        where = f"quotas {number}"
        self._only(table, ("scopes", "ledgers"), where)
        most = self._rate(table.get("ledgers"), "ledgers", where)
        return Quota(int(most or 0), self._scopes(table, where))

    def _rate(self, value: object, key: str, where: str) -> float | None:
        whole = not key.endswith("_per_second")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            self._problems.append(f"{where}: {key} is {value!r}, no {'whole ' if whole else ''}number")
            return None
        if not 0 <= value <= sys.float_info.max or (value == 0 and not whole):
            self._problems.append(f"{where}: {key} is {value}; it must be above 0{', or 0 for none' if whole else ''}")
            return None
        return value


def _fitting_actions(pattern: str) -> set[Action]:
    if pattern == "*":
        return set(Action)
    prefix, star, rest = pattern.partition("*")
    if star and (rest or not prefix.endswith(".")):
        return set()
    return {action for action in Action if (action.startswith(prefix) if star else action == pattern)}
