"""The binary protocol on the client's side: what belongs to which request, and what ends with an error."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.errors import BKException, BookieHandleNotAvailableException, IllegalOpException
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import v2
from bookgate.ledger.wire import v3 as protocol_v3
from bookgate.ledger.wire.messages import (
    DEFERRED_SYNC,
    AddRequest,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
)
from bookgate.thinclient.bookies.connection import BookieConnection, ConnectionSettings
from bookgate.thinclient.bookies.connection_v2 import AnswerMatcher, V2AddRequestEncoder, key_of
from bookgate.thinclient.bookies.pool import V2, V3, BookiePool
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster

KEY = ledger_master_key(b"")
DIGEST = digest_for(DigestType.CRC32C, b"")
SETTINGS = ConnectionSettings(5, 1 << 20, 1 << 16)


def add(txn_id: int, entry_id: int, recovery: bool = False, flags: int = 0) -> AddRequest:
    body = encode_entry(DIGEST, 7, entry_id, entry_id - 1, 4, b"body")
    return AddRequest(txn_id, 7, entry_id, KEY, body, recovery, flags)


class Client:
    """A pool, and the answers that came."""

    def __init__(self, cluster: FakeCluster, protocol: str = V2) -> None:
        self.pool = BookiePool(cluster.discovery, SETTINGS, wire_protocol=protocol)
        self.bookie_id = cluster.bookies[0].bookie_id
        self.answers: dict[int, Response | BKException | None] = {}
        self._came = asyncio.Event()

    def send(self, operation: Operation, request: Request, v3: bool = True, timeout: float = 5) -> None:
        frame = protocol_v3.encode_request(request) if v3 else v2.encode_request(request)
        connection = self.pool.connection(self.bookie_id)
        self.send_on(connection, operation, request, frame, timeout)

    def send_on(
        self, connection: BookieConnection, operation: int, request: Request, frame: bytes, timeout: float = 5
    ) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        connection.send(operation, request.txn_id, frame, deadline, self._sink, request.txn_id)

    async def answer(self, txn_id: int) -> Response | BKException | None:
        async with asyncio.timeout(10):
            while txn_id not in self.answers:
                self._came.clear()
                await self._came.wait()
        return self.answers.pop(txn_id)

    def _sink(self, token: int, response: Response | None, error: BKException | None) -> None:
        assert token not in self.answers
        if isinstance(response, BatchReadResponse):
            response = response._replace(bodies=tuple(map(bytes, response.bodies)))
        self.answers[token] = response or error
        self._came.set()


@pytest.mark.asyncio
@pytest.mark.parametrize("v3_frames", [True, False])
async def test_adds_and_reads_in_v2_from_frames_of_either_protocol(v3_frames: bool) -> None:
    async with fake_cluster(1) as cluster:
        client = Client(cluster)
        for entry in range(3):
            client.send(Operation.ADD_ENTRY, add(entry, entry), v3_frames)
        for entry in range(3):
            response = await client.answer(entry)
            assert isinstance(response, tuple)
            assert response.status == Status.EOK
        client.send(Operation.READ_ENTRY, ReadRequest(10, 7, 1), v3_frames)
        client.send(Operation.READ_ENTRY, ReadRequest(11, 7, 5), v3_frames)
        read, missing = await client.answer(10), await client.answer(11)
        assert isinstance(read, ReadResponse)
        assert read.body == add(0, 1).body
        assert isinstance(missing, ReadResponse)
        assert missing.status == Status.ENOENTRY
        assert client.pool.connection(client.bookie_id).outstanding_count == 0
        client.pool.close()


@pytest.mark.asyncio
async def test_what_v2_has_no_words_for_is_said_otherwise_or_refused_but_never_hangs() -> None:
    async with fake_cluster(1) as cluster:
        client = Client(cluster)
        client.send(Operation.ADD_ENTRY, add(1, 0))
        await client.answer(1)
        client.send(Operation.READ_LAC, ReadLacRequest(2, 7))
        client.send(Operation.FORCE_LEDGER, ForceLedgerRequest(3, 7))
        client.send(Operation.READ_ENTRY, ReadRequest(4, 7, -1, previous_lac=0, timeout_ms=9, piggyback=True))
        client.send(Operation.ADD_ENTRY, add(5, 1, flags=DEFERRED_SYNC))
        lac = await client.answer(2)
        assert isinstance(lac, ReadLacResponse)
        assert (lac.status, lac.lac_body, lac.last_entry_body) == (Status.EOK, None, add(0, 0).body)
        for txn_id in (3, 4, 5):
            refused = await client.answer(txn_id)
            assert isinstance(refused, IllegalOpException)
            assert "wire_protocol" in str(refused)
        client.send(Operation.ADD_ENTRY, add(6, 1)._replace(master_key=b"short"))
        assert isinstance(await client.answer(6), IllegalOpException)
        client.send(Operation.ADD_ENTRY, add(7, 1)._replace(term=2))
        client.send(Operation.READ_ENTRY, ReadRequest(8, 7, 0, term=2))
        for txn_id in (7, 8):
            refused = await client.answer(txn_id)
            assert isinstance(refused, IllegalOpException)
            assert "term 2 of ledger 7" in str(refused)
        client.pool.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", [V2, V3])
async def test_batch_reads_of_a_client_of_either_protocol(protocol: str) -> None:
    async with fake_cluster(1) as cluster:
        client = Client(cluster, protocol)
        for entry in range(5):
            client.send(Operation.ADD_ENTRY, add(entry, entry))
            await client.answer(entry)
        connection = client.pool.batch_connection(client.bookie_id)
        assert (connection is client.pool.connection(client.bookie_id)) == (protocol == V2)
        for txn_id, first, count in ((20, 0, 3), (21, 0, 3), (22, 3, 0), (23, 9, 0)):
            request = BatchReadRequest(txn_id, 7, first, count, 1 << 20)
            client.send_on(connection, Operation.BATCH_READ_ENTRY, request, v2.encode_request(request))
        expected = {20: (0, [0, 1, 2]), 21: (0, [0, 1, 2]), 22: (0, [3, 4]), 23: (Status.ENOENTRY, [])}
        for txn_id, (status, entries) in expected.items():
            response = await client.answer(txn_id)
            assert isinstance(response, BatchReadResponse)
            assert (response.status, list(response.bodies)) == (status, [add(0, entry).body for entry in entries])
        client.pool.close()


@pytest.mark.asyncio
async def test_a_bookie_without_batch_reads_drops_their_connection_only() -> None:
    async with fake_cluster(1) as cluster:
        client = Client(cluster, V3)
        cluster.bookies[0].batches = False
        client.send(Operation.ADD_ENTRY, add(1, 0))
        await client.answer(1)
        request = BatchReadRequest(2, 7, 0, 1, 100)
        connection = client.pool.batch_connection(client.bookie_id)
        client.send_on(connection, Operation.BATCH_READ_ENTRY, request, v2.encode_request(request))
        assert isinstance(await client.answer(2), BookieHandleNotAvailableException)
        assert client.pool.connection(client.bookie_id).connected
        client.pool.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("batches", [True, False])
async def test_a_batch_read_asked_of_the_pool_ends_with_an_answer_or_an_error(batches: bool) -> None:
    """F12: over v3 it threw inside, and its caller waited for ever."""
    async with fake_cluster(1) as cluster:
        client = Client(cluster, V3)
        cluster.bookies[0].batches = batches
        client.send(Operation.ADD_ENTRY, add(1, 0))
        await client.answer(1)
        request = BatchReadRequest(client.pool.next_txn_id(), 7, 0, 0, 1 << 20)
        asked = client.pool.request(client.bookie_id, Operation.BATCH_READ_ENTRY, request, timeout=10)
        if batches:
            response = await asked
            assert isinstance(response, BatchReadResponse)
            assert response.bodies == (add(1, 0).body,)
        else:
            with pytest.raises(BookieHandleNotAvailableException):
                await asked
        client.pool.close()


@pytest.mark.asyncio
async def test_several_requests_with_the_same_ids_each_get_an_answer() -> None:
    async with fake_cluster(1) as cluster:
        client, bookie = Client(cluster), cluster.bookies[0]
        client.send(Operation.ADD_ENTRY, add(0, 0))
        await client.answer(0)
        bookie.holding = True
        for txn_id in range(1, 6):
            client.send(Operation.READ_ENTRY, ReadRequest(txn_id, 7, 0))
        await bookie.until_requested(5, ReadRequest)
        bookie.let_go()
        for txn_id in range(1, 6):
            assert isinstance(await client.answer(txn_id), ReadResponse)
        client.pool.close()


@pytest.mark.asyncio
async def test_the_answer_to_a_plain_read_is_never_taken_for_a_fence() -> None:
    async with fake_cluster(1) as cluster:
        client, bookie = Client(cluster), cluster.bookies[0]
        client.send(Operation.ADD_ENTRY, add(0, 0))
        await client.answer(0)
        bookie.holding = True
        client.send(Operation.READ_ENTRY, ReadRequest(1, 7, -1, True, KEY))
        client.send(Operation.READ_ENTRY, ReadRequest(2, 7, -1))
        await bookie.until_requested(2, ReadRequest)
        bookie.held.reverse()
        (writer, frame), *bookie.held = bookie.held
        writer.write(frame)
        assert isinstance(await client.answer(2), ReadResponse)
        assert 1 not in client.answers
        bookie.let_go()
        assert isinstance(await client.answer(1), ReadResponse)
        client.pool.close()


@pytest.mark.asyncio
async def test_a_fencing_read_that_passed_its_deadline_takes_the_connection_with_it() -> None:
    async with fake_cluster(1) as cluster:
        client, bookie = Client(cluster), cluster.bookies[0]
        bookie.silent = True
        client.send(Operation.READ_ENTRY, ReadRequest(1, 7, -1, True, KEY), timeout=0)
        client.send(Operation.READ_ENTRY, ReadRequest(2, 7, -1, True, KEY))
        await bookie.until_requested(2, ReadRequest)
        connection = client.pool.connection(client.bookie_id)
        connection.expire(asyncio.get_running_loop().time())
        assert isinstance(await client.answer(2), BookieHandleNotAvailableException)
        assert not connection.connected
        client.pool.close()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_matcher_in_any_order(sent: Sequence[tuple[bool, bool]]) -> None:
    """Each request ends once; a strict one only after as many answers as there were requests."""
    matcher, key = AnswerMatcher(), (1, 7, -1)
    for txn_id, (strict, late) in enumerate(sent):
        matcher.sent(txn_id, key, strict)
        if late and not strict:
            assert matcher.expired(txn_id)
    ended = [matcher.answered(key) for _ in sent]
    alive = {txn_id for txn_id, (strict, late) in enumerate(sent) if strict or not late}
    assert [txn_id for txn_id in ended if txn_id is not None] == sorted(
        alive, key=lambda txn_id: (sent[txn_id][0], txn_id)
    )
    plain = sum(not strict for strict, _ in sent)
    assert all(txn_id is None or not sent[txn_id][0] for txn_id in ended[:plain])
    assert matcher.answered(key) is None
    assert matcher.unanswered == 0


@given(st.binary(max_size=40))
def test_the_encoder_of_a_ledger_writes_the_bytes_of_the_codec(payload: bytes) -> None:
    body = encode_entry(DIGEST, 7, 3, 2, 40, payload)
    expected = v2.encode_request(AddRequest(1, 7, 3, KEY, body))
    assert V2AddRequestEncoder(7, KEY).encode(1, 3, body) == expected


def test_keys_are_read_from_frames() -> None:
    assert key_of(v2.encode_request(add(1, 3))) == ((Operation.ADD_ENTRY, 7, 3), False)
    assert key_of(v2.encode_request(add(1, 3, recovery=True))) == ((Operation.ADD_ENTRY, 7, 3), True)
    assert key_of(v2.encode_request(ReadRequest(1, 7, -1))) == ((Operation.READ_ENTRY, 7, -1), False)
    fencing = v2.encode_request(ReadRequest(1, 7, -1, True, KEY, priority=100))
    assert key_of(fencing) == ((Operation.READ_ENTRY, 7, -1), True)
    assert key_of(v2.encode_request(BatchReadRequest(1, 7, 0, 1, 1))) is None


def test_a_request_that_was_never_sent_takes_no_answer() -> None:
    matcher, key = AnswerMatcher(), (1, 7, 0)
    matcher.sent(1, key, False)
    matcher.sent(2, key, True)
    matcher.withdrawn(1)
    assert matcher.answered(key) == 2
    assert matcher.expired(2)
