"""What a connection remembers of decisions: until the policy is another one, or a ledger's owner may be."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any, NamedTuple, cast, get_args

import pytest

from bookgate.bookie.protocol import ledger_owners
from bookgate.bookie.protocol.entry_access import ASK_NOBODY, Answer, EntryAccess
from bookgate.bookie.protocol.ledger_owners import LedgerOwners
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException, WrongClusterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.messages import (
    OPERATIONS,
    AddRequest,
    InvalidRequest,
    Operation,
    ReadRequest,
    Request,
    Status,
)
from bookgate.protos.bookkeeper.proto.bookkeeper_protocol_pb2 import OperationType
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import ENTRY_ACTIONS
from bookgate.runtime.security.audit_trail import AUDIT_LOGGER
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal

OWNED = parse_policy("""
[[bindings]]
principals = ["token:*"]
role = "writer"
owned = true
""")
A, B = Principal(Kind.TOKEN, "a"), Principal(Kind.TOKEN, "b")
ADD = AddRequest(1, 7, 0, b"key", b"body", False)
READ = ReadRequest(2, 7, 0)


class Ledgers:
    """Owners by id."""

    def __init__(self) -> None:
        self.owners = {7: "token:a"}
        self.asked = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.is_of_another_cluster = False

    async def verify(self) -> None:
        if self.is_of_another_cluster:
            raise WrongClusterException("another cluster's")

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        self.asked += 1
        owner = self.owners.get(ledger_id.low)
        await self.go_on.wait()
        if owner is None:
            raise NoSuchLedgerExistsOnMetadataServerException("none")
        custom = {OWNER_KEY: owner.encode()}
        return LedgerRecord(ledger_id, LedgerMetadata.new(["b"], 1, 1, custom_metadata=custom), 0)


def entry_access(ledgers: Ledgers, control: AccessControl) -> EntryAccess:
    return EntryAccess(control, LedgerOwners(cast(Any, ledgers), ledgers.verify), lambda: 0.0)


@pytest.mark.asyncio
async def test_an_owner_is_learnt_once_and_forgotten_with_its_ledger() -> None:
    ledgers = Ledgers()
    access = entry_access(ledgers, AccessControl(Authenticators(), OWNED))
    first, second = access.guard(A, "peer"), access.guard(B, "peer")
    assert first.check(ADD) is Answer.OWNER_UNKNOWN
    assert await access.owners.learn(7)
    assert (first.check(ADD), second.check(ADD)) == (Answer.ALLOWED, Answer.DENIED)
    assert 7 in first.may_add
    assert ledgers.asked == 1
    # Deleted, and made again by somebody else under the same id.
    ledgers.owners[7] = "token:b"
    access.owners.forget([7, 8])
    first.refresh()
    assert 7 not in first.may_add
    assert first.check(ADD) is Answer.OWNER_UNKNOWN
    assert await access.owners.learn(7)
    second.refresh()
    assert (first.check(ADD), second.check(ADD)) == (Answer.DENIED, Answer.ALLOWED)


@pytest.mark.asyncio
async def test_decisions_end_with_a_ledger_whose_owner_was_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_owners, "_MOST", 3)
    ledgers = Ledgers()
    access = entry_access(ledgers, AccessControl(Authenticators(), OWNED))
    owners, first = access.owners, access.guard(A, "peer")
    await owners.learn(7)
    assert (first.check(ADD), first.check(READ)) == (Answer.ALLOWED, Answer.ALLOWED)
    for other in (100, 101, 102):
        ledgers.owners[other] = "token:c"
        await owners.learn(other)
    assert not owners.knows(7)
    owners.forget([])
    first.refresh()
    assert 7 in first.may_add, "nothing was deleted"
    ledgers.owners[7] = "token:b"
    owners.forget([7])
    first.refresh()
    assert not first.may_add | first.may_read
    assert first.check(READ) is Answer.OWNER_UNKNOWN
    # Nothing has been pushed out since: who never had an owner here costs nobody a decision.
    generation = owners.generation
    owners.forget([8])
    assert owners.generation == generation


@pytest.mark.asyncio
async def test_what_is_deleted_while_its_owner_is_asked_for_is_asked_for_again() -> None:
    ledgers = Ledgers()
    access = entry_access(ledgers, AccessControl(Authenticators(), OWNED))
    ledgers.go_on.clear()
    learning = asyncio.create_task(access.owners.learn(7))
    await asyncio.sleep(0)
    ledgers.owners[7] = "token:b"
    access.owners.forget([7])
    ledgers.go_on.set()
    assert await learning
    assert access.owners.owner(7) == "token:b"


async def test_what_another_clusters_store_lacks_is_not_nobodys(virtual_time: None) -> None:
    ledgers = Ledgers()
    owners = entry_access(ledgers, AccessControl(Authenticators(), OWNED)).owners
    assert not await owners.learn(8)
    ledgers.is_of_another_cluster = True
    with pytest.raises(WrongClusterException):
        await owners.learn(8)


@pytest.mark.asyncio
async def test_another_policy_forgets_what_was_decided() -> None:
    policy = SimpleNamespace(value=OWNED, problem=None)
    control = AccessControl(Authenticators(), cast(Any, policy))
    access = entry_access(Ledgers(), control)
    await access.owners.learn(7)
    guard = access.guard(A, "peer")
    assert (guard.check(ADD), guard.check(READ)) == (Answer.ALLOWED, Answer.ALLOWED)
    policy.value = parse_policy("""
[[bindings]]
principals = ["token:a"]
role = "reader"
""")
    guard.refresh()
    assert not guard.may_add
    assert (guard.check(ADD), guard.check(READ)) == (Answer.DENIED, Answer.ALLOWED)
    assert control.counts["entry", "token", "denied"] == 1


def test_every_operation_and_every_request_of_the_wire_has_an_action() -> None:
    assert {each.value for each in Operation} == set(OperationType.values())
    assert set(ENTRY_ACTIONS) == set(Operation)
    assert set(get_args(Request)) == {*OPERATIONS, *ASK_NOBODY}
    assert not ASK_NOBODY & set(OPERATIONS)
    # BookKeeper names these and has no messages for them.
    unused = {Operation.RANGE_READ_ENTRY, Operation.RANGE_ADD_ENTRY}
    assert sorted(OPERATIONS.values()) == sorted(set(Operation) - unused)


class _Novelty(NamedTuple):
    """A request that the table of actions does not have."""

    txn_id: int
    ledger_id: int


def test_a_request_without_an_action_is_denied_whoever_asks(caplog: pytest.LogCaptureFixture) -> None:
    everything = parse_policy('[[bindings]]\nprincipals = ["*"]\nrole = "admin"\n')
    control = AccessControl(Authenticators(), everything)
    guard = entry_access(Ledgers(), control).guard(A, "peer")
    assert guard.check(InvalidRequest(1, 99, Status.EBADREQ)) is Answer.ALLOWED
    assert guard.check(cast(Any, _Novelty(1, 7))) is Answer.DENIED
    assert control.counts["entry", "token", "denied"] == 1
    assert "action=_Novelty" in caplog.text


@pytest.mark.asyncio
async def test_the_trail_has_the_first_of_each_action_and_ledger_on_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Allowed or denied, and again after a deletion; what is nobody's is denied with a line each time."""
    caplog.set_level("INFO", AUDIT_LOGGER)
    access = entry_access(Ledgers(), AccessControl(Authenticators(), OWNED))
    await access.owners.learn(7)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [" ".join(re.findall(r"(?:action|outcome)=(\S+)", line)) for line in found]

    first, second = access.guard(A, "peer"), access.guard(B, "peer")
    for _ in range(3):
        first.check(ADD)
        second.check(ADD)
        second.check(READ)
    assert lines() == ["entry.add allowed", "entry.add denied", "entry.read denied"]
    access.guard(B, "peer").check(ADD)
    assert lines() == ["entry.add denied"]
    access.owners.forget([7])
    await access.owners.learn(7)
    second.refresh()
    second.check(ADD)
    assert lines() == ["entry.add denied"]
    second.deny(ADD)
    second.deny(ADD)
    assert lines() == ["entry.add denied"] * 2
