"""What the README and the quick start show is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
QUICK_START = ROOT / "docs" / "quick-start.md"


def block(page: Path, language: str, beginning: str) -> str:
    """The code block that begins with a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    [found] = [code for code in blocks if code.startswith(beginning)]
    return str(found)


def environment(gateways: str) -> dict[str, str]:
    return {**os.environ, "BOOKGATE_GATEWAYS": gateways, "PYTHONPATH": str(ROOT)}


def run(command: list[str], cluster: StandaloneCluster, path: str = "") -> str:
    """What it prints; it must print nothing on standard error."""
    result = subprocess.run(
        command,
        env={**environment(cluster.gateway_uri), "PATH": f"{path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def run_python(code: str, cluster: StandaloneCluster) -> list[str]:
    here = code.replace("grpc://127.0.0.1:4181", cluster.gateway_uri)
    return run([sys.executable, "-c", here], cluster).splitlines()


def run_shell(lines: list[str], cluster: StandaloneCluster, folder: Path) -> str:
    bookgate = folder / "bookgate"
    bookgate.write_text(f'#!/bin/sh\nexec {sys.executable} -m bookgate "$@"\n')
    bookgate.chmod(0o755)
    return run(["sh", "-euc", "\n".join(lines)], cluster, str(folder))


def test_the_ten_lines_of_client(standalone_cluster: StandaloneCluster) -> None:
    code = block(README, "python", "import asyncio")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    assert run_python(code, standalone_cluster) == ["0 entry 0", "1 entry 1", "2 entry 2"]


def test_streams_take_serialised_payloads(standalone_cluster: StandaloneCluster) -> None:
    code = block(ROOT / "docs" / "streams.md", "python", "import json")
    assert run_python(code, standalone_cluster) == ["7"]


@pytest.mark.long
def test_the_commands(standalone_cluster: StandaloneCluster, tmp_path: Path) -> None:
    lines = block(README, "sh", "bookgate standalone --data-dir").splitlines()
    assert [line for line in lines if "standalone" in line or line.startswith("export")] == lines[:2]
    assert "one\ntwo\n" in run_shell(lines[2:], standalone_cluster, tmp_path)


@pytest.mark.long
def test_a_cluster_of_one_bookie_takes_ledgers_of_one(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path, bookies=1) as cluster:
        steps = ["id=$(bookgate ledger create --ensemble-size 1)", 'printf "one\\n" | bookgate ledger write "$id"']
        assert "1 entries, 3 bytes" in run_shell(steps, cluster, tmp_path)


def test_the_commands_of_the_quick_start(standalone_cluster: StandaloneCluster, tmp_path: Path) -> None:
    first, *lines = block(QUICK_START, "sh", "export BOOKGATE_GATEWAYS").splitlines()
    assert first == "export BOOKGATE_GATEWAYS=grpc://127.0.0.1:4181"
    printed = run_shell(lines, standalone_cluster, tmp_path)
    assert "one\ntwo\n" in printed
    assert "CLOSED" in printed


def test_the_python_of_the_quick_start(standalone_cluster: StandaloneCluster) -> None:
    expected = [f"{number} entry {number}" for number in range(10)]
    assert run_python(block(QUICK_START, "python", "import asyncio"), standalone_cluster) == expected
    blocking = block(QUICK_START, "python", "from bookgate.blocking")
    assert run_python(blocking, standalone_cluster) == ["[b'one', b'two', b'three']"]


@pytest.mark.parametrize("document", ["docs/client.md", "docs/spark.md", "benchmarks/RESULTS.md", "LICENSE"])
def test_what_the_readme_points_to_is_there(document: str) -> None:
    assert (ROOT / document).is_file()
