"""A bookie's mode: every cause of being read-only, and that none ends another."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.mode.mode import BookieMode, BookieStatus, Cause, Change, ModeRefusedException
from bookgate.bookie.protocol import admission
from bookgate.ledger.wire.messages import AddRequest, Status, WriteLacRequest


def test_a_new_bookie_is_writable() -> None:
    mode = BookieMode()
    mode.start()
    assert mode.running
    assert not mode.read_only
    assert mode.takes_high_priority


def test_full_disks_and_back() -> None:
    mode = BookieMode()
    assert mode.disks_full(high_priority=True) is Change.TO_READ_ONLY
    assert mode.disks_full(high_priority=True) is Change.NONE
    assert mode.read_only
    assert mode.takes_high_priority
    assert mode.disks_full(high_priority=False) is Change.NONE
    assert not mode.takes_high_priority
    assert mode.disks_writable() is Change.TO_READ_WRITE
    assert not mode.read_only
    assert mode.takes_high_priority


def test_a_write_without_space_refuses_recovery_as_well_until_it_is_made_good() -> None:
    mode = BookieMode()
    assert mode.out_of_space() is Change.TO_READ_ONLY
    assert not mode.takes_high_priority
    assert mode.disks_full(high_priority=True) is Change.NONE
    assert not mode.takes_high_priority
    assert mode.disks_writable() is Change.NONE
    assert mode.space_returned() is Change.TO_READ_WRITE
    assert mode.takes_high_priority


def test_the_operators_hold_outlasts_the_disks_and_the_other_way_round() -> None:
    mode = BookieMode()
    assert mode.set_by_operator(True) is Change.TO_READ_ONLY
    assert mode.disks_full(high_priority=True) is Change.NONE
    assert mode.disks_writable() is Change.NONE
    assert mode.read_only
    mode.disks_full(high_priority=True)
    assert mode.set_by_operator(False) is Change.NONE
    assert mode.describe() == Cause.DISK_USAGE.value
    assert mode.disks_writable() is Change.TO_READ_WRITE
    assert mode.set_by_operator(True) is Change.TO_READ_ONLY
    assert mode.set_by_operator(False) is Change.TO_READ_WRITE


def test_forced_is_for_good() -> None:
    mode = BookieMode(force_read_only=True)
    mode.restore(BookieStatus(read_only=False, manual=False, updated_ms=1))
    assert mode.read_only
    assert mode.disks_writable() is Change.NONE
    assert mode.read_only
    with pytest.raises(ModeRefusedException, match="force_read_only"):
        mode.set_by_operator(False)


def test_without_read_only_mode_the_bookie_stops() -> None:
    mode = BookieMode(read_only_enabled=False)
    assert mode.disks_full(high_priority=True) is Change.STOP
    assert mode.out_of_space() is Change.STOP
    assert not mode.read_only
    with pytest.raises(ModeRefusedException, match="read_only_mode_enabled"):
        mode.set_by_operator(True)


def test_a_restored_status_ends_with_the_first_good_measurement_unless_it_was_manual() -> None:
    automatic = BookieMode()
    automatic.restore(BookieStatus(read_only=True, manual=False, updated_ms=1))
    assert automatic.read_only
    assert automatic.disks_writable() is Change.TO_READ_WRITE
    manual = BookieMode()
    manual.restore(BookieStatus(read_only=True, manual=True, updated_ms=1))
    assert manual.read_only
    assert manual.disks_writable() is Change.NONE
    assert manual.set_by_operator(False) is Change.TO_READ_WRITE


def test_shutting_down_is_read_only_and_stays_so() -> None:
    mode = BookieMode()
    mode.start()
    mode.shut_down()
    assert (mode.running, mode.shutting_down, mode.read_only) == (False, True, True)
    assert mode.disks_writable() is Change.NONE
    assert mode.set_by_operator(False) is Change.NONE
    assert mode.read_only


EVENTS = {
    "full": lambda mode: mode.disks_full(high_priority=True),
    "tight": lambda mode: mode.disks_full(high_priority=False),
    "writable": lambda mode: mode.disks_writable(),
    "no space": lambda mode: mode.out_of_space(),
    "space": lambda mode: mode.space_returned(),
    "hold": lambda mode: mode.set_by_operator(True),
    "release": lambda mode: mode.set_by_operator(False),
}


@given(st.lists(st.sampled_from(sorted(EVENTS))))
def test_it_is_read_only_exactly_while_something_holds_and_tells_every_change(events: list[str]) -> None:
    mode = BookieMode()
    for event in events:
        before = mode.read_only
        change = EVENTS[event](mode)
        assert mode.read_only == bool(mode.manual or mode.causes)
        expected = {
            (False, True): Change.TO_READ_ONLY,
            (True, False): Change.TO_READ_WRITE,
        }.get((before, mode.read_only), Change.NONE)
        assert change is expected
        assert mode.takes_high_priority or mode.read_only
        assert bool(mode.describe()) == mode.read_only


# --- what it means for requests ---

KEY = b"k" * 20


def add_of(priority: int) -> AddRequest:
    return AddRequest(1, 7, 3, KEY, struct.pack(">qqqq", 7, 3, 2, 0), recovery=priority > 0, priority=priority)


LAC = WriteLacRequest(1, 7, 2, KEY, struct.pack(">qq", 7, 2) + bytes(4))


@pytest.mark.parametrize(
    ("event", "normal", "high"),
    [
        ("writable", Status.EOK, Status.EOK),
        ("full", Status.EREADONLY, Status.EOK),
        ("tight", Status.EREADONLY, Status.EREADONLY),
        ("no space", Status.EREADONLY, Status.EREADONLY),
        ("hold", Status.EREADONLY, Status.EOK),
    ],
)
def test_which_adds_a_mode_takes(event: str, normal: Status, high: Status) -> None:
    mode = BookieMode()
    EVENTS[event](mode)
    assert admission.check_add(add_of(0), mode) is normal
    assert admission.check_add(add_of(100), mode) is high
    assert admission.check_write_lac(LAC, mode) is normal


def test_a_read_only_bookie_says_so_before_it_looks_at_the_request() -> None:
    mode = BookieMode(force_read_only=True)
    assert admission.check_add(AddRequest(1, -7, -3, b"", b""), mode) is Status.EREADONLY
