"""Streams of records through real Spark: batch reads between places, and streaming reads with stable offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookgate.blocking import BookKeeper, Stream, Streams
from bookgate.bookie.standalone.cluster import StandaloneCluster
from tests.spark.sessions import started

pytestmark = pytest.mark.timeout(400)

DEADLINE_SECONDS = 300
SCOPE = 4711


@pytest.fixture
def stream(client: BookKeeper, request: pytest.FixtureRequest) -> Iterator[Stream]:
    """Three writers of 40 records each, several records an entry."""
    streams = Streams(client, scope_id=SCOPE)
    made = streams.open_or_create(request.node.name, b"planted-secret")
    for term in range(3):
        with made.writer(batch_bytes=60) as writer:
            writer.append_all(b"record %d" % (40 * term + number) for number in range(40))
    yield made
    streams.delete(made.name)


ALL = [f"record {number}" for number in range(120)]


class Reads:
    def __init__(self, spark: SparkSession, gateways: str, name: str) -> None:
        self.spark = spark
        self.options = {"gateways": gateways, "stream": name, "scopeId": str(SCOPE), "password": "planted-secret"}

    def batch(self, **options: Any) -> DataFrame:
        return self.spark.read.format("bookkeeper").options(**self.options, **options).load()

    def texts(self, **options: Any) -> list[str]:
        rows = self.batch(**options).orderBy("entry_id", "record").collect()
        return [bytes(row.payload).decode() for row in rows]


@pytest.fixture
def reads(spark: SparkSession, cluster: StandaloneCluster, stream: Stream) -> Reads:
    return Reads(spark, cluster.gateway_uri, stream.name)


def test_a_batch_read_between_places(reads: Reads, stream: Stream) -> None:
    assert reads.texts(maxEntriesPerPartition="3") == ALL
    with stream.reader(follow=False) as reader:
        records = list(reader.records())
    middle = records[50]
    assert reads.texts(startingOffsets=f"{middle.entry_id}:{middle.number}") == ALL[50:]
    assert reads.texts(endingOffsets=str(middle.entry_id)) == [
        record.payload.decode() for record in records if record.entry_id < middle.entry_id
    ]
    since = datetime.fromtimestamp(middle.append_time_ms / 1000, UTC)
    expected = [each.payload.decode() for each in records if each.append_time_ms >= middle.append_time_ms]
    assert reads.texts(startingOffsets=since.isoformat()) == expected
    row = reads.batch().orderBy("entry_id", "record").first()
    assert row is not None
    assert row.append_time.timestamp() * 1000 == pytest.approx(records[0].append_time_ms)


@pytest.mark.long
def test_columns_that_are_left_out_payloads_as_text_and_none(reads: Reads) -> None:
    source = reads.spark.read.format("bookkeeper").options(**reads.options)
    some = source.schema("record INT, entry_id BIGINT").load()
    assert some.columns == ["record", "entry_id"]
    assert sorted((row.entry_id, row.record) for row in some.collect()) == sorted(
        (row.entry_id, row.record) for row in reads.batch().collect()
    )
    text = reads.batch(payloadAs="string").orderBy("entry_id", "record")
    assert [row.payload for row in text.collect()] == ALL
    nothing = reads.batch(includePayload="false")
    assert nothing.count() == len(ALL)
    assert nothing.where("payload IS NOT NULL").count() == 0


@pytest.mark.long
def test_a_streaming_read_of_some_columns(reads: Reads, tmp_path: Path) -> None:
    found: list[str] = []

    def take(frame: DataFrame, _batch: int) -> None:
        assert frame.columns == ["payload"]
        found.extend(row.payload for row in frame.collect())

    source = reads.spark.readStream.format("bookkeeper").options(**reads.options, payloadAs="string")
    writer = source.schema("payload STRING").load().writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert started(writer.trigger(availableNow=True)).awaitTermination(DEADLINE_SECONDS)
    assert sorted(found) == sorted(ALL)


def test_a_streaming_read_goes_on_where_it_was(reads: Reads, stream: Stream, tmp_path: Path) -> None:
    """Two queries with one checkpoint; each record once, in batches of a few entries."""
    found: list[tuple[int, str]] = []

    def take(frame: DataFrame, batch: int) -> None:
        found[:] = [each for each in found if each[0] != batch]
        rows = frame.orderBy("entry_id", "record").collect()
        found.extend((batch, bytes(row.payload).decode()) for row in rows)

    def run() -> list[Any]:
        source = reads.spark.readStream.format("bookkeeper").options(**reads.options, maxEntriesPerTrigger="7").load()
        writer = source.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = started(writer.trigger(availableNow=True))
        assert query.awaitTermination(DEADLINE_SECONDS)
        return [each.sources[0] for each in query.recentProgress if each.numInputRows]

    sources = run()
    assert [text for _, text in found] == ALL
    assert len({batch for batch, _ in found}) > 3
    last = json.loads(sources[-1].endOffset)["entry"]
    for source in sources:
        behind = last - json.loads(source.endOffset)["entry"]
        told = json.loads(source.latestOffset)["metrics"]
        assert (told["minOffsetsBehindLatest"], told["maxOffsetsBehindLatest"]) == (str(behind), str(behind))
    assert json.loads(sources[0].latestOffset)["metrics"]["maxOffsetsBehindLatest"] != "0"
    with stream.writer() as writer:
        writer.append_all([b"later 1", b"later 2"])
    run()
    assert [text for _, text in found] == [*ALL, "later 1", "later 2"]


@pytest.fixture
def parts(client: BookKeeper) -> Iterator[list[Stream]]:
    """Streams of 40, 20 and no records, several an entry."""
    streams = Streams(client, scope_id=SCOPE)
    made = [streams.open_or_create(f"part-{number}", b"planted-secret") for number in range(3)]
    for each, records in zip(made, (40, 20, 0), strict=True):
        with each.writer(batch_bytes=60) as writer:
            writer.append_all(b"%s %d" % (each.name.encode(), number) for number in range(records))
    yield made
    for each in made:
        streams.delete(each.name)


@pytest.mark.long
def test_a_set_of_streams_is_one_source(
    spark: SparkSession, cluster: StandaloneCluster, parts: list[Stream], tmp_path: Path
) -> None:
    """As a batch, and as a stream with a checkpoint that keeps the place in each."""
    options = Reads(spark, cluster.gateway_uri, "part").options
    expected = [(0, f"part-0 {number}") for number in range(40)] + [(1, f"part-1 {number}") for number in range(20)]
    frame = spark.read.format("bookkeeper").options(**options, streamPartitions="3", payloadAs="string").load()
    rows = frame.orderBy("stream_partition", "entry_id", "record").collect()
    assert [(row.stream_partition, row.payload) for row in rows] == expected
    found: list[tuple[int, str]] = []

    def take(frame: DataFrame, _batch: int) -> None:
        rows = frame.orderBy("stream_partition", "entry_id", "record").collect()
        found.extend((row.stream_partition, row.payload) for row in rows)

    def run(partitions: int) -> list[Any]:
        source = spark.readStream.format("bookkeeper").options(**options, payloadAs="string", maxEntriesPerTrigger="5")
        writer = source.option("streamPartitions", str(partitions)).load().writeStream.foreachBatch(take)
        query = started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
        assert query.awaitTermination(DEADLINE_SECONDS)
        return [each.sources[0] for each in query.recentProgress if each.numInputRows]

    sources = run(3)
    assert sorted(found, key=lambda each: each[0]) == expected
    first = json.loads(sources[0].endOffset)["parts"]
    assert all(first[part]["entry"] for part in (0, 1)), "the first batch has some of each"
    latest = json.loads(sources[0].latestOffset)
    behind = [end["entry"] - at["entry"] for at, end in zip(first, latest["parts"], strict=True)]
    assert latest["metrics"]["maxOffsetsBehindLatest"] == str(max(behind)) != "0"
    found.clear()
    with parts[2].writer() as writer:
        writer.append(b"later")
    run(3)
    assert found == [(2, "later")]
    with pytest.raises(PySparkException, match="the query's checkpoint is of 3 streams, and its options name 2"):
        run(2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"streamPartitions": "2", "startingOffsets": "5"}, "each of the streams has entries of its own"),
        ({"streamPartitions": "2"}, "there is no stream .*-0'"),
        ({"startingOffsets": "yesterday"}, "no place in a stream"),
        ({"startingOfsets": "latest"}, "did you mean startingOffsets"),
        ({"endingOffsets": "5:1"}, "between entries"),
        ({"stream": "nobody's"}, "there is no stream"),
        ({"password": "wrong"}, "password"),
    ],
)
def test_what_can_not_be_read_is_told(reads: Reads, options: dict[str, str], told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        reads.spark.read.format("bookkeeper").options(**{**reads.options, **options}).load().count()
