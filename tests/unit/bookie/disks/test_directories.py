"""Layout, lock and small files of the bookie's directories."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookgate.bookie.disks import directories
from bookgate.bookie.journal import last_mark
from bookgate.bookie.journal.format import NO_MARK, LogMark
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem


@pytest.mark.parametrize("name", ["VERSION", "1.txn", "0.log", "7.idx"])
def test_an_old_layout_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(directories.DirectoryException, match=f"{tmp_path} holds {name}"):
        directories.prepare(tmp_path)
    (tmp_path / "current").mkdir()
    directories.prepare(tmp_path)


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(directories.DirectoryException, match=f"{tmp_path}/file/x/current"):
        directories.prepare(tmp_path / "file" / "x")


def test_the_names_of_new_directories_are_durable(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Files(FileSystem):
        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            synced.append(path)

    directories.prepare(tmp_path / "data" / "journal", Files())
    assert synced == [tmp_path, tmp_path / "data", tmp_path / "data" / "journal"]
    synced.clear()
    directories.prepare(tmp_path / "data" / "journal", Files())
    assert synced == [tmp_path / "data" / "journal"]


def test_a_lock_excludes_and_is_given_up(tmp_path: Path) -> None:
    lock = directories.DirectoryLock([tmp_path, tmp_path])
    with pytest.raises(directories.DirectoryException, match="in use by another bookie"):
        directories.DirectoryLock([tmp_path])
    lock.release()
    lock.release()
    directories.DirectoryLock([tmp_path]).release()


def test_a_failed_lock_holds_nothing(tmp_path: Path) -> None:
    free, taken = tmp_path / "free", tmp_path / "taken"
    free.mkdir()
    taken.mkdir()
    lock = directories.DirectoryLock([taken])
    with pytest.raises(directories.DirectoryException):
        directories.DirectoryLock([free, taken])
    directories.DirectoryLock([free]).release()
    lock.release()


def test_the_furthest_mark_of_all_directories_counts(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        directories.prepare(path)
    assert last_mark.read_mark(REAL_FILE_SYSTEM, paths) == NO_MARK
    last_mark.write_mark(REAL_FILE_SYSTEM, paths[:1], LogMark(5, 9000))
    last_mark.write_mark(REAL_FILE_SYSTEM, paths[1:2], LogMark(6, 512))
    (paths[2] / "current" / "lastMark").write_bytes(b"torn")
    assert last_mark.read_mark(REAL_FILE_SYSTEM, paths) == LogMark(6, 512)
    assert (paths[0] / "current" / "lastMark").read_bytes()[:16] == LogMark(5, 9000).encode()


def test_version_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        directories.prepare(path)
    assert directories.empty_directories(REAL_FILE_SYSTEM, paths) == set(paths)
    directories.write_version_files(REAL_FILE_SYSTEM, {paths[0]: b"a longer cookie"})
    directories.write_version_files(REAL_FILE_SYSTEM, {paths[0]: b"cookie"})
    assert directories.read_version_files(REAL_FILE_SYSTEM, paths) == {paths[0]: b"cookie", paths[1]: None}
    assert directories.empty_directories(REAL_FILE_SYSTEM, paths) == set(paths)
    (directories.current(paths[0]) / "lastId").write_text("0\n")
    assert directories.empty_directories(REAL_FILE_SYSTEM, paths) == {paths[1]}


class FailingSync(FileSystem):
    def fsync(self, fd: int) -> None:
        raise OSError(errno.EIO, "the disk says no")


def test_a_first_start_that_fails_leaves_no_empty_cookie(tmp_path: Path) -> None:
    directories.prepare(tmp_path / "a")
    with pytest.raises(OSError, match="the disk says no"):
        directories.write_version_files(FailingSync(), {tmp_path / "a": b"cookie"})
    assert directories.read_version_files(REAL_FILE_SYSTEM, [tmp_path / "a"]) == {tmp_path / "a": None}
    assert directories.empty_directories(REAL_FILE_SYSTEM, [tmp_path / "a"]) == {tmp_path / "a"}
