"""Recoveries and take-overs end, with a result or a typed error, whatever other clients have stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookgate.ledger.bookie_info import FEATURES_PROPERTY, LEDGER_TERM
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.errors import LedgerRecoveryException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import create_unbounded, terms_of
from bookgate.ledger.wire.messages import AddRequest, ReadResponse, Response, Status
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.recovery import LedgerRecovery
from bookgate.thinclient.core.unbounded.taking_over import TakeOver
from bookgate.thinclient.handles.context import LedgerSecrets
from tests.unit.thinclient.fakes import FakeBookie, FakeCluster, RawLedgerRecord, fake_cluster

PASSWORD = b"planted-p"
NUMBER = 77
Packet = tuple[int, int, int, bytes]
"""Entry id, LAC, length, payload."""


def client_of(cluster: FakeCluster) -> BookKeeper:
    """Of bookies that honour terms."""
    cluster.discovery.properties = {FEATURES_PROPERTY: LEDGER_TERM}
    return cluster.client(read_timeout_seconds=1.0, add_timeout_seconds=1.0, ensemble_change_timeout_seconds=2.0)


async def stored(
    cluster: FakeCluster, *fragments: Fragment, unbounded: bool = False, ack_quorum_size: int = 2
) -> LedgerRecord:
    """The metadata of a ledger with these fragments, as another client may have stored them."""
    metadata = LedgerMetadata(3, 3, ack_quorum_size, fragments=fragments, password=PASSWORD)
    metadata = create_unbounded(metadata) if unbounded else metadata
    return await cluster.metadata.create(LedgerId.unscoped(NUMBER), metadata)


def put(record: LedgerRecord, bookies: Iterable[FakeBookie], *packets: Packet) -> None:
    """Packets on these bookies, with the right digest."""
    secrets = LedgerSecrets.of(record.metadata, PASSWORD, ClientConfig())
    for bookie in bookies:
        ledger = bookie.ledgers.setdefault(NUMBER, RawLedgerRecord(secrets.master_key))
        for entry_id, lac, length, payload in packets:
            ledger.entries[entry_id] = encode_entry(secrets.digest, NUMBER, entry_id, lac, length, payload)


def honour_terms(cluster: FakeCluster, record: LedgerRecord) -> None:
    """Makes the bookies respond with the ledger's term."""

    def with_term(response: Response) -> Response:
        if not isinstance(response, ReadResponse):
            return response
        term = terms_of(cluster.metadata.records[record.ledger_id].metadata).term
        return response._replace(term=term, lafr=-1)

    for bookie in cluster.bookies:
        bookie.tamper = with_term


def ids(bookies: Iterable[FakeBookie]) -> tuple[str, ...]:
    return tuple(bookie.bookie_id for bookie in bookies)


async def recovered(cluster: FakeCluster, record: LedgerRecord) -> LedgerMetadata:
    async with asyncio.timeout(30):
        async with await client_of(cluster).open_ledger(record.ledger_id, PASSWORD, recovery=True) as reader:
            return reader.metadata


def no_adds(request: object) -> Status | None:
    return Status.EIO if isinstance(request, AddRequest) else None


# Lengths


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("length", [-5, 0, 2**63 - 1])
async def test_a_copy_whose_length_can_not_be_is_as_good_as_none(length: int) -> None:
    """Entry 0 is asked for its length, since the last fragment is empty."""
    async with fake_cluster(5) as cluster:
        before, last = cluster.bookies[:3], cluster.bookies[2:]
        record = await stored(cluster, Fragment(0, ids(before)), Fragment(1, ids(last)))
        put(record, before[:1], (0, -1, length, b"x"))
        put(record, before[1:2], (0, -1, 1, b"x"))
        metadata = await recovered(cluster, record)
        assert (metadata.last_entry_id, metadata.length) == (0, 1)


@pytest.mark.usefixtures("virtual_time")
async def test_recovery_says_which_copies_have_a_length_that_can_not_be() -> None:
    async with fake_cluster(3) as cluster:
        record = await stored(cluster, Fragment(0, ids(cluster.bookies)))
        put(record, cluster.bookies, (0, 0, -5, b"x"))
        with pytest.raises(LedgerRecoveryException, match=f"ledger {NUMBER}.*length -5 in entry 0,") as caught:
            await recovered(cluster, record)
        assert {*caught.value.bookies} == {*ids(cluster.bookies)}


@pytest.mark.usefixtures("virtual_time")
async def test_a_length_that_can_not_be_before_an_empty_fragment_fails_recovery() -> None:
    async with fake_cluster(4) as cluster:
        before, last = ids(cluster.bookies[:3]), ids(cluster.bookies[1:])
        record = await stored(cluster, Fragment(0, before), Fragment(1, last))
        put(record, cluster.bookies[:3], (0, -1, -5, b"x"))
        with pytest.raises(LedgerRecoveryException, match="ledger length -5 in entry 0,"):
            await recovered(cluster, record)


@pytest.mark.usefixtures("virtual_time")
async def test_a_run_of_entries_ends_at_a_length_that_can_not_be() -> None:
    async with fake_cluster(3) as cluster:
        record = await stored(cluster, Fragment(0, ids(cluster.bookies)))
        put(record, cluster.bookies, (0, -1, 1, b"x"), (1, -1, 2, b"y"))
        # A bookie's run contains the packets that it has, unchecked.
        for bookie in cluster.bookies:
            bookie.tamper = lambda response: behind(record, response)
        with pytest.raises(LedgerRecoveryException, match="length -1 in entry 2,"):
            await recovered(cluster, record)


def behind(record: LedgerRecord, response: Response) -> Response:
    """The response with entries 1 and 2 behind entry 0; alone, entry 2 is the same."""
    if not isinstance(response, ReadResponse) or response.entry_id not in (0, 2):
        return response
    secrets = LedgerSecrets.of(record.metadata, PASSWORD, ClientConfig())
    good = encode_entry(secrets.digest, NUMBER, 1, -1, 2, b"y")
    bad = encode_entry(secrets.digest, NUMBER, 2, -1, -1, b"z")
    if response.entry_id == 2:
        return response._replace(status=Status.EOK, body=bad)
    run = b"".join(len(packet).to_bytes(4, "big") + packet for packet in (good, bad))
    return response._replace(following=run)


@pytest.mark.usefixtures("virtual_time")
async def test_a_take_over_does_not_believe_a_length_that_can_not_be() -> None:
    async with fake_cluster(3) as cluster:
        record = await stored(cluster, Fragment(0, ids(cluster.bookies)), unbounded=True)
        put(record, cluster.bookies, (0, -1, -5, b"x"))
        honour_terms(cluster, record)
        async with asyncio.timeout(30):
            with pytest.raises(LedgerRecoveryException, match="length -5 in entry 0,"):
                await client_of(cluster).take_over(record.ledger_id, PASSWORD)


# Fragments


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("entries", [0, 1])
async def test_a_ledger_that_begins_above_0_is_as_long_as_its_entries(entries: int) -> None:
    async with fake_cluster(3) as cluster:
        record = await stored(cluster, Fragment(5, ids(cluster.bookies)))
        put(record, cluster.bookies, *[(5, 4, 1, b"x")] * entries)
        metadata = await recovered(cluster, record)
        assert (metadata.last_entry_id, metadata.length) == (4 + entries, entries)


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ack_quorum_size", [2, 3])
async def test_recovery_puts_another_bookie_in_the_second_place_of_one(ack_quorum_size: int, fails: bool) -> None:
    async with fake_cluster(5) as cluster:
        twice, other, *_ = cluster.bookies
        other.override = no_adds if fails else other.override
        fragment = Fragment(0, (twice.bookie_id, twice.bookie_id, other.bookie_id))
        record = await stored(cluster, fragment, ack_quorum_size=ack_quorum_size)
        put(record, [twice], (0, -1, 1, b"x"))
        metadata = await recovered(cluster, record)
        assert (metadata.last_entry_id, metadata.length) == (0, 1)
        assert len({*metadata.last_fragment.ensemble}) == 3
        holders = [bookie for bookie in cluster.ensemble(metadata) if 0 in bookie.ledgers[NUMBER].entries]
        assert len(holders) >= ack_quorum_size


@pytest.mark.usefixtures("virtual_time")
async def test_recovery_fails_where_two_places_of_a_bookie_would_count_for_an_ack_quorum() -> None:
    async with fake_cluster(2) as cluster:
        twice, other = ids(cluster.bookies)
        record = await stored(cluster, Fragment(0, (twice, twice, other)), ack_quorum_size=3)
        put(record, cluster.bookies[:1], (0, -1, 1, b"x"))
        with pytest.raises(LedgerRecoveryException, match=f"bookie {twice} is in the ensemble twice"):
            await recovered(cluster, record)


@pytest.mark.usefixtures("virtual_time")
async def test_a_ledger_with_a_bookie_twice_in_its_last_fragment_is_not_taken_over() -> None:
    async with fake_cluster(4) as cluster:
        twice, other, *_ = ids(cluster.bookies)
        record = await stored(cluster, Fragment(0, (twice, twice, other)), unbounded=True)
        honour_terms(cluster, record)
        async with asyncio.timeout(30):
            with pytest.raises(LedgerRecoveryException, match=f"ledger {NUMBER} .*twice .{twice}, {twice}, {other}"):
                await client_of(cluster).take_over(record.ledger_id, PASSWORD)


# Bugs


@asynccontextmanager
async def within(seconds: float = 10) -> AsyncIterator[None]:
    """Not in virtual time: a world fails by what is logged as a bug."""
    async with asyncio.timeout(seconds):
        yield


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("planted")


def bugs(caplog: pytest.LogCaptureFixture) -> list[BaseException | None]:
    return [record.exc_info[1] for record in caplog.records if record.exc_info]


async def to_recover(cluster: FakeCluster, *, unbounded: bool) -> Callable[[], Any]:
    """An attempt to end a ledger, of which one entry has to be added again and one bookie fails, by another client."""
    *good, failing, _ = cluster.bookies
    failing.override = no_adds
    record = await stored(cluster, Fragment(0, ids([*good, failing])), unbounded=unbounded, ack_quorum_size=3)
    put(record, good, (0, -1, 1, b"x"))
    client = client_of(cluster)
    if not unbounded:
        return lambda: client.open_ledger(record.ledger_id, PASSWORD, recovery=True)
    honour_terms(cluster, record)
    return lambda: client.take_over(record.ledger_id, PASSWORD)


STEPS = ("begin", "on_fence_answer", "on_read_answer", "on_add_ack", "on_add_failure", "on_replacements")


@pytest.mark.asyncio
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("unbounded", [False, True])
async def test_a_bug_ends_a_recovery(
    step: str, unbounded: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(4) as cluster, within():
        attempt = await to_recover(cluster, unbounded=unbounded)
        with monkeypatch.context() as patch:
            patch.setattr(TakeOver if unbounded else LedgerRecovery, step, broken)
            with pytest.raises(LedgerRecoveryException, match=f"ledger {NUMBER} .*planted") as caught:
                await attempt()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert ZeroDivisionError in map(type, bugs(caplog))
        if step != "begin":
            assert len(cluster.bookies[0].writers) == 1, "the connection, which serves other ledgers, stays"
        await attempt()
