"""`bookgate bookie format`, cut off anywhere, and beside bookies that it must not take for the one that it empties."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from bookgate.bookie.disks import directories
from bookgate.bookie.disks.directories import VERSION_FILE, current
from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException, check
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from tests.stores import made
from tests.unit.bookie.commands.members import command, cookie_of, write_cookies

FILES = ("0.log", "0/0/1.idx", "1.txn", "DIRTY", "lastMark", "locations/CURRENT")


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def version_files_are_listed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which a file system lists names is any."""
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        return iter(sorted(listed(path), key=lambda each: (each.name == VERSION_FILE, each.name)))

    monkeypatch.setattr(Path, "iterdir", iterdir)


def filled(paths: list[Path], cookie: Cookie) -> None:
    for path in paths:
        for name in FILES:
            file = current(path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"data")
        (current(path) / VERSION_FILE).write_bytes(cookie.encode())


def left(paths: list[Path]) -> set[Path]:
    return {file for path in paths for file in current(path).rglob("*") if file.is_file()}


def format_bookie(
    *settings: str, metadata_uri: str = "sqlite:///nowhere/metadata.db", more: Sequence[str] = ()
) -> Result:
    options = [part for each in (f"metadata_uri={metadata_uri}", "bookie_id=b", *settings) for part in ("--set", each)]
    return command("bookie", "format", *options, *more, "--yes")


def killed(step: int, *settings: str) -> bool:
    """Formats, and is killed before the deletion of this number; False if it has come to its end before."""
    steps = 0

    def counted(delete: Callable[..., None]) -> Callable[..., None]:
        def deleting(*arguments: Any, **options: Any) -> None:
            nonlocal steps
            steps += 1
            if steps > step:
                raise Killed
            delete(*arguments, **options)

        return deleting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            assert format_bookie(*settings).exit_code == 0
        except Killed:
            return True
    return False


@pytest.mark.parametrize("names", [("one",), ("journal", "ledgers")])
def test_no_bookie_starts_on_what_a_format_that_was_cut_off_has_left(tmp_path: Path, names: tuple[str, ...]) -> None:
    """It would deny entries that it has acknowledged (S8): what says that they were there may be gone by then."""
    paths = [tmp_path / name for name in names]
    master = Cookie.build("b", paths[:1], paths[-1:], "cluster")
    settings = (f"journal_directory={paths[0]}", f"ledger_directory={paths[-1]}")
    step = 0
    while True:
        filled(paths, master)
        everything = left(paths)
        if not killed(step, *settings):
            break
        if left(paths) != everything:
            cookies = directories.read_version_files(REAL_FILE_SYSTEM, paths)
            empty = directories.empty_directories(REAL_FILE_SYSTEM, paths)
            with pytest.raises(InvalidCookieException):
                check(master, master.encode(), cookies, empty)
            if any(cookies.values()):
                deleted = {path.name for path in everything - left(paths)}
                assert deleted == {VERSION_FILE}, "the data stay until no directory has a cookie"
        assert format_bookie(*settings).exit_code == 0, "it may be run again"
        assert left(paths) == set()
        step += 1
    assert left(paths) == set()
    assert step > len(FILES)


def test_a_format_makes_it_durable_that_there_are_no_cookies_before_it_deletes_data(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("journal", "ledgers")]
    filled(paths, Cookie.build("b", paths[:1], paths[1:], "cluster"))
    steps: list[tuple[str, Path]] = []
    unlink, sync = Path.unlink, FileSystem.sync_directory

    def unlinking(path: Path, missing_ok: bool = False) -> None:
        steps.append(("unlink", path))
        unlink(path, missing_ok)

    def syncing(files: FileSystem, path: Path) -> None:
        steps.append(("sync", path))
        sync(files, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", unlinking)
        patch.setattr(FileSystem, "sync_directory", syncing)
        settings = (f"journal_directory={paths[0]}", f"ledger_directory={paths[1]}")
        assert format_bookie(*settings).exit_code == 0
    cookies = [step for path in map(current, paths) for step in (("unlink", path / VERSION_FILE), ("sync", path))]
    assert steps[: len(cookies)] == cookies


def test_settings_of_another_bookie_delete_no_cookie(tmp_path: Path) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    asyncio.run(write_cookies(uri, "b"))
    path = tmp_path / "ledgers"
    filled([path], Cookie.build("another", [path], [path], "cluster"))
    settings = (f"journal_directory={path}", f"ledger_directory={path}")
    before = left([path])
    refused = format_bookie(*settings, metadata_uri=uri, more=["--delete-cookie"])
    assert refused.exit_code == 1
    assert "is of bookie another" in refused.stderr
    assert left([path]) == before
    assert asyncio.run(cookie_of(uri, "b")) is not None
    (current(path) / VERSION_FILE).write_bytes(b"damaged")
    assert format_bookie(*settings, metadata_uri=uri, more=["--delete-cookie"]).exit_code == 0
    assert left([path]) == set()
    assert asyncio.run(cookie_of(uri, "b")) is None
