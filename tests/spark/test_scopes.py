"""Ledgers with a scope through real Spark, over a real cluster: every table, job and stream that takes them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from typer.testing import CliRunner

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commands.main import app
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata
from bookgate.thinclient.spark.jobs.audit import audit
from bookgate.thinclient.spark.jobs.export import export
from bookgate.thinclient.spark.jobs.orphans import UNKNOWN_TO_METADATA, orphans
from bookgate.thinclient.spark.jobs.usage import usage
from tests.spark.conftest import PASSWORD, Tables
from tests.spark.test_stream import Streams

SCOPE = -77
LEDGERS = {5: 40, 6: 0, 2**63 - 1: 7, -(2**63): 20, -1: 30}
"""Entries by ledger id; in the order of the ids' bits."""


def create(client: BookKeeper, ledger_id: LedgerId, entries: int) -> None:
    ledger = client.create_ledger(ledger_id=ledger_id, password=PASSWORD, custom_metadata={"number": b"%d" % entries})
    ledger.append_all([payload(ledger_id, number) for number in range(entries)])
    ledger.close()


def payload(ledger_id: LedgerId, entry_id: int) -> bytes:
    return f"{ledger_id.qualified_name} {entry_id}".encode()


@pytest.fixture(scope="module")
def options(client: BookKeeper, cluster: StandaloneCluster) -> dict[str, str]:
    """Those of the scope. Another scope, and scope 0, have ledgers of the same ids."""
    for number, entries in LEDGERS.items():
        create(client, LedgerId(SCOPE, number), entries)
    create(client, LedgerId(78, 5), 3)
    client.create_ledger(password=PASSWORD).close()
    return {"gateways": cluster.gateway_uri, "scopeId": str(SCOPE), "password": PASSWORD.decode()}


def test_entries_of_a_scope_and_of_no_other_are_read(tables: Tables, options: dict[str, str]) -> None:
    rows = tables.load(**options).collect()
    found = {(row.scope_id, row.ledger_id, row.entry_id): bytes(row.payload) for row in rows}
    assert found == {
        (SCOPE, number, entry_id): payload(LedgerId(SCOPE, number), entry_id)
        for number, entries in LEDGERS.items()
        for entry_id in range(entries)
    }
    unsigned = {**options, "scopeId": hex(2**64 + SCOPE)}
    assert tables.load(**unsigned).count() == len(rows) == sum(LEDGERS.values())


@pytest.mark.long
def test_ledgers_of_a_scope_are_selected_and_cut(tables: Tables, options: dict[str, str]) -> None:
    def counts(**more: object) -> dict[int, int]:
        found = tables.load(**{**options, **more}).groupBy("ledger_id").count().collect()
        return {row.ledger_id: row["count"] for row in found}

    assert counts(ledgerIds="-1,5") == {-1: 30, 5: 40}
    assert counts(ledgerRange=f"{-(2**63)}--1") == {-(2**63): 20, -1: 30}
    assert counts(**{"customMetadata.number": "7"}) == {2**63 - 1: 7}
    offsets = {"startingOffsets": json.dumps({"-1": 25}), "endingOffsets": json.dumps({"5": 2})}
    assert counts(ledgerIds="-1,5", **offsets) == {-1: 5, 5: 2}
    frame = tables.load(**options)
    assert frame.where("ledger_id < 0 AND entry_id < 2").count() == 4
    assert frame.where(f"scope_id = {SCOPE} AND ledger_id = 5").count() == 40
    assert frame.where("scope_id = 78").count() == 0


@pytest.mark.long
def test_the_table_of_ledgers_names_the_scope(tables: Tables, options: dict[str, str]) -> None:
    of_ledgers = {name: value for name, value in options.items() if name != "password"}
    rows = tables.load(**of_ledgers, table="ledgers").collect()
    assert {(row.scope_id, row.ledger_id, row.last_entry_id) for row in rows} == {
        (SCOPE, number, entries - 1) for number, entries in LEDGERS.items()
    }
    assert {row.scope_id for row in tables.load(table="ledgers").collect()} == {0}


@pytest.mark.long
def test_a_stream_reads_a_scope_and_goes_on_with_what_comes(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, options: dict[str, str], tmp_path: Path
) -> None:
    streams = Streams(spark, cluster.gateway_uri, tmp_path)
    of_stream = {"scopeId": str(78), "maxEntriesPerTrigger": 2}
    streams.drain(**of_stream)
    assert streams.entries == [(5, entry) for entry in range(3)]
    create(client, LedgerId(78, -3), 5)
    streams.drain(**of_stream)
    assert streams.entries == [*((-3, entry) for entry in range(5)), *((5, entry) for entry in range(3))]
    assert {bytes(row[3]) for row in streams.rows if row[1] == -3} == {payload(LedgerId(78, -3), n) for n in range(5)}


@pytest.mark.long
def test_the_sink_writes_into_a_scope_once_and_leaves_nothing_there(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, options: dict[str, str], tmp_path: Path
) -> None:
    """Batches and a stream; a batch that was committed before is not written again."""
    scope = {"gateways": cluster.gateway_uri, "scopeId": "81", "password": PASSWORD.decode(), "ensembleSize": "1"}
    frame = spark.range(0, 50, 1, 3).select(F.format_string("row %d", "id").alias("payload"))
    unscoped = sum(len(ids) for ids in client.ledger_manager.ledger_ranges())
    for _ in range(2):
        frame.write.format("bookkeeper").options(**scope, writeId="monday").mode("append").save()
    stream = spark.readStream.format("bookkeeper").options(**options).load().select("payload").writeStream
    for _ in range(2):
        query = stream.format("bookkeeper").options(**scope, checkpointLocation=str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
    read = {name: scope[name] for name in ("gateways", "scopeId", "password")}
    rows = spark.read.format("bookkeeper").options(**read).load().collect()
    found = Counter(bytes(row.payload).decode() for row in rows)
    assert {text: count for text, count in found.items() if text.startswith("row")} == {
        f"row {n}": 1 for n in range(50)
    }
    assert max(found.values()) == 1
    assert len(found) == 50 + sum(LEDGERS.values())
    assert {row.scope_id for row in rows} == {81}
    assert sum(len(ids) for ids in client.ledger_manager.ledger_ranges()) == unscoped

    left = client.create_ledger(
        1, 1, 1, ledger_id=LedgerId(81, -5), custom_metadata=attempt_metadata(Write("gone"), "0.0.0")
    )
    left.close()
    done = CliRunner().invoke(
        app,
        ["leftovers", "-g", cluster.gateway_uri, "--option", "scopeId=81", "--older-than", "0s", "--delete", "--yes"],
    )
    assert done.exit_code == 0, done.output
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
        client.read_record(left.ledger_id)
    assert spark.read.format("bookkeeper").options(**read).load().count() == len(rows)


@pytest.mark.long
def test_jobs_look_at_the_scope_that_they_are_given(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, options: dict[str, str], tmp_path: Path
) -> None:
    manifest = export(spark, options, str(tmp_path / "exported"))
    assert {(row.scope_id, row.ledger_id, row.entries) for row in manifest.collect()} == {
        (SCOPE, number, entries) for number, entries in LEDGERS.items()
    }
    kept = spark.read.parquet(str(tmp_path / "exported")).where("ledger_id = -1").orderBy("entry_id").collect()
    assert [bytes(row.payload) for row in kept] == [payload(LedgerId(SCOPE, -1), number) for number in range(30)]

    reach = {"gateways": cluster.gateway_uri, "scopeId": str(SCOPE)}
    copies = audit(spark, reach).collect()
    assert {row.scope_id for row in copies} == {SCOPE}
    assert {row.ledger_id for row in copies} >= {number for number, entries in LEDGERS.items() if entries}
    assert not [row for row in copies if row.missing or row.corrupt or row.wrong_length]
    [by_state] = [row for row in usage(spark, reach).collect() if row.dimension == "state"]
    assert (by_state.ledgers, by_state.entries) == (len(LEDGERS), sum(LEDGERS.values()))

    client.delete_ledger(LedgerId(SCOPE, 6))
    client.delete_ledger(LedgerId(SCOPE, -1))
    found = {(row.kind, row.ledger_id) for row in orphans(spark, reach).collect()}
    assert found == {(UNKNOWN_TO_METADATA, -1)}
