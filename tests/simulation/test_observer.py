"""What an observer reads along is what was sent, however it is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.observer import Frames


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=10))
def test_frames_come_out_whole_wherever_they_are_cut(packets: list[bytes], cuts: list[int]) -> None:
    data = b"".join(len(packet).to_bytes(4, "big") + packet for packet in packets)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    frames = Frames()
    found = [bytes(packet) for start, stop in pairwise(places) for packet in frames.take(data[start:stop])]
    assert found == packets
    assert not frames.pending
