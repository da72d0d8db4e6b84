"""Unbounded ledgers in worlds that lose bookies: whatever clients do meanwhile, a repair does its own and nothing else.

A writer appends, changes fragments and is taken over; older terms leave dirty entries at any bookie and send late
requests; bookies are lost for good. Each write under a lock is looked at just before the store has it: it changes
members of complete fragments only, and a new member holds on its disk what was confirmed, entry by entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.ledger.entry import decode_entry
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.messages import Status
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from tests.faults.memory_disk import nothing_survives
from tests.simulation.repair_places import new_members
from tests.simulation.test_recovery_cases import Cluster, cluster_of
from tests.simulation.world import World
from tests.streams import Stream

BOOKIES, LOST, STEPS = 7, 2, 25
SEEDS = 40


class Life:
    """Of one unbounded ledger."""

    def __init__(self, world: World, cluster: Cluster, rng: random.Random) -> None:
        self._world = world
        self._cluster = cluster
        self._rng = rng
        self._alive = sorted(each.bookie_id for each in cluster.bookies)
        self.lost: list[str] = []
        self.repairs = 0
        self._stream: Stream | None = None

    @property
    def stream(self) -> Stream:
        assert self._stream is not None
        return self._stream

    @property
    def metadata(self) -> LedgerMetadata:
        return self._cluster.store.ledgers[self.stream.ledger_id].metadata

    def _some(self) -> Sequence[str]:
        return self._rng.sample(self._alive, 3)

    async def run(self) -> None:
        """In a client's process."""
        client = self._cluster.client
        pool = BookiePool.of(client.config, client.factory.service_discovery, tcp_connector, self._rng)
        try:
            self._stream = await Stream.create(pool, client.factory.ledger_manager, self._some())
            await self.stream.append(b"the first")
            steps = (self._append, self._append, self._move, self._taken_over, self._late, self._lose)
            for _ in range(STEPS):
                await self._rng.choice(steps)()
                await asyncio.sleep(self._rng.random() * 1.5)
            await self._move()
            async with asyncio.timeout(200):
                while self.metadata.bookies & {*self.lost}:  # noqa: ASYNC110 - state that tells nobody
                    await asyncio.sleep(0.5)
            await self.stream.check()
        finally:
            await pool.close_and_wait()

    async def _append(self) -> None:
        try:
            await self.stream.append(self._payload())
        except BKException:
            await self._move()

    def _payload(self) -> bytes:
        return b"%d at %.3f" % (len(self.stream.entries), self._world.now)

    async def _move(self) -> None:
        """The writer goes on elsewhere; with an entry, so that the fragment before is complete."""
        await self.stream.begin_fragment(*self._some())
        await self.stream.append(self._payload())

    async def _taken_over(self) -> None:
        """The client of the term before has sent an entry to some bookies that was never confirmed."""
        for bookie_id in self._some()[: self._rng.randrange(3)]:
            await self.stream.add(bookie_id, len(self.stream.entries), b"dirty")
        with contextlib.suppress(BKException):
            await self.stream.take_over(self._rng.randrange(1, 1 << 62))
        await self.stream.begin_fragment(*self._some())
        await self.stream.append(b"", self._payload())

    async def _late(self) -> None:
        """A request of a term that was over when the entry was confirmed reaches a bookie that has it."""
        fragments = complete_fragments(self.metadata)
        if not fragments:
            return
        fragment = self._rng.choice(fragments)
        entry_id = self._rng.randint(fragment.first_entry_id, fragment.last_entry_id)
        bookie_id = self._rng.choice(fragment.write_set(entry_id))
        term = self.stream.terms[entry_id] - 1
        if bookie_id in self._alive and term >= 0:
            status = await self.stream.add(bookie_id, entry_id, b"late", term=term)
            assert status != Status.EOK, f"{bookie_id} takes entry {entry_id} at term {term}"

    async def _lose(self) -> None:
        spared = self._cluster.auditor if self._cluster.store.replication.votes else self._alive[0]
        if len(self.lost) < LOST and any(each != spared for each in self._alive):
            gone = self._rng.choice([each for each in self._alive if each != spared])
            self._alive.remove(gone)
            self.lost.append(gone)
            self._cluster.named(gone).kill()
            await self._move()

    def repaired(self, before: LedgerRecord, after: LedgerMetadata) -> None:
        """Just before the store writes it."""
        same = replace(after, fragments=before.metadata.fragments)
        if same != before.metadata or after.last_fragment != before.metadata.last_fragment:
            self._world.fail(AssertionError(f"a repair makes {after} of {before.metadata}"))
        self.repairs += 1
        due = {each.first_entry_id: each for each in complete_fragments(after)}
        for place in new_members(before.metadata, after):
            held = self._cluster.named(place.bookie_id).stored(nothing_survives).get(before.ledger_id.number)
            packets = {} if held is None else held.entries
            for entry_id in due[place.first_entry_id].due(place.place):
                if self._payload_in(packets.get(entry_id), before.ledger_id, entry_id) != self.stream.entries[entry_id]:
                    self._world.fail(AssertionError(f"{place.bookie_id} joins with another entry {entry_id}, or none"))

    def _payload_in(self, packet: bytes | None, ledger_id: LedgerId, entry_id: int) -> bytes | None:
        if packet is None:
            return None
        return decode_entry(self.stream.secrets.digest, packet, ledger_id.number, entry_id).payload


def repairs_in(seed: int) -> int:
    """How many fragments one world has repaired."""
    world, repairs = World(f"unbounded {seed}"), 0

    async def main() -> None:
        nonlocal repairs
        cluster = await cluster_of(world, BOOKIES)
        life = Life(world, cluster, world.random("life"))
        cluster.store.replication.on_repair.append(life.repaired)
        await cluster.client.run(life.run())
        repairs = life.repairs

    world.run(main())
    return repairs


@pytest.mark.parametrize(
    "seeds",
    [
        range(10),
        *(pytest.param(range(start, start + 10), marks=pytest.mark.long) for start in range(10, SEEDS, 10)),
    ],
)
def test_only_complete_fragments_are_repaired_and_with_what_was_confirmed(seeds: range) -> None:
    assert sum(map(repairs_in, seeds)) > 2 * len(seeds)
