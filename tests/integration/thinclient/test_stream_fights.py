"""Three clients fight for one stream, while they and the bookies are killed: what was acknowledged is there, once.

`make test` fights for some seconds, `make test-streams` for ten minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from bookgate import BKException, BookKeeper
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord
from bookgate.streams import Retention, Streams
from tests.integration.cluster import restart
from tests.integration.thinclient import stream_fighter

SECONDS = float(os.environ.get("BOOKGATE_STREAM_SECONDS", "12"))
PRODUCERS = ("anna", "ben", "carla")
SEED = int(os.environ.get("BOOKGATE_STREAM_SEED", "0")) or random.SystemRandom().randrange(1 << 32)

pytestmark = pytest.mark.timeout(300 + 2 * SECONDS)


class Fighters:
    """The processes, of which any may be killed and started again."""

    def __init__(self, cluster: StandaloneCluster, root: Path) -> None:
        self._cluster = cluster
        self.logs = {name: root / f"{name}.log" for name in PRODUCERS}
        self._errors = root / "errors.log"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        module = [sys.executable, "-m", stream_fighter.__name__]
        with self._errors.open("ab") as errors:
            self._running[name] = subprocess.Popen(
                # Bookies that were started again have other ports.
                [*module, self._cluster.gateway_uri, "fought-for", name, str(self.logs[name])],
                stderr=errors,
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        assert process.poll() is None, self._errors.read_text()[-2000:]
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)


async def follow(cluster: StandaloneCluster, seen: list[StreamRecord]) -> None:
    """A reader that is there all the time; it connects again where it has lost all gateways, whose ports change."""
    position = RecordPosition(0, 0)
    while True:
        try:
            async with connected(cluster) as client:
                stream = await Streams(client).open("fought-for")
                async with stream.reader(position) as reader:
                    async for records in reader.records_batches():
                        seen += records
                        position = reader.position
        except (BKException, TimeoutError):
            await asyncio.sleep(0.05)


def connected(cluster: StandaloneCluster) -> AbstractAsyncContextManager[BookKeeper]:
    return BookKeeper.connect(cluster.gateway_uri, stream_fighter.IMPATIENT)


def acknowledged(log: Path) -> list[tuple[int, str]]:
    """Numbers and positions; a line that the kill has cut is none."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(number), where) for number, where in (line.split() for line in lines)]


@pytest.mark.long
@pytest.mark.asyncio
async def test_what_three_clients_that_fight_have_acknowledged_is_there_once(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"BOOKGATE_STREAM_SEED={SEED}")
    with StandaloneCluster(tmp_path / "cluster", bookies=4) as cluster:
        fighters = Fighters(cluster, tmp_path)
        async with connected(cluster) as client:
            await Streams(client).create("fought-for", retention=Retention(), max_fragment_entries=200)
        seen: list[StreamRecord] = []
        follower = asyncio.create_task(follow(cluster, seen))
        for name in PRODUCERS:
            fighters.start(name)
        ends = time.monotonic() + SECONDS
        # On a busy machine until each has had a turn.
        while time.monotonic() < ends or not all(acknowledged(log) for log in fighters.logs.values()):
            await asyncio.sleep(rng.uniform(0.5, 2.5))
            if rng.random() < 0.6:
                name = rng.choice(PRODUCERS)
                fighters.kill(name)
                fighters.start(name)
            else:
                bookie = rng.choice(cluster.processes)
                bookie.kill()
                await asyncio.sleep(rng.uniform(0.0, 2.0))
                await asyncio.to_thread(restart, bookie)
        fighters.kill_all()
        async with connected(cluster) as client, asyncio.timeout(120):
            stream = await Streams(client).open("fought-for")
            async with stream.writer() as writer:
                end, stream_term = await writer.append(b"the end"), writer.term
            while not seen or seen[-1].payload != b"the end":
                assert not follower.done(), follower.result()
                await asyncio.sleep(0.05)
            follower.cancel()
            async with stream.reader(follow=False) as reader:
                final = [record async for record in reader.records()]
    assert end is not None
    check(final, {name: acknowledged(log) for name, log in fighters.logs.items()})
    assert [(record.position, record.payload) for record in seen] == [
        (record.position, record.payload) for record in final
    ], "the reader that was there all the time saw something else"
    answers = sum(len(acknowledged(log)) for log in fighters.logs.values())
    print(f"{len(final)} records, {stream_term} terms, {answers} acknowledgements")
    assert [record.append_time_ms for record in final] == sorted(record.append_time_ms for record in final)


def check(final: list[StreamRecord], logs: dict[str, list[tuple[int, str]]]) -> None:
    """Each producer's records are there once, in order, without a gap; acknowledged ones where it was told."""
    records = [record for record in final if record.payload != b"the end"]
    repeated = [payload for payload, count in Counter(record.payload for record in records).items() if count > 1]
    assert not repeated, f"there more than once: {repeated[:5]}"
    at = {record.payload: f"{record.entry_id}:{record.number}" for record in records}
    for name, log in logs.items():
        prefix = name.encode() + b" "
        numbers = [int(record.payload.split()[1]) for record in records if record.payload.startswith(prefix)]
        assert numbers == list(range(len(numbers))), f"{name}'s records are not in order"
        assert log, f"{name} has never had an acknowledgement"
        for number, where in log:
            payload = b"%s %d" % (name.encode(), number)
            assert payload in at, f"{payload!r} was acknowledged at {where} and is not there"
            assert where in ("-", at[payload]), f"{payload!r} was acknowledged at {where} and is at {at[payload]}"
