"""What the README shows is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str, beginning: str) -> str:
    """The code block that begins with a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    [found] = [code for code in blocks if code.startswith(beginning)]
    return str(found)


def environment(gateways: str) -> dict[str, str]:
    return {**os.environ, "BOOKGATE_GATEWAYS": gateways, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_the_ten_lines_of_client(standalone_cluster: StandaloneCluster) -> None:
    code = block("python", "import asyncio")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    here = code.replace("grpc://127.0.0.1:4181", standalone_cluster.gateway_uri)
    result = subprocess.run(
        [sys.executable, "-c", here],
        env=environment(standalone_cluster.gateway_uri),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["0 entry 0", "1 entry 1", "2 entry 2"]


def test_the_commands(standalone_cluster: StandaloneCluster, tmp_path: Path) -> None:
    lines = block("sh", "bookgate standalone --data-dir").splitlines()
    assert [line for line in lines if "standalone" in line or line.startswith("export")] == lines[:2]
    bookgate = tmp_path / "bookgate"
    bookgate.write_text(f'#!/bin/sh\nexec {sys.executable} -m bookgate "$@"\n')
    bookgate.chmod(0o755)
    result = subprocess.run(
        ["sh", "-euc", "\n".join(lines[2:])],
        env={**environment(standalone_cluster.gateway_uri), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "one\ntwo\n" in result.stdout


@pytest.mark.parametrize("document", ["docs/client.md", "docs/spark.md", "benchmarks/RESULTS.md", "LICENSE"])
def test_what_the_readme_points_to_is_there(document: str) -> None:
    assert (Path(__file__).parents[2] / document).is_file()
