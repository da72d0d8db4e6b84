"""What a batch read makes of losses, of bookies and gateways that die under it, and of executors in other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.jobs.views import query_views
from tests.spark.conftest import PASSWORD, Tables
from tests.spark.planted import Copy, plant, sound
from tests.spark.sessions import ROOT, environment

FULL = os.environ.get("BOOKGATE_SPARK_FULL") == "1"
"""The sizes of `make test-spark`; else few of them."""
LARGE_LEDGER = 10_000_000 if FULL else 40_000
SMALL_LEDGERS = 10_000 if FULL else 200


def write(client: BookKeeper, count: int, payload: bytes = b"x" * 100, **custom: bytes) -> int:
    """A closed ledger; its id."""
    with client.create_ledger(password=PASSWORD, custom_metadata=custom) as ledger:
        ledger.append_all(payload for _ in range(count))
    return ledger.ledger_id.low


# Losses


@pytest.fixture(scope="module")
def holed(client: BookKeeper, cluster: StandaloneCluster) -> int:
    """Entries 7, 8 and 40 of 60 are on no bookie."""

    def lose(ledger_id: int, copy: Copy) -> bytes | None:
        return None if copy.entry_id in (7, 8, 40) else sound(ledger_id, copy)

    return plant(client, cluster, lose)


def test_a_lost_entry_ends_the_read_with_ledger_range_and_option(tables: Tables, holed: int) -> None:
    with pytest.raises(PySparkException) as caught:
        tables.load(ledgerIds=holed).collect()
    assert f"entries 7 to 59 of ledger {holed} can't be read" in str(caught.value)
    assert "failOnDataLoss=false skips what is lost" in str(caught.value)


@pytest.mark.long
def test_lost_entries_are_skipped_and_counted_in_the_log_that_spark_has_as_a_table(tables: Tables, holed: int) -> None:
    def counted() -> int:
        """Of all reads in this Spark session."""
        found = tables.spark.sql(
            "SELECT sum(context['lost_entries']) AS lost FROM python_worker_logs() "
            "WHERE context['lost_entries'] IS NOT NULL"
        ).first()
        return int(found.lost or 0) if found is not None else 0

    before = counted()
    rows = tables.load(ledgerIds=holed, failOnDataLoss=False, minPartitions=1).collect()
    assert sorted(row.entry_id for row in rows) == [n for n in range(60) if n not in (7, 8, 40)]
    assert counted() == before + 3


# Filters


@pytest.mark.long
def test_filters_are_pushed_where_spark_hands_them_over(tables: Tables, client: BookKeeper) -> None:
    ledger_id = write(client, 1000)
    refused = tables.load(ledgerIds=ledger_id, pushdown=True)
    with pytest.raises(PySparkException, match="filterPushdown"):
        refused.count()
    session = tables.spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", True)
    on = Tables(session, tables.gateways)
    kept = on.load(ledgerIds=ledger_id, maxEntriesPerPartition=100, pushdown=False).where("entry_id < 10")
    assert (kept.count(), kept.rdd.getNumPartitions()) == (10, 10)
    pushed = on.load(ledgerIds=ledger_id, maxEntriesPerPartition=100, pushdown=True).where("entry_id < 10")
    assert (pushed.count(), pushed.rdd.getNumPartitions()) == (10, 1)

    def few(where: str) -> DataFrame:
        return on.load(maxEntriesPerPartition=100, pushdown=True).where(where)

    middle = few(f"ledger_id = {ledger_id} AND entry_id BETWEEN 5 AND 8 AND ledger_length > 600")
    assert sorted(row.entry_id for row in middle.collect()) == [6, 7, 8]
    assert middle.rdd.getNumPartitions() == 1
    assert few(f"ledger_id IN ({ledger_id}) AND entry_id >= 700").rdd.getNumPartitions() == 3
    of_spark = on.load(ledgerIds=ledger_id, pushdown=True).where("ledger_id = -5 OR entry_id = 6")
    assert [row.entry_id for row in of_spark.collect()] == [6]
    ids = [
        row.ledger_id for row in on.load(table="ledgers", pushdown=True).where(f"ledger_id >= {ledger_id}").collect()
    ]
    assert ids[0] == ledger_id


@pytest.mark.long
def test_queries_of_views_push_filters_where_no_table_is_read_twice(
    tables: Tables, client: BookKeeper, holed: int, tmp_path: Path
) -> None:
    ledger_id, other = write(client, 10), write(client, 10)
    session = tables.spark.newSession()
    password = PASSWORD.decode()
    everything = {"gateways": tables.gateways, "password": password}

    def count(query: str, **options: str) -> int:
        row = query_views(session, f"SELECT count(*) AS n FROM {query}", {**everything, **options}).first()
        assert row is not None
        return int(row.n)

    # Nothing of the ledger with holes is read, nor of one that has another password.
    with client.create_ledger(password=b"another") as of_another:
        of_another.append(b"not for this query")
    assert count(f"entries WHERE ledger_id = {ledger_id}") == 10
    assert count(f"entries e JOIN ledgers l USING (ledger_id) WHERE ledger_id = {ledger_id} AND entry_id > 3") == 6
    two = {"ledgerIds": f"{ledger_id},{other}"}
    joined = "entries a JOIN entries b ON a.entry_id = b.entry_id"
    assert count(f"{joined} WHERE a.ledger_id = {ledger_id} AND b.ledger_id = {other} AND b.entry_id < 4", **two) == 4
    within = f"(SELECT max(entry_id) FROM entries WHERE ledger_id = {other} AND entry_id < 6)"
    assert count(f"entries WHERE ledger_id = {ledger_id} AND entry_id = {within}", **two) == 1
    with pytest.raises(PySparkException, match=f"of ledger {holed} can't be read"):
        count(f"entries WHERE ledger_id = {holed}")
    # A command is carried out once.
    session.sql(f"CREATE TABLE copied (entry_id BIGINT) USING parquet LOCATION '{tmp_path}'")
    query_views(session, "INSERT INTO copied SELECT entry_id FROM entries", {**everything, **two})
    assert session.table("copied").count() == 20
    session.sql("DROP TABLE copied")
    client.delete_ledger(of_another.ledger_id)


# Selection by time


@pytest.mark.long
def test_ledgers_from_a_time_on_by_their_own_word_else_the_stores(tables: Tables, client: BookKeeper) -> None:
    def create(ctime_ms: int | None) -> int:
        metadata = LedgerMetadata.new(["bookie-1"], 1, 1, password=PASSWORD, ctime_ms=ctime_ms)
        return client.ledger_manager.create(None, metadata).ledger_id.low

    def read(since: str) -> set[int]:
        found = tables.load(table="ledgers", ledgerIds=",".join(map(str, made)), startingTimestamp=since).collect()
        assert all(row.creation_time is not None for row in found)
        return {row.ledger_id for row in found}

    made = old, future, silent = create(1_700_000_000_000), create(4_102_444_800_000), create(None)
    assert read("1700000000000") == {old, future, silent}
    assert read("2024-01-01T00:00:00Z") == {future, silent}
    assert read("2100-01-01") == {future}
    for ledger_id in made:
        client.delete_ledger(ledger_id)


# Sizes


@pytest.mark.long
def test_one_large_ledger_is_split_over_tasks_and_read_exactly(tables: Tables, client: BookKeeper) -> None:
    ledger_id = write(client, LARGE_LEDGER, b"a payload of some bytes")
    frame = tables.load(ledgerIds=ledger_id, maxEntriesPerPartition=LARGE_LEDGER // 7)
    assert frame.rdd.getNumPartitions() == 8
    total = frame.selectExpr("count(*)", "sum(entry_id)", "count(distinct entry_id)", "max(ledger_length)").first()
    assert total is not None
    assert tuple(total) == (LARGE_LEDGER, LARGE_LEDGER * (LARGE_LEDGER - 1) // 2, LARGE_LEDGER, 23 * LARGE_LEDGER)


@pytest.mark.long
def test_many_small_ledgers_go_into_few_tasks(tables: Tables, client: BookKeeper) -> None:
    for _ in range(SMALL_LEDGERS):
        write(client, 3, app=b"small")
    frame = tables.load(**{"customMetadata.app": "small"})
    assert frame.rdd.getNumPartitions() <= max(4, SMALL_LEDGERS // 1000)
    assert frame.groupBy("ledger_id").count().where("count = 3").count() == SMALL_LEDGERS


# Bookies and gateways that die


def in_tasks(tables: Tables, ledger_id: int, **options: object) -> Iterator[int]:
    """The entry ids of a ledger of four tasks, each run when the rows of the one before are taken."""
    frame = tables.load(ledgerIds=ledger_id, maxEntriesPerPartition=5000, **options).select("entry_id")
    assert frame.rdd.getNumPartitions() == 4
    return (row.entry_id for row in frame.toLocalIterator())


@pytest.mark.long
def test_tasks_need_no_gateway_once_they_are_planned(
    cluster: StandaloneCluster, client: BookKeeper, spark: SparkSession
) -> None:
    ledger_id = write(client, 20_000)
    command = [
        sys.executable,
        "-m",
        "bookgate",
        "gateway",
        "--metadata-uri",
        cluster.metadata_uri,
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        gateways = "grpc://" + json.loads(process.stdout.readline())["gateway"]
        ids = in_tasks(Tables(spark, gateways), ledger_id)
        process.send_signal(signal.SIGKILL)
        process.wait()
    # Planning is done: how many partitions there are was asked for. No worker has a connection to a bookie yet.
    assert sorted(ids) == list(range(20_000))


# Executors as processes of their own


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes a minute: make test-spark")
def test_executors_in_processes_of_their_own(cluster: StandaloneCluster, client: BookKeeper, holed: int) -> None:
    ledger_id = write(client, 20_000)
    password = PASSWORD.decode()
    reads = [
        ["all", {"ledgerIds": str(ledger_id), "minPartitions": "4", "password": password}],
        ["bare", {"ledgerIds": str(ledger_id), "includePayload": "false", "password": password}],
        ["nothing", {"customMetadata.app": "nobody"}],
        ["wrong password", {"ledgerIds": str(ledger_id), "password": "wrong"}],
        ["lost", {"ledgerIds": str(holed), "password": password}],
    ]
    command = [sys.executable, "-m", "tests.spark.separate_executors", cluster.gateway_uri, json.dumps(reads)]
    ours = {**os.environ, **environment()}
    done = subprocess.run(command, capture_output=True, text=True, env=ours, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {result.pop("name"): result for result in map(json.loads, done.stdout.splitlines())}
    ids = sum(range(20_000))
    assert found["all"] == {"rows": 20_000, "ids": ids, "bytes": 2_000_000, "executors": 2}
    assert {**found["bare"], "executors": 0} == {"rows": 20_000, "ids": ids, "bytes": 0, "executors": 0}
    assert found["nothing"]["rows"] == 0
    assert f"the password of ledger {ledger_id} is not the one given" in found["wrong password"]["error"]
    assert f"entries 7 to 59 of ledger {holed} can't be read" in found["lost"]["error"]


# ZooKeeper


@pytest.mark.long
def test_a_cluster_on_zookeeper_whose_bookies_die_one_by_one(tmp_path: Path, spark: SparkSession) -> None:
    with (
        LocalZooKeeper(tmp_path / "zookeeper") as zookeeper,
        StandaloneCluster(tmp_path / "cluster", metadata_uri=zookeeper.metadata_uri("/spark/ledgers")) as cluster,
        BookKeeper.connect(cluster.gateway_uri) as client,
    ):
        tables = Tables(spark, cluster.gateway_uri)
        reads_as_any_other(client, tables)
        replicas_take_over(cluster, client, tables)


def reads_as_any_other(client: BookKeeper, tables: Tables) -> None:
    closed = write(client, 3000, app=b"here")
    with client.create_ledger(password=PASSWORD) as ledger:
        ledger.append_all([b"%d" % n for n in range(10)])
        opened = ledger.ledger_id.low
        states = {row.ledger_id: row.state for row in tables.load(table="ledgers").collect()}
        assert states == {closed: "CLOSED", opened: "OPEN"}
        seen = [row.entry_id for row in tables.load(ledgerRange=f"{opened}-").orderBy("entry_id").collect()]
        assert seen == list(range(len(seen)))
        assert client.read_record(opened).metadata.is_closed is False
    assert tables.load(**{"customMetadata.app": "here"}).count() == 3000
    assert tables.load(startingOffsets=json.dumps({closed: 2990})).count() == 20
    assert tables.load(table="bookies").count() == 3
    with pytest.raises(PySparkException, match=f"ledger {closed}"):
        tables.load(ledgerIds=closed, password="wrong").count()
    with pytest.raises(PySparkException, match="987654321"):
        tables.load(ledgerIds=987654321).count()


def replicas_take_over(cluster: StandaloneCluster, client: BookKeeper, tables: Tables) -> None:
    """From a bookie killed during a scan; when none is left the error names bookie, ledger and range."""
    ledger_id = write(client, 20_000)
    ids = in_tasks(tables, ledger_id, numRetries=1, **{"client.metadata_timeout_seconds": 5})
    read = [next(ids) for _ in range(5000)]
    cluster.processes[0].kill()
    cluster.processes[1].kill()
    read += [next(ids) for _ in range(5000)]
    assert sorted(read) == list(range(10_000))
    cluster.processes[2].kill()
    # What ends a local iterator comes through Py4J as it is.
    message = (
        f"entries 10000 to 14999 of ledger {ledger_id} can't be read: entry 10000 can't be read from any of bookie-"
    )
    with pytest.raises(Exception, match=message):
        next(ids)
