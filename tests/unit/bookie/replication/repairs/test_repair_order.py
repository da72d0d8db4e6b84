"""Which fragments of a ledger are repaired first, and what becomes of the others where one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from pyroaring import BitMap64

from bookgate.bookie.replication.copies import copying
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import CopyLimits, WorkerBudget
from bookgate.bookie.replication.copies.copying import Copied
from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.bookie.replication.copies.verdicts import Copies, Holding, PlaceRepair, by_danger
from bookgate.bookie.replication.repairs.budget_share import BudgetShare
from bookgate.bookie.replication.repairs.repair import LedgerRepair, RepairStoppedException, RepairTools
from bookgate.bookie.replication.repairs.taking_over import take_over
from bookgate.bookie.replication.repairs.tasks import Targets
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord, ServiceDiscovery
from bookgate.ledger.replication_store import LedgerLock, ReplicationMetadata
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.placement.chooser import Placement
from tests.unit.bookie.replication.copies.test_fragments import ledger

ENTRIES = 50


def test_the_fragment_with_most_places_to_fill_comes_first_then_the_newest() -> None:
    first, second, third = complete_fragments(ledger((0, 10, 20), 29))
    nothing = BitMap64()
    places = [
        PlaceRepair(fragment, index, nothing, nothing, replace=True)
        for fragment, index in ((first, 0), (second, 0), (first, 1), (third, 2))
    ]
    assert [(fragment, len(of_it)) for fragment, of_it in by_danger(places)] == [(first, 2), (third, 1), (second, 1)]


@dataclass
class Cluster:
    """Every bookie that is asked says that it holds all, a new one the second time; some places find no bookie that
    takes them.
    """

    metadata: LedgerMetadata
    broken: Collection[int]
    """First entries of fragments that can't be repaired."""
    error: BKException
    asked: list[int] = field(default_factory=list)
    budget: WorkerBudget = field(default_factory=lambda: WorkerBudget(CopyLimits(), 0.0))
    version: int = 0
    listed: set[int] = field(default_factory=set)
    """By their first entries, the places for which the new bookie has said what it holds."""
    config = ClientConfig()

    async def copies(self, bookie_id: str, _ledger_id: int, due: BitMap64, *, unbounded: bool) -> Copies:
        if bookie_id == "new:1" and due.min() not in self.listed:
            self.listed.add(due.min())
            return Holding(BitMap64())
        return Holding(BitMap64(range(ENTRIES)))

    async def fence(self, *_arguments: Any, **_options: Any) -> None:
        return

    async def damaged(self, bookie_id: str, _ledger_id: int, ids: BitMap64, *_more: Any, unbounded: bool) -> BitMap64:
        assert bookie_id == "new:1", "only what nobody has read"
        return BitMap64()

    async def replace_bookie(
        self, _request: Any, ensemble: Sequence[str], _index: int, _exclude: Any, *, needs: frozenset[str]
    ) -> str:
        assert not needs
        fragment = next(each for each in self.metadata.fragments if tuple(each.ensemble) == tuple(ensemble))
        self.asked.append(fragment.first_entry_id)
        if fragment.first_entry_id in self.broken:
            raise self.error
        return "new:1"

    async def write_ledger(self, _lock: LedgerLock, metadata: LedgerMetadata, version: int) -> LedgerRecord:
        assert version == self.version
        self.metadata, self.version = metadata, version + 1
        return LedgerRecord(LedgerId.unscoped(7), metadata, self.version)

    async def catch_up(self) -> None:
        return

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        return LedgerRecord(ledger_id, self.metadata, self.version, incarnation=1)

    async def lock_holders(self, *_key: Any) -> dict[int, str]:
        raise BKException("the store is out of reach")

    read_record = lock_holders

    def check(self) -> None:
        return

    def tools(self) -> RepairTools:
        return RepairTools(
            client=cast("BookKeeper", self),
            bookies=cast("Bookies", self),
            placement=cast("Placement", self),
            metadata=cast("ReplicationMetadata", self),
            ledger_manager=cast("LedgerManager", self),
            discovery=cast("ServiceDiscovery", self),
            budget=self.budget,
            share=BudgetShare(cast("ReplicationMetadata", self), self.budget),
            copied=Copied(),
            catch_up=self.catch_up,
        )

    async def repair(self, lost: str, targets: Targets | None = None) -> None:
        record, lock = LedgerRecord(LedgerId.unscoped(7), self.metadata, 0, incarnation=1), cast("LedgerLock", None)
        await LedgerRepair(self.tools(), lock, record, self, targets or Targets()).run({lost: True}, ())


@pytest.mark.asyncio
async def test_a_fragment_that_fails_does_not_keep_the_others_waiting() -> None:
    before = ledger((0, 10, 20), ENTRIES - 1)
    cluster = Cluster(before, {20}, BKException("nobody takes it"))
    with pytest.raises(BKException, match="nobody takes it"):
        await cluster.repair("c:1")
    named = {each.first_entry_id: "c:1" in each.ensemble for each in cluster.metadata.fragments}
    assert named == {0: False, 10: False, 20: True}


@pytest.mark.asyncio
async def test_a_repair_that_has_to_stop_stops() -> None:
    before = ledger((0, 10, 20), ENTRIES - 1)
    cluster = Cluster(before, {20}, RepairStoppedException("the lock is lost"))
    with pytest.raises(RepairStoppedException):
        await cluster.repair("c:1")
    assert cluster.asked == [20]
    assert cluster.metadata == before


@pytest.mark.asyncio
async def test_after_three_failures_the_rest_waits() -> None:
    starts = (0, 10, 20, 30, 40)
    cluster = Cluster(ledger(starts, ENTRIES - 1, sizes=(4, 2)), starts, BKException("out of reach"))
    with pytest.raises(BKException, match="out of reach"):
        await cluster.repair("c:1")
    assert cluster.asked == [40, 20, 10]


@dataclass
class SlowCluster(Cluster):
    """At first with a rate at which the copies that are read again take minutes."""

    stops: bool = False
    """Whether auto-recovery is disabled meanwhile; otherwise the rate is raised."""
    checked: int = 0

    def check(self) -> None:
        self.checked += 1
        if self.checked > 40:
            self.budget.share(1.0, 0.0, asyncio.get_running_loop().time())
            if self.stops:
                raise RepairStoppedException("auto-recovery is disabled")


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.asyncio
async def test_copies_that_are_read_again_wait_at_the_rate_that_holds_now(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    monkeypatch.setattr(copying, "_WAITING_STEP_SECONDS", 0.01)
    cluster = SlowCluster(ledger((0,), ENTRIES - 1), (), BKException("not raised"), stops=stops)
    cluster.budget.share(1.0, 1000.0, asyncio.get_running_loop().time())
    async with asyncio.timeout(30):
        with pytest.raises(RepairStoppedException) if stops else nullcontext():
            await cluster.repair("c:1")
    assert (cluster.metadata.bookies == {"a:1", "b:1", "new:1"}) is not stops


@dataclass
class Recreated(Cluster):
    """While the entries are copied, the ledger is deleted, and another one created with its id and closed."""

    incarnation: int = 1
    tells: bool = True
    """Whether the store tells the incarnation of a ledger."""

    async def fence(self, *_arguments: Any, **_options: Any) -> None:
        self.metadata, self.incarnation = replace(self.metadata, last_entry_id=2 * ENTRIES, length=77), 2

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        incarnation = self.incarnation if self.tells else None
        return LedgerRecord(ledger_id, self.metadata, self.version, incarnation=incarnation)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.asyncio
async def test_the_metadata_of_another_ledger_with_the_id_are_not_written_over(tells: bool) -> None:
    """It has the version of the former one, which is all that the write itself compares."""
    cluster = Recreated(ledger((0,), ENTRIES - 1), (), BKException("not raised"), tells=tells)
    with pytest.raises(RepairStoppedException, match="another created with its id"):
        await cluster.repair("c:1")
    assert (cluster.version, cluster.metadata.last_entry_id) == (0, 2 * ENTRIES)
    assert "c:1" in cluster.metadata.bookies


@pytest.mark.asyncio
async def test_another_ledger_with_the_id_is_not_taken_from_its_writer() -> None:
    open_ledger = ledger((0,), None)
    cluster = Recreated(open_ledger, (), BKException("not raised"), incarnation=2)
    examined = LedgerRecord(LedgerId.unscoped(7), open_ledger, 0, incarnation=1)
    with pytest.raises(RepairStoppedException, match="another created with its id"):
        await take_over(cluster.tools(), cast("LedgerLock", None), examined, ["c:1"], b"")
    assert (cluster.version, cluster.metadata) == (0, open_ledger)
