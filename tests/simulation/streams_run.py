"""One stream that clients write in turn, read with cursors, and trim, in a world with faults; bookies collect.

Each writer opens the stream, whoever writes, and appends records of a few producers, which begin again somewhat below
the last number that the stream has of them. Consumers share a few cursors and commit what they were given; readers
read from anywhere, also from below the watermark. Retention runs in every writer, and somebody trims by hand. Bookies
collect what is trimmed; some come upon an older state of the metadata, and one upon a watermark that nobody has set,
for less than the period that they wait. When all is healed one client more appends, and reads the stream; then bookies
must have deleted what is below the watermark, and nothing else. `stream_rules` has what must hold.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from bookgate import BookKeeper, LedgerOptions
from bookgate.bookie.collection import trimmed_ledgers
from bookgate.ledger.errors import (
    BKException,
    LedgerTrimmedException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord
from bookgate.ledger.streams import Retention
from bookgate.ledger.unbounded import deleted_before, trim
from bookgate.runtime.logs import Event
from bookgate.thinclient.streams.directory import Streams
from bookgate.thinclient.streams.places import Start
from bookgate.thinclient.streams.reader import StreamReader
from bookgate.thinclient.streams.stream import Stream
from bookgate.thinclient.streams.writer import StreamWriter
from tests.history.recording_client import PASSWORD
from tests.history.violations import AcknowledgedValueLost, NoProgress
from tests.simulation.contest import GC_WAIT_SECONDS, LIMITS, Contest
from tests.simulation.faults import STORE_KINDS
from tests.simulation.loop import CURRENT
from tests.simulation.metadata import MemoryMetadata, OtherStore
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan, make_plan
from tests.simulation.stream_rules import Numbered, StreamRules

INVARIANTS = ("P6", "G1", "U2", "U3", "U4", "U5", "U7", "T1", "T2", "T4", "T6")

_LIMITS = replace(LIMITS, duration=8.0, store_kinds=STORE_KINDS)
_NAME = "stream"
_CURSORS = ("a", "b")
_PRODUCERS = ("p", "q", "r")
_REPEATED = (0, 0, 1, 5)
_RETENTION_SECONDS = 1.0
_MISLED_SECONDS = 2.0
"""Shorter than the period that collection waits."""
_LAST_APPENDS = 5


def run_streams_seed(seed: int, *, transcript: bool = False, on_line: Callable[[str], None] | None = None) -> Outcome:
    """Never raises for what a run finds (`outcome`)."""
    run = _Run(make_plan(seed, _LIMITS), transcript, on_line)
    with _heard(run.collected):
        outcome = run.outcome()
    outcome.operations = len(run.rules.positions)
    return outcome


@contextmanager
def _heard(collected: Callable[[str, int], None]) -> Iterator[None]:
    """Calls with each bookie's name and the entry before which it has deleted."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, Event) and record.msg.name == "ledger_trimmed":
                collected(CURRENT.get().name, cast("int", record.msg.fields["first_entry"]))

    logger, handler = logging.getLogger(trimmed_ledgers.__name__), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Run(Contest):
    rules: StreamRules

    def __init__(self, plan: Plan, transcript: bool, on_line: Callable[[str], None] | None) -> None:
        super().__init__(plan, "streams", transcript, on_line)
        self._retention = Retention(
            max_bytes=self.rng.choice((None, 500, 3000)),
            delete_consumed=self.rng.random() < 0.5,
            keep_for_cursors=self.rng.random() < 0.7,
        )
        self.rules = StreamRules(self.world, self._retention, GC_WAIT_SECONDS)
        self._ledger_id = LedgerId.unscoped(0)

    def collected(self, bookie: str, before: int) -> None:
        """A bookie has deleted."""
        self.rules.collected(bookie, before)

    async def begin(self) -> None:
        self._ledger_id = await self.once("creator", self._make)

    async def _make(self, client: BookKeeper, rng: random.Random) -> LedgerId:
        options = LedgerOptions(*self.plan.writers[0].sizes, password=PASSWORD)
        stream = await Streams(client).create(
            _NAME,
            options,
            retention=self._retention,
            max_fragment_entries=rng.choice((3, 8, 20)),
            max_fragment_seconds=rng.choice((None, 2.0)),
        )
        for cursor in _CURSORS:
            await stream.cursor(cursor)
        return stream.ledger_id

    def lives(self) -> Iterable[Coroutine[Any, Any, None]]:
        for writer in self.plan.writers:
            yield self.live(writer.name, self._write)
        for number in range(len(self.plan.visits)):
            yield self.live(f"r{number}", partial(self._consume, _CURSORS[number % len(_CURSORS)]))
        yield self.live("reader", self._read)
        yield self._mislead()

    # Writers

    async def _write(self, client: BookKeeper, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.choice((0.01, 0.3, 1.0, 4.0)))
            try:
                await self._one_term(await Streams(client).open(_NAME, PASSWORD), rng)
            except BKException:
                continue

    async def _one_term(self, stream: Stream, rng: random.Random) -> None:
        writer = await stream.writer(
            linger_seconds=0.001,
            batch_bytes=rng.choice((1, 64, 1000)),
            retention_interval_seconds=_RETENTION_SECONDS,
        )
        try:
            for _ in range(rng.randint(1, 10)):
                await self._burst(writer, rng.choice(_PRODUCERS), rng.choice((1, 3, 20)), rng.choice(_REPEATED))
                if rng.random() < 0.1:
                    await self._trim(stream, writer, rng)
                await asyncio.sleep(rng.choice((0.0, 0.05, 0.5)))
        finally:
            if rng.random() < 0.7:
                await writer.close()

    async def _burst(self, writer: StreamWriter, producer: str, count: int, repeated: int) -> None:
        """Raises what an append has raised."""
        last = writer.last_sequence(producer)
        first = max(0, (-1 if last is None else last) + 1 - repeated)
        sources = [Numbered(producer, sequence) for sequence in range(first, first + count + repeated)]
        self.rules.offered.update(sources)
        appends = [writer.append(each.payload, producer=producer, sequence=each.sequence) for each in sources]
        results = await asyncio.gather(*appends, return_exceptions=True)
        for source, result in zip(sources, results, strict=True):
            if not isinstance(result, BaseException):
                self.rules.appended(source, result)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _trim(self, stream: Stream, writer: StreamWriter, rng: random.Random) -> None:
        before = writer.last_add_confirmed - rng.choice((0, 10, 50))
        self.rules.trimmed_by_hand = max(self.rules.trimmed_by_hand, before)
        await stream.trim(before)

    # Readers

    async def _consume(self, cursor: str, client: BookKeeper, rng: random.Random) -> None:
        """Reads on where the cursor stands, and commits now and then."""
        while True:
            await asyncio.sleep(rng.choice((0.1, 0.5, 2.0)))
            try:
                stream = await Streams(client).open(_NAME, PASSWORD)
                async with await stream.reader(cursor=cursor, follow=rng.random() < 0.7) as reader:
                    await self._take_some(reader, cursor, rng)
            except BKException as error:
                self._check_error(error)

    async def _take_some(self, reader: StreamReader, cursor: str, rng: random.Random) -> None:
        left = rng.randint(1, 60)
        try:
            async with aclosing(reader.records()) as records:
                async for record in records:
                    self.rules.delivered(record, f"by cursor {cursor}", cursor)
                    left -= 1
                    if rng.random() < 0.1:
                        await reader.commit()
                    if left < 0:
                        break
        except LedgerTrimmedException as trimmed:
            self.rules.trimmed(reader.position, trimmed.first_available)
            reader.seek(RecordPosition(trimmed.first_available, 0))
        if rng.random() < 0.8:
            await reader.commit()

    async def _read(self, client: BookKeeper, rng: random.Random) -> None:
        """From anywhere to the end, or as long as it follows."""
        while True:
            await asyncio.sleep(rng.choice((0.5, 2.0)))
            try:
                stream = await Streams(client).open(_NAME, PASSWORD)
                start: Start | RecordPosition = Start.EARLIEST
                if rng.random() < 0.5 and self.rules.positions:
                    start = rng.choice(list(self.rules.positions))
                await self._read_from(stream, start)
            except BKException as error:
                self._check_error(error)

    async def _read_from(self, stream: Stream, start: Start | RecordPosition) -> list[StreamRecord]:
        async with await stream.reader(start, follow=False) as reader:
            # Read here, not acknowledged later: bookies may not know of the last ones yet.
            first, last = reader.position, reader._handle.last_add_confirmed
            due = [each for each in self.rules.positions if each.entry_id <= last]
            records: list[StreamRecord] = []
            try:
                async with aclosing(reader.records()) as found:
                    async for record in found:
                        self.rules.delivered(record, f"from {first} on")
                        records.append(record)
            except LedgerTrimmedException as trimmed:
                self.rules.trimmed(reader.position, trimmed.first_available)
                raise
            self.rules.delivered_all(first, records, due)
            return records

    def _check_error(self, error: BKException) -> None:
        """Bookies keep what they have acknowledged: whatever befalls them, no reader is told of a loss."""
        if isinstance(error, LedgerTrimmedException):
            return
        if isinstance(error, NoSuchEntryException | NoSuchLedgerExistsException):
            self.world.fail(AcknowledgedValueLost(f"a reader was told of a loss: {error}"))

    # The metadata

    async def _mislead(self) -> None:
        """One bookie finds a watermark that the ledger does not have, for a shorter time than it must wait."""
        store = self.world.metadata
        assert isinstance(store, MemoryMetadata)
        await asyncio.sleep(self.rng.uniform(2.0, self.plan.duration - _MISLED_SECONDS - 1.0))
        bookie = self.rng.choice(self.faults.bookies)
        record = store.ledgers[self._ledger_id]
        trimmed = trim(record.metadata, record.metadata.last_fragment.first_entry_id)
        if bookie.name in store.elsewhere or not bookie.joined or trimmed is record.metadata:
            return
        self.faults.counts["wrong watermark"] += 1
        wrong = replace(record, metadata=trimmed)
        shown = OtherStore(store.instance_id, {**store.ledgers, self._ledger_id: wrong}, dict(store.cookies))
        self.rules.misled[bookie.name] = [(self.world.now, deleted_before(trimmed))]
        store.lead(bookie.name, shown)
        await asyncio.sleep(_MISLED_SECONDS)
        if store.elsewhere.get(bookie.name) is shown:
            store.lead(bookie.name, None)

    # The end

    async def conclude(self, client: BookKeeper, rng: random.Random) -> None:
        """P12, exactly once, and nothing is collected but what is trimmed."""
        stream = await Streams(client).open(_NAME, PASSWORD)
        writer = await self._taken(stream)
        for producer in _PRODUCERS:
            await self._burst(writer, producer, _LAST_APPENDS, repeated=3)
        last = writer.last_add_confirmed
        await writer.close()
        records: list[StreamRecord] = []
        while not records or records[-1].position.entry_id < last:
            # Time passes, so that a reader that never comes to the end is one that makes no progress.
            await asyncio.sleep(0.5)
            with suppress(LedgerTrimmedException):
                records = await self._read_from(stream, Start.EARLIEST)
        self.rules.all_there(records)
        handle = await client.open_ledger(self._ledger_id, PASSWORD)
        entries = [entry async for entry in handle.read(handle.first_entry_id, last)]
        self.rules.times(entry.payload for entry in entries)
        await self._collected()

    async def _taken(self, stream: Stream) -> StreamWriter:
        while True:
            try:
                return await stream.writer(linger_seconds=0.001)
            except BKException:
                await asyncio.sleep(0.5)

    async def _collected(self) -> None:
        store = self.world.metadata
        assert isinstance(store, MemoryMetadata)
        due = self.world.now + 20 * GC_WAIT_SECONDS
        for bookie in self.world.bookies.values():
            # A deletion whose sync failed may be in the page cache alone. Once evicted it is undone, and repeated.
            bookie.disk.media.evict()
        while left := self.rules.uncollected(self._ledger_id):
            if self.world.now > due:
                mark = deleted_before(store.ledgers[self._ledger_id].metadata)
                raise NoProgress(f"{', '.join(left)} still hold what is below the watermark {mark}")
            await asyncio.sleep(GC_WAIT_SECONDS)
        self.rules.check_held(self._ledger_id, store.ledgers[self._ledger_id].metadata)
