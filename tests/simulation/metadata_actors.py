"""Clients of the gateways whose every call and outcome goes into a history, and what they do at random.

A client creates, reads, writes, removes, watches and lists ledgers; several work on the same ones. Each change carries
a mark of its own in the record. What is written is a legal next state of what the client has read, so that P6 holds for
whoever obeys the compare-and-set.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from bookgate.ledger.errors import (
    BKException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from tests.history.metadata_events import (
    GONE,
    ChangeAsked,
    ChangeEnded,
    ListingAsked,
    ListingEnded,
    ListingPage,
    RecordAsked,
    RecordGot,
    WatchBegun,
    WatchEnded,
    WatchTold,
)
from tests.history.recorder import Recorder

MARK = "mark"
_FIRST_GIVEN_ID = 1_000_000
_BOOKIES = tuple(f"bookie-{number}:3181" for number in range(1, 7))
_REFUSALS = (LedgerExistException, MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException)


def mark_of(metadata: LedgerMetadata) -> str:
    """Whose change a record is."""
    return metadata.custom_metadata.get(MARK, b"").decode()


class MetadataClient:
    """One client. `ledgers` are those that all clients know of, by number."""

    def __init__(
        self, name: str, factory: LedgerManagerFactory, recorder: Recorder, rng: random.Random, ledgers: dict[int, None]
    ) -> None:
        self.name = name
        self.password = b""
        """Of ledgers that it creates."""
        self._manager = factory.ledger_manager
        self._recorder = recorder
        self._rng = rng
        self._ledgers = ledgers
        self._numbers = count(1)
        self._known: dict[int, LedgerRecord] = {}
        self._watches: dict[int, list[tuple[int, Callable[..., None]]]] = {}

    # --- calls, recorded ----------------------------------------------------------------------------------------

    async def create(self, ledger: int | None) -> int | None:
        """With the id or a generated one; the id. None: it is not known to be there."""
        mark = f"{self.name}/{next(self._numbers)}"
        wanted = None if ledger is None else LedgerId.unscoped(ledger)
        metadata = LedgerMetadata.new(
            self._rng.sample(_BOOKIES, 3), 3, 2, DigestType.CRC32C, self.password, {MARK: mark.encode()}
        )
        created = await self._change(mark, "create", ledger, self._manager.create(wanted, metadata))
        return None if created is None else created.ledger_id.low

    async def write(self, ledger: int) -> bool:
        """From the record that this client knows, read first where it knows none."""
        record = self._known.get(ledger)
        if record is None and (record := await self.read(ledger)) is None:
            return False
        mark = f"{self.name}/{next(self._numbers)}"
        kept = {key: value for key, value in record.metadata.custom_metadata.items() if key.startswith("bookgate.")}
        metadata = replace(self._next(record.metadata), custom_metadata={**kept, MARK: mark.encode()})
        done = await self._change(
            mark, "write", ledger, self._manager.write(record.ledger_id, metadata, record.version)
        )
        if done is None:
            self._known.pop(ledger, None)
        return done is not None

    async def remove(self, ledger: int) -> None:
        """Not one with a given id: a creation whose answer was lost is asked for again, at another gateway as well.

        An attempt that is late could then make the ledger once more, with another history. A creation with a generated
        id stays at one gateway, which knows it again.
        """
        if ledger >= _FIRST_GIVEN_ID:
            return
        record = self._known.get(ledger)
        version = record.version if record is not None and self._rng.random() < 0.5 else None
        mark = f"{self.name}/{next(self._numbers)}"
        await self._change(mark, "remove", ledger, self._manager.remove(LedgerId.unscoped(ledger), version))

    async def _change(
        self, mark: str, kind: str, ledger: int | None, call: Awaitable[LedgerRecord | None]
    ) -> LedgerRecord | None:
        recorder, text = self._recorder, "" if ledger is None else str(ledger)
        recorder.add(ChangeAsked(recorder.now, self.name, mark, kind, text))
        try:
            record = await call
        except BKException as error:
            outcome = "unknown" if isinstance(error, UnknownOutcomeException) else "refused"
            words = f"{type(error).__name__}: {error}"
            recorder.add(ChangeEnded(recorder.now, self.name, mark, kind, outcome, text, GONE, words))
            if not isinstance(error, (*_REFUSALS, MetaStoreException)):
                raise
            return None
        if record is None:
            recorder.add(ChangeEnded(recorder.now, self.name, mark, kind, "done", text, GONE))
            return None
        number = record.ledger_id.low
        recorder.add(ChangeEnded(recorder.now, self.name, mark, kind, "done", str(number), record.version))
        self._known[number] = record
        self._ledgers[number] = None
        return record

    async def read(self, ledger: int) -> LedgerRecord | None:
        """None where there is none, or nobody could say."""
        recorder, call = self._recorder, next(self._numbers)
        recorder.add(RecordAsked(recorder.now, self.name, str(ledger), call))
        try:
            record = await self._manager.read(LedgerId.unscoped(ledger))
        except NoSuchLedgerExistsOnMetadataServerException:
            recorder.add(RecordGot(recorder.now, self.name, str(ledger), call, GONE))
            self._known.pop(ledger, None)
            return None
        except MetaStoreException:
            return None
        self._got(call, record)
        return record

    async def read_many(self, ledgers: list[int]) -> None:
        recorder, calls = self._recorder, {ledger: next(self._numbers) for ledger in ledgers}
        for ledger, call in calls.items():
            recorder.add(RecordAsked(recorder.now, self.name, str(ledger), call))
        try:
            found = await self._manager.read_many([LedgerId.unscoped(ledger) for ledger in ledgers])
        except MetaStoreException:
            return
        for ledger, record in zip(ledgers, found, strict=True):
            if isinstance(record, LedgerRecord):
                self._got(calls[ledger], record)
            elif isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
                recorder.add(RecordGot(recorder.now, self.name, str(ledger), calls[ledger], GONE))

    def _got(self, call: int, record: LedgerRecord) -> None:
        ledger = record.ledger_id.low
        self._recorder.add(RecordGot(self._recorder.now, self.name, str(ledger), call, record.version))
        self._known[ledger] = record

    async def list(self) -> bool:
        """False where it broke off with an error. Every other time with metadata, in pages that gateways share."""
        recorder, listing = self._recorder, next(self._numbers)
        recorder.add(ListingAsked(recorder.now, self.name, listing))
        try:
            async for run in self._manager.ledger_ranges() if listing % 2 else self._ids_of_records():
                recorder.add(ListingPage(recorder.now, self.name, listing, tuple(run)))
        except MetaStoreException:
            return False
        recorder.add(ListingEnded(recorder.now, self.name, listing))
        return True

    async def _ids_of_records(self) -> AsyncIterator[Sequence[int]]:
        async for page in self._manager.ledger_records(page_size=2):
            yield [record.ledger_id.low for record in page]

    async def watch(self, ledger: int) -> None:
        recorder, watch = self._recorder, next(self._numbers)

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            version = GONE if record is None else record.version
            recorder.add(WatchTold(recorder.now, self.name, str(ledger), watch, version))

        self._watches.setdefault(ledger, []).append((watch, listener))
        recorder.add(WatchBegun(recorder.now, self.name, str(ledger), watch))
        await self._manager.register_listener(LedgerId.unscoped(ledger), listener)

    async def unwatch(self, ledger: int) -> None:
        for watch, listener in self._watches.pop(ledger, []):
            self._recorder.add(WatchEnded(self._recorder.now, self.name, str(ledger), watch))
            await self._manager.unregister_listener(LedgerId.unscoped(ledger), listener)

    async def unwatch_all(self) -> None:
        for ledger in list(self._watches):
            await self.unwatch(ledger)

    # --- at random ----------------------------------------------------------------------------------------------

    async def work(self, until: float, pause: float) -> None:
        """One call after the other, and now and then several at once, up to that time."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            calls = [self._any() for _ in range(self._rng.choice((1, 1, 1, 3)))]
            await asyncio.gather(*calls)
            await asyncio.sleep(self._rng.uniform(0, self._rng.choice((0.005, pause, pause))))

    def _any(self) -> Coroutine[Any, Any, object]:
        roll, ledgers = self._rng.random(), list(self._ledgers)
        if roll < 0.12 or not ledgers:
            return self.create(None if self._rng.random() < 0.4 else self._fresh())
        ledger = self._rng.choice(ledgers[-6:] if self._rng.random() < 0.8 else ledgers)
        for share, call in (
            (0.35, self.write),
            (0.55, self.read),
            (0.70, self.watch),
            (0.76, self.unwatch),
            (0.80, self.remove),
        ):
            if roll < share:
                return call(ledger)
        if roll < 0.86:
            return self.read_many(ledgers[-10:])
        return self.list() if roll < 0.92 else self._write_and_read(ledger)

    async def _write_and_read(self, ledger: int) -> None:
        """What was written is asked for at once."""
        await self.write(ledger)
        await self.read(ledger)

    def _fresh(self) -> int:
        """An id that was never given; now and then one that another client asks for in the same moment."""
        number = _FIRST_GIVEN_ID + len(self._ledgers)
        if self._rng.random() < 0.3:
            return number
        # Known from now on, so that nobody is given it again.
        self._ledgers[2 * number] = None
        return 2 * number

    def _next(self, metadata: LedgerMetadata) -> LedgerMetadata:
        roll = self._rng.random()
        if metadata.state is LedgerState.CLOSED:
            return metadata
        if metadata.state is LedgerState.IN_RECOVERY:
            return metadata.close(self._rng.randrange(100), 1000)
        if roll < 0.8:
            first = metadata.last_fragment.first_entry_id + self._rng.randrange(5)
            return replace(metadata.with_ensemble(first, self._rng.sample(_BOOKIES, 3)), creator_token=0)
        return metadata.begin_recovery() if roll < 0.9 else metadata.close(self._rng.randrange(100), 1000)
