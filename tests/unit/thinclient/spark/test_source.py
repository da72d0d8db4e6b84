"""The data source as Spark handles it, without Spark running: pickling, empty plans, no connection at import."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import pyspark_bookkeeper
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet, LedgerRecord
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.options.read_options import OptionError, Options
from bookgate.thinclient.spark.plain_errors import plain_errors
from bookgate.thinclient.spark.reading import batch as source
from bookgate.thinclient.spark.reading.batch import EntriesPartition, EntriesReader
from bookgate.thinclient.spark.reading.planning import TemplateTable
from bookgate.thinclient.spark.source import BookKeeperDataSource
from bookgate.thinclient.spark.worker_client import WorkerClients

GATEWAYS = {"gateways": "grpc://127.0.0.1:1"}


def test_spark_finds_the_source_by_its_module_name() -> None:
    assert pyspark_bookkeeper.DefaultSource is BookKeeperDataSource
    assert BookKeeperDataSource.name() == "bookkeeper"


@pytest.mark.parametrize("table", ["entries", "ledgers", "bookies", "copies", "held-ledgers"])
def test_source_and_reader_travel_and_hold_no_connection(table: str) -> None:
    made = BookKeeperDataSource({**GATEWAYS, "table": table})
    copy = pickle.loads(pickle.dumps(made))
    assert copy.schema() == made.schema()
    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    assert set(vars(reader)) <= {"_options", "_bounds", "_schema"}


@pytest.mark.parametrize("table", ["entries", "ledgers"])
def test_only_the_option_makes_a_reader_with_filters_since_spark_would_refuse_every_query(table: str) -> None:
    made = {
        option: BookKeeperDataSource({**GATEWAYS, "table": table, "pushdown": option}) for option in ("false", "true")
    }
    plain, filtered = (type(source.reader(source.schema())) for source in made.values())
    assert plain.pushFilters is DataSourceReader.pushFilters
    assert filtered.pushFilters is not DataSourceReader.pushFilters


def test_partitions_travel() -> None:
    metadata = LedgerMetadata.new(["b:1"], 1, 1).close(9, 90)
    piece = TemplateTable().slice_of(LedgerRecord(LedgerId.unscoped(1), metadata, 1))
    bookies = (BookieServiceInfo("b:1"),)
    copy = pickle.loads(pickle.dumps(EntriesPartition([piece], bookies)))
    assert isinstance(copy, InputPartition)
    assert isinstance(copy, EntriesPartition)
    assert copy.slices == [piece]
    assert copy.bookies == bookies


def test_the_partition_that_spark_makes_up_for_an_empty_plan_yields_nothing() -> None:
    assert list(EntriesReader(Options(gateways="grpc://127.0.0.1:1")).read(InputPartition(None))) == []


def test_partitions_are_a_list_even_when_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "readable_slices", lambda _client, _options, _bounds: [])
    monkeypatch.setattr(source, "clients", WorkerClients(lambda *_: cast(BookKeeper, Mock())))
    assert EntriesReader(Options(gateways="grpc://127.0.0.1:1")).partitions() == []


def test_a_schema_of_the_users_own_is_refused() -> None:
    ledgers = BookKeeperDataSource({**GATEWAYS, "table": "ledgers"})
    with pytest.raises(OptionError, match=r"columns of table 'ledgers' are fixed.*state"):
        ledgers.reader(StructType())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("entry_id bigint, paylaod binary", "no column 'paylaod', did you mean payload"),
        ("entry_id int", "'entry_id' of table 'entries' is bigint, not int"),
        ("payload string", "payloadAs=string makes it text"),
        ("creation_time timestamp", "includeLedgerMetadata=true adds it"),
    ],
)
def test_columns_that_entries_do_not_have_are_refused_with_what_to_do(columns: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BookKeeperDataSource(dict(GATEWAYS)).reader(_schema(columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("entry_id bigint, paylaod binary", "a stream has no column 'paylaod', did you mean payload"),
        ("record bigint", "'record' of a stream is int, not bigint"),
        ("payload string", "payloadAs=string makes it text"),
        ("custom_metadata binary", "there are entry_id, record, append_time, payload"),
    ],
)
def test_columns_that_a_stream_does_not_have_are_refused_with_what_to_do(columns: str, message: str) -> None:
    source = BookKeeperDataSource({**GATEWAYS, "stream": "orders"})
    for reader in (source.reader, source.streamReader):
        with pytest.raises(OptionError, match=message):
            reader(_schema(columns))


def test_the_former_name_of_a_column_is_taken_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="'length' of table 'entries' is called 'ledger_length' now"):
        reader = BookKeeperDataSource(dict(GATEWAYS)).reader(_schema("length bigint"))
    assert vars(reader)["_schema"].names == ["length"]


def _schema(columns: str) -> StructType:
    """`name type, …` without a Spark session."""
    kinds: dict[str, DataType] = {
        "bigint": LongType(),
        "int": IntegerType(),
        "binary": BinaryType(),
        "string": StringType(),
        "timestamp": TimestampType(),
    }
    pairs = [each.split() for each in columns.split(", ")]
    return StructType([StructField(name, kinds[kind]) for name, kind in pairs])


def test_foreseen_errors_leave_without_frames_and_causes_and_faults_keep_them() -> None:
    @plain_errors
    def fails(error: Exception) -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise error from None

    @plain_errors
    def yields(error: Exception) -> Iterator[int]:
        yield 1
        raise error

    def consumes(error: Exception) -> None:
        list(yields(error))

    for call, own in ((fails, "fails"), (consumes, "yields")):
        with pytest.raises(OptionError) as caught:
            call(OptionError("the sentence"))
        told = "".join(traceback.format_exception(caught.value))
        assert f"in {own}" not in told
        assert "inner" not in told
        with pytest.raises(ZeroDivisionError) as bug:
            call(ZeroDivisionError())
        assert f"in {own}" in "".join(traceback.format_exception(bug.value))


def _refused(**more: str) -> BookKeeperDataSource:
    # Nobody listens there.
    return BookKeeperDataSource({**GATEWAYS, "client.metadata_timeout_seconds": "1", **more})


@pytest.mark.parametrize("more", [{}, {"stream": "orders"}, {"table": "copies"}, {"table": "held-ledgers"}])
def test_a_plan_does_not_wait_for_gateways_that_refuse_connections(more: dict[str, str]) -> None:
    made = _refused(**more)
    with pytest.raises(MetaStoreException, match=r"127\.0\.0\.1:1") as caught:
        made.reader(made.schema()).partitions()
    assert "within" not in str(caught.value)


@pytest.mark.parametrize("more", [{"startingOffsets": "latest"}, {"stream": "orders"}])
def test_a_streaming_query_does_not_wait_for_gateways_that_refuse_connections(more: dict[str, str]) -> None:
    made = _refused(**more)
    with pytest.raises(MetaStoreException, match=r"127\.0\.0\.1:1") as caught:
        made.streamReader(made.schema()).initialOffset()
    assert "within" not in str(caught.value)


def test_a_plan_waits_if_the_settings_say_so_and_a_task_always() -> None:
    patient = _refused(**{"client.connect_fails_fast": "false"})
    with pytest.raises(MetaStoreException, match="within 1 s"):
        patient.reader(patient.schema()).partitions()
    settings = (("metadata_timeout_seconds", "1"),)
    with (
        pytest.raises(MetaStoreException, match="within 1 s"),
        WorkerClients().use(GATEWAYS["gateways"], settings) as client,
    ):
        client.bookies(BookieSet.ALL)


def test_importing_the_source_opens_no_channel_and_starts_no_thread() -> None:
    program = (
        "import threading, grpc, grpc.aio\n"
        "def refuse(*a, **k): raise SystemExit('a channel at import time')\n"
        "grpc.aio.insecure_channel = grpc.insecure_channel = refuse\n"
        "import pyspark_bookkeeper\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
