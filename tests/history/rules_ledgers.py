"""What a single change of a ledger's metadata, or a client's word on its end, can break: P5, P6, P11 and R7."""

from __future__ import annotations

from itertools import pairwise

from tests.history import events
from tests.history.events import Event, LedgerRepaired, MetadataSeen, Recovered
from tests.history.rules import Rule
from tests.history.violations import BadFragments, IllegalTransition, RecoveriesDisagree, RepairChangedMore

_MOVES = {
    "OPEN": {"OPEN", "IN_RECOVERY", "CLOSED"},
    "IN_RECOVERY": {"IN_RECOVERY", "CLOSED"},
    "CLOSED": {"CLOSED"},
}


class FragmentsAreValid(Rule):
    """P5, of every record that anybody saw."""

    id = "P5"
    hears = (MetadataSeen,)

    def take(self, position: int, event: Event) -> None:
        assert isinstance(event, MetadataSeen)
        self.looked += 1
        problem = _fragment_problem(event)
        if problem:
            raise BadFragments(f"ledger {event.ledger} version {event.version}: {problem}", event)


def _fragment_problem(seen: MetadataSeen) -> str | None:
    firsts = [first for first, _ in seen.fragments]
    if firsts[:1] != [0]:
        return f"the first fragment begins at {firsts[:1]}"
    if any(after <= before for before, after in pairwise(firsts)):
        return f"fragments begin at {firsts}"
    for first, ensemble in seen.fragments:
        if len(set(ensemble)) != len(ensemble):
            return f"a bookie stands twice in the ensemble of entry {first}: {ensemble}"
        if len(ensemble) != seen.sizes[0]:
            return f"the ensemble of entry {first} has {len(ensemble)} bookies"
    return None


class MetadataMovesForward(Rule):
    """P6: one value a version, legal moves between versions, an end that stays. Where the store was watched, every
    version is there. Repairs alone change fragments before the last."""

    id = "P6"
    hears = (MetadataSeen, LedgerRepaired)

    def __init__(self) -> None:
        super().__init__()
        self._versions: dict[str, dict[int, MetadataSeen]] = {}
        """Of each ledger what was first seen of each version."""
        self._stored: dict[str, MetadataSeen] = {}
        """What the store wrote last."""
        self._repairs: dict[str, list[int]] = {}
        """Of each ledger the versions that repairs wrote."""

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, LedgerRepaired):
            self._repairs.setdefault(event.ledger, []).append(event.version)
            return
        assert isinstance(event, MetadataSeen)
        if event.client == events.STORE:
            self._no_version_is_skipped(event)
        versions = self._versions.setdefault(event.ledger, {})
        first = versions.setdefault(event.version, event)
        if first is not event:
            if _value(first) != _value(event):
                raise IllegalTransition(f"ledger {event.ledger}: two values of version {event.version}", first, event)
            return
        self.looked += 1
        before = max((version for version in versions if version < event.version), default=None)
        after = min((version for version in versions if version > event.version), default=None)
        if before is not None:
            self._may_follow(versions[before], event)
        if after is not None:
            self._may_follow(event, versions[after])

    def _may_follow(self, before: MetadataSeen, after: MetadataSeen) -> None:
        repairs = self._repairs.get(after.ledger, ())
        repaired = any(before.version < version <= after.version for version in repairs)
        problem = _transition_problem(before, after, repaired=repaired)
        if problem:
            raise IllegalTransition(f"ledger {after.ledger}: {problem}", before, after)

    def _no_version_is_skipped(self, event: MetadataSeen) -> None:
        before = self._stored.get(event.ledger)
        self._stored[event.ledger] = event
        if before is not None and event.version != before.version + 1:
            skipped = f"ledger {event.ledger}: version {before.version}, then {event.version}"
            raise IllegalTransition(skipped, before, event)


def _value(seen: MetadataSeen) -> tuple[object, ...]:
    return seen.state, seen.sizes, seen.fragments, seen.last_entry, seen.length, seen.tag


def _transition_problem(before: MetadataSeen, after: MetadataSeen, *, repaired: bool) -> str | None:
    """What forbids `after` as a later version of `before`, with any number of changes between."""
    if after.state not in _MOVES[before.state]:
        return f"{before.state} became {after.state}"
    if before.state == "CLOSED" and (before.last_entry, before.length) != (after.last_entry, after.length):
        return f"the end of a closed ledger moved from {before.last_entry} to {after.last_entry}"
    if after.state != "CLOSED" and (after.last_entry, after.length) != (-1, 0):
        return f"{after.state} with last entry {after.last_entry} and length {after.length}"
    if before.sizes != after.sizes:
        return f"its sizes became {after.sizes}"
    complete = len(before.fragments) - (before.state != "CLOSED")
    if not repaired and before.fragments[:complete] != after.fragments[:complete]:
        return "a complete fragment was changed"
    return None


class RepairsReplaceMembersOnly(Rule):
    """R7, of two versions that the store wrote one after the other."""

    id = "R7"
    hears = (MetadataSeen, LedgerRepaired)

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[str, MetadataSeen] = {}
        self._repairs: set[tuple[str, int]] = set()

    def take(self, position: int, event: Event) -> None:
        if isinstance(event, LedgerRepaired):
            self._repairs.add((event.ledger, event.version))
            return
        assert isinstance(event, MetadataSeen)
        if event.client != events.STORE:
            return
        before, self._stored[event.ledger] = self._stored.get(event.ledger), event
        if before is None or (event.ledger, event.version) not in self._repairs:
            return
        self.looked += 1
        problem = _repair_problem(before, event)
        if problem:
            raise RepairChangedMore(f"ledger {event.ledger}: {problem}", before, event)


def _repair_problem(before: MetadataSeen, after: MetadataSeen) -> str | None:
    kept = (before.state, before.sizes, before.last_entry, before.length, before.tag)
    if kept != (after.state, after.sizes, after.last_entry, after.length, after.tag):
        return "a repair changed more than the members of ensembles"
    if [first for first, _ in before.fragments] != [first for first, _ in after.fragments]:
        return "a repair moved the borders of fragments"
    if before.state != "CLOSED" and before.fragments[-1] != after.fragments[-1]:
        return "a repair changed the fragment that is still written"
    return None


class RecoveriesAgree(Rule):
    """P11."""

    id = "P11"
    hears = (Recovered, MetadataSeen)

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[str, Recovered | MetadataSeen] = {}

    def take(self, position: int, event: Event) -> None:
        assert isinstance(event, Recovered | MetadataSeen)
        if isinstance(event, MetadataSeen) and event.state != "CLOSED":
            return
        first = self._ends.setdefault(event.ledger, event)
        if first is event:
            return
        self.looked += 1
        if (event.last_entry, event.length) != (first.last_entry, first.length):
            raise RecoveriesDisagree(f"ledger {event.ledger} has two ends", first, event)
