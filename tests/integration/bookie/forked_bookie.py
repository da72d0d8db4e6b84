"""Bookie processes that start in a few hundredths of a second, to be killed by the dozen.

A start by the command spends nearly all its time importing modules. Here a server process imports them once and forks
for each start: what runs is a process of its own with the whole bookie, and a kill of it is a kill.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.server import BookieServer
from tests.stores import made

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])

START_TIMEOUT_SECONDS = 60


class ForkedBookie:
    """One bookie on the directories below `root`; `options` are settings of BookieConfig."""

    def __init__(self, root: Path, **options: object) -> None:
        self._root = root
        self._settings = {
            "metadata_uri": f"sqlite://{root}/metadata.sqlite",
            "data_dir": str(root / "bookie"),
            "host": "127.0.0.1",
            "port": 0,
            "gateway_port": 0,
            "http_port": 0,
            "bookie_id": "killed",
            **options,
        }
        self.addresses: dict[str, str] = {}
        """Of each service, as the bookie tells them."""

    @property
    def address(self) -> str:
        """`host:port` of the entry protocol."""
        return self.addresses.get("bookie", "")

    def start(self) -> None:
        """Forks; `wait_until_serving` waits for it."""
        made(str(self._settings["metadata_uri"]))
        self._pipe, childs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(self._settings, self._root / "bookie.log", childs))
        self._process.start()
        childs.close()

    def wait_until_serving(self) -> None:
        """Sets `addresses`. Raises AssertionError with the end of the bookie's log when it does not start."""
        try:
            assert self._pipe.poll(START_TIMEOUT_SECONDS), f"the bookie did not start: {self._last_words()}"
            self.addresses = self._pipe.recv()
        except EOFError:
            raise AssertionError(f"the bookie did not start: {self._last_words()}") from None

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None, "it was started"
        return pid

    @property
    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    def kill(self) -> None:
        self._process.kill()
        self.join()

    def stop(self) -> None:
        """A clean stop, with the last checkpoint."""
        self._pipe.close()
        self.join()

    def join(self) -> None:
        self._process.join(START_TIMEOUT_SECONDS)
        assert self._process.exitcode is not None
        self._process.close()
        self._pipe.close()

    def _last_words(self) -> str:
        return (self._root / "bookie.log").read_text(errors="replace")[-2000:]


def _run(settings: dict[str, object], log: Path, pipe: Connection) -> None:
    logging.basicConfig(filename=log, filemode="w", level=logging.INFO, force=True)
    try:
        asyncio.run(_serve(BookieConfig(**settings), pipe))  # type: ignore[arg-type]
    except Exception:
        logging.exception("the bookie ended")
        os._exit(1)
    os._exit(0)


async def _serve(config: BookieConfig, pipe: Connection) -> None:
    server = BookieServer(config)
    loop = asyncio.get_running_loop()
    try:
        await server.start()
        threading.Thread(target=_watch_parent, args=(pipe, loop, server), daemon=True).start()
        pipe.send(dict(server.addresses))
        await server.run_until_stopped()
    finally:
        await server.stop()


def _watch_parent(pipe: Connection, loop: asyncio.AbstractEventLoop, server: BookieServer) -> None:
    try:
        pipe.recv()
    except (EOFError, OSError):
        loop.call_soon_threadsafe(server.request_stop)
