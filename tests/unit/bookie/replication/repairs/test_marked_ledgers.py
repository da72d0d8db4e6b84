"""What a worker reads of the ledgers that marks name, and when it reads them anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from bookgate.bookie.replication.repairs.marked_ledgers import MarkedLedgers
from bookgate.bookie.replication.repairs.repair_queue import GivenUp, RepairQueue
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord, Versioned
from bookgate.ledger.replication import UnderreplicatedLedger
from bookgate.ledger.replication_progress import A_LEDGER, Amount, Danger
from bookgate.ledger.replication_store import Mark

pytestmark = pytest.mark.asyncio

EMPTIED = ("b2",)
LOST, WHOLE, DELETED, DAMAGED, WRITTEN = 1, 2, 3, 4, 5


class Ledgers:
    """Each of three copies; tells which were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        self.read += [each.low for each in ledger_ids]
        return [self._of(each) for each in ledger_ids]

    def _of(self, ledger_id: LedgerId) -> LedgerRecord | BKException:
        if ledger_id.low == DELETED:
            return NoSuchLedgerExistsOnMetadataServerException("deleted")
        if ledger_id.low == DAMAGED:
            return MetadataFormatException("damaged")
        metadata = LedgerMetadata.new(["b1", "b2", "b3"], 3, 2)
        return LedgerRecord(ledger_id, metadata.close(9, 100) if ledger_id.low > WRITTEN else metadata, 0)


def mark(ledger_id: int, *bookies: str, version: int = 0) -> Mark:
    return Versioned(UnderreplicatedLedger(ledger_id).with_replicas(bookies, 1), version)


MARKS = [mark(LOST, "b1"), mark(WHOLE, "b2"), mark(DELETED, "b1"), mark(DAMAGED, "b1")]


async def test_what_is_deleted_comes_last_and_what_can_not_be_read_first() -> None:
    ledgers = MarkedLedgers(cast("LedgerManager", Ledgers()))
    found = RepairQueue().order(await ledgers.candidates(MARKS, EMPTIED), 0.0)
    assert [each.ledger_id for each in found] == [DAMAGED, LOST, WHOLE, DELETED]


async def test_what_was_deleted_or_written_since_it_was_given_up_is_found() -> None:
    ledgers = MarkedLedgers(cast("LedgerManager", Ledgers()))
    record = LedgerRecord(LedgerId.unscoped(LOST), LedgerMetadata.new(["b1", "b2", "b3"], 3, 2), 0)
    given_up = GivenUp.of(record)
    assert await ledgers.changed(MARKS, lambda _: given_up) == [MARKS[2]]
    others, later = [MARKS[0], MARKS[1], MARKS[3]], GivenUp.of(replace(record, version=7))
    assert await ledgers.changed(others, {LOST: given_up, WHOLE: later, DAMAGED: later}.get) == [MARKS[1]]


async def test_a_ledger_is_read_once_while_its_mark_and_the_bookies_stay() -> None:
    store = Ledgers()
    ledgers = MarkedLedgers(cast("LedgerManager", store))
    first = await ledgers.candidates(MARKS, EMPTIED)
    assert await ledgers.candidates(MARKS, EMPTIED) == first
    assert len(store.read) == len(MARKS)
    again = await ledgers.candidates([mark(LOST, "b1", "b2", version=1), *MARKS[1:]], ())
    assert store.read[len(MARKS) :] == [LOST]
    assert again[0].copies_left == 1
    ledgers.forget()
    found = await ledgers.candidates(MARKS, ())
    assert store.read[len(MARKS) + 1 :] == [LOST, WHOLE, DELETED, DAMAGED]
    assert found[1].copies_left == 2
    ledgers.keep_only({LOST})
    await ledgers.candidates(MARKS, ())
    assert len(store.read) == 3 * len(MARKS)


async def test_a_mark_that_is_made_again_and_says_the_same_costs_no_read() -> None:
    store = Ledgers()
    ledgers = MarkedLedgers(cast("LedgerManager", store))
    await ledgers.candidates([mark(LOST, "b1"), mark(WHOLE, "b2")], EMPTIED)
    (again,) = await ledgers.candidates([mark(LOST, "b1", version=5)], EMPTIED)
    assert (again.mark_version, again.copies_left, len(store.read)) == (5, 2, 2)
    assert ledgers.known(LOST) == again
    await ledgers.candidates([mark(LOST, "b1", "b3", version=6)], EMPTIED)
    assert store.read[2:] == [LOST]
    damaged = [Versioned(UnderreplicatedLedger(WHOLE, damaged=b"x"), version) for version in (1, 2)]
    for each in damaged:
        await ledgers.candidates([each], EMPTIED)
    assert store.read[3:] == [WHOLE, WHOLE]


async def test_a_bookie_that_lacks_its_copies_counts_as_gone_although_it_is_there() -> None:
    """As a check of replicas and a scrub mark them; the ledger with one good copy comes before its newer neighbour."""
    ledgers = MarkedLedgers(cast("LedgerManager", Ledgers()))
    marks = [mark(10, "b2", "b3"), mark(20, "b1")]
    found = RepairQueue().order(await ledgers.candidates(marks, ()), 0.0)
    assert [(each.ledger_id, each.copies_left, each.below_ack_quorum) for each in found] == [
        (10, 1, True),
        (20, 2, False),
    ]


@pytest.mark.parametrize(
    ("marked", "danger", "due"),
    [
        (mark(10, "b1", "b3"), Danger.LAST_COPY, Amount(1, 20, 200)),
        (mark(10, "b1"), Danger.BELOW_WRITE_QUORUM, Amount(1, 10, 100)),
        (mark(10, "b2"), Danger.MOVING, Amount(1, 10, 100)),
        (mark(10, "b1", "b2"), Danger.BELOW_WRITE_QUORUM, Amount(1, 20, 200)),
        (mark(10), Danger.MISPLACED, A_LEDGER),
        (mark(WRITTEN, "b1"), Danger.BELOW_WRITE_QUORUM, A_LEDGER),
        (mark(DELETED, "b1"), Danger.UNKNOWN, A_LEDGER),
        (mark(DAMAGED, "b1"), Danger.UNKNOWN, A_LEDGER),
        (Versioned(UnderreplicatedLedger(10, damaged=b"x"), 0), Danger.UNKNOWN, A_LEDGER),
    ],
)
async def test_a_mark_says_the_danger_and_how_much_is_due(marked: Mark, danger: Danger, due: Amount) -> None:
    ledgers = MarkedLedgers(cast("LedgerManager", Ledgers()))
    (found,) = await ledgers.candidates([marked], EMPTIED)
    assert (found.danger, found.due) == (danger, due)
    assert ledgers.known(marked.value.ledger_id) == found


async def test_fewer_copies_than_an_acknowledgement_took_are_a_class_of_their_own() -> None:
    class Wide(Ledgers):
        def _of(self, ledger_id: LedgerId) -> LedgerRecord:
            return LedgerRecord(ledger_id, LedgerMetadata.new(["b1", "b2", "b3", "b4"], 4, 3), 0)

    ledgers = MarkedLedgers(cast("LedgerManager", Wide()))
    (found,) = await ledgers.candidates([mark(10, "b1", "b3")], ())
    assert found.danger is Danger.BELOW_ACK_QUORUM
