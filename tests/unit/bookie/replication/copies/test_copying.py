"""Copies in groups: what is sent at once, and how the answers of a group become one outcome."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

import pytest
from pyroaring import BitMap64

from bookgate.bookie.replication.copies import copying as module
from bookgate.bookie.replication.copies.bookies import Bookies, TargetRefusesException
from bookgate.bookie.replication.copies.budget import CopyLimits, WorkerBudget
from bookgate.bookie.replication.copies.copying import Copied, Copier, entries_a_piece, groups_of
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, TimeoutException, TooManyRequestsException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire.messages import AddRequest, AddResponse, Status
from bookgate.ledger.wire.v3 import decode_request
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.handles.read_handle import ReadHandle
from tests.unit.bookie.replication.copies.test_fragments import ledger

KIB = 1024
ENTRIES = 256
SECRETS = LedgerSecrets(b"k" * 20, digest_for(DigestType.CRC32C, b""))


def entries(*sizes: int) -> list[Entry]:
    return [Entry(7, number, number - 1, 100, b"x" * size) for number, size in enumerate(sizes)]


class Target:
    """In place of the pool and its connection: answers come when the test says so."""

    def __init__(self) -> None:
        self.next_txn_id = count(1).__next__
        self.sent: list[tuple[AddRequest, Callable[[Any, Any, Any], None], Any]] = []

    def connection(self, _bookie_id: str, _ledger_id: int) -> Target:
        return self

    def send(self, _operation: int, _txn_id: int, frame: bytes, _deadline: float, sink: Any, token: Any) -> None:
        self.sent.append((cast("AddRequest", decode_request(memoryview(frame)[4:])), sink, token))

    def answer(self, position: int, status: Status = Status.EOK) -> None:
        request, sink, token = self.sent[position]
        sink(token, AddResponse(request.txn_id, status, 7, request.entry_id), None)

    def fail(self, position: int, error: BKException) -> None:
        _, sink, token = self.sent[position]
        sink(token, None, error)


async def copying(target: Target, *sizes: int) -> asyncio.Future[int]:
    bookies = Bookies(cast("BookiePool", target), ClientConfig())
    task = asyncio.ensure_future(bookies.add_copies("b1", 7, entries(*sizes), SECRETS))
    await asyncio.sleep(0)  # it sends in its first turn
    return task


def test_a_group_has_few_bytes_or_one_entry() -> None:
    sizes = (100 * KIB, 28 * KIB, 5 * KIB, 300 * KIB, 10, 20)
    assert [[len(entry.payload) for entry in group] for group in groups_of(entries(*sizes))] == [
        [100 * KIB, 28 * KIB],
        [5 * KIB],
        [300 * KIB],
        [10, 20],
    ]
    assert list(groups_of([])) == []


def test_a_group_of_small_entries_is_as_short_as_its_cost() -> None:
    assert [len(group) for group in groups_of(entries(*[100] * 70))] == [32, 32, 6]


class Source:
    """In place of the client: a ledger whose entries are all of one size."""

    metadata = ledger((0,), ENTRIES - 1)
    ledger_id = LedgerId.unscoped(7)

    def __init__(self, size: int) -> None:
        self._size = size

    async def read_batches(self, first: int, last: int) -> AsyncGenerator[list[Entry], None]:
        yield [Entry(7, number, number - 1, 100, b"x" * self._size) for number in range(first, last + 1)]


@pytest.mark.asyncio
async def test_a_few_pieces_are_under_way_at_once_however_many_there_are() -> None:
    """AR23: what is read and not stored yet is held in memory."""
    begun, going_on = asyncio.Semaphore(0), asyncio.Event()
    under_way: list[int] = []

    class Held(Source):
        async def read_batches(self, first: int, last: int) -> AsyncGenerator[list[Entry], None]:
            under_way.append(first)
            begun.release()
            await going_on.wait()
            async for batch in super().read_batches(first, last):
                assert sum(len(entry.payload) for entry in batch) <= 256 * KIB
                yield batch
            under_way.remove(first)

    class Storing:
        async def add_copies(self, *_arguments: object) -> int:
            return 0

    async def proceed() -> None:
        return

    Held.metadata = replace(Source.metadata, length=ENTRIES * 16 * KIB)
    copied = Copied()
    copier = Copier(cast("Bookies", Storing()), WorkerBudget(CopyLimits(), 0.0), copied)
    copying_all = asyncio.ensure_future(
        copier.copy(Held(16 * KIB), SECRETS, BitMap64(range(ENTRIES)), ["b1"], "b2", proceed)
    )
    for _ in range(8):
        await begun.acquire()
    for _ in range(100):
        await asyncio.sleep(0)  # turns in which another one could begin
    assert len(under_way) == 8
    going_on.set()
    await copying_all
    assert copied.entries == ENTRIES


class Charged(WorkerBudget):
    """Without a bound; tells what was taken from it."""

    def __init__(self) -> None:
        super().__init__(CopyLimits(), 0.0)
        self.taken = defaultdict[str, float](float)

    def take(self, sizes: Mapping[str, float], now: float, *, last_copies: bool = False) -> float:
        for bookie_id, size in sizes.items():
            self.taken[bookie_id] += size
        return super().take(sizes, now, last_copies=last_copies)


@pytest.mark.parametrize(("size", "cost"), [(10, 4 * KIB), (4 * KIB, 4 * KIB), (9 * KIB, 9 * KIB)])
@pytest.mark.parametrize("sources", [["b1", "b2"], ["b1", "b2", "b3"]], ids=["another", "in place"])
@pytest.mark.asyncio
async def test_a_small_entry_costs_source_and_target_as_much_as_one_of_4_kib(
    size: int, cost: int, sources: list[str]
) -> None:
    """A target that is refilled in place is not read from."""

    class Storing:
        async def add_copies(
            self, _target: str, ledger_id: int, group: Sequence[Entry], _secrets: LedgerSecrets
        ) -> int:
            assert ledger_id == Source.ledger_id.number
            return sum(len(entry.payload) for entry in group)

    async def proceed() -> None:
        return

    budget, copied = Charged(), Copied()
    copier = Copier(cast("Bookies", Storing()), budget, copied)
    ids = BitMap64(range(ENTRIES))
    await copier.copy(cast("ReadHandle", Source(size)), SECRETS, ids, sources, "b3", proceed)
    total = ENTRIES * cost
    assert budget.taken == {"b1": total / 2, "b2": total / 2, "b3": total}
    assert copied == Copied(ENTRIES, ENTRIES * size)


@pytest.mark.asyncio
async def test_all_adds_are_recovery_adds_of_high_priority_sent_at_once() -> None:
    target = Target()
    task = await copying(target, 5, 6, 7)
    requests = [request for request, _, _ in target.sent]
    assert [request.entry_id for request in requests] == [0, 1, 2]
    assert all(request.recovery and request.priority == 100 for request in requests)
    assert {request.master_key for request in requests} == {SECRETS.master_key}
    for position in (2, 0):
        target.answer(position)
    await asyncio.sleep(0)
    assert not task.done()
    target.answer(1)
    assert await task == sum(len(request.body) for request in requests)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.EFENCED, TargetRefusesException),
        (Status.EREADONLY, TargetRefusesException),
        (Status.ETOOMANYREQUESTS, TooManyRequestsException),
        (Status.EIO, BKException),
    ],
)
@pytest.mark.asyncio
async def test_one_refused_copy_fails_the_group(status: Status, error: type[BKException]) -> None:
    target = Target()
    task = await copying(target, 5, 6, 7)
    target.answer(0)
    target.answer(1, status)
    with pytest.raises(error):
        await task
    target.answer(2)  # too late to matter


@pytest.mark.asyncio
async def test_a_copy_without_an_answer_fails_the_group() -> None:
    target = Target()
    task = await copying(target, 5, 6)
    target.answer(0)
    target.fail(1, TimeoutException("late"))
    with pytest.raises(TimeoutException, match="late"):
        await task


def test_a_piece_of_a_ledger_without_entries_has_a_size_too() -> None:
    """Metadata of such a ledger may tell a length nevertheless."""
    assert entries_a_piece(replace(ledger((0,), -1), length=50)) == entries_a_piece(ledger((0,), None))


@pytest.mark.asyncio
async def test_a_group_that_waits_goes_on_when_the_rate_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group alone would take minutes at the rate of the beginning."""
    monkeypatch.setattr(module, "_WAITING_STEP_SECONDS", 0.01)
    clock = asyncio.get_running_loop().time
    budget, asked, copied = WorkerBudget(CopyLimits(), 0.0), list[float](), Copied()
    budget.share(1.0, 1000.0, clock())

    class Storing:
        async def add_copies(self, *_arguments: object) -> int:
            return 0

    async def proceed() -> None:
        asked.append(clock())
        if len(asked) == 40:
            budget.share(1.0, 0.0, clock())

    copier = Copier(cast("Bookies", Storing()), budget, copied)
    async with asyncio.timeout(30):
        await copier.copy(Source(KIB), SECRETS, BitMap64(range(ENTRIES)), ["b1"], "b2", proceed)
    assert copied.entries == ENTRIES


@pytest.mark.asyncio
async def test_a_group_that_waits_is_not_sent_once_the_repair_must_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING_STEP_SECONDS", 0.01)
    budget, asked, copied = WorkerBudget(CopyLimits(), 0.0), list[int](), Copied()
    budget.share(1.0, 1000.0, asyncio.get_running_loop().time())

    async def proceed() -> None:
        asked.append(1)
        if len(asked) > 40:
            raise BKException("it must end")

    copier = Copier(cast("Bookies", None), budget, copied)
    async with asyncio.timeout(30):
        with pytest.raises(BKException, match="it must end"):
            await copier.copy(Source(KIB), SECRETS, BitMap64(range(ENTRIES)), ["b1"], "b2", proceed)
    assert copied.entries == 0
