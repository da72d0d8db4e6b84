"""When an auditor audits which bookie again. Pure; times are seconds of one clock.

A bookie that stays lost is audited again after a minute, then after twice as long each time: a client that has not
noticed may put it into new ensembles. Each audit marks again what is not repaired yet, so after one that took long the
minute is longer: the store has the repairs to serve. A bookie to be emptied is audited again and again, since a ledger
that is being written there can't be moved at first. Source: docs/protocol/auto-recovery.md#auditor.

Not its job: which bookies are lost (`audit_rules`), the audits (`auditor`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_FIRST_PAUSE_SECONDS = 900.0
"""For what a client has put onto a lost bookie since it was audited."""
_PAUSE_SHARE = 50
"""Audits are so many times as far apart as one takes; for a lost bookie within these bounds."""


@dataclass(frozen=True, slots=True)
class _Audited:
    again_at: float
    pause: float
    """How long that is after the audit."""
    times: int


class AuditPlan:
    """Of one term of office."""

    def __init__(self, roll_call_seconds: float, longest_seconds: float) -> None:
        """No pause is longer than `longest_seconds`."""
        self._roll_call_seconds = roll_call_seconds
        self._longest = longest_seconds
        self._audited: dict[str, _Audited] = {}
        """Bookies whose ledgers are all marked."""

    def clear(self) -> None:
        """Every bookie is due."""
        self._audited.clear()

    def due(self, wanted: Iterable[str], now: float) -> list[str]:
        """Those of the bookies that are to be audited now; all others are forgotten than these."""
        wanted = list(wanted)
        self._audited = {each: self._audited[each] for each in wanted if each in self._audited}
        return [each for each in wanted if each not in self._audited or now >= self._audited[each].again_at]

    def audited(self, bookie_ids: Sequence[str], now: float, took: float, draining: Collection[str] = ()) -> None:
        """Bookies, `draining` of them to be emptied, were audited in `took` seconds."""
        for bookie_id in bookie_ids:
            before = self._audited.get(bookie_id)
            if bookie_id in draining:
                pause = max(self._roll_call_seconds, _PAUSE_SHARE * took)
            elif before is None:
                pause = max(_FIRST_PAUSE_SECONDS, min(_PAUSE_SHARE * took, _LONGEST_FIRST_PAUSE_SECONDS))
            else:
                pause = 2 * before.pause
            pause = min(pause, self._longest)
            self._audited[bookie_id] = _Audited(now + pause, pause, 1 if before is None else before.times + 1)

    @property
    def settled(self) -> set[str]:
        """Bookies that were audited and, a minute later or more, once again."""
        return {each for each, audited in self._audited.items() if audited.times > 1}

    def pauses(self, now: float) -> list[float]:
        """In how many seconds bookies are due again."""
        return [audited.again_at - now for audited in self._audited.values()]
