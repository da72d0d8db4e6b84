"""Every order of the steps of drivers and readers of a sink: the real ones, over ledgers in memory.

Each actor is a greenlet that stands still before each of its calls of the store, so a driver is paused at every step,
for as long as any other takes. A step is one call: a page of a listing, the metadata of one ledger, a compare-and-set.
Runs are repeated from the beginning with other choices, until no state is left of which not every choice was tried: a
state is what the store holds and what each actor was answered so far, which is all that its next steps depend on.

Ids come from two blocks, as two gateways hand them out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from greenlet import GreenletExit, greenlet

from bookgate.ledger.errors import BKException, MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.commit_protocol import (
    CLAIMED_KEY,
    COMMITTED_KEY,
    Write,
    attempt_metadata,
    committed,
    sink_state,
)
from bookgate.thinclient.spark.offsets import NOTHING
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.reading.entries import readable_slices
from bookgate.thinclient.spark.streaming.available import Available
from bookgate.thinclient.spark.writing.commit import Committer, Lookups, Written

LOW, HIGH = 0, 1
"""The gateways, by the block of ids that each hands out."""

_BLOCK = 1000
WRITE = Write("q", 3)
BEFORE = Write("q", 2)
CONFIG = ClientConfig()
"""One for all runs: making it, from environment and files, takes longer than a run."""

Actor = Callable[["Client"], None]


class World:
    """The store, and what may never be in it."""

    def __init__(self) -> None:
        self.records: dict[int, LedgerRecord] = {}
        self.next_ids = [1, 1 + _BLOCK]
        self.committed: set[int] | None = None

    def create(self, gateway: int, write: Write) -> int:
        number = self.next_ids[gateway]
        self.next_ids[gateway] += 1
        metadata = LedgerMetadata.new(["a"], 1, 1, custom_metadata=attempt_metadata(write, "0.0.0"))
        self.records[number] = LedgerRecord(LedgerId(0, number), metadata.close(0, 10), 1)
        return number

    def change(self, number: int, version: int, metadata: LedgerMetadata | None) -> LedgerRecord | None:
        if number not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException(str(number))
        if self.records[number].version != version:
            raise MetadataVersionException(str(number))
        if metadata is None:
            del self.records[number]
        else:
            self.records[number] = LedgerRecord(LedgerId(0, number), metadata, version + 1)
        self.check()
        return self.records.get(number)

    def check(self) -> None:
        """What is committed is whole, stays so, and is all that readers see, whether they know leads or marks only."""
        states = [state for each in self.records.values() if (state := sink_state(each)) and state.write == WRITE]
        for state in states:
            if state.is_committed_lead and self.committed is None:
                self.committed = set(state.named_ids)
        marked = {state.ledger_id for state in states if state.marked}
        assert marked <= (self.committed or set()), "a second set of ledgers is committed, or a part of none"
        assert (self.committed or set()) <= self.records.keys(), "a committed ledger is gone"
        visible = {each.ledger_id.low for each in committed(self.sorted()) if sink_state(each) in states}
        assert visible == (self.committed or set()), "readers see something else than what was committed"

    def sorted(self) -> list[LedgerRecord]:
        return [self.records[number] for number in sorted(self.records)]

    def block(self, low: int) -> tuple[int, ...]:
        return tuple(number for number in sorted(self.records) if low < number <= low + _BLOCK)

    def key(self) -> object:
        return tuple(_seen(record) for record in self.sorted())


def _seen(record: LedgerRecord) -> tuple[object, ...]:
    custom = record.metadata.custom_metadata
    return record.ledger_id.low, record.version, custom.get(CLAIMED_KEY), custom.get(COMMITTED_KEY)


class Client:
    """The store as one actor calls it. Each call stands still first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers: tuple[object, ...] = ()
        self.is_disturbed = True
        self.ledger_manager = self
        self.config = CONFIG

    def _step(self, call: Callable[[], Any]) -> Any:
        if self.is_disturbed:
            scheduler = greenlet.getcurrent().parent
            assert scheduler is not None
            scheduler.switch()
        try:
            answer = call()
        except BKException as error:
            self.answers += (type(error).__name__,)
            raise
        self.answers += (_seen(answer) if isinstance(answer, LedgerRecord) else answer,)
        return answer

    def create(self, gateway: int, write: Write = WRITE) -> Written:
        return Written(LedgerId(0, self._step(lambda: self._world.create(gateway, write))), 1)

    def ledger_ranges(self, *_which: object) -> Iterator[tuple[int, ...]]:
        for low in (0, _BLOCK):
            yield self._step(partial(self._world.block, low))

    def list_ledgers(self, *_which: object, **_more: object) -> Iterator[list[LedgerRecord]]:
        for ids in self.ledger_ranges():
            yield [each for number in ids if isinstance(each := self._read(number), LedgerRecord)]

    def read_many(self, ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        return [self._read(each.low) for each in ids]

    def _read(self, number: int) -> LedgerRecord | BKException:
        missing = NoSuchLedgerExistsOnMetadataServerException(str(number))
        found = self._step(lambda: self._world.records.get(number))
        return missing if found is None else cast(LedgerRecord, found)

    def read_record(self, ledger_id: LedgerId) -> LedgerRecord:
        found = self._read(ledger_id.low)
        if isinstance(found, BKException):
            raise found
        return found

    def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        change = partial(self._world.change, record.ledger_id.low, record.version, metadata)
        return cast(LedgerRecord, self._step(change))

    def remove_record(self, record: LedgerRecord) -> None:
        self._step(lambda: self._world.change(record.ledger_id.low, record.version, None))

    # What readers ask besides.

    def open_record(self, record: LedgerRecord, password: bytes) -> Client:
        return self

    def close(self) -> None:
        pass

    def last_adds_confirmed(self, records: Sequence[LedgerRecord], password: bytes) -> list[int]:
        return [record.metadata.last_entry_id for record in records]


# Actors


def driver(*gateways: int, goes_on: bool = False) -> Actor:
    """Whose tasks write a ledger each, at these gateways; then it commits, and aborts if that fails, as Spark does.

    `goes_on`: it has committed the batch before, undisturbed.
    """

    def run(client: Client) -> None:
        committer = Committer(cast(BookKeeper, client), "run", Lookups())
        if goes_on:
            client.is_disturbed = False
            committer.commit(BEFORE, [client.create(HIGH, BEFORE), client.create(HIGH, BEFORE)])
            client.is_disturbed = True
        written = [client.create(gateway) for gateway in gateways]
        try:
            committer.commit(WRITE, written)
        except BKException:
            with suppress(BKException):
                committer.abort(WRITE)

    return run


OPTIONS = parse_options({"gateways": "g:1"})


def reader(found: list[set[int]]) -> Actor:
    """A batch read of everything."""

    def run(client: Client) -> None:
        found.append({each.ledger_id.low for each in readable_slices(cast(BookKeeper, client), OPTIONS)})

    return run


def stream(found: list[set[int]]) -> Actor:
    """A stream that looks twice; what it has read it does not read again."""

    def run(client: Client) -> None:
        available, offset = Available(OPTIONS), NOTHING
        for _ in range(2):
            ends, _ = available.look(cast(BookKeeper, client), offset)
            new = [number for number in ends if number not in offset.done]
            found.append(set(new))
            offset = replace(offset, done=offset.done.with_more(new))

    return run


class Run:
    """One run from the beginning."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.world = World()
        self._clients = [Client(self.world) for _ in actors]
        self._greenlets = [greenlet(actor) for actor in actors]
        for each, client in zip(self._greenlets, self._clients, strict=True):
            each.switch(client)

    def able(self) -> list[int]:
        return [number for number, each in enumerate(self._greenlets) if not each.dead]

    def step(self, number: int) -> None:
        self._greenlets[number].switch()

    def key(self) -> object:
        return hash((self.world.key(), *(client.answers for client in self._clients)))

    def stop(self) -> None:
        for each in self._greenlets:
            if not each.dead:
                each.throw(GreenletExit)


def alone(world: World, actor: Actor) -> None:
    """An actor that nobody disturbs."""
    client, running = Client(world), greenlet(actor)
    running.switch(client)
    while not running.dead:
        running.switch()


def every_order(actors: Callable[[], Sequence[Actor]], at_the_end: Callable[[World], None]) -> int:
    """Tries every order; how many states there were. `actors` makes them anew for each run."""
    known: set[object] = set()
    untried: list[tuple[int, ...]] = [()]
    while untried:
        begun = untried.pop()
        run, taken = Run(actors()), list[int]()
        for moment in itertools.count():
            able = run.able()
            if not able:
                at_the_end(run.world)
                break
            chosen = able[0] if moment >= len(begun) else begun[moment]
            if moment >= len(begun):
                key = run.key()
                if key in known:
                    break
                known.add(key)
                untried += [(*taken, other) for other in able[1:]]
            taken.append(chosen)
            run.step(chosen)
        run.stop()
    return len(known)
