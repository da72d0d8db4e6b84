"""Truncate entries are passed over, in lists and in columns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.thinclient.handles.truncate_entries import written_batches, written_columns

T = TypeVar("T")

RUNS = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=5)
"""Of each entry whether it has a payload, in the pieces in which they come."""


def pieces_of(runs: Sequence[Sequence[bool]]) -> list[list[Entry]]:
    pieces, entry_id = [], 0
    for run in runs:
        piece = []
        for has_payload in run:
            piece.append(Entry(7, entry_id, entry_id - 1, 0, b"%d" % entry_id if has_payload else b""))
            entry_id += 1
        pieces.append(piece)
    return pieces


async def given_as(pieces: Sequence[T]) -> AsyncGenerator[T, None]:
    for piece in pieces:
        yield piece


@given(RUNS)
@pytest.mark.asyncio
async def test_what_has_a_payload_comes_in_order_and_no_piece_is_empty(runs: list[list[bool]]) -> None:
    pieces = pieces_of(runs)
    wanted = [entry for piece in pieces for entry in piece if entry.payload]
    lists = [piece async for piece in written_batches(given_as(pieces))]
    assert all(lists)
    assert [entry for piece in lists for entry in piece] == wanted
    columns = [EntryColumns.of(7, piece[0].entry_id, piece) for piece in pieces]
    found = [piece async for piece in written_columns(given_as(columns))]
    assert all(len(piece) for piece in found)
    assert [entry for piece in found for entry in piece] == wanted
