"""What passes before a connection is authenticated or secured: the rows of the state table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bookgate.bookie.protocol.auth_gate import AuthenticationException, Gate, GateVerdict
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import AuthRequest, AuthResponse, Operation, Request, Status, StatusResponse

PLUGIN = "two-steps"
EUA = Status.EUA


class TwoSteps:
    """Content after `one`, then `two`."""

    authenticated = False

    def process(self, payload: bytes) -> bytes:
        if payload == b"one":
            return b"go on"
        if payload == b"two":
            self.authenticated = True
            return b"welcome"
        raise AuthenticationException("neither one nor two")

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        pass


def new_gate(*, tls_required: bool = False) -> Gate:
    return Gate(TwoSteps(), PLUGIN, tls_required=tls_required)


V3: list[tuple[Request, int]] = [
    (messages.AddRequest(5, 1, 2, b"k", b"b", priority=100), Operation.ADD_ENTRY),
    (messages.ReadRequest(5, 1, 2, priority=100), Operation.READ_ENTRY),
    (messages.ReadLacRequest(5, 1), Operation.READ_LAC),
    (messages.WriteLacRequest(5, 1, 2, b"k", b"b"), Operation.WRITE_LAC),
    (messages.ForceLedgerRequest(5, 1), Operation.FORCE_LEDGER),
    (messages.GetBookieInfoRequest(5), Operation.GET_BOOKIE_INFO),
    (messages.ListEntriesRequest(5, 1), Operation.GET_LIST_OF_ENTRIES_OF_LEDGER),
    (messages.StartTlsRequest(5, complete=False), Operation.START_TLS),
    (messages.InvalidRequest(5, 12, Status.EBADREQ, priority=100), Operation.BATCH_READ_ENTRY),
]


@pytest.mark.parametrize(("request_", "operation"), V3, ids=[str(operation) for _, operation in V3])
def test_v3_requests_are_unauthorised_with_their_own_header(request_: Request, operation: int) -> None:
    answer = StatusResponse(5, operation, EUA, getattr(request_, "priority", 0))
    assert new_gate().check(request_, binary=False) == GateVerdict(answer=answer)


def test_both_steps_open_it() -> None:
    gate = new_gate()
    first = gate.check(AuthRequest(1, PLUGIN, b"one", 100), binary=False)
    assert first == GateVerdict(answer=AuthResponse(1, Status.EOK, PLUGIN, b"go on", 100))
    assert not gate.is_open
    gate.check(AuthRequest(2, PLUGIN, b"two"), binary=False)
    assert gate.is_open
    assert gate.check(messages.ReadLacRequest(5, 1), binary=False).passes


def test_another_plugin_is_refused_and_may_be_followed_by_the_right_one() -> None:
    gate = new_gate()
    verdict = gate.check(AuthRequest(1, "other", b"one"), binary=False)
    assert verdict == GateVerdict(answer=StatusResponse(1, Operation.AUTH, EUA))
    assert gate.check(AuthRequest(1, PLUGIN, b"one"), binary=False).answer is not None


def test_a_failed_step_ends_the_connection() -> None:
    verdict = new_gate().check(AuthRequest(1, PLUGIN, b"three", 7), binary=False)
    assert verdict.answer == StatusResponse(1, Operation.AUTH, EUA, 7)
    assert verdict.ends == "authentication failed: neither one nor two"


def test_the_binary_protocol() -> None:
    gate = new_gate()
    add, read = messages.AddRequest(0, 1, 2, b"k", b"b"), messages.ReadRequest(0, 1, 2)
    assert gate.check(add, binary=True) == GateVerdict(answer=messages.AddResponse(0, EUA, 1, 2))
    assert gate.check(read, binary=True) == GateVerdict(answer=messages.ReadResponse(0, EUA, 1, 2))
    assert gate.check(messages.BatchReadRequest(0, 1, 2, 3, 4), binary=True).ends
    assert gate.check(AuthRequest(0, "other", b"one"), binary=True)[1:] == (
        None,
        "authentication by 'other' is not possible here",
    )
    assert gate.check(AuthRequest(0, PLUGIN, b"three"), binary=True).answer is None
    assert gate.check(AuthRequest(0, PLUGIN, b"two"), binary=True).answer == AuthResponse(0, 0, PLUGIN, b"welcome")
    assert gate.is_open


def test_no_secret_is_taken_in_clear_where_tls_is_demanded() -> None:
    gate = new_gate(tls_required=True)
    assert gate.check(AuthRequest(1, PLUGIN, b"two"), binary=False) == GateVerdict(
        answer=StatusResponse(1, Operation.AUTH, EUA)
    )
    assert gate.check(messages.StartTlsRequest(2), binary=False).passes
    gate.secured(None)
    assert not gate.is_open
    gate.check(AuthRequest(3, PLUGIN, b"two"), binary=False)
    assert gate.is_open


def test_tls_alone_may_be_demanded() -> None:
    gate = Gate(None, None, tls_required=True)
    assert not gate.is_open
    assert gate.check(messages.ReadLacRequest(5, 1), binary=False).answer is not None
    gate.secured(None)
    assert gate.is_open
