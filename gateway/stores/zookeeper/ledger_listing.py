"""Lists the ledgers of scope 0, and estimates how much metadata of listed ledgers to request at once.

Not its job: the order of the nodes (`ledger_paths`), reading metadata (`ledger_manager`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from kazoo.exceptions import NoNodeError

from bookgate.gateway.stores.zookeeper.ledger_paths import IdRange, LedgerPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import MetaStoreException


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


async def list_ids(
    session: ZooKeeperSession, paths: LedgerPaths, wanted: IdRange
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
            return await session.numbered_children(path, "L", width)
        except NoNodeError:
            return ()

    # A lagging server would list deleted ledgers and miss new ones.
    await session.sync(paths.root)
    async with aclosing(paths.runs(children, wanted, numbers)) as runs:
        async for run in runs:
            yield run
