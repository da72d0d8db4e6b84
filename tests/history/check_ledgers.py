"""Checkers of a ledger's metadata and its end: P2, P5, P6, P11, P12 and D1. Each returns how much it looked at."""

from __future__ import annotations

from itertools import pairwise

from tests.history import events
from tests.history.events import MetadataSeen
from tests.history.story import LedgerStory, Story
from tests.history.violations import (
    BadFragments,
    ClosedBelowLac,
    IllegalTransition,
    LedgersAliased,
    NoProgress,
    RecoveriesDisagree,
)

_MOVES = {
    "OPEN": {"OPEN", "IN_RECOVERY", "CLOSED"},
    "IN_RECOVERY": {"IN_RECOVERY", "CLOSED"},
    "CLOSED": {"CLOSED"},
}


def closed_ledgers_keep_what_was_confirmed(story: Story) -> int:
    """P2: one closer among those who say that they closed, and no end below what a writer had confirmed."""
    looked = 0
    for ledger in story.ledgers.values():
        for closed in (seen for seen in ledger.metadata if seen.state == "CLOSED"):
            looked += 1
            if closed.last_entry < ledger.durable_to and all_in_reach(story, closed):
                raise ClosedBelowLac(
                    f"ledger {ledger.ledger} ends at {closed.last_entry}, and entry {ledger.durable_to} was confirmed",
                    closed,
                    *ledger.acknowledged[-3:],
                    *ledger.forced[-1:],
                )
        for mine in ledger.closed:
            for other in _ends(ledger):
                if (other.last_entry, other.length) != (mine.last_entry, mine.length):
                    raise ClosedBelowLac(f"ledger {ledger.ledger} was closed in two ways", mine, other)
    return looked


def _ends(ledger: LedgerStory) -> list[events.Closed | events.Recovered]:
    """Where clients were told that the ledger ends."""
    return [*ledger.recovered, *ledger.closed]


def fragments_are_valid(story: Story) -> int:
    """P5, of every record that anybody saw."""
    looked = 0
    for ledger in story.ledgers.values():
        for seen in ledger.metadata:
            looked += 1
            problem = fragment_problem(seen)
            if problem:
                raise BadFragments(f"ledger {ledger.ledger} version {seen.version}: {problem}", seen)
    return looked


def fragment_problem(seen: MetadataSeen) -> str | None:
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


def metadata_moves_forward(story: Story) -> int:
    """P6: one value a version, legal moves between versions, an end that stays. Where the store was watched, every
    version is there."""
    looked = 0
    for ledger in story.ledgers.values():
        before: MetadataSeen | None = None
        for alike in ledger.versions.values():
            looked += 1
            first = alike[0]
            for other in alike[1:]:
                if _value(other) != _value(first):
                    raise IllegalTransition(
                        f"ledger {ledger.ledger}: two values of version {first.version}", first, other
                    )
            if before is not None:
                problem = transition_problem(before, first)
                if problem:
                    raise IllegalTransition(f"ledger {ledger.ledger}: {problem}", before, first)
            before = first
        _no_version_is_skipped(ledger)
    return looked


def _value(seen: MetadataSeen) -> tuple[object, ...]:
    return seen.state, seen.sizes, seen.fragments, seen.last_entry, seen.length, seen.tag


def transition_problem(before: MetadataSeen, after: MetadataSeen) -> str | None:
    """What forbids `after` as a later version of `before`, with any number of changes between."""
    if after.state not in _MOVES[before.state]:
        return f"{before.state} became {after.state}"
    if before.state == "CLOSED" and (before.last_entry, before.length) != (after.last_entry, after.length):
        return f"the end of a closed ledger moved from {before.last_entry} to {after.last_entry}"
    if after.state != "CLOSED" and (after.last_entry, after.length) != (-1, 0):
        return f"{after.state} with last entry {after.last_entry} and length {after.length}"
    if before.sizes != after.sizes:
        return f"its sizes became {after.sizes}"
    if before.fragments[:-1] != after.fragments[: len(before.fragments) - 1]:
        return "a fragment before the last was changed"
    return None


def _no_version_is_skipped(ledger: LedgerStory) -> None:
    stored = [seen for seen in ledger.metadata if seen.client == events.STORE]
    for before, after in pairwise(stored):
        if after.version != before.version + 1:
            skipped = f"ledger {ledger.ledger}: version {before.version}, then {after.version}"
            raise IllegalTransition(skipped, before, after)


def recoveries_agree(story: Story) -> int:
    """P11."""
    looked = 0
    for ledger in story.ledgers.values():
        ends: list[events.Recovered | MetadataSeen] = [*ledger.recovered]
        ends += (seen for seen in ledger.metadata if seen.state == "CLOSED")
        for end in ends[1:]:
            looked += 1
            if (end.last_entry, end.length) != (ends[0].last_entry, ends[0].length):
                raise RecoveriesDisagree(f"ledger {ledger.ledger} has two ends", ends[0], end)
    return looked


def all_goes_on_once_healed(story: Story) -> int:
    """P12: after healing every ledger in reach has an end and is read whole, and what is appended is acknowledged."""
    if story.healed_at is None:
        return 0
    healed = story.history[story.healed_at].at
    looked = 0
    for ledger in story.kept_ledgers():
        newest = ledger.newest
        if newest is None or not all_in_reach(story, newest):
            continue
        looked += 1
        for failure in ledger.failures:
            if failure.at > healed and _begun_after(ledger, failure, healed):
                raise NoProgress(f"ledger {ledger.ledger}: {failure.error}", failure)
        _has_an_end(ledger, healed)
    return looked


def all_in_reach(story: Story, seen: MetadataSeen) -> bool:
    """Every write set of every fragment, whatever entries it has."""
    return all(story.in_reach(seen, first + offset) for first, _ in seen.fragments for offset in range(seen.sizes[0]))


def _begun_after(ledger: LedgerStory, failure: events.Event, healed: float) -> bool:
    """What was begun in bad times may fail in good ones."""
    if isinstance(failure, events.RecoveryFailed):
        return True
    return all(created.at > healed for created in ledger.created)


def _has_an_end(ledger: LedgerStory, healed: float) -> None:
    ends = [end for end in _ends(ledger) if end.at > healed]
    if not ends:
        raise NoProgress(f"ledger {ledger.ledger} was not closed after all was healed", *ledger.failures[-3:])
    end = ends[-1]
    read = {entry_id for done in ledger.reads if done.at > healed for entry_id in range(done.first, done.last + 1)}
    missing = sorted(set(range(end.last_entry + 1)) - read)
    if missing:
        raise NoProgress(
            f"ledger {ledger.ledger} was not read whole after all was healed: {missing[:5]} are missing",
            end,
            *ledger.read_failures[-3:],
        )


def ledgers_are_not_mixed_up(story: Story) -> int:
    """D1, and that an id is given once: a record carries the tag of the ledger that was created under its id."""
    looked = 0
    for ledger in story.ledgers.values():
        for other in ledger.created[1:]:
            raise LedgersAliased(f"ledger {ledger.ledger} was created twice", ledger.created[0], other)
        for created in ledger.created:
            for seen in ledger.metadata:
                looked += 1
                if seen.tag != created.tag:
                    raise LedgersAliased(f"ledger {ledger.ledger} shows the record of another", created, seen)
    return looked
