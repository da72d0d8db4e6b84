"""A new ledger whose first entries bookies refuse: what its creator is told, and what becomes of the ledger."""

from __future__ import annotations

import asyncio

import pytest

from bookgate.ledger.errors import (
    LedgerFencedException,
    LedgerIdReusedException,
    LedgerIdTakenException,
    UnauthorizedAccessException,
)
from bookgate.ledger.metadata import LedgerState
from tests.unit.thinclient.fakes import FakeCluster, RawLedgerRecord, fake_cluster

OTHER_KEY = b"another"


def hold(cluster: FakeCluster, ledger_id: int, key: bytes, *, fenced: bool = False) -> None:
    """Has every bookie hold a ledger of this id."""
    for bookie in cluster.bookies:
        bookie.ledgers[ledger_id] = RawLedgerRecord(key, fenced=fenced)


@pytest.mark.asyncio
@pytest.mark.parametrize("given", [None, 0])
async def test_a_key_that_is_refused_says_that_the_id_is_taken(given: int | None) -> None:
    async with fake_cluster() as cluster:
        hold(cluster, 0, OTHER_KEY)
        ledger = await cluster.client().create_ledger(password=b"planted-p", ledger_id=given)
        outcomes = await asyncio.gather(*(ledger.append(b"x") for _ in range(5)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {LedgerIdTakenException}
        assert "create another ledger" in str(outcomes[0])
        assert (ledger.ledger_id in cluster.metadata.records) is (given is not None)
        with pytest.raises(LedgerIdTakenException):
            await ledger.append(b"y")
        with pytest.raises(LedgerIdTakenException):
            await ledger.close()


@pytest.mark.asyncio
async def test_an_earlier_fenced_ledger_of_the_id_is_told_and_nothing_deleted() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(password=b"planted-p")
        other = await cluster.client().create_ledger(password=b"planted-p")
        await other.append(b"sets the key")
        key = cluster.ensemble(other.metadata)[0].ledgers[other.ledger_id.low].master_key
        hold(cluster, ledger.ledger_id.low, key, fenced=True)
        with pytest.raises(LedgerIdReusedException, match="advance-ids"):
            await ledger.append(b"x")
        assert cluster.metadata.records[ledger.ledger_id].metadata.state is LedgerState.OPEN


@pytest.mark.asyncio
async def test_a_new_ledger_that_another_client_recovered_is_fenced_as_ever() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(password=b"planted-p")
        await cluster.client().open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        with pytest.raises(LedgerFencedException) as told:
            await ledger.append(b"x")
        assert type(told.value) is LedgerFencedException


@pytest.mark.asyncio
async def test_after_an_acknowledged_entry_a_refusal_is_what_it_was() -> None:
    async with fake_cluster() as cluster:
        ledger = await cluster.client().create_ledger(password=b"planted-p")
        await ledger.append(b"x")
        hold(cluster, ledger.ledger_id.low, OTHER_KEY)
        with pytest.raises(UnauthorizedAccessException) as told:
            await ledger.append(b"y")
        assert type(told.value) is UnauthorizedAccessException
        assert ledger.ledger_id in cluster.metadata.records


@pytest.mark.asyncio
async def test_a_client_closed_meanwhile_leaves_nobody_waiting() -> None:
    async with fake_cluster() as cluster:
        hold(cluster, 0, OTHER_KEY)
        client = cluster.client()
        ledger = await client.create_ledger(password=b"planted-p")
        reading = asyncio.Event()

        async def read_for_ever(ledger_id: object) -> None:
            reading.set()
            await asyncio.Event().wait()

        cluster.metadata.read = read_for_ever  # type: ignore[method-assign, assignment]
        append = asyncio.create_task(ledger.append(b"x"))
        await reading.wait()
        await client.close()
        with pytest.raises(UnauthorizedAccessException):
            await append
