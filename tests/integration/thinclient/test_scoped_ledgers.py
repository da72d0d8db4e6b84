"""Ledgers with a scope, from creation to deletion, on real bookies and gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from bookgate import BookKeeper, ClientConfig, DigestType
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import (
    IllegalOpException,
    LedgerExistException,
    LedgerFencedException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.handles import creation
from tests.integration.cluster import own_cluster, restart, standalone_cluster

__all__ = ["own_cluster", "standalone_cluster"]


def numbered(count: int, what: bytes = b"entry") -> Iterator[bytes]:
    return (b"%b %d" % (what, i) for i in range(count))


@pytest.mark.asyncio
@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_a_scoped_ledger_from_creation_to_deletion(
    standalone_cluster: StandaloneCluster, digest_type: DigestType
) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        uuid = uuid4()
        ledger = await client.create_ledger(ledger_id=uuid, digest_type=digest_type, password=b"planted-secret")
        assert ledger.ledger_id == LedgerId.from_uuid(uuid)
        assert ledger.scope_id == ledger.ledger_id.scope_id != 0
        unscoped = await client.create_ledger(digest_type=digest_type)
        await asyncio.gather(ledger.append_all(numbered(500)), unscoped.append_all(numbered(500, b"other")))
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id.low, b"planted-secret", scope_id=ledger.scope_id)
        assert [e.payload async for e in reader.read(0, 499)] == list(numbered(500))
        assert [e.ledger_id async for e in reader.read(7, 7)] == [ledger.ledger_id.low]
        assert reader.scope_id == ledger.scope_id
        listed = [record.ledger_id async for page in client.list_ledgers(ledger.scope_id) for record in page]
        assert listed == [ledger.ledger_id]
        assert ledger.ledger_id not in [r.ledger_id async for page in client.list_ledgers() for r in page]
        with pytest.raises(LedgerExistException):
            await client.create_ledger(ledger_id=uuid)
        await client.delete_ledger(uuid)
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await client.open_ledger(uuid)


@pytest.mark.asyncio
async def test_one_id_in_several_scopes_is_several_ledgers(standalone_cluster: StandaloneCluster) -> None:
    """Fenced, recovered and read, each by itself, with protocol v3 and with batches for scope 0."""
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        first = await client.create_ledger()
        number = first.ledger_id.low
        ledgers = [first, *[await client.create_ledger(ledger_id=number, scope_id=scope) for scope in (1, -1, 2**62)]]
        for position, ledger in enumerate(ledgers):
            await ledger.append_all(numbered(100 + position, b"%d" % position))
        recovered = await client.open_ledger(number, recovery=True, scope_id=-1)
        assert recovered.last_add_confirmed == 101
        assert recovered.metadata.last_entry_id == 101
        with pytest.raises(LedgerFencedException):
            await ledgers[2].append(b"late")
        for position, ledger in enumerate(ledgers):
            if position != 2:
                await ledger.append(b"on")
                await ledger.close()
        for position, ledger in enumerate(ledgers):
            reader = await client.open_ledger(ledger.ledger_id)
            found = [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]
            assert found[: 100 + position] == list(numbered(100 + position, b"%d" % position))


@pytest.mark.asyncio
async def test_readers_follow_a_scoped_ledger_as_it_grows(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        ledger = await client.create_advanced_ledger(uuid_version=7)
        assert ledger.ledger_id.to_uuid().version == 7
        reader = await client.open_ledger(ledger.ledger_id)
        seen: list[bytes] = []

        async def follow() -> None:
            seen.extend([entry.payload async for entry in reader.tail()])

        following = asyncio.create_task(follow())
        for entry_id, payload in enumerate(numbered(50)):
            await ledger.append(entry_id, payload)
        await ledger.close()
        async with asyncio.timeout(30):
            await following
        assert seen == list(numbered(50))


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_scoped_ledger_outlives_killed_bookies(own_cluster: StandaloneCluster) -> None:
    """Its journal records are replayed, those of a ledger without a scope among them."""
    async with await BookKeeper.connect(own_cluster.gateway_uri) as client:
        scoped = await client.create_ledger(uuid_version=4)
        unscoped = await client.create_ledger(ledger_id=5)
        for ledger in (scoped, unscoped):
            await ledger.append_all(numbered(300))
        for process in own_cluster.processes:
            process.kill()
            await asyncio.to_thread(restart, process)
    # Another client: every gateway has another port now, and the first may have heard of none in time.
    async with await BookKeeper.connect(own_cluster.gateway_uri) as client:
        for ledger in (scoped, unscoped):
            reader = await client.open_ledger(ledger.ledger_id, recovery=True)
            assert [entry.payload async for entry in reader.read(0, 299)] == list(numbered(300))
            assert reader.metadata.last_entry_id == 299


@pytest.mark.asyncio
async def test_an_id_that_exists_is_replaced_by_another(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        taken = (await client.create_ledger(uuid_version=4)).ledger_id
        made = [taken, taken, LedgerId.random()]
        monkeypatch.setattr(creation, "_new_id", lambda options: made.pop(0))
        ledger = await client.create_ledger(uuid_version=4)
        assert ledger.ledger_id not in (taken, None)
        assert made == []


@pytest.mark.asyncio
async def test_protocol_v2_refuses_a_scope_before_anything_is_sent(standalone_cluster: StandaloneCluster) -> None:
    uri = standalone_cluster.gateway_uri
    async with await BookKeeper.connect(uri) as client:
        ledger = await client.create_ledger(uuid_version=4)
        await ledger.append(b"entry")
        await ledger.close()
    async with await BookKeeper.connect(uri, ClientConfig(wire_protocol="v2")) as old:
        with pytest.raises(IllegalOpException, match="scope"):
            await old.create_ledger(ledger_id=uuid4())
        with pytest.raises(IllegalOpException, match="scope"):
            await old.open_ledger(ledger.ledger_id)
        assert await (await old.create_ledger()).append(b"without a scope") == 0
