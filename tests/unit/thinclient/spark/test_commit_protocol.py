"""The sink's protocol: decisions by examples, and whole writes under arbitrary failures of drivers and tasks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
    WriteException,
)
from bookgate.ledger.id_set import signed, unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord, require_same
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commit_protocol import (
    COMMITTED_KEY,
    MOST_NAMED,
    Committed,
    Write,
    attempt_metadata,
    committed,
    ids_text,
    judge,
    leads_not_shown,
    parse_ids,
    settled,
    sink_state,
    with_claim,
    with_mark,
)
from bookgate.thinclient.spark.offsets import LedgerIds
from bookgate.thinclient.spark.writing.commit import Committer, Lookups, LostCommitException, Written

QUERY = "6f1c"


def ledger(number: int, batch: int = 0, query: str = QUERY, entries: int = 3, mark: Sequence[int] = ()) -> LedgerRecord:
    metadata = LedgerMetadata.new(["a", "b"], 2, 2, custom_metadata=attempt_metadata(Write(query, batch), "0.0.0"))
    metadata = metadata.close(entries - 1, entries * 10)
    return LedgerRecord(LedgerId(0, number), with_mark(metadata, mark) if mark else metadata, 1)


@given(st.sets(st.integers(0, 60) | st.integers(2**63 - 3, 2**63 + 3) | st.integers(2**64 - 3, 2**64 - 1)))
def test_ids_come_back_from_their_text(ids: set[int]) -> None:
    text = ids_text(map(signed, ids))
    found = {each for first, last in parse_ids(text) for each in range(first, last + 1)} if text else set()
    assert found == ids


def test_runs_of_ids_are_short() -> None:
    assert ids_text([7, 1, 2, 3, 9, 10]) == "1-3,7,9-10"


def test_what_a_reader_counts() -> None:
    foreign = replace(ledger(1), metadata=LedgerMetadata.new(["a"], 1, 1))
    assert committed([foreign]) == [foreign]
    assert committed([ledger(2), ledger(3)]) == []
    lead = ledger(2, mark=[2, 4])
    assert committed([lead, ledger(3), ledger(4)]) == [lead, ledger(4)]
    # A lead that was not committed yet when it was listed keeps back what was marked a moment later.
    assert committed([ledger(2), ledger(4, mark=[2])]) == []
    # Without the lead a mark speaks for itself.
    assert committed([ledger(4, mark=[2]), ledger(5)]) == [ledger(4, mark=[2])]
    seen = Committed()
    seen.show([lead, ledger(3)])
    assert seen.take([lead, ledger(3)]) == [lead]
    assert seen.not_taken() == [4]


def owned(record: LedgerRecord, owner: bytes) -> LedgerRecord:
    custom = {**record.metadata.custom_metadata, OWNER_KEY: owner}
    return replace(record, metadata=replace(record.metadata, custom_metadata=custom))


def test_a_mark_speaks_for_ledgers_of_its_owner_only() -> None:
    forged = owned(ledger(1, mark=[1, 5]), b"other")
    mine = [owned(each, b"me") for each in (ledger(2, mark=[2, 4]), ledger(4), ledger(5))]
    assert committed([forged, *mine]) == [forged, *mine[:2]]
    verdict = judge([forged, owned(claimed(5, 1), b"me")], Write(QUERY))
    assert (verdict.unmarked, verdict.left_over) == ((), ()), "whether it is part of a commit nobody can tell"


def test_a_mark_of_more_ledgers_than_a_write_may_have_is_none() -> None:
    widest = f"5-{MOST_NAMED + 4}"
    for text in ("0-9000000000000000000", f"5-{MOST_NAMED + 5}", f"{widest},{1 << 63}", "18446744073709551616", "9-5"):
        custom = {**ledger(5).metadata.custom_metadata, COMMITTED_KEY: text.encode()}
        assert sink_state(replace(ledger(5), metadata=replace(ledger(5).metadata, custom_metadata=custom))) is None
    custom = {**ledger(5).metadata.custom_metadata, COMMITTED_KEY: widest.encode()}
    state = sink_state(replace(ledger(5), metadata=replace(ledger(5).metadata, custom_metadata=custom)))
    assert state is not None
    assert state.names(MOST_NAMED + 4)


def test_of_ledgers_that_were_not_listed_only_those_of_the_write_count() -> None:
    """A mark may name ledgers of any owner: of no sink, of another write, of an attempt that was not committed."""
    forged = owned(ledger(1, mark=[1, 2, 3, 4, 5, 6, 7]), b"other")
    plain = owned(replace(ledger(2), metadata=LedgerMetadata.new(["a"], 1, 1)), b"me")
    mine = [owned(each, b"me") for each in (ledger(3, mark=[3]), ledger(4), ledger(5, batch=1, mark=[5]))]
    others = [owned(ledger(6), b"other"), owned(ledger(7, batch=1), b"other")]
    seen = Committed()
    seen.show([forged, plain, mine[0]])
    assert seen.take([forged, plain, mine[0]]) == [forged, plain, mine[0]]
    assert seen.not_taken() == [2, 4, 5, 6, 7]
    assert seen.take_named([plain, *mine[1:], *others]) == others[:1]


def test_what_was_not_taken_is_counted_between_the_ends_of_the_listing() -> None:
    seen = Committed()
    seen.show([ledger(1, mark=[1, 20, 30, -5, -1]), ledger(2, batch=1, mark=[2, 30])])
    assert seen.not_taken() == [1, 2, 20, 30, -5, -1]
    assert seen.count_not_taken() == 7, "30 for each of its leads"
    assert seen.not_taken(first=0) == [1, 2, 20, 30]
    assert seen.not_taken(first=-4, last=20) == [1, 2, 20, -1]
    assert seen.not_taken(last=-2) == [-5]
    assert seen.not_taken([20, -1], -1, 19) == [-1]
    assert seen.count_not_taken(2, 30) == 4


def test_what_is_claimed_and_not_marked_yet_has_its_lead_looked_up() -> None:
    """Its driver may have died right after the commit point."""
    seen, late = Committed(), claimed(40, 2)
    seen.show([late])
    assert (seen.unknown_leads([late]), seen.counts(late)) == ([2], False)
    seen.show([ledger(2, mark=[2, 40])])
    assert seen.take([late]) == [late]


def test_a_lead_that_a_listing_has_passed_is_to_be_looked_up_once() -> None:
    seen, early, late = Committed(), ledger(30), ledger(40, mark=[2])
    seen.show([early])
    assert (seen.unknown_leads([early]), seen.take([early])) == ([], [])
    seen.show([late])
    assert seen.unknown_leads([late]) == [2]
    assert seen.unknown_leads([late]) == [], "asked for twice"
    seen.show([ledger(2, mark=[2, 30, 40])])
    assert seen.take([late]) == [late]
    assert seen.not_taken() == [2, 30]
    assert seen.not_taken(selected=[7, 30]) == [30]


def test_a_lead_that_another_owner_named_before_it_was_made_is_looked_up_once_more() -> None:
    seen, forged, marked = Committed(), owned(claimed(10, 5), b"other"), owned(ledger(40, mark=[5]), b"me")
    seen.show([forged])
    assert seen.unknown_leads([forged]) == [5]
    seen.show([marked])
    assert seen.unknown_leads([marked]) == [5], "5 was made since, and names what else was committed with 40"
    assert seen.unknown_leads([forged, marked]) == []


def test_of_two_leads_that_an_earlier_release_committed_the_first_counts() -> None:
    """On whichever page of a listing they come."""
    first, second = ledger(5, mark=[5, 7]), ledger(6, mark=[6])
    assert committed([first, second, ledger(7)]) == [first, ledger(7)]
    seen = Committed()
    found = []
    for page in ([first], [second, ledger(7)]):
        seen.show(page)
        found += seen.take(page)
    assert found == [first, ledger(7)]


def test_metadata_that_are_no_sinks_after_all_are_ordinary_ledgers() -> None:
    for key, value in [("bookgate.sink.batch", b"x"), (COMMITTED_KEY, b"1-x"), (COMMITTED_KEY, b"")]:
        record = ledger(1)
        custom = {**record.metadata.custom_metadata, key: value}
        odd = replace(record, metadata=replace(record.metadata, custom_metadata=custom))
        assert sink_state(odd) is None
        assert committed([odd]) == [odd]


def test_what_the_driver_makes_of_other_ledgers() -> None:
    write = Write(QUERY, 5)
    others = [
        ledger(1, 4, mark=[1, 2]),
        ledger(2, 4),
        ledger(3, 4),
        ledger(4, 5),
        ledger(5, 5),
        ledger(6, 6),
        ledger(7, 5, query="other"),
    ]
    verdict = judge(others, write, own=[5])
    assert verdict.committed_by is None
    assert [(record.ledger_id.low, lead) for record, lead in verdict.unmarked] == [(2, 1)]
    assert [record.ledger_id.low for record in verdict.left_over] == [3, 4]
    again = judge([*others, ledger(9, 5, mark=[8])], write, own=[5])
    assert again.committed_by == ledger(9, 5, mark=[8])


def claimed(number: int, lead: int) -> LedgerRecord:
    record = ledger(number)
    return replace(record, metadata=with_claim(record.metadata, lead))


def test_what_is_claimed_goes_after_its_lead() -> None:
    write, records = Write(QUERY), [claimed(30, 9), claimed(5, 4), ledger(4), ledger(9)]
    left_over = judge(records, write).left_over
    assert [record.ledger_id.low for record in left_over] == [4, 5, 9, 30]
    assert judge(records, write, own=[9]).left_over == (ledger(4), claimed(5, 4)), "it is claimed for what is in hand"
    assert leads_not_shown([claimed(30, 9), claimed(5, 4), ledger(4), ledger(6)]) == [9]
    named = ledger(9, mark=[9, 30])
    assert leads_not_shown([claimed(30, 9), named]) == []
    assert judge([claimed(30, 9), named], write).unmarked == ((claimed(30, 9), 9),)


def test_what_need_not_be_looked_up_again() -> None:
    """All that is marked of earlier batches; a lead only when everything that it names was listed."""
    records = [ledger(1, mark=[1, 2]), ledger(2, mark=[1]), ledger(3, mark=[3, 8]), ledger(4), ledger(5, 7, mark=[5])]
    assert settled(records, Write(QUERY, 7), LedgerIds([1, 2, 3, 4, 5])) == [1, 2]
    assert settled(records, Write(QUERY, 7), LedgerIds([1, 2, 3, 4, 5, 8])) == [1, 2, 3]


# Whole writes


class Crash(BaseException):
    """The driver is gone."""


class Store:
    """Ledgers in memory behind the client's interface. `fate` decides what becomes of each change.

    Ids come from blocks as two gateways hand them out: `gateway` says which one is asked next.
    """

    def __init__(self, gateway: Callable[[], int] | None = None, scope_id: int = 0) -> None:
        self.records: dict[int, LedgerRecord] = {}
        self.scope_id = scope_id
        self.ids: Sequence[Iterator[int]] = (itertools.count(1001), itertools.count(1))
        if scope_id:
            # As the sink draws them: on both sides of the sign, and of its change.
            self.ids = (map(signed, itertools.count(2**63 - 3)), map(signed, itertools.count(2**64 - 1, -1)))
        self.gateway = gateway or itertools.cycle([0, 1]).__next__
        self.fate = iter(lambda: "done", None)
        self.ledger_manager = self
        self.on_change: Any = lambda: None
        self.reads: list[int] = []
        self.demands_complete = False

    def write_ledger(self, write: Write, entries: int) -> Written:
        number = next(self.ids[self.gateway()])
        ledger_id = LedgerId(self.scope_id, number)
        self.records[number] = replace(ledger(0, write.batch, write.query, entries), version=1, ledger_id=ledger_id)
        return Written(ledger_id, entries)

    def demand_complete_listings(self) -> None:
        self.demands_complete = True

    def list_ledgers(self, scope_id: int = 0) -> Iterator[list[LedgerRecord]]:
        for ids in self.ledger_ranges(scope_id):
            yield [self.records[number] for number in ids if number in self.records]

    def ledger_ranges(self, scope_id: int = 0) -> Iterator[list[int]]:
        assert scope_id == self.scope_id
        for number in sorted(self.records, key=unsigned):
            if number in self.records:
                yield [number]

    def read_record(self, ledger_id: LedgerId) -> LedgerRecord:
        if ledger_id.low not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException(str(ledger_id))
        return self.records[ledger_id.low]

    def read_many(self, ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        missing = NoSuchLedgerExistsOnMetadataServerException()
        self.reads += [each.low for each in ids]
        return [self.records.get(each.low, missing) for each in ids]

    def _change(self, ledger_id: LedgerId, version: int, new: LedgerRecord | None) -> None:
        """Does it, loses the answer, loses the request, or ends the driver before or after."""
        self.on_change()
        fate = next(self.fate, "done")
        if fate == "crash before":
            raise Crash
        if fate == "lost request":
            raise MetaStoreException("no gateway")
        if self.read_record(ledger_id).version != version:
            raise MetadataVersionException(str(ledger_id))
        if new is None:
            del self.records[ledger_id.low]
        else:
            self.records[ledger_id.low] = new
        if fate == "crash after":
            raise Crash
        if fate == "lost answer":
            raise UnknownOutcomeException("no answer")

    def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        require_same(record, self.read_record(record.ledger_id))
        new = replace(record, metadata=metadata, version=record.version + 1)
        self._change(record.ledger_id, record.version, new)
        return new

    def remove_record(self, record: LedgerRecord) -> None:
        self._change(record.ledger_id, record.version, None)

    def visible(self) -> dict[Write, set[int]]:
        """What a reader of everything sees."""
        found: dict[Write, set[int]] = {}
        for record in committed(list(self.records.values())):
            state = sink_state(record)
            assert state is not None
            found.setdefault(state.write, set()).add(signed(state.ledger_id))
        return found


def committer(store: Store, start: str = "run", lookups: Lookups | None = None) -> Committer:
    return Committer(cast(BookKeeper, store), start, lookups or Lookups(), store.scope_id)


WRITE = Write(QUERY, 3)


def numbers(written: Sequence[Written]) -> set[int]:
    return {each.ledger_id.low for each in written}


def test_a_commit_marks_its_ledgers_and_deletes_what_other_attempts_left() -> None:
    store = Store()
    killed = store.write_ledger(WRITE, 2)
    chosen = [store.write_ledger(WRITE, 3), store.write_ledger(WRITE, 4)]
    speculative = store.write_ledger(WRITE, 4)
    other = store.write_ledger(Write("another query", 3), 1)
    committer(store).commit(WRITE, chosen)
    assert store.visible() == {WRITE: numbers(chosen)}
    assert set(store.records) == numbers([*chosen, other])
    assert numbers([killed, speculative]).isdisjoint(store.records)
    marks = [store.records[number].metadata.custom_metadata[COMMITTED_KEY] for number in sorted(numbers(chosen))]
    assert marks == [b"1,1002", b"1"]


def test_in_a_scope_ids_are_marked_and_compared_without_sign() -> None:
    store = Store(lambda: 0, scope_id=-1)
    chosen = [store.write_ledger(WRITE, 3) for _ in range(4)]
    committer(store).commit(WRITE, chosen)
    assert store.visible() == {WRITE: numbers(chosen)}
    lead = store.records[2**63 - 3]
    assert lead.metadata.custom_metadata[COMMITTED_KEY] == b"9223372036854775805-9223372036854775808"
    seen = Committed()
    others = [store.records[-(2**63)], store.records[2**63 - 1]]
    seen.show(others)
    assert seen.unknown_leads(others) == [2**63 - 3]
    seen.show([lead])
    assert seen.take([lead, *others]) == [lead, *others]
    assert seen.not_taken() == [2**63 - 2]
    # The one with the highest bit is not taken for the lead, though its id is the lowest with a sign.
    del store.records[2**63 - 3], store.records[2**63 - 2]
    assert store.visible() == {WRITE: {2**63 - 1, -(2**63)}}


def test_a_write_found_committed_is_not_written_twice() -> None:
    store = Store()
    first = [store.write_ledger(WRITE, 3)]
    committer(store).commit(WRITE, first)
    committer(store, "another run").commit(WRITE, [store.write_ledger(WRITE, 3)])
    assert store.visible() == {WRITE: numbers(first)}
    assert set(store.records) == numbers(first)


def test_a_query_whose_checkpoint_is_an_older_copy_is_refused_and_loses_no_rows() -> None:
    """Its batch has the number of one that is committed, and other rows: those that have come since."""
    store, later = Store(), Write(QUERY, WRITE.batch + 1)
    first, second = store.write_ledger(WRITE, 3), store.write_ledger(later, 2)
    committer(store).commit(WRITE, [first])
    committer(store).commit(later, [second])
    older = committer(store, "another run")
    for write in (WRITE, Write(QUERY, WRITE.batch - 1)):
        more = store.write_ledger(write, 9)
        with pytest.raises(IllegalOpException, match=r"batch 4 of query .* is committed, .* is an older copy"):
            older.commit(write, [more])
        assert more.ledger_id.low in store.records, "the rows were taken for written"
        older.abort(write)
        assert more.ledger_id.low not in store.records
    assert store.visible() == {WRITE: numbers([first]), later: numbers([second])}


def test_a_later_batch_of_another_owner_says_nothing_of_a_checkpoint() -> None:
    """Whoever may create ledgers could stop the query with one."""
    store, forged = Store(), ledger(7, WRITE.batch + 1, mark=[7])
    mine = store.write_ledger(WRITE, 3)
    number = mine.ledger_id.low
    store.records[number] = owned(store.records[number], b"me")
    store.records[7] = owned(forged, b"other")
    committer(store).commit(WRITE, [mine])
    assert store.visible()[WRITE] == {number}


def test_what_the_commit_of_another_owner_names_is_not_left_over() -> None:
    lead = owned(ledger(7, WRITE.batch, mark=[7, 8]), b"with earlier credentials")
    others = [owned(ledger(number, WRITE.batch), b"me") for number in (8, 9)]
    verdict = judge([lead, *others], Write(WRITE.query, WRITE.batch + 1))
    assert [record.ledger_id.low for record in verdict.left_over] == [9]
    assert verdict.unmarked == ()


def test_no_write_is_taken_for_committed_because_another_owner_says_so() -> None:
    store = Store()
    mine = [store.write_ledger(WRITE, 3), store.write_ledger(WRITE, 3)]
    for each in mine:
        store.records[each.ledger_id.low] = owned(store.records[each.ledger_id.low], b"me")
    store.records[7] = owned(replace(ledger(7, WRITE.batch, mark=[999999])), b"other")
    with pytest.raises(WriteException, match=r"ledger 7 of another owner says that batch 3 .* is committed"):
        committer(store).commit(WRITE, mine)
    assert numbers(mine) < set(store.records), "the rows are still there"
    del store.records[7]
    committer(store).commit(WRITE, mine)
    assert store.visible() == {WRITE: numbers(mine)}


def test_no_write_is_taken_for_committed_by_another_owner_after_its_ledgers_were_deleted() -> None:
    """By a rival, or as leftovers, after the driver has claimed them and before it lists them."""
    store = Store()
    mine = store.write_ledger(WRITE, 3)
    number = mine.ledger_id.low
    store.records[number] = owned(store.records[number], b"me")
    store.records[7] = owned(replace(ledger(7, WRITE.batch, mark=[7])), b"other")
    listing = store.ledger_ranges

    def deleted_before(scope_id: int = 0) -> Iterator[list[int]]:
        store.records.pop(number, None)
        return listing(scope_id)

    store.ledger_ranges = deleted_before  # type: ignore[method-assign]
    with pytest.raises(WriteException, match=r"ledger 7 of another owner says that batch 3 .* is committed"):
        committer(store).commit(WRITE, [mine])


def test_a_write_that_its_own_owner_committed_is_not_disputed_by_another() -> None:
    """A query that is started again finds its commit, and a forged mark beside it."""
    store, runs = Store(), []
    for _ in range(2):
        runs.append(store.write_ledger(WRITE, 3))
        number = runs[-1].ledger_id.low
        store.records[number] = owned(store.records[number], b"me")
        committer(store, f"run {len(runs)}").commit(WRITE, runs[-1:])
        store.records[7] = owned(replace(ledger(7, WRITE.batch, mark=[7])), b"other")
    assert set(store.records) == {7, runs[0].ledger_id.low}


def test_what_is_left_over_and_may_not_be_deleted_is_named_once_the_rest_is_deleted() -> None:
    """Another principal made it, with the keys of this query. While its lead is there what it claims stays, too."""
    store = Store()
    by_id = sorted((store.write_ledger(WRITE, 3) for _ in range(4)), key=lambda each: each.ledger_id)
    left, claimed, _, chosen = by_id
    lead, number = left.ledger_id.low, claimed.ledger_id.low
    record = store.records[number]
    store.records[number] = replace(record, metadata=with_claim(record.metadata, lead))
    remove = store.remove_record

    def denied(record: LedgerRecord) -> None:
        if record.ledger_id == left.ledger_id:
            raise UnauthorizedAccessException("me may not do ledger.delete")
        remove(record)

    store.remove_record = denied  # type: ignore[method-assign]
    with pytest.raises(UnauthorizedAccessException, match=f"ledger {lead} is left over .*me may not do ledger.delete"):
        committer(store).commit(WRITE, [chosen])
    assert set(store.records) == numbers([left, claimed, chosen])
    with pytest.raises(UnauthorizedAccessException, match=f"ledger {lead} is left over"):
        committer(store).abort(WRITE)
    assert set(store.records) == numbers([left, claimed])
    assert store.visible() == {}
    store.remove_record = remove  # type: ignore[method-assign]
    committer(store).abort(WRITE)
    assert not store.records


def test_the_ledgers_of_a_write_have_one_owner() -> None:
    store = Store()
    mine = [store.write_ledger(WRITE, 3), store.write_ledger(WRITE, 3)]
    number = mine[0].ledger_id.low
    store.records[number] = owned(store.records[number], b"another")
    with pytest.raises(WriteException, match="2 owners"):
        committer(store).commit(WRITE, mine)


def test_a_write_whose_lead_was_deleted_is_still_found_committed() -> None:
    store = Store()
    first = [store.write_ledger(WRITE, 3), store.write_ledger(WRITE, 3)]
    committer(store).commit(WRITE, first)
    del store.records[min(numbers(first))]
    committer(store, "another run").commit(WRITE, [store.write_ledger(WRITE, 3)])
    assert store.visible() == {WRITE: {max(numbers(first))}}


def test_a_start_of_a_query_reads_once_what_is_settled() -> None:
    store, lookups = Store(), Lookups()
    foreign = store.write_ledger(Write("another query"), 1)
    written: list[set[int]] = []
    for batch in range(4):
        write = Write(QUERY, batch)
        chosen = [store.write_ledger(write, 1), store.write_ledger(write, 1)]
        store.reads.clear()
        committer(store, "run", lookups).commit(write, chosen)
        # Its own are read before they are claimed, too.
        expected = numbers(chosen) | (written[-1] if written else numbers([foreign]))
        assert sorted(store.reads) == sorted([*expected, *numbers(chosen)])
        written.append(numbers(chosen))


def test_what_a_slow_attempt_of_an_earlier_batch_left_is_found_whatever_its_id() -> None:
    for gateway in (0, 1):
        store, lookups = Store(lambda: 0), Lookups()
        for batch in range(3):
            write = Write(QUERY, batch)
            committer(store, "run", lookups).commit(write, [store.write_ledger(write, 1)])
        store.gateway = itertools.repeat(gateway).__next__
        late = store.write_ledger(Write(QUERY, 1), 1)
        store.gateway = lambda: 0
        write = Write(QUERY, 3)
        committer(store, "run", lookups).commit(write, [store.write_ledger(write, 1)])
        assert numbers([late]).isdisjoint(store.records)


def test_a_driver_that_came_second_sees_what_the_first_goes_on_to_write() -> None:
    """The first is a batch ahead: its ledgers lie between its commit and the ledgers of the second."""
    store, next_write = Store(), Write(QUERY, 4)
    first, second = committer(store, "first"), committer(store, "second")
    first.commit(WRITE, [store.write_ledger(WRITE, 1)])
    ahead = [store.write_ledger(next_write, 1)]
    late = [store.write_ledger(WRITE, 1)]
    second.commit(WRITE, late)
    own = [store.write_ledger(next_write, 1)]
    second.commit(next_write, own)
    with pytest.raises(LostCommitException):
        first.commit(next_write, ahead)
    assert store.visible()[next_write] == numbers(own)


def test_ledgers_that_are_not_what_the_task_wrote_are_refused() -> None:
    store = Store()
    written = store.write_ledger(WRITE, 3)
    with pytest.raises(WriteException, match="closed it with 4"):
        committer(store).commit(WRITE, [replace(written, entries=4)])
    del store.records[written.ledger_id.low]
    with pytest.raises(LostCommitException):
        committer(store).commit(WRITE, [written])


def test_abort_deletes_a_write_unless_it_is_committed() -> None:
    store = Store()
    written = [store.write_ledger(WRITE, 3), store.write_ledger(WRITE, 3)]
    committer(store).commit(WRITE, written)
    committer(store).abort(WRITE)
    assert store.visible() == {WRITE: numbers(written)}
    later = Write(QUERY, 4)
    store.write_ledger(later, 3)
    committer(store).abort(later)
    assert set(store.records) == numbers(written)


FATES = st.sampled_from(["done", "done", "done", "lost request", "lost answer", "crash before", "crash after"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(FATES, max_size=8), st.integers(0, 3), st.integers(0, 2)), max_size=6),
    st.sampled_from([0, 7, -7]),
)
def test_whatever_fails_a_write_is_committed_once(runs: list[tuple[list[str], int, int]], scope_id: int) -> None:
    """Each run of the driver writes the batch anew, tries to commit, and on an error aborts, as Spark does."""
    store = Store(scope_id=scope_id)
    seen: set[int] | None = None
    for number, (fates, tasks, strays) in enumerate([*runs, ([], 2, 1)]):
        for _ in range(strays):
            store.write_ledger(WRITE, 1)
        written = [store.write_ledger(WRITE, 2) for _ in range(tasks)]
        store.fate = iter(fates)
        driver = committer(store, f"run {number}")
        try:
            try:
                driver.commit(WRITE, written)
            except BKException:
                driver.abort(WRITE)
        except (Crash, BKException):
            pass
        store.fate = iter(())
        visible = store.visible().get(WRITE)
        if seen is not None:
            assert visible == seen, "what was committed has changed"
        if visible is not None:
            assert seen is not None or visible == numbers(written), "a part of a write was committed"
            seen = visible
    assert seen is not None
    assert set(store.records) == seen, "something is left over"


@given(st.integers(0, 10_000))
def test_of_two_drivers_at_once_one_commits(seed: int) -> None:
    """The second does a whole commit between two changes of the first."""
    rng = random.Random(seed)
    store = Store()
    first = [store.write_ledger(WRITE, 2) for _ in range(rng.randint(1, 3))]
    second = [store.write_ledger(WRITE, 2) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.5:
        first, second = second, first
    moment = rng.randrange(8)
    changes = itertools.count()

    def interfere() -> None:
        if next(changes) == moment:
            store.on_change = lambda: None
            losers.extend(loser("second", second))

    def loser(name: str, written: Sequence[Written]) -> list[str]:
        try:
            committer(store, name).commit(WRITE, written)
        except LostCommitException:
            return [name]
        return []

    losers: list[str] = []
    store.on_change = interfere
    losers.extend(loser("first", first))
    visible = store.visible()[WRITE]
    assert visible in (numbers(first), numbers(second))
    assert len(losers) <= 1
    if losers:
        assert visible == (numbers(second) if losers == ["first"] else numbers(first))
