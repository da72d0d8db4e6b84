"""The examples of docs/spark.md run as they stand, one after the other, in a place where paths and names exist.

So does the one of docs/quick-start.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.thinclient.blocking.client import BookKeeper, Streams
from tests.integration.test_readme import README, block, run_python, run_shell

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
QUICK_START = PAGE.with_name("quick-start.md")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def ledger(client: BookKeeper, app: str, entries: int, ledger_id: int | None = None) -> None:
    with client.create_ledger(custom_metadata={"app": app.encode()}, ledger_id=ledger_id) as handle:
        handle.append_all([b"line %d" % number for number in range(entries)])


def written(client: BookKeeper, app: str) -> int:
    records = [record for page in client.list_ledgers() for record in page]
    wanted = [record for record in records if record.metadata.custom_metadata.get("app") == app.encode()]
    return sum(record.metadata.last_entry_id + 1 for record in wanted)


def records(client: BookKeeper, stream: str) -> int:
    with Streams(client).open(stream).reader(follow=False) as reader:
        return sum(1 for _ in reader.records())


@pytest.fixture
def own(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """A cluster without ledgers of other tests, which have passwords."""
    with StandaloneCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def client(own: StandaloneCluster) -> Iterator[BookKeeper]:
    with BookKeeper.connect(own.gateway_uri) as connected:
        ledger(connected, "docs", 3, 12)
        ledger(connected, "docs", 4, 13)
        ledger(connected, "orders", 5)
        for name in ("orders", *(f"orders-{partition}" for partition in range(4))):
            Streams(connected).create(name)
        yield connected


@pytest.mark.long
def test_the_steps_of_the_readme_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    """The ten lines of client, the commands, and then the tables in Spark, which read what the others wrote."""
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        client = block(README, "python", "import asyncio")
        assert run_python(client, cluster) == ["0 entry 0", "1 entry 1", "2 entry 2"]
        commands = block(README, "sh", "bookgate standalone --data-dir").splitlines()[2:]
        assert "one\ntwo\n" in run_shell(commands, cluster, tmp_path)
        names: dict[str, Any] = {"spark": spark}
        tables = block(README, "python", "ledgers = spark.read")
        exec(tables.replace("grpc://127.0.0.1:4181", cluster.gateway_uri), names)
        assert names["ledgers"].count() == 2
        assert names["entries"].count() == 1002


@pytest.fixture
def substitutes(own: StandaloneCluster, tmp_path: Path) -> dict[str, str]:
    """What stands on the page, and what is there in its place."""
    (tmp_path / "data" / "lines").mkdir(parents=True)
    (tmp_path / "data" / "lines" / "a.txt").write_text("one\ntwo\nthree\n")
    return {
        "grpc://gateway-1:4181,gateway-2:4181": own.gateway_uri,
        '"/data/': f'"{tmp_path}/data/',
        '"/checkpoints/': f'"{tmp_path}/checkpoints/',
    }


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_examples_run(
    spark: SparkSession, client: BookKeeper, substitutes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    session = spark.newSession()
    names: dict[str, Any] = {"spark": session}
    try:
        for block in blocks(PAGE):
            for old, new in substitutes.items():
                block = block.replace(old, new)
            exec(compile(block, str(PAGE), "exec"), names)
        for name in ("copied", "appended", "by_ledger"):
            names[name].processAllAvailable()
    finally:
        for query in session.streams.active:
            query.stop()
    assert names["entries"].count() == 7
    assert written(client, "lines") == 3
    assert written(client, "orders-copy") == 5
    assert records(client, "orders") == 5
    assert sum(records(client, f"orders-{partition}") for partition in range(4)) == 5
    assert "'maxOffsetsBehindLatest': '0'" in capsys.readouterr().out
    assert "_spark_metadata" in {path.name for path in Path(substitutes['"/data/'].strip('"'), "orders").iterdir()}


def test_the_example_of_the_quick_start_runs(
    spark: SparkSession, client: BookKeeper, own: StandaloneCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = [code for code in blocks(QUICK_START) if "SparkSession" in code]
    names: dict[str, Any] = {}
    exec(compile(block.replace("grpc://127.0.0.1:4181", own.gateway_uri), str(QUICK_START), "exec"), names)
    assert names["spark"].sparkContext is spark.sparkContext
    assert "|       0|       12|CLOSED|" in capsys.readouterr().out
