"""The schedule of repeated audits of bookies. Pure; times are seconds of one clock.

A bookie that stays lost is audited again after a minute, then after twice as long each time: a client that has not
noticed its loss may put it into new ensembles. Each audit marks unrepaired ledgers again, so after a long audit the
first pause is longer, to leave the store to the repairs. A bookie to be emptied is audited repeatedly, since ledgers
that are being written there can't be moved at first. Source: docs/protocol/auto-recovery.md#auditor.

Not its job: which bookies are lost (`audit_rules`), the audits (`auditor`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_FIRST_PAUSE_SECONDS = 900.0
"""Longest first pause, after which ledgers are found that clients put on a lost bookie since its audit."""
_PAUSE_SHARE = 50
"""Pause between audits as a multiple of their duration; for a lost bookie within the limits above."""


@dataclass(frozen=True, slots=True)
class _Audited:
    again_at: float
    pause: float
    """Seconds from the audit to the next one."""
    times: int
    """Number of audits of a lost bookie; those of one that serves, and is to be emptied, do not count."""


class AuditPlan:
    """The schedule of one term of office."""

    def __init__(self, roll_call_seconds: float, longest_seconds: float) -> None:
        """No pause is longer than `longest_seconds`."""
        self._roll_call_seconds = roll_call_seconds
        self._longest = longest_seconds
        self._audited: dict[str, _Audited] = {}
        """Audited bookies, whose ledgers are all marked."""

    def clear(self) -> None:
        """Makes every bookie due."""
        self._audited.clear()

    def due(self, wanted: Iterable[str], now: float) -> list[str]:
        """The bookies to be audited now; forgets all bookies that are not in `wanted`."""
        wanted = list(wanted)
        self._audited = {each: self._audited[each] for each in wanted if each in self._audited}
        return [each for each in wanted if each not in self._audited or now >= self._audited[each].again_at]

    def audited(self, bookie_ids: Sequence[str], now: float, took: float, draining: Collection[str] = ()) -> None:
        """Records an audit that took `took` seconds; `draining` are the bookies to be emptied."""
        for bookie_id in bookie_ids:
            before = self._audited.get(bookie_id)
            if bookie_id in draining:
                pause = max(self._roll_call_seconds, _PAUSE_SHARE * took)
            elif before is None:
                pause = max(_FIRST_PAUSE_SECONDS, min(_PAUSE_SHARE * took, _LONGEST_FIRST_PAUSE_SECONDS))
            else:
                pause = 2 * before.pause
            pause = min(pause, self._longest)
            times = 0 if before is None else before.times
            self._audited[bookie_id] = _Audited(now + pause, pause, times + (bookie_id not in draining))

    @property
    def settled(self) -> set[str]:
        """Bookies that were audited as lost at least twice, a minute or more apart."""
        return {each for each, audited in self._audited.items() if audited.times > 1}

    def pauses(self, now: float) -> list[float]:
        """Seconds until bookies are due again."""
        return [audited.again_at - now for audited in self._audited.values()]
