"""The command: what it mounts, and what it says when something is missing or wrong."""

import contextlib
import socket
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import bookgate
from bookgate.thinclient.commands import main

ROOT = Path(__file__).parents[4]


def test_the_installed_commands_and_drivers_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, expected in project["entry-points"].items():
        installed = {entry.name: entry.value for entry in entry_points(group=group)}
        assert installed == expected, "the environment was installed before: make env-dev"
    assert project["scripts"]["bookgate"] == "bookgate.thinclient.commands.entry:main"


def test_every_command_has_help() -> None:
    ledger = [["ledger", name] for name in ("create", "write", "read", "list", "show", "delete")]
    for command in ([], ["ledger"], ["bookie"], ["bookie", "list"], *ledger):
        result = CliRunner().invoke(main.app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output


def test_the_summaries_are_those_of_the_commands() -> None:
    group = typer.main.get_command(main.app)
    context = group.make_context("bookgate", [], resilient_parsing=True)
    said = {}
    for noun in main.parts_of_nouns(main.mounted_commands()):
        text = group.get_command(context, noun).help  # type: ignore[attr-defined]
        said[noun] = " ".join(text.partition("\n\n")[0].split())
    assert {noun: summary for noun, (summary, _) in main.SUMMARIES.items()} == said


def test_the_help_loads_no_command() -> None:
    code = (
        "import sys; sys.argv = ['bookgate', '--help']; from bookgate.thinclient.commands.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'grpc', 'rich', 'pydantic', 'asyncio', 'google'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ledger" in done.stdout
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["version"]])
def test_the_version(arguments: list[str]) -> None:
    result = CliRunner().invoke(main.app, arguments)
    assert (result.exit_code, result.stdout) == (0, f"bookgate {bookgate.__version__}\n")


def test_a_short_option_asks_for_help_everywhere() -> None:
    for command in ([], ["ledger"], ["ledger", "list"], ["doctor"]):
        result = CliRunner().invoke(main.app, [*command, "-h"])
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: {' '.join(['bookgate', *command])} [OPTIONS]") or not command


def test_a_command_whose_packages_are_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "mounted_commands", lambda: {"bookie": "no_such_package.cli:app", "run": "nothing:app"})
    result = CliRunner().invoke(main.app, ["--help"])
    assert "Not installed: pip install" in result.output
    result = CliRunner().invoke(main.app, ["bookie", "--port", "0", "extra"])
    assert result.exit_code == 1
    assert "`bookgate bookie` needs no_such_package, which is not installed" in result.stderr
    assert "pip install 'bookgate[bookie,spark-local]'" in CliRunner().invoke(main.app, ["run"]).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ledger", "show", "1"], 2, "no metadata gateway is named; pass grpc://host:port or set BOOKGATE_GATEWAYS"),
        (["ledger", "list", "--gateways", "etcd://x:1/y"], 2, "no driver for scheme 'etcd'"),
        (["ledger", "create", "-m", "x"], 2, "--custom-metadata 'x' is not KEY=VALUE"),
        (["ledger", "list", "--min-size", "much"], 2, "--min-size 'much' is no size"),
        (["ledger", "read", "1", "--from", "5", "--to", "2"], 2, "the first entry comes after the last one"),
        (["ledger", "delete", "1"], 1, "Delete ledger 1: not confirmed; use --yes where nobody can be asked"),
        (["--config", "/nonexistent.toml", "bookie", "list"], 2, "/nonexistent.toml can't be read"),
        (
            ["ledger", "create", "--digest", "md5"],
            2,
            "Invalid value for '--digest': 'md5' is not one of 'crc32', ",
        ),
        (
            ["ledger", "list", "--limit", "x"],
            2,
            "'--limit' / '-n': it should be a valid integer; see `bookgate",
        ),
        (["ledger", "list", "--limit", "0"], 2, "'--limit' / '-n': it should be greater than or equal to 1; see `book"),
        (["ledger", "show", "9" * 23], 2, f"{'9' * 23} does not fit 64 bits"),
        (["ledger", "list", "--columns", "ledger,stat"], 2, "--columns: no column 'stat'; did you mean state?"),
        (
            ["ledger", "list", "--columns", "owner"],
            2,
            "--columns: no column 'owner'; there are ledger, state, entries,",
        ),
        (["ledgr"], 2, "no such command 'ledgr'; did you mean `bookgate ledger`?"),
        (["ledger", "lst"], 2, "no such command 'lst'; did you mean `bookgate ledger list`?"),
    ],
)
def test_errors_are_one_line_with_the_exit_code_of_their_kind(arguments: list[str], code: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bookgate", *arguments],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_columns_are_for_tables() -> None:
    result = CliRunner().invoke(main.app, ["ledger", "list", "--columns", "state", "--json"])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert "--columns is for table and tsv; JSON has every field" in result.stderr


def test_tls_at_a_clear_port_is_one_line_and_grpc_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = server.accept()
                    with accepted:
                        accepted.recv(100)
                        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"grpcs://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "bookgate", "ledger", "list", "-g", address],
            cwd=ROOT,
            env={"PATH": "", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "it speaks no TLS: write grpc:// for it" in done.stderr


def test_the_client_alone_loads_no_store_and_no_server() -> None:
    program = (
        "import sys, bookgate.blocking, bookgate.thinclient.client, bookgate.thinclient.commands.main\n"
        "unwanted = ('kazoo', 'pyspark', 'sqlite3', 'bookgate.gateway', 'bookgate.bookie')\n"
        "assert 'bookgate.thinclient.client' in sys.modules\n"
        "print([name for name in sys.modules if f'{name}.'.startswith(tuple(f'{each}.' for each in unwanted))])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
