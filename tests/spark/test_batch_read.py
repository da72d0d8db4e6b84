"""Tables of the source through real Spark, over a real cluster."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.settings import secret_keys
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark import register
from tests.spark.conftest import PASSWORD, Tables


def write(client: BookKeeper, entries: list[bytes], password: bytes = PASSWORD, **custom: bytes) -> int:
    """A closed ledger; its id."""
    ledger = client.create_ledger(password=password, custom_metadata=custom)
    ledger.append_all(entries)
    ledger.close()
    return ledger.ledger_id.low


@pytest.fixture(scope="module")
def text(client: BookKeeper) -> int:
    return write(client, [b"line %d" % n for n in range(2500)], app=b"text", Kind=b"Closed")


@pytest.fixture(scope="module")
def odd(client: BookKeeper) -> int:
    return write(client, [b"", b"\x00\xff", b"x" * 3_000_000], app=b"odd")


def test_entries_come_back_exactly_and_in_order_within_a_task(tables: Tables, text: int) -> None:
    rows = tables.load(ledgerIds=text).collect()
    assert [tuple(row) for row in rows[:2]] == [
        (0, text, 0, bytearray(b"line 0"), 6, 6, rows[0].last_add_confirmed),
        (0, text, 1, bytearray(b"line 1"), 6, 12, rows[1].last_add_confirmed),
    ]
    by_id = {row.entry_id: bytes(row.payload) for row in rows}
    assert by_id == {n: b"line %d" % n for n in range(2500)}
    assert len(rows) == 2500
    assert all(row.last_add_confirmed < row.entry_id for row in rows)


@pytest.mark.long
def test_odd_payloads_and_large_ones(tables: Tables, odd: int) -> None:
    rows = tables.load(ledgerIds=odd).orderBy("entry_id").collect()
    assert [bytes(row.payload) for row in rows] == [b"", b"\x00\xff", b"x" * 3_000_000]
    assert [row.ledger_length for row in rows] == [0, 2, 3_000_002]
    assert [row.size for row in rows] == [0, 2, 3_000_000]


def test_without_payload_rows_are_the_same_but_for_the_null(tables: Tables, text: int) -> None:
    frame = tables.load(ledgerIds=text, includePayload=False)
    counted = frame.agg(F.count("*"), F.count("payload"), F.max("ledger_length")).first()
    assert counted is not None
    assert tuple(counted) == (2500, 0, sum(len(b"line %d" % n) for n in range(2500)))


@pytest.mark.long
def test_columns_that_a_given_schema_leaves_out_are_not_read(tables: Tables, text: int) -> None:
    reader = tables.spark.read.format("bookkeeper").options(
        gateways=tables.gateways, ledgerIds=text, password=PASSWORD.decode()
    )
    frame = reader.schema("entry_id BIGINT, size INT, length BIGINT").load()
    assert [tuple(row) for row in frame.where("entry_id < 2").orderBy("entry_id").collect()] == [(0, 6, 6), (1, 6, 12)]


@pytest.mark.long
def test_payloads_as_text_and_what_the_ledger_says_beside_each_entry(
    tables: Tables, text: int, client: BookKeeper
) -> None:
    frame = tables.load(ledgerIds=text, payloadAs="string", includeLedgerMetadata=True)
    row = frame.where("payload = 'line 7'").select("entry_id", "custom_metadata.app", "creation_time").first()
    assert row is not None
    created = client.read_record(LedgerId.unscoped(text)).creation_ms
    assert created is not None
    assert (row.entry_id, bytes(row.app), int(row.creation_time.timestamp() * 1000)) == (7, b"text", created)


@pytest.mark.long
def test_ledgers_with_passwords_of_their_own_are_read_together(tables: Tables, text: int, client: BookKeeper) -> None:
    other = write(client, [b"other"], password=b"another")
    both = f"{text},{other}"
    given = json.dumps({other: "another"})
    assert tables.load(ledgerIds=both, passwords=given).count() == 2501
    assert tables.load(ledgerIds=both, passwords="metadata", password="").count() == 2501
    with pytest.raises(PySparkException) as caught:
        tables.load(ledgerIds=both).count()
    told = str(caught.value)
    assert f"UnauthorizedAccessException: the password of ledger {other} is not the one given" in told
    assert "thinclient/spark/reading" not in told
    assert "During handling" not in told


def test_selection_by_ids_range_and_custom_metadata(tables: Tables, text: int, odd: int) -> None:
    low, high = sorted((text, odd))

    def read(**options: object) -> set[int]:
        return {row.ledger_id for row in tables.load(includePayload=False, **options).select("ledger_id").collect()}

    assert read(ledgerIds=f"{text},{odd}") == {text, odd}
    assert read(ledgerRange=f"{low}-{low}") == {low}
    assert read(ledgerRange=f"{low}-{high}") >= {low, high}
    assert read(**{"customMetadata.app": "text", "customMetadata.kind": "Closed"}) == {text}


@pytest.mark.long
def test_offsets_cut_what_is_read(tables: Tables, text: int) -> None:
    frame = tables.load(
        ledgerIds=text, startingOffsets=json.dumps({text: 10}), endingOffsets=json.dumps({str(text): 13})
    )
    assert sorted(row.entry_id for row in frame.collect()) == [10, 11, 12]


@pytest.mark.long
def test_partition_options_set_the_number_of_tasks(tables: Tables, text: int) -> None:
    assert tables.load(ledgerIds=text, minPartitions=5).rdd.getNumPartitions() == 5
    assert tables.load(ledgerIds=text, maxEntriesPerPartition=1000).rdd.getNumPartitions() == 3
    assert tables.load(ledgerIds=text, maxBytesPerPartition=6000).rdd.getNumPartitions() == 4
    assert tables.load(ledgerIds=text, minPartitions=5).count() == 2500


@pytest.mark.long
def test_nothing_selected_is_an_empty_table(tables: Tables, client: BookKeeper) -> None:
    assert tables.load(**{"customMetadata.app": "nobody"}).collect() == []
    assert tables.load(table="ledgers", **{"customMetadata.app": "nobody"}).collect() == []
    assert tables.load(ledgerIds=write(client, [])).collect() == []


@pytest.mark.long
def test_a_limit_that_stops_a_task_early_does_no_harm(tables: Tables, text: int) -> None:
    assert len(tables.load(ledgerIds=text).limit(3).collect()) == 3
    assert tables.load(ledgerIds=text).count() == 2500


def test_open_ledgers_are_read_up_to_their_last_add_confirmed_and_stay_open(tables: Tables, client: BookKeeper) -> None:
    ledger = client.create_ledger(password=PASSWORD)
    for n in range(5):
        ledger.append(b"%d" % n)
    wanted = ledger.ledger_id.low
    seen = [row.entry_id for row in tables.load(ledgerIds=wanted).orderBy("entry_id").collect()]
    # The bookies know the last add confirmed from the entry after it.
    assert seen == list(range(len(seen)))
    assert len(seen) >= 4
    assert ledger.append(b"still writing") == 5
    ledger.close()
    assert tables.load(ledgerIds=wanted).count() == 6


@pytest.mark.long
def test_recover_reads_everything_acknowledged_and_fences_the_writer(tables: Tables, client: BookKeeper) -> None:
    ledger = client.create_ledger(password=PASSWORD)
    ledger.append_all([b"%d" % n for n in range(5)])
    wanted = ledger.ledger_id.low
    rows = tables.load(ledgerIds=wanted, readMode="recover").orderBy("entry_id").collect()
    assert [row.entry_id for row in rows] == [0, 1, 2, 3, 4]
    assert client.read_record(wanted).metadata.is_closed


def message(caught: pytest.ExceptionInfo[PySparkException]) -> str:
    return str(caught.value)


def test_a_wrong_password_names_the_ledger(tables: Tables, text: int) -> None:
    with pytest.raises(PySparkException) as caught:
        tables.load(ledgerIds=text, password="wrong").collect()
    assert "UnauthorizedAccessException" in message(caught)
    assert f"ledger {text} " in message(caught)


@pytest.mark.long
def test_a_wrong_digest_type_names_the_ledger(tables: Tables, text: int) -> None:
    assert tables.load(ledgerIds=text, digestType="crc32c").count() == 2500
    with pytest.raises(PySparkException) as caught:
        tables.load(ledgerIds=text, digestType="HMAC").collect()
    assert f"ledger {text} was written with digest type CRC32C" in message(caught)


def test_an_unknown_ledger_is_named_or_left_out(tables: Tables, text: int) -> None:
    with pytest.raises(PySparkException) as caught:
        tables.load(ledgerIds=f"{text},987654321").collect()
    assert "987654321" in message(caught)
    assert "failOnDataLoss" in message(caught)
    assert tables.load(ledgerIds=f"{text},987654321", failOnDataLoss=False).count() == 2500


def test_bad_options_are_refused_when_the_table_is_loaded(tables: Tables) -> None:
    with pytest.raises(PySparkException, match="unknown option 'ledgers' of the bookkeeper source"):
        tables.load(ledgers="1")
    with pytest.raises(PySparkException, match="option readMode is 'fence'"):
        tables.load(readMode="fence")


def test_gateways_that_do_not_answer_are_named(spark: SparkSession, text: int) -> None:
    nobody = {"gateways": "grpc://127.0.0.1:1", "client.metadata_timeout_seconds": "1"}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("bookkeeper").options(**nobody, ledgerIds=str(text)).load().collect()
    assert "127.0.0.1:1" in message(caught)


def test_the_ledgers_table(tables: Tables, client: BookKeeper, text: int) -> None:
    row = tables.load(table="ledgers", ledgerIds=text).first()
    metadata = client.read_record(text).metadata
    assert row is not None
    assert (row.scope_id, row.ledger_id, row.state, row.digest_type) == (0, text, "CLOSED", "CRC32C")
    assert (row.ensemble_size, row.write_quorum_size, row.ack_quorum_size) == (3, 3, 2)
    assert (row.last_entry_id, row.length) == (2499, metadata.length)
    assert [list(fragment.ensemble) for fragment in row.fragments] == [list(metadata.fragments[0].ensemble)]
    assert {key: bytes(value) for key, value in row.custom_metadata.items()} == {"app": b"text", "Kind": b"Closed"}
    assert row.metadata_version == 1
    assert row.creation_time.year >= 2024


@pytest.mark.long
def test_an_open_ledger_has_no_end_in_the_ledgers_table(tables: Tables, client: BookKeeper) -> None:
    ledger = client.create_ledger(password=PASSWORD)
    row = tables.load(table="ledgers", ledgerIds=ledger.ledger_id.low).first()
    ledger.close()
    assert row is not None
    assert (row.state, row.length, row.last_entry_id) == ("OPEN", None, None)


@pytest.mark.long
def test_the_bookies_table(tables: Tables, cluster: StandaloneCluster) -> None:
    rows = tables.load(table="bookies").orderBy("bookie_id").collect()
    assert [row.bookie_id for row in rows] == ["bookie-1", "bookie-2", "bookie-3"]
    assert all(row.writable and not row.read_only for row in rows)
    endpoints = {f"{e.host}:{e.port}" for row in rows for e in row.endpoints if e.protocol == "bookie-rpc"}
    assert endpoints == set(cluster.bookies)


@pytest.mark.long
def test_the_source_can_be_registered_by_hand(spark: SparkSession, cluster: StandaloneCluster, text: int) -> None:
    session = spark.newSession()
    register(session)
    frame = session.read.format("bookkeeper").options(gateways=cluster.gateway_uri, ledgerIds=str(text))
    assert frame.option("password", PASSWORD.decode()).load().count() == 2500


def test_options_with_secrets_have_names_that_spark_hides(spark: SparkSession) -> None:
    """In its UI, its event log and its plans."""
    jvm, session = cast(Any, spark)._jvm, cast(Any, spark)._jsparkSession
    of_client = [f"client.{name}" for name in sorted(secret_keys(ClientConfig))]
    assert "client.token" in of_client
    names = ("password", "passwords", *of_client, "gateways")
    options = jvm.PythonUtils.toScalaMap(dict.fromkeys(names, "planted-value"))
    redacted = session.sessionState().conf().redactOptions(options)
    assert [name for name in names if redacted.apply(name) == "planted-value"] == ["gateways"]
