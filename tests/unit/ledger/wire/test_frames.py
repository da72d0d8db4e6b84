from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.wire.frames import DEFAULT_MAX_FRAME_SIZE, SMALLEST_BUFFER, FrameDecoder, FrameError


def framed(packet: bytes) -> bytes:
    return struct.pack(">I", len(packet)) + packet


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=30), st.data())
def test_packets_come_out_as_they_went_in_however_the_stream_is_cut(packets: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, packets))
    decoder, received = FrameDecoder(), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        received += [bytes(packet) for packet in decoder.feed(stream[:count])]
        stream = stream[count:]
    assert received == packets


def test_packets_larger_than_the_buffer_are_read_in_place() -> None:
    large = [bytes([i]) * (1_000_000 * i + 5) for i in range(1, 5)]
    stream = b"".join(framed(packet) + framed(b"small") for packet in large)
    decoder, received = FrameDecoder(), []
    position = 0
    while position < len(stream):
        buffer = decoder.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position += count
        received += [bytes(packet) for packet in decoder.buffer_updated(count)]
    assert received == [packet for one in large for packet in (one, b"small")]


def test_a_frame_of_exactly_the_limit_is_read() -> None:
    packet = b"x" * (DEFAULT_MAX_FRAME_SIZE - 4)
    assert [len(packet) for packet in FrameDecoder().feed(framed(packet))] == [DEFAULT_MAX_FRAME_SIZE - 4]


def test_a_frame_one_byte_over_the_limit_is_refused_before_it_has_come() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        FrameDecoder().feed(struct.pack(">I", DEFAULT_MAX_FRAME_SIZE - 3))


@pytest.mark.parametrize("length", [0, -1, -(2**31)])
def test_a_length_of_zero_or_below_is_refused(length: int) -> None:
    with pytest.raises(FrameError, match="length"):
        FrameDecoder().feed(struct.pack(">i", length))


def receive(decoder: FrameDecoder, stream: bytes) -> list[bytes]:
    """What a transport does that reads as much as there is room for."""
    packets: list[bytes] = []
    while stream:
        buffer = decoder.get_buffer()
        count = min(len(buffer), len(stream))
        buffer[:count] = stream[:count]
        packets += map(bytes, decoder.buffer_updated(count))
        stream = stream[count:]
    return packets


def test_a_view_stays_whole_until_the_next_buffer_is_asked_for() -> None:
    decoder = FrameDecoder()
    receive(decoder, framed(b"x" * 1_000_000))
    stream = framed(b"a" * 200_000) + framed(b"b" * 100)[:50]
    buffer = decoder.get_buffer()
    buffer[: len(stream)] = stream
    [packet] = decoder.buffer_updated(len(stream))
    assert bytes(packet) == b"a" * 200_000


def test_an_announced_length_costs_nothing() -> None:
    decoder = FrameDecoder()
    receive(decoder, struct.pack(">I", DEFAULT_MAX_FRAME_SIZE - 4) + b"\x0a")
    assert len(decoder.get_buffer()) < decoder.size == SMALLEST_BUFFER


@given(
    st.lists(st.sampled_from([1, 100, 3000, 70_000, 400_000]), max_size=5),
    st.lists(st.sampled_from([1, 50, 4000, 30_000, 300_000]), min_size=1, max_size=5),
)
def test_the_buffer_is_no_longer_than_four_times_what_came(sizes: list[int], reads: list[int]) -> None:
    """Whatever the frames' lengths, and however they come."""
    stream = b"".join(framed(bytes(size)) for size in sizes)
    resizes: list[None] = []
    decoder = FrameDecoder(on_resized=lambda: resizes.append(None))
    received, size, packets = 0, SMALLEST_BUFFER, 0
    # Byte by byte would take too long for what it shows.
    for count in itertools.chain(reads, itertools.repeat(max(*reads, 20_000))):
        if received >= len(stream):
            break
        packets += len(receive(decoder, stream[received : received + count]))
        received += count
        decoder.get_buffer()
        assert decoder.size <= max(SMALLEST_BUFFER, 4 * received)
        assert decoder.size == size or resizes
        size = decoder.size
    assert packets == len(sizes)


def test_a_buffer_that_nothing_needs_is_given_back() -> None:
    decoder = FrameDecoder()
    receive(decoder, framed(b"x" * 1_000_000))
    large = decoder.size
    decoder.trim()
    assert decoder.size == large > 1_000_000
    half = framed(b"y" * 1000)
    assert receive(decoder, half[:500]) == []
    decoder.trim()
    assert decoder.size == large, "a frame has begun"
    assert receive(decoder, half[500:]) == [b"y" * 1000]
    decoder.trim()
    decoder.trim()
    assert decoder.size == SMALLEST_BUFFER


def test_the_limit_may_change() -> None:
    decoder = FrameDecoder(1024)
    decoder.max_frame_size = 2048
    assert receive(decoder, framed(b"x" * 2000)) == [b"x" * 2000]


def test_a_buffer_is_released_unless_a_frame_is_incomplete() -> None:
    sizes: list[int] = []
    decoder = FrameDecoder(1 << 22, lambda: sizes.append(decoder.size))
    frame = struct.pack(">I", 1 << 20) + bytes(1 << 20)
    fed = 0
    while fed < len(frame):
        view = decoder.get_buffer()
        part = frame[fed : fed + len(view)]
        view[: len(part)] = part
        decoder.buffer_updated(len(part))
        fed += len(part)
        if fed < len(frame):
            before = decoder.size
            decoder.release()
            assert decoder.size == before
    decoder.release()
    assert decoder.size == sizes[-1] == SMALLEST_BUFFER
