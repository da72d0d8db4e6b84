"""The content of a file against plain bytes, and copies that share pages."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.disk_content import PAGE, Content

_OFFSETS = st.integers(0, 6 * PAGE)
_WRITE = st.tuples(_OFFSETS, st.binary(min_size=1, max_size=2 * PAGE))
_STEPS = st.lists(st.one_of(_WRITE, _OFFSETS, st.just("copy")), max_size=12)


@settings(deadline=None, max_examples=150)
@given(_STEPS, st.lists(st.tuples(_OFFSETS, _OFFSETS), min_size=1, max_size=8))
def test_it_reads_as_it_was_written_and_copies_stay_as_they_were(
    steps: list[tuple[int, bytes] | int | str], reads: list[tuple[int, int]]
) -> None:
    content, model = Content(), b""
    copies: list[tuple[Content, bytes]] = []
    for step in steps:
        if isinstance(step, tuple):
            offset, data = step
            content.write(data, offset)
            model = model[:offset].ljust(offset, b"\0") + data + model[offset + len(data) :]
        elif isinstance(step, int):
            content.truncate(step)
            model = model[:step].ljust(step, b"\0")
        else:
            copies.append((content.copy(), model))
            # The copy goes on, and what it was made from must not notice.
            content, copies[-1] = copies[-1][0], (content, model)
    for found, expected in [*copies, (content, model)]:
        assert found.size == len(expected)
        for size, offset in [*reads, (len(expected), 0)]:
            assert found.read(size, offset) == expected[offset : offset + size]
