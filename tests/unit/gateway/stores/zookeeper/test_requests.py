"""Bytes of the requests that kazoo lacks, and what is read from the answers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kazoo.exceptions import NodeExistsError, NoNodeError, RolledBackError
from kazoo.protocol.serialization import Create, Delete, GetData, Transaction
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from bookgate.gateway.stores.zookeeper.requests import (
    CREATOR_ONLY,
    OPEN_TO_ALL,
    CreateNodes,
    DeleteNodes,
    ListNumbered,
    ReadNodes,
    ReserveNumbers,
)

STAT = tuple(range(101, 112))


def listing(names: list[str]) -> bytes:
    """The answer to a request for children and the stat of their parent, behind a header."""
    encoded = [name.encode() for name in names]
    children = b"".join(struct.pack(">i", len(n)) + n for n in encoded)
    return b"header" + struct.pack(">i", len(names)) + children + struct.pack(">qqqqiiiqiiq", *STAT)


def numbers(names: list[str], width: int = 2) -> list[int]:
    found, stat = ListNumbered("/x", "L", width).deserialize(listing(names), 6)
    assert stat == STAT
    return list(found)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["L07", "L03", "L99"], [3, 7, 99]),
        ([f"L{n:02d}" for n in reversed(range(100))], list(range(100))),
        (["L07", "LAYOUT", "L3", "L003", "idgen", "L12"], [7, 12]),
        (["M07", "M08"], []),
        (["L0x", "L1y"], []),
        # As long as they should be on the whole, but not each.
        (["L1", "L234"], []),
        (["L²3", "L05"], [5]),
    ],
)
def test_numbers_of_children(names: list[str], expected: list[int]) -> None:
    assert numbers(names) == expected


@given(st.sets(st.integers(0, 99)), st.sets(st.text("L0123456789abc\0\3", min_size=1, max_size=5)))
@example(set(range(100)), set())
def test_numbers_are_those_of_a_plain_reading(wanted: set[int], others: set[str]) -> None:
    names = list({f"L{n:02d}" for n in wanted} | others)
    plain = [int(n[1:]) for n in names if len(n) == 3 and n[0] == "L" and n[1:].isdigit()]
    assert numbers(names) == sorted(plain)


@pytest.mark.parametrize(("ours", "kazoos"), [(OPEN_TO_ALL, OPEN_ACL_UNSAFE), (CREATOR_ONLY, CREATOR_ALL_ACL)])
def test_transactions_are_those_of_kazoo(ours: object, kazoos: object) -> None:
    nodes = [("/a/b", b"content"), ("/a/ü", b"x" * 300)]
    same = Transaction([Create(path, data, kazoos, 0) for path, data in nodes]).serialize()
    assert CreateNodes(nodes, ours).serialize() == same  # type: ignore[arg-type]
    same = Transaction([Delete("/a", -1), Delete("/b", -1)]).serialize()
    assert DeleteNodes(["/a", "/b"]).serialize() == same
    skip = [Create("/i/ID-block", b"", kazoos, 0), Delete("/i/ID-block", -1)]
    same = Transaction([Create("/i/ID-", b"", kazoos, 3), *skip, *skip]).serialize()
    assert ReserveNumbers("/i/ID-", 3, ours).serialize() == same  # type: ignore[arg-type]


def test_many_reads_are_single_ones_with_headers() -> None:
    header, end = struct.pack(">i?i", 4, False, -1), struct.pack(">i?i", -1, True, -1)
    expected = header + GetData("/a", None).serialize() + header + GetData("/b/c", None).serialize() + end
    assert ReadNodes(["/a", "/b/c"]).serialize() == bytes(expected)


def failed(*errors: int) -> bytes:
    body = b"".join(struct.pack(">i?ii", -1, False, error, error) for error in errors)
    return b"header" + body + struct.pack(">i?i", -1, True, -1)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((0, -110, -2), NodeExistsError),
        ((-101,), NoNodeError),
        ((0, 0, -101, -2), NoNodeError),
        ((0, -2), RolledBackError),
    ],
)
def test_failed_transaction_names_the_culprit(errors: tuple[int, ...], kind: type[Exception]) -> None:
    (error,) = CreateNodes.deserialize(failed(*errors), 6)
    assert isinstance(error, kind)
    (error,) = ReserveNumbers.deserialize(failed(*errors), 6)  # type: ignore[assignment]
    assert isinstance(error, kind)


def test_successful_transaction_has_no_culprit() -> None:
    created = struct.pack(">i?i", 1, False, 0) + struct.pack(">i", 4) + b"/a/7"
    answer = b"header" + created + struct.pack(">i?i", -1, True, -1)
    assert CreateNodes.deserialize(answer, 6) == []
    assert ReserveNumbers.deserialize(answer, 6) == ["/a/7"]
