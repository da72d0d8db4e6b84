"""Adds that begin together are those that begin one by one, whoever has failed before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import BKException, BookieHandleNotAvailableException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.writing import LedgerWriter, WriterRules

SIZES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 2, 1), (1, 1, 1)]
FIELDS = ("entry_id", "size", "length", "last_add_confirmed", "indexes", "unsettled")


def _begin(writer: LedgerWriter, sizes: list[int], together: bool) -> list[object]:
    """What began, and the error that stopped it."""
    begun: list[object] = []
    try:
        while sizes:
            adds = writer.begin_adds(sizes) if together else [writer.begin_add(sizes[0])]
            assert adds
            begun += [tuple(getattr(add, name) for name in FIELDS) for add in adds]
            sizes = sizes[len(adds) :]
    except BKException as error:
        begun.append(type(error))
    return begun


@pytest.mark.parametrize("delayed", [True, False])
@given(
    sizes=st.sampled_from(SIZES),
    before=st.integers(0, 4),
    failed=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3) | st.none()), max_size=3),
    stored=st.booleans(),
    payloads=st.lists(st.integers(0, 50), max_size=9),
)
def test_together_or_one_by_one(
    delayed: bool,
    sizes: tuple[int, int, int],
    before: int,
    failed: list[tuple[int, int | None]],
    stored: bool,
    payloads: list[int],
) -> None:
    found = []
    for together in (False, True):
        writer = LedgerWriter(LedgerId(0, 7), "abcd"[: sizes[0]], *sizes[1:], rules=WriterRules(delayed))
        adds = [writer.begin_add(1) for _ in range(before)]
        for add in adds if stored else ():
            for index in add.indexes:
                writer.on_ack(add, writer.members[index])
        for index, of in failed:
            of_add = adds[of] if of is not None and of < before else None
            writer.on_failure(writer.members[index % sizes[0]], BookieHandleNotAvailableException(), of_add)
        begun = _begin(writer, payloads, together)
        state = writer.state, writer.last_add_pushed, writer.length, writer.pending_count
        found.append((begun, state))
    assert found[0] == found[1]
