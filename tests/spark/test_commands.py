"""`bookgate spark …`: as processes, each with a Spark of its own, and in this one where Spark is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commands.main import app
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata
from tests.spark.conftest import PASSWORD
from tests.spark.planted import Copy, plant, sound
from tests.spark.sessions import HERE, ROOT, SEPARATE, SETTINGS, SPARK_HOME, environment

_CONF = tuple(each for key, value in SETTINGS.items() for each in ("--conf", f"{key}={value}"))
_HERE = (*_CONF, "--master", HERE)
_SEPARATE = (*_CONF, "--master", SEPARATE)
_PACKED = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = {"gateways": sys.argv[1], "ledgerIds": sys.argv[2], "minPartitions": "4"}
entries = spark.read.format("bookkeeper").options(**options).load()
pythons = entries.rdd.mapPartitions(lambda rows: [(sum(1 for _ in rows), sys.executable)]).collect()
print("read", sum(count for count, _ in pythons), "by", {python.split("/")[-3] for _, python in pythons})
spark.stop()
"""


@pytest.mark.long
def test_sql_over_entries_ledgers_and_bookies(cluster: StandaloneCluster, client: BookKeeper) -> None:
    with client.create_ledger(password=b"planted-own", custom_metadata={"app": b"of-sql"}) as written:
        written.append_all([b"one", b"two", b"three"])
    query = (
        "SELECT e.entry_id, string(e.payload) AS line, e.size, string(l.custom_metadata['app']) AS app, l.state "
        "FROM entries e JOIN ledgers l USING (ledger_id) CROSS JOIN (SELECT count(*) AS n FROM bookies) "
        f"WHERE ledger_id = {written.ledger_id.low} AND e.entry_id > 0 AND n = 3 ORDER BY entry_id"
    )
    code, told, errors = command("sql", query, "-g", cluster.gateway_uri, *_HERE)
    assert (code, "Traceback" in errors) == (0, False), errors
    shared = {"app": "of-sql", "state": "CLOSED"}
    assert told == {
        "rows": [
            {"entry_id": 1, "line": "two", "size": 3, **shared},
            {"entry_id": 2, "line": "three", "size": 5, **shared},
        ],
        "more": False,
    }


full_only = pytest.mark.skipif(not os.environ.get("BOOKGATE_SPARK_FULL"), reason="takes long: make test-spark")


def command(*arguments: str) -> tuple[int, Any, str]:
    """Exit code, the JSON printed, and standard error."""
    ended = subprocess.run(
        [sys.executable, "-m", "bookgate", "spark", *arguments, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment()},
        timeout=600,
        check=False,
    )
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else None, ended.stderr


def without_spark(*arguments: str) -> tuple[int, Any, str]:
    """The same in this process."""
    ended = CliRunner().invoke(app, [*arguments, "--json"])
    return ended.exit_code, json.loads(ended.stdout) if ended.stdout else None, ended.stderr


@full_only
def test_an_audit_with_damage_ends_with_1_and_keeps_its_result(
    cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    def lost(ledger_id: int, copy: Copy) -> bytes | None:
        return None if (copy.bookie_id, copy.entry_id) == ("bookie-2", 3) else sound(ledger_id, copy)

    ledger = plant(client, cluster, lost, entries=10)
    output = tmp_path / "report"
    common = ("-g", cluster.gateway_uri, "--ledger-ids", str(ledger), *_SEPARATE)
    code, result, _ = command("audit", *common, "--output", str(output), "--format", "json")
    assert code == 1
    assert {name: result[name] for name in ("ledgers", "copies", "good", "missing", "corrupt")} == {
        "ledgers": 1,
        "copies": 30,
        "good": 29,
        "missing": 1,
        "corrupt": 0,
    }
    (damage,) = result["damage"]
    assert (damage["ledger_id"], damage["bookie_id"], damage["ranges"][0]["first_entry_id"]) == (ledger, "bookie-2", 3)
    lines = [json.loads(line) for file in output.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(line["bookie_id"] for line in lines) == ["bookie-1", "bookie-2", "bookie-3"]


@full_only
def test_an_export_prints_what_its_manifest_says(
    cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    with client.create_ledger(password=PASSWORD) as ledger:
        ledger.append_all([b"abc"] * 5)
    output = str(tmp_path / "out")
    common = ("-g", cluster.gateway_uri, "--ledger-ids", str(ledger.ledger_id.low), *_HERE)
    (secret := tmp_path / "password").write_bytes(PASSWORD + b"\n")
    code, result, _ = command("export", output, *common, "--password-file", str(secret))
    manifest = {"ledgers": 1, "complete": 1, "entries": 5, "lost_entries": 0, "bytes": 15}
    assert (code, result) == (0, {**manifest, "output": output})


def test_what_can_not_be_done_is_one_line(cluster: StandaloneCluster) -> None:
    code, _, said = without_spark("usage", "-g", cluster.gateway_uri, "--option", "custmMetadata=x")
    assert code == 1
    assert "unknown option 'custmmetadata'" in json.loads(said)["error"].lower()
    assert len(said.strip().splitlines()) == 1


def test_leftovers_are_listed_and_deleted(cluster: StandaloneCluster, client: BookKeeper) -> None:
    with client.create_ledger(custom_metadata=attempt_metadata(Write("a killed driver's"), "0.0.0")) as ledger:
        ledger.append(b"never committed")
    number = ledger.ledger_id.low
    common = ("leftovers", "-g", cluster.gateway_uri, "--older-than")
    code, result, _ = without_spark(*common, "1d", "--delete", "--yes")
    assert (code, result["deleted"]) == (0, 0)
    code, result, _ = without_spark(*common, "0s")
    (row,) = [row for row in result["ledgers"] if row["ledger_id"] == number]
    assert {**row, "created_ms": None} == {
        "scope_id": 0,
        "ledger_id": number,
        "query": "a killed driver's",
        "batch": 0,
        "state": "CLOSED",
        "entries": 1,
        "created_ms": None,
    }
    code, result, _ = without_spark(*common, "0s", "--delete", "--yes")
    assert (code, result["deleted"]) == (0, result["leftovers"])
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
        client.read_record(number)


def test_an_age_that_can_not_be_read_is_refused(cluster: StandaloneCluster) -> None:
    code, _, said = without_spark("leftovers", "-g", cluster.gateway_uri, "--older-than", "soon")
    assert code == 2
    assert "--older-than soon: write it as a number and s, m, h or d" in json.loads(said)["error"]


@pytest.mark.long
def test_a_spark_that_does_not_start_is_one_line(cluster: StandaloneCluster) -> None:
    """The JVM runs by then, and refuses."""
    code, told, said = command("usage", "-g", cluster.gateway_uri, *_CONF, "--master", "local[x]")
    assert (code, told, "Traceback" in said) == (1, None, False)
    last = json.loads(said.strip().splitlines()[-1])
    assert last["error"] == "Spark did not start: Could not parse Master URL: 'local[x]'"


@pytest.mark.long
def test_a_command_runs_under_spark_submit(cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path) -> None:
    """Its JVM has started the command, and is not the command's to stop; results are printed after the session."""
    with client.create_ledger(custom_metadata={"app": b"submitted"}):
        pass
    arguments = ["spark", "usage", "-g", cluster.gateway_uri, "--option", "customMetadata.app=submitted", "--json"]
    (tmp_path / "command.py").write_text(
        "import runpy\nimport sys\n\n"
        f"sys.argv = {['bookgate', *arguments]!r}\n"
        "runpy.run_module('bookgate', run_name='__main__')\n"
    )
    submit = [str(Path(SPARK_HOME["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", HERE, *_CONF]
    ended = subprocess.run(
        [*submit, str(tmp_path / "command.py")],
        capture_output=True,
        text=True,
        env={**os.environ, **environment()},
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = {(row["dimension"], row["value"]): row["ledgers"] for row in json.loads(ended.stdout)["usage"]}
    assert found["custom metadata", "app"] == 1


@full_only
def test_executors_take_their_environment_from_an_archive(
    cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    """The guide's spark-submit; the environment in the archive refers to this one's packages, which would fill it."""
    with client.create_ledger() as ledger:
        ledger.append_all([b"x"] * 1000)
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "here.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT}\n")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "env", arcname=".")
    (tmp_path / "job.py").write_text(_PACKED)
    ours = {**os.environ, **environment(), "PYSPARK_PYTHON": "./environment/bin/python"}
    submit = [
        str(Path(SPARK_HOME["SPARK_HOME"]) / "bin" / "spark-submit"),
        *("--master", "local-cluster[2,1,1024]", "--archives", f"{tmp_path / 'env.tar.gz'}#environment"),
        *_CONF,
        *(str(tmp_path / "job.py"), cluster.gateway_uri, str(ledger.ledger_id.low)),
    ]
    ended = subprocess.run(submit, capture_output=True, text=True, env=ours, timeout=600, check=False)
    assert "read 1000 by {'environment'}" in ended.stdout, ended.stderr[-3000:]
