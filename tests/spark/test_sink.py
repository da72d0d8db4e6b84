"""Writing ledgers with Spark, batch and stream, over a real cluster; and reading them back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commit_protocol import COMMITTED_KEY, Write, attempt_metadata, committed, sink_state
from tests.spark.conftest import PASSWORD
from tests.spark.sessions import started

DEADLINE_SECONDS = 300
"""Of a query on a busy machine; on a quiet one each takes a second or two."""

pytestmark = pytest.mark.timeout(400)


class Sinks:
    """Writes frames into ledgers of an application, and looks at what came of it."""

    def __init__(self, spark: SparkSession, client: BookKeeper, gateways: str, app: str) -> None:
        self.spark = spark
        self.client = client
        self.options = {"gateways": gateways, "password": PASSWORD.decode(), "customMetadata.app": app}
        self.app = app

    def write(self, frame: DataFrame, mode: str = "append", **options: object) -> None:
        frame.write.format("bookkeeper").options(**self.options, **options).mode(mode).save()  # type: ignore[arg-type]

    def read(self, **options: object) -> list[bytes]:
        frame = self.spark.read.format("bookkeeper").options(**self.options, **options).load()  # type: ignore[arg-type]
        return sorted(bytes(row.payload) for row in frame.select("payload").collect())

    def records(self) -> list[LedgerRecord]:
        """All ledgers of the application, committed or not."""
        wanted = ("app", self.app.encode())
        listed = [record for page in self.client.list_ledgers() for record in page]
        return [record for record in listed if wanted in record.metadata.custom_metadata.items()]


@pytest.fixture
def sinks(spark: SparkSession, client: BookKeeper, cluster: StandaloneCluster, request: pytest.FixtureRequest) -> Sinks:
    return Sinks(spark, client, cluster.gateway_uri, request.node.name.lower())


def numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    """Rows `row 0` … in so many partitions, in order."""
    return spark.range(0, count, 1, tasks).select(F.format_string("row %d", "id").alias("payload"))


def rows(count: int) -> list[bytes]:
    return sorted(b"row %d" % number for number in range(count))


def test_a_frame_becomes_one_closed_ledger_a_task_in_order(sinks: Sinks) -> None:
    frame = numbers(sinks.spark, 5000, 3)
    sinks.write(frame, ensembleSize=2, writeQuorum=2, ackQuorum=1, digestType="HMAC", **{"customMetadata.kind": "Test"})
    records = sinks.records()
    assert len(records) == 3
    for record in records:
        metadata = record.metadata
        assert metadata.is_closed
        assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (2, 2, 1)
        assert metadata.digest_type is DigestType.HMAC
        assert metadata.custom_metadata["kind"] == b"Test"
        with sinks.client.open_ledger(record.ledger_id, password=PASSWORD) as handle:
            payloads = [entry.payload for entry in handle.read(0, metadata.last_entry_id)]
        first = int(payloads[0].split()[1])
        assert payloads == [b"row %d" % number for number in range(first, first + len(payloads))]
    assert sum(record.metadata.last_entry_id + 1 for record in records) == 5000
    marks = [record.metadata.custom_metadata[COMMITTED_KEY] for record in records]
    ids = [record.ledger_id.low for record in records]
    assert marks == [b"%d-%d" % (ids[0], ids[-1]), b"%d" % ids[0], b"%d" % ids[0]]
    assert sinks.read() == rows(5000)


@pytest.mark.long
def test_binary_any_name_empty_payloads_and_empty_partitions(sinks: Sinks) -> None:
    values = [b"", b"\x00\xff", b"x" * 300_000]
    frame = sinks.spark.createDataFrame([(value,) for value in values], "anything binary").repartition(6)
    sinks.write(frame)
    assert sinks.read() == sorted(values)
    assert 1 <= len(sinks.records()) <= 3
    sinks.write(frame.limit(0))
    assert sinks.read() == sorted(values)


@pytest.mark.long
def test_large_rows_are_handed_over_in_parts(sinks: Sinks) -> None:
    frame = sinks.spark.range(0, 60, 1, 1).select(F.expr("repeat(cast(id as string), 500000)").alias("payload"))
    sinks.write(frame)
    assert Counter(len(payload) for payload in sinks.read()) == {500_000: 10, 1_000_000: 50}


@pytest.mark.long
def test_what_the_sink_refuses(sinks: Sinks) -> None:
    one = numbers(sinks.spark, 3, 1)
    both = one.withColumn("other", F.lit(1))
    sinks.write(both)
    assert sinks.read() == rows(3), "columns beside payload are not written"
    cases: list[tuple[DataFrame, dict[str, object], str]] = [
        (one, {"mode": "overwrite"}, "appends and never replaces"),
        (both.withColumnRenamed("payload", "x"), {}, "writes the column 'payload', or the only one"),
        (one.select(F.length("payload").alias("payload")), {}, "'payload' is int; the sink writes"),
        (one, {"endingOffsets": "latest"}, "option 'endingoffsets' is not one of the sink's"),
        (one, {"table": "ledgers"}, "only 'entries' can be written"),
        (one, {"scopeId": "tenant"}, "option scopeId"),
        (one, {"ensembleSize": "2", "ackQuorum": "3"}, "each must be at least the next"),
        (one, {"customMetadata.bookgate.sink.query": "x"}, "are the sink's own"),
        (one.select(F.nullif("payload", F.lit("row 1")).alias("payload")), {}, "has 1 nulls among 3 rows"),
        (one, {"ensembleSize": "9", "writeQuorum": "3"}, "NotEnoughBookiesException"),
        (one.select(F.expr("repeat('x', 6000000)").alias("payload")), {}, "too large for ledger"),
    ]
    for frame, options, message in cases:
        with pytest.raises(PySparkException, match=message):
            sinks.write(frame, **options)  # type: ignore[arg-type]
    assert sinks.read() == rows(3)
    assert len(sinks.records()) == 1, "what failed has left ledgers"


def test_a_write_with_an_id_is_written_once(sinks: Sinks) -> None:
    sinks.write(numbers(sinks.spark, 10, 2), writeId=f"{sinks.app}-1")
    ids = [record.ledger_id for record in sinks.records()]
    sinks.write(numbers(sinks.spark, 10, 2), writeId=f"{sinks.app}-1")
    assert [record.ledger_id for record in sinks.records()] == ids
    sinks.write(numbers(sinks.spark, 10, 2), writeId=f"{sinks.app}-2")
    assert sinks.read() == sorted(rows(10) * 2)


@pytest.mark.long
def test_uncommitted_ledgers_are_left_out_unless_wanted(sinks: Sinks) -> None:
    metadata = {"app": sinks.app.encode(), **attempt_metadata(Write("somebody"), "0.0.0")}
    with sinks.client.create_ledger(password=PASSWORD, custom_metadata=metadata) as ledger:
        ledger.append(b"not yet")
    sinks.write(numbers(sinks.spark, 2, 1))
    assert sinks.read() == rows(2)
    assert sinks.read(includeUncommitted=True) == sorted([b"not yet", *rows(2)])


@pytest.mark.long
def test_abort_deletes_what_the_tasks_wrote(sinks: Sinks) -> None:
    def fails(payload: str) -> str:
        if payload == "row 2999":
            raise RuntimeError("planned")
        return payload

    frame = numbers(sinks.spark, 3000, 3).select(F.udf(fails, "string")("payload").alias("payload"))
    with pytest.raises(PySparkException, match="planned"):
        sinks.write(frame)
    assert sinks.records() == []


# Streams


def stream(sinks: Sinks, source: DataFrame, checkpoint: Path, **options: object) -> None:
    """Writes what there is now."""
    writer = source.writeStream.format("bookkeeper").options(**sinks.options, **options)  # type: ignore[arg-type]
    query = started(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True))
    try:
        assert query.awaitTermination(DEADLINE_SECONDS)
    finally:
        query.stop()


def source_of(sinks: Sinks, app: str, **options: object) -> DataFrame:
    chosen = {**sinks.options, "customMetadata.app": app, **options}
    return sinks.spark.readStream.format("bookkeeper").options(**chosen).load()  # type: ignore[arg-type]


def input_ledger(sinks: Sinks, app: str, first: int, count: int) -> None:
    metadata = {"app": app.encode()}
    with sinks.client.create_ledger(password=PASSWORD, custom_metadata=metadata) as ledger:
        ledger.append_all([b"row %d" % number for number in range(first, first + count)])


def forget_the_last_commit(checkpoint: Path) -> None:
    """What a driver that dies behind the sink's commit leaves: Spark has not noted the batch."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.mark.long
def test_a_stream_is_copied_batch_by_batch_and_its_ledgers_say_whose_they_are(sinks: Sinks, tmp_path: Path) -> None:
    input_ledger(sinks, "stream-in", 0, 100)
    source = source_of(sinks, "stream-in", maxEntriesPerTrigger=40).select("payload")
    stream(sinks, source, tmp_path / "checkpoint")
    states = [state for record in sinks.records() if (state := sink_state(record)) is not None]
    assert sorted({state.write.batch for state in states}) == [0, 1, 2]
    assert len({state.write.query for state in states}) == 1
    assert committed(sinks.records()) == sinks.records()
    assert sinks.read() == rows(100)

    # The driver dies behind the commit: the batch is read again, and not written twice.
    forget_the_last_commit(tmp_path / "checkpoint")
    before = [record.ledger_id for record in sinks.records()]
    # And a killed attempt of an earlier start has left a ledger.
    last = Write(states[0].write.query, 2)
    left = {"app": sinks.app.encode(), **attempt_metadata(last, "0.0.0")}
    sinks.client.create_ledger(password=PASSWORD, custom_metadata=left)
    stream(sinks, source, tmp_path / "checkpoint")
    assert [record.ledger_id for record in sinks.records()] == before
    input_ledger(sinks, "stream-in", 100, 10)
    stream(sinks, source, tmp_path / "checkpoint")
    assert sinks.read() == rows(110)


@pytest.mark.long
def test_what_a_streaming_sink_refuses(sinks: Sinks, tmp_path: Path) -> None:
    input_ledger(sinks, "refuse-in", 0, 1)
    source = source_of(sinks, "refuse-in").select("payload")
    with pytest.raises(PySparkException, match="a stream has the id of its query"):
        stream(sinks, source, tmp_path / "checkpoint", writeId="x")
    assert sinks.records() == []
