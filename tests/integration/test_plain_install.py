"""The plain install is the thin client: no ZooKeeper library, no Spark, no web framework."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_THERE = ("kazoo", "pyspark", "pyarrow", "starlette", "uvicorn", "prometheus_client", "grpc_health", "grpc_tools")

_BLOCK = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {NOT_THERE!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Missing())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code as it would run where the extras are not installed."""
    return subprocess.run(
        [sys.executable, "-c", _BLOCK + code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_dependencies_of_the_plain_install_are_small() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\s>=<;\[]", requirement)[0] for requirement in project["dependencies"]}
    assert names == {
        "google-crc32c",
        "grpcio",
        "protobuf",
        "pydantic-settings",
        "pyroaring",
        "rich",
        "typer",
        "uvloop",
    }


def test_the_client_imports_without_the_extras() -> None:
    result = run("import bookgate.api, bookgate.blocking, bookgate.thinclient.commands.main; print('imported')")
    assert (result.stdout, result.stderr) == ("imported\n", "")


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        (["bookie"], "bookie"),
        (["gateway", "--metadata-uri=sqlite:///nowhere/m.sqlite"], "bookie"),
        (["standalone"], "bookie"),
        (["run"], "bookie,spark"),
    ],
)
def test_commands_of_the_extras_say_what_to_install(arguments: list[str], extras: str) -> None:
    result = run(f"sys.argv = ['bookgate', *{arguments!r}]; from bookgate.thinclient.commands.main import main; main()")
    assert result.returncode == 1
    assert f"pip install 'bookgate[{extras}]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_works_without_the_extras() -> None:
    result = run("sys.argv = ['bookgate', '--help']; from bookgate.thinclient.commands.main import main; main()")
    assert result.returncode == 0
    assert "ledger" in result.stdout
    assert "'bookgate[bookie]'" in result.stdout


def test_the_zookeeper_driver_says_what_to_install() -> None:
    code = (
        _BLOCK.replace("'pyspark', ", "")
        + "from bookgate.gateway.stores.drivers import create_factory\ncreate_factory('zk://h/l')"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "pip install 'bookgate[zookeeper]'" in result.stderr
