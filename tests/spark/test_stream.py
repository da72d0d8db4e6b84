"""Streams of ledgers through real Spark, over a real cluster."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.thinclient.blocking.client import BookKeeper, WriteHandle
from tests.spark.conftest import PASSWORD
from tests.spark.sessions import started

DEADLINE_SECONDS = 300
"""Of a query on a busy machine; on a quiet one each takes a second or two."""

pytestmark = pytest.mark.timeout(400)


class Streams:
    """Streams of the cluster's ledgers into a table in memory that keeps the number of the batch with each row."""

    def __init__(self, spark: SparkSession, gateways: str, directory: Path) -> None:
        self.spark = spark
        self.gateways = gateways
        self.checkpoint = directory / "checkpoint"
        self.rows: list[tuple[int, int, int, bytes]] = []
        """Batch, ledger, entry, payload."""

    def source(self, **options: object) -> DataFrame:
        merged = {"gateways": self.gateways, "password": PASSWORD.decode(), **options}
        return self.spark.readStream.format("bookkeeper").options(**merged).load()  # type: ignore[arg-type]

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.rows = [row for row in self.rows if row[0] != batch]
        self.rows += [
            (batch, row.ledger_id, row.entry_id, bytes(row.payload))
            for row in frame.select("ledger_id", "entry_id", "payload").collect()
        ]

    @contextmanager
    def running(self, **options: object) -> Iterator[StreamingQuery]:
        trigger: dict[str, Any] = {"processingTime": "0 seconds"}
        if "trigger" in options:
            trigger = options.pop("trigger")  # type: ignore[assignment]
        writer = self.source(**options).writeStream.foreachBatch(self._take)
        query = started(writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger))
        try:
            yield query
        finally:
            query.stop()

    def drain(self, **options: object) -> list[Any]:
        """Reads what there is now, in as many batches as it takes; their progress."""
        with self.running(trigger={"availableNow": True}, **options) as query:
            assert query.awaitTermination(DEADLINE_SECONDS)
            return [each for each in query.recentProgress if each.numInputRows]

    def until(self, query: StreamingQuery, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            error = query.exception()
            assert error is None, error
            assert time.monotonic() < deadline, "the stream did not get there"
            query.processAllAvailable()

    @property
    def entries(self) -> list[tuple[int, int]]:
        return sorted((ledger, entry) for _, ledger, entry, _ in self.rows)

    @property
    def offset(self) -> dict[str, Any]:
        """The newest one in the checkpoint."""
        newest = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        document: dict[str, Any] = json.loads(newest.read_text().splitlines()[-1])
        return document


@pytest.fixture
def streams(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> Streams:
    return Streams(spark, cluster.gateway_uri, tmp_path)


def opened(client: BookKeeper, app: str, entries: int = 0) -> WriteHandle:
    ledger = client.create_ledger(password=PASSWORD, custom_metadata={"app": app.encode()})
    for number in range(entries):
        # One by one: an entry tells the bookies of those that were acknowledged when it was sent.
        ledger.append(b"%d" % number)
    return ledger


def closed(client: BookKeeper, app: str, entries: int) -> int:
    ledger = opened(client, app, entries)
    ledger.close()
    return ledger.ledger_id.low


def pairs(*ledgers: tuple[int, range]) -> list[tuple[int, int]]:
    return sorted((ledger, entry) for ledger, entries in ledgers for entry in entries)


def test_available_now_reads_all_within_the_limits_and_goes_on_from_the_checkpoint(
    streams: Streams, client: BookKeeper
) -> None:
    first, second = closed(client, "now", 30), closed(client, "now", 10)
    options = {"customMetadata.app": "now", "maxEntriesPerTrigger": 16}
    progress = streams.drain(**options)
    assert [each.numInputRows for each in progress] == [16, 16, 8]
    assert streams.entries == pairs((first, range(30)), (second, range(10)))
    assert Counter((batch, ledger) for batch, ledger, _, _ in streams.rows)[0, first] == 12, "not in proportion"
    metrics = [json.loads(each.sources[0].latestOffset)["metrics"] for each in progress]
    assert [each["maxOffsetsBehindLatest"] for each in metrics] == ["18", "6", "0"]
    assert streams.offset["ledgers"] == {}

    third = closed(client, "now", 3)
    again = streams.drain(**options)
    assert [each.numInputRows for each in again] == [3]
    assert streams.entries == pairs((first, range(30)), (second, range(10)), (third, range(3)))


def test_a_stream_follows_open_ledgers_and_takes_up_new_ones(streams: Streams, client: BookKeeper) -> None:
    ledger = opened(client, "follow", 5)
    one = ledger.ledger_id.low
    timed = {"processingTime": "100 milliseconds"}
    with streams.running(trigger=timed, **{"customMetadata.app": "follow"}) as query:
        streams.until(query, lambda: streams.entries == pairs((one, range(5))))
        two = closed(client, "follow", 3)
        ledger.append(b"more")
        ledger.append(b"and more")
        # All that is acknowledged, although nothing follows it.
        streams.until(query, lambda: streams.entries == pairs((one, range(7)), (two, range(3))))
        assert streams.offset["ledgers"] == {str(one): 7}
        ledger.close()
        by_entry = {entry: payload for _, read, entry, payload in streams.rows if read == one}
        assert by_entry[6] == b"and more"
        assert client.read_record(one).metadata.last_entry_id == 6, "the writer was disturbed"
        batches = query.lastProgress.batchId if query.lastProgress else -1
    assert batches < 20, "triggers without rows made batches"


@pytest.mark.long
def test_where_a_stream_begins_and_ends_and_how_many_bytes_a_trigger_takes(
    streams: Streams, client: BookKeeper
) -> None:
    ledger = client.create_ledger(password=PASSWORD, custom_metadata={"app": b"ends"})
    ledger.append_all([b"x" * 1000] * 30)
    ledger.close()
    one, two = ledger.ledger_id.low, closed(client, "ends", 10)
    progress = streams.drain(
        **{
            "customMetadata.app": "ends",
            "maxBytesPerTrigger": "8002",
            "startingOffsets": json.dumps({one: 10}),
            "endingOffsets": json.dumps({two: 2}),
        }
    )
    assert streams.entries == pairs((one, range(10, 30)), (two, range(2)))
    assert len(progress) == 3
    assert all(each.numInputRows <= 10 for each in progress)
    assert streams.offset["ledgers"] == {str(two): 2}


@pytest.mark.long
def test_latest_begins_behind_what_there_is(streams: Streams, client: BookKeeper) -> None:
    closed(client, "latest", 5)
    growing = opened(client, "latest", 3)
    with client.open_ledger(growing.ledger_id, PASSWORD) as reader:
        assert len(list(islice(reader.tail(), 3))) == 3, "all that is acknowledged may be read"
    with streams.running(startingOffsets="latest", **{"customMetadata.app": "latest"}) as query:
        query.processAllAvailable()
        three = closed(client, "latest", 2)
        growing.append_all([b"a", b"b"])
        growing.close()
        number = growing.ledger_id.low
        streams.until(query, lambda: streams.entries == pairs((number, range(3, 5)), (three, range(2))))


@pytest.mark.long
def test_a_deleted_ledger_stops_the_stream_or_is_left_out(streams: Streams, client: BookKeeper) -> None:
    one, two = closed(client, "deleted", 9), closed(client, "deleted", 2)
    options = {"customMetadata.app": "deleted", "maxEntriesPerTrigger": 3}
    with streams.running(**options, endingOffsets=json.dumps({one: 4, two: 0})) as query:
        streams.until(query, lambda: streams.entries == pairs((one, range(4))))
    client.delete_ledger(one)
    with pytest.raises(PySparkException) as caught:
        streams.drain(**options)
    assert f"{one} (entries from 4 on)" in str(caught.value)
    assert "failOnDataLoss" in str(caught.value)
    streams.drain(**options, failOnDataLoss=False)
    assert streams.entries == pairs((one, range(4)), (two, range(2)))


@pytest.mark.long
def test_what_streams_refuse(streams: Streams, client: BookKeeper) -> None:
    number = closed(client, "refused", 1)
    cases: list[tuple[dict[str, object], str]] = [
        ({"readMode": "recover"}, "a stream never takes ledgers"),
        ({"password": "wrong"}, "UnauthorizedAccessException"),
        ({"ledgerIds": f"{number},987654321"}, "987654321"),
    ]
    for options, message in cases:
        with pytest.raises(PySparkException, match=message):
            streams.drain(**{"ledgerIds": number, **options})
    with pytest.raises(PySparkException, match="maxEntriesPerTrigger is for streams"):
        streams.spark.read.format("bookkeeper").options(
            gateways=streams.gateways, maxEntriesPerTrigger="1"
        ).load().collect()
