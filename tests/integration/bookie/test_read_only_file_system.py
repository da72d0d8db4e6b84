"""A file system that the kernel makes read-only under a bookie, as after an error of the disk."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.server import BookieFailedException
from bookgate.ledger.wire.messages import Status
from tests.integration.bookie.entry_client import add, packet, read
from tests.integration.bookie.test_read_only import running, sqlite

pytestmark = pytest.mark.asyncio

LEDGER = 4
SIZE_MB = 64


class Disk:
    """An ext4 file system in a file."""

    def __init__(self, image: Path, place: Path) -> None:
        self._image = image
        self.place = place
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(SIZE_MB << 20)
        _run("mkfs.ext4", "-q", str(image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.place))

    def fail(self) -> None:
        """The kernel finds an error, and makes it read-only, whoever has files open."""
        device = _run("findmnt", "-no", "SOURCE", str(self.place)).strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("test")

    def repair(self) -> None:
        _run("umount", str(self.place))
        subprocess.run(["fsck.ext4", "-y", str(self._image)], capture_output=True, check=False)
        self.mount()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.place)], capture_output=True, check=False)


def _run(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"there is no {command[0]} here")
    if result.returncode:
        pytest.skip(f"{command[0]} is not permitted here: {result.stderr.strip()}")
    return result.stdout


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "image", tmp_path / "disk")
    try:
        yield disk
    finally:
        disk.close()


def body(entry_id: int) -> bytes:
    return packet(LEDGER, entry_id, bytes(8192))


PLACES = [
    ("journal_directory", "sorted"),
    ("ledger_directory", "sorted"),
    ("index_directories", "sorted"),
    ("ledger_directory", "db"),
]


@pytest.mark.parametrize(("setting", "storage"), PLACES)
async def test_a_file_system_that_becomes_read_only_ends_the_bookie(
    setting: str, storage: str, tmp_path: Path, disk: Disk
) -> None:
    """It says where and what to do, acknowledges nothing more, and has everything once the disk can be written."""
    settings: dict[str, Any] = {setting: disk.place / "data", "storage_type": storage, "bookie_id": "ill"}
    settings |= {"flush_interval_seconds": 0.2}
    uri, acknowledged = sqlite(tmp_path), 0
    async with running(tmp_path, uri, **settings) as bookie:
        while await bookie.status(add(LEDGER, acknowledged, body=body(acknowledged))) == Status.EOK:
            acknowledged += 1
            if acknowledged == 20:
                break
        disk.fail()
        async with asyncio.timeout(30):
            stopped = asyncio.create_task(bookie.server.run_until_stopped())
            while not stopped.done():
                with contextlib.suppress(OSError):
                    status = await bookie.status(add(LEDGER, acknowledged, body=body(acknowledged)))
                    acknowledged += status == Status.EOK
        with pytest.raises(BookieFailedException, match="dmesg") as ended:
            await stopped
        assert str(disk.place) in str(ended.value)
    disk.repair()
    async with running(tmp_path, uri, **settings) as bookie:
        for entry_id in range(acknowledged):
            assert await bookie.status(read(LEDGER, entry_id)) == Status.EOK, entry_id
        assert await bookie.status(add(LEDGER, acknowledged, body=body(acknowledged))) == Status.EOK


@pytest.mark.parametrize(("setting", "storage"), PLACES)
async def test_a_start_on_a_read_only_file_system_names_the_directory(
    setting: str, storage: str, tmp_path: Path, disk: Disk
) -> None:
    settings: dict[str, Any] = {setting: disk.place / "data", "storage_type": storage, "bookie_id": "ill"}
    uri = sqlite(tmp_path)
    async with running(tmp_path, uri, **settings) as bookie:
        assert await bookie.status(add(LEDGER, 0)) == Status.EOK
    disk.fail()
    with pytest.raises(OSError, match="writable") as refused:
        async with running(tmp_path, uri, **settings):
            pass
    assert str(disk.place) in str(refused.value)
    disk.repair()
    async with running(tmp_path, uri, **settings) as bookie:
        assert await bookie.status(read(LEDGER, 0)) == Status.EOK
