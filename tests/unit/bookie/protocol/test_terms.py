"""Requests of unbounded ledgers, from the message to the answer (U1, U6; P8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bookgate.bookie.protocol import admission
from bookgate.bookie.protocol.entry_access import action_of
from bookgate.bookie.storage.ledger_descriptor import LedgerDeletedException
from bookgate.bookie.storage.writer import EntryWriter
from bookgate.ledger.wire.fast_add import FastAdd, FastTermAdd, read_copy, read_v3
from bookgate.ledger.wire.fast_read import read_v3 as fast_read
from bookgate.ledger.wire.messages import (
    DEFERRED_SYNC,
    HIGH_PRIORITY,
    LAST_ENTRY,
    AddRequest,
    AddResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
)
from bookgate.ledger.wire.records import read_records
from bookgate.ledger.wire.v3 import encode_request
from bookgate.runtime.security.actions import Action
from tests.unit.bookie.index.test_index_list import index_path
from tests.unit.bookie.protocol.test_request_processor import LEDGER, Bench
from tests.unit.bookie.storage.storage_support import KEY, opened, packet


class Asking(Bench):
    """Asks one request after the other."""

    async def ask(self, request: Request) -> Response:
        """Processes a request, and what it waits for, until it is answered."""
        answers = len(self.client.responses)
        self.processor.process(self.client, request)
        while len(self.client.responses) == answers:
            await asyncio.sleep(0)
            completions, self.acks.completions = self.acks.completions, []
            self.processor.stored(completions)
            self.processor.reads.pump(self.client)
        assert len(self.client.responses) == answers + 1
        return self.client.responses[-1]

    async def add(self, entry_id: int, term: int | None, *, lac: int = -1, **more: object) -> int:  # type: ignore[override]
        return (await self.ask(add_of(entry_id, term, lac, **more))).status

    async def read(self, entry_id: int, known_lac: int | None = None) -> int:
        return (await self.ask(ReadRequest(1, LEDGER, entry_id, known_lac=known_lac))).status

    async def take_over(self, term: int, entry_id: int = LAST_ENTRY) -> tuple[int, int | None, int | None, int | None]:
        """Status, term, LAC and LAFR of a fencing read."""
        answer = await self.ask(ReadRequest(1, LEDGER, entry_id, entry_id == LAST_ENTRY, KEY, term=term))
        assert isinstance(answer, ReadResponse)
        return answer.status, answer.term, answer.max_lac, answer.lafr


def add_of(entry_id: int, term: int | None, lac: int = -1, **more: Any) -> AddRequest:
    request = AddRequest(1, LEDGER, entry_id, KEY, packet(LEDGER, entry_id, lac=lac), term=term)
    return request._replace(**more)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Asking]:
    with ThreadPoolExecutor(1) as reader, opened(tmp_path) as storage:
        yield Asking(storage, reader)


@pytest.mark.asyncio
async def test_an_answer_carries_the_term_and_an_old_one_stores_nothing(bench: Asking) -> None:
    assert await bench.ask(add_of(0, 3)) == AddResponse(1, Status.EOK, LEDGER, 0, 3)
    assert await bench.ask(add_of(1, 2, lac=0)) == AddResponse(1, Status.EINVALIDTERM, LEDGER, 1, 2)
    assert await bench.ask(add_of(1, 2, lac=0, recovery=True)) == AddResponse(1, Status.EINVALIDTERM, LEDGER, 1, 2)
    assert await bench.take_over(2) == (Status.EINVALIDTERM, 2, None, None)
    assert bench.statistics.old_terms == 3
    assert await bench.take_over(3, 1) == (Status.ENOENTRY, 3, -1, -1)


@pytest.mark.asyncio
async def test_an_answer_of_no_space_carries_the_term_too(bench: Asking) -> None:
    bench.processor.process(bench.client, add_of(0, 3))
    bench.processor.not_stored(bench.take_stored(1))
    assert bench.client.responses == [AddResponse(1, Status.EIO, LEDGER, 0, 3)]


@pytest.mark.asyncio
async def test_a_fencing_read_tells_lac_and_lafr_and_shuts_out_the_former_writer(bench: Asking) -> None:
    for entry_id in range(4):
        assert await bench.add(entry_id, 1, lac=min(entry_id - 1, 1), lafr=min(entry_id - 1, 0)) == Status.EOK
    assert await bench.take_over(2) == (Status.EOK, 2, 1, 0)
    assert await bench.take_over(2, 3) == (Status.EOK, 2, 1, 0)
    assert await bench.take_over(2, 4) == (Status.ENOENTRY, 2, 1, 0)
    assert await bench.add(4, 1) == Status.EINVALIDTERM
    assert await bench.add(4, 2, recovery=True, truncate=True) == Status.EOK
    assert bench.statistics.truncations == 1


@pytest.mark.asyncio
async def test_a_read_of_a_run_has_what_is_here_without_a_gap(bench: Asking) -> None:
    for entry_id in (0, 1, 2, 4):
        assert await bench.add(entry_id, 1) == Status.EOK

    async def run(entry_id: int, following: int, term: int | None = 2) -> tuple[int, list[bytes]]:
        request = ReadRequest(1, LEDGER, entry_id, master_key=KEY, term=term, following=following)
        response = await bench.ask(request)
        assert isinstance(response, ReadResponse)
        return response.status, [bytes(each) for each in read_records(response.following)]

    behind = [packet(LEDGER, entry_id, lac=-1) for entry_id in (1, 2)]
    assert await run(0, 9) == (Status.EOK, behind)
    assert await run(0, 1) == (Status.EOK, behind[:1])
    assert await run(2, 9) == (Status.EOK, [])
    assert await run(3, 9) == (Status.ENOENTRY, [])
    assert await run(LAST_ENTRY, 9) == (Status.EOK, [])
    assert await run(0, 9, 1) == (Status.EINVALIDTERM, [])


@pytest.mark.asyncio
async def test_the_recovery_of_an_ordinary_ledger_reads_runs_and_other_readers_do_not(bench: Asking) -> None:
    for entry_id in (0, 1, 2, 4):
        assert await bench.add(entry_id, None) == Status.EOK
    reading = ReadRequest(1, LEDGER, 0, following=9)
    fencing = reading._replace(fence=True, master_key=KEY)

    async def run(request: ReadRequest) -> list[bytes]:
        response = await bench.ask(request)
        assert isinstance(response, ReadResponse)
        assert response.status == Status.EOK
        return [bytes(each) for each in read_records(response.following)]

    behind = [packet(LEDGER, entry_id, lac=-1) for entry_id in (1, 2)]
    assert await run(reading) == []
    assert await run(fencing) == behind
    assert await run(fencing) == behind, "also when the fence is known to be durable"
    assert await run(fencing._replace(following=1)) == behind[:1]
    assert await run(fencing._replace(entry_id=LAST_ENTRY)) == []
    assert await bench.add(3, None) == Status.EFENCED


@pytest.mark.asyncio
async def test_a_recovery_without_a_term_is_shown_no_run_of_an_unbounded_ledger(bench: Asking) -> None:
    """Its entries may be dirty, all but the first, which the request names and the bookie judges."""
    for entry_id in range(3):
        assert await bench.add(entry_id, 1, lac=entry_id - 1) == Status.EOK
    response = await bench.ask(ReadRequest(1, LEDGER, 0, True, KEY, following=9))
    assert isinstance(response, ReadResponse)
    assert (response.status, response.following) == (Status.EOK, b"")


@pytest.mark.asyncio
async def test_a_run_ends_at_a_mebibyte(bench: Asking) -> None:
    size = 400_000
    for entry_id in range(4):
        assert await bench.add(entry_id, 1, body=packet(LEDGER, entry_id, size)) == Status.EOK
    response = await bench.ask(ReadRequest(1, LEDGER, 0, master_key=KEY, term=1, following=9))
    assert isinstance(response, ReadResponse)
    assert len(read_records(response.following)) == 1


@pytest.mark.asyncio
async def test_a_ledger_that_was_never_seen_takes_the_term_of_a_read(bench: Asking) -> None:
    """P8: what a read does not find, no older writer brings."""
    assert await bench.take_over(5, 0) == (Status.ENOENTRY, 5, -1, -1)
    assert await bench.add(0, 4) == Status.EINVALIDTERM
    assert await bench.take_over(6) == (Status.ENOENTRY, 6, -1, -1)
    assert await bench.add(0, 5) == Status.EINVALIDTERM


@pytest.mark.asyncio
async def test_a_read_at_a_term_answers_once_the_term_is_durable(bench: Asking) -> None:
    bench.processor.process(bench.client, ReadRequest(1, LEDGER, LAST_ENTRY, True, KEY, term=4))
    bench.processor.reads.pump(bench.client)
    assert not bench.client.responses
    assert not bench.client.reads
    ledger = bench.storage.ledgers.recent(LEDGER)
    assert ledger is not None
    assert (ledger.term, ledger.durable_term) == (4, None)
    bench.processor.stored(bench.take_stored(1))
    assert ledger.durable_term == 4
    # From then on reads of the same term wait for nothing.
    bench.processor.process(bench.client, ReadRequest(1, LEDGER, 0, term=4, master_key=KEY))
    assert len(bench.client.reads) + len(bench.client.responses) + bench.client.reading >= 1
    assert not bench.acks.completions


@pytest.mark.asyncio
async def test_a_read_at_a_term_needs_the_key(bench: Asking) -> None:
    assert await bench.add(0, 1) == Status.EOK
    for key, status in ((None, Status.EUA), (b"o" * 20, Status.EUA), (KEY, Status.EOK)):
        assert (await bench.ask(ReadRequest(1, LEDGER, 0, master_key=key, term=2))).status == status
    assert await bench.add(1, 1) == Status.EINVALIDTERM


@pytest.mark.asyncio
async def test_a_read_that_waited_while_another_took_over_finds_nothing_out(bench: Asking) -> None:
    assert await bench.add(0, 1) == Status.EOK
    bench.processor.process(bench.client, ReadRequest(1, LEDGER, 0, master_key=KEY, term=2))
    fenced = bench.take_stored(1)
    bench.processor.process(bench.client, ReadRequest(2, LEDGER, 0, master_key=KEY, term=3))
    fenced += bench.take_stored(1)
    bench.processor.stored(fenced)
    await bench.client.until_answered(3)
    answers = {answer.txn_id: answer for answer in bench.client.responses[1:]}
    assert answers[1].status == Status.EINVALIDTERM
    assert answers[2].status == Status.EOK


@pytest.mark.asyncio
async def test_readers_see_nothing_dirty_and_take_it_for_no_loss(bench: Asking) -> None:
    for entry_id in range(5):
        assert await bench.add(entry_id, 1, lac=min(entry_id - 1, 2)) == Status.EOK
    assert [await bench.read(entry_id) for entry_id in (2, 3, 9)] == [
        Status.EOK,
        Status.ENOTCONFIRMED,
        Status.ENOTCONFIRMED,
    ]
    assert [await bench.read(entry_id, 3) for entry_id in (3, 4)] == [Status.EOK, Status.ENOTCONFIRMED]
    assert await bench.read(9, 9) == Status.ENOENTRY
    last = await bench.ask(ReadRequest(1, LEDGER, LAST_ENTRY))
    assert last == ReadResponse(1, Status.EOK, LEDGER, LAST_ENTRY, packet(LEDGER, 2, lac=1), 2, term=1)
    shown = await bench.ask(ReadRequest(1, LEDGER, 0))
    assert isinstance(shown, ReadResponse)
    assert shown.term == 1, "readers go by it"
    lac = await bench.ask(ReadLacRequest(1, LEDGER))
    assert lac == ReadLacResponse(1, Status.EOK, LEDGER, None, packet(LEDGER, 2, lac=1))
    # The short way can't tell the term.
    fast = [fast_read(memoryview(encode_request(ReadRequest(1, LEDGER, entry_id)))[4:]) for entry_id in (2, 3)]
    assert [read is not None and bench.processor.reads.serve_now(bench.client, read) for read in fast] == [0, 0]


@pytest.mark.asyncio
async def test_a_batch_ends_with_what_is_confirmed(bench: Asking) -> None:
    for entry_id in range(5):
        assert await bench.add(entry_id, 1, lac=min(entry_id - 1, 2)) == Status.EOK
    for first, wanted, status, entries in ((0, 10, 0, 3), (0, 0, 0, 3), (1, 1, 0, 1), (3, 10, 601, 0), (9, 1, 601, 0)):
        answer = bench.processor.reads._look_up(BatchReadRequest(1, LEDGER, first, wanted, 1 << 20))
        assert answer.status == status
        assert getattr(answer, "entries", 0) == entries


@pytest.mark.asyncio
async def test_where_nothing_is_confirmed_the_last_entry_is_told_to_nobody(bench: Asking) -> None:
    assert await bench.add(0, 1) == Status.EOK
    assert await bench.read(LAST_ENTRY) == Status.ENOTCONFIRMED
    assert (await bench.ask(ReadLacRequest(1, LEDGER))).status == Status.ENOENTRY


@pytest.mark.asyncio
async def test_an_ordinary_writer_is_fenced_and_a_copy_is_taken(bench: Asking) -> None:
    assert await bench.add(0, 1) == Status.EOK
    assert await bench.add(1, None) == Status.EFENCED
    fast = read_v3(memoryview(encode_request(add_of(1, None)))[4:])
    assert isinstance(fast, FastAdd)
    assert not bench.processor.add(bench.client, fast)
    assert await bench.add(1, None, recovery=True) == Status.EOK
    assert (await bench.ask(ReadRequest(1, LEDGER, LAST_ENTRY, True, KEY))).status in (Status.EOK, Status.ENOTCONFIRMED)
    assert await bench.add(2, 1) == Status.EFENCED
    assert await bench.add(2, 2, recovery=True) == Status.EOK
    assert await bench.add(3, 2) == Status.EOK


@pytest.mark.asyncio
async def test_a_late_copy_of_a_truncation_deletes_nothing_of_the_next_writer(bench: Asking) -> None:
    for entry_id in range(3):
        assert await bench.add(entry_id, 1) == Status.EOK
    assert await bench.add(1, 2, recovery=True, truncate=True) == Status.EOK
    assert await bench.add(2, 2, lac=1) == Status.EOK
    assert await bench.add(1, 2, recovery=True, truncate=True) == Status.EBADREQ
    listed = await bench.ask(ListEntriesRequest(1, LEDGER))
    assert isinstance(listed, ListEntriesResponse)
    assert await bench.take_over(2, 2) == (Status.EOK, 2, 1, -1)


@pytest.mark.asyncio
async def test_a_force_after_a_truncation_is_answered(bench: Asking) -> None:
    assert await bench.add(1, 2, truncate=True) == Status.EOK
    assert (await bench.ask(ForceLedgerRequest(1, LEDGER))).status == Status.EOK


@pytest.mark.parametrize(
    "request_",
    [
        add_of(0, None, truncate=True),
        add_of(0, None, lafr=0),
        add_of(0, -1),
        add_of(0, 1, lafr=-2),
        add_of(0, 1, write_flags=DEFERRED_SYNC),
    ],
    ids=["truncate without term", "LAFR without term", "term below 0", "LAFR below -1", "deferred sync"],
)
def test_what_does_not_go_together_is_refused(request_: AddRequest) -> None:
    assert admission.check_add(request_) is Status.EBADREQ
    assert admission.check_add(add_of(0, 1, lafr=-1, truncate=True)) is Status.EOK


def test_a_read_with_a_term_is_checked_as_a_fence() -> None:
    assert admission.check_read(ReadRequest(1, LEDGER, 0, master_key=KEY, term=-1)) is Status.EBADREQ
    assert admission.check_read(ReadRequest(1, LEDGER, 0, term=1)) is Status.EUA
    assert action_of(ReadRequest(1, LEDGER, 0, term=1)) is Action.ENTRY_FENCE
    assert action_of(ReadRequest(1, LEDGER, 0, known_lac=1)) is Action.ENTRY_READ
    assert action_of(add_of(0, 1)) is Action.ENTRY_ADD
    assert action_of(add_of(0, 1, recovery=True)) is Action.LEDGER_RECOVER


def fast_of(request: AddRequest) -> FastTermAdd:
    found = read_v3(memoryview(encode_request(request))[4:])
    assert isinstance(found, FastTermAdd)
    return found


@pytest.mark.asyncio
async def test_the_short_way_takes_adds_at_the_term_that_the_ledger_has_and_no_others(bench: Asking) -> None:
    def takes(entry_id: int, term: int, *, lac: int = -1, lafr: int = -1, key: bytes = KEY) -> bool:
        add = add_of(entry_id, term, lac)._replace(lafr=lafr, master_key=key)
        return bench.processor.add(bench.client, fast_of(add))

    assert not takes(1, 0), "the ledger is not there"
    assert await bench.add(0, 1) == Status.EOK
    assert not takes(1, 0), "an old term"
    assert not takes(1, 2), "a new one"
    assert not takes(1, 1, key=b"o" * 20)
    assert takes(1, 1, lac=0, lafr=0)
    bench.processor.stored(bench.take_stored(1))
    assert bench.client.responses[-1] == AddResponse(1, Status.EOK, LEDGER, 1, 1)
    assert await bench.read(0) == Status.EOK, "its LAC counts"
    assert await bench.take_over(1, 1) == (Status.EOK, 1, 0, 0), "and its LAFR"
    assert await bench.take_over(2) == (Status.EOK, 2, 0, 0)
    assert not takes(2, 1), "somebody has taken over"
    assert takes(2, 2)
    bench.processor.stored(bench.take_stored(1))
    assert (await bench.ask(ReadRequest(1, LEDGER, LAST_ENTRY, True, KEY))).status in (Status.EOK, Status.ENOENTRY)
    assert not takes(3, 2), "fenced"


@pytest.mark.asyncio
async def test_a_ledger_in_limbo_takes_no_add_of_whoever_takes_it_over(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as reader:
        with opened(tmp_path) as storage:
            bench = Asking(storage, reader)
            assert [await bench.add(entry_id, 3) for entry_id in (0, 1)] == [Status.EOK, Status.EOK]
            storage.storage.checkpoint()
            older = index_path(tmp_path, LEDGER).read_bytes()
            assert (await bench.take_over(7))[0] == Status.EOK
            assert await bench.add(2, 7) == Status.EOK
        index_path(tmp_path, LEDGER).write_bytes(older)
        with opened(tmp_path) as storage:
            bench = Asking(storage, reader)
            assert (await bench.take_over(5))[0] == Status.EUNKNOWNLEDGERSTATE, "term 7 is lost"
            add = add_of(2, 5, lafr=-1)
            copy = read_copy(memoryview(encode_request(add._replace(recovery=True, priority=HIGH_PRIORITY)))[4:])
            assert isinstance(copy, FastTermAdd)
            assert not bench.processor.add(bench.client, fast_of(add))
            assert not bench.processor.add_copy(bench.client, copy)
            assert (await bench.ask(add)).status == Status.EUNKNOWNLEDGERSTATE
            assert (await bench.ask(add._replace(recovery=True))).status == Status.EUNKNOWNLEDGERSTATE


@pytest.mark.asyncio
async def test_a_short_add_for_which_there_is_no_space_is_answered_at_its_term(bench: Asking) -> None:
    assert await bench.add(0, 1) == Status.EOK
    assert bench.processor.add(bench.client, fast_of(add_of(1, 1)._replace(lafr=0)))
    bench.processor.not_stored(bench.take_stored(1))
    assert bench.client.responses[-1] == AddResponse(1, Status.EIO, LEDGER, 1, 1)


@pytest.mark.asyncio
async def test_a_ledger_that_was_deleted_meanwhile_is_left_to_the_long_way(
    bench: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await bench.add(0, 1) == Status.EOK

    def deleted(*_arguments: object) -> bool:
        raise LedgerDeletedException(LEDGER)

    monkeypatch.setattr(EntryWriter, "add_at_known_term", deleted)
    assert not bench.processor.add(bench.client, fast_of(add_of(1, 1)._replace(lafr=0)))
