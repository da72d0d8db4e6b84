"""The audit finds planted damage, names it, and finds nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from typer.testing import CliRunner

from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import ScrubOptions
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import TooManyRequestsException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.ledger.replication_store import ReplicationMetadata
from bookgate.thinclient.blocking.client import BookKeeper, ReadHandle
from bookgate.thinclient.blocking.loop_thread import LoopThread
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.metadata_source import metadata_factory
from bookgate.thinclient.spark.commands import main
from bookgate.thinclient.spark.jobs import copies_table
from bookgate.thinclient.spark.jobs.audit import FAULTS, _by_first_entry, audit
from bookgate.thinclient.spark.jobs.copies import CopyReader, Fault
from bookgate.thinclient.spark.jobs.marking import mark_lacking
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.reading.entries import readable_slices
from bookgate.thinclient.spark.reading.planning import TemplateTable, readable_record
from bookgate.thinclient.spark.worker_client import WorkerClients
from tests.integration.bookie.entry_client import EntryClient, add
from tests.integration.bookie.in_process import until
from tests.spark.conftest import KEY, PASSWORD
from tests.spark.planted import Copy, plant, sound

T = TypeVar("T")


def lost(ledger_id: int, copy: Copy) -> bytes | None:
    """bookie-2 lacks entries 10 to 14, and 59."""
    gone = copy.bookie_id == "bookie-2" and (10 <= copy.entry_id <= 14 or copy.entry_id == 59)
    return None if gone else sound(ledger_id, copy)


def flipped(ledger_id: int, copy: Copy) -> bytes | None:
    """One bit of entry 7 on bookie-3."""
    body = bytearray(sound(ledger_id, copy))
    if (copy.bookie_id, copy.entry_id) == ("bookie-3", 7):
        body[-1] ^= 4
    return bytes(body)


def corrupt_on_2(ledger_id: int, copy: Copy) -> bytes | None:
    """One bit of three entries on bookie-2."""
    body = bytearray(sound(ledger_id, copy) or b"")
    if copy.bookie_id == "bookie-2" and copy.entry_id in (3, 4, 40):
        body[-1] ^= 4
    return bytes(body)


def stretched(ledger_id: int, copy: Copy) -> bytes | None:
    """Entry 20 on bookie-1 says that the ledger is longer than it is, with a digest that agrees."""
    if (copy.bookie_id, copy.entry_id) == ("bookie-1", 20):
        copy = Copy(copy.bookie_id, copy.entry_id, copy.length + 1, copy.payload)
    return sound(ledger_id, copy)


def forgotten(ledger_id: int, copy: Copy) -> bytes | None:
    """bookie-1 has nothing of the ledger."""
    return None if copy.bookie_id == "bookie-1" else sound(ledger_id, copy)


def run(spark: SparkSession, cluster: StandaloneCluster, *ledgers: int, **options: str) -> list[Row]:
    selected = {"ledgerIds": ",".join(map(str, ledgers))} if ledgers else {}
    return audit(spark, {"gateways": cluster.gateway_uri, **selected, **options}).collect()


def damage(rows: list[Row]) -> dict[tuple[int, int | None, str | None], dict[str, int]]:
    """What is wrong, by ledger, fragment and bookie."""
    return {
        (row.ledger_id, row.fragment, row.bookie_id): {name: row[name] for name in FAULTS if row[name]}
        for row in rows
        if any(row[name] for name in FAULTS)
    }


def ranges(rows: list[Row], bookie_id: str) -> list[tuple[str, int, int]]:
    (row,) = (row for row in rows if row.bookie_id == bookie_id)
    return [(found.fault, found.first_entry_id, found.last_entry_id) for found in row.ranges]


def test_planted_damage_is_found_and_nothing_else(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    good, missing, corrupt = (plant(client, cluster, spoil) for spoil in (sound, lost, flipped))
    long, short_metadata = plant(client, cluster, stretched), plant(client, cluster, length=5)
    nothing = plant(client, cluster, forgotten)
    rows = run(spark, cluster, good, missing, corrupt, long, short_metadata, nothing)
    assert damage(rows) == {
        (missing, 0, "bookie-2"): {"missing": 6},
        (corrupt, 0, "bookie-3"): {"corrupt": 1},
        (long, 0, "bookie-1"): {"wrong_length": 1},
        (short_metadata, None, None): {"wrong_length": 1},
        (nothing, 0, "bookie-1"): {"missing": 60},
    }
    assert sum(row.copies for row in rows) == 6 * 3 * 60
    assert all(row.copies == row.good + sum(row[name] for name in FAULTS) for row in rows if row.bookie_id)
    of_missing = [row for row in rows if row.ledger_id == missing]
    assert ranges(of_missing, "bookie-2") == [("missing", 10, 14), ("missing", 59, 59)]
    assert ranges([row for row in rows if row.ledger_id == corrupt], "bookie-3") == [("corrupt", 7, 7)]


@pytest.mark.long
def test_a_striped_ledger_is_looked_at_where_it_should_be(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    ledger = plant(client, cluster, lost, write_quorum=2)
    rows = run(spark, cluster, ledger)
    # Of 10 to 14 and 59, bookie-2 is in the write sets of 10, 12, 13 and none of 11, 14, 59.
    assert damage(rows) == {(ledger, 0, "bookie-2"): {"missing": 3}}
    assert [row.copies for row in rows] == [40, 40, 40]
    assert ranges(rows, "bookie-2") == [("missing", 10, 13)]


@pytest.mark.long
def test_tasks_that_share_a_fragment_make_one_row_a_bookie(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    ledger = plant(client, cluster, lost)
    rows = run(spark, cluster, ledger, maxEntriesPerPartition="7")
    assert len(rows) == 3
    assert damage(rows) == {(ledger, 0, "bookie-2"): {"missing": 6}}
    found = ranges(rows, "bookie-2")
    assert found == sorted(found)
    assert [entry for _, first, last in found for entry in range(first, last + 1)] == [10, 11, 12, 13, 14, 59]


def test_ledgers_as_clients_write_them_are_sound(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    with client.create_ledger(password=PASSWORD) as closed:
        closed.append_all([b"x" * n for n in range(300)])
    being_written = client.create_ledger(password=b"another password")
    for _ in range(50):
        being_written.append(b"y")
    empty = client.create_ledger(password=PASSWORD)
    empty.close()
    wanted = [ledger.ledger_id.low for ledger in (closed, being_written, empty)]
    rows = run(spark, cluster, *wanted)
    assert damage(rows) == {}
    assert {row.ledger_id for row in rows} == set(wanted[:2])
    assert being_written.append(b"still mine") == 50
    being_written.close()


@pytest.mark.long
def test_a_bookie_that_is_away_is_said_apart_from_damage(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    ledger = plant(client, cluster)
    away = cluster.processes[2]
    away.kill()
    try:
        rows = run(spark, cluster, ledger, readTimeoutMs="2000")
    finally:
        away.start()
        away.wait_until_serving()
    assert damage(rows) == {(ledger, 0, "bookie-3"): {"unreachable": 60}}
    assert ranges(rows, "bookie-3") == [("unreachable", 0, 59)]


def test_a_ledger_deleted_meanwhile_has_no_damage(cluster: StandaloneCluster, client: BookKeeper) -> None:
    ledger = plant(client, cluster, lost)
    options = parse_options({"gateways": cluster.gateway_uri, "ledgerIds": str(ledger), "password": PASSWORD.decode()})
    (piece,) = readable_slices(client, options)
    reader = CopyReader(client, PASSWORD)
    assert sum(report.counts.total() for report in reader.check(piece)) == 6
    client.delete_ledger(ledger)
    assert reader.check(piece) == []


@pytest.mark.long
def test_copies_on_their_way_to_a_slow_bookie_are_waited_for(cluster: StandaloneCluster, client: BookKeeper) -> None:
    ledger = plant(client, cluster, lost, closed=False)
    record = readable_record(client.read_record(ledger), 59, 0)
    late = Copy("bookie-2", 59, 0, b"")
    pauses: list[float] = []

    def arrives(seconds: float) -> None:
        if not pauses:
            with EntryClient(cluster.bookies[1]) as bookie:
                for entry_id in (10, 11, 12, 13, 14, 59):
                    bookie.ask(add(ledger, entry_id, key=KEY, body=sound(ledger, replace(late, entry_id=entry_id))))
        pauses.append(seconds)

    reader = CopyReader(client, PASSWORD, pause=arrives)
    reports = reader.check(TemplateTable().slice_of(record), is_open=True)
    assert pauses == [0.2]
    assert [report.counts[Fault.MISSING] for report in reports] == [0, 0, 0]


class Refusing:
    """A client whose bookie-2 refuses so many reads for having too much to do, and which may not read some ledgers."""

    def __init__(self, client: BookKeeper, refusals: int = 0, forbidden: tuple[int, ...] = ()) -> None:
        self.client = client
        self.refusals = refusals
        self.forbidden = forbidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def open_record(self, record: LedgerRecord, password: bytes) -> Any:
        if record.ledger_id.low in self.forbidden:
            raise UnauthorizedAccessException("not for you")
        handle = self.client.open_record(record, password)
        on_bookie_2 = record.metadata.last_fragment.ensemble == ("bookie-2",)
        return RefusingHandle(self, handle) if on_bookie_2 else handle


class RefusingHandle:
    def __init__(self, owner: Refusing, handle: ReadHandle) -> None:
        self.owner = owner
        self.handle = handle

    def __enter__(self) -> RefusingHandle:
        return self

    def __exit__(self, *_error: object) -> None:
        self.handle.close()

    def read_columns(self, first: int, last: int) -> Iterator[EntryColumns]:
        self.owner.refusals -= 1
        if self.owner.refusals >= 0:
            raise TooManyRequestsException("too much to do")
        return self.handle.read_columns(first, last)


def test_a_busy_bookie_is_asked_again_and_then_said_to_be_busy(cluster: StandaloneCluster, client: BookKeeper) -> None:
    piece = TemplateTable().slice_of(client.read_record(plant(client, cluster, lost)))
    pauses: list[float] = []

    def counts(refusals: int, pieces: int = 1) -> list[list[dict[Fault, int]]]:
        reader = CopyReader(cast(BookKeeper, Refusing(client, refusals)), PASSWORD, retries=2, pause=pauses.append)
        return [[dict(report.counts) for report in reader.check(piece)] for _ in range(pieces)]

    assert counts(refusals=2) == [[{}, {Fault.MISSING: 6}, {}]]
    assert pauses == [0.2, 0.4]
    pauses.clear()
    busy, after = counts(refusals=3, pieces=2)
    assert busy == [{}, {Fault.BUSY: 60}, {}]
    assert after == [{}, {Fault.MISSING: 6}, {}]
    assert pauses == [0.2, 0.4]


@pytest.mark.long
def test_a_ledger_that_may_not_be_read_is_a_row_and_not_the_end(
    cluster: StandaloneCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = closed, opened, after = (
        plant(client, cluster),
        plant(client, cluster, closed=False),
        plant(client, cluster),
    )

    class Forbidding(Refusing):
        def open_ledger(self, ledger_id: LedgerId, password: bytes, recovery: bool) -> None:
            raise UnauthorizedAccessException(f"{ledger_id} is not for you")

    refusing = Forbidding(client, forbidden=(closed,))
    monkeypatch.setattr(copies_table, "clients", WorkerClients(lambda *_: cast(BookKeeper, refusing)))
    options = parse_options(
        {"gateways": cluster.gateway_uri, "table": "copies", "ledgerIds": ",".join(map(str, ledgers))}
    )
    reader = copies_table.CopiesReader(options)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    rows = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    refused = {row["ledger_id"]: row for row in rows if row["unauthorized"]}
    assert sorted(refused) == [closed, opened]
    assert all((row["bookie_id"], row["copies"], row["unauthorized"]) == (None, 0, 1) for row in refused.values())
    assert refused[closed]["ranges"][0]["detail"] == "not checked: unauthorized: not for you"
    assert [row["good"] for row in rows if row["ledger_id"] == after] == [60, 60, 60]


def in_metadata(cluster: StandaloneCluster, work: Callable[[LedgerManagerFactory], Coroutine[Any, Any, T]]) -> T:
    """Does `work` with the cluster's metadata, through its gateways."""

    async def run() -> T:
        factory = metadata_factory(cluster.gateway_uri, ClientConfig())
        try:
            await factory.initialize()
            return await work(factory)
        finally:
            await factory.close()

    thread = LoopThread.acquire()
    try:
        return thread.run(run())
    finally:
        thread.release()


async def marked(store: ReplicationMetadata) -> dict[int, tuple[str, ...]]:
    return {mark.value.ledger_id: mark.value.replicas async for page in store.marks() for mark in page}


def marks(cluster: StandaloneCluster) -> dict[int, tuple[str, ...]]:
    return in_metadata(cluster, lambda factory: marked(factory.replication_metadata))


@pytest.fixture
def unmarked(cluster: StandaloneCluster) -> Iterator[None]:
    """Takes back what a test has marked."""

    async def clear(factory: LedgerManagerFactory) -> None:
        store = factory.replication_metadata
        for mark in [mark async for page in store.marks() for mark in page]:
            await store.delete_mark(mark.value.ledger_id, mark.version)

    yield
    in_metadata(cluster, clear)


@pytest.fixture
def command(spark: SparkSession, cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`bookgate spark audit` of some ledgers that have damage, in the session of these tests; what it prints."""

    @contextmanager
    def of_these_tests(*_arguments: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(main, "spark_session", of_these_tests)

    def run_it(ledgers: Sequence[int], *more: str) -> str:
        selected = ("-g", cluster.gateway_uri, "--ledger-ids", ",".join(map(str, ledgers)))
        ended = CliRunner().invoke(main.app, ["audit", *selected, *more])
        assert ended.exit_code == 1, ended.stderr
        return ended.stdout if "--json" in more else ended.output

    return run_it


@pytest.mark.long
@pytest.mark.usefixtures("unmarked")
def test_the_command_marks_what_lacks_copies_and_only_if_told_so(
    cluster: StandaloneCluster, client: BookKeeper, command: Callable[..., str]
) -> None:
    ledgers = missing, corrupt, nothing = [plant(client, cluster, spoil) for spoil in (lost, flipped, forgotten)]
    assert "marked" not in command(ledgers)
    assert marks(cluster) == {}
    result = json.loads(command(ledgers, "--json", "--mark"))
    assert (result["missing"], result["marked"], result["left"]) == (66, 3, 0)
    assert "there is no auditor" in result["obstacle"]
    assert marks(cluster) == {missing: ("bookie-2",), corrupt: ("bookie-3",), nothing: ("bookie-1",)}


@pytest.mark.long
@pytest.mark.usefixtures("unmarked")
def test_what_was_marked_is_repaired_and_the_next_audit_finds_nothing(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, command: Callable[..., str]
) -> None:
    lacking, corrupt, whole = (plant(client, cluster, spoil) for spoil in (lost, corrupt_on_2, sound))
    gone = cluster.processes[2]
    gone.kill()
    in_metadata(cluster, lambda factory: factory.replication_metadata.set_enabled(False))
    try:
        said = command([lacking, corrupt, whole], "--mark", "--option", "readTimeoutMs=2000")
    finally:
        in_metadata(cluster, lambda factory: factory.replication_metadata.set_enabled(True))
        gone.start()
        gone.wait_until_serving()
    assert "unreachable: 180" in said
    assert "marked: 2, left: 0" in said
    assert "nothing is repaired now: auto-recovery is disabled" in said
    assert marks(cluster) == {lacking: ("bookie-2",), corrupt: ("bookie-2",)}

    async def repair(factory: LedgerManagerFactory) -> None:
        # Without checks of its own, so that only what the audit marked is repaired.
        options = AutoRecoveryOptions(
            AuditorOptions(lost_bookie_delay_seconds=3600),
            check=ReplicaCheckOptions(interval_seconds=0),
            scrub=ScrubOptions(bytes_a_second=0),
        )
        running = AutoRecovery(factory, "here", options, ClientConfig())
        await running.start()
        try:
            await until(lambda: running.worker.statistics.ledgers_repaired == 2, 60)
        finally:
            await running.stop()

    in_metadata(cluster, repair)
    assert damage(run(spark, cluster, lacking, corrupt)) == {}


@pytest.mark.long
@pytest.mark.usefixtures("unmarked")
def test_a_ledger_of_a_scope_is_marked_by_its_whole_id(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    """One with the same lower half, which does not exist, is left, and does not add to the mark of the other."""
    ledger = plant(client, cluster)
    rows = [(0, ledger, 0, "bookie-1", 1), (0, ledger, 0, "bookie-3", 2), (7, ledger, 0, "bookie-2", 1)]
    found = spark.createDataFrame(
        [(*row, 0, []) for row in rows],
        "scope_id bigint, ledger_id bigint, fragment bigint, bookie_id string, missing bigint, corrupt bigint, "
        "ranges array<struct<fault: string, first_entry_id: bigint, last_entry_id: bigint, detail: string>>",
    )
    marking = mark_lacking(found, {"gateways": cluster.gateway_uri})
    assert (marking.marked, marking.left, marking.failure) == (1, 1, None)
    assert marks(cluster) == {ledger: ("bookie-1", "bookie-3")}


def test_ranges_are_in_order_however_far_apart_they_are(spark: SparkSession) -> None:
    firsts = [5_000_000_000, 0, 1 << 32, 3]
    ranges = spark.createDataFrame([([(each,) for each in firsts],)], "ranges array<struct<first_entry_id:bigint>>")
    (row,) = ranges.select(F.array_sort("ranges", _by_first_entry).alias("ranges")).collect()
    assert [each.first_entry_id for each in row.ranges] == sorted(firsts)
