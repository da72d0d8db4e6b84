"""Ledgers with a scope beside ledgers without one, at one gateway: `make bench-scopes`.

Creation: ids that the client makes (UUIDs), which ask no generator, beside ids that the cluster gives. Listing: one
scope with random ids, in order, beside scope 0. Scopes: each ledger in one of its own, as UUIDs are. Both stores, with
fewer ledgers in ZooKeeper: random ids share hardly any nodes, so each ledger has about four in the scope, and about
seven in a scope of its own.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import uvloop

from benchmarks.filled_store import make_filled_store
from benchmarks.gateway_setting import GatewayProcess
from benchmarks.harness import QUICK, Row, compare, measured, report
from benchmarks.metadata_sample import SAMPLE
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import ensure_cluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import CreateRequest
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager

_SECONDS = 1.0 if QUICK else 3.0
_AT_ONCE = 50
_EMBEDDED = 50_000 if QUICK else 1_000_000
_ZOOKEEPER = 10_000 if QUICK else 100_000
_BATCH = 1_000
_SCOPE = 42


def ids(count: int) -> Iterator[LedgerId]:
    """As many in scope 0, in one other scope, and in scopes of their own."""
    rng = random.Random(1)
    yield from (LedgerId.unscoped(number) for number in range(count))
    yield from (LedgerId(_SCOPE, rng.getrandbits(64) - 2**63) for _ in range(count))
    yield from (LedgerId.of_number(rng.getrandbits(128) | 1 << 127) for _ in range(count))


def fill_embedded(path: Path, count: int) -> str:
    """A store with these ledgers."""
    metadata = encode(SAMPLE)
    return make_filled_store(path, ((each, metadata) for each in ids(count)))


async def fill(manager: RpcLedgerManager, count: int) -> None:
    """The same through a gateway."""
    waiting = list(ids(count))
    for start in range(0, len(waiting), _BATCH):
        results = await manager.create_many([CreateRequest(each, SAMPLE) for each in waiting[start : start + _BATCH]])
        for result in results:
            if isinstance(result, Exception):
                raise result


async def create(manager: RpcLedgerManager, *, scoped: bool) -> float:
    """Clients that create one ledger after the other; ledgers a second."""
    began = time.monotonic()

    async def run() -> int:
        created = 0
        while time.monotonic() - began < _SECONDS:
            await manager.create(LedgerId.random() if scoped else None, SAMPLE)
            created += 1
        return created

    return sum(await asyncio.gather(*(run() for _ in range(_AT_ONCE)))) / (time.monotonic() - began)


async def walk(manager: RpcLedgerManager, scope_id: int, count: int) -> float:
    """Lists the first `count` ledgers of a scope; ids a second. Raises RuntimeError if they are out of order."""
    began, listed = time.monotonic(), list[int]()
    async for run in manager.ledger_ranges(scope_id, end_before=None if scope_id else count):
        listed += run
    seconds = time.monotonic() - began
    numbers = [LedgerId(scope_id, each).number for each in listed]
    if len(numbers) != count or not all(a < b for a, b in pairwise(numbers)):
        raise RuntimeError(f"{len(numbers)} of {count} ids of scope {scope_id} were listed, or out of order")
    return count / seconds


async def walk_scopes(manager: RpcLedgerManager, count: int) -> float:
    """Lists scopes; how many a second."""
    began, found = time.monotonic(), 0
    async for run in manager.scopes():
        found += len(run)
    if found < count:
        raise RuntimeError(f"{found} of {count} scopes were listed")
    return found / (time.monotonic() - began)


def rows(store: str, gateway: str, count: int, *, filled: bool) -> list[Row]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def connect() -> RpcLedgerManagerFactory:
            return RpcLedgerManagerFactory(gateway, 60.0, random.Random(1))

        factory = runner.run(connect())
        manager = factory.ledger_manager
        if not filled:
            runner.run(fill(manager, count))
        found = [
            compare(
                f"{store}: list {count:,} ledgers of a scope, random ids",
                "ids/s",
                lambda: runner.run(walk(manager, _SCOPE, count)),
                lambda: runner.run(walk(manager, 0, count)),
                "scope 0",
            ),
            compare(
                f"{store}: list {count:,} scopes",
                "ids/s",
                lambda: runner.run(walk_scopes(manager, count)),
                lambda: runner.run(walk(manager, 0, count)),
                "ledgers of scope 0",
            ),
            compare(
                f"{store}: create, {_AT_ONCE} at once, ids of the client's own",
                "ledgers/s",
                lambda: runner.run(create(manager, scoped=True)),
                lambda: runner.run(create(manager, scoped=False)),
                "ids of the cluster's",
            ),
        ]
        runner.run(factory.close())
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with GatewayProcess(fill_embedded(Path(directory, "metadata.db"), _EMBEDDED)) as gateway:
            found = [*map(measured, rows("embedded", gateway.uri, _EMBEDDED, filled=True))]
        with LocalZooKeeper(Path(directory, "zookeeper"), heap_mib=512 if QUICK else 4096) as zookeeper:
            uri = zookeeper.metadata_uri("/scopes/ledgers")
            asyncio.run(ensure_cluster(uri))
            with GatewayProcess(uri) as gateway:
                found += map(measured, rows("ZooKeeper", gateway.uri, _ZOOKEEPER, filled=False))
    report("scopes", found)


if __name__ == "__main__":
    main()
