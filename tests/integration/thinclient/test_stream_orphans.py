"""What killed creations and interrupted deletions of streams leave is found and removed, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from bookgate import BookKeeper, LedgerOptions
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.streams import STREAM_KEY, cursor_record_id, encoded_stream, stream_record_id
from bookgate.streams import Streams
from bookgate.thinclient.streams.cursor import record_of
from bookgate.thinclient.streams.orphans import delete_orphans, find_orphans
from tests.integration.cluster import own_cluster, standalone_cluster
from tests.integration.test_commands import command

__all__ = ["own_cluster", "standalone_cluster"]

ONE = LedgerOptions(1, 1, 1)


@pytest.fixture
def run(standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("BOOKGATE_GATEWAYS", standalone_cluster.gateway_uri)
    return command


def kill_a_creation(cluster: StandaloneCluster, name: str) -> None:
    creator = [sys.executable, "-m", "tests.integration.thinclient.dying_creator", cluster.gateway_uri, name]
    assert subprocess.run(creator, timeout=120, check=False).returncode == -signal.SIGKILL


def now_ms() -> int:
    return time.time_ns() // 1_000_000 + 1


def test_a_killed_creation_leaves_a_ledger_that_a_command_removes(
    run: Callable[..., Any], standalone_cluster: StandaloneCluster
) -> None:
    scope = ("--scope", 71)
    run("stream", "create", "whole", "--ensemble-size", 1, *scope)
    run("stream", "cursor", "whole", "c", *scope)
    assert run("stream", "orphans", "--older-than", "0s", *scope) == {"orphans": 0, "deleted": 0, "ledgers": []}

    kill_a_creation(standalone_cluster, "half")
    assert run("stream", "orphans")["orphans"] == 0, "it may be under way"
    found = run("stream", "orphans", "--older-than", "0s")
    (orphan,) = [each for each in found["ledgers"] if each["stream"] == "half"]
    assert (orphan["kind"], orphan["cursor"]) == ("ledger", "")
    assert run("ledger", "show", orphan["ledger_id"])["state"] == "OPEN"
    text = run("stream", "orphans", "--older-than", "0s", text=True)
    assert "half" in text
    assert run("stream", "orphans", "--older-than", "0s", "--delete", "--yes")["deleted"] == found["orphans"]
    assert run("stream", "orphans", "--older-than", "0s")["orphans"] == 0
    assert "no time" in run("stream", "orphans", "--older-than", "long", fails=2)["error"]


@pytest.mark.asyncio
async def test_interrupted_deletions_are_found_kind_by_kind(standalone_cluster: StandaloneCluster) -> None:
    scope = 72
    async with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client, scope_id=scope)
        stream = await streams.create("half", ONE)
        await stream.cursor("c")
        await (await streams.create("whole", ONE)).cursor("c")

        async def kinds() -> list[tuple[str, LedgerId]]:
            found = await find_orphans(client, now_ms(), scope)
            return [(each.kind.value, each.record.ledger_id) for each in found]

        assert await kinds() == []
        await client.delete_ledger(stream.ledger_id)
        record, cursor = stream_record_id("half", scope), cursor_record_id("half", "c", scope)
        assert await kinds() == [("stream", record)]
        await delete_orphans(client, await find_orphans(client, now_ms(), scope), scope)
        assert await kinds() == [("cursor", cursor)]
        assert len(await delete_orphans(client, await find_orphans(client, now_ms(), scope), scope)) == 1
        assert await kinds() == []
        assert [cursor.name for cursor in await (await streams.open("whole")).cursors()] == ["c"]


@pytest.mark.asyncio
async def test_a_deletion_looks_again(standalone_cluster: StandaloneCluster) -> None:
    """A creator that was only slow stores its record, and somebody takes a ledger over, between look and deletion."""
    scope = 73
    async with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client, scope_id=scope)
        ledgers = {}
        for name in ("slow", "taken"):
            ledgers[name] = (await streams.create(name, ONE)).ledger_id
            await client.delete_ledger(stream_record_id(name, scope))
        found = await find_orphans(client, now_ms(), scope)
        assert {each.record.ledger_id for each in found} == set(ledgers.values())
        marks = {STREAM_KEY: encoded_stream("slow", ledgers["slow"]), "bookgate.stream.settings": b"{}"}
        await client.ledger_manager.create(stream_record_id("slow", scope), record_of("bookie-1", marks))
        await (await client.take_over(ledgers["taken"])).release()
        assert await delete_orphans(client, found, scope) == []
        assert (await client.read_record(ledgers["slow"])).metadata.is_closed is False
        assert (await streams.open("slow")).ledger_id == ledgers["slow"]


@pytest.mark.asyncio
async def test_a_deletion_leaves_what_was_made_anew_under_an_orphans_id(standalone_cluster: StandaloneCluster) -> None:
    """Both begin at version 0, so the version does not tell them apart."""
    scope = 74
    async with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client, scope_id=scope)
        await client.delete_ledger((await streams.create("half", ONE)).ledger_id)
        await (await streams.create("left", ONE)).cursor("c")
        for record in (stream_record_id("left", scope), (await streams.open("left")).ledger_id):
            await client.delete_ledger(record)
        found = await find_orphans(client, now_ms(), scope)
        assert sorted(each.kind.value for each in found) == ["cursor", "stream"]
        assert await streams.delete("half")
        half, left = await streams.create("half", ONE), await streams.create("left", ONE)
        await client.delete_ledger(cursor_record_id("left", "c", scope))
        await left.cursor("c")
        assert await delete_orphans(client, found, scope) == []
        assert (await streams.open("half")).ledger_id == half.ledger_id
        assert [cursor.name for cursor in await left.cursors()] == ["c"]
