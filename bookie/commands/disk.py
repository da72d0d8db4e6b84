"""The commands of `bookgate bookie` that make or empty a bookie's directories. The bookie must not run."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from bookgate.bookie.commands.local_options import (
    Config,
    Settings,
    all_directories,
    own_bookie_id,
    read_settings,
    with_own_metadata,
)
from bookgate.bookie.disks import directories
from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException
from bookgate.bookie.membership.registration import check_cookie
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_control import require_unregistered
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, Yes, confirm, print_result

app = new_group("A bookie's own directories.")


@app.command()
def init(config: Config = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Makes a new bookie's directories and its cookie, as its first start would, and starts nothing.

    Fails for a bookie that has a cookie already, or directories that are not empty.

    JSON: {"bookie_id", "directories": [paths], "metadata_uri"}.

    \b
    Example: bookgate bookie init --config bookie.toml
    """
    chosen = read_settings(config, settings)
    bookie_id, paths = own_bookie_id(chosen), all_directories(chosen)
    for path in paths:
        directories.prepare(path)
    lock = directories.DirectoryLock(paths)

    async def work(factory: LedgerManagerFactory) -> None:
        await _refuse_known(factory, bookie_id)
        used = set(paths) - directories.empty_directories(REAL_FILE_SYSTEM, paths)
        if used:
            names = ", ".join(map(str, sorted(used)))
            raise IllegalOpException(f"{names}: not empty; configure empty directories, or `bookgate bookie format`")
        await check_cookie(chosen, bookie_id, factory)

    try:
        with_own_metadata(chosen, work)
    finally:
        lock.release()
    shown = {"bookie_id": bookie_id, "directories": [str(path) for path in paths]}
    print_result({**shown, "metadata_uri": chosen.metadata_uri}, as_json)


async def _refuse_known(factory: LedgerManagerFactory, bookie_id: str) -> None:
    if await factory.registration_manager.read_cookie(bookie_id) is not None:
        raise IllegalOpException(
            f"bookie {bookie_id} has a cookie already: it is no new bookie. If it is gone for good and no ledger is on "
            "it (`bookgate ledger list --bookie`), delete its cookie with `bookgate cookie delete`"
        )


@app.command("format")
def format_bookie(
    config: Config = None,
    settings: Settings = None,
    delete_cookie: Annotated[
        bool, typer.Option("--delete-cookie", "-d", help="Delete its cookie in the metadata store too.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Deletes everything in a bookie's directories. Its entries are lost; other bookies' copies stay.

    Broken off, it may be run again; no bookie starts on what is left by then.

    JSON: {"bookie_id", "directories": [paths], "cookie_deleted"}.

    \b
    Example: bookgate bookie format --config bookie.toml --delete-cookie
    """
    chosen = read_settings(config, settings)
    bookie_id, paths = own_bookie_id(chosen), [path for path in all_directories(chosen) if path.exists()]
    lock = directories.DirectoryLock(paths)
    try:
        if delete_cookie:
            _refuse_cookies_of_others(bookie_id, paths)
            with_own_metadata(chosen, lambda factory: require_unregistered(factory, bookie_id, "its cookie goes"))
        confirm(f"Delete all data of bookie {bookie_id} in {', '.join(map(str, paths)) or 'no directory'}", yes)
        _empty(paths)
        deleted = delete_cookie and with_own_metadata(chosen, lambda factory: _delete_cookie(factory, bookie_id))
    finally:
        lock.release()
    shown = {"bookie_id": bookie_id, "directories": [str(path) for path in paths]}
    print_result({**shown, "cookie_deleted": deleted}, as_json)


def _empty(paths: Iterable[Path]) -> None:
    """Deletes what is in the directories, not the directories themselves: they may be mounted."""
    inner = [found for path in paths if (found := directories.current(path)).exists()]
    _remove_cookies(inner)
    for directory in inner:
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        REAL_FILE_SYSTEM.sync_directory(directory)


def _remove_cookies(inner: Iterable[Path]) -> None:
    """Durably, before anything else goes: with all its cookies a bookie would start on what a format that is cut off
    leaves, and deny acknowledged entries (S8), since nothing there need tell any more that it had them.
    """
    for directory in inner:
        # Synced also where there is none: the format that has removed it may have been killed before its sync.
        (directory / directories.VERSION_FILE).unlink(missing_ok=True)
        REAL_FILE_SYSTEM.sync_directory(directory)


def _refuse_cookies_of_others(bookie_id: str, paths: Iterable[Path]) -> None:
    """Raises InvalidCookieException where directories are another bookie's than the settings say."""
    for path, content in directories.read_version_files(REAL_FILE_SYSTEM, paths).items():
        named = _bookie_in(content)
        if named not in (None, bookie_id):
            raise InvalidCookieException(
                f"{path} is of bookie {named}, and these settings would delete the cookie of {bookie_id}: correct "
                "bookie_id"
            )


def _bookie_in(cookie: bytes | None) -> str | None:
    """None where there is no cookie, or a damaged one."""
    try:
        return None if cookie is None else Cookie.decode(cookie).bookie_id
    except InvalidCookieException:
        return None


async def _delete_cookie(factory: LedgerManagerFactory, bookie_id: str) -> bool:
    """Looks whether the bookie is registered, also when that was looked at before: the question may stand for long."""
    stored = await factory.registration_manager.read_cookie(bookie_id)
    await require_unregistered(factory, bookie_id, "its cookie goes")
    if stored is None:
        return False
    await factory.registration_manager.remove_cookie(bookie_id, stored.version)
    return True
