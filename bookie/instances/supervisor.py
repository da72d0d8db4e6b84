"""The supervisor of a host's instances: starts them, starts again what ended, renews and stops them.

It serves nothing itself but the HTTP door that shows them all (`door`), and keeps no data. The instances share nothing
with each other: one that is killed, stuck or without its disk leaves the others as they are, also at the start. Only
where none can be started does the start fail.

States: new → starting → serving → stopping. `renew` runs while serving: one instance after the other is ended and
started again, the next only when the one before serves and no other is away. An instance reads settings and code when
it starts, so this is how an upgrade reaches the instances. Told to stop, all stop at the same time, each with a last
checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from bookgate.bookie.instances.directories import check_directories, count_of
from bookgate.bookie.instances.door import Door
from bookgate.bookie.instances.order import Order, Sources
from bookgate.bookie.instances.rules import check_ports
from bookgate.bookie.instances.slot import Slot
from bookgate.ledger.errors import BKException
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_STOP_SECONDS = 100.0
"""For a last checkpoint; below the two minutes after which the service manager kills."""


class InstancesException(BKException):
    """No instance could be started; the message has their own words."""


class Supervisor:
    """See the module. `start`, then `run_until_stopped`, then `stop` (also after a start that failed)."""

    def __init__(self, sources: Sources) -> None:
        """Raises IncorrectParameterException for settings, ports or directories that can't be."""
        host = sources.load()
        host.check_exposure()
        self._count = count = count_of(host)
        check_ports(host, count)
        check_directories(host, count)
        self.slots: Sequence[Slot] = [
            Slot(number, Order(sources, number, count).as_line(), _STOP_SECONDS) for number in range(1, count + 1)
        ]
        self._door = Door(host, self.slots)
        self._minders: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._renew = asyncio.Event()
        self._renewer: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> dict[str, Any]:
        """`http` of the door, `instances`: the addresses of each."""
        instances = [{"instance": each.number, **each.addresses} for each in self.slots if each.addresses]
        return {"http": self._door.address, "instances": instances}

    def request_stop(self) -> None:
        """Ends `run_until_stopped`."""
        self._stopping.set()

    def request_renewal(self) -> None:
        """Renews the instances one by one; asked for again meanwhile, once more afterwards."""
        self._renew.set()

    async def start(self) -> None:
        """Returns once every instance serves or has failed to. Raises OSError for the door, InstancesException."""
        await self._door.start()
        self._minders = [keep_running("minder of an instance", slot.run) for slot in self.slots]
        if not await self._any_serves():
            raise InstancesException("; ".join(slot.error or f"instance {slot.number}" for slot in self.slots))
        self._renewer = keep_running("renewal of instances", self._renew_when_asked)
        log_event(_log, "instances", state="serving", count=self._count, http=self._door.address)

    async def run_until_stopped(self) -> None:
        """Returns after `request_stop`."""
        await self._stopping.wait()

    async def stop(self) -> None:
        """Stops all instances, then the door."""
        log_event(_log, "instances", state="stopping", count=self._count, grace_seconds=_STOP_SECONDS)
        tasks = [*self._minders, *([self._renewer] if self._renewer is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(slot.stop() for slot in self.slots))
        await self._door.stop()
        log_event(_log, "instances", state="stopped", count=self._count)

    async def _any_serves(self) -> bool:
        """Whether any does, once all have tried; True also if told to stop before."""
        trying = asyncio.gather(*(slot.tried() for slot in self.slots))
        stopping = asyncio.get_running_loop().create_task(self._stopping.wait())
        try:
            await asyncio.wait((trying, stopping), return_when=asyncio.FIRST_COMPLETED)
            return self._stopping.is_set() or any(trying.result())
        finally:
            trying.cancel()
            stopping.cancel()
            await asyncio.gather(trying, stopping, return_exceptions=True)

    async def _renew_when_asked(self) -> None:
        while True:
            await self._renew.wait()
            self._renew.clear()
            await self._renew_all()

    async def _renew_all(self) -> None:
        log_event(_log, "instances", state="renewing", count=self._count)
        for slot in self.slots:
            away = [each.number for each in self.slots if not each.serves]
            if away:
                self._break_off(away)
                return
            await slot.renew()
        if away := [each.number for each in self.slots if not each.serves]:
            self._break_off(away)
            return
        log_event(_log, "instances", state="renewed", count=self._count)

    def _break_off(self, away: Sequence[int]) -> None:
        """A second instance is not taken away while one is: entries might have both for their copies."""
        log_event(_log, "instances", logging.ERROR, state="renewal_broken_off", away=",".join(map(str, away)))
