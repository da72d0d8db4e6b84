"""Wherever a ledger's id is part of a key, two ledgers never have the same one (D1): all these places in one list.

What a place makes of an id is compared for pairs of ids that share halves, above all (scope, id) and (0, id). The table
in docs/protocol/scoped-ledgers.md#where-an-id-is-a-key names for each place the test; places whose keys are made by
running code are tested there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookgate.bookie.index import file_format
from bookgate.bookie.journal import format as journal_format
from bookgate.gateway.stores.sqlite.change_feed import ledger_id_of, ledger_key
from bookgate.gateway.stores.zookeeper.ledger_paths import ScopedPaths, paths_of
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entry, encode_lac
from bookgate.ledger.ledger_id import LedgerId, ledger_name
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.replication import ledger_id_of_mark, mark_directories, mark_name
from bookgate.ledger.wire.fast_requests import AddRequestEncoder, ReadRequestEncoder
from bookgate.ledger.wire.messages import AddRequest, ReadRequest
from bookgate.ledger.wire.v3 import decode_request
from bookgate.thinclient.config import ClientConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "protocol" / "scoped-ledgers.md"

_HALVES = st.sampled_from((0, 1, -1, 7, 2**31, 2**32, 2**40, 2**63 - 1, -(2**63))) | st.integers(-(2**63), 2**63 - 1)
IDS = st.builds(lambda scope, low: LedgerId(scope, low if scope else low & 2**63 - 1), _HALVES, _HALVES)
_DIGEST = digest_for(DigestType.CRC32C, b"secret")
_ZOOKEEPER, _SCOPED = paths_of("longhierarchical", "/ledgers"), ScopedPaths("/ledgers")


def zookeeper_path(ledger_id: LedgerId) -> str:
    return _SCOPED.path(ledger_id) if ledger_id.scope_id else _ZOOKEEPER.path(ledger_id.low)


PLACES: dict[str, Callable[[LedgerId], object]] = {
    "number": lambda each: each.number,
    "name": lambda each: ledger_name(each.number),
    "qualified name": lambda each: each.qualified_name,
    "entry packet": lambda each: encode_entry(_DIGEST, each.number, 3, 2, 9, b"x"),
    "explicit LAC packet": lambda each: encode_lac(_DIGEST, each.number, 3),
    "add on the wire": lambda each: AddRequestEncoder(each.number, b"key").encode(1, 2, b"x"),
    "read on the wire": lambda each: ReadRequestEncoder(each.number).encode(1, 2),
    "journal record": lambda each: journal_format.encode_fence(each.number),
    "index file": file_format.relative_path,
    "row in SQLite": ledger_key,
    "node in ZooKeeper": zookeeper_path,
    "mark": lambda each: (mark_directories(each.number), mark_name(each.number)),
}


@pytest.mark.parametrize("place", PLACES)
@given(IDS, IDS)
@example(LedgerId(0, 7), LedgerId(7, 7))
@example(LedgerId(0, 7), LedgerId(7, 0))
@example(LedgerId(1, 0), LedgerId(0, 0))
@example(LedgerId(-1, 7), LedgerId(0, 7))
@example(LedgerId(1 << 32, 7), LedgerId(1, 7 << 32))
def test_two_ledgers_have_two_keys(place: str, one: LedgerId, other: LedgerId) -> None:
    form = PLACES[place]
    for each in (other, LedgerId(0, one.low & 2**63 - 1), LedgerId(one.low, one.scope_id) if one.low else other):
        assert (form(one) == form(each)) == (one == each)


@given(IDS)
def test_what_is_read_back_is_the_same_ledger(ledger_id: LedgerId) -> None:
    number = ledger_id.number
    assert LedgerId.of_number(number) == ledger_id
    assert ledger_id_of(ledger_key(ledger_id)) == ledger_id
    assert ledger_id_of_mark(mark_name(number)) == number
    add = decode_request(memoryview(AddRequestEncoder(number, b"key").encode(1, 2, b"x"))[4:])
    read = decode_request(memoryview(ReadRequestEncoder(number).encode(1, 2))[4:])
    assert isinstance(add, AddRequest)
    assert isinstance(read, ReadRequest)
    assert (add.ledger_id, read.ledger_id) == (number, number)


@given(IDS, IDS)
def test_a_password_is_for_one_ledger(one: LedgerId, other: LedgerId) -> None:
    config = ClientConfig(passwords={one.number: b"planted-secret"})
    assert (config.password_of(other.number, b"") == b"planted-secret") == (one == other)


def test_the_page_names_tests_that_exist() -> None:
    """Of each place on it; each place here is on it."""
    table = PAGE.read_text().partition("## Where an id is a key")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= len(PLACES)
    everything = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for place, _, tests in rows:
        names = re.findall(r"`(test_\w+)`", tests)
        assert names, place
        assert [name for name in names if f"def {name}(" not in everything] == [], place
    assert [place for place in PLACES if place not in {row[0] for row in rows}] == []
