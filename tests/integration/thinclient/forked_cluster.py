"""Clusters of bookie processes that start fast, to be killed and paused under a client."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bookgate import BookKeeper, ClientConfig
from bookgate.gateway.stores.sqlite.store import Transaction
from tests.integration.bookie.forked_bookie import ForkedBookie


class ForkedCluster:
    """Bookies by id, on one metadata store, by default an embedded one; with settings of BookieConfig."""

    def __init__(self, root: Path, size: int, metadata_uri: str | None = None, **settings: Any) -> None:
        self._root = root
        self.metadata_uri = metadata_uri or f"sqlite://{root}/metadata.sqlite"
        self._settings = settings
        self.bookies: dict[str, ForkedBookie] = {}
        for _ in range(size):
            self.add()
        self._running: set[str] = set()
        self._paused: set[str] = set()

    def add(self, **settings: Any) -> str:
        """Makes one more bookie, which does not run yet."""
        bookie_id = f"bookie-{len(self.bookies)}"
        home = self._root / bookie_id
        home.mkdir()
        self.bookies[bookie_id] = ForkedBookie(
            home, bookie_id=bookie_id, metadata_uri=self.metadata_uri, **{**self._settings, **settings}
        )
        return bookie_id

    @property
    def running(self) -> list[str]:
        """Bookies that were started and not killed since."""
        return sorted(self._running)

    def start(self, *bookie_ids: str) -> None:
        """Those named, or all."""
        wanted = bookie_ids or tuple(self.bookies)
        for bookie_id in wanted:
            self.bookies[bookie_id].start()
            self._running.add(bookie_id)
        for bookie_id in wanted:
            self.bookies[bookie_id].wait_until_serving()

    def kill(self, bookie_id: str) -> None:
        """kill -9. Its registration outlives it, as in any store."""
        self.bookies[bookie_id].kill()
        self._running.discard(bookie_id)
        self._paused.discard(bookie_id)

    def lose(self, bookie_id: str) -> None:
        """kill -9, and as much later as its lease lasts: nobody waits for that time. In the embedded store only."""
        self.kill(bookie_id)
        with contextlib.closing(sqlite3.connect(self._root / "metadata.sqlite")) as store, store:
            ended = store.execute("UPDATE registrations SET expires_at_ms = 0 WHERE bookie_id = ?", (bookie_id,))
            Transaction(store).bookies_changed()
        assert ended.rowcount == 1, f"{bookie_id} was not registered"

    def home(self, bookie_id: str) -> Path:
        """The directory with the bookie's own."""
        return self._root / bookie_id / "bookie"

    def wipe(self, bookie_id: str) -> None:
        """Removes what a bookie that does not run has stored."""
        shutil.rmtree(self.home(bookie_id))

    def pause(self, bookie_id: str) -> None:
        os.kill(self.bookies[bookie_id].pid, signal.SIGSTOP)
        self._paused.add(bookie_id)

    def resume(self, bookie_id: str) -> None:
        os.kill(self.bookies[bookie_id].pid, signal.SIGCONT)
        self._paused.discard(bookie_id)

    def stop(self) -> None:
        for bookie_id in list(self._running):
            self.kill(bookie_id)

    async def client(self, **settings: Any) -> BookKeeper:
        values = {"add_timeout_seconds": 1.5, "read_timeout_seconds": 1.5, "connect_timeout_seconds": 1.5, **settings}
        return await BookKeeper.connect(self.metadata_uri, ClientConfig(**values))


@contextlib.contextmanager
def forked_cluster(root: Path, size: int, metadata_uri: str | None = None, **settings: Any) -> Iterator[ForkedCluster]:
    """A cluster while the block runs."""
    cluster = ForkedCluster(root, size, metadata_uri, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
