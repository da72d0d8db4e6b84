"""The sink's protocol: how it writes exactly once, and which of its ledgers a reader counts as committed. Pure.

**What is written.** Each attempt of a task that has rows writes one ledger of its own and closes it when the last entry
is acknowledged. From its creation on, the ledger's custom metadata identify its origin:

    bookgate.sink.query     the id of the streaming query; of a batch write its option `writeId`, or a random id
    bookgate.sink.batch     the number of the micro-batch; 0 for a batch write
    bookgate.sink.task      partition and attempt, for people

Query and batch together are called the *write* here. Spark retries tasks, runs two attempts of one at a time, and kills
executors and drivers: so a write may have more ledgers than intended, open or closed. A driver that was superseded need
not be dead either: it may have been suspended at any step, and resume.

**Commit.** Spark gives the driver the ledgers of the attempts that it chose. The one with the lowest id is the *lead*.

1. Each is read back: it must be closed and hold as many entries as its task wrote.
2. Each except the lead is *claimed*: a compare-and-set adds `bookgate.sink.claimed`, with the id of the lead. If one of
   them is gone, another driver has taken the write over.
3. All ledgers of the query are looked up. If they contain a marked one of this write, another driver has committed it:
   the driver deletes its own ledgers, sets the marks (step 5) that are missing, and is done. If a later write of the
   query is committed, the commit fails: the query's checkpoint is an older copy, so the rows of this write need not be
   those that are committed under its number. Otherwise it deletes every
   uncommitted ledger of this write and of earlier ones, each only at the version at which it was seen uncommitted, in
   ascending order of id: a claimed ledger is deleted after the lead for which it is claimed.
4. **The commit point**: one compare-and-set adds `bookgate.sink.committed` to the lead, with the ids of all the ledgers
   of the write. Before it nothing of the write is committed, after it everything is.
5. The same key is set on the others, with the id of the lead: for readers that do not see the lead, and so that they
   stay committed if the lead is deleted one day. Only then is success reported to Spark.

If a step is not known to have succeeded, the commit ends and abort follows: step 3 without ledgers of its own. Abort
deletes nothing of a write whose commit point was passed, even if the response was lost.

**Ids say nothing about time.** Gateways allocate ids from blocks of their own, so a ledger may have a lower id than an
older one, and a running listing may pass the id of a ledger before that ledger is created. The protocol relies on this:
changes in the store are ordered; a listing shows every ledger that existed when it began and still exists; no client is
shown a state older than one it was shown before. The lowest id is only a choice that every driver can repeat.

*At most one set of ledgers of a write is committed.* Take two drivers and their leads; one of the leads was created
first. The driver of the other lead begins step 3 after creating its own lead, so its listing shows the first lead. If
the first lead is marked by then, this driver gives up. If not, it must delete the first lead at that version before its
own commit point. If the delete comes first, the commit point of the first driver finds no ledger. If the commit point
comes first, the version has changed, the delete fails, and the second driver looks again and finds the mark. So both
never pass. A request that is carried out late, after its sender gave it up, is one of these compare-and-sets at its old
version: it changes nothing in the argument.

*A committed write was complete.* A rival deletes a ledger at a version. If that version has no claim, the claim that
precedes the commit point fails. If it has one, the lead was deleted before it, and the commit point fails. The version
change made by the claim would not be enough: a listing that passed the id of the lead before the lead was created shows
the claimed ledger alone. Therefore a lead that a claim names and the listing lacks is looked up by its id.

*It stays committed.* Only ledgers that were seen uncommitted are deleted, at the version seen. A ledger of a committed
write is marked, or is named by its lead; if the listing lacks the lead, the claim names it. (If somebody deletes a lead
before the marks of step 5 are set, the unmarked ledgers of the write are lost with it. If somebody deletes every ledger
of a write, the write never happened: a driver suspended for that long may commit it again.)

**Readers.** A ledger without these keys was not written by a sink and is always read. For the others (the sources'
default):

* if the lead is known, a ledger counts if the lead is committed and names it. A lead that a mark or a claim names and
  the listing, or a selection, lacks is looked up: between steps 4 and 5 a driver may die, and no later commit of the
  query may set the marks. Ledgers that a committed lead names and the listing has not shown as committed are looked up
  at the end, and read if they are of the lead's write. If the listing has shown the lead without its mark, nothing of
  the write counts. So a listing shows a write as a whole or not at all, at whatever moment;
* if the lead was deleted, a ledger counts if it has the key itself.

A stream does not list again what it has read; it remembers the leads among those ledgers, and after a restart looks
them up. For a stream a mark is enough: the other ledgers of the write arrive at the next look.

**Owners.** Whoever may create ledgers may give them any of these keys, with the query of another. Where gateways note
the owner of a ledger, which no client can forge, a mark speaks for ledgers of the same owner only: for readers, and in
step 3. If only a ledger of another owner says that the write is committed, the commit fails: the driver can't tell a
forged mark from a commit under earlier credentials, so it neither takes its rows for written nor writes them again, and
what another owner's commit names is not left over. All ledgers of a write have one owner. A mark that names more than
`MOST_NAMED` ledgers is no mark. Where all marks together name more ledgers that a listing has not shown as committed, a
reader lists the ids once more and looks up those that exist: all ledgers of a committed write that is not deleted do.
So whatever marks are forged, a reader looks up no more ledgers than there are, and passes over no part of a write.

**Scopes.** All ledgers of a query are in one scope, and what is said of ids holds for their lower halves. They are
written into marks and compared without sign, as the store lists them.

Ledgers that an earlier release committed have the same marks and are read in the same way. Earlier releases set no
claims, and if one of two drivers is of an earlier release, the pair is no safer than two such drivers. They may have
committed a write twice: then the lead that is found first counts, by id.

Invariants, which the tests hold for every order of the steps of two drivers and a reader, and for arbitrary failures:
at most one set of ledgers of a write is ever committed; it is complete; what was committed stays committed; a listing
shows all of a write or nothing; uncommitted ledgers are gone after the query's next commit.

Not its job: the calls (`spark.writing.commit`), and Spark (`sink`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pyroaring import BitMap64

from bookgate.ledger.id_set import signed, unsigned
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.spark.offsets import LedgerIds

QUERY_KEY = "bookgate.sink.query"
BATCH_KEY = "bookgate.sink.batch"
TASK_KEY = "bookgate.sink.task"
CLAIMED_KEY = "bookgate.sink.claimed"
COMMITTED_KEY = "bookgate.sink.committed"
KEYS_BEGIN_WITH = "bookgate.sink."

MOST_NAMED = 1 << 20
"""The most ledgers of a write; a mark that names more was made by no sink, and would take a reader's memory. Also the
most that a reader looks up without knowing that they exist.
"""
_IDS = 1 << 64
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Write:
    """The unit of commit: a micro-batch of a query, or a batch write."""

    query: str
    batch: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}"


def attempt_metadata(write: Write, task: str) -> dict[str, bytes]:
    """The custom metadata of an attempt's ledger, set at its creation."""
    return {QUERY_KEY: write.query.encode(), BATCH_KEY: b"%d" % write.batch, TASK_KEY: task.encode()}


def ids_text(ids: Iterable[int]) -> str:
    """Ids as `1-4,7`, unsigned."""
    runs = []
    for _, run in groupby(enumerate(sorted(set(map(unsigned, ids)))), lambda item: item[1] - item[0]):
        members = [ledger_id for _, ledger_id in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(runs)


def parse_ids(text: str) -> Iterator[tuple[int, int]]:
    """The runs in the output of `ids_text`, as (first, last), unsigned. Raises ValueError."""
    for run in text.split(","):
        first, _, last = run.partition("-")
        yield int(first), int(last or first)


Origin = tuple[Write, bytes]
"""A write, and the owner of its ledgers."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """The sink's keys in a ledger's custom metadata. All ids in it are unsigned.

    `named`: the ids in its mark, as runs; empty without a mark. `claimed_for`: the lead that its claim names. `owner`:
    the principal that made the ledger, as the gateway has noted it; empty without one.
    """

    write: Write
    ledger_id: int
    named: tuple[tuple[int, int], ...] = ()
    claimed_for: int | None = None
    owner: bytes = b""

    @property
    def origin(self) -> Origin:
        """What a ledger's mark can speak for."""
        return self.write, self.owner

    @property
    def said_lead(self) -> int | None:
        """The lead that the mark names, or the claim."""
        return self.lead if self.marked else self.claimed_for

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
        """Whether the mark contains this id."""
        return any(first <= ledger_id <= last for first, last in self.named)


def sink_state(record: LedgerRecord) -> SinkState | None:
    """The ledger's sink state; None if no sink wrote it, or its keys are not valid sink keys."""
    custom = record.metadata.custom_metadata
    if QUERY_KEY not in custom:
        return None
    try:
        write = Write(custom[QUERY_KEY].decode(), int(custom[BATCH_KEY]))
        named = tuple(parse_ids(custom[COMMITTED_KEY].decode())) if COMMITTED_KEY in custom else ()
        claimed_for = int(custom[CLAIMED_KEY]) if CLAIMED_KEY in custom else None
    except (KeyError, ValueError):
        return None
    if not _are_ids(named) or not (claimed_for is None or 0 <= claimed_for < _IDS):
        return None
    return SinkState(write, unsigned(record.ledger_id.low), named, claimed_for, owner_of(record))


def owner_of(record: LedgerRecord) -> bytes:
    """The principal that made the ledger, as the gateway has noted it; empty without one."""
    return record.metadata.custom_metadata.get(OWNER_KEY, b"")


def _are_ids(runs: Sequence[tuple[int, int]]) -> bool:
    """Whether these are runs of as many ids as a write may have."""
    return all(0 <= first <= last < _IDS for first, last in runs) and (
        sum(last - first + 1 for first, last in runs) <= MOST_NAMED
    )


def with_claim(metadata: LedgerMetadata, lead: int) -> LedgerMetadata:
    """The metadata with a claim for `lead`."""
    return _with(metadata, CLAIMED_KEY, [lead])


def with_mark(metadata: LedgerMetadata, ids: Iterable[int]) -> LedgerMetadata:
    """The metadata with the mark of a committed ledger; `ids` are all ids for the lead, the lead's id for the
    others.
    """
    return _with(metadata, COMMITTED_KEY, ids)


def _with(metadata: LedgerMetadata, key: str, ids: Iterable[int]) -> LedgerMetadata:
    return replace(metadata, custom_metadata={**metadata.custom_metadata, key: ids_text(ids).encode()})


# Readers


class Committed:
    """Which ledgers count, according to the records shown so far."""

    def __init__(self, leads: Iterable[SinkState] = ()) -> None:
        """`leads`: committed leads that are already known."""
        self._leads = {lead.origin: lead for lead in leads}
        self._unmarked: set[tuple[Origin, int]] = set()
        self._looked_up: set[tuple[Origin, int]] = set()
        self._taken: Any = BitMap64()

    def show(self, records: Iterable[LedgerRecord]) -> None:
        """Takes note of the sink state of these ledgers."""
        for record in records:
            state = sink_state(record)
            if state is None:
                continue
            if not state.marked:
                self._unmarked.add((state.origin, state.ledger_id))
            elif state.is_committed_lead:
                self._leads.setdefault(state.origin, state)

    def unknown_leads(self, records: Iterable[LedgerRecord]) -> list[int]:
        """The leads that marks and claims of these records name and that were not shown yet; each is returned once for
        each origin: a lead that another origin named may not have existed by then.
        """
        states = [state for record in records if (state := sink_state(record)) is not None]
        unknown = {
            (state.origin, lead)
            for state in states
            if (lead := state.said_lead) is not None
            and state.origin not in self._leads
            and (state.origin, lead) not in self._unmarked
        } - self._looked_up
        self._looked_up |= unknown
        return list(map(signed, sorted({lead for _, lead in unknown})))

    def counts(self, record: LedgerRecord) -> bool:
        """Whether a ledger that was shown is to be read."""
        state = sink_state(record)
        if state is None:
            return True
        lead = self._leads.get(state.origin)
        if lead is not None:
            return lead.names(state.ledger_id)
        return state.marked and (state.origin, state.lead) not in self._unmarked

    def take(self, records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """The records that count; `not_taken` no longer returns them if they are of sinks."""
        taken = [record for record in records if self.counts(record)]
        self._taken.update(unsigned(record.ledger_id.low) for record in taken if sink_state(record) is not None)
        return taken

    @property
    def leads(self) -> list[SinkState]:
        """The committed leads known so far."""
        return list(self._leads.values())

    def not_taken(self, selected: Iterable[int] | None = None, first: int = _LEAST, last: int = _GREATEST) -> list[int]:
        """Ids from `first` to `last` that committed leads name and that were not taken: committed while the listing
        ran, or deleted. If `selected` is given, only ids in it.
        """
        only = None if selected is None else BitMap64(map(unsigned, selected))
        named = BitMap64()
        for lacking in self._lacking(first, last):
            named |= lacking if only is None else lacking & only
        return list(map(signed, named))

    def count_not_taken(self, first: int = _LEAST, last: int = _GREATEST) -> int:
        """How many ids `not_taken` returns at most: an id that several leads name counts for each."""
        return sum(map(len, self._lacking(first, last)))

    def take_named(self, records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """The records that count, of ledgers that `not_taken` returned: those that the lead of their own origin names.

        A lead may name ledgers of any owner, also ledgers that no sink wrote and that the listing has shown.
        """
        states = ((record, sink_state(record)) for record in records)
        return self.take(record for record, state in states if state is not None and state.origin in self._leads)

    def _lacking(self, first: int, last: int) -> Iterator[Any]:
        """For each lead the ids between these that it names and that were not taken, as a bitmap."""
        wanted = _unsigned_runs(first, last)
        for lead in self._leads.values():
            named = BitMap64()
            for low, high in ((max(a, c), min(b, d)) for a, b in lead.named for c, d in wanted):
                if low <= high:
                    # The end of a range of a bitmap is exclusive, and has 64 bits as ids have.
                    named.add_range(low, high)
                    named.add(high)
            yield named - self._taken


def _unsigned_runs(first: int, last: int) -> list[tuple[int, int]]:
    """The signed ids from `first` to `last` as runs of unsigned ones."""
    if first < 0 <= last:
        return [(0, last), (unsigned(first), _IDS - 1)]
    return [(unsigned(first), unsigned(last))]


def committed(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    """The records of a listing that are to be read."""
    seen = Committed()
    seen.show(records)
    return seen.take(records)


# The driver


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequences of a query's other ledgers for a write that is about to be committed.

    `committed_by`: a ledger that shows that the write is committed already. `unmarked`: committed ledgers whose mark is
    missing, with the id of their lead. `left_over`: to be deleted in this order, up to the first that can't be deleted.
    `disputed_by`: a ledger of another owner that says that the write is committed, and none of the own owner does.
    `overtaken_by`: a committed ledger of the own owner, and of a later write of the query.
    """

    committed_by: LedgerRecord | None
    unmarked: tuple[tuple[LedgerRecord, int], ...]
    left_over: tuple[LedgerRecord, ...]
    disputed_by: LedgerRecord | None = None
    overtaken_by: LedgerRecord | None = None


def leads_not_shown(records: Iterable[LedgerRecord]) -> list[int]:
    """The leads that claims name and that are missing among the records: look them up before calling `judge`."""
    states = [state for record in records if (state := sink_state(record)) is not None]
    claimed_for = {state.claimed_for for state in states if state.claimed_for is not None and not state.marked}
    return list(map(signed, sorted(claimed_for - {state.ledger_id for state in states})))


def judge(
    records: Sequence[LedgerRecord], write: Write, own: Iterable[int] = (), owner: bytes | None = None
) -> Verdict:
    """The verdict for `write`. `records` may be of any ledgers; those of `write` and of the query's earlier writes
    count, and with an owner its later ones.

    `own` are the ids of the caller's own ledgers, and `owner` is theirs: they may be deleted by now. Without an owner
    the mark of any counts. A lead that a claim names must be among the records unless it was deleted
    (`leads_not_shown`).
    """
    mine = set(map(unsigned, own))
    states = {record.ledger_id: (record, state) for record in records if (state := _earlier(record, write)) is not None}
    leads = defaultdict[Write, list[SinkState]](list)
    for _, state in states.values():
        if state.is_committed_lead:
            leads[state.write].append(state)
    committed_by, disputed_by, unmarked, left_over = None, None, [], []
    for _, (record, state) in sorted(states.items()):
        named_by = [lead for lead in leads[state.write] if lead.names(state.ledger_id)]
        lead = next((lead.ledger_id for lead in named_by if lead.owner == state.owner), None)
        if state.marked and state.write == write and owner not in (None, state.owner):
            disputed_by = disputed_by or record
        elif state.marked:
            committed_by = committed_by or (record if state.write == write else None)
        elif lead is not None:
            unmarked.append((record, signed(lead)))
        elif not named_by and state.ledger_id not in mine and state.claimed_for not in mine:
            # Named by another owner's lead it stays: nobody can tell whether it is part of that commit.
            left_over.append(record)
    disputed_by = disputed_by if committed_by is None else None
    # In ascending order: a lead has the lowest id of those that are claimed for it.
    return Verdict(committed_by, tuple(unmarked), tuple(left_over), disputed_by, _overtaken_by(records, write, owner))


def _overtaken_by(records: Iterable[LedgerRecord], write: Write, owner: bytes | None) -> LedgerRecord | None:
    """A ledger of the owner that shows that a later write of the query is committed."""
    for record in records:
        state = sink_state(record)
        if state is None or not state.marked or state.owner != owner:
            continue
        if state.write.query == write.query and state.write.batch > write.batch:
            return record
    return None


def goes_after(record: LedgerRecord, kept: Container[int]) -> bool:
    """Whether a left-over ledger has to stay because its lead, which must be deleted first, is one of those that stay.

    `kept` are unsigned ids. Without the ledger the driver of that lead would commit a part of its write.
    """
    state = sink_state(record)
    return state is not None and state.claimed_for in kept


def settled(records: Iterable[LedgerRecord], write: Write, listed: LedgerIds) -> list[int]:
    """Ids of those looked-up ledgers of earlier writes that need not be looked up again. Their missing marks must have
    been set.

    A lead must be looked up again as long as a ledger that it names was not listed: a listing may have passed that id
    before the ledger was created.
    """
    found = []
    for record in records:
        state = _earlier(record, write)
        if state is None or not state.marked or state.write == write:
            continue
        if not state.is_committed_lead or all(each in listed for each in state.named_ids):
            found.append(signed(state.ledger_id))
    return found


def _earlier(record: LedgerRecord, write: Write) -> SinkState | None:
    state = sink_state(record)
    if state is None or state.write.query != write.query or state.write.batch > write.batch:
        return None
    return state


def summary(counts: Mapping[int, int]) -> str:
    """Ledgers and their entry counts, as text for the log."""
    entries = sum(counts.values())
    return f"{len(counts)} ledgers ({ids_text(counts)}), {entries} entries" if counts else "no entries"
