"""Invariants that one event after the other can break: each is a rule that takes events as they happen.

A rule says which kinds of events it hears, keeps what it needs of them, and raises at the very event that breaks it.
So a run can be stopped there, and a history that was recorded is judged by the same lines: it is played to the rules.
What only a whole history shows is the checkers' (`check_*`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from tests.history.events import Event
from tests.history.violations import InvariantViolated


class Rule:
    """`looked` counts what was put to the test."""

    id: ClassVar[str]
    hears: ClassVar[tuple[type[Event], ...]]

    def __init__(self) -> None:
        self.looked = 0

    def take(self, position: int, event: Event) -> None:
        """The event at that position of the history, of a kind that it hears. Raises InvariantViolated."""
        raise NotImplementedError


class Rules:
    """All of them over one history. A rule that was broken is not asked again."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = list(rules)
        self._takers: dict[type[Event], list[Rule]] = {}
        for rule in self._rules:
            for kind in rule.hears:
                self._takers.setdefault(kind, []).append(rule)
        self._position = 0
        self.violations: list[InvariantViolated] = []

    @property
    def looked(self) -> Counter[str]:
        """By invariant."""
        counts: Counter[str] = Counter()
        for rule in self._rules:
            counts[rule.id] += rule.looked
        return counts

    def take(self, event: Event) -> None:
        """The next event; `violations` has one more if it breaks a rule."""
        for rule in self._takers.get(type(event), ()):
            try:
                rule.take(self._position, event)
            except InvariantViolated as violation:
                self.violations.append(violation)
                self._ask_no_more(rule)
        self._position += 1

    def _ask_no_more(self, rule: Rule) -> None:
        for kind in rule.hears:
            self._takers[kind] = [other for other in self._takers[kind] if other is not rule]


class Watch:
    """Judges a history while it grows, for a recorder to tell of each event.

    The rules hear every event. `so_far` judges what only a longer stretch shows: now and then, since that takes the
    longer the more there is. It is asked first once there are `first` events, then when there are half as many more.
    """

    def __init__(
        self,
        history: Sequence[Event],
        rules: Rules,
        so_far: Callable[[], Sequence[InvariantViolated]],
        fail: Callable[[InvariantViolated], None],
        first: int,
    ) -> None:
        self._history = history
        self.rules = rules
        self._so_far = so_far
        self._fail = fail
        self._next = first

    def __call__(self, event: Event) -> None:
        self.rules.take(event)
        violations: Sequence[InvariantViolated] = self.rules.violations
        if not violations and len(self._history) >= self._next:
            self._next += max(1, len(self._history) // 2)
            violations = self._so_far()
        if violations:
            self._fail(violations[0])
