"""A bookie of a simulated world: the real `BookieServer` on a host and a disk of its own.

States: *down* (no process), *starting*, *up*, and *paused* as a part of those. A start that fails, and a bookie that
stops by itself, ends the process, as the command `bookgate bookie` does. The disk outlives processes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.environment import Environment
from bookgate.bookie.server import BookieServer
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Completion, Retry
from bookgate.bookie.system.threads import RunningThread, Threads
from bookgate.ledger.errors import BKException, DataUnknownException, NoSuchEntryException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import Status
from tests.faults.memory_disk import Survival, everything_survives, some_survive
from tests.simulation.disk import Disk, ProcessFiles
from tests.simulation.loop import Process
from tests.simulation.settings import BOOKIE_PORT, bookie_settings
from tests.simulation.threads import SimulatedThreads

if TYPE_CHECKING:
    from tests.simulation.world import World


class StoredLedgerState(NamedTuple):
    """What a bookie has of a ledger; entries as packets."""

    master_key: bytes
    fenced: bool
    explicit_lac: bytes | None
    entries: dict[int, bytes]
    limbo: bool


class SimulatedBookie:
    """Its name is its host's name, and its id."""

    def __init__(self, world: World, name: str, disk: Disk, **settings: Any) -> None:
        self._world = world
        self.name = name
        self.bookie_id = f"{name}:{BOOKIE_PORT}"
        self.disk = disk
        config = bookie_settings(name, world.random(f"settings of {name}"), settings)
        self.config = config if world.access is None else config.model_copy(update={"access": world.access})
        self.process: Process | None = None
        self.server: BookieServer | None = None
        self.serving = False
        self.joined = False
        """Whether a start has succeeded with the disk that it has: its directories belong to the cluster."""
        self.accept_loss = False
        """Of the next start that succeeds."""
        self.failure: BaseException | None = None
        """Why the last start failed, or the last process ended by itself."""

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.paused

    async def start(self) -> bool:
        """Starts a process; whether it serves. It may be killed meanwhile, or fail: `failure` says why."""
        world = self._world
        if self.process is not None:
            raise RuntimeError(f"{self.name} runs already")
        world.note(self.name, "starts")
        world.network.host(self.name).up = True
        process = self.process = world.new_process(self.name, self.name)
        self.failure = None
        settled: asyncio.Future[bool] = world.loop.create_future()
        process.on_end.append(partial(_settle, settled, False))
        world.spawn(process, self._main(process, settled))
        return await settled

    async def _main(self, process: Process, settled: asyncio.Future[bool]) -> None:
        world = self._world
        server = self.server = BookieServer(self.config, environment=self._doors(process), accept_loss=self.accept_loss)
        try:
            await server.start()
            self.serving, self.joined, self.accept_loss = True, True, False
            world.note(self.name, "serves")
            _settle(settled, True)
            await server.run_until_stopped()
        except (BKException, OSError) as error:
            self._fails(error)
        try:
            await server.stop()
        except (BKException, OSError) as error:
            self._fails(error)
        if self.failure is None:
            world.note(self.name, "is stopped")
        self._process_ends(host_is_up=True)

    def _fails(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._world.note(self.name, f"ends by itself: {error}")

    def _doors(self, process: Process) -> Environment:
        world = self._world

        def listen(host: str, port: int) -> socket.socket:
            return cast("socket.socket", world.network.listen(process, port))

        return Environment(
            files=ProcessFiles(self.disk, process),
            threads=SimulatedThreads(world.loop, process),
            listen=listen,
            metadata=world.metadata.factory,
            gateway=world.hosted_gateway,
            gateway_process=None,
            http=False,
        )

    # Ends

    async def stop(self) -> None:
        """A graceful stop; returns when the process is gone."""
        process, server = self.process, self.server
        if process is None or server is None:
            return
        gone: asyncio.Future[bool] = self._world.loop.create_future()
        process.on_end.append(partial(_settle, gone, True))
        self._world.loop.call_soon(server.request_stop, context=process.context)
        await gone

    def kill(self) -> None:
        """SIGKILL: the process is gone; what it wrote is in the host's cache."""
        if self.process is not None:
            self._world.note(self.name, "is killed")
            self._process_ends(host_is_up=True)

    def power_off(self, survival: Survival | None = None) -> None:
        """The host loses power. Of what was not synced an arbitrary part survives, unless told otherwise."""
        world = self._world
        world.note(self.name, "loses power")
        world.network.host(self.name).up = False
        self._process_ends(host_is_up=False)
        self.disk.lose_power(survival or some_survive(world.random(f"power of {self.name}").getrandbits(32)))

    def wipe(self) -> None:
        """Kills it, and gives it an empty disk."""
        self.kill()
        self._world.note(self.name, "gets an empty disk")
        self.disk.wipe()
        self.joined = False

    async def restart(self) -> bool:
        """Kills it if it runs, and starts it again."""
        self.kill()
        return await self.start()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None:
            self._world.note(self.name, "is paused")
            self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.paused:
            self._world.note(self.name, "goes on")
            self.process.resume()

    def _process_ends(self, *, host_is_up: bool) -> None:
        process, self.process = self.process, None
        self.server, self.serving = None, False
        if process is not None:
            self._world.end_process(process, host_is_up=host_is_up)
            self.disk.process_gone()

    # Looking into it

    def stored(
        self, survival: Survival = everything_survives, *, only: tuple[int, int] | None = None
    ) -> dict[int, StoredLedgerState]:
        """What a start would find if the bookie ended now: by default killed, or by a power loss.

        By ledger id; with `only` a ledger's number and an entry of it, and no more. The bookie does not notice, and a
        full disk is looked at as if it had room. Raises OSError where a start would fail otherwise.
        """
        media = self.disk.media
        capacity, media.capacity = media.capacity, None
        try:
            return read_stored(self.disk, self.config, survival, only)
        finally:
            media.capacity = capacity

    def answers(self, entries: Iterable[tuple[int, int]]) -> list[Status]:
        """What it would answer to reads, each of a ledger's number and an entry id, if it were started now.

        The bookie does not notice. Raises OSError where a start would fail.
        """
        storage = _opened(self.disk, self.config, everything_survives)
        return [_answer(storage, *entry) for entry in entries]


def _settle(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


class _Idle(Threads):
    """Threads that never run: for storage that is looked at and not written."""

    def start(self, run: Callable[[], None], name: str) -> RunningThread:
        return _NoThread()

    def executor(self, name: str) -> Executor:
        raise RuntimeError("nothing is written here")


class _NoEvents:
    """Of storage that is looked at: nothing is asked of it."""

    def stored(self, completions: Sequence[Completion]) -> None:
        return

    def not_stored(self, completions: Sequence[Completion], error: OSError) -> Retry:
        return Retry.NEVER

    def capacity_available(self) -> None:
        return

    def space_restored(self) -> None:
        return

    def ledgers_deleted(self, ids: Sequence[int]) -> None:
        return

    def failed(self, error: BaseException) -> None:
        return


class _NoThread:
    def is_alive(self) -> bool:
        return False

    def join(self) -> None:
        return


def read_stored(
    disk: Disk, config: BookieConfig, survival: Survival, only: tuple[int, int] | None
) -> dict[int, StoredLedgerState]:
    """See SimulatedBookie.stored."""
    storage = _opened(disk, config, survival)
    found: dict[int, StoredLedgerState] = {}
    for number in (*storage.ledger_ids(), *storage.scoped_ledgers()) if only is None else only[:1]:
        # A file whose header never came to the disk holds nothing: whether anything of it was promised is judged.
        ledger = storage.ledgers.get(LedgerId.of_number(number), headerless_is_unknown=True)
        if ledger is None:
            continue
        ids = [first + index for first, count in storage.reader.entry_ids(ledger) for index in range(count)]
        if only is not None:
            ids = [entry_id for entry_id in ids if entry_id == only[1]]
        entries = {entry_id: storage.reader.read_entry(ledger, entry_id) for entry_id in ids}
        found[number] = StoredLedgerState(ledger.master_key, ledger.fenced, ledger.explicit_lac, entries, ledger.limbo)
    return found


def _opened(disk: Disk, config: BookieConfig, survival: Survival) -> LedgerStorage:
    """Storage on a copy of the disk."""
    media = disk.media.after_power_loss(survival)
    # Everything is read once and in order: what is read ahead would be thrown away.
    settings = replace(config.storage(), read_ahead_bytes=0)
    storage = LedgerStorage(settings, _NoEvents(), media, _Idle())
    storage.open()
    return storage


def _answer(storage: LedgerStorage, number: int, entry_id: int) -> Status:
    try:
        ledger = storage.ledgers.get(LedgerId.of_number(number))
        if ledger is None:
            return Status.EUNKNOWNLEDGERSTATE if storage.is_in_limbo(number) else Status.ENOLEDGER
        storage.reader.read_entry(ledger, entry_id)
    except NoSuchEntryException:
        return Status.ENOENTRY
    except DataUnknownException:
        return Status.EUNKNOWNLEDGERSTATE
    except OSError:
        return Status.EIO
    return Status.EOK
