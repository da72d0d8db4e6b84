"""Secrets that commands are given: from files, from standard input, and what is told of those in arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bookgate.bookie.tools.configuration.schema import assignments
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, choose_form
from bookgate.runtime.secret_files import secret_of
from bookgate.thinclient.commands.client_options import Password
from bookgate.thinclient.commands.http_options import Token, TokenFile
from bookgate.thinclient.spark.commands.secret_arguments import warn_of_secrets
from bookgate.thinclient.tools.admin_client import read_token

SECRET = "planted-password of two words "
Run = Callable[..., Result]


@pytest.fixture(name="run")
def _run() -> Run:
    app = new_group("Opens.")

    @app.command("open")
    def open_ledger(
        password: Password = "", token: Token = None, token_file: TokenFile = None, as_json: AsJson = False
    ) -> None:
        print(f"{password}|{read_token(token, token_file)}")

    return lambda *arguments, **variables: CliRunner().invoke(app, [*arguments], env=variables)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_comes_from_a_file(run: Run, tmp_path: Path, end: str) -> None:
    (file := tmp_path / "password").write_bytes(f"{SECRET}{end}".encode())
    for ended in (run("--password-file", str(file)), run(BOOKGATE_LEDGER_PASSWORD_FILE=str(file))):
        assert (ended.exit_code, ended.stdout, ended.stderr) == (0, f"{SECRET}|None\n", "")


def test_standard_input_gives_its_first_line_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"planted-one\nfirst entry\n")
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert secret_of(Path("-")) == "planted-one"
        assert os.read(reading, 100) == b"first entry\n"


def test_the_command_line_goes_before_the_environment(run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "password").write_text("of the file")
    ended = run("--password-file", str(file), BOOKGATE_LEDGER_PASSWORD="of the variable")
    assert ended.stdout == "of the file|None\n"
    ended = run("--password", "of the argument", BOOKGATE_LEDGER_PASSWORD_FILE=str(file))
    assert ended.stdout == "of the argument|None\n"
    for ended in (
        run("--password", "a", "--password-file", str(file)),
        run(BOOKGATE_LEDGER_PASSWORD="a", BOOKGATE_LEDGER_PASSWORD_FILE=str(file)),
    ):
        assert "given twice" in str(ended.exception)


def test_a_file_of_no_use_is_told(run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "no text" in str(run("--password-file", str(file)).exception)
    assert "No such file" in str(run("--password-file", str(tmp_path / "none")).exception)


@pytest.mark.parametrize("option", ["--password", "--token"])
def test_a_secret_that_ps_shows_is_told_and_not_repeated(run: Run, option: str) -> None:
    ended = run(option, "planted-secret")
    assert "planted-secret" in ended.stdout
    (line,) = ended.stderr.splitlines()
    assert f"the secret in {option} (ps); use {option}-file" in line
    assert "planted-secret" not in line
    assert run(option, "planted-secret", "--json").stderr == ""
    assert run(BOOKGATE_LEDGER_PASSWORD="planted-secret", BOOKGATE_HTTP_TOKEN="planted-token").stderr == ""


def test_a_token_comes_from_a_file(run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("planted-token\n")
    assert run("--token-file", str(file)).stdout == "|planted-token\n"


def test_secrets_among_pairs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    choose_form(None)
    warn_of_secrets({"passwords": '{"1": "planted-a"}', "client.token": "planted-b"})
    warn_of_secrets({"passwords": " Metadata", "client.token_file": "/t", "ledgerIds": "1"})
    assert assignments(["http_token=planted-c", "port=1"]) == {"http_token": "planted-c", "port": "1"}
    told = capsys.readouterr().err
    assert [line.partition(" in ")[2].partition(" (")[0] for line in told.splitlines()] == [
        "--option passwords",
        "--option client.token",
        "--set http_token",
    ]
    assert "planted-" not in told
    with pytest.raises(IncorrectParameterException) as refused:
        assignments(["auth_options={planted-d"])
    assert "planted-" not in str(refused.value)
