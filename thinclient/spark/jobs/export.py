"""The export: ledgers to Parquet, one directory per ledger, with a manifest; it can be stopped anywhere and run again.

The output directory contains `scope_id=S/ledger_id=L/part-….parquet`, which Spark and others read as one table, and
`_manifest/`, JSON lines that describe the contents: one line for each export of a ledger, of which the latest counts.

Ledgers are exported in groups, small enough that little is lost with one. A group's directories are replaced as a whole
(dynamic partition overwrite), read back and counted, and then their lines are added to the manifest. A line therefore
means that the files are complete, and a killed run leaves at most one group without lines, which the next run exports
again. A closed ledger with a line is not exported again. An open one may have grown: it is exported again, as a whole.
So is one whose lost entries were skipped (`failOnDataLoss=false`): its line says how many, and that it is not complete;
each further run tries again. If nothing at all is left of a ledger the files of an earlier run stay. Ledgers that a
sink has not committed are left to a later run, unless `includeUncommitted` is set, and unbounded ledgers until they are
closed. A ledger that is deleted before it is exported is left out, unless option `ledgerIds` names it.

A line also identifies the ledger: the cluster's instance id, the ledger's creation time, its length and its last entry.
An id alone may belong to another ledger, in another cluster, or in this one after its metadata were formatted or
restored. A directory with lines of another cluster is rejected, and so is a run that would confuse two ledgers, or
write one over the other's files. Lines of earlier releases have no cluster and no creation time: entries and bytes
distinguish their ledgers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.spark.commit_protocol import QUERY_KEY, Committed
from bookgate.thinclient.spark.options.read_options import (
    OptionError,
    Options,
    PayloadAs,
    ledger_options,
    parse_options,
    without_selection,
)
from bookgate.thinclient.spark.reading.entries import read_records
from bookgate.thinclient.spark.session import job_errors
from bookgate.thinclient.spark.worker_client import clients

MANIFEST = "_manifest"
MANIFEST_SCHEMA = StructType(
    [
        StructField("scope_id", LongType(), False),
        StructField("ledger_id", LongType(), False),
        StructField("state", StringType(), False),
        StructField("complete", BooleanType(), False),
        StructField("metadata_version", LongType(), False),
        StructField("entries", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("first_entry_id", LongType()),
        StructField("last_entry_id", LongType()),
        StructField("files", ArrayType(StringType(), False), False),
        StructField("exported_at_ms", LongType(), False),
        StructField("lost_entries", LongType()),
        StructField("instance_id", StringType()),
        StructField("created_ms", LongType()),
        StructField("length", LongType()),
    ]
)
_WRITTEN_SCHEMA = "entry_id bigint, payload binary, ledger_length bigint, scope_id bigint, ledger_id bigint"

GROUP_LEDGERS = 200
GROUP_BYTES = 1 << 30
"""A group ends with the ledger that reaches either limit."""

_PARTS_OF_LEDGERS = ("startingoffsets", "endingoffsets", "includepayload")
_KEY = ["scope_id", "ledger_id"]
_NAMED_AT_MOST = 10
_READ_AT_ONCE = 4096


class ExportException(Exception):
    """The files of a ledger are not what its metadata say, or would overwrite those of other ledgers.

    The message names the ledgers. No line is added to the manifest for them.
    """


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What a group needs to know of a ledger.

    `entries` and `bytes` are None until it is closed. `deleted_before` is the first entry that no trim has deleted, of
    an unbounded ledger; None for others. Such a ledger has fewer than `entries`: ids have gaps where it was taken over.
    """

    scope_id: int
    ledger_id: int
    state: str
    metadata_version: int
    entries: int | None
    bytes: int | None
    created_ms: int | None
    deleted_before: int | None

    @property
    def directory(self) -> str:
        return f"scope_id={self.scope_id}/ledger_id={self.ledger_id}"


@dataclass(frozen=True, slots=True)
class _Written:
    """The contents of a ledger's files. `length_before` is the ledger's length before the first entry in them."""

    entries: int = 0
    bytes: int = 0
    length_before: int = 0
    first_entry_id: int | None = None
    last_entry_id: int | None = None
    files: tuple[str, ...] = ()


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    output: str,
    *,
    group_ledgers: int = GROUP_LEDGERS,
    group_bytes: int = GROUP_BYTES,
    on_group: Callable[[int, int], None] = lambda done, total: None,
) -> DataFrame:
    """Exports the ledgers that `options` select.

    Args:
        spark: The session.
        options: Those of table `entries`, without offsets and includePayload: ledgers are exported whole.
        output: A directory on any file system that Spark writes to.
        group_ledgers: Ledgers after which a group ends.
        group_bytes: Bytes after which a group ends.
        on_group: Called with the number of ledgers exported so far and in all.

    Returns:
        The manifest's latest line of each ledger (MANIFEST_SCHEMA).

    Raises:
        OptionError: An option can't be used.
        ExportException: The files of a ledger are incomplete, or are another ledger's.
        Exception: Whatever Spark raises when a ledger can't be read.
    """
    for name in options:
        if name.lower() in _PARTS_OF_LEDGERS:
            raise OptionError(f"option {name} is of no use to an export: ledgers are exported whole")
    instance_id = _instance_id(options)
    _refuse_other_clusters(spark, output, instance_id)
    pending = _pending(spark, options, output)
    done = 0
    for group in _groups(pending, group_ledgers, group_bytes):
        _export_existing(spark, options, output, group, instance_id)
        done += len(group)
        on_group(done, len(pending))
    return manifest(spark, output)


def manifest(spark: SparkSession, output: str) -> DataFrame:
    """The latest line of each ledger of an export; empty if there is none."""
    try:
        lines = spark.read.schema(MANIFEST_SCHEMA).json(f"{output}/{MANIFEST}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return spark.createDataFrame([], MANIFEST_SCHEMA)
    latest = Window.partitionBy(*_KEY).orderBy(F.desc("exported_at_ms"))
    return lines.withColumn("nth", F.row_number().over(latest)).where("nth = 1").drop("nth")


def _instance_id(options: Mapping[str, str]) -> str:
    checked = parse_options(options)
    with clients.use(checked.gateways, checked.client_settings) as client:
        return client.service_discovery.cluster_info().instance_id


def _refuse_other_clusters(spark: SparkSession, output: str, instance_id: str) -> None:
    """Raises ExportException."""
    others = manifest(spark, output).where(F.col("instance_id") != instance_id).limit(1).collect()
    for line in others:
        raise ExportException(
            f"{output} holds ledgers of the cluster {line.instance_id}, such as {line.ledger_id}, and this one is "
            f"{instance_id}: name another directory"
        )


def _pending(spark: SparkSession, options: Mapping[str, str], output: str) -> list[_Ledger]:
    """The ledgers that have no complete export, by id. Raises ExportException."""
    wanted = {**ledger_options(options), "table": "ledgers"}
    ledgers = spark.read.format("bookkeeper").options(**wanted).load()
    chosen = ledgers.select(
        *_KEY,
        "state",
        "metadata_version",
        (F.col("last_entry_id") + 1).alias("entries"),
        F.col("length").alias("bytes"),
        F.unix_millis("creation_time").alias("created_ms"),
        F.when(F.col("term").isNotNull(), F.col("fragments")[0]["first_entry_id"]).alias("deleted_before"),
        F.col("custom_metadata")[QUERY_KEY].isNotNull().alias("is_of_sink"),
    )
    rows = chosen.join(_lines_to_compare(spark, output), _KEY, "left").orderBy(*_KEY).collect()
    parsed = parse_options(options)
    of_sinks = [row.ledger_id for row in rows if row.is_of_sink and not parsed.include_uncommitted]
    left_out = set(of_sinks) - _committed(parsed, of_sinks)
    is_named = parsed.ledger_ids is not None
    found = [row for row in rows if row.ledger_id not in left_out and not _is_written_without_end(row, is_named)]
    others = [str(row.ledger_id) for row in found if _is_of_another(row)]
    if others:
        more = f" and {len(others) - _NAMED_AT_MOST} more" if len(others) > _NAMED_AT_MOST else ""
        raise ExportException(
            f"{output} holds other ledgers of the same ids as {', '.join(others[:_NAMED_AT_MOST])}{more}, created at "
            "another time or with other contents: name another directory"
        )
    return [_Ledger(*row[: len(fields(_Ledger))]) for row in found if not _is_complete(row)]


def _lines_to_compare(spark: SparkSession, output: str) -> DataFrame:
    """The ledger that each line describes. Lines of earlier releases contain only the bytes of their files."""
    return manifest(spark, output).select(
        *_KEY,
        F.col("complete").alias("line_complete"),
        F.col("entries").alias("line_entries"),
        F.coalesce("length", "bytes").alias("line_bytes"),
        F.col("created_ms").alias("line_created_ms"),
    )


def _committed(options: Options, ledger_ids: Sequence[int]) -> set[int]:
    """Those of these ledgers of sinks that are committed."""
    seen, shown = Committed(), list[LedgerRecord]()
    if ledger_ids:
        with clients.use(options.gateways, options.client_settings, catches_up=True) as client:
            for start in range(0, len(ledger_ids), _READ_AT_ONCE):
                records, _ = read_records(client, options.scope_id, ledger_ids[start : start + _READ_AT_ONCE])
                seen.show(records)
                leads, _ = read_records(client, options.scope_id, seen.unknown_leads(records))
                seen.show(leads)
                shown += records
    return {record.ledger_id.low for record in seen.take(shown)}


def _is_written_without_end(row: Row, is_named: bool) -> bool:
    """Whether the ledger is unbounded and not closed. Raises ExportException if it was asked for by its id."""
    if row.deleted_before is None or row.state == "CLOSED":
        return False
    if is_named:
        raise ExportException(f"ledger {row.ledger_id} is unbounded and not closed: it is exported once it is closed")
    return True


def _is_complete(row: Row) -> bool:
    # How many entries an unbounded ledger has is not known; its length tells.
    has_all = row.deleted_before is not None or row.line_entries == row.entries
    return bool(row.line_complete) and has_all and row.line_bytes == row.bytes


def _is_of_another(row: Row) -> bool:
    """Whether a line, with data, is of another ledger than the one that has its id now.

    A closed ledger does not change, except that an empty one may be opened again.
    """
    if not row.line_entries:
        return False
    if None not in (row.line_created_ms, row.created_ms) and row.line_created_ms != row.created_ms:
        return True
    return bool(row.line_complete) and not _is_complete(row)


def _groups(ledgers: Sequence[_Ledger], most: int, most_bytes: int) -> Iterator[list[_Ledger]]:
    group: list[_Ledger] = []
    size = 0
    for ledger in ledgers:
        group.append(ledger)
        size += ledger.bytes or 0
        if len(group) >= most or size >= most_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _export_existing(
    spark: SparkSession, options: Mapping[str, str], output: str, group: Sequence[_Ledger], instance_id: str
) -> None:
    """Exports the ledgers of a group that are not deleted by then. If that fails, and some of them are gone, it is
    repeated without these. Those that option `ledgerIds` names have to exist.
    """
    parsed = parse_options(options)
    if parsed.ledger_ids is not None:
        _export_group(spark, options, output, group, instance_id)
        return
    while left := _existing(parsed, group):
        try:
            _export_group(spark, options, output, left, instance_id)
            return
        except job_errors():
            group = _existing(parsed, left)
            if len(group) == len(left):
                raise


def _existing(options: Options, group: Sequence[_Ledger]) -> list[_Ledger]:
    """Those of these ledgers that exist."""
    gone = set[int]()
    with clients.use(options.gateways, options.client_settings, catches_up=True) as client:
        for start in range(0, len(group), _READ_AT_ONCE):
            ids = [ledger.ledger_id for ledger in group[start : start + _READ_AT_ONCE]]
            gone.update(read_records(client, options.scope_id, ids)[1])
    return [ledger for ledger in group if ledger.ledger_id not in gone]


def _export_group(
    spark: SparkSession, options: Mapping[str, str], output: str, group: Sequence[_Ledger], instance_id: str
) -> None:
    ids = ",".join(str(ledger.ledger_id) for ledger in group)
    reader = (
        spark.read.format("bookkeeper")
        .options(**without_selection(options))
        .options(ledgerIds=ids, includeUncommitted=True, payloadAs=PayloadAs.BINARY.value)
    )
    parsed = parse_options(options)
    entries = reader.load()
    if parsed.payload_as is PayloadAs.STRING:
        entries = entries.withColumn("payload", _text())
    # In this order Spark need not sort by partition, and entries stay in order within a file.
    rows = entries.sortWithinPartitions(*_KEY, "entry_id")
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*_KEY).parquet(output)
    skips_losses = not parsed.fail_on_data_loss
    written = _written(spark, output, group, skips_losses)
    lines = []
    for ledger in group:
        found = written.get(ledger.ledger_id, _Written())
        if not skips_losses:
            _check(ledger, found)
        lines.append(_line(ledger, found, instance_id, skips_losses))
    spark.createDataFrame(lines, MANIFEST_SCHEMA).coalesce(1).write.mode("append").json(f"{output}/{MANIFEST}")


def _text() -> Column:
    """The payload as text. Fails for one that is none, whereas a read replaces what is wrong: files are to have the
    ledger's bytes.
    """
    text = F.col("payload").cast("string")
    told = "entry %d of ledger %d is not text in UTF-8; export it without payloadAs=string"
    problem = F.format_string(told, "entry_id", "ledger_id")
    return F.when(F.is_valid_utf8(text), text).otherwise(F.raise_error(problem))


def _written(spark: SparkSession, output: str, group: Sequence[_Ledger], skips_losses: bool) -> dict[int, _Written]:
    """The contents of the group's files by ledger id. Only a closed ledger read without losses is certain to have
    files.
    """
    paths = []
    for ledger in group:
        path = f"{output}/{ledger.directory}"
        may_lack_rows = skips_losses or ledger.entries is None or ledger.deleted_before is not None
        if ledger.entries != 0 and (not may_lack_rows or _is_there(spark, path)):
            paths.append(path)
    if not paths:
        return {}
    files = spark.read.schema(_WRITTEN_SCHEMA).option("basePath", output).parquet(*paths)
    rows = files.groupBy("ledger_id").agg(
        F.count("*").alias("entries"),
        F.sum(F.octet_length("payload")).alias("bytes"),
        F.min(F.col("ledger_length") - F.octet_length("payload")).alias("length_before"),
        F.min("entry_id").alias("first_entry_id"),
        F.max("entry_id").alias("last_entry_id"),
        F.array_sort(F.collect_set("_metadata.file_name")).alias("files"),
    )
    return {
        row.ledger_id: _Written(
            row.entries,
            row.bytes,
            row.length_before,
            row.first_entry_id,
            row.last_entry_id,
            tuple(row.files),
        )
        for row in rows.collect()
    }


def _is_there(spark: SparkSession, path: str) -> bool:
    try:
        spark.read.schema(_WRITTEN_SCHEMA).parquet(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


def _check(ledger: _Ledger, found: _Written) -> None:
    """Raises ExportException if entries are missing."""
    if ledger.deleted_before is not None:
        _check_unbounded(ledger, found)
        return
    expected = found.entries if ledger.entries is None else ledger.entries
    size = found.bytes if ledger.bytes is None else ledger.bytes
    last = None if found.entries == 0 else found.entries - 1
    if (found.entries, found.bytes, found.last_entry_id) != (expected, size, last):
        raise ExportException(
            f"ledger {ledger.ledger_id} of scope {ledger.scope_id} should have {expected} entries of {size} bytes; the "
            f"files hold {found.entries} of {found.bytes} bytes, up to entry {found.last_entry_id}. Run the export "
            "again; if it stays so, `bookgate spark audit` tells what is wrong with the ledger"
        )


def _check_unbounded(ledger: _Ledger, found: _Written) -> None:
    """Raises ExportException if entries are missing in a closed ledger, whose ids have gaps: its length tells."""
    if _lost(ledger, found, skips_losses=False):
        raise ExportException(
            f"unbounded ledger {ledger.ledger_id} of scope {ledger.scope_id} should have {ledger.bytes} bytes; the "
            f"files hold {found.bytes}, from byte {found.length_before} on, up to entry {found.last_entry_id}. Run the "
            "export again; if it stays so, `bookgate spark audit` tells what is wrong with the ledger"
        )


def _line(ledger: _Ledger, found: _Written, instance_id: str, skips_losses: bool) -> tuple[object, ...]:
    files = [f"{ledger.directory}/{name}" for name in found.files]
    lost = _lost(ledger, found, skips_losses)
    complete = ledger.state == "CLOSED" and not lost
    now = int(time.time() * 1000)
    return (
        ledger.scope_id,
        ledger.ledger_id,
        ledger.state,
        complete,
        ledger.metadata_version,
        found.entries,
        found.bytes,
        found.first_entry_id,
        found.last_entry_id,
        files,
        now,
        lost,
        instance_id,
        ledger.created_ms,
        ledger.bytes,
    )


def _lost(ledger: _Ledger, found: _Written, skips_losses: bool) -> int:
    """The number of entries missing in the files; for an open ledger only those before the last entry present, and for
    an unbounded one that lacks any with its gaps.
    """
    last = -1 if found.last_entry_id is None else found.last_entry_id
    if ledger.deleted_before is not None and _is_whole(ledger, found, skips_losses):
        return 0
    expected = (last + 1 if ledger.entries is None else ledger.entries) - (ledger.deleted_before or 0)
    return max(0, expected - found.entries)


def _is_whole(ledger: _Ledger, found: _Written, skips_losses: bool) -> bool:
    """Whether the files hold all entries of a closed unbounded ledger that no trim has deleted, by their lengths.

    The lengths can't tell whether entries that are missing at the beginning were lost, or never were: ids may have a
    gap right behind those that a trim has deleted. A read that fails at a loss excludes one; where losses are skipped
    such entries count as lost.

    Nor can they tell of a lost entry without payload from a gap: where losses are skipped, a ledger that lacks such
    entries only, behind its first one, counts as whole.
    """
    deleted = ledger.deleted_before or 0
    fails_at_loss = deleted > 0 and not skips_losses
    if not found.entries:
        return not ledger.bytes or fails_at_loss or deleted >= (ledger.entries or 0)
    has_head = fails_at_loss or (deleted > 0 and found.first_entry_id == deleted)
    return found.length_before + found.bytes == ledger.bytes and (has_head or found.length_before == 0)
