"""Entry logs go once no index points into them: whatever their maps say, whoever has them open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.system.files import FileSystem
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.collection.test_compaction import fill, serves, stage
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet

SMALL_LOGS = 3000


class WatchedFiles(FileSystem):
    """Knows what is open; `on_read` is called once before a read of the file, `on_open` once after it was opened."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.on_read: dict[str, Callable[[], None]] = {}
        self.on_open: dict[str, Callable[[], None]] = {}

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.paths[fd] = path
        self.on_open.pop(path.name, lambda: None)()
        return fd

    def close(self, fd: int) -> None:
        del self.paths[fd]
        super().close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.on_read.pop(self.paths[fd].name, lambda: None)()
        return super().pread(fd, size, offset)

    def size(self, fd: int) -> int:
        self.on_read.pop(self.paths[fd].name, lambda: None)()
        return super().size(fd)


def three_logs(files: FileSystem, directory: Path) -> tuple[EntryLogs, list[int]]:
    """Log i has ledger i; with one handle kept. And where an entry of each is."""
    logs = EntryLogs(files, [directory], max_bytes=1 << 30, open_files=1)
    locations = []
    for number in range(3):
        log = logs.new_log()
        locations += log.append(number, [packet(number, 0, 100 + number)])
        log.finish()
    return logs, locations


def test_a_log_is_looked_into_by_its_own_descriptor(tmp_path: Path) -> None:
    """While readers open others, so that it is no longer kept, and its number is given away."""
    files = WatchedFiles()
    logs, locations = three_logs(files, tmp_path)

    def read_others() -> None:
        for number in (1, 0):
            assert logs.read(locations[number], number, 0) == packet(number, 0, 100 + number)

    files.on_read["2.log"] = read_others
    assert logs.ledgers_map(2) == {2: len(packet(2, 0, 102)) + 4}
    files.on_read["2.log"] = read_others
    assert logs.size(2) == (tmp_path / "2.log").stat().st_size
    logs.close()
    assert not files.paths


def test_a_log_removed_while_somebody_opens_it_does_not_stay_open(tmp_path: Path) -> None:
    files = WatchedFiles()
    logs, locations = three_logs(files, tmp_path)
    files.on_open["1.log"] = lambda: logs.remove(1)
    assert logs.read(locations[1], 1, 0) == packet(1, 0, 101)
    assert not [path for path in files.paths.values() if path.name == "1.log"]
    # Others are kept as before.
    logs.read(locations[2], 2, 0)
    assert [path.name for path in files.paths.values()] == ["2.log"]
    logs.close()


def test_a_log_that_a_reader_opened_before_it_is_removed_does_not_stay_open(tmp_path: Path) -> None:
    files = WatchedFiles()
    logs, locations = three_logs(files, tmp_path)
    logs.read(locations[1], 1, 0)
    unlink = files.unlink
    files.unlink = lambda path: (logs.read(locations[1], 1, 0), unlink(path))[1]  # type: ignore[method-assign]
    logs.remove(1)
    assert not files.paths


def name_another_ledger(log: Path) -> None:
    """Gives it a map that says that all it holds is of ledger 99."""
    content = log.read_bytes()
    fields = fmt.decode_map_fields(content[: fmt.HEADER_SIZE])
    end = fields[0] if fields is not None else len(content)
    records = content[fmt.HEADER_SIZE : end]
    log.write_bytes(fmt.encode_header(end, 1) + records + fmt.encode_ledgers_map({99: len(records)}))


def collected_logs(bookie: OpenStorage) -> tuple[list[int], int]:
    collection = Collection(bookie.storage)
    collection.logs.collect()
    return collection.complete_logs(), collection.statistics.failed_deletions


@pytest.mark.parametrize("kind", ["sorted", "db"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_map_that_leaves_out_a_living_ledger_does_not_decide(tmp_path: Path, kind: str, restarts: bool) -> None:
    with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
        fill(bookie, [1, 2])
        logs = Collection(bookie.storage).complete_logs()
        name_another_ledger(tmp_path / "ledgers/current/1.log")
        if not restarts:
            assert collected_logs(bookie) == (logs, 1)
            serves(bookie, 1, 40)
    if restarts:
        with opened(tmp_path, storage=kind, entry_log_max_bytes=SMALL_LOGS) as bookie:
            logs = Collection(bookie.storage).complete_logs()
            assert collected_logs(bookie) == (logs, 1)
            # And again: who points into it is known from the first time.
            assert collected_logs(bookie) == (logs, 1)
            serves(bookie, 1, 40)


def test_a_log_that_a_java_compaction_left_is_pointed_into_by_this_process(tmp_path: Path) -> None:
    """It was not there when the index was searched, and its map is damaged."""
    with opened(tmp_path) as bookie:
        fill(bookie, [1])
        log = bookie.storage.stores[0].logs.new_log()
        log.append(2, [packet(2, 0)])
        log.finish()
    with opened(tmp_path) as bookie:
        collection = Collection(bookie.storage)
        collection.logs.collect()
        assert collection.complete_logs() == [0]
        name_another_ledger(stage(tmp_path, 0, 0x1F))
        collection.logs.settle_leftovers()
        collection.logs.collect()
        assert collection.complete_logs() == [0x1F]
        serves(bookie, 1, 40)


def test_what_is_forgotten_is_read_from_the_disk_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 16))
    files = FileSystem()
    fd = files.open(path, os.O_RDWR)
    try:
        if not in_memory(fd):
            pytest.skip("this file system does not say what is in memory")
        files.fsync(fd)
        files.forget_cached(fd)
        if in_memory(fd):
            pytest.skip("this file system keeps its files in memory")
        assert files.pread(fd, 1 << 16, 0) == bytes(1 << 16)
        assert in_memory(fd)
    finally:
        files.close(fd)


def in_memory(fd: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(4096)], 0, os.RWF_NOWAIT) == 4096
    except OSError:
        return False
