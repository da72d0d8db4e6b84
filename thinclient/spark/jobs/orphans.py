"""Orphans: ledgers that bookies hold but the metadata do not know, and ledgers that a bookie should hold but does not.

A bookie lists the ledgers it holds over its HTTP admin (`/api/v1/bookie/ledgers`). One that can't be asked, or has no
such page (Apache BookKeeper's bookie), is reported as not checked, and nothing is said about it.

Ledgers are created and deleted while the lists are read, so a difference is only a candidate. Each is checked again
before it is reported, by metadata that the gateway has caught up with: a ledger that a bookie holds must be unknown to
them when read by its id; one that a bookie lacks must still name it for entries that it should hold, and the bookie
itself must say that it has no such ledger. Recently deleted ledgers are held until the bookie's next garbage
collection: they are not orphans yet, but can't be told from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from bookgate.ledger.errors import BKException, NoSuchLedgerExistsException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.copy_check import held_ranges
from bookgate.thinclient.spark.jobs.copies import password_for
from bookgate.thinclient.spark.options.read_options import Options, Table, parse_options
from bookgate.thinclient.spark.worker_client import clients
from bookgate.thinclient.tools.single_replica import closed_record_on

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

UNKNOWN_TO_METADATA = "unknown to the metadata"
NOT_HELD = "not held"
NOT_CHECKED = "not checked"


def orphans(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Looks for orphans among all ledgers of one scope, 0 unless option `scopeId` names another.

    Args:
        spark: The session.
        options: How to reach the cluster.

    Returns:
        Rows (kind, bookie_id, ledger_id, detail). `kind` is `unknown to the metadata`, `not held`, or `not checked`,
        which has no ledger.
    """
    reader = spark.read.format("bookkeeper").options(**options)
    # Each bookie is asked once, so that what is concluded and what is reported as not checked go together. A checkpoint
    # goes with the frame, where a cached table would stay in the session: only whoever has evaluated the frame could
    # take it out.
    told = reader.option("table", Table.HELD_LEDGERS.value).load().localCheckpoint(eager=False)
    ledgers = reader.option("table", Table.LEDGERS.value).load()
    held = told.where("trouble IS NULL AND ledger_id IS NOT NULL").select("bookie_id", "ledger_id")
    answered = told.groupBy("bookie_id").agg(F.max("trouble").alias("trouble")).where("trouble IS NULL")

    unknown = held.join(ledgers, "ledger_id", "left_anti").withColumn("kind", F.lit(UNKNOWN_TO_METADATA))
    expected = _expected(ledgers).join(answered.select("bookie_id"), "bookie_id")
    lacking = expected.join(held, ["bookie_id", "ledger_id"], "left_anti").withColumn("kind", F.lit(NOT_HELD))
    candidates = unknown.select("kind", "bookie_id", "ledger_id").unionByName(
        lacking.select("kind", "bookie_id", "ledger_id")
    )
    look_again = _look_again(parse_options(dict(options)))
    looked_at = candidates.withColumn("verdict", look_again("kind", "bookie_id", "ledger_id"))
    confirmed = looked_at.where("verdict IS NOT NULL").select(
        "kind", "bookie_id", "ledger_id", F.col("verdict").alias("detail")
    )
    unchecked = told.where("trouble IS NOT NULL").select(
        F.lit(NOT_CHECKED).alias("kind"), "bookie_id", F.col("ledger_id"), F.col("trouble").alias("detail")
    )
    return confirmed.unionByName(unchecked)


def _expected(ledgers: DataFrame) -> DataFrame:
    """(bookie, ledger) for each finished fragment with entries. A fragment still being written proves nothing."""
    after = F.try_element_at("fragments", F.col("number") + 2)["first_entry_id"]  # counted from 1
    end = F.coalesce(after, F.col("last_entry_id") + 1, F.lit(0))
    fragments = ledgers.select("*", F.posexplode("fragments").alias("number", "fragment"))
    filled = fragments.where(end > F.col("fragment")["first_entry_id"])
    return filled.select(F.explode(F.col("fragment")["ensemble"]).alias("bookie_id"), "ledger_id").distinct()


def _look_again(options: Options) -> Callable[..., Column]:
    """A function of (kind, bookie, ledger): the detail to report if the candidate is confirmed, else null."""

    def verdict(kind: str, bookie_id: str, ledger_id: int) -> str | None:
        # Only the names used here are sent to the tasks: the clients of this process must not be.
        return _verdict(options, kind, bookie_id, ledger_id)

    # The result depends on the moment, so Spark must evaluate it once per row.
    return F.udf(verdict, StringType(), useArrow=False).asNondeterministic()


def _verdict(options: Options, kind: str, bookie_id: str, ledger_id: int) -> str | None:
    with clients.use(options.gateways, options.client_settings, catches_up=True) as client:
        try:
            record = client.read_record(LedgerId(options.scope_id, ledger_id))
        except NoSuchLedgerExistsOnMetadataServerException:
            return "deleted, or never created" if kind == UNKNOWN_TO_METADATA else None
        return None if kind == UNKNOWN_TO_METADATA else _ask_bookie(client, record, bookie_id, options)


def _ask_bookie(client: BookKeeper, record: LedgerRecord, bookie_id: str, options: Options) -> str | None:
    """None when the bookie knows the ledger or can't be asked; how many entries it holds is the audit's concern."""
    entry_id = _first_held(record, bookie_id)
    if entry_id is None:
        return None
    try:
        password = password_for(record, options.password)
        with client.open_record(closed_record_on(record, bookie_id, entry_id), password=password) as handle:
            for _ in handle.read_columns(entry_id, entry_id):
                pass
    except NoSuchLedgerExistsException:
        return f"it should hold entry {entry_id}"
    except BKException:
        return None
    return None


def _first_held(record: LedgerRecord, bookie_id: str) -> int | None:
    """The first entry of a finished fragment that the bookie should hold."""
    metadata = record.metadata
    fragments = metadata.fragments
    for number, fragment in enumerate(fragments):
        is_last = number + 1 == len(fragments)
        end = metadata.last_entry_id if is_last else fragments[number + 1].first_entry_id - 1
        if bookie_id in fragment.ensemble:
            index = fragment.ensemble.index(bookie_id)
            shape = metadata.ensemble_size, metadata.write_quorum_size, index
            for first, _ in held_ranges(*shape, fragment.first_entry_id, end):
                return first
    return None
