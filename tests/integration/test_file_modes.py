"""What a cluster leaves on the disk is not for everybody, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from tests.integration.bookie.entry_client import EntryClient, add


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_files_are_for_the_user_and_its_group(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with StandaloneCluster(root, 1) as cluster, EntryClient(cluster.bookies[0]) as client:
        assert client.status(add(1, 0)) == 0
        assert (root / "metadata.sqlite-wal").exists()
        modes = {path: path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")] if not path.is_symlink()}
    # The metadata hold passwords.
    secret = {path.name: mode for path, mode in modes.items() if path.name.startswith("metadata.sqlite")}
    assert set(secret.values()) == {0o600}, secret
    assert any(path.suffix == ".txn" for path in modes)
    assert any(path.name == "bookie.log" for path in modes)
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o027} == {}
