"""Keeps the index of an auditor in office (`ledger_index`) in line with the store.

States, following the feed: *without an index*, before the feed has begun and while it is lost; *reading all ledgers*
for the first time, in order; *complete*. From then on changed ledgers are read again, in batches, some seconds later,
so that a ledger that changes several times is read once; and before the index answers a question, all earlier changes
have been reported and read. Without a complete index there is no answer: the caller lists all ledgers.

From time to time all ledgers are read slowly in addition. If the index differs from the store although the feed
reported nothing, the feed has a fault: that is logged, counted, and corrected. Source:
docs/protocol/auto-recovery.md#index. Not its job: what an audit does with the answer (`auditor`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice

from bookgate.bookie.replication.audits.ledger_index import LedgerIndex
from bookgate.bookie.replication.ledger_pages import READ_AT_ONCE, all_numbers, number_pages, read_page, see_all_ledgers
from bookgate.ledger.errors import BKException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.replication_store import FeedBegan, FeedLost, LedgerFeed, LedgerFeedEvent, LedgersTouched
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_STORE_PAUSE_SECONDS = 2.0
_MOST_LOGGED = 10
_READING_PAUSE = 2
"""A reading of all ledgers is followed by a pause of so many times what it took: a feed that is lost again and again
keeps no store busy."""
_VERIFY_AGAIN_SECONDS = 600.0
"""After a comparison that the store's errors have ended."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What may be set of an index."""

    batch_seconds: float = 10.0
    """What changes in so long is read together, and a ledger once."""
    read_ledgers_a_second: float = 5_000.0
    """When all ledgers are read for a new index; changed ones are read at once."""
    verify_seconds: float = 86_400.0
    """From one comparison with the store to the next."""
    verify_ledgers_a_second: float = 1_000.0


@dataclass(slots=True)
class IndexStatistics:
    """What is known of an auditor's index."""

    ledgers: int | None = None
    """In a complete index; None without one."""
    readings: int = 0
    """Of all ledgers, each for a new index."""
    differences: int = 0
    """Ledgers of which the index said something else than the store, without a word of the feed."""


@dataclass(frozen=True, slots=True)
class Named:
    """What an index answers."""

    ledgers: Mapping[int, Sequence[str]]
    """Ledgers that name bookies that were asked for, ascending, each with these."""
    unreadable: Mapping[int, str]
    """Ledgers that may name any, since their metadata are damaged, and how."""


class IndexKeeper:
    """See the module. `start`, and `stop` and `ended` before the metadata are closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        membership: Membership | None,
        options: IndexOptions,
        statistics: IndexStatistics,
    ) -> None:
        """`membership` names the cluster that the process belongs to, if given."""
        self._factory = factory
        self._membership = membership
        self._options = options
        self._statistics = statistics
        self._index: LedgerIndex | None = None
        self._feed: LedgerFeed | None = None
        self._reading = asyncio.Lock()
        """One reading at a time: what is put last was read last."""
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        """Another index is to be made, which waits for no batch."""
        self._may_read_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins, where the store has a feed."""
        self._feed = self._factory.replication_metadata.watch_ledgers(self._on_event)
        if self._feed is not None:
            self._tasks = [
                keep_running("index of ledgers", self._keep),
                keep_running("comparison of the index", self._verify_now_and_then),
            ]

    def stop(self) -> None:
        """Forgets the index; the work ends soon (`ended`)."""
        if self._feed is not None:
            self._feed.close()
        for task in self._tasks:
            task.cancel()
        self._index = self._statistics.ledgers = None

    async def ended(self) -> None:
        """Returns when the work has ended that `stop` has ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def bookies(self) -> Collection[str]:
        """Bookies that ledgers named a moment ago; empty without a complete index."""
        return self._index.bookies if self._index is not None and self._index.complete else ()

    @property
    def named(self) -> Collection[str] | None:
        """Every bookie that a ledger names or named a moment ago; None without a complete index."""
        return self._index.named if self._index is not None and self._index.complete else None

    async def naming(self, bookie_ids: Iterable[str]) -> Named | None:
        """Ledgers of which any ensemble names some of these, as the store is at the call or later.

        Returns:
            The answer, or None where there is no complete index: list all ledgers.

        Raises:
            BKException: The store is out of reach.
        """
        index = self._index
        if index is None or not index.complete or self._feed is None:
            return None
        await self._feed.catch_up()
        async with self._reading:  # what is under way is put, or due again
            due = index.due
        await self._read_due(index, due)
        return Named(index.naming(bookie_ids), index.unreadable) if index is self._index else None

    # --- what the feed tells ------------------------------------------------------------------------------------

    def _on_event(self, event: LedgerFeedEvent) -> None:
        match event:
            case FeedBegan():
                self._index = LedgerIndex()
                self._begun.set()
            case FeedLost():
                self._index = self._statistics.ledgers = None
                log_event(_log, "ledger_index", logging.WARNING, state="lost", note="audits list all ledgers")
            case LedgersTouched(ledger_ids):
                if self._index is not None:
                    self._index.touch(ledger_ids)
        self._news.set()

    # --- reading ------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._news.clear()
            self._begun.clear()
            try:
                if self._index is not None:
                    await self._bring_up_to_date(self._index)
            except (BKException, TimeoutError) as error:
                log_event(_log, "ledger_index", logging.WARNING, state="behind", error=error, note="it is tried again")
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
                continue
            await self._news.wait()

    async def _bring_up_to_date(self, index: LedgerIndex) -> None:
        if not index.complete:
            await self._read_all(index)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.batch_seconds):
                    await self._begun.wait()
            if index is self._index:
                await self._read_due(index, index.due)
        if index is self._index:
            self._statistics.ledgers = len(index)

    async def _read_all(self, index: LedgerIndex) -> None:
        """Goes on where an error has ended it; a ledger that is created before that place is told by the feed."""
        loop = asyncio.get_running_loop()
        if index.read_up_to < 0:
            await asyncio.sleep(max(0.0, self._may_read_at - loop.time()))
        began = loop.time()
        await see_all_ledgers(self._factory, self._membership)
        after = index.read_up_to if index.read_up_to >= 0 else None
        async with aclosing(number_pages(self._factory.ledger_manager, after)) as pages:  # type: ignore[type-var]
            async for page in pages:
                await self._read_page(index, page)
                self._may_read_at = loop.time() + _READING_PAUSE * (loop.time() - began)
                if index is not self._index:
                    return
        if index is not self._index:
            return
        index.complete = True
        self._news.set()
        self._statistics.readings += 1
        seconds = round(loop.time() - began, 3)
        log_event(_log, "ledger_index", state="complete", ledgers=len(index), seconds=seconds)

    async def _read_page(self, index: LedgerIndex, page: Sequence[int]) -> None:
        await self._read_anew(index, page)
        index.read_up_to = page[-1]
        await asyncio.sleep(len(page) / self._options.read_ledgers_a_second)

    async def _read_due(self, index: LedgerIndex, due: Iterable[int]) -> None:
        """Reads those of these ledgers that are due, which changes made from now on may add to."""
        numbers = list(due)
        if numbers:
            await see_all_ledgers(self._factory, self._membership)
        for start in range(0, len(numbers), READ_AT_ONCE):
            await self._read_anew(index, numbers[start : start + READ_AT_ONCE], only_due=True)

    async def _read_anew(self, index: LedgerIndex, numbers: Sequence[int], *, only_due: bool = False) -> None:
        """Reads these ledgers; they are due no more, unless they change from now on."""
        async with self._reading:
            due = index.take_due(numbers)
            wanted = due if only_due else numbers
            try:
                index.put(wanted, *await self._read(wanted))
            except BaseException:
                index.touch(due)
                raise

    async def _read(self, numbers: Iterable[int]) -> tuple[list[LedgerRecord], dict[int, str]]:
        """What exists of these ledgers, and of the damaged ones how they are."""
        unreadable: dict[int, str] = {}

        def damaged(ledger_id: LedgerId, error: MetadataFormatException) -> None:
            unreadable[ledger_id.number] = str(error)

        return await read_page(self._factory.ledger_manager, numbers, damaged), unreadable

    # --- comparison with the store ------------------------------------------------------------------------------

    async def _verify_now_and_then(self) -> None:
        pause = self._options.verify_seconds
        while True:
            await asyncio.sleep(pause)
            pause = self._options.verify_seconds
            if self._index is None or not self._index.complete:
                continue
            try:
                await self._verify(self._index)
            except (BKException, TimeoutError) as error:
                log_event(_log, "ledger_index_not_compared", logging.WARNING, error=error)
                pause = min(pause, _VERIFY_AGAIN_SECONDS)

    async def _verify(self, index: LedgerIndex) -> None:
        await see_all_ledgers(self._factory, self._membership)
        listed = await all_numbers(self._factory.ledger_manager)
        numbers = (number for number, _ in groupby(merge(listed, index.known)))
        while index is self._index and (page := list(islice(numbers, READ_AT_ONCE))):
            await self._compare(index, page)
            await asyncio.sleep(len(page) / self._options.verify_ledgers_a_second)

    async def _compare(self, index: LedgerIndex, page: Sequence[int]) -> None:
        stored = LedgerIndex()
        async with self._reading:
            stored.put(page, *await self._read(page))
            if self._feed is None or not index.differing(page, stored):
                return
            await self._feed.catch_up()
            # Less what the feed has told of by now.
            wrong = index.differing(page, stored)
        if not wrong or index is not self._index:
            return
        self._statistics.differences += len(wrong)
        some = wrong[:_MOST_LOGGED]
        log_event(
            _log, "ledger_index_differs", logging.ERROR, count=len(wrong), ledgers=some, note="they are read anew"
        )
        index.touch(wrong)
        self._news.set()
