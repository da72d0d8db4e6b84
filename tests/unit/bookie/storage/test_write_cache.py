"""The write cache: what is found where while a flush goes on, and its limits."""

from __future__ import annotations

import pytest

from bookgate.bookie.storage.ledger_descriptor import LedgerDeletedException, LedgerDescriptor
from bookgate.bookie.storage.write_cache import ENTRY_OVERHEAD, LEDGER_OVERHEAD, WriteCache
from bookgate.ledger.ledger_id import LedgerId


def ledger(number: int) -> LedgerDescriptor:
    return LedgerDescriptor(LedgerId.unscoped(number), b"k")


def test_entries_stay_readable_through_a_flush_and_the_newest_copy_wins() -> None:
    cache, one = WriteCache(10_000), ledger(1)
    cache.put(one, 0, b"old")
    cache.put(one, 1, b"flushing")
    snapshot = cache.swap()
    cache.put(one, 0, b"new")
    assert snapshot.tables == {one: {0: b"old", 1: b"flushing"}}
    assert [cache.get(one, entry_id) for entry_id in range(3)] == [b"new", b"flushing", None]
    assert cache.entries(one) == ([0, 1], set())
    cache.drop_flushing()
    assert [cache.get(one, entry_id) for entry_id in range(2)] == [b"new", None]


def test_headers_are_flushed_without_entries() -> None:
    cache, one = WriteCache(10_000), ledger(1)
    cache.mark_header(one)
    snapshot = cache.swap()
    assert not snapshot.is_empty
    assert snapshot.headers == {one}
    cache.drop_flushing()
    assert cache.swap().is_empty


def test_a_flush_is_due_at_half_the_capacity_and_both_halves_count_for_full() -> None:
    size = 1000 - ENTRY_OVERHEAD
    cache, one = WriteCache(4000 + 2 * LEDGER_OVERHEAD), ledger(1)
    assert not cache.put(one, 0, bytes(size))
    assert cache.put(one, 1, bytes(size))
    cache.swap()
    assert not cache.put(one, 2, bytes(size))
    assert not cache.is_full
    assert cache.put(one, 3, bytes(size))
    assert cache.is_full
    cache.drop_flushing()
    assert not cache.is_full


@pytest.mark.parametrize("capacity", [3_000, 100_000])
def test_a_run_is_put_as_its_entries_are(capacity: int) -> None:
    singly, together = WriteCache(capacity), WriteCache(capacity)
    one = ledger(1)
    for entry_ids in ((1, 2, 3), (3, 4, 7), (2, 3), (5,)):
        packets = [bytes(100 * each) for each in entry_ids]
        due = [singly.put(one, entry_id, packet) for entry_id, packet in zip(entry_ids, packets, strict=True)]
        assert together.put_run(one, entry_ids, packets) == due[-1]
        assert together.usage == singly.usage
    assert together.swap() == singly.swap()


def test_a_run_is_written_to_its_ledger_and_refused_for_one_that_was_discarded() -> None:
    cache, one = WriteCache(10_000), ledger(1)
    cache.watch([1])
    cache.put_run(one, [0, 1], [b"a", b"b"])
    assert not cache.discard_unwritten(1, one)
    cache.discard(one)
    with pytest.raises(LedgerDeletedException):
        cache.put_run(one, [0, 1], [b"a", b"b"])
    assert cache.usage == (0, 0)


def test_two_flushes_at_once_are_a_bug() -> None:
    cache, one = WriteCache(4000), ledger(1)
    cache.put(one, 0, b"x")
    cache.swap()
    with pytest.raises(RuntimeError, match="has not ended"):
        cache.swap()


def test_what_is_discarded_leaves_no_trace_and_nothing_more_is_taken() -> None:
    cache, one, two = WriteCache(10_000), ledger(1), ledger(2)
    cache.put(two, 0, b"kept")
    cache.put(one, 0, b"gone")
    cache.mark_header(one)
    cache.discard(one)
    assert cache.ledgers() == {two}
    assert cache.get(one, 0) is None
    with pytest.raises(LedgerDeletedException):
        cache.put(one, 1, b"late")
    with pytest.raises(LedgerDeletedException):
        cache.mark_header(one)
    kept = WriteCache(10_000)
    kept.put(two, 0, b"kept")
    for each in (cache, kept):
        each.swap()
    assert cache.flushing_bytes == kept.flushing_bytes


def test_runs_of_cached_entries() -> None:
    cache, one = WriteCache(10_000), ledger(1)
    cache.put(one, 0, b"flushing")
    cache.swap()
    cache.put(one, 1, b"active")
    cache.put(one, 5, b"later")
    assert cache.get_run(one, 0, 10) == [b"flushing", b"active"]
    assert cache.get_run(one, 0, 1) == [b"flushing"]
    assert cache.first_held(one, 2, 10) == 3
    assert cache.first_held(one, 6, 10) == 10
    assert cache.first_held(ledger(2), 0, 7) == 7


def test_headers_alone_fill_the_cache_too() -> None:
    """Whoever fences very many ledgers must not fill the memory before the next checkpoint."""
    cache = WriteCache(100_000)
    ledgers = [LedgerDescriptor(LedgerId.unscoped(number), b"k" * 20) for number in range(1000)]
    due = [cache.mark_header(ledger) for ledger in ledgers]
    assert not due[0]
    assert due[-1]
    assert cache.is_full
    for ledger in ledgers:
        cache.mark_header(ledger)
        cache.discard(ledger)
    assert cache.usage == (0, 0)
