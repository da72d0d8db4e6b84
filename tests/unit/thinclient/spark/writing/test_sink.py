"""The sink's tasks and options without Spark: what is written of a batch, what is refused, what is left on failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from bookgate.ledger.errors import (
    BKException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotEnoughBookiesException,
    WriteException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata
from bookgate.thinclient.spark.options.read_options import OptionError
from bookgate.thinclient.spark.options.write_options import parse_write_options
from bookgate.thinclient.spark.records.record_options import parse_record_write_options
from bookgate.thinclient.spark.source import BookKeeperDataSource
from bookgate.thinclient.spark.worker_client import WorkerClients
from bookgate.thinclient.spark.writing import rows as rows_module
from bookgate.thinclient.spark.writing import sink as sink_module
from bookgate.thinclient.spark.writing.commit import Written
from bookgate.thinclient.spark.writing.rows import chunks, payload_column
from bookgate.thinclient.spark.writing.sink import (
    BatchSink,
    StreamSink,
    TaskLedger,
    TaskMessage,
)
from tests.unit.thinclient.spark.interleavings import LOW, World
from tests.unit.thinclient.spark.interleavings import WRITE as STORE_WRITE
from tests.unit.thinclient.spark.interleavings import Client as StoreClient


def batch(values: Sequence[object], kind: pa.DataType, name: str = "payload") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=[name])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_every_kind_of_text_and_bytes_becomes_payloads(kind: pa.DataType) -> None:
    values = ["", "é", "x"] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else [b"", b"\xff", b"x"]
    found = list(chunks(iter([batch(values, kind), batch([], kind), batch(values[:1], kind)]), 0))
    expected = [value.encode() if isinstance(value, str) else value for value in values]
    assert found == [expected, expected[:1]]


def test_chunks_are_bounded_in_entries_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_CHUNK_ENTRIES", 10)
    monkeypatch.setattr(rows_module, "MAX_CHUNK_BYTES", 1000)
    small = list(chunks(iter([batch([b"x"] * 25, pa.binary())]), 0))
    assert [len(chunk) for chunk in small] == [10, 10, 5]
    large = list(chunks(iter([batch([b"x" * 490] * 5, pa.binary())]), 0))
    assert [len(chunk) for chunk in large] == [2, 2, 1]
    huge = list(chunks(iter([batch([b"x" * 5000] * 2, pa.binary())]), 0))
    assert [len(chunk) for chunk in huge] == [1, 1]


def test_a_slice_of_a_batch_is_only_that_slice() -> None:
    part = batch([b"a", b"b", b"c", b"d"], pa.binary()).slice(1, 2)
    assert list(chunks(iter([part]), 0)) == [[b"b", b"c"]]


def test_nulls_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="column 'line' has 1 nulls among 2 rows"):
        list(chunks(iter([batch([b"a", None], pa.binary(), "line")]), 0))


def columns(**kinds: object) -> StructType:
    return StructType([StructField(name, cast(Any, kind)) for name, kind in kinds.items()])


def test_which_column_is_written() -> None:
    assert payload_column(columns(line=StringType())) == 0
    assert payload_column(columns(id=IntegerType(), payload=BinaryType())) == 1
    for schema, message in [
        (columns(a=StringType(), b=StringType()), "or the only one there is; this frame has a, b"),
        (columns(payload=IntegerType()), "column 'payload' is int"),
        (columns(a=IntegerType()), "column 'a' is int"),
        (StructType([]), "this frame has none"),
        (StructType([StructField("payload", StringType())] * 2), "column 'payload' is string"),
    ]:
        with pytest.raises(OptionError, match=message):
            payload_column(schema)


# Options

BASE = {"gateways": "g:1"}


def test_defaults_and_every_option() -> None:
    options = parse_write_options(BASE)
    sizes = options.ensemble_size, options.write_quorum_size, options.ack_quorum_size
    assert (sizes, options.digest_type, options.password, options.custom_metadata, options.write_id) == (
        (3, 3, 2),
        DigestType.CRC32C,
        b"",
        {},
        None,
    )
    given = {
        "ensembleSize": "5",
        "writeQuorum": "4",
        "ackQuorum": "3",
        "digestType": "hmac",
        "password": "secret",
        "customMetadata.App": "x",
        "writeId": "monday",
        "scopeId": "0",
        "table": "entries",
        "checkpointLocation": "/c",
        "queryName": "q",
        "client.read_timeout_seconds": "5",
    }
    options = parse_write_options({**BASE, **given})
    assert (options.ensemble_size, options.write_quorum_size, options.ack_quorum_size) == (5, 4, 3)
    assert options.digest_type is DigestType.HMAC
    assert (options.password, options.custom_metadata, options.write_id) == (b"secret", {"app": b"x"}, "monday")
    assert dict(options.client_settings)["read_timeout_seconds"] == "5"
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"ensembleSize": "1"}, (1, 1, 1)),
        ({"ensembleSize": "2"}, (2, 2, 2)),
        ({"writeQuorum": "5"}, (5, 5, 3)),
        ({"ensembleSize": "6"}, (6, 3, 2)),
        ({"ackQuorum": "1"}, (3, 3, 1)),
    ],
)
def test_sizes_that_are_not_given_follow_from_those_that_are(
    given: dict[str, str], sizes: tuple[int, int, int]
) -> None:
    options = parse_write_options({**BASE, **given})
    assert (options.ensemble_size, options.write_quorum_size, options.ack_quorum_size) == sizes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ledgerRange": "1-"}, "'ledgerrange' is not one of the sink's"),
        ({"maxEntriesPerTrigger": "1"}, "is not one of the sink's"),
        ({"path": "/x"}, "'path' is not one of the sink's"),
        ({"ensembleSize": "0"}, "option ensembleSize is '0'"),
        ({"writeQuorum": "2", "ackQuorum": "3"}, "are 3, 2 and 3"),
        ({"scopeId": "tenant"}, "option scopeId"),
        ({"writeId": ""}, "option writeId is '': it must not be empty"),
        ({"writeId": " "}, "option writeId is ' ': it must not be empty"),
        ({"table": "bookies"}, "only 'entries' can be written"),
        ({"customMetadata.bookgate.sink.batch": "1"}, "are the sink's own"),
    ],
)
def test_options_that_can_not_be_used(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_write_options({**BASE, **given})


def test_a_write_to_streams_without_the_name_that_it_was_to_have_is_refused() -> None:
    """As of a variable that is not set: repeated, it would be another write."""
    with pytest.raises(OptionError, match="option writeId is '': it must not be empty"):
        parse_record_write_options({**BASE, "stream": "orders", "writeId": ""})
    assert parse_record_write_options({**BASE, "stream": "orders"}).write_id is None


def test_each_side_refuses_the_options_of_the_other() -> None:
    entries = BookKeeperDataSource(dict(BASE)).schema()
    line = columns(line=StringType())

    def source(**given: str) -> BookKeeperDataSource:
        return BookKeeperDataSource({**BASE, **given})

    with pytest.raises(OptionError, match="writeId is for writing"):
        source(writeId="x").reader(entries)
    with pytest.raises(OptionError, match="checkpointLocation is for writing"):
        source(checkpointLocation="x").streamReader(entries)
    with pytest.raises(OptionError, match="maxBytesPerTrigger is for streams"):
        source(maxBytesPerTrigger="1").reader(entries)
    with pytest.raises(OptionError, match="pushdown is for batch reads"):
        source(pushdown="true").streamReader(entries)
    with pytest.raises(OptionError, match="ackQuorum is for writing"):
        source(ackQuorum="2").streamReader(entries)
    with pytest.raises(OptionError, match="a stream never takes ledgers"):
        source(readMode="recover").streamReader(entries)
    ledgers = source(table="ledgers")
    with pytest.raises(OptionError, match="only 'entries' can be read as a stream"):
        ledgers.streamReader(ledgers.schema())
    with pytest.raises(OptionError, match="a stream has the id of its query"):
        source(writeId="x").streamWriter(line, False)
    with pytest.raises(OptionError, match="never replaces"):
        source().writer(line, True)
    with pytest.raises(OptionError, match="never replaces"):
        source().streamWriter(line, True)


# Tasks


class Ledger:
    """One that is written, in memory."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.ledger_id = LedgerId(0, 7)
        self.payloads: list[bytes] = []
        self.closed = False

    def append_all_future(self, payloads: Sequence[bytes]) -> Future[int]:
        future: Future[int] = Future()
        if len(self.payloads) >= self.client.fails_after:
            future.set_exception(NotEnoughBookiesException("planned"))
            return future
        self.payloads += payloads
        future.set_result(len(self.payloads) - 1 - self.client.loses)
        return future

    def close(self) -> None:
        self.closed = True


class Client:
    def __init__(self) -> None:
        self.made: list[Ledger] = []
        self.arguments: tuple[Any, ...] = ()
        self.asked_for: list[LedgerId | None] = []
        self.deleted: list[LedgerId] = []
        self.fails_after = 1000
        self.loses = 0

    def create_ledger(self, *arguments: object, ledger_id: LedgerId | None) -> Ledger:
        self.arguments = arguments
        self.asked_for.append(ledger_id)
        self.made.append(Ledger(self))
        return self.made[-1]

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        self.deleted.append(ledger_id)


WRITE = Write("q", 4)


def task(client: Client, payloads: Iterator[list[bytes]], **given: str) -> Written | None:
    options = parse_write_options({**BASE, "customMetadata.app": "x", "ensembleSize": "4", **given})
    return TaskLedger(cast(BookKeeper, client), options, attempt_metadata(WRITE, "1.0.9")).write(payloads)


def test_a_task_writes_one_ledger_and_closes_it() -> None:
    client = Client()
    assert task(client, iter([[b"a", b"b"], [b"c"]])) == Written(LedgerId(0, 7), 3)
    assert client.made[0].payloads == [b"a", b"b", b"c"]
    assert client.made[0].closed
    assert client.arguments[:3] == (4, 3, 2)
    assert client.arguments[5] == {
        "app": b"x",
        "bookgate.sink.query": b"q",
        "bookgate.sink.batch": b"4",
        "bookgate.sink.task": b"1.0.9",
    }
    assert client.deleted == []
    assert client.asked_for == [None]


def test_in_a_scope_each_task_draws_an_id() -> None:
    client = Client()
    for _ in range(3):
        task(client, iter([[b"a"]]), scopeId="0xffffffffffffffff")
    drawn = {each for each in client.asked_for if each is not None}
    assert len(drawn) == 3
    assert {each.scope_id for each in drawn} == {-1}


def test_a_task_without_rows_makes_no_ledger() -> None:
    client = Client()
    assert task(client, iter([])) is None
    assert client.made == []


def test_a_task_that_fails_deletes_its_ledger() -> None:
    def breaks() -> Iterator[list[bytes]]:
        yield [b"a"]
        raise EOFError("the worker's input ended")

    refusing, losing = Client(), Client()
    refusing.fails_after, losing.loses = 1, 1
    for client, payloads, error in [
        (Client(), breaks(), EOFError),
        (refusing, iter([[b"a"], [b"b"]]), NotEnoughBookiesException),
        (losing, iter([[b"a"]]), WriteException),
    ]:
        with pytest.raises(error):
            task(client, payloads)
        assert client.deleted == [LedgerId(0, 7)]
        assert not client.made[0].closed


def test_a_commit_needs_the_message_of_every_task() -> None:
    writer = BatchSink(parse_write_options(BASE), 0)
    other = TaskMessage(Write("another"), "s", None)
    with pytest.raises(WriteException, match="not every task's message"):
        writer.commit([None])
    with pytest.raises(WriteException, match="not every task's message"):
        writer.commit([other])


class Behind(StoreClient):
    """At a gateway whose store is behind until it has been told to catch up: it has no ledger yet."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.is_disturbed = False
        self.is_behind = True

    def demand_complete_listings(self) -> None:
        pass

    def catch_up(self) -> None:
        self.is_behind = False

    def _read(self, number: int) -> LedgerRecord | BKException:
        missing = NoSuchLedgerExistsOnMetadataServerException(str(number))
        return missing if self.is_behind else super()._read(number)


def test_a_commit_sees_what_its_tasks_closed_at_other_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = Behind(world)
    monkeypatch.setattr(sink_module, "clients", WorkerClients(lambda *_: cast(BookKeeper, client)))
    written = [client.create(LOW) for _ in range(2)]
    messages: list[WriterCommitMessage | None] = [TaskMessage(STORE_WRITE, "run", each) for each in written]
    StreamSink(parse_write_options(BASE), 0).commit(messages, STORE_WRITE.batch)
    assert world.committed == {each.ledger_id.low for each in written}
