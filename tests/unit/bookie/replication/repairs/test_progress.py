"""How far repairs are, as one worker counts."""

from __future__ import annotations

from typing import cast

from bookgate.bookie.replication.copies.copying import Copied
from bookgate.bookie.replication.repairs.progress import RepairProgress
from bookgate.bookie.replication.repairs.repair import LedgerRepair
from bookgate.bookie.replication.repairs.repair_queue import Candidate
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication import UnderreplicatedLedger
from bookgate.ledger.replication_progress import Amount, Danger, Endangered, Moving, OfBookie
from bookgate.ledger.replication_store import Mark

NOW_MS = 1_700_000_000_000


class Repair:
    """Of one ledger."""

    def __init__(self, due: tuple[int, int], copied: Copied) -> None:
        self.due, self.done = due, (copied.entries, copied.bytes)


def mark(ledger_id: int, *bookies: str, ctime_ms: int | None = NOW_MS) -> Mark:
    return Versioned(UnderreplicatedLedger(ledger_id, bookies, ctime_ms), 0)


def candidate(ledger_id: int, danger: Danger, size: int = 100) -> Candidate:
    return Candidate(ledger_id, 0, 1, danger=danger, due=Amount(1, 10, size))


class World:
    """A worker that lists and repairs."""

    def __init__(self) -> None:
        self.copied = Copied()
        self.progress = RepairProgress("here", self.copied)
        self.known: dict[int, Candidate] = {}
        self.given_up: set[int] = set()

    def list(self, *marks: Mark, now_ms: int = NOW_MS) -> None:
        self.progress.listed(marks, self.known.get, self.given_up.__contains__, now_ms)

    def repair(self, ledger_id: int, due: tuple[int, int], copied: Copied) -> None:
        self.progress.began(ledger_id, cast("LedgerRepair", Repair(due, copied)), NOW_MS)

    def seen(self, now: float) -> Endangered:
        told = self.progress.told(now, NOW_MS)
        assert told is not None
        assert told.endangered is not None
        return told.endangered


def test_what_is_marked_is_counted_by_class_and_by_bookie() -> None:
    world = World()
    world.known = {
        1: candidate(1, Danger.LAST_COPY),
        2: candidate(2, Danger.LAST_COPY, 50),
        3: candidate(3, Danger.MOVING),
    }
    world.given_up = {4}
    world.list(mark(1, "a", "b"), mark(2, "a"), mark(3, "c"), mark(4, "a"), mark(5, "a"))
    seen = world.seen(0.0)
    assert seen.classes == {
        Danger.LAST_COPY: Amount(2, 20, 150),
        Danger.MOVING: Amount(1, 10, 100),
        Danger.UNRECOVERABLE: Amount(1),
        Danger.UNKNOWN: Amount(1),
    }
    assert world.progress.bookies == {"a": 3, "b": 1, "c": 1}
    world.progress.unmarked(2)
    world.progress.given_up(5)
    assert world.progress.bookies == {"a": 1, "b": 1, "c": 1}
    classes = world.progress.classes
    assert classes is not None
    assert (classes[Danger.LAST_COPY], classes[Danger.UNRECOVERABLE]) == (Amount(1, 10, 100), Amount(2))
    assert classes[Danger.MISPLACED] == Amount()


def test_what_was_known_of_a_ledger_is_kept_while_it_waits() -> None:
    world = World()
    world.known = {1: candidate(1, Danger.LAST_COPY)}
    world.list(mark(1, "a"))
    world.known = {}
    world.list(mark(1, "a"), mark(2, "a"))
    assert world.seen(0.0).classes == {Danger.LAST_COPY: Amount(1, 10, 100), Danger.UNKNOWN: Amount(1)}


def test_what_is_done_has_a_rate_and_an_end() -> None:
    world = World()
    world.list(*(mark(number, "a") for number in range(10)), mark(10, "b"))
    first = world.seen(0.0)
    assert (first.ledgers_a_minute, first.seconds_left, first.began_ms) == (None, None, NOW_MS)
    for number in range(5):
        world.progress.unmarked(number)
    world.progress.given_up(9)
    second = world.seen(30.0)
    assert (second.ledgers_a_minute, second.seconds_left) == (12.0, 25.0)
    assert second.bookies == [OfBookie("a", 4, 6, 20.0), OfBookie("b", 1, 0, None)]


def test_the_oldest_lacks_copies_and_can_be_repaired() -> None:
    world = World()
    world.known = {
        number: candidate(number, danger)
        for number, danger in enumerate((Danger.MOVING, Danger.LAST_COPY, Danger.BELOW_ACK_QUORUM, Danger.LAST_COPY))
    }
    world.list(
        mark(0, "a", ctime_ms=1), mark(1, "a", ctime_ms=2), mark(2, "a", ctime_ms=3), mark(3, "a", ctime_ms=None)
    )
    assert world.seen(0.0).oldest == (1, 2)
    world.progress.given_up(1)
    assert world.seen(0.0).oldest == (2, 3)
    world.progress.unmarked(2)
    assert world.seen(0.0).oldest is None


def test_repairs_tell_what_is_copied_and_the_rates_are_those_of_all() -> None:
    world = World()
    world.known = {7: candidate(7, Danger.LAST_COPY)}
    world.list(mark(7, "a"))
    assert world.progress.told(0.0, NOW_MS) is not None
    world.repair(7, (0, 0), Copied())
    told = world.progress.told(0.0, NOW_MS)
    assert told is not None
    assert told.moving == [Moving(7, NOW_MS, 0, 0, 10, 100, "here")], "before the first look by its mark"
    world.repair(7, (20, 200), Copied(5, 60))
    world.copied.add(50, 600)
    told = world.progress.told(10.0, NOW_MS)
    assert told is not None
    assert told.moving == [Moving(7, NOW_MS, 5, 60, 20, 200, "here")]
    assert (told.holder, told.entries, told.entries_a_second, told.bytes_a_second) == ("here", 50, 5.0, 60.0)
    world.progress.ended(7)
    world.progress.unmarked(7)
    assert world.progress.told(11.0, NOW_MS) is None


def test_with_nothing_to_do_nothing_is_told_and_the_count_begins_anew() -> None:
    world = World()
    assert world.progress.classes is None
    assert world.progress.told(0.0, NOW_MS) is None
    world.list(mark(1, "a"), mark(3, "a"))
    world.seen(0.0)
    world.progress.unmarked(1)
    assert world.seen(30.0).ledgers_a_minute == 2.0
    world.progress.unmarked(3)
    assert world.progress.told(60.0, NOW_MS) is None
    world.list(mark(2, "a"), now_ms=NOW_MS + 1)
    seen = world.seen(120.0)
    assert (seen.began_ms, seen.ledgers_a_minute) == (NOW_MS + 1, None)
    assert seen.bookies == [OfBookie("a", 1, 0, None)]


def test_of_many_bookies_those_with_the_most_ledgers_are_told() -> None:
    world = World()
    world.list(*(mark(number, f"b{number}") for number in range(60)), mark(60, "b59"), mark(61, "b58"))
    names = [each.bookie_id for each in world.seen(0.0).bookies]
    assert len(names) == len(world.progress.bookies) == 50
    assert {"b58", "b59"} <= {*names}
