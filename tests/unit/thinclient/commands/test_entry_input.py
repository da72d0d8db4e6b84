"""How the input of `ledger write` becomes entries."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.commands.entry_input import Delimited, Framing, LengthPrefixed, delimiter_of, entries_of


@pytest.mark.asyncio
async def test_what_a_slow_source_has_given_is_taken_before_it_gives_more() -> None:
    source, sink = os.pipe()
    os.write(sink, b"first\n\nthi")
    entries = entries_of(source, Delimited(1_000_000))
    assert [await anext(entries), await anext(entries)] == [b"first", b""]
    waiting = asyncio.ensure_future(anext(entries))
    # The loop goes on meanwhile, and an interrupted wait ends at once.
    await asyncio.sleep(0)
    os.write(sink, b"rd\nlast")
    assert await waiting == b"third"
    os.close(sink)
    assert [entry async for entry in entries] == [b"last"]
    os.close(source)


@pytest.mark.asyncio
@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\n\nb", b"x" * 600_000 + b"\n" + b"y" * 300_000 + b"\n"])
async def test_entries_are_lines(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(text)
    with (tmp_path / "lines").open("rb", buffering=0) as file:
        entries = [entry async for entry in entries_of(file.fileno(), Delimited(1_000_000))]
    expected = text.split(b"\n")
    assert entries == (expected[:-1] if not expected[-1] else expected)


def _fed(framing: Framing, text: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        yield from framing.feed(text[start:end])
    yield from framing.end()


@given(
    st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b"")), min_size=1),
    st.lists(st.integers(0, 1000), max_size=5),
)
def test_a_delimiter_of_several_bytes_is_found_wherever_the_input_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    text = b"\r\n".join(lines) + b"\r\n"
    assert list(_fed(Delimited(6, b"\r\n"), text, cuts)) == lines
    assert list(_fed(Delimited(6, chomp=True), text, cuts)) == lines


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 1000), max_size=5))
def test_entries_behind_their_lengths(entries: list[bytes], cuts: list[int]) -> None:
    text = b"".join(len(entry).to_bytes(4) + entry for entry in entries)
    assert list(_fed(LengthPrefixed(20), text, cuts)) == entries


def test_what_is_no_length_and_an_entry_is_refused_before_it_is_taken_in() -> None:
    with pytest.raises(
        IncorrectParameterException, match=r"entry 1 of the input would have 1,869,968,416 bytes.* 100 "
    ):
        list(_fed(LengthPrefixed(100), b"\0\0\0\1aout of form", []))
    with pytest.raises(IncorrectParameterException, match="ends in the middle of entry 1: 6 bytes"):
        list(_fed(LengthPrefixed(100), b"\0\0\0\1a\0\0\0\3bc", []))


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [(r"\n", b"\n"), (r"\r\n", b"\r\n"), (r"\0", b"\0"), (r"\x1e", b"\x1e"), ("ä;", "ä;".encode()), (r"\\n", b"\\n")],
)
def test_delimiters_are_written_as_in_c(text: str, delimiter: bytes) -> None:
    assert delimiter_of(text) == delimiter


@pytest.mark.parametrize("text", ["", r"\q", r"\x1", "a\\"])
def test_a_delimiter_that_can_not_be_is_named(text: str) -> None:
    with pytest.raises(IncorrectParameterException, match=r"^delimiter "):
        delimiter_of(text)


def test_input_without_a_delimiter_is_refused_before_it_fills_the_memory() -> None:
    framing = Delimited(100_000)
    assert list(framing.feed(b"first\n\n")) == [b"first", b""]
    for _ in range(3):
        assert list(framing.feed(b"x" * 30_000)) == []
    with pytest.raises(
        IncorrectParameterException, match=r"entry 2 .* 120,000 bytes without its delimiter.* 100,000 at most"
    ):
        list(framing.feed(b"x" * 30_000))


@given(st.integers(0, 12), st.lists(st.integers(0, 1000), max_size=5), st.booleans())
def test_an_entry_of_the_most_bytes_is_taken_wherever_the_input_is_cut(size: int, cuts: list[int], chomp: bool) -> None:
    entry = b"x" * size
    framing = Delimited(size, b"\n" if chomp else b"\r\n", chomp=chomp)
    assert list(_fed(framing, (entry + b"\r\n") * 3, cuts)) == [entry] * 3
