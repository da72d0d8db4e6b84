"""Ledgers with and without a scope in one bookie's files: none is ever taken for another (D1)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.collection.entry_log_collector import EntryLogCollector
from bookgate.bookie.collection.rules import CompactionRule
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.entry_logs import format as log_format
from bookgate.bookie.index import file_format
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.storage.limbo import Limbo
from bookgate.bookie.system.data_loss import refuse_loss
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.errors import DataUnknownException, NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import OpenStorage, lac_packet, opened, packet

MIXED = [LedgerId(scope, 7).number for scope in (0, 1, 7, -1, 1 << 40)]
"""One ledger id in five scopes."""
NUMBERS = st.builds(
    LedgerId, st.integers(-(2**63), 2**63 - 1).filter(bool), st.integers(-(2**63), 2**63 - 1)
) | st.builds(LedgerId, st.just(0), st.integers(0, 2**63 - 1))
KINDS = pytest.mark.parametrize("kind", ["files", "db"])


def config_of(kind: str) -> dict[str, Any]:
    return {"storage": "db"} if kind == "db" else {}


def size_of(number: int) -> int:
    """A payload of each ledger's own size, so that no entry passes for another."""
    return 40 + MIXED.index(number)


def expect_all(storage: OpenStorage, numbers: list[int], entries: int) -> None:
    for number in numbers:
        ledger = storage.storage.ledgers.get(LedgerId.of_number(number))
        assert ledger is not None
        for entry_id in range(entries):
            assert storage.storage.reader.read_entry(ledger, entry_id) == packet(number, entry_id, size_of(number))
        assert storage.storage.reader.last_entry_id(ledger) == entries - 1
        with pytest.raises(NoSuchEntryException):
            storage.storage.reader.read_entry(ledger, entries)


@KINDS
@pytest.mark.parametrize("flushed", [True, False], ids=["flushed", "replayed"])
def test_ledgers_of_one_id_stay_apart_over_restarts(tmp_path: Path, kind: str, flushed: bool) -> None:
    with opened(tmp_path / "first", **config_of(kind)) as storage:
        for number in MIXED:
            storage.add(number, 0, 1, 2, size=size_of(number))
        storage.fence(MIXED[1])
        storage.write_lac(MIXED[2], 2)
        expect_all(storage, MIXED, 3)
        if not flushed:
            shutil.copytree(tmp_path / "first", tmp_path / "killed")
    with opened(tmp_path / ("first" if flushed else "killed"), **config_of(kind)) as again:
        expect_all(again, MIXED, 3)
        assert again.storage.ledger_ids().tolist() == [7]
        assert again.storage.scoped_ledgers() == sorted(MIXED[1:])
        found = [again.storage.ledgers.get(LedgerId.of_number(number)) for number in MIXED]
        assert [each is not None and each.fenced for each in found] == [False, True, False, False, False]
        lacs = [each.explicit_lac for each in found if each is not None]
        assert lacs == [None, None, lac_packet(MIXED[2], 2), None, None]
        assert again.storage.ledgers.get(LedgerId(2, 7)) is None


@KINDS
def test_deleting_one_leaves_the_others(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, **config_of(kind)) as storage:
        for number in MIXED:
            storage.add(number, 0, 1, size=size_of(number))
        storage.storage.checkpoint()
        for position, gone in enumerate([MIXED[1], MIXED[0], MIXED[4]], 1):
            assert storage.storage.delete_ledgers([gone]) == [gone]
            assert storage.storage.ledgers.get(LedgerId.of_number(gone)) is None
            left = [number for number in MIXED if number not in [MIXED[1], MIXED[0], MIXED[4]][:position]]
            expect_all(storage, left, 2)
        assert storage.storage.scoped_ledgers() == sorted([MIXED[2], MIXED[3]])


@KINDS
def test_compaction_moves_what_is_alive_of_every_scope(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, entry_log_max_bytes=2000, **config_of(kind)) as storage:
        for number in MIXED:
            storage.add(number, *range(10), size=size_of(number))
        storage.storage.checkpoint()
        storage.add(9, *range(30))
        storage.storage.checkpoint()  # so that those before it are complete
        storage.storage.delete_ledgers([MIXED[0], MIXED[3]])
        collector = EntryLogCollector(
            REAL_FILE_SYSTEM, storage.storage, Event(), GcStatistics(), (0.0, False), lambda: 0.0
        )
        collector.collect()
        before = {usage.log_id for usage in collector.usages()}
        assert {number for usage in collector.usages() for number in usage.ledgers} >= {MIXED[1], MIXED[2]}
        collector.compact(CompactionRule(1.0, 1))
        assert before - set(storage.storage.stores[0].logs.complete_logs())
        expect_all(storage, [MIXED[1], MIXED[2], MIXED[4]], 10)
    with opened(tmp_path, **config_of(kind)) as again:
        expect_all(again, [MIXED[1], MIXED[2], MIXED[4]], 10)


def test_a_lost_index_file_of_a_scoped_ledger_is_known_to_be_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        for number in MIXED:
            storage.add(number, 0, size=size_of(number))
    assert (tmp_path / "ledgers/bookie.scoped-index").exists()
    path = tmp_path / "ledgers/current" / file_format.relative_path(LedgerId.of_number(MIXED[2]))
    path.unlink()
    with opened(tmp_path) as again:
        assert again.storage.limbo() == [MIXED[2]]
        expect_all(again, [number for number in MIXED if number != MIXED[2]], 1)
        lost = again.ledger(MIXED[2])
        with pytest.raises(DataUnknownException):
            again.storage.reader.read_entry(lost, 0)
    limbo = Limbo(REAL_FILE_SYSTEM, [tmp_path / "ledgers"])
    limbo.load(refuse_loss)
    assert limbo.numbers() == [MIXED[2]]
    assert not (tmp_path / "ledgers/bookie.limbo").exists()
    limbo.add([7])
    limbo.remove([MIXED[2]])
    assert not (tmp_path / "ledgers/bookie.scoped-limbo").exists()


def test_without_scopes_there_is_no_file_for_them(tmp_path: Path) -> None:
    for kind in ("files", "db"):
        with opened(tmp_path / kind, **config_of(kind)) as storage:
            storage.add(7, 0, 1)
            storage.storage.delete_ledgers([7])
            storage.storage.checkpoint()
        assert not [path for path in (tmp_path / kind).rglob("*") if "scoped" in path.name]


@given(st.dictionaries(NUMBERS.map(lambda each: each.number), st.integers(1, 2**40), max_size=30))
def test_the_map_of_a_log_names_scopes_in_a_record_of_their_own(taken: dict[int, int]) -> None:
    data = log_format.encode_ledgers_map(taken)
    assert log_format.decode_ledgers_map(data, len(taken)) == taken
    unscoped = {number: size for number, size in taken.items() if number < 2**63}
    assert data.startswith(log_format.encode_ledgers_map(unscoped))
    if len(unscoped) < len(taken):
        assert log_format.decode_ledgers_map(log_format.encode_ledgers_map(unscoped), len(taken)) is None


@given(NUMBERS, NUMBERS, st.integers(0, 2**40))
def test_keys_on_disk_never_alias(one: LedgerId, other: LedgerId, entry_id: int) -> None:
    """Paths, records of journals and entry logs, and what tells them apart."""
    forms: list[Callable[[LedgerId], object]] = [
        file_format.relative_path,
        lambda each: packet(each.number, entry_id)[:25],
        lambda each: journal_format.encode_fence(each.number),
        lambda each: journal_format.encode_key(each.number, b"k" * 20),
        lambda each: journal_format.encode_explicit_lac(each.number, b"l" * 20),
        lambda each: journal_format.encode_made_anew(each.number),
    ]
    for form in forms:
        assert (form(one) == form(other)) == (one == other)
    record = log_format.encode_records([packet(one.number, entry_id)])
    assert log_format.decode_prefix(record)[1:] == (one.number, entry_id)


@pytest.mark.parametrize("cut", [1, 5, 9, 17, 24])
def test_a_record_whose_ids_a_block_boundary_cut_is_a_torn_tail(cut: int) -> None:
    whole = packet(MIXED[3], 3, 2000)
    start = 512 - cut
    data = bytearray(b"\0" * (start - 4) + len(whole).to_bytes(4, "big") + whole + bytes(64))
    for block in range(512, len(data), 512):
        if block == 512:
            data[block : block + 512] = bytes(512)
    scan = journal_format.JournalScan(lambda size, at: bytes(data[at : at + size]), len(data), start - 4, 6, "x")
    assert list(scan) == []
    data[512 : 512 + 512] = (b"\0" * start + whole)[512 : 512 + 512]
    scan = journal_format.JournalScan(lambda size, at: bytes(data[at : at + size]), len(data), start - 4, 6, "x")
    assert [(record.ledger_id, record.entry_id) for record in scan] == [(MIXED[3], 3)]
