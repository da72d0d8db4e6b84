"""Storage as its callers see it: adding, reading, fencing, restarts, limits and disk errors."""

from __future__ import annotations

import errno
import gc
import struct
import threading
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from bookgate.bookie.disks import directories
from bookgate.bookie.index.file_format import MAX_ENTRY_ID
from bookgate.bookie.index.rocksdb_database import Database
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import FileSystem, StorageCorruptException, StorageStoppedException
from bookgate.ledger.errors import IncorrectParameterException, NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import Status
from tests.unit.bookie.storage.storage_support import (
    KEY,
    Acknowledgements,
    FailingFileSystem,
    OpenStorage,
    lac_packet,
    opened,
    packet,
    read_entries,
    refuse_syncs,
    small_config,
)


def test_entries_read_back_from_cache_and_from_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 1, 2)
        bookie.add(2, 0)
        ledger = bookie.ledger(1)
        assert bookie.storage.reader.read_cached(ledger, 1) == packet(1, 1)
        bookie.storage.checkpoint()
        assert bookie.storage.reader.read_cached(ledger, 1) is None
        assert [bookie.storage.reader.read_entry(ledger, entry_id) for entry_id in range(3)] == [
            packet(1, i) for i in range(3)
        ]
        bookie.add(1, 3)
        assert bookie.storage.reader.last_entry_id(ledger) == 3
        assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, 4)]


@pytest.mark.parametrize("entry_id", [-2, -1, 3, 1024, MAX_ENTRY_ID, MAX_ENTRY_ID + 1, 2**63 - 1])
def test_an_entry_that_is_not_held(tmp_path: Path, entry_id: int) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        bookie.storage.checkpoint()
        with pytest.raises(NoSuchEntryException, match="of ledger 1"):
            bookie.storage.reader.read_entry(bookie.ledger(1), entry_id)


def test_runs_of_entries_over_cache_and_index(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 1, 5, 2000)
        bookie.storage.checkpoint()
        bookie.add(1, 2, 5, 6, 2001)
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 3), (5, 2), (2000, 2)]
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(9))) == []


def test_the_newest_copy_of_an_entry_is_served(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        for fill in (1, 2, 3):
            bookie.writer.add_entry(ledger, 0, packet(1, 0, fill=fill), fill)
            bookie.acks.wait_for(fill)
            if fill == 2:
                bookie.storage.checkpoint()
        assert bookie.storage.reader.read_entry(ledger, 0) == packet(1, 0, fill=3)
        bookie.storage.checkpoint()
        assert bookie.storage.reader.read_entry(ledger, 0) == packet(1, 0, fill=3)


def test_everything_survives_a_clean_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 1, 2)
        bookie.write_lac(1, 2)
        bookie.fence(2)
        bookie.write_lac(3, 7)
    with opened(tmp_path) as bookie:
        first, second, third = (bookie.ledger(number) for number in (1, 2, 3))
        assert bookie.storage.reader.read_entry(first, 2) == packet(1, 2)
        assert (first.fenced, second.fenced, third.fenced) == (False, True, False)
        assert first.explicit_lac == lac_packet(1, 2)
        assert third.explicit_lac == lac_packet(3, 7)
        assert [bookie.storage.reader.known_lac(ledger) for ledger in (first, second, third)] == [2, -1, 7]
        assert [bookie.storage.reader.last_entry_id(ledger) for ledger in (first, second, third)] == [2, -1, -1]
        assert bookie.storage.ledgers.get(LedgerId.unscoped(4)) is None


def test_the_stored_key_counts_after_a_restart(tmp_path: Path) -> None:
    """S7, F4: a wrong key is refused and does not displace the right one."""
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
    with opened(tmp_path) as bookie:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(1))
        assert ledger is not None
        assert ledger.check_add(b"w" * 20, recovery=False) is Status.EUA
        assert ledger.check_add(KEY, recovery=False) is Status.EOK
        assert bookie.storage.writer.create_ledger(LedgerId.unscoped(1), b"w" * 20) is ledger
        assert ledger.master_key == KEY


def test_known_lac_is_that_of_the_last_entry_until_a_greater_one_comes(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, *range(10))
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        assert bookie.storage.reader.known_lac(ledger) == 8
        bookie.writer.add_entry(ledger, 3, packet(1, 3), "again")
        assert bookie.storage.reader.known_lac(ledger) == 8
        bookie.writer.add_entry(ledger, 20, packet(1, 20), "more")
        assert bookie.storage.reader.known_lac(ledger) == 19
        bookie.acks.wait_for("again", "more")


def test_a_second_fence_is_answered_as_well(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        bookie.writer.fence(ledger, "first")
        bookie.writer.fence(ledger, "second")
        bookie.acks.wait_for("first", "second")
        assert bookie.acks.tokens == ["first", "second"]


@pytest.mark.parametrize(
    ("entry_id", "data"),
    [
        (-1, packet(1, 0)),
        (MAX_ENTRY_ID + 1, packet(1, MAX_ENTRY_ID + 1)),
        (0, packet(1, 0)[:31]),
        (1, packet(1, 0)),
        (0, packet(2, 0)),
    ],
)
def test_a_packet_that_replay_could_not_take_is_refused_before_it_is_journaled(
    tmp_path: Path, entry_id: int, data: bytes
) -> None:
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        with pytest.raises(IncorrectParameterException):
            bookie.writer.add_entry(ledger, entry_id, data, "token")
        bookie.writer.force(ledger.ledger_id, "forced")
        bookie.acks.wait_for("forced")
        assert bookie.acks.tokens == ["forced"]
    with opened(tmp_path) as bookie:
        assert bookie.storage.ledgers.get(LedgerId.unscoped(1)) is None


def test_entry_0_of_ledger_0_with_a_header_of_zeros_is_refused(tmp_path: Path) -> None:
    """In the journal it could not be told from blocks that never reached the disk."""
    with opened(tmp_path) as bookie:
        bookie.writer.add_entry(bookie.ledger(0), 0, packet(0, 0), "fine")
        bookie.acks.wait_for("fine")
        with pytest.raises(IncorrectParameterException, match="LAC"):
            bookie.writer.add_entry(bookie.ledger(0), 0, packet(0, 0, lac=0), "not")


@pytest.mark.parametrize("data", [b"", lac_packet(1, 3)[:15], lac_packet(2, 3), lac_packet(1, 3) + bytes(1000)])
def test_an_explicit_lac_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    with opened(tmp_path) as bookie, pytest.raises(IncorrectParameterException):
        bookie.writer.write_explicit_lac(bookie.ledger(1), data, "token")


def test_a_scoped_ledger_is_not_taken_for_an_unscoped_one(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(7, 0)
        assert bookie.storage.ledgers.get(LedgerId(1, 7)) is None
        scoped = bookie.storage.writer.create_ledger(LedgerId(1, 7), KEY)
        with pytest.raises(NoSuchEntryException):
            bookie.storage.reader.read_entry(scoped, 0)
        with pytest.raises(IncorrectParameterException, match="says entry 1 of 7"):
            bookie.writer.add_entry(scoped, 1, packet(7, 1, 60), "of scope 0")


def test_an_over_long_key_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie, pytest.raises(IncorrectParameterException, match="too long"):
        bookie.storage.writer.create_ledger(LedgerId.unscoped(7), bytes(1020))


def test_a_state_of_another_origin_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie, pytest.raises(TypeError):
        bookie.writer.fence(BookieLedgerState(LedgerId.unscoped(1), KEY), "token")


def test_large_entries(tmp_path: Path) -> None:
    size = 5 << 20
    with opened(tmp_path, write_cache_bytes=64 << 20) as bookie:
        bookie.add(1, 0, 1, size=size)
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 1) == packet(1, 1, size)
        bookie.storage.checkpoint()
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 0) == packet(1, 0, size)
        bookie.add(1, 2, size=size)
        bookie.fence(1)
    with opened(tmp_path) as bookie:
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 2) == packet(1, 2, size)


def descriptors() -> int:
    """Number of ledgers that this process has in memory."""
    gc.collect()
    return sum(isinstance(thing, LedgerDescriptor) for thing in gc.get_objects())


def test_many_ledgers_with_few_kept_in_memory(tmp_path: Path) -> None:
    count, before = 300, descriptors()
    with opened(tmp_path, ledger_state_limit=10) as bookie:
        for number in range(count):
            ledger = bookie.ledger(number)
            bookie.writer.add_entry(ledger, 0, packet(number, 0), number)
            if number % 3 == 0:
                bookie.writer.fence(ledger, -number - 1)
        bookie.acks.wait_for_count(count + count // 3)
        del ledger
        assert all(bookie.ledger(number).fenced == (number % 3 == 0) for number in range(count))
        bookie.storage.checkpoint()
        gc.collect()
        for number in range(count):
            assert bookie.ledger(number).fenced == (number % 3 == 0)
            assert bookie.storage.reader.read_entry(bookie.ledger(number), 0) == packet(number, 0)
        assert descriptors() - before == 10


def test_a_ledger_in_use_stays_one_object(tmp_path: Path) -> None:
    with opened(tmp_path, ledger_state_limit=1) as bookie:
        bookie.add(1, 0)
        bookie.storage.checkpoint()
        held = bookie.ledger(1)
        bookie.add(2, 0)
        bookie.add(3, 0)
        assert bookie.ledger(1) is held


def test_a_full_cache_asks_callers_to_wait_and_tells_when_there_is_room(tmp_path: Path) -> None:
    gate = threading.Event()

    class GatedLogs(FileSystem):
        """Entry logs can't be synced before the gate opens."""

        paths: dict[int, Path] = {}  # noqa: RUF012  # one instance

        def open(self, path: Path, flags: int) -> int:
            fd = super().open(path, flags)
            self.paths[fd] = path
            return fd

        def fdatasync(self, fd: int) -> None:
            if self.paths[fd].suffix == ".log":
                assert gate.wait(30)
            super().fdatasync(fd)

    room = threading.Event()
    with opened(tmp_path, GatedLogs(), write_cache_bytes=100_000) as bookie:
        bookie.acks.on_capacity = room.set
        ledger = bookie.ledger(1)
        entry_id = 0
        while bookie.storage.writer.accepts_adds:
            bookie.writer.add_entry(ledger, entry_id, packet(1, entry_id, 1000), entry_id)
            bookie.acks.wait_for(entry_id)  # the journal's queue is empty then, and its room is not what is asked for
            entry_id += 1
        room.clear()
        gate.set()
        assert room.wait(30)
        assert bookie.storage.writer.accepts_adds
        assert all(bookie.storage.reader.read_entry(ledger, index) for index in range(entry_id))


def test_checkpoint_by_interval(tmp_path: Path) -> None:
    room = threading.Event()
    with opened(tmp_path, flush_interval_seconds=0.01) as bookie:
        bookie.acks.on_capacity = room.set
        bookie.add(1, 0)
        assert room.wait(30)


def test_no_entry_is_missed_while_checkpoints_run(tmp_path: Path) -> None:
    """Readers on another thread always find what was acknowledged."""
    missing: list[object] = []
    stop = threading.Event()
    with opened(tmp_path, write_cache_bytes=40_000) as bookie:
        ledger = bookie.ledger(1)
        bookie.add(1, 0)

        def read() -> None:
            while not stop.is_set():
                last = ledger.last_entry_id
                for entry_id in (last, last // 2, max(0, last - 50)):
                    try:
                        bookie.storage.reader.read_entry(ledger, entry_id)
                    except Exception as error:
                        missing.append((entry_id, error))

        thread = threading.Thread(target=read)
        thread.start()
        for entry_id in range(1, 3000):
            bookie.writer.add_entry(ledger, entry_id, packet(1, entry_id), entry_id)
        bookie.acks.wait_for(2999)
        stop.set()
        thread.join()
        assert not missing


@pytest.mark.parametrize("suffix", [".log", ".idx", "lastMark"])
def test_a_checkpoint_error_stops_storage_and_loses_nothing(tmp_path: Path, suffix: str) -> None:
    files = FailingFileSystem(suffix)
    bookie = OpenStorage(tmp_path, files, write_cache_bytes=20_000)
    files.fail_write = OSError(errno.ENOSPC, "No space left on device")
    ledger = bookie.ledger(1)
    entry_id = 0
    while not bookie.acks.failures:
        bookie.writer.add_entry(ledger, entry_id, packet(1, entry_id, 500), entry_id)
        bookie.acks.wait_for(entry_id)
        entry_id += 1
        if not bookie.storage.writer.accepts_adds:
            bookie.acks.wait_for_failure()
    assert bookie.storage.reader.read_entry(ledger, 0) == packet(1, 0, 500)
    bookie.storage.close()
    with opened(tmp_path) as again:
        assert list(again.storage.reader.entry_ids(again.ledger(1))) == [(0, entry_id)]


def test_a_damaged_record_is_an_io_error_and_never_no_such_entry(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 1)
        bookie.storage.checkpoint()
        log = tmp_path / "ledgers/current/0.log"
        data = bytearray(log.read_bytes())
        struct.pack_into(">q", data, 1028, 99)
        log.write_bytes(data)
        with pytest.raises(StorageCorruptException) as caught:
            bookie.storage.reader.read_entry(bookie.ledger(1), 0)
        assert isinstance(caught.value, OSError)
        assert bookie.storage.reader.read_entry(bookie.ledger(1), 1) == packet(1, 1)


def test_a_damaged_last_entry_does_not_hide_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 1)
    log = tmp_path / "ledgers/current/0.log"
    log.write_bytes(log.read_bytes()[:-30])
    with opened(tmp_path) as bookie:
        ledger = bookie.ledger(1)
        with pytest.raises(StorageCorruptException):
            bookie.storage.reader.read_entry(ledger, 1)
        assert bookie.storage.reader.read_entry(ledger, 0) == packet(1, 0)
        assert bookie.storage.reader.known_lac(ledger) == -1


# Opening and closing


def test_a_directory_has_one_bookie(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(directories.DirectoryException, match=f"{tmp_path}/journal is in use"):
        OpenStorage(tmp_path)
    with opened(tmp_path):
        pass


def test_journal_and_ledgers_may_share_a_directory(tmp_path: Path) -> None:
    for start in range(2):
        with opened(tmp_path, ledger_directories=(tmp_path / "journal",)) as bookie:
            bookie.add(1, start)
            assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, start + 1)]


def test_close_without_open_and_twice(tmp_path: Path) -> None:
    acks = Acknowledgements()
    storage = LedgerStorage(small_config(tmp_path), acks)
    storage.close()
    storage.lock_directories()
    storage.lock_directories()
    storage.close()
    storage.close()
    with pytest.raises(StorageStoppedException):
        storage.checkpoint()
    assert not acks.failures


def test_usage_is_of_the_ledger_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        usage = bookie.storage.usage()
        assert 0 < usage.free_bytes < usage.total_bytes


def read_all_ways(bookie: OpenStorage, ledger: LedgerDescriptor, entry_id: int) -> list[object]:
    """What each way to an entry finds of it; nothing is left out of the list."""
    reader = bookie.storage.reader
    found: list[object] = [reader.read_in_memory(ledger, entry_id, 1)]
    found.append(reader.read_scattered_in_memory(ledger, [entry_id])[0])
    found.append([] if (packet := reader.held_entry(ledger, entry_id)) is None else [packet])
    try:
        found.append(read_entries(bookie, ledger, entry_id, 1, 1 << 20))
    except NoSuchEntryException:
        found.append([])
    return found


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_a_ledger_made_anew_while_its_deletion_is_synced_has_nothing_of_the_former_one(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, storage=storage) as bookie:
        bookie.add(7, 0, 1, 2, 3)
        bookie.storage.checkpoint()
        assert read_all_ways(bookie, bookie.ledger(7), 3)[-1] == [packet(7, 3)]
        index, seen = bookie.storage.stores[0].index, list[object]()
        sync = index.sync

        def use_it_again_first() -> None:
            monkeypatch.undo()
            ledger = bookie.ledger(7, b"other" * 4)
            bookie.writer.add_entry(ledger, 0, packet(7, 0, fill=9), "new")
            seen.extend([*read_all_ways(bookie, ledger, 3), list(bookie.storage.reader.entry_ids(ledger))])
            sync()

        monkeypatch.setattr(index, "sync", use_it_again_first)
        bookie.storage.delete_ledgers([7])
        assert seen == [[], [], [], [], [(0, 1)]]
        bookie.storage.checkpoint()
        assert read_all_ways(bookie, bookie.ledger(7), 0)[-1] == [packet(7, 0, fill=9)]
        assert read_all_ways(bookie, bookie.ledger(7), 3) == [[], [], [], []]


def refuse_writes(patch: pytest.MonkeyPatch, database: str) -> None:
    """A database of the index, `locations` or `ledgers`, finds no space from now on."""
    write = Database.write

    def refuse(self: Database, batch: WriteBatch) -> None:
        if self._path.name == database:
            raise OSError(errno.ENOSPC, "no room left")
        write(self, batch)

    patch.setattr(Database, "write", refuse)


@pytest.mark.parametrize("database", ["locations", "ledgers"])
def test_a_ledger_made_anew_while_its_deletion_finds_no_space_has_nothing_of_the_former_one(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(7, 0, 1, 2, 3)
        bookie.storage.checkpoint()
        index = bookie.storage.stores[0].index
        sync, ledgers = index.sync, list[LedgerDescriptor]()

        def use_it_again_first() -> None:
            ledgers.append(bookie.ledger(7, b"other" * 4))
            bookie.writer.add_entry(ledgers[0], 0, packet(7, 0, fill=9), "new")
            sync()

        with monkeypatch.context() as patch:
            refuse_writes(patch, database)
            patch.setattr(index, "sync", use_it_again_first)
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.delete_ledgers([7])
        assert bookie.storage.is_sound
        assert read_all_ways(bookie, ledgers[0], 3) == [[], [], [], []]
        bookie.storage.checkpoint()
        assert read_all_ways(bookie, ledgers[0], 0)[-1] == [packet(7, 0, fill=9)]
        assert read_all_ways(bookie, ledgers[0], 3) == [[], [], [], []]
    with opened(tmp_path, storage="db") as bookie:
        ledger = bookie.ledger(7, b"other" * 4)
        assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, 1)]
        assert (ledger.master_key, ledger.last_entry_id) == (b"other" * 4, 0)


def test_a_ledger_whose_deletion_finds_no_space_is_gone_and_listed_until_it_is_deleted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(7, 0, 1)
        bookie.storage.checkpoint()
        with monkeypatch.context() as patch:
            refuse_writes(patch, "locations")
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.delete_ledgers([7])
        assert bookie.storage.ledgers.get(LedgerId.unscoped(7)) is None
        assert list(bookie.storage.ledger_ids()) == [7]
        assert bookie.storage.delete_ledgers([7]) == [7]
        assert not bookie.storage.ledger_ids()
    with opened(tmp_path, storage="db") as bookie:
        assert bookie.storage.ledgers.get(LedgerId.unscoped(7)) is None


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_whoever_keeps_something_of_a_ledger_hears_of_a_deletion_that_is_not_durable(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id may belong to another ledger from then on."""
    told = list[int]()
    monkeypatch.setattr(Acknowledgements, "ledgers_deleted", lambda events, numbers: told.extend(numbers))
    with opened(tmp_path, storage=storage) as bookie:
        bookie.add(7, 0)
        bookie.storage.checkpoint()
        with monkeypatch.context() as patch:
            refuse_syncs(patch, bookie.storage.stores[0].index)
            with pytest.raises(OSError, match="no room left"):
                bookie.storage.delete_ledgers([7])
        assert bookie.storage.ledgers.get(LedgerId.unscoped(7)) is None
        assert told == [7]


class WithoutDescriptors(FileSystem):
    """Opens no directory while it is told so."""

    has_none = False

    def sync_directory(self, path: Path) -> None:
        if self.has_none:
            raise OSError(errno.EMFILE, "too many open files")
        super().sync_directory(path)


def test_a_ledger_made_anew_after_a_deletion_that_was_not_synced_has_nothing_of_the_former_one(tmp_path: Path) -> None:
    files = WithoutDescriptors()
    with opened(tmp_path, files) as bookie:
        bookie.add(7, 0, 1, 2, 3)
        bookie.storage.checkpoint()
        assert read_all_ways(bookie, bookie.ledger(7), 3)[-1] == [packet(7, 3)]
        files.has_none = True
        with pytest.raises(OSError, match="too many open files"):
            bookie.storage.delete_ledgers([7])
        files.has_none = False
        assert read_all_ways(bookie, bookie.ledger(7, b"other" * 4), 3) == [[], [], [], []]
