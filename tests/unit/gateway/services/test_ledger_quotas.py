"""Quotas of ledgers: what is counted, what is reserved, and what changes while a count is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.gateway.services.caller import Caller, OverLimitException, QuotaReachedException
from bookgate.gateway.services.ledger_quotas import LedgerQuotas
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import RawLedgerRecord
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import LOCAL, Kind, Principal

pytestmark = pytest.mark.asyncio

POLICY = """
[[limits]]
principals = ["token:a"]
ledgers = 2
[[quotas]]
scopes = ["7"]
ledgers = 3
"""
A, B = Principal(Kind.TOKEN, "a"), Principal(Kind.TOKEN, "b")


class _Store:
    """Owners by scope and id; counts the metadata that are read of it."""

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, str | None]] = {0: {}}
        self.read = 0
        self.listed = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        yield [scope for scope in self.ledgers if scope]

    async def ledger_ranges(self, scope_id: int = 0) -> AsyncIterator[Sequence[int]]:
        numbers = sorted(self.ledgers[scope_id])
        self.listed.set()
        await self.go_on.wait()
        if numbers:
            yield numbers

    async def read_listed(self, ledger_ids: Sequence[LedgerId], max_bytes: int) -> list[RawLedgerRecord | BKException]:
        self.read += len(ledger_ids)
        return [self._stored(each) for each in ledger_ids]

    def _stored(self, ledger_id: LedgerId) -> RawLedgerRecord | BKException:
        if ledger_id.low not in self.ledgers[ledger_id.scope_id]:
            return NoSuchLedgerExistsOnMetadataServerException("it is gone")
        owner = self.ledgers[ledger_id.scope_id][ledger_id.low]
        custom = {} if owner is None else {OWNER_KEY: owner.encode()}
        return RawLedgerRecord(ledger_id, encode(LedgerMetadata.new(["b"], 1, 1, custom_metadata=custom)), 0)


class _Gateway:
    def __init__(self, policy: str = POLICY) -> None:
        self.store = _Store()
        factory = cast(Any, SimpleNamespace(ledger_manager=self.store))
        self.access = AccessControl(Authenticators(), parse_policy(policy))
        self.quotas = LedgerQuotas(factory, StoreBudget(10), self.access)
        self._next = 1000

    def create(self, principal: Principal, scope_id: int = 0, count: int = 1) -> None:
        who = Caller(self.access, principal, "peer")
        with self.quotas.room(who, [scope_id] * count):
            for _ in range(count):
                self._next += 1
                ledger_id = LedgerId(scope_id, self._next)
                self.store.ledgers.setdefault(scope_id, {})[self._next] = str(principal)
                self.quotas.created(ledger_id, str(principal))

    def remove(self, scope_id: int, number: int) -> None:
        del self.store.ledgers[scope_id][number]
        self.quotas.removed(LedgerId(scope_id, number))


async def test_an_owner_creates_up_to_its_quota_and_again_when_it_has_deleted() -> None:
    gateway = _Gateway()
    gateway.store.ledgers[0] = {1: "token:a", 2: "token:b", 3: None}
    await gateway.quotas.count()
    gateway.create(A)
    with pytest.raises(QuotaReachedException, match="token:a has 2 ledgers, and its quota is 2"):
        gateway.create(A)
    gateway.create(B, count=5)
    gateway.create(LOCAL)
    gateway.remove(0, 1)
    gateway.create(A)
    with pytest.raises(QuotaReachedException):
        gateway.create(A)
    assert gateway.access.counts["grpc", "token", "quota"] == 2


async def test_a_scope_has_its_quota_whoever_creates() -> None:
    gateway = _Gateway()
    await gateway.quotas.count()
    with pytest.raises(QuotaReachedException, match="scope 7 has 0 ledgers, and its quota is 3"):
        gateway.create(B, 7, count=4)
    gateway.create(A, 7)
    gateway.create(B, 7, count=2)
    with pytest.raises(QuotaReachedException):
        gateway.create(B, 7)
    gateway.create(B, 8, count=4)


async def test_what_is_being_created_counts() -> None:
    gateway = _Gateway()
    await gateway.quotas.count()
    who = Caller(gateway.access, A, "peer")
    with gateway.quotas.room(who, [0, 0]), pytest.raises(QuotaReachedException):
        gateway.create(A)
    gateway.create(A, count=2)


async def test_what_may_have_been_created_counts_until_a_count_has_looked() -> None:
    gateway = _Gateway()
    await gateway.quotas.count()
    who = Caller(gateway.access, A, "peer")
    for number in (1, 2):
        with gateway.quotas.room(who, [0]):
            gateway.quotas.in_doubt(who, 0)
        gateway.store.ledgers[0][number] = "token:a"
    with pytest.raises(QuotaReachedException):
        gateway.create(A)
    await gateway.quotas.count()
    assert gateway.quotas.owned_by("token:a") == 2
    gateway.remove(0, 1)
    gateway.create(A)


async def test_before_the_first_count_it_is_to_be_tried_again() -> None:
    gateway = _Gateway()
    with pytest.raises(OverLimitException, match="are being counted") as told:
        gateway.create(A)
    assert not isinstance(told.value, QuotaReachedException)
    gateway.create(B)
    await gateway.quotas.count()
    assert gateway.quotas.owned_by("token:b") == 1
    gateway.create(A)


async def test_changes_during_a_count_are_in_it() -> None:
    gateway = _Gateway()
    gateway.store.ledgers[0] = {1: "token:a"}
    await gateway.quotas.count()
    gateway.store.go_on.clear()
    gateway.store.listed.clear()
    counting = asyncio.create_task(gateway.quotas.count())
    await gateway.store.listed.wait()
    gateway.create(A)
    gateway.remove(0, 1)
    gateway.store.go_on.set()
    await counting
    assert gateway.quotas.owned_by("token:a") == 1
    assert gateway.quotas.in_scope(0) == 1


async def test_a_count_reads_what_it_has_not_read_before_and_sees_what_others_did() -> None:
    gateway = _Gateway()
    gateway.store.ledgers[0] = dict.fromkeys(range(100), "token:a")
    await gateway.quotas.count()
    # The next count reads ledgers 1 and 61 again, if they are there.
    gateway.store.ledgers[0] = {99: "token:a", 100: "token:b"}
    await gateway.quotas.count()
    assert (gateway.store.read, gateway.quotas.owned_by("token:a")) == (101, 1)
    without_owners = _Gateway("[[quotas]]\nledgers = 5\n")
    without_owners.store.ledgers[0] = {1: None}
    await without_owners.quotas.count()
    assert (without_owners.store.read, without_owners.quotas.in_scope(0)) == (0, 1)


async def test_owners_of_ids_that_another_gateway_used_again_are_learnt_within_sixty_counts() -> None:
    gateway = _Gateway()
    gateway.store.ledgers = {0: dict.fromkeys(range(90), "token:a"), 7: {1: "token:b", 2: None}}
    await gateway.quotas.count()
    gateway.store.ledgers = {0: dict.fromkeys(range(90), "token:b") | {89: None}, 7: {1: None, 2: "token:a"}}
    read = gateway.store.read
    for _ in range(60):
        await gateway.quotas.count()
    assert (gateway.quotas.owned_by("token:a"), gateway.quotas.owned_by("token:b")) == (1, 89)
    # A part with each count, and all of them once.
    assert gateway.store.read - read == 92


async def test_an_owner_stays_known_where_its_ledger_can_not_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = _Gateway()
    gateway.store.ledgers[0] = {1: "token:a"}
    await gateway.quotas.count()
    monkeypatch.setattr(gateway.store, "_stored", lambda _: BKException("not now"))
    for _ in range(60):
        await gateway.quotas.count()
    assert gateway.quotas.owned_by("token:a") == 1
