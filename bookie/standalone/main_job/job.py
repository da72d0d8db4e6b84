"""The main job: real text through the whole system, compared with a plain read of the same files.

Stages: look through the input (nothing is started before it is known to be good) → start a cluster of three bookies →
ingest, a ledger a top-level name and an entry a line → the Spark census of those ledgers → a plain count of the files →
comparison, ledger by ledger. What one stage starts is stopped when the run ends, however it ends.

The ledgers of a run carry its id in their custom metadata, so that a data directory may hold those of earlier runs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.main_job.report import LedgerResult, Outcome, Report, Stage, Update, write_table
from bookgate.bookie.standalone.main_job.spark import local_spark, run_statistics
from bookgate.bookie.standalone.main_job.text import (
    Selection,
    TextSource,
    TextStatistics,
    differences,
    lines_of,
    plain_statistics,
    shown,
)
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import HEADER_SIZE, SCOPED_HEADER_SIZE
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.runtime.event_loop import new_event_loop
from bookgate.runtime.interruption import run_interruptibly
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import load_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION = b"bookgate-main-job"
BOOKIES = 3
_ENSEMBLE, _WRITE_QUORUM, _ACK_QUORUM = 3, 3, 2
_DIGEST = DigestType.CRC32C
_LEDGERS_AT_ONCE = 4
_LINES_A_STEP = 1000

Metadata = Literal["embedded", "zookeeper"]
SparkSessions = Callable[[Path], AbstractContextManager["SparkSession"]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster can be reached, and which metadata it keeps."""

    gateway_uri: str
    metadata_uri: str


@dataclass(frozen=True, slots=True)
class MainJob:
    """One run. `after_ingest` is called with the ledgers once they are written and closed."""

    selection: Selection
    data_dir: Path
    report: Report
    metadata: Metadata = "embedded"
    output: Path | None = None
    top: int = 20
    scope_id: int = 0
    """In which the ledgers are; in one other than 0 their ids are random."""
    spark_sessions: SparkSessions = local_spark
    after_ingest: Callable[[Cluster, Mapping[LedgerId, TextSource]], None] | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> Outcome:
        """Raises InputError, BKException, ClusterException, LocalZooKeeperError, SparkUnavailable, PySpark's errors."""
        outcome = Outcome(shown(self.selection.root), self.metadata, self.selection.binary, self.selection.unreadable)
        self._say_what_comes()
        with ExitStack() as stack:
            starting = self._begin(outcome, "cluster start")
            with self.report.stage(starting, "bookies"):
                cluster = stack.enter_context(self._cluster())
            self.report.say(f"cluster  {cluster.gateway_uri}  metadata {cluster.metadata_uri}")
            ledgers = self._ingest(cluster, outcome)
            if self.after_ingest is not None:
                self.after_ingest(cluster, ledgers)
            counted = self._text_statistics(cluster, outcome)
        self._compare(outcome, ledgers, counted)
        if self.output is not None:
            write_table(self.output, outcome.ledgers)
        self.report.finish(outcome, self.top)
        return outcome

    def _say_what_comes(self) -> None:
        found = self.selection
        self.report.say(
            f"input    {shown(found.root)}: {found.files:,} text files, {found.size / 1e6:.1f} MB, "
            f"{len(found.sources):,} ledgers"
        )

    def _begin(self, outcome: Outcome, name: str) -> Stage:
        outcome.stages.append(Stage(name))
        return outcome.stages[-1]

    @contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        with ExitStack() as stack:
            uri = None
            if self.metadata == "zookeeper":
                from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper

                uri = stack.enter_context(LocalZooKeeper(self.data_dir / "zookeeper")).metadata_uri()
            cluster = stack.enter_context(StandaloneCluster(self.data_dir, BOOKIES, uri))
            yield Cluster(cluster.gateway_uri, cluster.metadata_uri)

    # Ingest

    def _ingest(self, cluster: Cluster, outcome: Outcome) -> dict[LedgerId, TextSource]:
        stage = self._begin(outcome, "ingest")
        shown_stage = self.report.stage(stage, "bytes", self.selection.size)
        with shown_stage as update, asyncio.Runner(loop_factory=new_event_loop) as runner:
            return run_interruptibly(runner, self._ingest_all(cluster, stage, update))

    async def _ingest_all(self, cluster: Cluster, stage: Stage, update: Update) -> dict[LedgerId, TextSource]:
        waiting = deque(self.selection.sources)
        ledgers: dict[LedgerId, TextSource] = {}

        async def work(client: BookKeeper) -> None:
            while waiting:
                source = waiting.popleft()
                ledgers[await self._ingest_one(client, source, stage, update)] = source

        async with await BookKeeper.connect(cluster.gateway_uri) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(_LEDGERS_AT_ONCE):
                        group.create_task(work(client))
            except* Exception as failures:
                # One failure ends the ingest; those that follow from it say nothing more.
                raise failures.exceptions[0] from None
        return ledgers

    async def _ingest_one(self, client: BookKeeper, source: TextSource, stage: Stage, update: Update) -> LedgerId:
        ledger = await client.create_ledger(
            ensemble_size=_ENSEMBLE,
            write_quorum_size=_WRITE_QUORUM,
            ack_quorum_size=_ACK_QUORUM,
            digest_type=_DIGEST,
            password=b"",
            custom_metadata={"app": APPLICATION, "name": source.encoded_name, "run": self.run_id.encode()},
            scope_id=self.scope_id,
        )
        async with ledger:
            await ledger.append_all(
                self._told(lines_of(source, max_line_bytes(scoped=self.scope_id != 0)), stage, update)
            )
        return ledger.ledger_id

    def _told(self, lines: Iterator[bytes], stage: Stage, update: Update) -> Iterator[bytes]:
        """The same lines, counted as they go out."""
        since = size = 0
        for line in lines:
            yield line
            since += 1
            size += len(line)
            if since == _LINES_A_STEP:
                self._count(stage, since, size, update)
                since = size = 0
        self._count(stage, since, size, update)

    def _count(self, stage: Stage, entries: int, size: int, update: Update) -> None:
        stage.entries += entries
        stage.bytes += size
        update(stage.bytes + stage.entries, self.selection.size)

    # Statistics and comparison

    def _text_statistics(self, cluster: Cluster, outcome: Outcome) -> dict[LedgerId, TextStatistics]:
        options = {"gateways": cluster.gateway_uri, "customMetadata.run": self.run_id, "scopeId": str(self.scope_id)}
        with ExitStack() as stack:
            with self.report.stage(self._begin(outcome, "Spark start"), ""):
                spark = stack.enter_context(self.spark_sessions(self.data_dir / "spark"))
            stage = self._begin(outcome, "Spark census")
            with self.report.stage(stage, "tasks") as update:
                counted = run_statistics(spark, options, update)
        stage.entries = sum(statistics.entries for statistics in counted.values())
        stage.bytes = sum(statistics.bytes for statistics in counted.values())
        return counted

    def _compare(
        self, outcome: Outcome, ledgers: Mapping[LedgerId, TextSource], counted: Mapping[LedgerId, TextStatistics]
    ) -> None:
        stage = self._begin(outcome, "plain read of the files")
        with self.report.stage(stage, "ledgers", len(ledgers)) as update:
            for ledger_id, source in sorted(ledgers.items()):
                expected, actual = plain_statistics(source), counted.get(ledger_id)
                outcome.ledgers.append(
                    LedgerResult(ledger_id, shown(source.name), actual, differences(expected, actual))
                )
                stage.entries += expected.entries
                stage.bytes += expected.bytes
                update(len(outcome.ledgers), len(ledgers))
        for ledger_id in sorted(set(counted) - set(ledgers)):
            statistics = counted[ledger_id]
            outcome.ledgers.append(
                LedgerResult(ledger_id, "?", statistics, "in the result of Spark, but never written")
            )


def max_line_bytes(*, scoped: bool = False) -> int:
    """The longest line that fits an entry."""
    header_size = SCOPED_HEADER_SIZE if scoped else HEADER_SIZE
    return load_config().max_packet_size - header_size - digest_for(_DIGEST, b"").length
