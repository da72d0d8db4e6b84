"""From ledgers to ledgers exactly once, whatever is killed: drivers, executors, tasks, bookies.

Small here; `make test-spark` (BOOKGATE_SPARK_FULL=1) kills more often, and has executors as separate processes and
metadata in ZooKeeper as well.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper, Streams
from bookgate.thinclient.spark.commit_protocol import QUERY_KEY, committed
from tests.spark.conftest import PASSWORD
from tests.spark.sessions import HERE, ROOT, SEPARATE, environment

FULL = bool(os.environ.get("BOOKGATE_SPARK_FULL"))
full_only = pytest.mark.skipif(not FULL, reason="takes minutes: make test-spark")
DEADLINE_SECONDS = 800


class Driver:
    """A driver in a process group of its own, with its JVM and executors."""

    def __init__(self, order: dict[str, object]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_driver", json.dumps(order)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment()},
            start_new_session=True,
        )
        self.errors: list[str] = []
        assert self.process.stderr is not None
        self._drain = threading.Thread(target=self.errors.extend, args=(self.process.stderr,), daemon=True)
        self._drain.start()
        self._guard = threading.Timer(DEADLINE_SECONDS, self.kill)
        self._guard.start()

    def lines(self) -> Iterator[str]:
        """What it prints, to its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.strip()

    def kill(self) -> None:
        """kill -9, everything at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def end(self) -> int:
        """Its exit code."""
        code = self.process.wait()
        self._guard.cancel()
        # Executors that survived the driver's JVM for a moment.
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._drain.join()
        return code


@contextmanager
def driver(**order: object) -> Iterator[Driver]:
    running = Driver(order)
    try:
        yield running
    finally:
        running.kill()
        running.end()


class Copy:
    """A stream from one application's ledgers to another's, its input, and what came of it."""

    def __init__(self, client: BookKeeper, gateways: str, directory: Path, name: str, master: str) -> None:
        self.client = client
        self.name = name
        self.master = master
        common = {"gateways": gateways, "password": PASSWORD.decode()}
        self.job: dict[str, object] = {
            "job": "copy",
            "source": {**common, "customMetadata.app": f"{name}-in", "maxEntriesPerTrigger": "150"},
            "sink": {**common, "customMetadata.app": f"{name}-out"},
            "checkpoint": str(directory / "checkpoint"),
        }
        self.sent: Counter[bytes] = Counter()

    def write_with(self, **options: str) -> None:
        """More options of the sink."""
        sink = self.job["sink"]
        assert isinstance(sink, dict)
        sink.update(options)

    def driver(self, now: bool = False) -> Driver:
        return Driver({"master": self.master, "jobs": [{**self.job, "now": now}]})

    def feed(self, ledgers: int, entries: int) -> None:
        for _ in range(ledgers):
            metadata = {"app": f"{self.name}-in".encode()}
            with self.client.create_ledger(password=PASSWORD, custom_metadata=metadata) as ledger:
                ledger.append_all([b"%d" % number for number in range(entries)])
                number = ledger.ledger_id.low
            self.sent.update(b"%d %d %d" % (number, entry, entry) for entry in range(entries))

    def run_until(self, batches: int, at_random: random.Random) -> None:
        """A driver that is killed after so many batches, at a moment of its own in the next one."""
        running = self.stopped_after(batches, at_random)
        running.kill()
        running.end()

    def stopped_after(self, batches: int, at_random: random.Random) -> Driver:
        """A driver that stands still after so many batches, at a moment of its own in the next one."""
        running = self.driver()
        done = 0
        for line in running.lines():
            done += bool(json.loads(line)["rows"])
            if done >= batches:
                threading.Event().wait(at_random.random() * 2)
                break
        os.killpg(running.process.pid, signal.SIGSTOP)
        assert done >= batches, "".join(running.errors[-30:])
        return running

    def finish(self) -> None:
        running = self.driver(now=True)
        for _ in running.lines():
            pass
        assert running.end() == 0, "".join(running.errors[-30:])

    def check(self) -> None:
        """All rows once, in order; nothing left over."""
        written = ledgers_of(self.client, f"{self.name}-out")
        chosen = committed(written)
        assert {each.ledger_id for each in written} == {each.ledger_id for each in chosen}, "ledgers are left over"
        received: Counter[bytes] = Counter()
        for record in chosen:
            positions: dict[bytes, int] = {}
            for payload in payloads(self.client, record):
                received[payload] += 1
                source, entry = payload.split()[0], int(payload.split()[1])
                assert positions.get(source, -1) < entry, "entries of a ledger changed places"
                positions[source] = entry
        assert received == self.sent

    def check_stream(self) -> None:
        """The same of a sink that is a stream; a repeated batch may have its rows in another order."""
        with Streams(self.client).open(self.name).reader(follow=False) as reader:
            received = Counter(record.payload for record in reader.records())
        assert received == self.sent


def ledgers_of(client: BookKeeper, app: str) -> list[LedgerRecord]:
    listed = [record for page in client.list_ledgers() for record in page]
    return [record for record in listed if record.metadata.custom_metadata.get("app") == app.encode()]


def payloads(client: BookKeeper, record: LedgerRecord) -> list[bytes]:
    with client.open_ledger(record.ledger_id, password=PASSWORD) as handle:
        return [entry.payload for entry in handle.read(0, record.metadata.last_entry_id)]


@pytest.mark.timeout(1000)
@full_only
def test_a_driver_that_is_killed_in_the_middle(client: BookKeeper, cluster: StandaloneCluster, tmp_path: Path) -> None:
    copy = Copy(client, cluster.gateway_uri, tmp_path, "killed", HERE)
    copy.feed(4, 300)
    copy.run_until(2, random.Random(1))
    copy.feed(2, 50)
    copy.finish()
    copy.check()


@full_only
@pytest.mark.timeout(2000)
def test_a_driver_that_writes_a_stream_is_killed_again_and_again(
    client: BookKeeper, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    copy = Copy(client, cluster.gateway_uri, tmp_path, "to-stream", HERE)
    copy.job["sink"] = {"gateways": cluster.gateway_uri, "stream": "to-stream"}
    Streams(client).create("to-stream")
    for seed in range(4):
        copy.feed(3, 400)
        copy.run_until(1 + seed, random.Random(seed))
    copy.finish()
    copy.check_stream()


@full_only
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("master", [HERE, SEPARATE])
def test_a_driver_that_is_killed_again_and_again(
    client: BookKeeper, cluster: StandaloneCluster, tmp_path: Path, master: str
) -> None:
    copy = Copy(client, cluster.gateway_uri, tmp_path, f"again-{len(master)}", master)
    for seed in range(4):
        copy.feed(3, 400)
        copy.run_until(1 + seed, random.Random(seed))
    copy.finish()
    copy.check()


@contextmanager
def gateway_of_three(metadata_uri: str, directory: Path) -> Iterator[str]:
    """`bookgate gateway --workers 3`, each of which hands out ids of a block of its own."""
    command = [sys.executable, "-m", "bookgate", "gateway", "--json", "--port", "0", "--workers", "3"]
    with (directory / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--metadata-uri", metadata_uri], stdout=subprocess.PIPE, stderr=log, text=True
        )
    with process:
        assert process.stdout is not None
        try:
            yield f"grpc://{json.loads(process.stdout.readline())['gateway']}"
        finally:
            process.terminate()


@contextmanager
def over_zookeeper(directory: Path, name: str, master: str) -> Iterator[Copy]:
    with (
        LocalZooKeeper(directory / "zookeeper") as zookeeper,
        StandaloneCluster(directory / "cluster", metadata_uri=zookeeper.metadata_uri()),
        gateway_of_three(zookeeper.metadata_uri(), directory) as gateways,
        BookKeeper.connect(gateways) as client,
    ):
        yield Copy(client, gateways, directory, name, master)


def check_that_ids_tell_nothing_of_time(client: BookKeeper) -> None:
    """Else the test would see nothing of what it is for."""
    records = [record for page in client.list_ledgers() for record in page]
    by_age = sorted(records, key=lambda record: record.creation_ms or 0)
    assert by_age != records, "every gateway handed out ascending ids"


@full_only
@pytest.mark.timeout(900)
def test_metadata_in_zookeeper_and_executors_apart(tmp_path: Path) -> None:
    with over_zookeeper(tmp_path, "zookeeper", SEPARATE) as copy:
        copy.feed(4, 400)
        copy.run_until(2, random.Random(7))
        copy.finish()
        check_that_ids_tell_nothing_of_time(copy.client)
        copy.check()


@full_only
@pytest.mark.timeout(1800)
def test_a_driver_that_stands_still_goes_on_beside_its_successor(tmp_path: Path) -> None:
    with over_zookeeper(tmp_path, "stale", HERE) as copy:
        for seed in range(3):
            # More than it can copy until it stops: its successor has something to do, and it will find that out.
            copy.feed(3, 800)
            stale = copy.stopped_after(1 + seed, random.Random(seed))
            copy.finish()
            os.killpg(stale.process.pid, signal.SIGCONT)
            for _ in stale.lines():
                pass
            assert stale.end() != 0, "it goes on as if it were alone"
        copy.feed(1, 50)
        copy.finish()
        check_that_ids_tell_nothing_of_time(copy.client)
        copy.check()


@full_only
@pytest.mark.timeout(900)
def test_a_bookie_that_is_killed_during_the_stream(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path / "cluster") as cluster, BookKeeper.connect(cluster.gateway_uri) as client:
        copy = Copy(client, cluster.gateway_uri, tmp_path, "bookie", HERE)
        # Two bookies stay; three copies can't be made any more then.
        copy.write_with(ensembleSize="2", writeQuorum="2", ackQuorum="2")
        copy.feed(6, 400)
        running = copy.driver(now=True)
        for number, _ in enumerate(running.lines()):
            if number == 2:
                cluster.processes[2].kill()
        assert running.end() == 0, "".join(running.errors[-30:])
        copy.check()


FAULTS = ["raise", "kill worker", "kill executor"]


@full_only
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS)
def test_tasks_that_fail_and_are_tried_again(client: BookKeeper, cluster: StandaloneCluster, fault: str) -> None:
    app = f"fault-{FAULTS.index(fault)}"
    sink = {"gateways": cluster.gateway_uri, "password": PASSWORD.decode(), "customMetadata.app": app}
    job = {"job": "write", "sink": sink, "rows": 4000, "tasks": 4, "fault": fault, "always": False}
    with driver(master=SEPARATE, jobs=[job]) as running:
        assert list(running.lines()) == ["done"], "".join(running.errors[-30:])
    written = ledgers_of(client, app)
    assert Counter(payload for record in written for payload in payloads(client, record)) == Counter(
        b"row %d" % number for number in range(4000)
    )
    assert len(written) == 4


@full_only
@pytest.mark.timeout(900)
def test_a_task_that_always_fails_leaves_nothing(client: BookKeeper, cluster: StandaloneCluster) -> None:
    sink = {"gateways": cluster.gateway_uri, "password": PASSWORD.decode(), "customMetadata.app": "fault-always"}
    job = {"job": "write", "sink": sink, "rows": 4000, "tasks": 4, "fault": "kill worker", "always": True}
    with driver(master=SEPARATE, jobs=[job]) as running:
        assert list(running.lines()) == ["failed"], "".join(running.errors[-30:])
    left = ledgers_of(client, "fault-always")
    assert all(QUERY_KEY in record.metadata.custom_metadata for record in left)
    assert left == []
