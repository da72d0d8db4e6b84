"""What the loss of a bookie costs the metadata store, and what the auditor's index takes: part `index` of `recovery`.

Ledgers of three copies on a hundred bookies, in a ZooKeeper of this machine; a tenth of them have a second fragment. A
bookie after the other is lost, and an auditor marks its ledgers: by its index, and in turn by listing all ledgers, as
an auditor does whose store has no feed. Counted are the nodes of ledgers and marks that are read, whatever the request.
The memory is that of a process that fills an index, and nothing else, with a million ledgers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.harness import PAIRS, QUICK, Row, figures
from bookgate.bookie.replication.audits.auditor import Auditor, AuditorOptions
from bookgate.bookie.replication.audits.ledger_index import BookieLedgerIndex
from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.ledger_paths import paths_of
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory, LedgerRecord

BOOKIES = tuple(f"192.0.2.{number}:3181" for number in range(100))
STORED = 2_000 if QUICK else 20_000
INDEXED = 100_000 if QUICK else 1_000_000
AIM_MIB = 200
_TOGETHER = 500
_ROOT = "/ledgers"


def _metadata(rng: random.Random) -> LedgerMetadata:
    chosen = rng.sample(BOOKIES, 4)
    new = LedgerMetadata.new(chosen[:3], 3, 2)
    if rng.random() > 0.1:
        return new
    return replace(new, fragments=(*new.fragments, Fragment(10, tuple(chosen[1:]))))


# --- reads ----------------------------------------------------------------------------------------------------------


@dataclass
class _Reads:
    ledgers: list[int] = field(default_factory=list)
    marks: int = 0

    def clear(self) -> None:
        self.ledgers.clear()
        self.marks = 0


def _count_reads(factory: ZooKeeperLedgerManagerFactory) -> _Reads:
    """Of an auditor's session, from now on."""
    session, paths, reads = factory.session, paths_of("hierarchical", _ROOT), _Reads()
    get, get_many = session.get, session.get_many

    def count(path: str) -> None:
        ledger_id = paths.ledger_id_at(path)
        if ledger_id is not None:
            reads.ledgers.append(ledger_id)
        reads.marks += path.startswith(f"{_ROOT}/underreplication/ledgers/")

    async def counted_get(path, watch=None):  # type: ignore[no-untyped-def]
        count(path)
        return await get(path, watch)

    async def counted_get_many(wanted):  # type: ignore[no-untyped-def]
        for path in wanted:
            count(path)
        return await get_many(wanted)

    session.get, session.get_many = counted_get, counted_get_many  # type: ignore[method-assign]
    return reads


@dataclass(frozen=True)
class _Audit:
    own: int
    reads: int
    """Of ledgers, its own and others', and of marks."""
    others: int
    seconds: float


@contextlib.asynccontextmanager
async def _opened(uri: str) -> AsyncIterator[ZooKeeperLedgerManagerFactory]:
    factory = create_factory(uri)
    assert isinstance(factory, ZooKeeperLedgerManagerFactory)
    await factory.initialize()
    try:
        yield factory
    finally:
        await factory.close()


async def _audit(uri: str, store: LedgerManagerFactory, lost: str, *, by_index: bool) -> _Audit:
    async with _opened(uri) as factory:
        if not by_index:
            factory.replication_metadata.watch_ledgers = lambda _listener: None  # type: ignore[assignment, method-assign]
        reads = _count_reads(factory)
        auditor = Auditor(factory, "here", AuditorOptions(lost_bookie_delay_seconds=0))
        done = auditor.statistics
        await auditor.start()
        while done.roll is None or (by_index and done.index.ledgers is None):  # noqa: ASYNC110 - counters are no events
            await asyncio.sleep(0.01)
        reads.clear()
        began = time.perf_counter()
        await store.registration_manager.unregister_bookie(lost)
        while not done.audits:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        seconds = time.perf_counter() - began
        assert done.audits_by_index == by_index
        await auditor.stop()
    own = set[int]()
    async for page in store.replication_metadata.marks():
        own |= {mark.value.ledger_id for mark in page}
        await asyncio.gather(
            *(store.replication_metadata.delete_mark(mark.value.ledger_id, mark.version) for mark in page)
        )
    assert len(own) == done.ledgers_marked
    others = sum(ledger_id not in own for ledger_id in reads.ledgers)
    found = _Audit(len(own), len(reads.ledgers) + reads.marks, others, seconds)
    await store.registration_manager.register_bookie(BookieServiceInfo(lost, ()), read_only=False)
    return found


async def _audits(uri: str) -> tuple[list[_Audit], list[_Audit]]:
    rng = random.Random(1)
    async with _opened(uri) as store:
        for bookie_id in BOOKIES:
            await store.registration_manager.write_cookie(bookie_id, b"", None)
            await store.registration_manager.register_bookie(BookieServiceInfo(bookie_id, ()), read_only=False)
        for _ in range(0, STORED, _TOGETHER):
            await store.ledger_manager.create_many([CreateRequest(None, _metadata(rng)) for _ in range(_TOGETHER)])
        indexed, listed = [], []
        for lost in BOOKIES[:PAIRS]:
            indexed.append(await _audit(uri, store, lost, by_index=True))
            listed.append(await _audit(uri, store, lost, by_index=False))
        return indexed, listed


def _read_rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="bookgate-bench-", dir=".") as directory:
        server = LocalZooKeeper(Path(directory))
        server.start()
        try:
            uri = server.metadata_uri(_ROOT)
            make_cluster(uri)
            indexed, listed = asyncio.run(_audits(uri))
        finally:
            server.stop()
    name, peer = f"audit of a bookie, {STORED:,} ledgers", "listing"
    for what, unit, ours, peers in (
        (
            "reads of the store",
            "a ledger of its own",
            [a.reads / a.own for a in indexed],
            [a.reads / a.own for a in listed],
        ),
        ("reads of other ledgers", "ledgers", [float(a.others) for a in indexed], [float(a.others) for a in listed]),
        ("from the loss to all marks", "s", [a.seconds for a in indexed], [a.seconds for a in listed]),
    ):
        yield figures(f"{name}: {what}", unit, ours, peers, peer, up=False)


# --- memory ---------------------------------------------------------------------------------------------------------


def _resident_mib() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


def _fill(ids: str) -> float:
    """MiB that an index takes; what it is filled from is gone by then."""
    rng, index = random.Random(1), BookieLedgerIndex()
    before = _resident_mib()
    for start in range(0, INDEXED, _TOGETHER):
        numbers = [rng.getrandbits(62) if ids == "random" else number for number in range(start, start + _TOGETHER)]
        index.put(numbers, [LedgerRecord(LedgerId.unscoped(number), _metadata(rng), 0) for number in numbers], {})
    assert len(index) == INDEXED
    return _resident_mib() - before


def _memory_rows() -> Iterator[Row]:
    for ids in ("one after the other", "random"):
        command = [sys.executable, "-m", "benchmarks.audit", ids]
        taken = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield figures(f"index of {INDEXED:,} ledgers, ids {ids}", "MiB", [taken], [float(AIM_MIB)], "aim", up=False)


def index_rows() -> Iterator[Row]:
    """Memory first, then reads."""
    yield from _memory_rows()
    yield from _read_rows()


if __name__ == "__main__":
    print(_fill(sys.argv[1]))
