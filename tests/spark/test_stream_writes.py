"""Rows become records of streams, each once: through real Spark, and by attempts of a task that fail or come again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bookgate.blocking import BookKeeper, Stream, Streams
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import IllegalOpException
from bookgate.thinclient.spark.records import record_writes
from bookgate.thinclient.spark.records.record_options import parse_record_write_options
from bookgate.thinclient.spark.records.record_writes import BatchRecords, StreamRecords
from bookgate.thinclient.spark.writing.query_of_task import QueryOfTask
from tests.spark.sessions import started

pytestmark = pytest.mark.timeout(400)

DEADLINE_SECONDS = 300


@pytest.fixture
def stream(client: BookKeeper, request: pytest.FixtureRequest) -> Iterator[Stream]:
    streams = Streams(client)
    yield streams.create(request.node.name)
    streams.delete(request.node.name)


def texts(stream: Stream) -> list[str]:
    with stream.reader(follow=False) as reader:
        return [record.payload.decode() for record in reader.records()]


def numbered(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.format_string("row %d", "id").alias("payload"))


def test_a_batch_write_and_its_repetition(spark: SparkSession, cluster: StandaloneCluster, stream: Stream) -> None:
    def write() -> None:
        writer = numbered(spark, 5000, 1).write.format("bookkeeper").option("gateways", cluster.gateway_uri)
        writer.option("stream", stream.name).option("writeId", "january").mode("append").save()

    write()
    rows = [f"row {number}" for number in range(5000)]
    assert texts(stream) == rows
    write()
    assert texts(stream) == rows


@pytest.mark.long
def test_a_stream_for_each_partition_keeps_the_order_of_a_key(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    """A streaming write, restarted: the second run appends what is new."""
    streams = Streams(client)
    made = [streams.create(f"by-key-{number}") for number in range(3)]

    def run(first: int, last: int) -> None:
        (tmp_path / "in").mkdir(exist_ok=True)
        lines = "".join(f"{number % 7} {number}\n" for number in range(first, last))
        (tmp_path / "in" / f"{first}.txt").write_text(lines)
        frame = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "payload")
        by_key = frame.repartition(3, F.substring("payload", 1, 1))
        writer = by_key.writeStream.format("bookkeeper").option("gateways", cluster.gateway_uri)
        writer = writer.option("stream", "by-key").option("streamPartitions", "3")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert started(writer.trigger(availableNow=True)).awaitTermination(DEADLINE_SECONDS)

    run(0, 1000)
    run(1000, 1500)
    found = [texts(each) for each in made]
    assert sorted(int(text.split()[1]) for part in found for text in part) == list(range(1500))
    keys = [{text.split()[0] for text in part} for part in found]
    assert all(not one & other for one in keys for other in keys if one is not other), "a key is in two streams"
    for part in found:
        for key in {text.split()[0] for text in part}:
            numbers = [int(text.split()[1]) for text in part if text.split()[0] == key]
            assert numbers == sorted(numbers)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": "nobody's"}, "there is no stream"),
        ({"streamPartition": "2"}, "did you mean streamPartitions"),
        ({"streamPartitions": "3"}, "there is no stream .*-0'"),
        ({"customMetadata.a": "b"}, "unknown option"),
        ({}, "more partitions than the sink has streams, which are 1"),
    ],
)
def test_what_can_not_be_written_is_told(
    spark: SparkSession, cluster: StandaloneCluster, stream: Stream, options: dict[str, str], told: str
) -> None:
    given = {"gateways": cluster.gateway_uri, "stream": stream.name, **options}
    with pytest.raises(PySparkException, match=told):
        numbered(spark, 10, 2).write.format("bookkeeper").options(**given).mode("append").save()


# Attempts of a task, without Spark


class Attempts:
    """Attempts of the only task of a write, each with its rows; one that `fails` does so behind its last row."""

    def __init__(self, cluster: StandaloneCluster, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
        self._options = parse_record_write_options({"gateways": cluster.gateway_uri, "stream": stream.name})
        self._monkeypatch = monkeypatch
        self._batch = BatchRecords(self._options, 0)

    def batch(self, rows: Sequence[str], *, fails: bool = False) -> tuple[int, int]:
        done = self._batch.write(_batches(rows, fails))
        return done.records, done.found

    def streaming(self, batch: int, rows: Sequence[str], *, fails: bool = False) -> tuple[int, int]:
        self._monkeypatch.setattr(record_writes, "query_of_task", lambda: QueryOfTask("query", batch, "run"))
        done = StreamRecords(self._options, 0).write(_batches(rows, fails))
        return done.records, done.found


def _batches(rows: Sequence[str], fails: bool) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 10):
        yield pa.RecordBatch.from_arrays([pa.array(rows[start : start + 10])], names=["payload"])
    if fails:
        raise RuntimeError("planned")


@pytest.fixture
def attempts(cluster: StandaloneCluster, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(cluster, stream, monkeypatch)


ROWS = [f"row {number % 90}" for number in range(100)]
"""Some are there twice."""


def test_an_attempt_that_is_repeated_in_another_order_appends_what_is_missing(
    attempts: Attempts, stream: Stream
) -> None:
    with stream.writer() as writer:
        writer.append(b"before")
    with pytest.raises(RuntimeError, match="planned"):
        attempts.batch(ROWS[:60], fails=True)
    with stream.writer() as writer:
        # Somebody else, whose first entry names all producers.
        writer.append_all([b"between 1", b"between 2"], producer="else", first_sequence=0)
    with pytest.raises(RuntimeError, match="planned"):
        attempts.batch(list(reversed(ROWS))[:80], fails=True)
    # Ten texts that are there twice were taken for those of the first attempt.
    assert attempts.batch(ROWS) == (10, 90)
    assert attempts.batch(ROWS) == (0, 100)
    found = texts(stream)
    assert sorted(found) == sorted([*ROWS, "before", "between 1", "between 2"])
    assert found[:61] == ["before", *ROWS[:60]]


@pytest.mark.long
def test_batches_of_a_query_follow_each_other(attempts: Attempts, stream: Stream) -> None:
    assert attempts.streaming(0, ROWS[:30]) == (30, 0)
    with pytest.raises(RuntimeError, match="planned"):
        attempts.streaming(1, ROWS[30:50], fails=True)
    assert attempts.streaming(1, ROWS[30:70]) == (20, 20)
    assert attempts.streaming(1, ROWS[30:70]) == (0, 40)
    assert attempts.streaming(2, []) == (0, 0)
    assert attempts.streaming(3, ROWS[70:]) == (30, 0)
    assert texts(stream) == ROWS
    with pytest.raises(IllegalOpException, match="older copy"):
        attempts.streaming(1, ROWS[:10])
    assert texts(stream) == ROWS


@pytest.mark.long
def test_rows_that_changed_between_attempts_are_told(
    attempts: Attempts, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match="planned"):
        attempts.batch(["one", "two"], fails=True)
    assert attempts.batch(["two", "three"]) == (1, 1)
    assert texts(stream) == ["one", "two", "three"]
    assert any("sink_rows_changed" in record.getMessage() for record in caplog.records)
