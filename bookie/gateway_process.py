"""Runs and supervises the metadata gateway of a bookie in a process of its own (setting `gateway_process`).

What that process does is in `bookgate.gateway.process.beside_bookie`: gRPC, and the listings of HTTP. The bookie keeps
the entry protocol and all HTTP that needs its state or by which it is monitored: none of that is affected when the
gateway is killed, stopped or busy. The bookie holds the gateway's port (bound, never listening) and the listening
socket of the listings, so neither is lost while the process restarts.

States: new → serving (`start`; an error of the child at this point is the bookie's error) → stopped (`stop`). While
serving, the process may be *silent*, which ends with its next report or, after a minute, with a kill; or *ended*, which
ends after a pause that doubles with each short life. A check counts only while this event loop runs: resuming a machine
that was suspended as a whole kills nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.beside_bookie import Order
from bookgate.gateway.process.handed_over import HandOver
from bookgate.gateway.process.passed_on import PassedOn
from bookgate.gateway.process.reported_metrics import ReportedMetrics
from bookgate.runtime.background import keep_running
from bookgate.runtime.child_process import ChildFailedException, ChildProcess, Pauses
from bookgate.runtime.listening import hold_shared_port, listen
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_LOOKS_BEFORE_KILL = 12
_START_SECONDS = 60.0
_LOOPBACK = "127.0.0.1"


class GatewayProcess:
    """See the module. Not reusable after `stop`."""

    def __init__(self, settings: GatewayConfig, bookie_id: str) -> None:
        self._settings = settings
        self._bookie_id = bookie_id
        self._child = ChildProcess("the gateway's process", "bookgate.gateway.process.beside_bookie")
        self._stack = contextlib.ExitStack()
        self._minder: asyncio.Task[None] | None = None
        self._hand_over = HandOver()
        self._listener: socket.socket | None = None
        self._port = 0
        self._secret = secrets.token_urlsafe()
        self.metrics = ReportedMetrics()
        self.listings: PassedOn | None = None
        """Answers those paths of HTTP that list; set by `start`."""

    async def start(self) -> int:
        """Starts serving; returns the port. Raises OSError, ChildFailedException."""
        settings = self._settings
        holder = self._stack.enter_context(contextlib.closing(await hold_shared_port(settings.host, settings.port)))
        listener = self._stack.enter_context(contextlib.closing(listen(_LOOPBACK, 0)))
        self._stack.callback(self._hand_over.close)
        self._listener, self._port = listener, int(holder.getsockname()[1])
        self.listings = PassedOn(
            _LOOPBACK, listener.getsockname()[1], self._secret, self._hand_over, lambda: self.metrics.answers
        )
        try:
            await self._begin()
        except BaseException:
            self._child.let_go()
            self._stack.close()
            raise
        self._minder = keep_running("minder of the gateway's process", self._mind)
        return self._port

    async def stop(self, grace: float) -> None:
        """Drains and ends the process. A second call does nothing."""
        if self._minder is not None:
            self._minder.cancel()
            await asyncio.gather(self._minder, return_exceptions=True)
            self._minder = None
        await self._child.stop(grace, by_signal=False)
        self._stack.close()
        self.metrics.forget()

    async def _begin(self) -> None:
        assert self._listener is not None
        with contextlib.closing(self._hand_over.renew()) as connections:
            order = Order(
                settings=json.loads(self._settings.for_worker(0, self._port).as_json_line()),
                bookie_id=self._bookie_id,
                listener=self._listener.fileno(),
                connections=connections.fileno(),
                secret=self._secret,
            )
            try:
                async with asyncio.timeout(_START_SECONDS):
                    answer = await self._child.start(order.as_line(), (order.listener, order.connections))
            except TimeoutError:
                self._child.kill()
                raise ChildFailedException(
                    f"the gateway's process did not serve within {_START_SECONDS:.0f} s, and was killed"
                ) from None
        self.metrics.keep(json.dumps(answer).encode())
        log_event(_log, "gateway_process", state="serving", pid=self._child.pid, address=answer["grpc"])

    async def _mind(self) -> None:
        """Restarts the process whenever it ends."""
        pauses, clock = Pauses(), asyncio.get_running_loop().time
        while True:
            began = clock()
            await self._follow()
            self.metrics.forget()
            self.metrics.restarts += 1
            pause = pauses.after(clock() - began)
            code = await self._child.ended()
            log_event(_log, "gateway_process", logging.ERROR, state="ended", code=code, pause_seconds=pause)
            await asyncio.sleep(pause)
            while not await self._began_again():
                self.metrics.restarts += 1
                await asyncio.sleep(pauses.after(0))

    async def _began_again(self) -> bool:
        try:
            await self._begin()
        except ChildFailedException as error:
            log_event(_log, "gateway_process", logging.ERROR, state="failed", reason=error)
            return False
        return True

    async def _follow(self) -> None:
        """Keeps the reports of the process; returns when it has ended."""
        silent = 0
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    line = await self._child.read_line()
            except TimeoutError:
                silent += 1
                self._silent(silent)
                continue
            if not line:
                return
            if silent:
                log_event(_log, "gateway_process", state="answers", pid=self._child.pid)
                silent = 0
            self.metrics.keep(line)

    def _silent(self, looks: int) -> None:
        self.metrics.answers = False
        if looks == 1:
            log_event(_log, "gateway_process", logging.WARNING, state="silent", pid=self._child.pid)
        if looks == _LOOKS_BEFORE_KILL:
            log_event(_log, "gateway_process", logging.ERROR, state="killed", pid=self._child.pid)
            self._child.kill()
