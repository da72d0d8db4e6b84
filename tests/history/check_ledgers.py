"""Checkers of a ledger's end and its identity: P2, P12 and D1. Each returns how much it looked at."""

from __future__ import annotations

from collections.abc import Collection

from tests.history import events
from tests.history.events import MetadataSeen
from tests.history.history_index import HistoryIndex, LedgerHistory
from tests.history.violations import ClosedBelowLac, LedgersAliased, NoProgress


def closed_ledgers_keep_what_was_confirmed(story: HistoryIndex) -> int:
    """P2: one closer among those who say that they closed, and no end below what a writer had confirmed."""
    looked = 0
    for ledger in story.ledgers.values():
        durable_to = ledger.durable_to
        for closed in (seen for seen in ledger.metadata if seen.state == "CLOSED"):
            looked += 1
            if closed.last_entry < durable_to and all_in_reach(story, closed):
                raise ClosedBelowLac(
                    f"ledger {ledger.ledger} ends at {closed.last_entry}, and entry {durable_to} was confirmed",
                    closed,
                    *ledger.acknowledged[-3:],
                    *ledger.forced[-1:],
                )
        for mine in ledger.closed:
            for other in _ends(ledger):
                if (other.last_entry, other.length) != (mine.last_entry, mine.length):
                    raise ClosedBelowLac(f"ledger {ledger.ledger} was closed in two ways", mine, other)
    return looked


def _ends(ledger: LedgerHistory) -> list[events.Closed | events.Recovered]:
    """Where clients were told that the ledger ends."""
    return [*ledger.recovered, *ledger.closed]


def all_goes_on_once_healed(story: HistoryIndex) -> int:
    """P12: after healing every ledger in reach has an end and is read whole, and what is appended is acknowledged.

    A bookie with a torn copy tells nobody whether there was an entry, so as to that ledger it is not in reach.
    """
    if story.healed_at is None or not story.over:
        return 0
    healed = story.history[story.healed_at].at
    looked = 0
    for ledger in story.kept_ledgers():
        newest = ledger.newest
        if newest is None or not all_in_reach(story, newest, story.torn_at(ledger.ledger)):
            continue
        looked += 1
        for failure in ledger.failures:
            if failure.at > healed and _begun_after(ledger, failure, healed):
                raise NoProgress(f"ledger {ledger.ledger}: {failure.error}", failure)
        _has_an_end(ledger, healed)
    return looked


def all_in_reach(story: HistoryIndex, seen: MetadataSeen, without: Collection[str] = ()) -> bool:
    """Every write set of every fragment, whatever entries it has."""
    first_ids = (first + offset for first, _ in seen.fragments for offset in range(seen.sizes[0]))
    return all(story.in_reach(seen, entry_id, without) for entry_id in first_ids)


def _begun_after(ledger: LedgerHistory, failure: events.Event, healed: float) -> bool:
    """What was begun in bad times may fail in good ones."""
    if isinstance(failure, events.RecoveryFailed):
        return any(asked.client == failure.client and asked.at > healed for asked in ledger.recoveries_asked)
    return all(created.at > healed for created in ledger.created)


def _has_an_end(ledger: LedgerHistory, healed: float) -> None:
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


def ledgers_are_not_mixed_up(story: HistoryIndex) -> int:
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
