"""Files that a bookie's process may not use: it says which in one sentence, and changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bookgate.bookie.server import BookieServer
from tests.integration.bookie.entry_client import EntryClient, add, read
from tests.integration.bookie.in_process import entry_address, running_bookie

LEDGER = 3
_OVERRIDES = "-dac_override,-dac_read_search"
"""The capabilities by which root may use any file."""


def start(root: Path) -> subprocess.CompletedProcess[str]:
    """A bookie that is expected not to start, as a user who may not do everything."""
    command = [sys.executable, "-m", "bookgate", "bookie", "start", f"--data-dir={root}", "--host=127.0.0.1"]
    command += [f"--metadata-uri=sqlite://{root}/metadata.db", "--bookie-id=one"]
    command += ["--port=0", "--gateway-port=0", "--http-port=0"]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("there is no setpriv here")
        command = ["setpriv", f"--bounding-set={_OVERRIDES}", f"--inh-caps={_OVERRIDES}", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def add_one(server: BookieServer) -> None:
    with EntryClient(entry_address(server)) as client:
        assert client.status(add(LEDGER, 0)) == 0


def read_one(server: BookieServer) -> None:
    with EntryClient(entry_address(server)) as client:
        assert client.status(read(LEDGER, 0)) == 0


def journal(root: Path) -> Path:
    return next(root.rglob("*.txn"))


def mark(root: Path) -> Path:
    return next(root.rglob("lastMark"))


def metadata(root: Path) -> Path:
    return root / "metadata.db"


def ledgers(root: Path) -> Path:
    return next(root.rglob("lastMark")).parent


@pytest.mark.asyncio
@pytest.mark.parametrize(("place", "mode"), [(journal, 0), (mark, 0), (metadata, 0), (ledgers, 0o500)])
async def test_what_may_not_be_used_is_named(place: Callable[[Path], Path], mode: int, tmp_path: Path) -> None:
    async with running_bookie(tmp_path, bookie_id="one") as server:
        await asyncio.to_thread(add_one, server)
        await asyncio.to_thread(server.storage.checkpoint)
    path = place(tmp_path)
    before = path.stat().st_mode & 0o777
    path.chmod(mode)
    try:
        refused = start(tmp_path)
    finally:
        path.chmod(before)
    assert refused.returncode == 1, refused.stderr
    assert str(path) in refused.stderr
    assert "Traceback" not in refused.stderr
    async with running_bookie(tmp_path, bookie_id="one") as server:
        await asyncio.to_thread(read_one, server)
