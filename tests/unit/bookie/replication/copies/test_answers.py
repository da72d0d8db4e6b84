"""What a ledger's bookies have answered, in words."""

from __future__ import annotations

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.answers import in_words
from bookgate.bookie.replication.copies.verdicts import Copies, Holding, Lost, Unknown
from bookgate.ledger.metadata import LedgerMetadata

CLOSED = LedgerMetadata.new(["b1", "b2", "b3", "b4", "b5", "b6"], 6, 6).close(9, 100)


def test_each_bookie_answers_for_what_is_due_at_it() -> None:
    everything = BitMap64(range(10))
    copies: dict[str, Copies] = {
        "b1": Lost(),
        "b2": Holding(everything),
        "b3": Holding(everything - BitMap64([3, 4])),
        "b4": Holding(everything - BitMap64([1]), corrupt=BitMap64([1])),
        "b5": Holding(everything - BitMap64([1, 2, 3]), corrupt=BitMap64([1]), limbo=True),
        "b6": Unknown("no answer"),
    }
    assert in_words(CLOSED, copies) == {
        "b1": "lost",
        "b2": "complete",
        "b3": "lacks 2",
        "b4": "corrupt 1",
        "b5": "lacks 2, corrupt 1, in limbo",
        "b6": "unknown: no answer",
    }


def test_what_is_not_due_at_a_bookie_does_not_lack_there() -> None:
    striped = LedgerMetadata.new(["b1", "b2", "b3"], 1, 1).close(5, 60)
    copies: dict[str, Copies] = {"b1": Holding(BitMap64([0, 3])), "b2": Holding(BitMap64([1])), "b3": Lost()}
    assert in_words(striped, copies) == {"b1": "complete", "b2": "lacks 1", "b3": "lost"}
