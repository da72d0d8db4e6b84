"""Which bookies a mark names after an audit, and what becomes of ledgers that can't be marked or looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BKException, MetaStoreException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId, number_of
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, RegisteredBookie
from bookgate.ledger.replication_control import corrupt_copies_of
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.gateways.discovery import NoRevisionException
from bookgate.thinclient.spark.jobs.marking import Lack, Marking, bookies_to_mark, corrupt_to_record, mark_page

ALL = {"a", "b", "c", "d"}
OPEN = LedgerMetadata.new(("a", "b", "c"), 3, 2).with_ensemble(10, ("a", "b", "d"))
CLOSED = OPEN.close(19, 100)


def lack(*places: tuple[int, str], ledger: int = 1, scope: int = 0) -> Lack:
    return Lack(LedgerId(scope, ledger), frozenset(places))


def test_a_mark_names_each_bookie_that_lacks_copies_once() -> None:
    assert bookies_to_mark(lack((0, "b"), (10, "b"), (0, "a"), (10, "d")), CLOSED, ALL) == ["a", "b", "d"]


@pytest.mark.parametrize("place", [(10, "c"), (0, "d"), (5, "a")])
def test_a_place_that_another_bookie_has_taken_lacks_nothing(place: tuple[int, str]) -> None:
    assert bookies_to_mark(lack(place), CLOSED, ALL) == []


def test_a_fragment_that_is_being_written_is_left_to_its_writer() -> None:
    assert bookies_to_mark(lack((0, "a"), (10, "b")), OPEN, ALL) == ["a"]
    assert bookies_to_mark(lack((10, "b")), OPEN.begin_recovery(), ALL) == []


def test_a_bookie_that_is_not_registered_is_left_to_the_auditor() -> None:
    assert bookies_to_mark(lack((0, "a"), (0, "b")), CLOSED, ALL - {"a"}) == ["b"]


def test_of_damage_that_is_recorded_which_is_still_where_the_metadata_say() -> None:
    found = Lack(
        LedgerId.unscoped(1),
        frozenset({(0, "a"), (0, "b"), (10, "a"), (10, "c")}),
        {(0, "a"): [(1, 2)], (10, "a"): [(11, 11)], (0, "b"): [(3, 3)], (10, "c"): [(12, 12)]},
    )
    assert corrupt_to_record(found, CLOSED, ["a"]) == {"a": [(1, 2), (11, 11)]}
    assert corrupt_to_record(found, OPEN, ["a", "b", "c"]) == {"a": [(1, 2)], "b": [(3, 3)]}


class Metadata:
    """Ledgers by id, bookie `b` writable, `a` read-only and `c` away; it marks all ledgers but those of `failing`."""

    def __init__(self, *failing: int, **ledgers: LedgerMetadata | BKException) -> None:
        self.ledgers = {int(name[1:]): value for name, value in ledgers.items()}
        self.failing = failing
        self.marks: dict[int, Sequence[str]] = {}
        self.recorded: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self.behind: BKException | None = None
        """What catching up ends with; None: it succeeds. What is read before lacks all ledgers."""
        self.has_caught_up = False
        self.ledger_manager = self.replication_metadata = self.service_discovery = self

    async def catch_up(self, revision: int | None) -> None:
        assert revision is None
        self.has_caught_up = True
        if self.behind is not None:
            raise self.behind

    async def bookies(self, *_set: object) -> list[RegisteredBookie]:
        return [
            RegisteredBookie(BookieServiceInfo("a"), writable=False, read_only=True),
            RegisteredBookie(BookieServiceInfo("b"), writable=True, read_only=False),
            RegisteredBookie(BookieServiceInfo("c"), writable=False, read_only=False),
        ]

    async def read_many(self, ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        if not self.has_caught_up:
            return [NoSuchLedgerExistsOnMetadataServerException("not yet")] * len(ids)
        found = [(each, self.ledgers[each.low] if each.scope_id == 0 else CLOSED) for each in ids]
        return [value if isinstance(value, BKException) else LedgerRecord(each, value, 0) for each, value in found]

    async def read_record(self, *_key: object) -> None:
        return

    async def write_record(self, kind: RecordKind, key: str, value: bytes, _version: int | None) -> None:
        assert kind is RecordKind.CORRUPT_LEDGER
        assert int(key) not in self.marks, "a worker may read the mark at once"
        self.recorded[key] = corrupt_copies_of(value)

    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int) -> None:
        if ledger_id in self.failing:
            raise MetaStoreException("out of reach")
        self.marks[ledger_id] = replicas


async def marked(metadata: Metadata, *lacks: Lack) -> Marking:
    marking = Marking()
    await mark_page(cast(LedgerManagerFactory, cast(Any, metadata)), lacks, marking)
    return marking


@pytest.mark.asyncio
async def test_ledgers_are_counted_by_what_becomes_of_them() -> None:
    gone = NoSuchLedgerExistsOnMetadataServerException("gone")
    metadata = Metadata(L1=CLOSED, L2=gone, L3=CLOSED, L4=OPEN)
    lacks = [
        lack((0, "a"), (0, "b"), (0, "c")),
        lack((0, "b"), ledger=2),
        lack((0, "c"), ledger=3),
        lack((10, "b"), ledger=4),
        lack((0, "b"), scope=7),
        lack((0, "b"), ledger=-1, scope=7),
    ]
    assert await marked(metadata, *lacks) == Marking(marked=3, left=3)
    scoped = number_of(7, 1), number_of(7, -1)
    assert metadata.marks == {1: ["a", "b"], scoped[0]: ["b"], scoped[1]: ["b"]}


@pytest.mark.asyncio
async def test_marks_go_by_metadata_that_the_gateway_has_caught_up_with() -> None:
    metadata = Metadata(L1=CLOSED)
    metadata.behind = NoRevisionException("older than this client")
    assert await marked(metadata, lack((0, "b"))) == Marking(marked=1)
    metadata.behind = MetaStoreException("out of reach")
    with pytest.raises(MetaStoreException, match="out of reach"):
        await marked(metadata, lack((0, "b")))


@pytest.mark.asyncio
async def test_damaged_copies_are_recorded_before_the_ledger_is_marked() -> None:
    metadata = Metadata(L1=CLOSED, L2=CLOSED)
    damaged = Lack(LedgerId.unscoped(1), frozenset({(0, "b"), (0, "c")}), {(0, "b"): [(3, 4)], (0, "c"): [(3, 3)]})
    assert await marked(metadata, damaged, lack((0, "a"), ledger=2)) == Marking(marked=2)
    assert metadata.recorded == {"1": {"b": [(3, 4)]}}, "c is not registered"
    assert metadata.marks == {1: ["b"], 2: ["a"]}


@pytest.mark.asyncio
async def test_a_store_out_of_reach_ends_it_after_what_could_be_marked() -> None:
    metadata, marking = Metadata(1, L1=CLOSED, L2=CLOSED), Marking()
    page = [lack((0, "b"), ledger=1), lack((0, "b"), ledger=2)]
    with pytest.raises(MetaStoreException):
        await mark_page(cast(LedgerManagerFactory, cast(Any, metadata)), page, marking)
    assert (marking.marked, metadata.marks) == (1, {2: ["b"]})
    with pytest.raises(MetaStoreException):
        await marked(Metadata(L1=MetaStoreException("out of reach")), page[0])
