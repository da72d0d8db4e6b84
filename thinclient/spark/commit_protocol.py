"""How the sink writes exactly once, and what a reader of its ledgers counts as committed. Pure.

**What is written.** Each attempt of a task that has rows writes one ledger of its own and closes it when the last entry
is acknowledged. Its custom metadata say whose it is, from its creation on:

    bookgate.sink.query     the id of the streaming query; of a batch write its option `writeId`, or a random id
    bookgate.sink.batch     the number of the micro-batch; 0 for a batch write
    bookgate.sink.task      partition and attempt, for people

Query and batch together are called the *write* here. Spark retries tasks, runs two attempts of one at a time, kills
executors and drivers: so there may be more ledgers of a write than are meant, open or closed. Nor is a driver that was
superseded always dead: it may have stood still, at any step, and go on.

**Commit.** The driver gets the ledgers of the attempts that Spark chose. The one of the lowest id is the *lead*.

1. Each is read back: it must be closed and hold as many entries as its task wrote.
2. Each but the lead is *claimed*: a compare-and-set adds `bookgate.sink.claimed`, with the id of the lead. If one is
   gone, another driver took the write over.
3. All ledgers of the query are looked up. If they contain a marked one of this write, another driver committed it: what
   is in hand is deleted, the marks (5) that are missing are set, and that is all. Otherwise those of this write and of
   earlier ones that are not committed are left over and are deleted, each only at the version in which it was seen to
   be so, in ascending order of id: what is claimed goes after the lead that it is claimed for.
4. **The commit point**: one compare-and-set adds `bookgate.sink.committed` to the lead, with the ids of all the
   ledgers of the write. Before it nothing of the write is committed, after it everything is.
5. The same key is set on the others, with the id of the lead: for readers that don't see the lead, and so that they
   stay committed when the lead is deleted one day. Only then does Spark hear of success.

Whatever keeps a step from being known to have succeeded ends the commit, and abort follows: step 3 with nothing in
hand. It deletes nothing of a write whose commit point was passed, even if the answer was lost.

**Ids tell nothing of time.** Gateways hand them out in blocks of their own, so a ledger may have a lower id than one
that is older, and a listing that is under way may pass the id of a ledger before that is created. Relied upon is this:
changes of the store have an order; a listing shows every ledger that was there when it began and still is; nobody is
answered by a state older than what he was shown before. The lowest id is only a choice that everybody can repeat.

*At most one set of ledgers of a write is committed.* Take two drivers and their leads; one of the leads was created
first. The driver of the other begins step 3 after its own lead was created, so it is shown the first lead. If that is
marked by then it gives up. If not it must delete the lead at that version before its own commit point: if the delete
comes first, the commit point of the first driver finds no ledger; if the commit point comes first, the version has
changed, the delete fails, and whoever wanted it looks again and finds the mark. So both never pass. A request that is
carried out late, after its sender gave it up, is one of these compare-and-sets at its old version: it changes nothing
in the argument.

*What is committed was there, all of it.* A rival deletes a ledger at a version. Without claim: then the claim that
precedes the commit point fails. With claim: then the lead was gone before, and the commit point fails. That a ledger's
version moves with its claim would not be enough: a listing that has passed the id of the lead before it was created
shows the claimed ledger alone. So a lead that a claim names and the listing lacks is looked up by its id.

*It stays committed.* Deleted is what was seen uncommitted, at that version. A ledger of a committed write is marked, or
is named by its lead; if the listing lacks the lead, the claim names it. (A lead that somebody deletes before the marks
of step 5 are set takes those with it that lack theirs. A write of which somebody deletes every ledger was never
there: a driver that stood still for so long may commit it again.)

**Readers.** A ledger without these keys is no ledger of a sink: always read. Of the others (the sources' default):

* if the lead is known, a ledger counts if the lead does: the lead is committed and names it. A lead that a marked
  ledger names and the listing lacks is looked up; what a committed lead names and the listing has not shown as
  committed is read by id in the end. If the listing has shown the lead without its mark, nothing of the write counts.
  So a listing shows a write as a whole or not at all, at whatever moment;
* if the lead was deleted, a ledger counts if it has the key itself.

A stream doesn't list again what it has read; it remembers the leads among it, and after a restart looks them up. To it
a mark is enough: what else belongs to the write comes with the next look.

Ledgers that an earlier release committed have the same marks and are read the same; it set no claims, and two drivers
of which one is of an earlier release are no safer than two of those. It may have committed a write twice: then the lead
that is found first counts, by id.

Invariants, which the tests hold for every order of the steps of two drivers and a reader, and for arbitrary failures:
at most one set of ledgers of a write is ever committed; it is complete; what was committed stays so; a listing shows
all of a write or nothing; what is not committed is gone after the query's next commit.

Not here: the calls (`spark.writing.commit`), and Spark (`sink`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pyroaring import BitMap64

from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.spark.offsets import LedgerIds

QUERY_KEY = "bookgate.sink.query"
BATCH_KEY = "bookgate.sink.batch"
TASK_KEY = "bookgate.sink.task"
CLAIMED_KEY = "bookgate.sink.claimed"
COMMITTED_KEY = "bookgate.sink.committed"
KEYS_BEGIN_WITH = "bookgate.sink."


@dataclass(frozen=True, slots=True)
class Write:
    """What is committed as a whole: a micro-batch of a query, or a batch write."""

    query: str
    batch: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}"


def attempt_metadata(write: Write, task: str) -> dict[str, bytes]:
    """What a ledger says of itself from its creation on."""
    return {QUERY_KEY: write.query.encode(), BATCH_KEY: b"%d" % write.batch, TASK_KEY: task.encode()}


def ids_text(ids: Iterable[int]) -> str:
    """Ids as `1-4,7`."""
    runs = []
    for _, run in groupby(enumerate(sorted(set(ids))), lambda item: item[1] - item[0]):
        members = [ledger_id for _, ledger_id in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(runs)


def parse_ids(text: str) -> Iterator[tuple[int, int]]:
    """The runs of `ids_text`, first and last. Raises ValueError."""
    for run in text.split(","):
        first, _, last = run.partition("-")
        yield int(first), int(last or first)


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a ledger of a sink says of itself.

    `named`: the ids in its mark, as runs; empty without a mark. `claimed_for`: the lead that its claim names.
    """

    write: Write
    ledger_id: int
    named: tuple[tuple[int, int], ...] = ()
    claimed_for: int | None = None

    @property
    def marked(self) -> bool:
        return bool(self.named)

    @property
    def is_committed_lead(self) -> bool:
        return self.names(self.ledger_id)

    @property
    def lead(self) -> int:
        """The lead of a marked ledger."""
        return self.named[0][0]

    @property
    def named_ids(self) -> Iterator[int]:
        """The ids in the mark."""
        return (each for first, last in self.named for each in range(first, last + 1))

    def names(self, ledger_id: int) -> bool:
        """Whether the mark has this id."""
        return any(first <= ledger_id <= last for first, last in self.named)


def sink_state(record: LedgerRecord) -> SinkState | None:
    """None for a ledger that no sink wrote, or whose keys are not a sink's after all."""
    custom = record.metadata.custom_metadata
    if QUERY_KEY not in custom:
        return None
    try:
        write = Write(custom[QUERY_KEY].decode(), int(custom[BATCH_KEY]))
        named = tuple(parse_ids(custom[COMMITTED_KEY].decode())) if COMMITTED_KEY in custom else ()
        claimed_for = int(custom[CLAIMED_KEY]) if CLAIMED_KEY in custom else None
    except (KeyError, ValueError):
        return None
    return SinkState(write, record.ledger_id.low, named, claimed_for)


def with_claim(metadata: LedgerMetadata, lead: int) -> LedgerMetadata:
    """The metadata of a ledger that is to be committed by a lead."""
    return _with(metadata, CLAIMED_KEY, [lead])


def with_mark(metadata: LedgerMetadata, ids: Iterable[int]) -> LedgerMetadata:
    """The metadata of a ledger that is committed: of the lead with all ids, of the others with the lead's."""
    return _with(metadata, COMMITTED_KEY, ids)


def _with(metadata: LedgerMetadata, key: str, ids: Iterable[int]) -> LedgerMetadata:
    return replace(metadata, custom_metadata={**metadata.custom_metadata, key: ids_text(ids).encode()})


# Readers


class Committed:
    """Which ledgers count, by what was shown so far."""

    def __init__(self, leads: Iterable[SinkState] = ()) -> None:
        """`leads`: committed ones that are known already."""
        self._leads = {lead.write: lead for lead in leads}
        self._unmarked: set[tuple[Write, int]] = set()
        self._looked_up: set[int] = set()
        self._taken: Any = BitMap64()

    def show(self, records: Iterable[LedgerRecord]) -> None:
        """Takes in what ledgers say of themselves."""
        for record in records:
            state = sink_state(record)
            if state is None:
                continue
            if not state.marked:
                self._unmarked.add((state.write, state.ledger_id))
            elif state.is_committed_lead:
                self._leads.setdefault(state.write, state)

    def unknown_leads(self, records: Iterable[LedgerRecord]) -> list[int]:
        """The leads that marked ones of these records name and nobody has shown yet; each is told once."""
        states = [state for record in records if (state := sink_state(record)) is not None and state.marked]
        unknown = {
            state.lead
            for state in states
            if state.write not in self._leads and (state.write, state.lead) not in self._unmarked
        } - self._looked_up
        self._looked_up |= unknown
        return sorted(unknown)

    def counts(self, record: LedgerRecord) -> bool:
        """Whether a ledger that was shown is to be read."""
        state = sink_state(record)
        if state is None:
            return True
        lead = self._leads.get(state.write)
        if lead is not None:
            return lead.names(state.ledger_id)
        return state.marked and (state.write, state.lead) not in self._unmarked

    def take(self, records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """Those that count; `not_taken` does not tell them any more."""
        taken = [record for record in records if self.counts(record)]
        self._taken.update(record.ledger_id.low for record in taken if sink_state(record) is not None)
        return taken

    @property
    def leads(self) -> list[SinkState]:
        """The committed leads that are known."""
        return list(self._leads.values())

    def not_taken(self) -> list[int]:
        """What committed leads name and was not taken: committed while the listing was under way, or deleted."""
        named = BitMap64()
        for lead in self._leads.values():
            for first, last in lead.named:
                named.add_range(first, last + 1)
        return list(named - self._taken)


def committed(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    """The records of a listing that are to be read."""
    seen = Committed()
    seen.show(records)
    return seen.take(records)


# The driver


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the other ledgers of a query mean for a write that is about to be committed.

    `committed_by`: the write is committed already, this ledger says so. `unmarked`: committed ledgers whose mark is
    missing, with the id of their lead. `left_over`: to be deleted, in this order, up to the first that can't be.
    """

    committed_by: LedgerRecord | None
    unmarked: tuple[tuple[LedgerRecord, int], ...]
    left_over: tuple[LedgerRecord, ...]


def leads_not_shown(records: Iterable[LedgerRecord]) -> list[int]:
    """The leads that claims name and that are not among the records: to be looked up before `judge` is asked."""
    states = [state for record in records if (state := sink_state(record)) is not None]
    claimed_for = {state.claimed_for for state in states if state.claimed_for is not None and not state.marked}
    return sorted(claimed_for - {state.ledger_id for state in states})


def judge(records: Iterable[LedgerRecord], write: Write, own: Iterable[int] = ()) -> Verdict:
    """Of records of any ledgers, those of `write` and of the query's earlier ones; `own` are in hand.

    A lead that a claim names is among the records unless it is gone (`leads_not_shown`).
    """
    mine = set(own)
    states = {record.ledger_id: (record, state) for record in records if (state := _earlier(record, write)) is not None}
    leads = [state for _, state in states.values() if state.is_committed_lead]
    named_by = {(lead.write, each): lead.ledger_id for lead in leads for each in lead.named_ids}
    committed_by, unmarked, left_over = None, [], []
    for _, (record, state) in sorted(states.items()):
        lead = named_by.get((state.write, state.ledger_id))
        if state.marked:
            committed_by = committed_by or (record if state.write == write else None)
        elif lead is not None:
            unmarked.append((record, lead))
        elif state.ledger_id not in mine and state.claimed_for not in mine:
            left_over.append(record)
    # In ascending order: a lead has the lowest id of those that are claimed for it.
    return Verdict(committed_by, tuple(unmarked), tuple(left_over))


def settled(records: Iterable[LedgerRecord], write: Write, listed: LedgerIds) -> list[int]:
    """Of looked-up ledgers, whose missing marks were set, those of earlier writes that need no other look.

    A lead does as long as something that it names was not listed: a listing may have passed that before it was created.
    """
    found = []
    for record in records:
        state = _earlier(record, write)
        if state is None or not state.marked or state.write == write:
            continue
        if not state.is_committed_lead or all(each in listed for each in state.named_ids):
            found.append(state.ledger_id)
    return found


def _earlier(record: LedgerRecord, write: Write) -> SinkState | None:
    state = sink_state(record)
    if state is None or state.write.query != write.query or state.write.batch > write.batch:
        return None
    return state


def summary(counts: Mapping[int, int]) -> str:
    """Ledgers and entry counts, for the log."""
    entries = sum(counts.values())
    return f"{len(counts)} ledgers ({ids_text(counts)}), {entries} entries" if counts else "no entries"
