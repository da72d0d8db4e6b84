"""The client against real bookies and gateways, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookgate import BookKeeper, ClientConfig
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import (
    LedgerFencedException,
    LedgerRecoveryException,
    MetaStoreException,
    NotEnoughBookiesException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking import client as blocking
from bookgate.thinclient.blocking.loop_thread import LoopThread
from tests.integration.cluster import own_cluster, restart, standalone_cluster

__all__ = ["own_cluster", "standalone_cluster"]

ROOT = Path(__file__).parents[3]


def numbered(count: int) -> Iterator[bytes]:
    return (b"entry %d" % i for i in range(count))


@pytest.mark.asyncio
async def test_a_ledger_from_creation_to_deletion(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        ledger = await client.create_ledger(password=b"planted-secret", custom_metadata={"app": b"test"})
        await ledger.append_all(numbered(5000))
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id, b"planted-secret")
        assert [e.payload async for e in reader.read(0, reader.last_add_confirmed)] == list(numbered(5000))
        assert reader.metadata.custom_metadata == {"app": b"test"}
        with pytest.raises(UnauthorizedAccessException):
            await client.open_ledger(ledger.ledger_id, b"wrong")
        listed = [record async for page in client.list_ledgers(page_size=1) for record in page]
        assert ledger.ledger_id in [record.ledger_id for record in listed]
        await client.delete_ledger(ledger.ledger_id)
        listed = [record async for page in client.list_ledgers() for record in page]
        assert ledger.ledger_id not in [record.ledger_id for record in listed]


@pytest.mark.asyncio
async def test_a_second_client_recovers_and_fences_the_first(standalone_cluster: StandaloneCluster) -> None:
    uri = standalone_cluster.gateway_uri
    async with await BookKeeper.connect(uri) as first, await BookKeeper.connect(uri) as second:
        ledger = await first.create_ledger()
        await ledger.append_all(numbered(1000))
        watcher = await second.open_ledger(ledger.ledger_id)
        assert not watcher.is_closed
        reader = await second.open_ledger(ledger.ledger_id, recovery=True)
        assert (reader.last_add_confirmed, reader.length) == (999, sum(map(len, numbered(1000))))
        with pytest.raises(LedgerFencedException):
            await ledger.append(b"late")
        assert await watcher.read_last_confirmed() == 999
        await watcher.close()


@pytest.mark.asyncio
async def test_a_listener_hears_of_the_close(standalone_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        ledger = await client.create_ledger()
        states: asyncio.Queue[str] = asyncio.Queue()

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            states.put_nowait("gone" if record is None else record.metadata.state.name)

        await client.ledger_manager.register_listener(ledger.ledger_id, listener)
        assert await states.get() == "OPEN"
        await ledger.close()
        assert await states.get() == "CLOSED"
        await client.delete_ledger(ledger.ledger_id)
        assert await states.get() == "gone"


@pytest.mark.asyncio
async def test_kill_9_of_one_bookie_while_writing_loses_nothing(own_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as client:
        ledger = await client.create_ledger(password=b"planted-p")
        await ledger.append_all(numbered(500))
        appends = [ledger.append_nowait(payload) for payload in list(numbered(2000))[500:]]
        own_cluster.processes[0].kill()
        ids = await asyncio.gather(*appends)
        assert ids == list(range(500, 2000))
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert [e.payload async for e in reader.read(0, reader.last_add_confirmed)] == list(numbered(2000))


@pytest.mark.long
@pytest.mark.asyncio
async def test_two_killed_bookies_end_the_ledger_and_it_is_recovered_when_they_are_back(
    own_cluster: StandaloneCluster,
) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as client:
        ledger = await client.create_ledger()
        await ledger.append_all(numbered(300))
        for process in own_cluster.processes[:2]:
            process.kill()
        with pytest.raises(NotEnoughBookiesException, match="takes no more entries"):
            await ledger.append_all(numbered(10))
        with pytest.raises(LedgerRecoveryException, match="IN_RECOVERY"):
            await client.open_ledger(ledger.ledger_id, recovery=True)
        for process in own_cluster.processes[:2]:
            restart(process)
        reader = await client.open_ledger(ledger.ledger_id, recovery=True)
        read = [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]
        assert read[:300] == list(numbered(300))


@pytest.mark.asyncio
async def test_a_gateway_that_dies_is_left_for_another(own_cluster: StandaloneCluster) -> None:
    async with await BookKeeper.connect(own_cluster.gateway_uri) as client:
        ledger = await client.create_ledger()
        await ledger.append(b"x")
        for _ in range(6):
            await client.read_record(ledger.ledger_id)
        used = await asyncio.gather(*(asyncio.to_thread(reads_served, http) for http in own_cluster.http))
        assert used[0] > 0, "the gateway that is about to die is one of those asked"
        before = passed_over(client)
        own_cluster.processes[0].kill()
        for _ in range(6):
            await client.read_record(ledger.ledger_id)
        assert passed_over(client) > before
        others = await asyncio.gather(*(asyncio.to_thread(reads_served, http) for http in own_cluster.http[1:]))
        assert sum(others) >= sum(used[1:]) + 6
        await ledger.close()


def reads_served(http: str) -> float:
    """How many reads of metadata the gateway with this HTTP address has answered."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "bookgate_gateway_requests_total" and sample.labels["method"] == "Read"
    )


def passed_over(client: BookKeeper) -> float:
    (counted,) = (metric for metric in client.metrics.snapshot() if metric.name.endswith("GATEWAYS_PASSED_OVER"))
    return counted.samples[0].value


@pytest.mark.asyncio
async def test_no_gateway_is_one_clear_error() -> None:
    with pytest.raises(MetaStoreException, match=r"127\.0\.0\.1:1: connection refused"):
        await BookKeeper.connect("grpc://127.0.0.1:1", ClientConfig(metadata_timeout_seconds=0.5))


def test_the_blocking_client(standalone_cluster: StandaloneCluster) -> None:
    with blocking.BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        with client.create_ledger(password=b"planted-p") as ledger:
            assert ledger.append(b"entry 0") == 0
            futures = [ledger.append_future(payload) for payload in list(numbered(100))[1:]]
            assert [future.result() for future in futures] == list(range(1, 100))
            assert ledger.append_all(list(numbered(3500))[100:]) == 3499
        record = client.read_record(ledger.ledger_id)
        with client.open_record(record, b"planted-p") as reader:
            assert [entry.payload for entry in reader.read(0, 3499)] == list(numbered(3500))
            batches = list(reader.read_batches(10, 2509, max_entries=1000))
            assert [len(batch) for batch in batches] == [1000, 1000, 500]
            # An iterator that is given up halfway leaves nothing behind that disturbs the next.
            abandoned = reader.read_batches(0, 3499, max_entries=10)
            assert isinstance(abandoned, Generator)
            assert next(abandoned)[0].payload == b"entry 0"
            abandoned.close()
            assert next(reader.read(7, 7)).payload == b"entry 7"
        assert [bookie.bookie_id for bookie in client.service_discovery.bookies()] == [
            "bookie-1",
            "bookie-2",
            "bookie-3",
        ]
        assert client.ledger_manager.read(ledger.ledger_id) == record
        assert record in [each for page in client.list_ledgers() for each in page]
        with pytest.raises(UnauthorizedAccessException):
            client.open_ledger(ledger.ledger_id, b"no")


def test_the_blocking_client_from_several_threads_and_several_clients(
    standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a process where nobody else has a client open: Spark's, for one, stay.
    monkeypatch.setattr(LoopThread, "_current", None)
    before = set(threading.enumerate())

    def work(number: int) -> int:
        with (
            blocking.BookKeeper.connect(standalone_cluster.gateway_uri) as client,
            client.create_ledger() as ledger,
        ):
            ledger.append_all(numbered(number))
        with blocking.BookKeeper.connect(standalone_cluster.gateway_uri) as client:
            reader = client.open_ledger(ledger.ledger_id)
            return sum(1 for _ in reader.read(0, reader.last_add_confirmed))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, [100, 200, 300, 400])) == [100, 200, 300, 400]
    assert set(threading.enumerate()) <= before


def bookgate(cluster: StandaloneCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BOOKGATE_GATEWAYS": cluster.gateway_uri}
    command = [sys.executable, "-m", "bookgate", *arguments]
    return subprocess.run(command, input=stdin, env=environment, capture_output=True, check=False)


@pytest.mark.long
def test_the_command(standalone_cluster: StandaloneCluster) -> None:
    text = "one\n\nzwei ä\n".encode() + b"\xff no text\nlast without an end"
    created = bookgate(
        standalone_cluster, "ledger", "create", "-m", "app=cli", "--password-file=-", "--json", stdin=b"planted-p\n"
    )
    ledger_id = str(json.loads(created.stdout)["ledger_id"])
    # The entries are what follows the password.
    written = bookgate(
        standalone_cluster, "ledger", "write", ledger_id, "--password-file=-", "--json", stdin=b"planted-p\n" + text
    )
    size = len(text) - 4
    assert json.loads(written.stdout) == {"ledger_id": int(ledger_id), "entries": 5, "bytes": size}

    def read(*options: str) -> bytes:
        return bookgate(
            standalone_cluster, "ledger", "read", ledger_id, "--password-file=-", *options, stdin=b"planted-p"
        ).stdout

    assert read() == text + b"\n"
    assert read("--format", "raw") == text.replace(b"\n", b"")
    lines = [json.loads(line) for line in read("--json", "--from", "2", "--to", "3").splitlines()]
    of_entry = len("zwei ä".encode())
    expected = {"entry_id": 2, "size": of_entry, "ledger_length": 3 + of_entry, "payload": "zwei ä", "encoding": "text"}
    assert lines[0].items() >= expected.items()
    assert lines[1]["payload_base64"] == "/yBubyB0ZXh0"

    shown = json.loads(bookgate(standalone_cluster, "ledger", "show", ledger_id, "--json").stdout)
    assert (shown["state"], shown["last_entry_id"], shown["length"]) == ("CLOSED", 4, size)
    assert shown["custom_metadata"]["app"] == "cli"
    assert 0 <= time.time() - shown["created_ms"] / 1000 < 600
    assert "password" not in shown
    listed = json.loads(bookgate(standalone_cluster, "ledger", "list", "--json").stdout)
    assert shown in listed
    bookies = json.loads(bookgate(standalone_cluster, "bookie", "list", "--json").stdout)
    assert [bookie["state"] for bookie in bookies] == ["writable"] * 3
    for arguments in (["ledger", "list"], ["ledger", "show", ledger_id], ["bookie", "list"]):
        assert bookgate(standalone_cluster, *arguments).returncode == 0

    again = bookgate(standalone_cluster, "ledger", "write", ledger_id, "--password", "planted-p", stdin=b"more\n")
    assert (again.returncode, again.stdout) == (1, b"")
    warning, error = again.stderr.splitlines()
    assert b"sees the secret in --password" in warning
    assert error.startswith(b"error: ledger %s can't be written: it is CLOSED" % ledger_id.encode())
    assert b"error: the password of ledger" in bookgate(standalone_cluster, "ledger", "read", ledger_id).stderr
    assert bookgate(standalone_cluster, "ledger", "delete", ledger_id, "--yes").returncode == 0
    gone = bookgate(standalone_cluster, "ledger", "show", ledger_id)
    assert (gone.returncode, gone.stderr.count(b"\n")) == (1, 1)


@pytest.mark.long
def test_the_command_writes_a_ledger_only_from_a_file_that_is_there(standalone_cluster: StandaloneCluster) -> None:
    ledger_id = bookgate(standalone_cluster, "ledger", "create").stdout.decode().strip()
    missing = bookgate(standalone_cluster, "ledger", "write", ledger_id, "/nonexistent/file")
    assert missing.stderr == b"error: /nonexistent/file can't be read: No such file or directory\n"
    # Nothing was claimed by the failed attempts.
    wrong = bookgate(standalone_cluster, "ledger", "write", ledger_id, "--length-prefixed", "--chomp", stdin=b"")
    assert (wrong.returncode, wrong.stderr) == (2, b"error: --length-prefixed goes without --delimiter and --chomp\n")
    text = b"one\r\ntwo\r\n"
    assert bookgate(standalone_cluster, "ledger", "write", ledger_id, "--chomp", stdin=text).returncode == 0
    framed = b"\0\0\0\3one\0\0\0\3two"
    form = ("--format", "length-prefixed")
    assert bookgate(standalone_cluster, "ledger", "read", ledger_id, *form).stdout == framed
    copy = bookgate(standalone_cluster, "ledger", "create").stdout.decode().strip()
    assert bookgate(standalone_cluster, "ledger", "write", copy, "--length-prefixed", stdin=framed).returncode == 0
    assert bookgate(standalone_cluster, "ledger", "read", copy, *form).stdout == framed
