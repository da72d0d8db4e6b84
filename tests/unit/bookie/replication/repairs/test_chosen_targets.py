"""Which failures cost a chosen bookie its place: its own alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyroaring import BitMap64

from bookgate.bookie.replication.copies.bookies import TargetRefusesException
from bookgate.bookie.replication.copies.verdicts import Copies, Holding
from bookgate.bookie.replication.repairs.tasks import Targets
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, NotEnoughBookiesException, ReadException, TooManyRequestsException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.replication.copies.test_fragments import ledger
from tests.unit.bookie.replication.repairs.test_repair_order import ENTRIES, Cluster


@dataclass
class FailingCopies(Cluster):
    """The bookie that is chosen holds nothing, and no copy of anything reaches it."""

    unread: BKException | None = None
    """Why the entries can't be read."""
    ledger_id = LedgerId.unscoped(7)

    async def copies(self, bookie_id: str, _ledger_id: int, _due: BitMap64, *, unbounded: bool) -> Copies:
        return Holding(BitMap64() if bookie_id == "new:1" else BitMap64(range(ENTRIES)))

    @asynccontextmanager
    async def open_record(self, *_arguments: Any) -> AsyncIterator[FailingCopies]:
        yield self

    async def read_batches(self, first: int, last: int) -> AsyncGenerator[list[Entry], None]:
        if self.unread is not None:
            raise self.unread
        yield [Entry(7, number, number - 1, 100, b"x") for number in range(first, last + 1)]

    async def add_copies(self, _target: str, _ledger_id: int, _group: Sequence[Entry], _secrets: Any) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("unread", "kept"),
    [(ReadException("no bookie can serve entry 0"), {(0, 2): "new:1"}), (None, {})],
    ids=["a source fails", "the bookie itself fails"],
)
@pytest.mark.asyncio
async def test_a_chosen_bookie_keeps_its_place_unless_it_fails_itself(
    unread: BKException | None, kept: dict[tuple[int, int], str]
) -> None:
    cluster = FailingCopies(
        ledger((0,), ENTRIES - 1), (), unread=unread, error=TooManyRequestsException("new:1 has too much to do")
    )
    targets = Targets()
    with pytest.raises(type(unread or cluster.error), match=str(unread or cluster.error)):
        await cluster.repair("c:1", targets)
    assert targets.by_place == kept
    assert cluster.metadata.fragments[0].ensemble == ("a:1", "b:1", "c:1")


@dataclass
class OnePreferred(FailingCopies):
    """The policy likes one bookie best, which fails, and has another one."""

    chosen: list[str] = field(default_factory=list)

    async def replace_bookie(self, *arguments: Any, needs: frozenset[str]) -> str:
        *_, exclude = arguments
        left = [each for each in ("new:1", "new:2") if each not in exclude]
        if not left:
            raise NotEnoughBookiesException("nobody is left")
        self.chosen.append(left[0])
        return left[0]

    async def copies(self, bookie_id: str, _ledger_id: int, _due: BitMap64, *, unbounded: bool) -> Copies:
        return Holding(BitMap64() if bookie_id.startswith("new") else BitMap64(range(ENTRIES)))


@pytest.mark.asyncio
async def test_a_bookie_that_failed_is_tried_after_all_others() -> None:
    cluster = OnePreferred(ledger((0,), ENTRIES - 1), (), error=TooManyRequestsException("it has too much to do"))
    targets = Targets()
    for _ in range(4):
        with pytest.raises(TooManyRequestsException):
            await cluster.repair("c:1", targets)
    assert cluster.chosen == ["new:1", "new:2", "new:1", "new:2"]


@dataclass
class HoldsTornCopies(OnePreferred):
    """The bookie that is chosen first holds copies already; of some the end never reached its disk."""

    torn: BitMap64 = field(default_factory=lambda: BitMap64([3, 7]))
    takes: bool = True
    """Whether it answers with what it was given."""
    stored: list[int] = field(default_factory=list)
    read_again: list[BitMap64] = field(default_factory=list)

    async def copies(self, bookie_id: str, _ledger_id: int, _due: BitMap64, *, unbounded: bool) -> Copies:
        held = {"new:1": BitMap64(range(10)) | BitMap64(self.stored), "new:2": BitMap64()}
        return Holding(held.get(bookie_id, BitMap64(range(ENTRIES))))

    async def damaged(self, bookie_id: str, _ledger_id: int, ids: BitMap64, *_more: Any, unbounded: bool) -> BitMap64:
        assert bookie_id == "new:1", "only what nobody has read"
        self.read_again.append(ids)
        return ids & self.torn

    async def add_copies(self, target: str, _ledger_id: int, group: Sequence[Entry], _secrets: Any) -> int:
        if target != "new:1":
            raise TargetRefusesException(f"{target} takes nothing")
        self.stored += [entry.entry_id for entry in group]
        if self.takes:
            self.torn -= BitMap64(self.stored)
        return 100 * len(group)


async def chosen(cluster: HoldsTornCopies, incarnation: int = 1) -> Targets:
    """As an earlier repair left it."""
    targets = Targets()
    index = cluster.metadata.fragments[0].ensemble.index("c:1")
    await targets.keep((0, index), "new:1", incarnation, fresh=True)
    return targets


@pytest.mark.asyncio
async def test_torn_copies_that_a_chosen_bookie_already_holds_are_replaced() -> None:
    """R2: nobody has read them there, and they take the place of good ones."""
    cluster = HoldsTornCopies(ledger((0,), ENTRIES - 1, sizes=(3, 3)), (), error=BKException())
    await cluster.repair("c:1", await chosen(cluster))
    assert sorted(cluster.stored) == [3, 7, *range(10, ENTRIES)]
    assert [[*ids] for ids in cluster.read_again[:2]] == [[*range(10)], [3, 7]], "what was torn is read again"
    assert cluster.metadata.fragments[0].ensemble == ("a:1", "b:1", "new:1")


@pytest.mark.parametrize("earlier", [None, 9], ids=["chosen now", "chosen for a deleted ledger"])
@pytest.mark.asyncio
async def test_copies_of_a_deleted_ledger_with_the_id_are_written_over(earlier: int | None) -> None:
    """R3: with the same password their digests are right."""
    cluster = HoldsTornCopies(ledger((0,), ENTRIES - 1, sizes=(3, 3)), (), error=BKException(), torn=BitMap64())
    await cluster.repair("c:1", None if earlier is None else await chosen(cluster, earlier))
    assert sorted(cluster.stored) == [*range(ENTRIES)]
    assert cluster.metadata.fragments[0].ensemble == ("a:1", "b:1", "new:1")


@pytest.mark.asyncio
async def test_a_bookie_that_keeps_answering_with_torn_copies_gets_no_place() -> None:
    cluster = HoldsTornCopies(ledger((0,), ENTRIES - 1, sizes=(3, 3)), (), error=BKException(), takes=False)
    await cluster.repair("c:1", await chosen(cluster))
    assert cluster.chosen == ["new:2"]
    assert cluster.metadata.fragments[0].ensemble == ("a:1", "b:1", "c:1")
