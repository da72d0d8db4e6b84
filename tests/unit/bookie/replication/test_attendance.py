"""For how long bookies have been away, as one process has seen it."""

from __future__ import annotations

from bookgate.bookie.replication.attendance import Attendance
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.metadata_store import RegisteredBookie


def bookie(name: str, *, writable: bool = True, read_only: bool = False) -> RegisteredBookie:
    return RegisteredBookie(BookieServiceInfo(name, ()), writable, read_only)


def test_absence_is_counted_without_interruption() -> None:
    attendance = Attendance()
    assert not attendance.told
    attendance.hear([bookie("a"), bookie("b", writable=False, read_only=True)], 0.0)
    assert attendance.told
    assert attendance.present == {"a": False, "b": True}
    assert attendance.away_seconds("a", 5.0) is None
    attendance.hear([bookie("b"), bookie("a", writable=False)], 10.0)
    assert attendance.away_seconds("a", 15.0) == 5.0
    assert attendance.hear([bookie("a"), bookie("b")], 20.0) == ["a"]
    assert attendance.away_seconds("a", 20.0) is None
    attendance.hear([bookie("b")], 30.0)
    assert attendance.away_seconds("a", 31.0) == 1.0


def test_one_that_was_never_seen_is_away_since_it_was_asked_for() -> None:
    attendance = Attendance()
    attendance.hear([], 0.0)
    assert attendance.away_seconds("a", 100.0) == 0.0
    assert attendance.away_seconds("a", 130.0) == 30.0


def test_who_was_reported_once_stays_a_member() -> None:
    """A cookie that is deleted makes nobody a bookie that never was."""
    attendance = Attendance()
    attendance.hear([bookie("a"), bookie("with a cookie", writable=False)], 0.0)
    attendance.away_seconds("asked for", 1.0)
    attendance.hear([bookie("b")], 10.0)
    assert attendance.members == {"a", "with a cookie", "b"}
