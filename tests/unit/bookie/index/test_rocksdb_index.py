"""The RocksDB index: rows as BookKeeper's, order of writes, and a directory of the Java bookie."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rocksdict import Options, Rdict, WriteBatch

from bookgate.bookie.index import rocksdb_rows
from bookgate.bookie.index.file_format import IndexHeader, slot_runs
from bookgate.bookie.index.rocksdb_database import Database
from bookgate.bookie.index.rocksdb_index import RocksDbIndex
from bookgate.bookie.index.rocksdb_rows import LEDGERS, LOCATIONS, SCOPED_LEDGERS, SCOPED_LOCATIONS, RocksDbRows
from bookgate.bookie.index.rocksdb_sequences import SCOPED_SEQUENCES_FILE, SEQUENCES_FILE
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Retry
from bookgate.bookie.system.data_loss import LostDataException
from bookgate.bookie.system.files import (
    REAL_FILE_SYSTEM,
    FileSystem,
    StorageCorruptException,
    StorageStoppedException,
    is_not_opened,
)
from bookgate.ledger.errors import NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from tests.conformance.golden import VECTORS
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.storage.storage_support import (
    Acknowledgements,
    FullFor,
    OpenStorage,
    lac_packet,
    opened,
    packet,
    small_config,
)

KEY = b"k" * 20
HEADER = IndexHeader(KEY, False, None)


class Opener:
    """Opens the index of one directory, again after `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.index = self.open()

    def open(self) -> RocksDbIndex:
        return RocksDbIndex(REAL_FILE_SYSTEM, self.directory, 1 << 20)

    def reopen(self) -> RocksDbIndex:
        self.index.close()
        self.index = self.open()
        return self.index

    def rows(self, database: str) -> dict[Any, Any]:
        """Everything in a database."""
        seen: dict[Any, Any] = {}
        self.edit(database, lambda rows: seen.update(dict(rows.items())))
        return seen

    def edit(self, database: str, change: Callable[[Rdict], object]) -> RocksDbIndex:
        """Changes a database behind the index's back, and opens the index again."""
        self.index.close()
        with Rdict(str(self.directory / database), Options(raw_mode=True)) as rows:
            change(rows)
        self.index = self.open()
        return self.index


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path)
    yield opener
    opener.index.close()


def unscoped(number: int) -> LedgerId:
    return LedgerId.unscoped(number)


def write(index: RocksDbIndex, number: int, entry_ids: list[int], header: IndexHeader | None = HEADER) -> None:
    index.update(unscoped(number), header, slot_runs(entry_ids, [1 << 32 | 2000 + entry for entry in entry_ids]))
    index.sync()


def test_what_was_synced_is_there_after_a_reopening(opener: Opener) -> None:
    lac = struct.pack(">qqi", 5, 1, 0)
    write(opener.index, 5, [0, 1, 2, 700], IndexHeader(KEY, True, lac))
    write(opener.index, 6, [9])
    index = opener.reopen()
    assert index.read_header(unscoped(5)) == (IndexHeader(KEY, True, lac), 700)
    assert index.read_header(unscoped(6)) == (HEADER, 9)
    assert index.read_header(unscoped(7)) is None
    assert list(index.entry_ids(unscoped(5))) == [0, 1, 2, 700]
    assert index.location(unscoped(5), 700) == 1 << 32 | 2700
    assert index.location(unscoped(5), 3) == 0
    assert index.log_ids(unscoped(5)) == {1}
    assert list(index.locations(unscoped(5), 1, 9)) == [1 << 32 | 2001, 1 << 32 | 2002]
    assert list(index.locations(unscoped(5), 0, 2)) == [1 << 32 | 2000, 1 << 32 | 2001]
    assert list(index.locations(unscoped(5), 3, 9)) == []
    assert list(index.ledger_ids()) == [5, 6]


def test_rows_are_bookkeepers_own(opener: Opener) -> None:
    write(opener.index, 5, [3])
    write(opener.index, 6, [], IndexHeader(KEY, True, None))
    assert opener.rows("ledgers") | opener.rows("locations") == {
        struct.pack(">q", 5): bytes.fromhex("080110001a14") + KEY,
        struct.pack(">q", 6): bytes.fromhex("080110011a14") + KEY,
        struct.pack(">qq", 5, 3): struct.pack(">q", 1 << 32 | 2003),
    }


def test_an_update_without_sync_is_as_if_it_never_was(opener: Opener) -> None:
    opener.index.update(unscoped(5), HEADER, slot_runs([0], [1 << 32 | 2000]))
    assert opener.index.read_header(unscoped(5)) is None
    assert opener.reopen().read_header(unscoped(5)) is None


def test_deleting_takes_one_ledger_with_its_locations(opener: Opener) -> None:
    for number in (4, 5, 6):
        write(opener.index, number, [0, 1])
    opener.index.delete(unscoped(5))
    opener.index.delete(unscoped(77))
    opener.index.sync()
    index = opener.reopen()
    assert list(index.ledger_ids()) == [4, 6]
    assert list(index.entry_ids(unscoped(5))) == []
    assert [list(index.entry_ids(unscoped(number))) for number in (4, 6)] == [[0, 1], [0, 1]]


def test_locations_of_an_unknown_ledger_never_become_those_of_one_with_its_id(opener: Opener) -> None:
    for number in (4, 5, 6):
        write(opener.index, number, [0, 1], header=None)
    index = opener.reopen()
    assert index.read_header(unscoped(5)) is None
    assert list(index.ledger_ids()) == []
    # One that is made with this id is not in the index before its first flush.
    assert index.location(unscoped(5), 0) == 0
    assert list(index.locations(unscoped(5), 0, 2)) == list(index.entry_ids(unscoped(5))) == []
    write(index, 5, [1, 3])
    write(index, 6, [])
    for _ in range(2):
        assert index.read_header(unscoped(5)) == (HEADER, 3)
        assert list(index.entry_ids(unscoped(5))) == [1, 3]
        assert index.read_header(unscoped(6)) == (HEADER, -1)
        index = opener.reopen()


def test_a_ledger_that_takes_several_batches_keeps_the_locations_of_each(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_rows, "_BATCH_OPERATIONS", 2)
    write(opener.index, 5, [0, 1, 2, 3], header=None)
    index = opener.reopen()
    assert index.read_header(unscoped(5)) is None
    for first in (1, 4, 7):
        ids = range(first, first + 3)
        index.update(unscoped(5), HEADER, slot_runs(list(ids), [1 << 32 | 2000 + entry for entry in ids]))
    index.sync()
    assert list(index.entry_ids(unscoped(5))) == list(range(1, 10))
    write(index, 5, [10])
    assert list(opener.reopen().entry_ids(unscoped(5))) == list(range(1, 11))


def refuse_writes(patch: pytest.MonkeyPatch, database: str) -> None:
    """No write to this database finds room."""
    write_to = Database.write

    def refuse(self: Database, batch: WriteBatch) -> None:
        if self._path.name == database:
            self._writable = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        write_to(self, batch)

    patch.setattr(Database, "write", refuse)


def test_a_flush_that_never_wrote_the_row_is_repeated_whole(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opener.index
    with monkeypatch.context() as patch:
        refuse_writes(patch, LEDGERS)
        with pytest.raises(OSError, match="No space left"):
            write(index, 5, [0, 1, 2])
    write(index, 5, [0, 1])
    assert list(index.entry_ids(unscoped(5))) == [0, 1]
    assert index.read_header(unscoped(5)) == (HEADER, 1)


def test_leftovers_that_a_database_without_room_does_not_show_are_deleted(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their deletion was in a batch that found no space: it is shown, and gone once the database is reopened."""
    write(opener.index, 5, [0, 1], header=None)
    index = opener.reopen()
    index._unscoped._locations._writable = False
    with monkeypatch.context() as patch:
        patch.setattr(RocksDbRows, "_has_locations", lambda *arguments: False)
        write(index, 5, [2])
    assert list(opener.reopen().entry_ids(unscoped(5))) == [2]


def test_a_flush_that_never_wrote_the_row_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    with monkeypatch.context() as patch, opened(tmp_path / "one", storage="db") as bookie:
        refuse_writes(patch, LEDGERS)
        bookie.add(7, 0, 1, 2)
        with pytest.raises(OSError, match="No space left"):
            bookie.storage.checkpoint()
        bookie.add(7, 3)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    for _ in range(2):
        with opened(tmp_path / "two", storage="db") as bookie:
            ledger = bookie.ledger(7)
            assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, 4)]
            for entry_id in range(4):
                assert bookie.storage.reader.read_entry(ledger, entry_id) == packet(7, entry_id)


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("number", [7, LedgerId(5, 7).number])
def test_what_the_journal_refused_is_not_found_in_a_later_ledger_with_the_id(
    tmp_path: Path, number: int, killed: bool, collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of a ledger whose key the journal never had were flushed in part: their locations, and no row."""
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    root, files = tmp_path / "one", FullFor(lambda path: path.suffix == ".txn")
    bookie = OpenStorage(root, files, storage="db")
    for each in (1, LedgerId(5, 1).number):
        bookie.add(each, 0)
    bookie.storage.checkpoint()
    files.full = True
    old = bookie.ledger(number, b"o" * 20)
    for entry_id in range(6):
        with contextlib.suppress(OSError):
            bookie.writer.add_entry(old, entry_id, packet(number, entry_id, fill=99), entry_id)
    with monkeypatch.context() as patch:
        refuse_writes(patch, LEDGERS if number == 7 else SCOPED_LEDGERS)
        with pytest.raises(OSError, match="No space left"):
            bookie.storage.checkpoint()
        if killed:
            root = shutil.copytree(root, tmp_path / "two")
        bookie.storage.close()
    with opened(root, storage="db") as bookie:
        assert bookie.storage.ledgers.get(LedgerId.of_number(number)) is None
        if collected:
            Collection(bookie.storage).run(1.0)
        new = bookie.ledger(number, b"n" * 20)
        bookie.writer.add_entry(new, 0, packet(number, 0), "new")
        bookie.acks.wait_for("new")
        for _ in range(2):
            assert list(bookie.storage.reader.entry_ids(new)) == [(0, 1)]
            with pytest.raises(NoSuchEntryException):
                bookie.storage.reader.read_entry(new, 3)
            bookie.storage.checkpoint()
    with opened(root, storage="db") as bookie:
        ledger = bookie.ledger(number)
        assert (ledger.master_key, ledger.last_entry_id) == (b"n" * 20, 0)
        assert bookie.storage.reader.read_entry(ledger, 0) == packet(number, 0)


def test_the_largest_ids_have_their_place(opener: Opener) -> None:
    largest = (1 << 63) - 1
    write(opener.index, largest, [0, 1 << 39])
    write(opener.index, 0, [0])
    index = opener.reopen()
    assert list(index.ledger_ids()) == [0, largest]
    assert index.read_header(unscoped(largest)) == (HEADER, 1 << 39)
    assert index.read_header(unscoped(0)) == (HEADER, 0)


def test_a_rebuilt_row_is_read_and_replaced_by_the_next_update(opener: Opener) -> None:
    rebuilt = struct.pack(">qq", 5, 0)
    index = opener.edit("ledgers", lambda rows: rows.put(rebuilt, bytes.fromhex("080110011a00")))
    assert index.read_header(unscoped(5)) == (IndexHeader(b"", True, None), -1)
    assert list(index.ledger_ids()) == [5]
    write(index, 5, [], IndexHeader(KEY, True, None))
    assert list(opener.rows("ledgers")) == [struct.pack(">q", 5)]


def test_of_two_rows_the_key_and_the_fence_both_hold(opener: Opener) -> None:
    write(opener.index, 5, [])
    rebuilt = struct.pack(">qq", 5, 0)
    index = opener.edit("ledgers", lambda rows: rows.put(rebuilt, bytes.fromhex("080110011a00")))
    assert index.read_header(unscoped(5)) == (IndexHeader(KEY, True, None), -1)
    assert list(index.ledger_ids()) == [5]


def test_flags_of_the_storage_and_limbo_stay_as_they_are(opener: Opener) -> None:
    flags_key, flags = struct.pack(">q", -0xEEFD), struct.pack(">q", 1)

    def prepare(rows: Rdict) -> None:
        rows.put(flags_key, flags)
        rows.put(struct.pack(">q", 5), bytes.fromhex("080110011a002801"))

    index = opener.edit("ledgers", prepare)
    assert list(index.ledger_ids()) == [5]
    write(index, 5, [], IndexHeader(KEY, True, None))
    seen = opener.rows("ledgers")
    assert seen[flags_key] == flags
    assert seen[struct.pack(">q", 5)] == bytes.fromhex("080110011a14") + KEY + bytes.fromhex("2801")


def test_a_damaged_row_is_an_error_and_never_an_unknown_ledger(opener: Opener) -> None:
    index = opener.edit("ledgers", lambda rows: rows.put(struct.pack(">q", 5), b"\x08\x01"))
    with pytest.raises(StorageCorruptException, match="ledger 5"):
        index.read_header(unscoped(5))
    index = opener.edit("locations", lambda rows: rows.put(struct.pack(">qq", 5, 0), b"short"))
    with pytest.raises(StorageCorruptException, match="entry 0 of ledger 5"):
        index.location(unscoped(5), 0)


def test_a_damaged_database_is_an_error_and_never_without_entries(opener: Opener) -> None:
    for number in range(40):
        write(opener.index, number, list(range(50)))
    opener.index.close()
    table = next((opener.directory / "locations").glob("*.sst"))
    content = table.read_bytes()
    third = len(content) // 3
    table.write_bytes(content[:third] + bytes(third) + content[2 * third :])
    with pytest.raises(StorageCorruptException, match="locations"):
        read_everything(opener)
    table.unlink()
    with pytest.raises(OSError, match="locations"):
        read_everything(opener)


def read_everything(opener: Opener) -> None:
    opener.index = opener.open()
    for number in range(40):
        list(opener.index.entry_ids(unscoped(number)))


def test_a_closed_index_says_so(opener: Opener) -> None:
    opener.index.close()
    with pytest.raises(StorageStoppedException):
        opener.index.location(unscoped(5), 0)


def test_a_second_opening_is_refused(opener: Opener) -> None:
    with pytest.raises(OSError, match="in use"):
        opener.open()


def test_a_fence_without_entries_is_flushed_with_an_empty_write_cache(tmp_path: Path) -> None:
    """F2, F5: rows that only change the ledger are written by a checkpoint that has no entry."""
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(1, 0)
        bookie.storage.checkpoint()
        bookie.fence(1)
        bookie.fence(2)
        bookie.write_lac(3, 7)
        bookie.storage.checkpoint()
        index = bookie.storage.stores[0].index
        found = {number: index.read_header(unscoped(number)) for number in (1, 2, 3)}
        assert found == {
            1: (IndexHeader(KEY, True, None), 0),
            2: (IndexHeader(KEY, True, None), -1),
            3: (IndexHeader(KEY, False, lac_packet(3, 7)), -1),
        }


def test_a_java_directory_of_write_ahead_logs_only(tmp_path: Path) -> None:
    with tarfile.open(VECTORS / "java-bookie3.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    index = RocksDbIndex(REAL_FILE_SYSTEM, tmp_path / "bookie3/ledgers/current", 1 << 20)
    try:
        # Ledger 7 is in the journal only.
        assert list(index.ledger_ids()) == list(range(7))
        counts = [len(list(index.entry_ids(unscoped(number)))) for number in range(7)]
        assert counts == [500, 300, 50, 2000, 400, 700, 120]
        headers = {number: index.read_header(unscoped(number)) for number in range(7)}
        fenced = [number for number, found in headers.items() if found and found[0] and found[0].fenced]
        assert fenced == [6]
        assert index.read_header(unscoped(7)) is None
    finally:
        index.close()


def empty(databases: Path) -> None:
    for name in ("ledgers", "locations"):
        shutil.rmtree(databases / name)


def older(databases: Path) -> None:
    for name in ("ledgers", "locations"):
        shutil.rmtree(databases / name)
        shutil.copytree(databases.parent / "older" / name, databases / name)


def older_locations(databases: Path) -> None:
    shutil.rmtree(databases / "locations")
    shutil.copytree(databases.parent / "older" / "locations", databases / "locations")


def without_its_log(databases: Path) -> None:
    newest = max((databases / "locations").glob("*.log"))
    newest.unlink()


@pytest.mark.parametrize("damage", [empty, older, older_locations, without_its_log])
def test_databases_that_have_less_than_they_had_refuse_the_start(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """S8. RocksDB itself takes all of these for right."""
    databases = tmp_path / "ledgers/current"
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(1, 0)
    shutil.copytree(databases, databases.parent / "older")
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(1, 1)
        bookie.storage.checkpoint()
        left = tmp_path / "left"
        shutil.copytree(tmp_path / "ledgers", left / "ledgers")
        shutil.copytree(tmp_path / "journal", left / "journal")
    damage(left / "ledgers/current")
    for _ in range(2):
        with pytest.raises(LostDataException, match=r"RocksDB index in .* is behind what .*--accept-loss"):
            OpenStorage(left, storage="db")
    storage = LedgerStorage(replace(small_config(left), storage="db"), Acknowledgements())
    storage.open(accept_loss=[1])
    assert storage.limbo() == [1]
    storage.close()
    with opened(left, storage="db") as bookie:
        assert bookie.storage.limbo() == [1]


@pytest.mark.parametrize("mark", ["sealed", "of another bookie"])
def test_databases_that_are_as_they_were_or_that_another_bookie_changed_are_right(tmp_path: Path, mark: str) -> None:
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(1, 0)
        bookie.add(2, 0)
    shutil.copytree(tmp_path / "ledgers/current", tmp_path / "ledgers/older")
    with opened(tmp_path, storage="db") as bookie:
        bookie.storage.delete_ledgers([1])
    if mark != "sealed":
        older(tmp_path / "ledgers/current")
        path = tmp_path / "ledgers/current/lastMark"
        path.write_bytes(path.read_bytes()[:16])
    for _ in range(2):
        with opened(tmp_path, storage="db") as bookie:
            assert bookie.storage.limbo() == []
            assert bookie.storage.reader.read_entry(bookie.ledger(2), 0) == packet(2, 0)


@pytest.mark.parametrize("content", [None, b"", b"BGSQ" + bytes(20)])
def test_sequences_that_are_gone_or_damaged_do_not_count(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledgers" / SEQUENCES_FILE
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(1, 0)
    whole = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    with opened(tmp_path, storage="db") as bookie:
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 0) == packet(1, 0)
        bookie.add(1, 1)
    assert path.read_bytes() > whole


_SCOPED = LedgerId(5, 7)
_SCOPED_PAIR = (SCOPED_LOCATIONS, SCOPED_LEDGERS)


@pytest.mark.parametrize("lost", [_SCOPED_PAIR, (SCOPED_LOCATIONS,), (SCOPED_LEDGERS,)])
def test_lost_databases_of_scoped_ledgers_refuse_the_start(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """S8, P7. Garbage collection would remove the entry logs of ledgers that the bookie does not know."""
    number = _SCOPED.number
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(7, 0)
        bookie.add(number, 0, 1)
        bookie.fence(number)
    for name in lost:
        shutil.rmtree(tmp_path / "ledgers/current" / name)
    for _ in range(2):
        with pytest.raises(LostDataException, match=r"RocksDB index in .* is behind what .*--accept-loss"):
            OpenStorage(tmp_path, storage="db")
    storage = LedgerStorage(replace(small_config(tmp_path), storage="db"), Acknowledgements())
    storage.open(accept_loss=[number])
    storage.close()
    with opened(tmp_path, storage="db") as bookie:
        assert bookie.storage.is_in_limbo(number)
        bookie.add(LedgerId(5, 8).number, 0)
    with opened(tmp_path, storage="db") as bookie:
        assert bookie.storage.is_in_limbo(number)
        assert not bookie.storage.is_in_limbo(LedgerId(5, 8).number)


def test_a_directory_without_scoped_ledgers_has_lost_none(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path, storage="db") as bookie:
            bookie.add(7, 0)
    assert not (tmp_path / "ledgers/current" / SCOPED_LOCATIONS).exists()


def refuse_scoped(patch: pytest.MonkeyPatch, *names: str) -> None:
    """These databases find no space when they are opened for writing, and leave what RocksDB leaves then."""
    open_database = Database._open

    def refuse(database: Database, read_only: bool) -> Rdict:
        if not read_only and database._path.name in names:
            database._path.mkdir(exist_ok=True)
            (database._path / "rocksdict-config.json").touch()
            raise OSError(errno.ENOSPC, "no room left")
        return open_database(database, read_only)

    patch.setattr(Database, "_open", refuse)


@pytest.mark.parametrize("unfinished", [_SCOPED_PAIR, (SCOPED_LEDGERS,)])
def test_a_start_on_the_disk_that_was_full_when_the_first_scoped_ledger_came(
    tmp_path: Path, unfinished: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    number = _SCOPED.number
    with monkeypatch.context() as patch:
        refuse_scoped(patch, *unfinished)
        with opened(tmp_path, storage="db") as bookie:
            bookie.add(7, 0)
            bookie.storage.checkpoint()
            bookie.add(number, 0)
        assert (tmp_path / "ledgers/current" / unfinished[0]).exists()
        with opened(tmp_path, storage="db") as bookie:
            assert bookie.storage.out_of_space
            for each in (7, number):
                assert bookie.storage.reader.read_entry(bookie.ledger(each), 0) == packet(each, 0)
    for _ in range(2):
        with opened(tmp_path, storage="db") as bookie:
            for each in (7, number):
                assert bookie.storage.reader.read_entry(bookie.ledger(each), 0) == packet(each, 0)


def test_repeated_flushes_gather_nothing_while_the_first_scoped_ledger_finds_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acknowledgements, "not_stored", lambda *arguments: Retry.WITH_SPACE)
    with opened(tmp_path, storage="db") as bookie:
        for number in (7, _SCOPED.number):
            bookie.add(number, 0)
        with monkeypatch.context() as patch:
            refuse_scoped(patch, SCOPED_LEDGERS)
            for _ in range(3):
                with pytest.raises(OSError, match="no room left"):
                    bookie.storage.checkpoint()
        index = bookie.storage.stores[0].index
        assert isinstance(index, RocksDbIndex)
        assert len(index._unscoped._new_ledgers) == len(index._unscoped._new_locations) == 0
        bookie.storage.checkpoint()
        assert list(index.entry_ids(unscoped(7))) == [0]


@pytest.mark.parametrize("told", ["changes", "damaged"])
def test_what_may_have_had_rows_is_not_passed_over_on_a_full_disk(
    tmp_path: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(_SCOPED.number, 0)
    databases = tmp_path / "ledgers/current"
    shutil.rmtree(databases / SCOPED_LEDGERS)
    if told == "damaged":
        (tmp_path / "ledgers" / SCOPED_SEQUENCES_FILE).write_bytes(b"BGSQ" + bytes(20))
    refuse_scoped(monkeypatch, *_SCOPED_PAIR)
    with pytest.raises(OSError, match="no room left"):
        OpenStorage(tmp_path, storage="db")


def test_an_opening_that_fails_at_the_directory_leaves_nothing_open(tmp_path: Path) -> None:
    """The next attempt of the same process must not find the lock of the one before."""

    class NoDescriptor(FileSystem):
        def sync_directory(self, path: Path) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with pytest.raises(OSError, match="Too many open files") as caught:  # which keeps what its frames hold
        RocksDbIndex(NoDescriptor(), tmp_path, 1 << 20)
    assert is_not_opened(caught.value)
    RocksDbIndex(REAL_FILE_SYSTEM, tmp_path, 1 << 20).close()


def test_one_thread_at_a_time_reopens_a_database_that_found_no_space(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(opener.index, 5, [0, 1])
    open_database, reopeners, held = Database._open, list[threading.Thread](), list[Iterator[int]]()

    def compact() -> None:
        opener.index.compact()
        held.append(opener.index.entry_ids(unscoped(5)))
        next(held[0])

    def open_while_another_does(database: Database, read_only: bool) -> Rdict:
        if not reopeners:
            reopeners.append(threading.Thread(target=compact))
            reopeners[0].start()
            reopeners[0].join(1)  # it ends only if nothing keeps it out
        return open_database(database, read_only)

    opener.index._unscoped._locations._writable = False
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_open", open_while_another_does)
        write(opener.index, 5, [2])
    reopeners[0].join()
    held.clear()
    write(opener.index, 5, [3])
    assert list(opener.index.entry_ids(unscoped(5))) == [0, 1, 2, 3]


class Compacted:
    """A handle whose compaction lasts until it is told to end."""

    def __init__(self, rows: Rdict) -> None:
        self._rows = rows
        self.began, self._ended = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def compact_range(self, *bounds: object) -> None:
        self.began.set()
        assert self._ended.wait(10), "the compaction was to end"

    def cancel_all_background(self, wait: bool) -> None:
        self._ended.set()


def test_a_write_that_reopens_the_database_waits_for_no_compaction(opener: Opener) -> None:
    write(opener.index, 5, [0])
    database = opener.index._unscoped._locations
    rows = Compacted(database._rows)
    database._rows = cast(Rdict, rows)
    found = list[int | None]()

    def compact() -> None:
        with pytest.raises(OSError, match="no room") as caught:
            database.compact()
        found.append(caught.value.errno)

    compaction = threading.Thread(target=compact)
    compaction.start()
    assert rows.began.wait(30)
    write(opener.index, 5, [1])
    database._writable = False
    write(opener.index, 5, [2])
    compaction.join()
    assert found == [errno.ENOSPC]
    assert list(opener.index.entry_ids(unscoped(5))) == [0, 1, 2]


def test_a_compaction_that_begins_beside_a_reopening_is_tried_again_later(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle that it was to use is closed: that is not the end of storage, with which garbage collection ends."""
    write(opener.index, 5, [0])
    database = opener.index._unscoped._locations
    make_writable = Database.make_writable

    def reopen_behind_it(self: Database) -> None:
        make_writable(self)
        self._rows = cast(Rdict, Reopened(self))

    class Reopened:
        """A handle that another thread replaces before the first call."""

        def __init__(self, database: Database) -> None:
            self._database, self._rows = database, database._rows

        def compact_range(self, begin: None, end: None) -> None:
            self._rows.close()
            self._database._rows = self._database._open(read_only=False)
            self._rows.compact_range(begin, end)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "make_writable", reopen_behind_it)
        with pytest.raises(OSError, match="no room") as caught:
            database.compact()
    assert caught.value.errno == errno.ENOSPC
    database.compact()
    opener.index.close()
    with pytest.raises(StorageStoppedException):
        database.compact()


def write_until_refused(index: RocksDbIndex) -> None:
    """RocksDB opens a file once its memory is full."""
    for number in range(6, 3000):
        write(index, number, list(range(4000)))


def test_want_of_descriptors_is_told_as_such_and_passes(opener: Opener) -> None:
    write(opener.index, 5, list(range(100)))
    few = max(map(int, os.listdir("/proc/self/fd"))) + 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = list[int]()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for count in range(2):
            with pytest.raises(OSError, match="Too many open files") as caught:
                write_until_refused(opener.index)
            assert is_not_opened(caught.value), count
            assert len(list(opener.index.entry_ids(unscoped(5)))) == 100
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    write(opener.index, 5, [100])
    assert len(list(opener.reopen().entry_ids(unscoped(5)))) == 101


def test_a_removed_database_starts_as_the_message_about_its_damage_says(tmp_path: Path) -> None:
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(7, 0)
    databases = tmp_path / "ledgers/current"
    (databases / LOCATIONS / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(
        StorageCorruptException, match=r"damaged.*remove it and start the bookie once with --accept-loss"
    ):
        OpenStorage(tmp_path, storage="db")
    shutil.rmtree(databases / LOCATIONS)
    storage = LedgerStorage(replace(small_config(tmp_path), storage="db"), Acknowledgements())
    storage.open(accept_loss=[])
    assert storage.limbo() == [7]
    storage.close()
