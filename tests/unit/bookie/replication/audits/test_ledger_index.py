"""The index says what was read last of each ledger, and which ledgers are to be read anew."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.audits.ledger_index import BookieLedgerIndex
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord

BOOKIES = ("a:1", "b:1", "c:1", "d:1")
ids = st.sampled_from([0, 1, 2, 3, 65_536, 2**31, 2**63 - 1])
ensembles = st.lists(st.permutations(BOOKIES).map(lambda order: tuple(order[:2])), min_size=1, max_size=3)


def record(number: int, *fragments: tuple[str, ...]) -> LedgerRecord:
    new = LedgerMetadata.new(fragments[0], 2, 1)
    parts = tuple(Fragment(10 * place, ensemble) for place, ensemble in enumerate(fragments))
    return LedgerRecord(LedgerId.unscoped(number), replace(new, fragments=parts), 0)


def filled(*records: LedgerRecord) -> BookieLedgerIndex:
    index = BookieLedgerIndex()
    index.put([each.ledger_id.low for each in records], records, {})
    return index


def having(index: BookieLedgerIndex, bookie_id: str) -> list[int]:
    return list(index.naming([bookie_id]))


@given(st.lists(st.tuples(st.sets(ids, min_size=1), st.dictionaries(ids, ensembles), st.sets(ids))))
def test_it_says_what_was_put_last(steps: list[tuple[set[int], dict[int, list[tuple[str, ...]]], set[int]]]) -> None:
    index, model, damaged = BookieLedgerIndex(), dict[int, set[str]](), set[int]()
    for asked, found, broken in steps:
        fresh = {number: fragments for number, fragments in found.items() if number in asked}
        unreadable = {number: "it is" for number in broken if number in asked and number not in fresh}
        index.put(asked, [record(number, *fragments) for number, fragments in fresh.items()], unreadable)
        for number in asked:
            model.pop(number, None)
            damaged.discard(number)
        model |= {number: {name for ensemble in fragments for name in ensemble} for number, fragments in fresh.items()}
        damaged |= unreadable.keys()
    for bookie_id in BOOKIES:
        assert having(index, bookie_id) == sorted(number for number, names in model.items() if bookie_id in names)
    assert index.naming(BOOKIES) == {number: sorted(names) for number, names in model.items()}
    assert list(index.naming(BOOKIES)) == sorted(model)
    assert index.unreadable.keys() == damaged
    assert set(index.known) == model.keys() | damaged
    assert len(index) == len(model) + len(damaged)


def test_a_ledger_is_found_by_every_bookie_of_every_fragment() -> None:
    index = filled(record(7, ("a:1", "b:1"), ("b:1", "c:1")))
    assert [having(index, each) for each in BOOKIES] == [[7], [7], [7], []]
    assert index.naming(["d:1", "c:1", "a:1"]) == {7: ["a:1", "c:1"]}


def test_a_bookie_that_was_replaced_has_the_ledger_no_more() -> None:
    index = filled(record(7, ("a:1", "b:1")), record(8, ("a:1", "b:1")))
    index.put([7], [record(7, ("c:1", "b:1"))], {})
    assert [having(index, each) for each in BOOKIES] == [[8], [7, 8], [7], []]
    index.put([7, 8], [], {})
    assert index.naming(BOOKIES) == {}
    assert len(index) == 0


def test_bookies_are_those_that_ledgers_name_for_certain() -> None:
    index = filled(record(7, ("a:1", "b:1")), record(8, ("b:1", "c:1")))
    assert set(index.bookies) == {"a:1", "b:1", "c:1"}
    index.touch([7])
    assert set(index.bookies) == {"b:1", "c:1"}
    index.put(index.take_due([7]), [record(7, ("c:1", "b:1"))], {})
    assert set(index.bookies) == {"b:1", "c:1"}


def test_the_slot_of_a_ledger_that_is_gone_is_used_again() -> None:
    index = filled(record(7, ("a:1", "b:1")), record(8, ("c:1", "b:1")))
    index.put([7], [], {})
    index.put([2**63 - 1], [record(2**63 - 1, ("d:1", "b:1"))], {})
    assert [having(index, each) for each in BOOKIES] == [[], [8, 2**63 - 1], [8], [2**63 - 1]]
    assert list(index.known) == [8, 2**63 - 1]


def test_what_is_taken_is_due_no_more_until_it_is_touched() -> None:
    index = BookieLedgerIndex()
    index.touch([5, 3, 9])
    assert index.take_due([3, 4, 5]) == [3, 5]
    assert list(index.due) == [9]
    index.touch((3,))
    assert list(index.due) == [3, 9]


def test_what_differs_is_found_but_for_what_is_due() -> None:
    index = filled(record(1, ("a:1", "b:1")), record(2, ("a:1", "b:1")), record(3, ("a:1", "b:1")))
    index.put([4], [], {4: "damaged"})
    assert list(index.differing([1, 2], filled(record(1, ("a:1", "b:1")), record(2, ("b:1", "a:1"))))) == []
    stored = filled(record(1, ("a:1", "c:1")), record(2, ("a:1", "b:1")), record(5, ("d:1", "b:1")))
    assert list(index.differing([1, 2, 3, 4, 5], stored)) == [1, 3, 4, 5]
    index.touch([1, 5])
    assert list(index.differing([1, 2, 3, 4, 5], stored)) == [3, 4]
