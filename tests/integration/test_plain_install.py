"""The plain install is the thin client: no ZooKeeper library, no Spark, no web framework."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND_LINE = ("click", "rich", "typer")
NOT_THERE = ("kazoo", "pyspark", "pyarrow", "starlette", "uvicorn", "prometheus_client", "grpc_health", "grpc_tools")


def without(names: Sequence[str]) -> str:
    """Code after which importing one of these modules fails as it does where they are not installed."""
    return f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {tuple(names)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Missing())
"""


def run(code: str, *, missing: Sequence[str] = NOT_THERE) -> subprocess.CompletedProcess[str]:
    """Runs code as it would run where the extras are not installed."""
    return subprocess.run(
        [sys.executable, "-c", without(missing) + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
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
        "uvloop",
    }


def test_the_client_imports_without_the_extras() -> None:
    code = "import bookgate, bookgate.api, bookgate.blocking; bookgate.BookKeeper; print('imported')"
    result = run(code, missing=(*NOT_THERE, *COMMAND_LINE))
    assert (result.stdout, result.stderr) == ("imported\n", "")


def test_the_command_without_its_extra_says_what_to_install() -> None:
    result = run("import runpy; runpy.run_module('bookgate', run_name='__main__')", missing=COMMAND_LINE)
    assert result.returncode == 1
    assert result.stderr.startswith("error: the command bookgate needs ")
    assert result.stderr.endswith("run: pip install 'bookgate[cli]'\n")


def test_the_lowest_grpcio_of_the_stubs_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    guards = [path.read_text() for path in (ROOT / "protos").rglob("*_pb2_grpc.py")]
    [floor] = {match[1] for code in guards if (match := re.search(r"GRPC_GENERATED_VERSION = '(.*)'", code))}
    assert f"grpcio>={floor}" in project["dependencies"]


def test_no_message_demands_a_protobuf_as_new_as_the_generator() -> None:
    stubs = list((ROOT / "protos").rglob("*_pb2.py"))
    assert stubs
    assert [path.name for path in stubs if "ValidateProtobufRuntimeVersion" in path.read_text()] == []


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        (["bookie"], "bookie"),
        (["gateway", "--metadata-uri=sqlite:///nowhere/m.sqlite"], "bookie"),
        (["standalone"], "bookie"),
        (["run"], "bookie,spark-local"),
    ],
)
def test_commands_of_the_extras_say_what_to_install(arguments: list[str], extras: str) -> None:
    result = run(f"sys.argv = ['bookgate', *{arguments!r}]; from bookgate.thinclient.commands.main import main; main()")
    assert result.returncode == 1
    assert f"pip install 'bookgate[{extras}]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_doctor_needs_no_extra(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text("no_such_setting = 1\n")
    arguments = ["bookgate", "doctor", "--gateways", "grpc://127.0.0.1:1", "--timeout", "1", "--file", str(file)]
    result = run(f"sys.argv = {arguments!r}; from bookgate.thinclient.commands.main import main; main()")
    assert (result.returncode, result.stderr) == (1, "")
    assert "error\tgateway 127.0.0.1:1\t" in result.stdout
    assert "no_such_setting" in result.stdout


def test_help_works_without_the_extras() -> None:
    result = run("sys.argv = ['bookgate', '--help']; from bookgate.thinclient.commands.main import main; main()")
    assert result.returncode == 0
    assert "ledger" in result.stdout
    assert "'bookgate[bookie,spark-local]'" in result.stdout


def test_the_zookeeper_driver_says_what_to_install() -> None:
    code = (
        without([name for name in NOT_THERE if name != "pyspark"])
        + "from bookgate.gateway.stores.drivers import create_factory\ncreate_factory('zk://h/l')"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "pip install 'bookgate[zookeeper]'" in result.stderr


def test_the_lock_file_has_every_direct_dependency_and_names_no_registry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = (ROOT / "requirements-dev.lock").read_text()
    locked = {name.lower() for name in re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE)}
    optional = project["optional-dependencies"]
    direct = [*project["dependencies"], *(each for extra in optional if extra != "release" for each in optional[extra])]
    names = {re.split(r"[\s>=<;\[]", requirement)[0].lower() for requirement in direct} - {"bookgate"}
    assert names - locked == set()
    assert "://" not in lock
    assert "--" not in lock
