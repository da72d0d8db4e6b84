"""Bookie processes that start in a few hundredths of a second, to be killed by the dozen; other processes, too.

A start by the command spends nearly all its time importing modules. Here a server process imports them once and forks
for each start: what runs is a process of its own with the whole bookie, and a kill of it is a kill.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.server import BookieServer
from tests.stores import made

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])

START_TIMEOUT_SECONDS = 60


Serve = Callable[[dict[str, Any], Connection], Coroutine[Any, Any, None]]
"""What the process does, as a function of a module: sends its addresses once it serves, and ends with its parent."""


class ForkedProcess:
    """A process over all its lives; `serve` gets the settings."""

    def __init__(self, log: Path, serve: Serve, settings: dict[str, Any]) -> None:
        self._log = log
        self._serve = serve
        self._settings = settings
        self.addresses: dict[str, str] = {}
        """Of each service, as the process tells them."""

    def start(self) -> None:
        """Forks; `wait_until_serving` waits for it."""
        self._pipe, childs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(self._serve, self._settings, self._log, childs))
        self._process.start()
        childs.close()

    def wait_until_serving(self) -> None:
        """Sets `addresses`. Raises AssertionError with the end of its log when it does not start."""
        try:
            assert self._pipe.poll(START_TIMEOUT_SECONDS), f"the process did not start: {self._last_words()}"
            self.addresses = self._pipe.recv()
        except EOFError:
            raise AssertionError(f"the process did not start: {self._last_words()}") from None

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
        return self._log.read_text(errors="replace")[-2000:]


class ForkedBookie(ForkedProcess):
    """One bookie on the directories below `root`; `options` are settings of BookieConfig."""

    def __init__(self, root: Path, **options: object) -> None:
        settings = {
            "metadata_uri": f"sqlite://{root}/metadata.sqlite",
            "data_dir": str(root / "bookie"),
            "host": "127.0.0.1",
            "port": 0,
            "gateway_port": 0,
            "http_port": 0,
            "bookie_id": "killed",
            **options,
        }
        super().__init__(root / "bookie.log", _serve_bookie, settings)

    @property
    def address(self) -> str:
        """`host:port` of the entry protocol."""
        return self.addresses.get("bookie", "")

    def start(self) -> None:
        made(str(self._settings["metadata_uri"]))
        super().start()


def _run(serve: Serve, settings: dict[str, Any], log: Path, pipe: Connection) -> None:
    logging.basicConfig(filename=log, filemode="w", level=logging.INFO, force=True)
    try:
        asyncio.run(serve(settings, pipe))
    except Exception:
        logging.exception("the process ended")
        os._exit(1)
    os._exit(0)


def when_the_parent_ends(pipe: Connection, stop: Callable[[], object]) -> None:
    """Calls `stop` on this event loop when the parent closes the pipe, or has ended."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        try:
            pipe.recv()
        except (EOFError, OSError):
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=watch, daemon=True).start()


async def _serve_bookie(settings: dict[str, Any], pipe: Connection) -> None:
    server = BookieServer(BookieConfig(**settings))
    try:
        await server.start()
        when_the_parent_ends(pipe, server.request_stop)
        pipe.send(dict(server.addresses))
        await server.run_until_stopped()
    finally:
        await server.stop()
