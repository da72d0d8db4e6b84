"""The command: what it mounts, and what it says when something is missing or wrong."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinclient import cli

ROOT = Path(__file__).parents[3]


def test_the_built_in_table_is_the_distributions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["bookgate.commands"] == cli.BUILT_IN_COMMANDS
    assert project["scripts"]["bookgate"] == "thinclient.cli:main"


def test_every_command_has_help() -> None:
    ledger = [["ledger", name] for name in ("create", "write", "read", "list", "show", "delete")]
    for command in ([], ["ledger"], ["bookies"], ["bookies", "list"], *ledger):
        result = CliRunner().invoke(cli.app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output


def test_a_command_whose_packages_are_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "mounted_commands", lambda: {"bookie": "no_such_package.cli:app", "run": "nothing:app"})
    result = CliRunner().invoke(cli.app, ["--help"])
    assert "Not installed: pip install" in result.output
    result = CliRunner().invoke(cli.app, ["bookie", "--port", "0", "extra"])
    assert result.exit_code == 1
    assert "`bookgate bookie` needs no_such_package, which is not installed" in result.stderr
    assert "pip install 'bookgate[bookie,spark]'" in CliRunner().invoke(cli.app, ["run"]).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ledger", "show", "1"], "no metadata gateway is named; pass grpc://host:port or set BOOKGATE_GATEWAYS"),
        (["ledger", "list", "--gateways", "zk://x:1"], "scheme 'zk' is unknown"),
        (["ledger", "create", "-m", "x"], "--custom-metadata 'x' is not KEY=VALUE"),
        (["ledger", "delete", "1"], "ledger 1 was not deleted; confirm with --yes"),
        (["--config", "/nonexistent.toml", "bookies", "list"], "/nonexistent.toml can't be read"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "thinclient.cli", *arguments],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_the_client_alone_loads_no_store_and_no_server() -> None:
    program = (
        "import sys, thinclient, thinclient.blocking, thinclient.cli;"
        "print([m for m in sys.modules if m.split('.')[0] in ('kazoo', 'gateway', 'bookie', 'pyspark', 'sqlite3')])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
