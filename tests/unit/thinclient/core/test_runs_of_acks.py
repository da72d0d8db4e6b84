"""Acknowledgements that are counted many at once confirm what they confirm one by one."""

from collections.abc import Callable
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import BookieHandleNotAvailableException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.advanced_writing import AdvancedLedgerWriter
from bookgate.thinclient.core.guaranteed_writing import GuaranteedLedgerWriter
from bookgate.thinclient.core.writing import LedgerWriter, PendingAdd

LEDGER = LedgerId(0, 7)
SIZES = [(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (3, 2, 1), (1, 1, 1)]
NAMES = ("a", "b", "c", "d")

acks = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3)), max_size=40)
"""Entries and indexes of the bookies that acknowledge them, in any order, also twice, also entries not theirs."""


def _ordinary(sizes: tuple[int, int, int]) -> tuple[LedgerWriter, list[PendingAdd]]:
    writer = LedgerWriter(LEDGER, NAMES[: sizes[0]], *sizes[1:])
    return writer, [writer.begin_add(10) for _ in range(12)]


def _advanced(sizes: tuple[int, int, int]) -> tuple[LedgerWriter, list[PendingAdd]]:
    writer = AdvancedLedgerWriter(LEDGER, NAMES[: sizes[0]], *sizes[1:])
    return writer, [writer.begin_add_at(entry_id ^ 1, 10) for entry_id in range(12)]


def _guaranteed(sizes: tuple[int, int, int]) -> tuple[LedgerWriter, list[PendingAdd]]:
    writer = GuaranteedLedgerWriter(LEDGER, NAMES[: sizes[0]], *sizes[1:])
    return writer, [writer.begin_add(10) for _ in range(12)]


@pytest.mark.parametrize("made", [_ordinary, _advanced, _guaranteed])
@given(sizes=st.sampled_from(SIZES), acks=acks, changes_at=st.none() | st.integers(0, 12))
def test_together_or_one_by_one(
    made: Callable[[tuple[int, int, int]], tuple[LedgerWriter, list[PendingAdd]]],
    sizes: tuple[int, int, int],
    acks: list[tuple[int, int]],
    changes_at: int | None,
) -> None:
    found = []
    for together in (False, True):
        writer, adds = made(sizes)
        confirmed: list[int] = []
        runs = [(index % sizes[0], [entry for entry, _ in run]) for index, run in groupby(acks, lambda ack: ack[1])]
        for at, (index, entries) in enumerate(runs):
            if at == changes_at:
                writer.on_failure(writer.members[0], BookieHandleNotAvailableException())
            acked, member = [adds[entry] for entry in entries], writer.members[index]
            if together:
                confirmed += [add.entry_id for add in writer.on_acks(acked, member)]
            else:
                confirmed += [add.entry_id for one in acked for add in writer.on_ack(one, member)]
        state = writer.sequence_head, writer.last_add_confirmed, writer.confirmed_length, writer.pending_count
        found.append((confirmed, state, [(add.acked, add.acks) for add in adds]))
    assert found[0] == found[1]
    assert found[0][0] == list(range(found[0][1][0] + 1))
