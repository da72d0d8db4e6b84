"""One unbounded ledger for which clients fight, in a world with faults; readers follow it meanwhile.

Each client takes the ledger over now and then, whoever leads, appends in bursts, trims, releases the ledger or forgets
it. Readers follow it, and read ranges. What befalls bookies and links is drawn as in other worlds (`plan`); bookies
keep what they have acknowledged. When all is healed one client more takes the ledger over, appends, closes it, and
reads it from the watermark on. `unbounded_rules` has what must hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from bookgate import BookKeeper, LedgerOptions
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import decode_entry
from bookgate.ledger.errors import BKException, LedgerTrimmedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.quorum import write_set
from bookgate.ledger.unbounded import goes_on, is_provisional, may_show
from bookgate.ledger.wire.messages import EOK, Operation, ReadRequest, ReadResponse
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from tests.history.recording_client import PASSWORD
from tests.history.violations import NoProgress
from tests.simulation.contest import LIMITS, Contest
from tests.simulation.outcome import Outcome
from tests.simulation.plan import FaultPlan, Plan, make_plan
from tests.simulation.unbounded_rules import UnboundedRules
from tests.unit.thinclient.inside import pool_of

INVARIANTS = ("P6", "G1", "G2", "G3", "U2", "U3", "U4", "U5")

_LAST_APPENDS = 5
_OLD_RECORDS = 6
_NEAR = 8
"""Entries around the LAC that a curious reader asks for."""
_QUESTIONS = 8
_CONTESTED = 6
_DIGEST = digest_for(DigestType.CRC32C, PASSWORD)


def run_unbounded_seed(seed: int, *, transcript: bool = False, on_line: Callable[[str], None] | None = None) -> Outcome:
    """Never raises for what a run finds (`outcome`)."""
    run = _Run(make_plan(seed, LIMITS), transcript, on_line)
    outcome = run.outcome()
    outcome.operations = len(run.rules.acknowledged)
    return outcome


class _Run(Contest):
    def __init__(self, plan: Plan, transcript: bool, on_line: Callable[[str], None] | None) -> None:
        super().__init__(plan, "unbounded", transcript, on_line)
        self.rules = UnboundedRules(self.world)
        self._sizes = plan.writers[0].sizes
        self._caps = self.rng.choice((None, None, 5, 20))
        self._ledger_id: LedgerId | None = None
        self._invitation = asyncio.Event()
        """Somebody leads who is nearly alone: a rival should come now."""
        self._contested: list[int] = []
        """Entries that one bookie may hold otherwise than the others."""
        self._appends = 0

    async def begin(self) -> None:
        self._ledger_id = await self.once("creator", self._make)

    async def _make(self, client: BookKeeper, _rng: random.Random) -> LedgerId:
        """Its writer goes on in nobody's hands, as long as the world lasts."""
        options = LedgerOptions(*self._sizes, password=PASSWORD)
        self._first = await client.create_unbounded_ledger(options, max_fragment_entries=self._caps)
        return self._first.ledger_id

    def lives(self) -> Iterable[Coroutine[Any, Any, None]]:
        for number, writer in enumerate(self.plan.writers):
            yield self.live(writer.name, partial(self._contend, number))
        for number in range(len(self.plan.visits)):
            yield self.live(f"r{number}", self._follow)

    # Writers

    async def _contend(self, number: int, client: BookKeeper, rng: random.Random) -> None:
        writer: UnboundedWriteHandle | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.choice((0.01, 0.3, 1.0, 3.0))):
                    await self._invitation.wait()
            self._invitation.clear()
            try:
                assert self._ledger_id is not None
                writer = await client.take_over(self._ledger_id, PASSWORD)
            except BKException:
                continue
            for _ in range(rng.randint(1, 6)):
                if not await self._burst(writer, rng):
                    break
                await asyncio.sleep(rng.choice((0.0, 0.02, 0.5)))
                if rng.random() < 0.15:
                    await self._trim(writer, rng)
            if rng.random() < 0.4:
                await self._duel(number, writer, rng)
            elif rng.random() < 0.5:
                await writer.release()

    async def _duel(self, number: int, writer: UnboundedWriteHandle, rng: random.Random) -> None:
        """What this client appends comes to one bookie only, and its rivals can't reach that one."""
        names = [bookie.bookie_id for bookie in self.faults.bookies]
        members = [names.index(each) for each in writer.metadata.last_fragment.ensemble if each in names]
        alone = rng.choice(members)
        cuts = [(number, each, "link-to-cut") for each in members if each != alone]
        cuts += [(rival, alone, "link-cut") for rival in range(len(self.plan.writers)) if rival != number]
        lasts = rng.choice((1.0, 2.0, 4.0))
        for client, target, kind in cuts:
            fault = FaultPlan("duel", 0.0, kind, target, lasts, client)
            self.under_way.append(self.world.loop.create_task(self.faults.befall(fault)))
        await asyncio.sleep(0.01)
        lac = writer.last_add_confirmed
        self._contested += range(lac + 1, lac + _CONTESTED)
        appends = [asyncio.ensure_future(self._append(writer, rng)) for _ in range(rng.randint(1, 3))]
        await asyncio.sleep(0.05)
        self._invitation.set()
        await asyncio.gather(*appends)

    async def _burst(self, writer: UnboundedWriteHandle, rng: random.Random) -> bool:
        appends = [self._append(writer, rng) for _ in range(rng.choice((1, 3, 12, 40)))]
        return all(await asyncio.gather(*appends))

    async def _append(self, writer: UnboundedWriteHandle, rng: random.Random) -> bool:
        self._appends += 1
        payload = b"%d at term %d" % (self._appends, writer.term) + b"." * rng.choice((0, 0, 300))
        try:
            entry_id = await writer.append(payload)
        except BKException:
            return False
        self.rules.acked(entry_id, payload)
        return True

    async def _trim(self, writer: UnboundedWriteHandle, rng: random.Random) -> None:
        try:
            await writer.trim(writer.last_add_confirmed - rng.choice((0, 10, 100)))
        except BKException:
            return

    # Readers

    async def _follow(self, client: BookKeeper, rng: random.Random) -> None:
        position = 0
        while True:
            try:
                assert self._ledger_id is not None
                reader = await client.open_ledger(self._ledger_id, PASSWORD)
                position = max(position, reader.first_entry_id)
                what = rng.random()
                if what < 0.3:
                    await self._read_some(reader, rng)
                elif what < 0.6:
                    position = await self._tail_some(reader, position, rng)
                elif what < 0.8:
                    await self._read_by_old_metadata(client, rng)
                else:
                    await self._ask_bookies(client, reader.last_add_confirmed, rng)
                await reader.close()
            except LedgerTrimmedException as trimmed:
                position = trimmed.first_available
            except BKException:
                await asyncio.sleep(0.2)
            await asyncio.sleep(rng.choice((0.0, 0.1)))

    async def _tail_some(self, reader: ReadHandle, position: int, rng: random.Random) -> int:
        left = rng.randint(1, 100)
        async with aclosing(reader.tail_batches(position, long_poll=rng.random() < 0.8)) as batches:
            async for batch in batches:
                for entry in batch:
                    self.rules.read(entry, "by a tail")
                position = batch[-1].entry_id + 1
                left -= len(batch)
                if left < 0:
                    break
        return position

    async def _read_some(self, reader: ReadHandle, rng: random.Random) -> None:
        last = await reader.read_last_confirmed()
        first = max(reader.first_entry_id, last - rng.choice((0, 10, 1000)))
        due = list(self.rules.acknowledged)
        found = []
        async with aclosing(reader.read_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    self.rules.read(entry, "in a range")
                found += batch
        self.rules.read_all(first, last, found, due)

    async def _read_by_old_metadata(self, client: BookKeeper, rng: random.Random) -> None:
        """By a record of some time ago, as the readers of a Spark job have it, and a LAC that bookies tell now."""
        reader = client.open_record(rng.choice(self.rules.records[-_OLD_RECORDS:]), PASSWORD)
        last = await reader.try_read_last_confirmed()
        for entry_id in self._interesting(last, rng):
            if not reader.first_entry_id <= entry_id <= last:
                continue
            with suppress(BKException):
                async for entry in reader.read(entry_id, entry_id):
                    self.rules.read(entry, f"by metadata of version {reader.record.version}, LAC {last}")

    async def _ask_bookies(self, client: BookKeeper, last: int, rng: random.Random) -> None:
        """By a record of some time ago, each bookie of its last fragment: what it shows must be confirmed."""
        assert self._ledger_id is not None
        pool, number = pool_of(client), self._ledger_id.number
        metadata = rng.choice(self.rules.records[-_OLD_RECORDS:]).metadata
        for entry_id in self._interesting(last, rng):
            if entry_id < metadata.last_fragment.first_entry_id:
                continue
            request = ReadRequest(pool.next_txn_id(), number, entry_id)
            members = metadata.last_fragment.ensemble
            write = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
            bookie = members[rng.choice(write)]
            with suppress(BKException):
                answer = await pool.request(bookie, Operation.READ_ENTRY, request, 1.0)
                if not isinstance(answer, ReadResponse) or answer.status != EOK or not answer.body:
                    continue
                if not may_show(metadata, entry_id, answer.term):
                    continue
                if not is_provisional(metadata, entry_id) or goes_on(metadata, self.rules.records[-1].metadata):
                    entry = decode_entry(_DIGEST, answer.body, number, entry_id)
                    if entry.payload:
                        self.rules.read(entry, f"by {bookie}, LAC {answer.max_lac}")

    def _interesting(self, last: int, rng: random.Random) -> Sequence[int]:
        near = [max(0, last + rng.randint(-_NEAR, _NEAR)) for _ in range(_QUESTIONS)]
        contested = self._contested[-4 * _CONTESTED :]
        return [*near, *rng.sample(contested, min(_QUESTIONS, len(contested)))]

    # The end

    async def conclude(self, client: BookKeeper, rng: random.Random) -> None:
        """P12, and all that was acknowledged is there."""
        assert self._ledger_id is not None
        writer = await self._taken(client)
        appends: Sequence[bool] = [await self._append(writer, rng) for _ in range(_LAST_APPENDS)]
        if not all(appends):
            raise NoProgress("appends fail though all is healed, and nobody else leads")
        await writer.close()
        reader = await client.open_ledger(self._ledger_id, PASSWORD)
        first, last = reader.first_entry_id, reader.last_add_confirmed
        found = []
        async for entry in reader.read(first, last):
            self.rules.read(entry, "at the end")
            found.append(entry)
        self.rules.read_all(first, last, found, self.rules.acknowledged)
        values = {entry.entry_id: entry.payload for entry in found}
        for entry_id, payload in self.rules.acknowledged.items():
            if entry_id >= first:
                self.rules.acked(entry_id, values.get(entry_id, payload))

    async def _taken(self, client: BookKeeper) -> UnboundedWriteHandle:
        assert self._ledger_id is not None
        while True:
            try:
                return await client.take_over(self._ledger_id, PASSWORD)
            except BKException:
                await asyncio.sleep(0.5)


__all__ = ["INVARIANTS", "run_unbounded_seed"]
