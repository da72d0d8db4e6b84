"""How the sink writes exactly once, and what a reader of its ledgers counts as committed. Pure.

**What is written.** Each attempt of a task that has rows writes one ledger of its own and closes it when the last entry
is acknowledged. Its custom metadata say whose it is, from its creation on:

    bookgate.sink.query     the id of the streaming query; of a batch write its option `writeId`, or a random id
    bookgate.sink.batch     the number of the micro-batch; 0 for a batch write
    bookgate.sink.task      partition and attempt, for people

Query and batch together are called the *write* here. Spark retries tasks, runs two attempts of one at a time, kills
executors and drivers: so there may be more ledgers of a write than are meant, open or closed.

**Commit.** The driver gets the ledgers of the attempts that Spark chose. The one of the lowest id is the *lead*.

1. Each is read back: it must be closed and hold as many entries as its task wrote.
2. The other ledgers of the query are looked up. If they contain a marked one of this write, an earlier driver
   committed it and died before Spark noted so: what is in hand is deleted, the marks (4) that are missing are set, and
   that is all. Otherwise those of this write and of earlier ones that are not committed are left over and are deleted,
   in ascending order of id, each only at the version in which it was seen to be uncommitted.
3. **The commit point**: one compare-and-set adds `bookgate.sink.committed` to the lead, with the ids of all the
   ledgers of the write. Before it nothing of the write is committed, after it everything is.
4. The same key is set on the others, with the id of the lead: for readers that don't see the lead, and so that they
   stay committed when the lead is deleted one day. Only then does Spark hear of success.

Why two drivers can't both commit a write: each deletes the other's ledgers before its own commit point, the lead first,
since no ledger of that driver has a lower id. If the delete comes first, the other's compare-and-set fails; if the
compare-and-set comes first, the version has changed, the delete fails, and whoever wanted it sees that it came second.
For the same reason abort deletes nothing of a write whose commit point was passed, even if the answer was lost.

**Readers.** A ledger without these keys is no ledger of a sink: always read. Of the others (the sources' default):

* if the lead was seen in the same listing, a ledger counts if the lead does: the lead is committed and names it. A
  listing is in ascending order of id, and whatever a committed lead names was closed before; what it names and the
  listing lacks is read by id. So a listing shows a write as a whole or not at all, at whatever moment;
* if not (a read of some ids only, or the lead was deleted), it counts if it has the key itself.

A stream doesn't list again what it has read; it remembers the leads among it, and after a restart looks them up.

Invariants, which the tests hold for arbitrary failures: at most one set of ledgers of a write is ever committed; what
was committed stays so; a listing shows all of a write or nothing; what is not committed is gone after the query's next
commit.

Not here: the calls (`sink_commit`), and Spark (`sink`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pyroaring import BitMap64

from ledger.manager import LedgerRecord
from ledger.metadata import LedgerMetadata

QUERY_KEY = "bookgate.sink.query"
BATCH_KEY = "bookgate.sink.batch"
TASK_KEY = "bookgate.sink.task"
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
    """What a ledger of a sink says of itself. `named`: the ids in its mark, as runs; empty without a mark."""

    write: Write
    ledger_id: int
    named: tuple[tuple[int, int], ...] = ()

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
    except (KeyError, ValueError):
        return None
    return SinkState(write, record.ledger_id.ledger_id, named)


def with_mark(metadata: LedgerMetadata, ids: Iterable[int]) -> LedgerMetadata:
    """The metadata of a ledger that is committed: of the lead with all ids, of the others with the lead's."""
    return replace(metadata, custom_metadata={**metadata.custom_metadata, COMMITTED_KEY: ids_text(ids).encode()})


# Readers


class Committed:
    """Which ledgers count, by what a listing showed so far. Leads are shown before what they lead."""

    def __init__(self, leads: Iterable[SinkState] = ()) -> None:
        """`leads`: committed ones that are known already."""
        self._leads = {lead.write: lead for lead in leads}
        self._unmarked: set[tuple[Write, int]] = set()
        self._seen: Any = BitMap64()

    def show(self, records: Iterable[LedgerRecord]) -> None:
        """Takes in what ledgers say of themselves."""
        for record in records:
            state = sink_state(record)
            if state is None:
                continue
            self._seen.add(state.ledger_id)
            if not state.marked:
                self._unmarked.add((state.write, state.ledger_id))
            elif state.is_committed_lead:
                self._leads[state.write] = state

    def counts(self, record: LedgerRecord) -> bool:
        """Whether a ledger that was shown is to be read."""
        state = sink_state(record)
        if state is None:
            return True
        lead = self._leads.get(state.write)
        if lead is not None:
            return lead.names(state.ledger_id)
        return state.marked and (state.write, state.lead) not in self._unmarked

    @property
    def leads(self) -> list[SinkState]:
        """The committed leads that are known."""
        return list(self._leads.values())

    def absent(self) -> list[int]:
        """What committed leads name and was not shown: made while the listing was under way, or deleted."""
        named = BitMap64()
        for lead in self._leads.values():
            for first, last in lead.named:
                named.add_range(first, last + 1)
        return list(named - self._seen)


def committed(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    """The records of a listing that are to be read."""
    seen = Committed()
    seen.show(records)
    return [record for record in records if seen.counts(record)]


# The driver


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the other ledgers of a query mean for a write that is about to be committed.

    `committed_by`: the write is committed already, this ledger says so. `unmarked`: committed ledgers whose mark is
    missing, with the id of their lead. `left_over`: to be deleted, in this order.
    """

    committed_by: LedgerRecord | None
    unmarked: tuple[tuple[LedgerRecord, int], ...]
    left_over: tuple[LedgerRecord, ...]


def judge(records: Iterable[LedgerRecord], write: Write, own: Iterable[int] = ()) -> Verdict:
    """Of records of any ledgers, those of `write` and of the query's earlier ones; `own` are in hand."""
    mine = set(own)
    states = {record.ledger_id: (record, state) for record in records if (state := _earlier(record, write)) is not None}
    leads = {state.write: state for _, state in states.values() if state.is_committed_lead}
    committed_by, unmarked, left_over = None, [], []
    for _, (record, state) in sorted(states.items()):
        lead = leads.get(state.write)
        if state.marked:
            committed_by = committed_by or (record if state.write == write else None)
        elif lead is not None and lead.names(state.ledger_id):
            unmarked.append((record, lead.ledger_id))
        elif state.ledger_id not in mine:
            left_over.append(record)
    return Verdict(committed_by, tuple(unmarked), tuple(left_over))


def _earlier(record: LedgerRecord, write: Write) -> SinkState | None:
    state = sink_state(record)
    if state is None or state.write.query != write.query or state.write.batch > write.batch:
        return None
    return state


def summary(counts: Mapping[int, int]) -> str:
    """Ledgers and entry counts, for the log."""
    entries = sum(counts.values())
    return f"{len(counts)} ledgers ({ids_text(counts)}), {entries} entries" if counts else "no entries"
