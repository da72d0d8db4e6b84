"""The passes over all ledgers of a store, for the scale benchmark: the auditor's index, and garbage collection.

Arguments: the metadata URI. It runs in a process of its own, so that CPU and memory are those of the pass alone. The
index is read without its limit of ledgers a second; the collection compares with a storage that holds an even share of
the ledgers, and deletes nothing. Not its job: CPU of the store, and how long a pass takes within its limits.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.filled_store import fill_store
from benchmarks.load_process import commands, rss_bytes, serve_async
from bookgate.bookie.collection.ledger_collector import LedgerCollector
from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, IndexOptions, IndexStatistics
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership

_NO_LIMIT = 1e12
_BOOKIES = tuple(f"192.0.2.{number}:3181" for number in range(30))
_FORMS = 1_000
"""So many different ensembles."""


class _Held:
    """What a collection asks of a bookie's storage."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self.missing: Sequence[int] = ()

    def ledger_ids(self) -> Sequence[int]:
        return self._ids

    def scoped_ledgers(self) -> Sequence[int]:
        return ()

    def compared(self, scope_id: int, local: Sequence[int], missing: Sequence[int]) -> None:
        self.missing = missing


class Passes:
    """The operations."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    async def index(self, at_most: int) -> dict[str, float]:
        """Reads so many ledgers into an index; CPU in microseconds, seconds and bytes for each."""
        factory = await self._open()
        keeper = IndexKeeper(
            factory, None, IndexOptions(read_ledgers_a_second=_NO_LIMIT, verify_seconds=1e6), IndexStatistics()
        )
        memory, cpu, began = rss_bytes("self"), time.process_time(), time.perf_counter()
        keeper.start()
        while (index := keeper._index) is None or not (index.complete or len(index) >= at_most):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        read = len(index)
        figures = {
            "index_cpu": (time.process_time() - cpu) * 1e6 / read,
            "index_seconds": (time.perf_counter() - began) / read,
            "index_bytes": (rss_bytes("self") - memory) / read,
            "read": read,
        }
        keeper.stop()
        await keeper.ended()
        await factory.close()
        return figures

    async def collect(self, first: int, ledgers: int, held_of_four: int = 3) -> dict[str, float]:
        """Compares all ledgers with those that a bookie holds; CPU in microseconds and seconds for each listed."""
        factory = await self._open()
        storage = _Held(array("q", (first + number for number in range(ledgers) if number % 4 < held_of_four)))
        statistics = GcStatistics()
        await factory.registration_manager.write_cookie("a-bookie", b"", None)
        membership = Membership("a-bookie", (await factory.service_discovery.cluster_info()).instance_id)
        collector = LedgerCollector(
            GarbageCollectionConfig(),
            cast(LedgerStorage, storage),
            factory,
            membership,
            statistics,
            time.monotonic,
            _now,
            _now,
        )
        cpu, began = time.process_time(), time.perf_counter()
        await collector.collect()
        assert not storage.missing
        assert not statistics.failed_listings
        figures = {
            "collect_cpu": (time.process_time() - cpu) * 1e6 / ledgers,
            "collect_seconds": (time.perf_counter() - began) / ledgers,
        }
        await factory.close()
        return figures

    async def _open(self) -> LedgerManagerFactory:
        factory = create_factory(self._uri)
        await factory.initialize()
        return factory


async def _now(work: Callable[[], Any]) -> Any:
    return work()


def fill_embedded(path: Path, ledgers: int) -> None:
    """Closed ledgers of three copies in the file of an embedded store that is there."""
    forms = [
        encode(
            LedgerMetadata.new([_BOOKIES[(form * 7 + copy) % len(_BOOKIES)] for copy in range(3)], 3, 2).close(9, 1000)
        )
        for form in range(_FORMS)
    ]
    fill_store(path, ((LedgerId.unscoped(number), forms[number % _FORMS]) for number in range(ledgers)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def main() -> None:
    loop = asyncio.get_running_loop()
    await serve_async(Passes(sys.argv[1]), lambda: loop.run_in_executor(None, commands))


if __name__ == "__main__":
    uvloop.run(main())
