"""Files that commands replace as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from bookgate.runtime.replaced_files import replace_file


def _fails(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_former_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "dump"
    file.write_bytes(b"former")
    monkeypatch.setattr(os, step, _fails)
    with pytest.raises(OSError, match="No space left") as raised:
        replace_file(file, b"new", 0o600)
    monkeypatch.undo()
    assert raised.value.filename == str(file)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("dump", b"former")]


def test_the_content_is_durable_before_it_takes_the_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        done.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    replace_file(tmp_path / "dump", b"new", 0o600)
    assert done == ["content", "name", "directory"]


def test_the_file_has_the_mode_whoever_could_read_the_former_one(tmp_path: Path) -> None:
    file = tmp_path / "dump"
    file.touch(0o666)
    replace_file(file, b"new", 0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == b"new"


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("dump")
    for content in (b"first", b"second"):
        replace_file(tmp_path / "latest", content, 0o600)
        assert (tmp_path / "latest").is_symlink()
        assert (tmp_path / "dump").read_bytes() == content


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(pipe, b"new", 0o600)
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_an_error_names_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    with pytest.raises(OSError, match=f"symbolic links: '{circle}'$"):
        replace_file(circle, b"new", 0o600)
    monkeypatch.setattr(os, "replace", _fails)
    with pytest.raises(OSError, match=f"on device: '{tmp_path}/dump'$"):
        replace_file(tmp_path / "dump", b"new", 0o600)
