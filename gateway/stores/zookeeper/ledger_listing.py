"""Lists the ledgers of scope 0, and estimates how much metadata of listed ledgers to request at once.

The last listing of each leaf node is kept. Before it is used again, the node's stat is read, which changes with every
creation and removal of a child: where most leaf nodes stay as they are, a listing after the first reads one stat for
thousands of ledgers.

Not its job: the order of the nodes (`ledger_paths`), reading metadata (`ledger_manager`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.ledger_paths import IdRange, LedgerPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import MetaStoreException

_MOST_BYTES = 32 * 1024 * 1024
_BYTES_A_LEAF = 512
"""What a kept listing takes beside its numbers: path, stat and objects."""


class ExpectedSize:
    """Estimates the size of the next listed ledgers' metadata, which ZooKeeper only reveals with the metadata."""

    _FEWEST, _MOST = 8, 200

    def __init__(self) -> None:
        self._most = self._FEWEST
        self._bytes = 1.0

    def fitting(self, room: int) -> int:
        """The number of ledgers to request if `room` bytes are wanted."""
        return max(1, min(self._most, int(room / self._bytes) + 1))

    def saw(self, sizes: Sequence[int]) -> None:
        """Learns from the sizes read: many small ones raise the number step by step, a large one resets it."""
        if sizes:
            self._bytes = max(sum(sizes) / len(sizes), self._bytes / 2)
            self._most = min(self._MOST, 2 * self._most) if max(sizes) <= 2 * self._bytes + 1024 else self._FEWEST


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
