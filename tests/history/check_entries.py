"""Checkers of what is in ledgers: P1, P3 and P4. Each returns how many things it looked at, or raises."""

from __future__ import annotations

from tests.history import events
from tests.history.history_index import HistoryIndex, LedgerHistory, ensemble_of
from tests.history.violations import (
    AcknowledgedEntryLost,
    FragmentNotReplicated,
    LedgerNotReplicated,
    OutOfOrder,
    TooFewCopies,
)


def acknowledged_entries_are_readable(story: HistoryIndex) -> int:
    """P1: in what was read at any time, in what reads failed once all was healed, and in what bookies hold."""
    looked = 0
    for ledger in story.ledgers.values():
        looked += _reads_agree(ledger)
        if not ledger.delete_asked:
            looked += _readable_after_healing(story, ledger) + _durable_copies_exist(story, ledger)
    return looked


def _reads_agree(ledger: LedgerHistory) -> int:
    looked = 0
    for read in ledger.reads:
        for entry_id, content in enumerate(read.contents, read.first):
            acknowledged = ledger.acknowledged_contents.get(entry_id)
            if acknowledged is None:
                continue
            looked += 1
            wanted = ledger.content_of(acknowledged)
            if content != wanted:
                raise AcknowledgedEntryLost(
                    f"ledger {ledger.ledger}: entry {entry_id} was acknowledged as {wanted} and read as {content}",
                    acknowledged,
                    read,
                )
    return looked


def _readable_after_healing(story: HistoryIndex, ledger: LedgerHistory) -> int:
    if story.healed_at is None:
        return 0
    healed = story.history[story.healed_at].at
    newest = ledger.newest
    for failure in ledger.read_failures:
        asked_at = failure.at if failure.asked_at is None else failure.asked_at
        if asked_at <= healed or not failure.confirmed or newest is None:
            continue
        if all(story.in_reach(newest, entry_id) for entry_id in range(failure.first, failure.last + 1)):
            raise AcknowledgedEntryLost(
                f"ledger {ledger.ledger}: entries {failure.first} to {failure.last} can't be read though all is healed",
                failure,
            )
    return len(ledger.read_failures)


def _durable_copies_exist(story: HistoryIndex, ledger: LedgerHistory) -> int:
    newest = ledger.newest
    if newest is None or not story.holdings:
        return 0
    looked, durable_to = 0, ledger.durable_to
    for acknowledged in ledger.acknowledged:
        if acknowledged.entry_id > durable_to:
            continue
        looked += 1
        content = ledger.content_of(acknowledged)
        if _copies(story, ledger, newest, acknowledged.entry_id, content) < newest.sizes[2]:
            raise AcknowledgedEntryLost(
                f"ledger {ledger.ledger}: fewer than {newest.sizes[2]} of {_ensemble(newest, acknowledged.entry_id)} "
                f"hold acknowledged entry {acknowledged.entry_id}: {content}",
                acknowledged,
                newest,
            )
    return looked


def _ensemble(seen: events.MetadataSeen, entry_id: int) -> str:
    return ", ".join(ensemble_of(seen, entry_id))


def _copies(
    story: HistoryIndex, ledger: LedgerHistory, seen: events.MetadataSeen, entry_id: int, content: str | None = None
) -> int:
    """Bookies that hold the entry; those whose data are lost, or that nobody looked at, may have held it."""
    copies = 0
    for bookie in ensemble_of(seen, entry_id):
        held = story.holdings.get(bookie)
        if held is None or bookie in story.lost_bookies:
            copies += 1
            continue
        found = held.get(ledger.ledger, {}).get(entry_id)
        copies += found is not None and (content is None or found == content)
    return copies


def closed_ledgers_have_their_copies(story: HistoryIndex) -> int:
    """P3."""
    if not story.holdings:
        return 0
    looked = 0
    for ledger in story.kept_ledgers():
        newest = ledger.newest
        if newest is None or newest.state != "CLOSED":
            continue
        for entry_id in range(newest.last_entry + 1):
            looked += 1
            if _copies(story, ledger, newest, entry_id) < newest.sizes[2]:
                raise TooFewCopies(
                    f"ledger {ledger.ledger}: fewer than {newest.sizes[2]} of {_ensemble(newest, entry_id)} hold "
                    f"entry {entry_id} of 0 to {newest.last_entry}",
                    newest,
                )
    return looked


def guaranteed_ledgers_are_fully_replicated(story: HistoryIndex) -> int:
    """G1 and G2, of ordinary ledgers with a guaranteed write quorum."""
    if not story.holdings:
        return 0
    looked = 0
    for ledger in story.kept_ledgers():
        newest = ledger.newest
        if newest is None or not ledger.guaranteed:
            continue
        closed = newest.state == "CLOSED"
        end = newest.last_entry + 1 if closed else newest.fragments[-1][0]
        for entry_id in range(end):
            looked += 1
            if _copies(story, ledger, newest, entry_id) < newest.sizes[1]:
                raise (LedgerNotReplicated if closed else FragmentNotReplicated)(
                    f"ledger {ledger.ledger}: not all of {_ensemble(newest, entry_id)} hold entry {entry_id} of 0 to "
                    f"{end - 1}",
                    newest,
                )
    return looked


def entries_keep_their_order(story: HistoryIndex) -> int:
    """P4: what is read, and what bookies hold, is what was appended, each once, in the order of the calls.

    A torn copy (`HistoryIndex.is_torn`) is not what was appended, and need not be: its digest tells.
    """
    looked = 0
    stored: dict[str, dict[int, set[str]]] = {}
    for bookie, held in story.holdings.items():
        for name, entries in held.items() if bookie not in story.lost_bookies else ():
            for entry_id, content in entries.items():
                if not story.is_torn(bookie, name, entry_id, content):
                    stored.setdefault(name, {}).setdefault(entry_id, set()).add(content)
    for ledger in story.ledgers.values():
        if not ledger.created:
            continue  # somebody else's: nobody knows what was appended
        order = _Order(ledger)
        for read in ledger.reads:
            for entry_id, content in enumerate(read.contents, read.first):
                order.take(entry_id, content, read)
        if not ledger.delete_asked:
            for entry_id, contents in stored.get(ledger.ledger, {}).items():
                for content in sorted(contents):
                    order.take(entry_id, content, None)
        looked += order.check()
    return looked


class _Order:
    """The appends that stand at the ids of one ledger."""

    def __init__(self, ledger: LedgerHistory) -> None:
        self._ledger = ledger
        self._appends = {asked.content: asked for asked in ledger.asked.values()}
        self._found: dict[int, events.AppendAsked] = {}

    def take(self, entry_id: int, content: str, read: events.ReadDone | None) -> None:
        shown = () if read is None else (read,)
        where = f"ledger {self._ledger.ledger}: entry {entry_id}"
        asked = self._appends.get(content)
        if asked is None:
            raise OutOfOrder(f"{where} is {content}, which nobody appended to it", *shown)
        if asked.entry_id not in (-1, entry_id):
            raise OutOfOrder(f"{where} is {content}, appended as entry {asked.entry_id}", asked, *shown)
        before = self._found.setdefault(entry_id, asked)
        if before is not asked:
            raise OutOfOrder(f"{where} is {content} here and {before.content} there", before, asked, *shown)

    def check(self) -> int:
        if any(created.advanced for created in self._ledger.created):
            return len(self._found)
        last: events.AppendAsked | None = None
        for _, asked in sorted(self._found.items()):
            if last is not None and asked.append <= last.append:
                raise OutOfOrder(f"ledger {self._ledger.ledger}: {asked.content} comes after {last.content}")
            last = asked
        return len(self._found)
