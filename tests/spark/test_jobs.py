"""Usage, orphans and export over a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookgate import LedgerOptions
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commands.results import Format, store_result
from bookgate.thinclient.spark.jobs import export as exporting
from bookgate.thinclient.spark.jobs.audit import audit
from bookgate.thinclient.spark.jobs.export import ExportException, export, manifest
from bookgate.thinclient.spark.jobs.orphans import NOT_CHECKED, NOT_HELD, UNKNOWN_TO_METADATA, orphans
from bookgate.thinclient.spark.jobs.output_directory import OutputException
from bookgate.thinclient.spark.jobs.usage import usage
from bookgate.thinclient.spark.options.read_options import OptionError, Options
from tests.integration.bookie.entry_client import EntryClient, add
from tests.spark.conftest import KEY, PASSWORD
from tests.spark.planted import BOOKIES, Copy, plant, sound
from tests.spark.sessions import started

NOW_MS = 10**14


def write(client: BookKeeper, entries: list[bytes], **custom: bytes) -> int:
    with client.create_ledger(password=PASSWORD, custom_metadata=custom) as ledger:
        ledger.append_all(entries)
    return ledger.ledger_id.low


@pytest.mark.long
def test_usage_by_bookie_state_custom_metadata_age_and_copies(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper
) -> None:
    metadata = LedgerMetadata.new(BOOKIES, 2, 2, DigestType.CRC32C, PASSWORD, {"usage": b"1"}, NOW_MS - 7_200_000)
    striped = client.ledger_manager.create(None, metadata)
    moved = striped.metadata.with_ensemble(60, ("bookie-1", "bookie-2", "bookie-4"))
    record = client.ledger_manager.write(striped.ledger_id, moved, striped.version)
    client.ledger_manager.write(striped.ledger_id, record.metadata.close(89, 9000), record.version)
    client.ledger_manager.create(None, LedgerMetadata.new(BOOKIES, 3, 2, custom_metadata={"usage": b"1", "b": b""}))
    rows = usage(spark, {"gateways": cluster.gateway_uri, "customMetadata.usage": "1"}, NOW_MS).collect()
    found = {(row.dimension, row.value): tuple(row)[2:] for row in rows}
    assert found == {
        ("bookie", "bookie-1"): (2, 1, 60, 6000, 6000),
        ("bookie", "bookie-2"): (2, 1, 60, 6000, 6000),
        ("bookie", "bookie-3"): (2, 1, 40, 4000, 4000),
        ("bookie", "bookie-4"): (1, 0, 20, 2000, 2000),
        ("state", "CLOSED"): (1, 0, 90, 9000, 18000),
        ("state", "OPEN"): (1, 1, 0, 0, 0),
        ("custom metadata", "usage"): (2, 1, 90, 9000, 18000),
        ("custom metadata", "b"): (1, 1, 0, 0, 0),
        ("age", "under a day"): (1, 0, 90, 9000, 18000),
        ("age", "a year and more"): (1, 1, 0, 0, 0),
        ("copies", "2"): (1, 0, 90, 9000, 18000),
        ("copies", "3"): (1, 1, 0, 0, 0),
    }


def found_orphans(spark: SparkSession, cluster: StandaloneCluster) -> set[tuple[str, str, int | None]]:
    rows = orphans(spark, {"gateways": cluster.gateway_uri}).collect()
    return {(row.kind, row.bookie_id, row.ledger_id) for row in rows}


@contextmanager
def a_stream(spark: SparkSession, cluster: StandaloneCluster, checkpoint: Path) -> Iterator[StreamingQuery]:
    """A query of the source, at work in this session."""
    options = {"gateways": cluster.gateway_uri, "password": PASSWORD.decode(), "customMetadata.job": "a stream"}
    frame = spark.readStream.format("bookkeeper").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = started(writer.trigger(processingTime="1 second"))
    try:
        query.processAllAvailable()
        yield query
    finally:
        query.stop()


@pytest.mark.long
def test_orphans_are_what_only_bookies_hold_and_what_a_bookie_lacks(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    """While a stream runs in the session, and with a bookie that can't be asked."""
    write(client, [b"sound"], job=b"a stream")
    forgotten = 5_000_000
    with EntryClient(cluster.bookies[0]) as bookie:
        bookie.ask(add(forgotten, 0))

    def not_on_bookie_3(ledger_id: int, copy: Copy) -> bytes | None:
        return None if copy.bookie_id == "bookie-3" else sound(ledger_id, copy)

    lacking = plant(client, cluster, not_on_bookie_3)
    audited = {"gateways": cluster.gateway_uri, "ledgerIds": str(lacking)}
    away = cluster.processes[1]
    with a_stream(spark, cluster, tmp_path) as query:
        copies = audit(spark, audited).where("missing > 0").collect()
        away.kill()
        try:
            found = found_orphans(spark, cluster)
        finally:
            away.start()
            away.wait_until_serving()
        assert query.isActive, query.exception()
    assert [(row.ledger_id, row.bookie_id) for row in copies] == [(lacking, "bookie-3")]
    assert {each for each in found if each[2] in (forgotten, lacking)} == {
        (UNKNOWN_TO_METADATA, "bookie-1", forgotten),
        (NOT_HELD, "bookie-3", lacking),
    }
    assert [each for each in found if each[0] == NOT_CHECKED] == [(NOT_CHECKED, "bookie-2", None)]
    assert not [each for each in found if each[:2] == (NOT_HELD, "bookie-2")]


def test_orphans_leave_no_table_in_the_session(spark: SparkSession, cluster: StandaloneCluster) -> None:
    spark.catalog.clearCache()
    found_orphans(spark, cluster)
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


@pytest.fixture
def exported(client: BookKeeper) -> list[int]:
    return [
        write(client, [b"first %d" % n for n in range(300)], job=b"export"),
        write(client, [], job=b"export"),
        write(client, [b"second"], job=b"export"),
    ]


def rows_of(spark: SparkSession, output: Path, ledger: int) -> list[bytes]:
    rows = spark.read.parquet(str(output)).where(f"ledger_id = {ledger}").orderBy("entry_id").collect()
    assert [row.entry_id for row in rows] == list(range(len(rows)))
    return [bytes(row.payload) for row in rows]


@pytest.mark.long
def test_an_export_is_restarted_where_it_was_left(
    spark: SparkSession,
    cluster: StandaloneCluster,
    client: BookKeeper,
    exported: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "out"
    options = {
        "gateways": cluster.gateway_uri,
        "password": PASSWORD.decode(),
        "ledgerIds": ",".join(map(str, exported)),
    }
    check = exporting._check

    def fails_at_the_last(ledger: object, found: object) -> None:
        if getattr(ledger, "ledger_id", None) == exported[2]:
            raise ExportException("stopped here")
        check(ledger, found)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_check", fails_at_the_last)
        with pytest.raises(ExportException, match="stopped here"):
            export(spark, options, str(output), group_ledgers=1)
    assert {row.ledger_id for row in manifest(spark, str(output)).collect()} == set(exported[:2])

    groups: list[tuple[int, int]] = []
    lines = export(spark, options, str(output), on_group=lambda done, total: groups.append((done, total))).collect()
    assert groups == [(1, 1)]
    by_id: dict[int, Row] = {row.ledger_id: row for row in lines}
    assert [by_id[ledger].entries for ledger in exported] == [300, 0, 1]
    assert (by_id[exported[0]].first_entry_id, by_id[exported[0]].last_entry_id) == (0, 299)
    assert by_id[exported[0]].bytes == sum(len(b"first %d" % n) for n in range(300))
    assert all((output / name).is_file() for row in lines for name in row.files)
    assert rows_of(spark, output, exported[0]) == [b"first %d" % n for n in range(300)]
    assert rows_of(spark, output, exported[2]) == [b"second"]
    export(spark, options, str(output), on_group=lambda done, total: groups.append((done, total)))
    assert groups == [(1, 1)], "everything was there"


@pytest.mark.long
@pytest.mark.parametrize("when", ["before its group", "while its group is read", "named"])
def test_a_ledger_that_is_deleted_during_an_export_does_not_end_it(
    spark: SparkSession,
    cluster: StandaloneCluster,
    client: BookKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """Unless the option ledgerIds names it: an export takes hours, and ledgers may end by their age meanwhile."""
    kept, deleted, also_kept = (write(client, [b"line"], deleted=when.encode()) for _ in range(3))
    options = {"gateways": cluster.gateway_uri, "password": PASSWORD.decode(), "customMetadata.deleted": when}
    if when == "named":
        del options["customMetadata.deleted"]
        options["ledgerIds"] = f"{kept},{deleted},{also_kept}"

    def delete(*_progress: int) -> None:
        with suppress(NoSuchLedgerExistsOnMetadataServerException):
            client.delete_ledger(deleted)

    if when == "while its group is read":
        existing = exporting._existing
        seen: list[int] = []

        def deleted_after_the_look(options: Options, group: Sequence[exporting._Ledger]) -> list[exporting._Ledger]:
            found = existing(options, group)
            seen.append(len(found))
            delete()
            return found

        monkeypatch.setattr(exporting, "_existing", deleted_after_the_look)
        lines = export(spark, options, str(tmp_path)).collect()
        assert seen == [3, 2, 2], "looked at before the group, after it failed, and before it was repeated"
    elif when == "named":
        with pytest.raises(PySparkException, match=f"do not exist: {deleted}"):
            export(spark, options, str(tmp_path), group_ledgers=1, on_group=delete)
        lines = export(spark, {**options, "ledgerIds": f"{kept},{also_kept}"}, str(tmp_path)).collect()
    else:
        lines = export(spark, options, str(tmp_path), group_ledgers=1, on_group=delete).collect()
    assert {line.ledger_id: line.complete for line in lines} == {kept: True, also_kept: True}


@pytest.mark.long
def test_an_unbounded_ledger_is_exported_and_audited_once_it_is_closed(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    options = LedgerOptions(password=PASSWORD, custom_metadata={"jobs": b"unbounded"})
    writer = client.create_unbounded_ledger(options)
    chosen = {"gateways": cluster.gateway_uri, "customMetadata.jobs": "unbounded", "password": PASSWORD.decode()}
    writer.append(b"a0")
    writer.append(b"a1")
    assert export(spark, chosen, str(tmp_path)).collect() == []
    assert audit(spark, chosen).collect() == []
    named = {**chosen, "ledgerIds": str(writer.ledger_id.low)}
    del named["customMetadata.jobs"]
    with pytest.raises(ExportException, match="unbounded and not closed"):
        export(spark, named, str(tmp_path))
    writer.release()
    writer = client.take_over(writer.ledger_id, PASSWORD)
    writer.append(b"b0")
    writer.append(b"b1")
    writer.close()
    for _ in range(2):
        (line,) = export(spark, chosen, str(tmp_path)).collect()
        assert (line.entries, line.last_entry_id, line.complete) == (4, 4, True)
    rows = spark.read.parquet(str(tmp_path)).orderBy("entry_id").collect()
    assert [(row.entry_id, bytes(row.payload)) for row in rows] == [(0, b"a0"), (1, b"a1"), (3, b"b0"), (4, b"b1")]
    assert {(row.copies, row.good) for row in audit(spark, chosen).collect()} == {(5, 5)}


def change_manifest(output: Path, **changes: object) -> None:
    """In every line; None takes a field away."""
    for file in (output / "_manifest").glob("*.json"):
        lines = [{**json.loads(line), **changes} for line in file.read_text().splitlines()]
        kept = [{name: value for name, value in line.items() if value is not None} for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in kept))
        file.with_name(f".{file.name}.crc").unlink()


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, None),
        ({"instance_id": "another"}, "of the cluster another, such as"),
        ({"created_ms": 1}, "other ledgers of the same ids"),
        ({"length": 1}, "other ledgers of the same ids"),
        ({"entries": 1}, "other ledgers of the same ids"),
        # As earlier releases wrote them.
        ({"instance_id": None, "created_ms": None, "length": None}, None),
        ({"instance_id": None, "created_ms": None, "length": None, "bytes": 1}, "other ledgers of the same ids"),
    ],
)
def test_an_export_takes_no_ledger_for_another(
    spark: SparkSession,
    cluster: StandaloneCluster,
    exported: list[int],
    tmp_path: Path,
    changes: dict[str, object],
    refused: str | None,
) -> None:
    options = {"gateways": cluster.gateway_uri, "password": PASSWORD.decode(), "ledgerIds": str(exported[0])}
    export(spark, options, str(tmp_path))
    change_manifest(tmp_path, **changes)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    if refused is None:
        groups: list[int] = []
        export(spark, options, str(tmp_path), on_group=lambda done, _total: groups.append(done))
        assert groups == [], "what is complete was exported again"
    else:
        with pytest.raises(ExportException, match=refused):
            export(spark, options, str(tmp_path))
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


@pytest.mark.long
@pytest.mark.parametrize("output_format", Format)
def test_a_jobs_result_replaces_its_own_and_nothing_else(
    spark: SparkSession, tmp_path: Path, output_format: Format
) -> None:
    output = tmp_path / "report"

    def keep(rows: int, job: str = "audit") -> int:
        return store_result(spark.range(rows).toDF("id"), job, str(output), output_format).count()

    assert [keep(3), keep(5), keep(0), keep(2)] == [3, 5, 0, 2]
    with pytest.raises(OutputException, match="is no output of usage"):
        keep(1, "usage")
    assert keep(4) == 4
    output = tmp_path / "mine"
    (output / "scope_id=0").mkdir(parents=True)
    (output / "scope_id=0" / "archive").write_text("years")
    with pytest.raises(OutputException, match="the directory holds 'scope_id=0'"):
        keep(1)
    assert (output / "scope_id=0" / "archive").read_text() == "years"
    assert [file.name for file in output.iterdir()] == ["scope_id=0"]


@pytest.mark.long
def test_an_open_ledger_is_exported_anew_until_it_is_closed(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    ledger = client.create_ledger(password=PASSWORD)
    number = ledger.ledger_id.low
    options = {"gateways": cluster.gateway_uri, "password": PASSWORD.decode(), "ledgerIds": str(number)}
    output = tmp_path / "out"
    (line,) = export(spark, options, str(output)).collect()
    assert (line.entries, line.complete) == (0, False)
    for n in range(4):
        ledger.append(b"%d" % n)
    (line,) = export(spark, options, str(output)).collect()
    assert line.entries >= 3
    ledger.close()
    (line,) = export(spark, options, str(output)).collect()
    assert (line.entries, line.complete, line.state) == (4, True, "CLOSED")
    assert rows_of(spark, output, number) == [b"0", b"1", b"2", b"3"]


@pytest.mark.long
def test_an_export_that_can_not_be_whole_says_so(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, exported: list[int], tmp_path: Path
) -> None:
    options = {"gateways": cluster.gateway_uri, "ledgerIds": str(exported[0]), "password": "wrong"}
    with pytest.raises(PySparkException, match="password"):
        export(spark, options, str(tmp_path / "out"))
    assert manifest(spark, str(tmp_path / "out")).collect() == []
    with pytest.raises(OptionError, match="startingOffsets"):
        export(spark, {**options, "startingOffsets": "{}"}, str(tmp_path / "out"))


def test_an_export_of_text_has_the_bytes_of_the_ledger(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    texts, other = write(client, [b"na\xc3\xafve", b""]), write(client, [b"text", b"\xf0\x9f\x98"])
    options = {"gateways": cluster.gateway_uri, "payloadAs": "string", "password": PASSWORD.decode()}
    output = str(tmp_path / "out")
    (line,) = export(spark, {**options, "ledgerIds": str(texts)}, output).collect()
    assert (line.entries, line.bytes, line.complete) == (2, 6, True)
    rows = spark.read.parquet(f"{output}/scope_id=0").sort("entry_id").collect()
    assert [row.payload for row in rows] == ["naïve", ""]
    # A read shows U+FFFD in its place, which has three bytes too.
    with pytest.raises(PySparkException, match=f"entry 1 of ledger {other} is not text in UTF-8"):
        export(spark, {**options, "ledgerIds": str(other)}, output)
    assert [line.ledger_id for line in manifest(spark, output).collect()] == [texts]


@pytest.mark.long
def test_losses_that_an_export_skips_stand_in_its_manifest_and_are_made_good_later(
    spark: SparkSession, cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    lost: dict[int, list[tuple[int, bytes]]] = {}

    def holed(ledger_id: int, copy: Copy) -> bytes | None:
        if copy.entry_id not in (3, 4):
            return sound(ledger_id, copy)
        lost.setdefault(ledger_id, []).append((copy.entry_id, sound(ledger_id, copy)))
        return None

    def nothing(ledger_id: int, copy: Copy) -> None:
        lost.setdefault(ledger_id, []).append((copy.entry_id, sound(ledger_id, copy)))

    ledgers = plant(client, cluster, holed, entries=10), plant(client, cluster, nothing, entries=5)
    options = {
        "gateways": cluster.gateway_uri,
        "password": PASSWORD.decode(),
        "ledgerIds": ",".join(map(str, ledgers)),
    }
    output = str(tmp_path / "out")

    def exported(**more: str) -> dict[int, tuple[int, int, bool]]:
        lines = export(spark, {**options, **more}, output).collect()
        return {row.ledger_id: (row.entries, row.lost_entries, row.complete) for row in lines}

    assert exported(failOnDataLoss="false") == {ledgers[0]: (8, 2, False), ledgers[1]: (0, 5, False)}
    with pytest.raises(PySparkException, match=r"of ledger \d+ can't be read"):
        exported()
    with EntryClient(cluster.bookies[2]) as bookie:
        for ledger, bodies in lost.items():
            for entry, body in bodies:
                bookie.ask(add(ledger, entry, key=KEY, body=body))
    assert exported() == {ledgers[0]: (10, 0, True), ledgers[1]: (5, 0, True)}
