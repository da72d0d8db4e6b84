"""Keeps the index of an auditor in office (`ledger_index`) consistent with the store.

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

from bookgate.bookie.replication.audits.ledger_index import BookieLedgerIndex
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
"""Pause after reading all ledgers, as a multiple of its duration, so that a feed that is lost repeatedly does not
overload the store."""
_VERIFY_AGAIN_SECONDS = 600.0
"""Seconds until a comparison is repeated that an error of the store has ended."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """The settings of an index."""

    batch_seconds: float = 10.0
    """Seconds for which changes are collected before they are read together, each ledger once."""
    read_ledgers_a_second: float = 5_000.0
    """Rate at which all ledgers are read for a new index; changed ones are read without a limit."""
    verify_seconds: float = 86_400.0
    """Seconds from one comparison with the store to the next."""
    verify_ledgers_a_second: float = 1_000.0


@dataclass(slots=True)
class IndexStatistics:
    """The state and counts of an auditor's index."""

    ledgers: int | None = None
    """Number of ledgers in a complete index; None without one."""
    readings: int = 0
    """Number of complete readings of all ledgers, each for a new index."""
    differences: int = 0
    """Ledgers for which the index differed from the store although the feed had reported nothing."""


@dataclass(frozen=True, slots=True)
class Named:
    """The answer of an index."""

    ledgers: Mapping[int, Sequence[str]]
    """Ledgers that name requested bookies, ascending, each with these bookies."""
    unreadable: Mapping[int, str]
    """Ledgers with damaged metadata, which may name any bookie, with the error."""


class IndexKeeper:
    """See the module. Call `start`, and `stop` and `ended` before the metadata store is closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        membership: Membership | None,
        options: IndexOptions,
        statistics: IndexStatistics,
    ) -> None:
        """`membership` is the cluster to which the process belongs, if known."""
        self._factory = factory
        self._membership = membership
        self._options = options
        self._statistics = statistics
        self._index: BookieLedgerIndex | None = None
        self._feed: LedgerFeed | None = None
        self._reading = asyncio.Lock()
        """One reading at a time, so that the last result stored is the last one read."""
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        """Set when a new index must be built, which does not wait for a batch."""
        self._may_read_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts, if the store has a feed."""
        self._feed = self._factory.replication_metadata.watch_ledgers(self._on_event)
        if self._feed is not None:
            self._tasks = [
                keep_running("index of ledgers", self._keep),
                keep_running("comparison of the index", self._verify_now_and_then),
            ]

    def stop(self) -> None:
        """Drops the index; the work ends soon (`ended`)."""
        if self._feed is not None:
            self._feed.close()
        for task in self._tasks:
            task.cancel()
        self._index = self._statistics.ledgers = None

    async def ended(self) -> None:
        """Returns once the work has ended after `stop`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def bookies(self) -> Collection[str]:
        """Bookies that ledgers named recently; empty without a complete index."""
        return self._index.bookies if self._index is not None and self._index.complete else ()

    @property
    def named(self) -> Collection[str] | None:
        """Every bookie that a ledger names or named recently; None without a complete index."""
        return self._index.named if self._index is not None and self._index.complete else None

    async def naming(self, bookie_ids: Iterable[str]) -> Named | None:
        """The ledgers with an ensemble that names any of these bookies, in the state of the store at the call or later.

        Returns:
            The answer, or None without a complete index: the caller must list all ledgers.

        Raises:
            BKException: The store is unreachable.
        """
        index = self._index
        if index is None or not index.complete or self._feed is None:
            return None
        await self._feed.catch_up()
        async with self._reading:  # a reading in progress is stored, or due again
            due = index.due
        await self._read_due(index, due)
        return Named(index.naming(bookie_ids), index.unreadable) if index is self._index else None

    # --- events of the feed ------------------------------------------------------------------------------------

    def _on_event(self, event: LedgerFeedEvent) -> None:
        match event:
            case FeedBegan():
                self._index = BookieLedgerIndex()
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

    async def _bring_up_to_date(self, index: BookieLedgerIndex) -> None:
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

    async def _read_all(self, index: BookieLedgerIndex) -> None:
        """Reads all ledgers; continues where an error ended it. The feed reports ledgers created before that
        position.
        """
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

    async def _read_page(self, index: BookieLedgerIndex, page: Sequence[int]) -> None:
        await self._read_anew(index, page)
        index.read_up_to = page[-1]
        await asyncio.sleep(len(page) / self._options.read_ledgers_a_second)

    async def _read_due(self, index: BookieLedgerIndex, due: Iterable[int]) -> None:
        """Reads those of these ledgers that are due; changes from now on make ledgers due again."""
        numbers = list(due)
        if numbers:
            await see_all_ledgers(self._factory, self._membership)
        for start in range(0, len(numbers), READ_AT_ONCE):
            await self._read_anew(index, numbers[start : start + READ_AT_ONCE], only_due=True)

    async def _read_anew(self, index: BookieLedgerIndex, numbers: Sequence[int], *, only_due: bool = False) -> None:
        """Reads these ledgers; they are no longer due, unless they change from now on."""
        async with self._reading:
            due = index.take_due(numbers)
            wanted = due if only_due else numbers
            try:
                index.put(wanted, *await self._read(wanted))
            except BaseException:
                index.touch(due)
                raise

    async def _read(self, numbers: Iterable[int]) -> tuple[list[LedgerRecord], dict[int, str]]:
        """The records of the existing ledgers, and the errors of damaged ones."""
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

    async def _verify(self, index: BookieLedgerIndex) -> None:
        await see_all_ledgers(self._factory, self._membership)
        listed = await all_numbers(self._factory.ledger_manager)
        numbers = (number for number, _ in groupby(merge(listed, index.known)))
        while index is self._index and (page := list(islice(numbers, READ_AT_ONCE))):
            await self._compare(index, page)
            await asyncio.sleep(len(page) / self._options.verify_ledgers_a_second)

    async def _compare(self, index: BookieLedgerIndex, page: Sequence[int]) -> None:
        stored = BookieLedgerIndex()
        async with self._reading:
            stored.put(page, *await self._read(page))
            if self._feed is None or not index.differing(page, stored):
                return
            await self._feed.catch_up()
            # Without ledgers that the feed has reported by now.
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
