"""Writers and readers of a ledger that was deleted, while another client has created one with its id since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.messages import AddRequest, Status
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.handles.write_handle import WriteHandle
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster

pytestmark = pytest.mark.asyncio

FAST: dict[str, Any] = {"read_timeout_seconds": 1.0, "add_timeout_seconds": 1.0}
SIZES: dict[str, Any] = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


async def made_anew(cluster: FakeCluster, ledger_id: int, password: bytes) -> WriteHandle:
    """Deletes the ledger, lets bookies collect it, and has another client create one with its id and 100 entries."""
    await cluster.client(**FAST).delete_ledger(ledger_id)
    for bookie in cluster.bookies:
        bookie.ledgers.pop(ledger_id, None)
    new = await cluster.client(**FAST).create_ledger(password=password, ledger_id=ledger_id, **SIZES)
    await new.append_all(b"new-%d" % number for number in range(100))
    return new


async def require_untouched(reader: BookKeeper, new: WriteHandle, password: bytes) -> None:
    """The new ledger goes on, ends where its writer says, and every entry is its writer's."""
    await new.append(b"new-100")
    await new.close()
    ledger = await reader.open_ledger(new.ledger_id, password)
    assert ledger.last_add_confirmed == 100
    assert [entry.payload async for entry in ledger.read(0, 100)] == [b"new-%d" % number for number in range(101)]


@pytest.mark.parametrize("changed", [False, True])
async def test_a_former_writer_does_not_close_it(changed: bool) -> None:
    """`changed`: it has had a change since, so that the versions differ."""
    async with fake_cluster(4) as cluster:
        old = await cluster.client(**FAST).create_ledger(password=b"old", ledger_id=5, **SIZES)
        await old.append(b"old-0")
        new = await made_anew(cluster, 5, b"new")
        client = cluster.client(**FAST)
        if changed:
            await client.update_custom_metadata(5, {"k": b"v"})
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
            await old.close()
        assert (await client.read_record(5)).metadata.state is LedgerState.OPEN
        await require_untouched(client, new, b"new")


async def test_a_former_writer_does_not_change_its_ensemble() -> None:
    async with fake_cluster(5) as cluster:
        old = await cluster.client(**FAST).create_ledger(ledger_id=5, **SIZES)
        await old.append(b"old-0")
        new = await made_anew(cluster, 5, b"")
        mine = new.metadata.fragments
        bad = cluster.bookie(old.metadata.last_fragment.ensemble[0])
        bad.override = lambda request: Status.EIO if isinstance(request, AddRequest) else None
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
            await old.append(b"old-1")
        bad.override = lambda request: None
        client = cluster.client(**FAST)
        assert (await client.read_record(5)).metadata.fragments == mine


async def test_a_former_writer_decides_on_no_metadata_of_another_ledger() -> None:
    """The conflict is with a change of its own ledger, and the ledger is made anew before it reads that."""
    async with fake_cluster() as cluster:
        old = await cluster.client(**FAST).create_ledger(ledger_id=5, **SIZES)
        manager, writes = cluster.metadata, 0
        former = manager.records.copy()

        def make_anew(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
            nonlocal writes
            writes += 1
            other = replace(former[ledger_id], version=1, incarnation=99)
            manager.records[ledger_id] = other

        manager.before_write = make_anew
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
            await old.close()
        assert (writes, manager.records[old.ledger_id].metadata.state) == (1, LedgerState.OPEN)


async def test_a_change_of_custom_metadata_at_a_version_is_of_the_ledger_that_had_it() -> None:
    """It is made anew between the client's read and its write."""
    async with fake_cluster() as cluster:
        client, manager = cluster.client(**FAST), cluster.metadata
        await client.create_ledger(ledger_id=5, custom_metadata={"mine": b"old"}, **SIZES)
        read = manager.read

        async def read_and_make_anew(ledger_id: LedgerId) -> LedgerRecord:
            found = await read(ledger_id)
            manager.read = read  # type: ignore[method-assign]
            other = replace(found.metadata, custom_metadata={"mine": b"new"})
            manager.records[ledger_id] = replace(found, metadata=other, incarnation=99)
            return found

        manager.read = read_and_make_anew  # type: ignore[method-assign]
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
            await client.update_custom_metadata(5, {"k": b"v"}, expected_version=0)
        assert (await client.read_record(5)).metadata.custom_metadata == {"mine": b"new"}


async def test_a_former_writer_that_is_refused_does_not_delete_it() -> None:
    async with fake_cluster(4) as cluster:
        old = await cluster.client(**FAST).create_ledger(password=b"old", **SIZES)
        new = await made_anew(cluster, old.ledger_id.low, b"new")
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
            await old.append(b"old-0")
        await require_untouched(cluster.client(**FAST), new, b"new")


async def test_a_former_reader_does_not_go_over_to_it() -> None:
    async with fake_cluster(4) as cluster:
        old = await cluster.client(**FAST).create_ledger(ledger_id=5, **SIZES)
        await old.append_all(b"old-%d" % number for number in range(10))
        reader = await cluster.client(**FAST).open_ledger(5)
        await made_anew(cluster, 5, b"")
        await cluster.client(**FAST).update_custom_metadata(5, {"k": b"v"})
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            await reader.read_last_confirmed()
        assert reader.record.version == 0
