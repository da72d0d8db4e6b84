"""Answers to adds that are read many at once say what they say one by one, whatever lies between them."""

from collections.abc import Sequence
from itertools import chain
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.wire.fast_responses import stored_add, stored_adds
from bookgate.ledger.wire.frames import FrameDecoder
from bookgate.ledger.wire.messages import AddResponse, ReadResponse, Response, Status
from bookgate.ledger.wire.v3 import encode_response
from bookgate.thinclient.bookies.connection import BookieConnection
from bookgate.thinclient.bookies.wire import Wire

ids = st.integers(0, 2**63 - 1) | st.integers(0, 40_000)
ledgers = st.integers(0, 300) | ids | st.integers(2**64, 2**128 - 1)


def _stored(ledger_id: int, entry_id: int, txn_id: int, count: int) -> list[AddResponse]:
    return [AddResponse(txn_id + i, Status.EOK, ledger_id, entry_id + i) for i in range(count)]


runs = st.builds(_stored, ledgers, st.integers(0, 40_000), st.integers(0, 40_000), st.integers(1, 40))
others = st.sampled_from(
    [
        AddResponse(3, Status.EFENCED, 1, 2),
        AddResponse(129, Status.EOK, 1, 2, 7),
        AddResponse(4, Status.EOK, 1, 2),
        ReadResponse(5, Status.EOK, 1, 2, b"body"),
    ]
)
mixtures = st.lists(runs | others.map(lambda other: [other]), max_size=6).map(lambda parts: list(chain(*parts)))


class _Heard:
    """A connection that notes what its wire passes to it."""

    def __init__(self) -> None:
        self.responses: list[object] = []

    def on_transport(self, wire: Wire, opened: bool) -> None: ...

    def on_stored(self, wire: Wire, txn_ids: Sequence[int], term: int | None = None) -> None:
        self.responses += [(txn_id, term) for txn_id in txn_ids]

    def on_response(self, wire: Wire, response: Response) -> None:
        self.responses.append(response)

    def loss(self, reason: str, error: Exception | None) -> str:
        return reason

    def on_lost(self, wire: Wire, error: object) -> None:
        self.responses.append(error)


class _OneByOne(Wire):
    reads_runs = False


def _heard(kind: type[Wire], data: bytes, pieces: list[int]) -> list[object]:
    heard = _Heard()
    wire = kind(cast(BookieConnection, heard), 4096, setting_up=False)
    for piece in pieces:
        while data and piece:
            buffer = wire.get_buffer(-1)
            count = min(len(buffer), piece, len(data))
            buffer[:count] = data[:count]
            data, piece = data[count:], piece - count
            wire.buffer_updated(count)
    return heard.responses


@given(mixtures, st.lists(st.integers(1, 700), max_size=5))
def test_a_wire_passes_on_the_same_however_it_reads(responses: list[Response], pieces: list[int]) -> None:
    data = b"".join(map(encode_response, responses))
    found = _heard(Wire, data, [*pieces, len(data)])
    assert found == _heard(_OneByOne, data, [*pieces, len(data)])
    assert len(found) == len(responses)


@given(runs, st.lists(st.tuples(st.integers(0, 800), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_answers_mean_the_same(responses: list[AddResponse], damage: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(map(encode_response, responses)))
    for at, instead in damage:
        data[at % len(data)] = instead
    assert _heard(Wire, bytes(data), [len(data)]) == _heard(_OneByOne, bytes(data), [len(data)])


@given(ledgers, ids, ids.filter(lambda value: value < 2**62), st.integers(1, 30))
def test_a_run_is_what_its_frames_are(ledger_id: int, entry_id: int, txn_id: int, count: int) -> None:
    frames = [
        encode_response(AddResponse(txn_id + i, Status.EOK, ledger_id, min(entry_id + i, 2**63 - 1)))
        for i in range(count)
    ]
    txn_ids, size = stored_adds(memoryview(b"".join(frames)))
    assert txn_ids == [txn_id + i for i in range(max(1, len(txn_ids)))]
    assert size == len(b"".join(frames[: len(txn_ids)]))
    assert len(txn_ids) == count or len(frames[len(txn_ids)]) != len(frames[0])


@given(st.binary(max_size=80))
def test_garbage_is_no_run(data: bytes) -> None:
    txn_ids, size = stored_adds(memoryview(data))
    packets = FrameDecoder().feed(data[:size])
    assert txn_ids == [(stored_add(packet) or (None,))[0] for packet in packets]
