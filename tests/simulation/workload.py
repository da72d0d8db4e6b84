"""Writers and visitors of a plan, carried out by recording clients: in the simulation and over real processes alike.

Two phases. In the safety phase everything runs while faults come and go, and any call may fail. Then all is healed, and
progress is demanded (P12): whatever is still under way ends, every ledger is recovered and read whole, and a new one is
written. Which calls end how is recorded; the checkers judge it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tests.history import events
from tests.history.recorder import Recorder
from tests.history.recording_client import RecordingClient, RecordingReader, RecordingWriter
from tests.history.violations import NoProgress
from tests.simulation.plan import Plan, VisitPlan, WriterPlan

Connect = Callable[[str], Awaitable[RecordingClient]]
"""A new client by its name; raises BKException where no gateway answers."""

Crash = Callable[[RecordingClient], Awaitable[None]]
"""Ends a client as a crash of its process does."""

VISITORS = 3
"""Clients r0, r1, … that visit."""
_HEALTHY_SIZES = (3, 3, 2)


class Workload:
    """`patience` is how many seconds everything may take to end once all is healed."""

    def __init__(
        self, plan: Plan, connect: Connect, crash: Crash, recorder: Recorder, rng: random.Random, patience: float
    ) -> None:
        self._plan = plan
        self._connect = connect
        self._crash = crash
        self._recorder = recorder
        self._rng = rng
        self._patience = patience
        self._ledgers: dict[str, str] = {}
        """Ledger of each writer."""
        self._clients: dict[str, RecordingClient] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def ledgers(self) -> list[str]:
        """Of all that was created, for the end."""
        return sorted(
            {event.ledger for event in self._recorder.history if isinstance(event, events.LedgerCreated)}, key=int
        )

    async def endanger(self) -> None:
        """The safety phase; what has not ended then goes on."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._plan.duration
        for writer in self._plan.writers:
            self._tasks[writer.name] = loop.create_task(self._at(writer.at, self._write(writer)))
        for number, visit in enumerate(self._plan.visits):
            self._tasks[visit.name] = loop.create_task(self._at(visit.at, self._visit(visit, f"r{number % VISITORS}")))
        while (left := ends - loop.time()) > 0 and not all(task.done() for task in self._tasks.values()):
            await asyncio.wait(self._tasks.values(), timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            self._raise_bugs()
        if (left := ends - loop.time()) > 0:
            await asyncio.sleep(left)

    def _raise_bugs(self) -> None:
        for task in self._tasks.values():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def prove_progress(self) -> None:
        """To be called once all is healed. Raises NoProgress where something does not end."""
        self._recorder.add(events.Healed(self._recorder.now))
        writers = [self._tasks[writer.name] for writer in self._plan.writers]
        await self._all_end(writers, "writers")
        healer = await self._client("healer")
        deleted = {event.ledger for event in self._recorder.history if isinstance(event, events.DeleteAsked)}
        work = [self._end(healer, ledger) for ledger in self.ledgers if ledger not in deleted]
        # A deletion may have been lost on its way: who follows such a ledger would do so for ever.
        work += [healer.delete(ledger) for ledger in sorted(deleted, key=int)]
        ends = [asyncio.ensure_future(healer.run(each)) for each in (*work, self._fresh(healer))]
        await self._all_end(ends, "recoveries")
        await self._all_end(self._visitors_that_must_end(deleted), "visitors")

    def _visitors_that_must_end(self, deleted: set[str]) -> list[asyncio.Task[None]]:
        """All but those who follow a ledger that can't be closed: too many of its bookies have lost their data."""
        ended = {
            event.ledger for event in self._recorder.history if isinstance(event, events.Recovered | events.Closed)
        }
        ended |= deleted
        visits = (visit for visit in self._plan.visits if self._ledgers.get(visit.writer) in ended)
        return [self._tasks[visit.name] for visit in visits]

    async def _all_end(self, tasks: Sequence[asyncio.Future[None]], what: str) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._patience)
        self._raise_bugs()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if late:
            raise NoProgress(f"{len(late)} {what} have not ended {self._patience:g} s after all was healed")

    async def close(self) -> None:
        """Ends every task and client, whatever they are at."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for client in self._clients.values():
            await client.run(client.client.close())

    async def _at(self, seconds: float, what: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.sleep(seconds)
        except BaseException:
            what.close()
            raise
        await what

    async def _client(self, name: str) -> RecordingClient:
        async with self._connecting.setdefault(name, asyncio.Lock()):
            if name not in self._clients:
                self._clients[name] = await self._connect(name)
            return self._clients[name]

    # Writers

    async def _write(self, plan: WriterPlan) -> None:
        client = await self._client(plan.name)
        await client.run(self._write_ledger(plan, client))
        if plan.end == "crash" and plan.name in self._ledgers:
            await asyncio.sleep(self._rng.choice((0.0, 0.001, 0.01)))
            self._recorder.add(events.Fault(self._recorder.now, "client-crash", client.name))
            self._clients.pop(client.name.partition(".")[0], None)
            await self._crash(client)

    async def _write_ledger(self, plan: WriterPlan, client: RecordingClient) -> None:
        writer = await client.create(
            plan.sizes,
            advanced=plan.advanced,
            deferred_sync=plan.deferred_sync,
            guaranteed=plan.guaranteed,
            ledger_id=plan.ledger_id,
        )
        if writer is None:
            return
        self._ledgers[plan.name] = writer.ledger
        bursts = plan.bursts
        if plan.end == "crash":
            bursts = bursts[: (len(bursts) + 1) // 2]
        for burst in bursts:
            if not await self._burst(plan, writer, burst):
                break
            if plan.pause:
                await asyncio.sleep(plan.pause)
        if plan.end == "crash":
            self._begin_some(plan, writer)
        elif plan.end == "close" or writer.ended:
            await writer.close()

    async def _burst(self, plan: WriterPlan, writer: RecordingWriter, count: int) -> bool:
        sizes = [self._rng.randint(0, plan.payload) for _ in range(count)]
        ids: list[int] = []
        if plan.advanced:
            ids = list(range(writer.appended, writer.appended + count))
            self._rng.shuffle(ids)
        stored = await writer.append(sizes, ids)
        if stored and plan.deferred_sync and self._rng.random() < 0.5:
            await writer.force()
        return stored

    def _begin_some(self, plan: WriterPlan, writer: RecordingWriter) -> None:
        """Entries that are under way when the crash comes."""
        for _ in range(0 if plan.advanced or writer.ended else self._rng.randint(0, 8)):
            future = writer.begin(self._rng.randint(0, plan.payload))
            if future is not None:
                future.add_done_callback(_is_looked_at)

    # Visitors

    async def _visit(self, plan: VisitPlan, name: str) -> None:
        ledger = self._ledgers.get(plan.writer)
        if ledger is None:
            return
        client = await self._client(name)
        await client.run(self._visit_ledger(plan, client, ledger))

    async def _visit_ledger(self, plan: VisitPlan, client: RecordingClient, ledger: str) -> None:
        match plan.what:
            case "recover":
                reader = await client.recover(ledger)
                if reader is not None:
                    await self._read_and_close(reader)
            case "delete":
                await client.delete(ledger)
            case "look":
                await client.look(ledger)
            case "intrude":
                if bookies := self._holders(ledger):
                    await client.intrude(ledger, self._rng.choice(bookies), self._rng)
            case _:
                reader = await client.open(ledger)
                if reader is not None:
                    await self._read(plan.what, reader)

    def _holders(self, ledger: str) -> list[str]:
        """Bookies that have stored entries of the ledger: they know its key. Where bookies are watched."""
        answers = (event for event in self._recorder.history if isinstance(event, events.BookieAnswered))
        stored = (each for each in answers if (each.ledger, each.operation, each.status) == (ledger, "add", "EOK"))
        return sorted({answer.bookie for answer in stored if not answer.wrong_key})

    async def _read(self, what: str, reader: RecordingReader) -> None:
        try:
            if what.startswith("tail"):
                await reader.tail(0, long_poll=what != "tail-polling", parallel=what == "tail-parallel")
                return
            await reader.look_further()
            last = reader.handle.last_add_confirmed
            first = self._rng.randint(0, max(0, last))
            if what == "read":
                await reader.read(first, last)
            else:
                await reader.read(first, max(first, last) + self._rng.randint(0, 5), confirmed=False)
        finally:
            await reader.close()

    async def _read_and_close(self, reader: RecordingReader) -> None:
        await reader.read_whole()
        await reader.close()

    # The healing phase

    async def _end(self, healer: RecordingClient, ledger: str) -> None:
        reader = await healer.recover(ledger)
        if reader is not None:
            await self._read_and_close(reader)
        await healer.look(ledger)

    async def _fresh(self, healer: RecordingClient) -> None:
        """A ledger created now is written, closed and read."""
        sizes = _HEALTHY_SIZES
        writer = await healer.create(sizes)
        if writer is None:
            raise NoProgress("no ledger can be created though all is healed")
        await writer.append([10] * 5)
        await writer.close()
        await self._end(healer, writer.ledger)


def _is_looked_at(future: asyncio.Future[int]) -> None:
    """Nobody waits for the outcome: the history has it."""
    if not future.cancelled():
        future.exception()
