"""The main job on small directories: equal, different, refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from bookgate.bookie.commands.run import app
from bookgate.bookie.standalone.main_job.job import Cluster, MainJob, max_line_bytes
from bookgate.bookie.standalone.main_job.report import Report
from bookgate.bookie.standalone.main_job.text import InputError, TextSource, select_text
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.blocking.client import BookKeeper

ROOT = Path(__file__).parents[2]


def make_input(root: Path) -> Path:
    """A directory with what the job may meet: packages, an empty file, odd bytes, a file without final newline."""
    (root / "package" / "inner").mkdir(parents=True)
    (root / "package" / "a.txt").write_bytes(b"to be or not to be\nthat is\tthe question\n\n")
    (root / "package" / "inner" / "b.txt").write_bytes(b"be \xff\xfe\x85 caf\xc3\xa9\r\nno newline at the end")
    (root / "long.txt").write_bytes(b"\n".join(b"word%d w%d x" % (n % 97, n % 31) for n in range(5000)))
    (root / "empty.txt").write_bytes(b"")
    (root / "picture.bin").write_bytes(b"\x89PNG\0\0")
    (root / "[red]name").write_bytes(b"\x0bvertical\x0ctabs\x1cand\x1dmore\n")
    return root


@pytest.fixture
def text_dir(tmp_path: Path) -> Path:
    return make_input(tmp_path / "input")


@contextmanager
def keep(session: SparkSession) -> Iterator[SparkSession]:
    yield session


def job(text_dir: Path, tmp_path: Path, spark: SparkSession, **more: object) -> MainJob:
    report = Report(console=Console(file=(tmp_path / "printed").open("w"), width=200))
    return MainJob(
        select_text(text_dir),
        tmp_path / "data",
        report,
        spark_sessions=lambda _dir: keep(spark),
        **more,  # type: ignore[arg-type]
    )


def printed(tmp_path: Path) -> str:
    return (tmp_path / "printed").read_text()


@pytest.mark.long
def test_equal_input_is_equal_and_the_longest_line_allowed_fits(
    text_dir: Path, tmp_path: Path, spark: SparkSession
) -> None:
    (text_dir / "wide.txt").write_bytes(b"x" * max_line_bytes() + b"\n")
    outcome = job(text_dir, tmp_path, spark, output=tmp_path / "table.csv").run()
    assert outcome.equal, outcome.differing
    counted = {ledger.name: ledger.counted for ledger in outcome.ledgers}
    assert sorted(counted) == ["[red]name", "empty.txt", "long.txt", "package", "wide.txt"]
    package, empty = counted["package"], counted["empty.txt"]
    assert package is not None
    assert empty is not None
    assert (package.entries, package.distinct_words, package.longest_line) == (5, 14, 21)
    assert (empty.entries, empty.bytes, empty.distinct_words, empty.longest_line) == (0, 0, 0, 0)
    assert outcome.binary == 1
    assert [stage.entries for stage in outcome.stages if stage.name in ("ingest", "Spark census")] == [5007, 5007]
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 6
    assert json.loads(json.dumps(outcome.as_json()))["equal"] is True


@pytest.mark.long
def test_ledgers_that_differ_are_gone_or_too_many_are_named(
    text_dir: Path, tmp_path: Path, spark: SparkSession
) -> None:
    def tamper(cluster: Cluster, ledgers: Mapping[LedgerId, TextSource]) -> None:
        """Puts a ledger of other text in the place of long.txt's, and gives that of package another id."""
        by_name = {source.name: ledger_id for ledger_id, source in ledgers.items()}
        with BookKeeper.connect(cluster.gateway_uri) as client:
            for name, new_id in (("long.txt", by_name["long.txt"]), ("package", 4711)):
                custom = client.read_record(by_name[name]).metadata.custom_metadata
                client.delete_ledger(by_name[name])
                with client.create_ledger(custom_metadata=custom, ledger_id=new_id) as other:
                    other.append(b"something else")

    outcome = job(text_dir, tmp_path, spark, after_ingest=tamper).run()
    differences = {ledger.difference: ledger.name for ledger in outcome.differing}
    assert differences.pop("missing from the result of the Spark job") == "package"
    assert "in the result of Spark, but never written" in differences
    del differences["in the result of Spark, but never written"]
    ((difference, name),) = differences.items()
    assert name == "long.txt"
    assert "entries" in difference
    assert "DIFFERS: ledger" in printed(tmp_path)
    assert "long.txt" in printed(tmp_path)


@pytest.mark.long
def test_a_line_over_the_entry_limit_names_file_and_line(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "wide.txt").write_bytes(b"short\n" + b"x" * (max_line_bytes() + 1))
    with pytest.raises(InputError, match=r"wide.txt, line 2: longer than \d+ bytes"):
        job(tmp_path / "input", tmp_path, spark).run()


def bookgate_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "from bookgate.bookie.commands.run import app; app()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=ROOT)


def test_the_command_end_to_end_in_a_random_scope(text_dir: Path, tmp_path: Path) -> None:
    scope_id = random.getrandbits(64) | 1
    (text_dir / "wide.txt").write_bytes(b"x" * max_line_bytes(scoped=True) + b"\n")
    done = bookgate_run("--input", str(text_dir), "--json", f"--ledger-scope-id={scope_id}", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["equal"] is True
    assert document["totals"]["entries"] == 5007
    assert {each["ledger_id"][:16] for each in document["ledgers"]} == {f"{scope_id:016x}"}
    assert not list(tmp_path.glob("bookgate-run-*"))


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_an_input_that_can_not_be_used_is_one_line_and_exit_2(tmp_path: Path, kind: str) -> None:
    target = tmp_path / kind
    if kind == "file":
        target.write_text("x")
    if kind == "empty":
        target.mkdir()
    done = CliRunner().invoke(app, ["--input", str(target)])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: input ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.long
def test_missing_java_says_what_to_install(text_dir: Path, tmp_path: Path) -> None:
    done = bookgate_run("--input", str(text_dir), PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no Java was found. Spark needs a JDK of version 17 or later")
    assert len(done.stderr.splitlines()) == 1


def processes_that_name(text: str) -> list[str]:
    """Command lines of running processes that have `text` in them."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if text in line]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("stage", "number"), [("ingest", signal.SIGTERM), ("Spark census", signal.SIGINT)])
def test_an_interrupted_run_stops_everything(
    text_dir: Path, tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    (text_dir / "more.txt").write_bytes(b"a line of text\n" * 60_000)
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "from bookgate.bookie.commands.run import app; app()", "--input", str(text_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        cwd=ROOT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{stage} …"):
            break
    assert processes_that_name(f"{tmp_path}/bookgate-run-")
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "error: interrupted; everything that was started is stopped again"
    assert "Traceback" not in errors
    assert processes_that_name(f"{tmp_path}/bookgate-run-") == []
    assert not list(tmp_path.glob("bookgate-run-*"))
