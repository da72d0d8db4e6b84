"""Ledgers that a sink left behind: which they are, and that deleting them never tears a write apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from bookgate.ledger.errors import UnauthorizedAccessException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.core.undeletable import NotAllDeletedException
from bookgate.thinclient.spark.commit_protocol import Write, with_claim
from bookgate.thinclient.spark.jobs.leftovers import delete, left_over, leftovers
from bookgate.thinclient.spark.writing.commit import LostCommitException, Written
from tests.unit.thinclient.spark.test_commit_protocol import Crash, Store, committer, ledger

OLD, NOW = 1000, 2000


def made(
    number: int, created_ms: int | None, query: str = "q", batch: int = 0, mark: Sequence[int] = ()
) -> LedgerRecord:
    return replace(ledger(number, batch, query, mark=mark), created_ms=created_ms)


def found(*records: LedgerRecord) -> dict[str, list[int]]:
    return {
        str(write): [record.ledger_id.low for record in of_write] for write, of_write in left_over(records, NOW).items()
    }


def test_what_was_never_committed_is_left_over() -> None:
    assert found(made(2, OLD), made(1, OLD), made(3, OLD, batch=1), made(4, OLD, "other")) == {
        "batch 0 of query q": [1, 2],
        "batch 1 of query q": [3],
        "batch 0 of query other": [4],
    }


def test_what_is_committed_is_not_marked_or_not_yet() -> None:
    assert found(made(1, OLD, mark=[1, 2]), made(2, OLD), made(3, OLD, batch=1, mark=[2])) == {}
    # An attempt beside those that were chosen.
    assert found(made(1, OLD, mark=[1, 2]), made(2, OLD, mark=[1]), made(3, OLD)) == {"batch 0 of query q": [3]}


def test_a_write_is_as_old_as_its_youngest_ledger() -> None:
    assert found(made(1, OLD), made(2, NOW)) == {}
    assert found(made(1, OLD), made(2, None)) == {}
    assert found(made(1, OLD), made(2, NOW, batch=1)) == {"batch 0 of query q": [1]}


def test_other_ledgers_are_no_leftovers() -> None:
    plain = made(1, OLD)
    assert found(replace(plain, metadata=replace(plain.metadata, custom_metadata={}))) == {}


@pytest.fixture
def store() -> Store:
    return Store()


WRITE = Write("q", 0)


def written(store: Store) -> tuple[BookKeeper, list[Written]]:
    """Three tasks' ledgers, old."""
    tasks = [store.write_ledger(WRITE, 3) for _ in range(3)]
    store.records = {number: replace(record, created_ms=OLD) for number, record in store.records.items()}
    return cast(BookKeeper, store), tasks


def test_leftovers_are_deleted(store: Store) -> None:
    client, _ = written(store)
    assert delete(client, leftovers(client, NOW)) == [1, 1001, 1002]
    assert store.records == {}
    assert store.demands_complete, "a write is judged by all of its ledgers"


def test_a_write_that_is_committed_meanwhile_stays_whole(store: Store) -> None:
    client, tasks = written(store)
    seen = leftovers(client, NOW)
    store.fate = iter(["done", "done", "crash after"])
    with pytest.raises(Crash):
        committer(store).commit(WRITE, tasks)
    # Committed by its lead alone: the others are still as they were seen.
    assert delete(client, seen) == []
    assert store.visible() == {WRITE: {1, 1001, 1002}}


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_commit_that_comes_later_fails_as_a_whole(store: Store, moment: int) -> None:
    """The driver is about to claim its first ledger, its second one, or to pass its commit point."""
    client, tasks = written(store)
    seen = leftovers(client, NOW)
    changes = itertools.count()

    def delete_now() -> None:
        if next(changes) == moment:
            store.on_change = lambda: None
            delete(client, seen)

    store.on_change = delete_now
    with pytest.raises(LostCommitException):
        committer(store).commit(WRITE, tasks)
    assert store.visible() == {}
    delete(client, leftovers(client, NOW))
    assert store.records == {}


def test_what_may_not_be_deleted_keeps_only_what_is_claimed_for_it(store: Store) -> None:
    """Another principal made the lead of a write; two more writes come behind it."""
    client, _ = written(store)
    lead, claimed = store.records[1], store.records[1001]
    store.records[1001] = replace(claimed, metadata=with_claim(claimed.metadata, 1))
    for batch in (1, 2):
        written_then = store.write_ledger(Write("q", batch), 3).ledger_id.low
        store.records[written_then] = replace(store.records[written_then], created_ms=OLD)
    others, remove = set(store.records) - {1, 1001}, store.remove_record

    def denied(record: LedgerRecord) -> None:
        if record.ledger_id == lead.ledger_id:
            raise UnauthorizedAccessException("me may not do ledger.delete")
        remove(record)

    store.remove_record = denied  # type: ignore[method-assign]
    with pytest.raises(NotAllDeletedException, match=r"left are 1, 1001, .* may not delete 1 \(me may not") as told:
        delete(client, leftovers(client, NOW))
    assert told.value.deleted == len(others) == 3
    assert set(store.records) == {1, 1001}
    store.remove_record = remove  # type: ignore[method-assign]
    assert delete(client, leftovers(client, NOW)) == [1, 1001]


def test_a_claimed_ledger_goes_after_a_lead_that_the_listing_has_passed(store: Store) -> None:
    client, tasks = written(store)
    store.fate = iter(["done", "done", "crash before"])
    with pytest.raises(Crash):
        committer(store).commit(WRITE, tasks)
    store.fate = iter(())
    lead = store.records.pop(1)
    pages = [[record] for record in store.records.values()]
    store.records[1] = lead
    store.list_ledgers = lambda scope_id=0: iter(pages)  # type: ignore[method-assign]
    assert [record.ledger_id.low for record in leftovers(client, NOW)[WRITE]] == [1, 1001, 1002]
