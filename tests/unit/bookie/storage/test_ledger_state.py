"""Key, fence and LAC of a ledger (P7, S7), and requests that never reach one."""

from __future__ import annotations

import struct

import pytest

from bookgate.bookie.protocol import admission
from bookgate.bookie.storage.ledger_state import BookieLedgerState, is_acceptable_key
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import AddRequest, ReadRequest, Status, WriteLacRequest

KEY, OTHER = b"k" * 20, b"o" * 20


def ledger() -> BookieLedgerState:
    return BookieLedgerState(LedgerId.unscoped(7), KEY)


def body(ledger_id: int = 7, entry_id: int = 3) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0)


def test_a_normal_add_needs_the_key_and_no_fence() -> None:
    state = ledger()
    assert state.check_add(KEY, recovery=False) is Status.EOK
    assert state.check_add(OTHER, recovery=False) is Status.EUA
    state.fenced = True
    assert state.check_add(KEY, recovery=False) is Status.EFENCED
    assert state.check_add(OTHER, recovery=False) is Status.EUA


def test_a_recovery_add_passes_the_fence_but_not_the_key() -> None:
    state = ledger()
    state.fenced = True
    assert state.check_add(KEY, recovery=True) is Status.EOK
    assert state.check_add(OTHER, recovery=True) is Status.EUA


@pytest.mark.parametrize("key", [KEY[:-1], KEY + b"k", b"", OTHER])
def test_keys_are_compared_whole(key: bytes) -> None:
    assert ledger().check_key(key) is Status.EUA


def test_the_known_lac_only_grows() -> None:
    state = ledger()
    assert state.known_lac == -1
    assert state.advance_lac(4)
    assert not state.advance_lac(4)
    assert not state.advance_lac(3)
    assert state.known_lac == 4


@pytest.mark.parametrize(("key", "acceptable"), [(KEY, True), (b"", False), (bytes(20), False), (b"\0\0\1", True)])
def test_unset_keys(key: bytes, acceptable: bool) -> None:
    assert is_acceptable_key(key) is acceptable


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (AddRequest(1, 7, 3, KEY, body()), Status.EOK),
        (AddRequest(1, 7, 3, KEY, body()[:31]), Status.EBADREQ),
        (AddRequest(1, -7, 3, KEY, body(-7)), Status.EBADREQ),
        (AddRequest(1, 7, -1, KEY, body(7, -1)), Status.EBADREQ),
        (AddRequest(1, 7, 4, KEY, body()), Status.EBADREQ),
        (AddRequest(1, 8, 3, KEY, body()), Status.EBADREQ),
        (AddRequest(1, 7, 3, b"", body()), Status.EUA),
        (AddRequest(1, 7, 3, bytes(20), body()), Status.EUA),
    ],
)
def test_adds_that_never_reach_a_ledger(request_: AddRequest, status: Status) -> None:
    assert admission.check_add(request_) is status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (ReadRequest(1, 7, 0), Status.EOK),
        (ReadRequest(1, 7, -1), Status.EOK),
        (ReadRequest(1, 7, -2), Status.EBADREQ),
        (ReadRequest(1, -7, 0), Status.EBADREQ),
        (ReadRequest(1, 7, -1, fence=True), Status.EUA),
        (ReadRequest(1, 7, -1, fence=True, master_key=b""), Status.EUA),
        (ReadRequest(1, 7, -1, fence=True, master_key=KEY), Status.EOK),
    ],
)
def test_reads_that_never_reach_a_ledger(request_: ReadRequest, status: Status) -> None:
    assert admission.check_read(request_) is status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (WriteLacRequest(1, 7, 5, KEY, body(7, 5)[:20]), Status.EOK),
        (WriteLacRequest(1, 7, 5, KEY, body(7, 5)[:15]), Status.EBADREQ),
        (WriteLacRequest(1, 8, 5, KEY, body(7, 5)[:20]), Status.EBADREQ),
        (WriteLacRequest(1, 7, 5, KEY, body(7, -2)[:20]), Status.EBADREQ),
        (WriteLacRequest(1, 7, 5, bytes(20), body(7, 5)[:20]), Status.EUA),
    ],
)
def test_explicit_lacs_that_never_reach_a_ledger(request_: WriteLacRequest, status: Status) -> None:
    assert admission.check_write_lac(request_) is status
