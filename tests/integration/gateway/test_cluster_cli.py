"""`bookgate cluster` against both stores."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from typer.testing import CliRunner, Result

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.cluster_admin import ClusterAdmin
from bookgate.gateway.stores.drivers import create_admin, create_factory
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory
from bookgate.ledger.replication_control import is_default
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.command_line.output import FAILED, WRONG_USAGE
from bookgate.thinclient.commands import main
from tests.integration.gateway.conftest import all_ids, some_metadata, unscoped
from tests.stores import made

BOOKIE = BookieServiceInfo.legacy("h:1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main.app, ["cluster", *arguments])


def done(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(hint: str, *arguments: str, code: int = FAILED) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert hint in result.stderr


def with_store(uri: str, work: Callable[[LedgerManagerFactory], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        factory = create_factory(uri)
        await factory.initialize()
        try:
            return await work(factory)
        finally:
            await factory.close()

    return asyncio.run(connected())


async def fill(factory: LedgerManagerFactory) -> None:
    ids = [0, 5, 10_000, 2**31, 2**63 - 1]
    requests = [CreateRequest(unscoped(number), some_metadata()) for number in ids]
    assert len(await factory.ledger_manager.create_many(requests)) == 5
    await factory.ledger_manager.create_many([CreateRequest(None, some_metadata()) for _ in range(20)])
    await factory.registration_manager.write_cookie("h:1", b"cookie", None)


async def recovers_by_default(factory: LedgerManagerFactory) -> bool:
    return await is_default(factory.replication_metadata)


def test_init_makes_a_cluster_once(empty_uri: str) -> None:
    made = done("init", "--metadata-uri", empty_uri)
    assert (len(made["instance_id"]), made["ledgers"], made["known_bookies"]) == (36, 0, 0)
    refused("already", "init", "--metadata-uri", empty_uri)
    assert done("info", "--metadata-uri", empty_uri) == made

    async def instance_id(factory: LedgerManagerFactory) -> str:
        return (await factory.service_discovery.cluster_info()).instance_id

    assert with_store(empty_uri, instance_id) == made["instance_id"]
    assert with_store(empty_uri, recovers_by_default)


def test_init_may_leave_a_cluster_as_it_is(metadata_uri: str) -> None:
    with_store(metadata_uri, fill)
    before = done("info", "--metadata-uri", metadata_uri)
    assert done("init", "--exist-ok", "--metadata-uri", metadata_uri) == before
    assert not with_store(metadata_uri, recovers_by_default)


def test_an_init_that_is_interrupted_and_repeated_ends_as_one_that_was_not(
    empty_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(create_admin(empty_uri))
    initialize = kind.initialize

    async def interrupted(admin: ClusterAdmin, *arguments: Any) -> None:
        await initialize(admin, *arguments)
        raise MetaStoreException("interrupted")

    monkeypatch.setattr(kind, "initialize", interrupted)
    refused("interrupted", "init", "--metadata-uri", empty_uri)
    monkeypatch.undo()
    done("init", "--exist-ok", "--metadata-uri", empty_uri)
    assert with_store(empty_uri, recovers_by_default)

    async def switch_off(factory: LedgerManagerFactory) -> None:
        await factory.replication_metadata.remove_record(RecordKind.SETTING, "auto_recovery")

    with_store(empty_uri, switch_off)
    done("init", "--exist-ok", "--metadata-uri", empty_uri)
    assert not with_store(empty_uri, recovers_by_default)


def test_a_cluster_that_forgets_its_ledgers_forgets_what_auto_recovery_knew_of_them(empty_uri: str) -> None:
    done("init", "--metadata-uri", empty_uri)

    async def note(factory: LedgerManagerFactory) -> None:
        for kind in RecordKind:
            await factory.replication_metadata.write_record(kind, "5", b"x", None)

    async def kept(factory: LedgerManagerFactory) -> set[tuple[RecordKind, str]]:
        store = factory.replication_metadata
        return {(kind, key) for kind in RecordKind for key in await store.records(kind)}

    with_store(empty_uri, note)
    done("format", "--metadata-uri", empty_uri, "--yes")
    assert with_store(empty_uri, kept) == {(RecordKind.SETTING, "5"), (RecordKind.SETTING, "auto_recovery")}


def test_nobody_makes_a_cluster_by_connecting(empty_uri: str) -> None:
    async def nothing(_factory: LedgerManagerFactory) -> None:
        raise AssertionError("it is connected")

    for _ in range(2):
        with pytest.raises(MetaStoreException, match="cluster init"):
            with_store(empty_uri, nothing)
    refused("cluster init", "info", "--metadata-uri", empty_uri)


def test_looking_at_a_cluster_that_is_not_there_makes_none(empty_uri: str) -> None:
    for command in ("info", "format", "nuke"):
        refused("cluster init", command, "--metadata-uri", empty_uri)
    done("init", "--metadata-uri", empty_uri)


def test_info_counts(metadata_uri: str) -> None:
    with_store(metadata_uri, fill)

    async def look(factory: LedgerManagerFactory) -> Any:
        await factory.registration_manager.register_bookie(BOOKIE, read_only=False)
        await factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:2"), read_only=True)
        return await asyncio.to_thread(done, "info", "--metadata-uri", metadata_uri)

    found = with_store(metadata_uri, look)
    assert found["ledgers"] == 25
    assert (found["writable_bookies"], found["read_only_bookies"], found["known_bookies"]) == (1, 1, 1)
    assert "instance id" in run("info", "--metadata-uri", metadata_uri, "--output", "table").stdout
    separated = run("info", "--metadata-uri", metadata_uri).stdout
    assert "instance_id\t" in separated
    assert "metadata_store\t" in separated
    assert "ledger_manager" in found
    assert "ledger_manager" not in separated


@pytest.mark.parametrize("command", ["format", "nuke"])
def test_destroying_waits_for_a_yes_and_for_bookies_to_go(metadata_uri: str, command: str) -> None:
    with_store(metadata_uri, fill)
    before = done("info", "--metadata-uri", metadata_uri)
    refused("--yes", command, "--metadata-uri", metadata_uri)

    async def try_it(factory: LedgerManagerFactory) -> None:
        for read_only in (False, True):
            await factory.registration_manager.register_bookie(BOOKIE, read_only=read_only)
            await asyncio.to_thread(refused, "h:1", command, "--metadata-uri", metadata_uri, "--yes")

    with_store(metadata_uri, try_it)
    assert done("info", "--metadata-uri", metadata_uri) == before


def test_format_leaves_an_empty_cluster_of_another_identity(metadata_uri: str) -> None:
    with_store(metadata_uri, fill)
    before = done("info", "--metadata-uri", metadata_uri)
    after = done("format", "--metadata-uri", metadata_uri, "--yes")
    assert after["instance_id"] != before["instance_id"]
    assert after["ledger_manager"] == before["ledger_manager"]
    assert after["metadata_store"].startswith(("ZooKeeper (", "embedded (SQLite)"))
    assert (after["ledgers"], after["known_bookies"]) == (0, 0)

    async def use_it(factory: LedgerManagerFactory) -> list[int]:
        await factory.ledger_manager.create(None, some_metadata())
        await factory.registration_manager.register_bookie(BOOKIE, read_only=False)
        return await all_ids(factory)

    assert with_store(metadata_uri, use_it) == [0]


def test_nuke_leaves_nothing_and_init_begins_anew(metadata_uri: str) -> None:
    with_store(metadata_uri, fill)
    before = done("info", "--metadata-uri", metadata_uri)
    assert done("nuke", "--metadata-uri", metadata_uri, "--force") == {"removed": before["instance_id"]}
    refused("cluster init", "nuke", "--metadata-uri", metadata_uri, "--yes")
    assert done("init", "--metadata-uri", metadata_uri)["instance_id"] != before["instance_id"]


def test_format_of_an_sqlite_file_that_a_gateway_watches(tmp_path: Path) -> None:
    uri = made(f"sqlite://{tmp_path}/m.db")

    async def watch(factory: LedgerManagerFactory) -> None:
        record = await factory.ledger_manager.create(None, some_metadata())
        gone = asyncio.Event()
        await factory.ledger_manager.register_listener(
            record.ledger_id, lambda _, found: gone.set() if found is None else None
        )
        # Removing the file under a gateway is refused, emptying it reaches the gateway's watchers.
        await asyncio.to_thread(refused, "another process", "nuke", "--metadata-uri", uri, "--yes")
        await asyncio.to_thread(done, "format", "--metadata-uri", uri, "--yes")
        await asyncio.wait_for(gone.wait(), 30)

    with_store(uri, watch)
    done("nuke", "--metadata-uri", uri, "--yes")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("manager", ["flat", "longhierarchical", "hierarchical"])
def test_managers_of_zookeeper(empty_zookeeper_uri: str, zookeeper: LocalZooKeeper, manager: str) -> None:
    zookeeper_uri = empty_zookeeper_uri
    uri = zookeeper_uri.replace("hierarchical", manager)
    assert manager in done("init", "--metadata-uri", uri)["ledger_manager"].lower()
    with_store(uri, fill)
    root = parse_zookeeper(uri).ledgers_root
    client: Any = KazooClient(zookeeper.address)
    client.start()
    client.create(f"{root}/underreplication/ledgers/0000/urL1", b"", makepath=True)
    client.create(f"{root}/underreplication/LAYOUT", b"x")
    other = "flat" if manager != "flat" else "hierarchical"
    refused(
        f"zk+{manager}://", "info", "--metadata-uri", zookeeper_uri.replace("hierarchical", other), code=WRONG_USAGE
    )
    done("format", "--metadata-uri", uri, "--yes")
    assert sorted(client.get_children(root)) == ["INSTANCEID", "LAYOUT", "available", "underreplication"]
    assert sorted(client.get_children(f"{root}/underreplication")) == ["LAYOUT", "bookgate"]
    assert client.get_children(f"{root}/underreplication/bookgate") == ["settings"]
    refused(
        f"zk+{manager}://",
        "format",
        "--metadata-uri",
        zookeeper_uri.replace("hierarchical", other),
        "--yes",
        code=WRONG_USAGE,
    )
    # What a nuke that was broken off has left is removed as well.
    client.delete(f"{root}/LAYOUT")
    assert done("nuke", "--metadata-uri", uri, "--yes") == {"removed": None}
    assert client.exists(root) is None
    client.stop()
    client.close()


@pytest.mark.parametrize(("answer", "there"), [("yes", False), ("y", True), ("", True)])
def test_question_on_a_terminal(tmp_path: Path, answer: str, there: bool) -> None:
    uri = f"sqlite://{tmp_path}/m.db"
    made = done("init", "--metadata-uri", uri)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bookgate", "cluster", "nuke", "--metadata-uri", uri]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.write(ours, f"{answer}\n".encode())
        _, asked = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert made["instance_id"] in asked
    assert process.returncode == int(there)
    assert (tmp_path / "m.db").exists() is there


def test_wrong_settings_are_one_line(tmp_path: Path) -> None:
    refused("--metadata-uri", "info", code=WRONG_USAGE)
    refused("etcd", "info", "--metadata-uri", "etcd://h/x", code=WRONG_USAGE)
    refused("/no/such", "init", "--metadata-uri", "sqlite:///no/such/m.db")
    put = tmp_path / "gateway.toml"
    put.write_text('zookeeper_tls_cert = "c.pem"\n')
    refused("zookeeper_tls_key", "info", "--metadata-uri", "zk://h/l", "--config", str(put), code=WRONG_USAGE)
