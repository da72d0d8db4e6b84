"""`--workers N`: several gateway processes on one port, and the parent that supervises them.

The kernel distributes connections over the workers (SO_REUSEPORT); each worker is a separate gateway, with its own
session with the store, cache and watches. The parent first makes sure that no other process has the port, then holds it
(bound, never listening) so that it stays reserved while a worker restarts. The parent serves nothing itself.

States of a worker: starting → serving → ended. A worker that ends unexpectedly is restarted, after a pause that doubles
until one has served for a minute. If a worker fails at the first start, the others are stopped and its error becomes
the command's. When told to stop, all drain at the same time; a worker still running well after the grace period is
killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.serve import Addresses
from bookgate.runtime.background import keep_running
from bookgate.runtime.child_process import ChildFailedException, ChildProcess, Pauses
from bookgate.runtime.listening import hold_shared_port
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)


class _Worker:
    """The slot of one worker process."""

    def __init__(self, number: int, settings: GatewayConfig) -> None:
        self.number = number
        self._settings = settings
        self._child = ChildProcess(f"worker {number}", "bookgate.gateway.process.worker")
        self.ended = self._child.ended
        self.stop = self._child.stop

    async def start(self) -> Addresses:
        """Returns once the worker serves. Raises ChildFailedException."""
        answer = await self._child.start(self._settings.as_json_line())
        addresses = Addresses(answer["grpc"], answer["http"])
        log_event(_LOG, "worker", state="serving", worker=self.number, pid=self._child.pid, address=addresses.grpc)
        return addresses


async def serve_with_workers(
    settings: GatewayConfig, stop: asyncio.Event, serving: Callable[[list[Addresses]], None]
) -> None:
    """Serves until `stop` is set, then drains all workers. Raises BKException, or OSError if it can't start."""
    holder = await hold_shared_port(settings.host, settings.port)
    port = holder.getsockname()[1]
    workers = [_Worker(number, settings.for_worker(number, port)) for number in range(settings.workers)]
    minders: list[asyncio.Task[None]] = []
    try:
        addresses = await _start_all(workers, stop)
        if addresses is None:
            return
        minders = [keep_running("minder of a worker", partial(_mind, worker)) for worker in workers]
        serving(addresses)
        await stop.wait()
        log_event(_LOG, "workers", state="draining", count=len(workers), grace_seconds=settings.drain_seconds)
    finally:
        for minder in minders:
            minder.cancel()
        await asyncio.gather(*minders, return_exceptions=True)
        await asyncio.gather(*(worker.stop(settings.drain_seconds) for worker in workers))
        holder.close()
        log_event(_LOG, "workers", state="stopped", count=len(workers))


async def _start_all(workers: list[_Worker], stop: asyncio.Event) -> list[Addresses] | None:
    """Returns None if told to stop before all serve."""
    starting = asyncio.gather(*(worker.start() for worker in workers))
    stopping = asyncio.get_running_loop().create_task(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _mind(worker: _Worker) -> None:
    """Restarts a worker whenever it ends."""
    pauses, clock = Pauses(), asyncio.get_running_loop().time
    while True:
        began = clock()
        code = await worker.ended()
        pause = pauses.after(clock() - began)
        log_event(_LOG, "worker", logging.ERROR, state="ended", worker=worker.number, code=code, pause_seconds=pause)
        await asyncio.sleep(pause)
        try:
            await worker.start()
        except ChildFailedException as error:
            log_event(_LOG, "worker", logging.ERROR, state="failed", worker=worker.number, reason=error)
