"""Storage of unbounded ledgers: term, LAC and LAFR are kept, and what was truncated never comes back (U1, U3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import IndexHeader, slot_runs
from bookgate.bookie.index.terms import Terms
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.writer import MOST_TRUNCATED
from bookgate.ledger.errors import IncorrectParameterException, NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import AddRequest, Status
from tests.faults.memory_disk import MemoryDisk, everything_survives, nothing_survives, oldest_survive, some_survive
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.storage.storage_support import (
    KEY,
    OpenStorage,
    Token,
    lac_packet,
    opened,
    packet,
    read_entries,
)

LEDGER = 5
ID = LedgerId.unscoped(LEDGER)


def add_of(entry_id: int, term: int, fill: int | None = None, lac: int | None = None, **more: Any) -> AddRequest:
    return AddRequest(1, LEDGER, entry_id, KEY, packet(LEDGER, entry_id, lac=lac, fill=fill), term=term, **more)


def add(bookie: OpenStorage, entry_id: int, term: int, fill: int | None = None, **more: Any) -> None:
    """Adds and waits until entry and term are durable; in the dirty part of a ledger, with LAC 2."""
    token = object()
    request = add_of(entry_id, term, fill, min(entry_id - 1, 2), **more)
    bookie.storage.writer.add_at_term(bookie.ledger(LEDGER), request, Token(token))
    bookie.acks.wait_for(token)


def fence(bookie: OpenStorage, term: int) -> None:
    token = object()
    bookie.storage.writer.fence_at_term(bookie.ledger(LEDGER), term, Token(token))
    bookie.acks.wait_for(token)


def held(bookie: OpenStorage) -> list[int]:
    """What the ledger has by its list of entries, by single reads, and by batches: all agree."""
    ledger, reader = bookie.ledger(LEDGER), bookie.storage.reader
    listed = [first + index for first, count in reader.entry_ids(ledger) for index in range(count)]
    single = [entry_id for entry_id in range(20) if reader.held_entry(ledger, entry_id) is not None]
    assert listed == single
    assert reader.last_entry_id(ledger) == max(listed, default=-1)
    run = 0
    while run in listed:
        run += 1
    if run:
        assert read_entries(bookie, ledger, 0, 100, 1 << 20) == [reader.read_entry(ledger, each) for each in range(run)]
    return listed


@pytest.fixture(params=["interleaved", "db"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- the rules ---


def state(term: int | None = None, **changes: Any) -> BookieLedgerState:
    ledger = BookieLedgerState(ID, KEY, **changes)
    ledger.term = term
    return ledger


@pytest.mark.parametrize(
    ("held_term", "fenced", "term", "recovery", "status"),
    [
        (None, False, 0, False, Status.EOK),
        (3, False, 2, False, Status.EINVALIDTERM),
        (3, False, 2, True, Status.EINVALIDTERM),
        (3, False, 3, False, Status.EOK),
        (3, False, 4, False, Status.EOK),
        (3, True, 3, False, Status.EFENCED),
        (3, True, 4, False, Status.EFENCED),
        (3, True, 3, True, Status.EOK),
        (3, False, None, False, Status.EFENCED),
        (3, False, None, True, Status.EOK),
        (None, True, 0, False, Status.EFENCED),
        (None, True, 0, True, Status.EOK),
    ],
)
def test_which_adds_a_term_lets_pass(
    held_term: int | None, fenced: bool, term: int | None, recovery: bool, status: Status
) -> None:
    ledger = state(held_term, fenced=fenced)
    assert ledger.check_add(KEY, recovery=recovery, term=term) is status
    assert ledger.check_add(b"o" * 20, recovery=recovery, term=term) is Status.EUA


def test_a_term_never_falls_and_only_a_higher_one_that_takes_over_lifts_a_fence() -> None:
    ledger = state(3, fenced=True)
    assert not ledger.raise_term(3, takes_over=True)
    assert not ledger.raise_term(2, takes_over=True)
    assert (ledger.term, ledger.fenced) == (3, True)
    assert ledger.raise_term(4, takes_over=False)
    assert (ledger.term, ledger.fenced) == (4, True)
    assert ledger.raise_term(5, takes_over=True)
    assert (ledger.term, ledger.fenced) == (5, False)


def test_an_older_state_that_is_brought_back_raises_lac_and_lafr_only() -> None:
    ledger = state(5, known_lac=1)
    ledger.take_terms(Terms(3, True, 7, 6))
    assert ledger.terms == Terms(5, False, 7, 6)
    ledger.take_terms(Terms(5, True, 2, 2))
    assert ledger.terms == Terms(5, True, 7, 6)


def test_readers_see_what_is_confirmed() -> None:
    assert state(known_lac=2).shows(9, None)
    ledger = state(0, known_lac=2)
    assert [ledger.shows(entry_id, None) for entry_id in (2, 3)] == [True, False]
    assert [ledger.shows(entry_id, 4) for entry_id in (4, 5)] == [True, False]


def test_what_is_confirmed_is_not_truncated() -> None:
    ledger = state(1, known_lac=4)
    assert [ledger.check_truncate(entry_id) for entry_id in (3, 4, 5)] == [Status.EBADREQ, Status.EBADREQ, Status.EOK]


def test_a_ledger_in_limbo_takes_no_add_with_a_term() -> None:
    ledger = LedgerDescriptor(ID, KEY, limbo=True)
    for recovery in (False, True):
        assert ledger.check_add(KEY, recovery=recovery, term=4) is Status.EUNKNOWNLEDGERSTATE
    assert ledger.check_add(KEY, recovery=True) is Status.EOK


def test_no_client_lifts_the_fence_of_a_ledger_in_limbo() -> None:
    ledger = LedgerDescriptor(ID, KEY, fenced=True, limbo=True)
    ledger.take_terms(Terms(3, False, 2, 1))
    assert ledger.terms == Terms(3, True, 2, 1)
    assert ledger.raise_term(5, takes_over=True)
    assert ledger.terms == Terms(5, True, 2, 1)


# --- what is kept ---


def test_term_lac_and_lafr_survive_a_restart(tmp_path: Path, storage: str) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        for entry_id in range(4):
            add(bookie, entry_id, 3, lafr=1)
    with opened(tmp_path, storage=storage) as bookie:
        assert bookie.ledger(LEDGER).terms == Terms(3, False, 2, 1)
        bookie.fence(LEDGER)
        assert bookie.ledger(LEDGER).check_add(KEY, recovery=False, term=3) is Status.EFENCED
    with opened(tmp_path, storage=storage) as bookie:
        assert bookie.ledger(LEDGER).terms == Terms(3, True, 2, 1)
        fence(bookie, 4)
        assert bookie.ledger(LEDGER).check_add(KEY, recovery=False, term=4) is Status.EOK
        assert bookie.ledger(LEDGER).check_add(KEY, recovery=False, term=3) is Status.EINVALIDTERM
        add(bookie, 4, 4)
    with opened(tmp_path, storage=storage) as bookie:
        assert bookie.ledger(LEDGER).terms == Terms(4, False, 2, 1)


def test_a_fence_at_a_term_of_a_ledger_never_seen_is_kept(tmp_path: Path, storage: str) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        fence(bookie, 7)
    with opened(tmp_path, storage=storage) as bookie:
        assert bookie.ledger(LEDGER).check_add(KEY, recovery=True, term=6) is Status.EINVALIDTERM


@pytest.mark.parametrize("fenced", [False, True])
def test_an_ordinary_ledger_gets_no_term(tmp_path: Path, storage: str, *, fenced: bool) -> None:
    """Neither one with entries nor one that is fenced without, also after a restart."""
    with opened(tmp_path, storage=storage) as bookie:
        if fenced:
            bookie.fence(LEDGER)
        else:
            bookie.add(LEDGER, 0)
    with opened(tmp_path, storage=storage) as bookie:
        ledger = bookie.ledger(LEDGER)
        assert ledger.check_term(7) is Status.EBADREQ
        for recovery in (False, True):
            assert ledger.check_add(KEY, recovery=recovery, term=7) is Status.EBADREQ
        assert ledger.check_add(KEY, recovery=True) is Status.EOK


def test_an_index_header_without_a_term_is_what_it_always_was() -> None:
    plain = IndexHeader(KEY, False, lac_packet(LEDGER, 3))
    kept = plain._replace(terms=Terms(3, False, 8, -1))
    assert file_format.decode_header(kept.encode(), "x") == kept
    difference = [at for at, (one, other) in enumerate(zip(plain.encode(), kept.encode(), strict=True)) if one != other]
    fence_bit = 12 + len(KEY) + 3
    assert {at for at in difference if at < file_format.TERMS_AT} == {fence_bit}
    assert max(difference) < 512


def test_a_damaged_term_is_found_by_the_checksum() -> None:
    data = bytearray(IndexHeader(KEY, False, None, terms=Terms(3, False, 8, 5)).encode())
    data[file_format.TERMS_AT + 11] ^= 1
    with pytest.raises(OSError, match="does not match its checksum"):
        file_format.decode_header(bytes(data), "x")


def test_a_header_without_room_for_a_term_refuses_it(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        long = lac_packet(LEDGER, 3) + bytes(600)
        bookie.writer.write_explicit_lac(bookie.ledger(LEDGER), long, "lac")
        with pytest.raises(IncorrectParameterException, match="no room for a term"):
            add(bookie, 0, 1)
        with pytest.raises(IncorrectParameterException, match="no room for a term"):
            fence(bookie, 1)
        assert bookie.ledger(LEDGER).term is None
    with pytest.raises(ValueError, match="with a term"):
        IndexHeader(KEY, False, bytes(600), terms=Terms(1, False, -1, -1)).encode()


@pytest.mark.parametrize("number", [LEDGER, (9 << 64) + 5])
def test_journal_records_come_back(number: int) -> None:
    terms = Terms(4, True, 9, -1)
    assert journal_format.decode_term(journal_format.encode_term(number, terms)) == terms
    assert journal_format.decode_truncate(journal_format.encode_truncate(number, 6)) == 6
    for wrong in (terms._replace(term=-1),):
        with pytest.raises(ValueError, match="term -1"):
            journal_format.decode_term(journal_format.encode_term(number, wrong))
    with pytest.raises(ValueError, match="up to -1"):
        journal_format.decode_truncate(journal_format.encode_truncate(number, -1))
    with pytest.raises(ValueError, match="content"):
        journal_format.decode_truncate(journal_format.encode_term(number, terms))
    with pytest.raises(ValueError, match="content"):
        journal_format.decode_term(journal_format.encode_truncate(number, 6))


# --- truncation ---


@pytest.mark.parametrize("flushed", [(), ("before",), ("after",), ("before", "after")])
def test_what_is_truncated_is_gone_at_once_and_after_restarts(
    tmp_path: Path, storage: str, flushed: tuple[str, ...]
) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        for entry_id in range(8):
            add(bookie, entry_id, 1, fill=1)
        if "before" in flushed:
            bookie.storage.checkpoint()
            assert held(bookie) == list(range(8))
        add(bookie, 4, 2, fill=2, recovery=True, truncate=True)
        assert held(bookie) == list(range(5))
        if "after" in flushed:
            bookie.storage.checkpoint()
            assert held(bookie) == list(range(5))
        add(bookie, 6, 2, fill=3)
        assert held(bookie) == [0, 1, 2, 3, 4, 6]
        with pytest.raises(NoSuchEntryException):
            bookie.storage.reader.read_entry(bookie.ledger(LEDGER), 5)
    for _ in range(2):
        with opened(tmp_path, storage=storage) as bookie:
            assert held(bookie) == [0, 1, 2, 3, 4, 6]
            assert bookie.storage.reader.read_entry(bookie.ledger(LEDGER), 6) == packet(LEDGER, 6, lac=2, fill=3)
            assert not bookie.storage.limbo()


def test_a_truncation_during_a_flush_hides_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as bookie:
        for entry_id in range(8):
            add(bookie, entry_id, 1)
        ledger, logs = bookie.ledger(LEDGER), bookie.storage.stores[0].logs
        sync, seen = logs.sync, []

        def truncate_first() -> None:
            monkeypatch.setattr(logs, "sync", sync)
            add(bookie, 4, 2, truncate=True)
            with pytest.raises(NoSuchEntryException):
                bookie.storage.reader.read_entry(ledger, 5)
            found = read_entries(bookie, ledger, 3, 10, 1 << 20)
            assert found == [packet(LEDGER, 3, lac=2), packet(LEDGER, 4, lac=2)]
            seen.append(held(bookie))
            sync()

        monkeypatch.setattr(logs, "sync", truncate_first)
        bookie.storage.checkpoint()
        assert seen == [list(range(5))]
        assert held(bookie) == list(range(5))


def test_collection_brings_nothing_back_that_was_truncated(tmp_path: Path) -> None:
    """A compaction copies from a log that still has the truncated entries, before and after the index knows."""
    with opened(tmp_path, entry_log_max_bytes=600) as bookie:
        for entry_id in range(12):
            add(bookie, entry_id, 1)
            bookie.storage.checkpoint()
        add(bookie, 4, 2, truncate=True)
        Collection(bookie.storage).run()
        assert held(bookie) == list(range(5))
        bookie.storage.checkpoint()
        Collection(bookie.storage).run()
        assert held(bookie) == list(range(5))
    with opened(tmp_path) as bookie:
        assert held(bookie) == list(range(5))


@pytest.mark.parametrize("storage", ["interleaved", "db"])
def test_as_many_ids_are_truncated_as_any_writer_has_in_flight(tmp_path: Path, storage: str) -> None:
    """An ensemble of which only one bookie is left gets adds up to what memory allows, none of them confirmed."""
    with opened(tmp_path, storage=storage) as bookie:
        add(bookie, 0, 1)
        add(bookie, 1_048_577, 1)
        add(bookie, 1, 2, truncate=True)
        assert held(bookie) == [0, 1]
        bookie.storage.checkpoint()
        assert held(bookie) == [0, 1]
    with opened(tmp_path, storage=storage) as bookie:
        assert held(bookie) == [0, 1]


def test_a_truncation_of_too_much_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        add(bookie, 0, 1)
        add(bookie, MOST_TRUNCATED + 2, 1)
        with pytest.raises(IncorrectParameterException, match=f"at most {MOST_TRUNCATED}"):
            add(bookie, 1, 2, truncate=True)
        assert bookie.ledger(LEDGER).term == 1


def test_slots_that_delete_are_missed_by_nobody(tmp_path: Path) -> None:
    """The seal of an index file proves a loss; a deletion is none."""
    with opened(tmp_path) as bookie:
        bookie.add(LEDGER, *range(6))
        bookie.storage.checkpoint()
        index = bookie.storage.stores[0].index
        index.update(ID, None, slot_runs([3, 4, 5], [0, 0, 0]))
        index.sync()
        assert list(index.entry_ids(ID)) == [0, 1, 2]
        header, last = index.read_header(ID) or (None, -1)
        assert header is not None
        assert (header.lost, last) == (False, 2)


# --- crashes ---


class Life:
    """A storage that goes through a take-over, and what it has acknowledged so far."""

    def __init__(self, root: Path, disk: MemoryDisk) -> None:
        self.done = 0
        self._steps: list[AddRequest | int] = [
            *(add_of(entry_id, 1, 1, min(entry_id - 1, 2), lafr=1) for entry_id in range(7)),
            2,
            add_of(3, 2, 1, 2, recovery=True),
            add_of(4, 2, 2, 2, recovery=True, truncate=True),
            add_of(5, 2, 2, 2),
        ]
        self.bookie = OpenStorage(root, disk, journal_pre_alloc_bytes=4096)

    def run(self) -> None:
        for step in self._steps:
            ledger, token = self.bookie.ledger(LEDGER), Token(step)
            if isinstance(step, int):
                self.bookie.storage.writer.fence_at_term(ledger, step, token)
            else:
                self.bookie.storage.writer.add_at_term(ledger, step, token)
            self.bookie.acks.wait_for_count(self.done + 1)
            self.done += 1
            if self.done in (5, 10):
                self.bookie.storage.checkpoint()
        self.bookie.storage.close()


def check_left(bookie: OpenStorage, done: int, what: str) -> None:
    """What a crash after `done` steps may leave."""
    ledger = bookie.storage.ledgers.get(ID)
    if ledger is None:
        assert done == 0, what
        return
    assert not bookie.storage.limbo(), what
    entries = held(bookie)
    assert entries[: min(done, 4)] == list(range(min(done, 4))), what
    assert (ledger.term or 0) >= (2 if done >= 8 else 1 if done else 0), what
    if done >= 10:
        read = bookie.storage.reader.read_entry
        assert 6 not in entries, what
        assert read(ledger, 4) == packet(LEDGER, 4, lac=2, fill=2), what
        assert (5 in entries) >= (done >= 11), what
        assert 5 not in entries or read(ledger, 5) == packet(LEDGER, 5, lac=2, fill=2), what


def test_a_crash_at_any_operation_loses_no_term_and_brings_no_truncated_entry_back(tmp_path: Path) -> None:
    disk = MemoryDisk(tmp_path / "journal" / "current", tmp_path / "ledgers" / "current")
    found: dict[tuple[int, int], tuple[str, MemoryDisk]] = {}
    life = Life(tmp_path, disk)

    def look(operation: Any) -> None:
        done = len(life.bookie.acks.tokens)
        for survival in (
            nothing_survives,
            everything_survives,
            oldest_survive(operation.number, 1),
            some_survive(operation.number),
        ):
            left = disk.after_power_loss(survival)
            found.setdefault((left.digest(), done), (str(operation), left))

    disk.on_operation = look
    life.run()
    assert len(found) > 50
    for (_, done), (what, left) in found.items():
        for _ in range(2):
            bookie = OpenStorage(tmp_path, left, journal_pre_alloc_bytes=4096)
            try:
                check_left(bookie, done, what)
            finally:
                bookie.storage.close()
