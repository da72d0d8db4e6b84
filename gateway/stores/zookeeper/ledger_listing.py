"""Lists the ledgers of scope 0, and estimates how much metadata of listed ledgers to request at once.

The last listing of each leaf node is kept. Before it is used again, the node's stat is read, which changes with every
creation and removal of a child: where most leaf nodes stay as they are, a listing after the first reads one stat for
thousands of ledgers.

Not its job: the order of the nodes (`ledger_paths`), reading metadata (`ledger_manager`).
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.ledger_paths import IdRange, LedgerPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId

_MOST_BYTES = 32 * 1024 * 1024
READ_TOGETHER = 100
"""Ledgers in one request; a larger one would delay the requests behind it."""

_BYTES_A_LEAF = 512
"""What a kept listing takes beside its numbers: path, stat and objects."""


class ListedSizes:
    """Estimates the size of listed ledgers' metadata, which ZooKeeper only reveals with the metadata.

    Large ledgers are remembered one by one: what one listing learns of them, others that are among small ledgers do not
    unlearn, and small ledgers beside them are still read many at a time.
    """

    _FEWEST, _MOST = 8, READ_TOGETHER
    _LARGE, _MOST_LARGE = 8 * 1024, 10_000

    def __init__(self) -> None:
        self._most = self._FEWEST
        self._bytes = 1.0
        """What a ledger probably has that is not among the large ones."""
        self._large: OrderedDict[LedgerId, int] = OrderedDict()
        """The sizes of large ledgers, those seen last at the end."""

    def fitting(self, ledger_ids: Sequence[LedgerId], room: int) -> int:
        """How many of the first ledgers to request if `room` bytes are wanted: at least one, if there are any."""
        count = min(len(ledger_ids), self._most)
        if not self._large:
            return min(count, int(room / self._bytes) + 1)
        sizes = (self._large.get(ledger_id, self._bytes) for ledger_id in ledger_ids[:count])
        return _reaching(sizes, room)

    def saw(self, ledger_ids: Sequence[LedgerId], sizes: Sequence[int]) -> None:
        """Learns from the sizes read: many small ones raise the number step by step, an unexpected large one resets
        it.
        """
        if self._large or max(sizes, default=0) > self._LARGE:
            sizes = self._remember(ledger_ids, sizes)
        if sizes:
            self._bytes = max(1.0, sum(sizes) / len(sizes), self._bytes / 2)
            self._most = min(self._MOST, 2 * self._most) if max(sizes) <= 2 * self._bytes + 1024 else self._FEWEST

    def _remember(self, ledger_ids: Sequence[LedgerId], sizes: Sequence[int]) -> Sequence[int]:
        """Remembers the large ledgers; returns the sizes of those of which nothing was known."""
        unknown = []
        for ledger_id, size in zip(ledger_ids, sizes, strict=True):
            if self._large.pop(ledger_id, None) is None:
                unknown.append(size)
            if size > self._LARGE:
                self._large[ledger_id] = size
        while len(self._large) > self._MOST_LARGE:
            self._large.popitem(last=False)
        return unknown


def within(sizes: Sequence[int], room: int) -> int:
    """How many of the first ledgers read have `room` bytes, the one that reaches it included."""
    return len(sizes) if sum(sizes) <= room else _reaching(sizes, room)


def _reaching(sizes: Iterable[float], room: int) -> int:
    """How many of the first sizes reach `room`, or how many there are."""
    count = 0
    for size in sizes:
        count += 1
        room -= int(size)
        if room <= 0:
            break
    return count


class RequestedLedgers:
    """Bounds how many ledgers all listings together have requested: each may have grown to a mebibyte, unseen.

    Listings take their places in the order in which they come.
    """

    def __init__(self, most: int = 2 * READ_TOGETHER, patience_seconds: float = 30.0) -> None:
        self._free = most
        self._patience_seconds = patience_seconds
        self._first, self._freed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def place(self, count: Callable[[], int]) -> AsyncIterator[int]:
        """Waits until there is a place for as many ledgers as `count` says by then; gives that number.

        Raises MetaStoreException after a long wait: while ZooKeeper is out of reach, those before it take long to fail.
        """
        try:
            async with asyncio.timeout(self._patience_seconds):
                taken = await self._take(count)
        except TimeoutError:
            raise MetaStoreException("ZooKeeper has not answered the listings before this one") from None
        try:
            yield taken
        finally:
            self._free += taken
            self._freed.set()

    async def _take(self, count: Callable[[], int]) -> int:
        async with self._first:
            while (wanted := count()) > self._free:
                self._freed.clear()
                await self._freed.wait()
            self._free -= wanted
            return wanted


class _LeafListing(NamedTuple):
    """The numbers below a leaf node, and the part of its stat that its children change."""

    numbers: Sequence[int]
    children_version: tuple[int, int, int, int]


def _children_version(stat: ZnodeStat) -> tuple[int, int, int, int]:
    """Each alone changes with the children; all four, since servers have been known to forget one in a crash."""
    return stat.czxid, stat.pzxid, stat.cversion, stat.numChildren


class LeafListings:
    """The last listings of leaf nodes, those used last, in bounded memory."""

    def __init__(self, session: ZooKeeperSession, most_bytes: int = _MOST_BYTES) -> None:
        self._session = session
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _LeafListing] = OrderedDict()
        self._bytes = 0

    async def numbers(self, path: str, width: int) -> Sequence[int]:
        """The numbers below a leaf node as they are at this session's server. Raises NoNodeError."""
        kept = self._kept.get(path)
        if kept is not None:
            stat = await self._session.exists(path)
            if stat is not None and _children_version(stat) == kept.children_version:
                # Another listing may have forgotten it meanwhile.
                self._keep(path, kept)
                return kept.numbers
        self._forget(path)
        numbers, stat = await self._session.numbered_children(path, "L", width)
        self._keep(path, _LeafListing(_compact(numbers), _children_version(stat)))
        return numbers

    def _keep(self, path: str, listing: _LeafListing) -> None:
        self._forget(path)
        self._kept[path] = listing
        self._bytes += _size(listing)
        while self._bytes > self._most_bytes:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def _forget(self, path: str) -> None:
        listing = self._kept.pop(path, None)
        if listing is not None:
            self._bytes -= _size(listing)


def _compact(numbers: Sequence[int]) -> Sequence[int]:
    return numbers if isinstance(numbers, range) else array("H", numbers)


def _size(listing: _LeafListing) -> int:
    return _BYTES_A_LEAF + (0 if isinstance(listing.numbers, range) else 2 * len(listing.numbers))


async def list_ids(
    session: ZooKeeperSession, paths: LedgerPaths, wanted: IdRange, leaves: LeafListings
) -> AsyncGenerator[Sequence[int], None]:
    """All wanted ids, ascending, in runs. Raises MetaStoreException rather than ending early."""

    async def children(path: str) -> Sequence[str]:
        try:
            return await session.children(path)
        except NoNodeError:
            if path == paths.root:
                # This must not count as "no ledgers": a bookie would then delete all of them.
                raise MetaStoreException(f"ZooKeeper has no {path}: the ledgers root was removed") from None
            return ()

    async def numbers(path: str, width: int) -> Sequence[int]:
        try:
            return await leaves.numbers(path, width)
        except NoNodeError:
            return ()

    # A lagging server would list deleted ledgers and miss new ones.
    await session.sync(paths.root)
    async with aclosing(paths.runs(children, wanted, numbers)) as runs:
        async for run in runs:
            yield run
