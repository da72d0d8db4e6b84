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
from bookgate.bookie.membership.registration import check_cookie
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
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

    JSON: {"bookie_id", "directories": [paths], "cookie_deleted"}.

    \b
    Example: bookgate bookie format --config bookie.toml --delete-cookie
    """
    chosen = read_settings(config, settings)
    bookie_id, paths = own_bookie_id(chosen), [path for path in all_directories(chosen) if path.exists()]
    lock = directories.DirectoryLock(paths)
    try:
        if delete_cookie:
            with_own_metadata(chosen, lambda factory: _refuse_registered(factory, bookie_id))
        confirm(f"Delete all data of bookie {bookie_id} in {', '.join(map(str, paths)) or 'no directory'}", yes)
        _empty(directories.current(path) for path in paths)
        deleted = delete_cookie and with_own_metadata(chosen, lambda factory: _delete_cookie(factory, bookie_id))
    finally:
        lock.release()
    shown = {"bookie_id": bookie_id, "directories": [str(path) for path in paths]}
    print_result({**shown, "cookie_deleted": deleted}, as_json)


def _empty(inner: Iterable[Path]) -> None:
    """Deletes what is in the directories, not the directories themselves: they may be mounted."""
    for directory in inner:
        for path in directory.iterdir() if directory.exists() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if directory.exists():
            REAL_FILE_SYSTEM.sync_directory(directory)


async def _refuse_registered(factory: LedgerManagerFactory, bookie_id: str) -> None:
    found = await factory.service_discovery.bookies(BookieSet.ALL)
    if any(each.bookie_id == bookie_id and each.registered for each in found):
        raise IllegalOpException(f"bookie {bookie_id} is registered: stop it first")


async def _delete_cookie(factory: LedgerManagerFactory, bookie_id: str) -> bool:
    stored = await factory.registration_manager.read_cookie(bookie_id)
    if stored is None:
        return False
    await factory.registration_manager.remove_cookie(bookie_id, stored.version)
    return True
