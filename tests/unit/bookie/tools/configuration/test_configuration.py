"""`bookgate config`: what is in effect and why, what is wrong with a file, and the reference page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bookgate.bookie.commands.config import app
from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.tools.configuration.check import part_of, problems_of
from bookgate.bookie.tools.configuration.reference import render
from bookgate.bookie.tools.configuration.schema import (
    BOOKIE,
    CLIENT,
    GATEWAY,
    MASK,
    Part,
    effective,
    is_secret,
)
from bookgate.gateway.config import GatewayConfig
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings_loader import gather
from bookgate.runtime.settings_problems import Given
from bookgate.thinclient.config import load_config as load_client_config

ROOT = Path(__file__).parents[5]


@pytest.fixture(autouse=True)
def no_variables_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's own settings of bookies would be shown and checked as this user's."""
    for name in [name for name in os.environ if name.startswith("BOOKGATE_")]:
        monkeypatch.delenv(name)


VALID = 'metadata_uri = "sqlite:///m"\ndata_dir = "/data"\nhost = "127.0.0.1"\n'


def config(*arguments: str | Path) -> tuple[int, str, str]:
    """Runs the command: exit code, output, errors."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.stdout, result.stderr


def written(directory: Path, text: str) -> Path:
    file = directory / "settings.toml"
    file.write_text(text)
    return file


def test_a_wrong_value_in_a_file_of_a_client_brings_no_problem_of_a_setting_it_has_not() -> None:
    content = {"gateways": Given("grpc://a:1", "file"), "add_timeout_seconds": Given("soon", "file")}
    assert [problem.key for problem in problems_of(CLIENT, content)] == ["add_timeout_seconds"]


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert page == render(), "run: make reference"


def test_the_reference_names_every_key_and_its_variable() -> None:
    page = render()
    for part in (BOOKIE, GATEWAY, CLIENT):
        for key in part.fields:
            assert f"| `{key}` | `{part.prefix}{key.upper()}` |" in page
    assert config("show", "--markdown") == (0, page, "")


def test_each_value_is_shown_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, VALID + "port = 1\nhttp_port = 1\ngateway_port = 1\n")
    monkeypatch.setenv("BOOKGATE_BOOKIE_HTTP_PORT", "2")
    monkeypatch.setenv("BOOKGATE_BOOKIE_GATEWAY_PORT", "2")
    code, output, errors = config("show", "--config", file, "--set", "gateway_port=3", "--json")
    assert (code, errors) == (0, "")
    shown = json.loads(output)
    assert list(shown) == ["bookie"]
    assert set(shown["bookie"]) == set(BOOKIE.fields)
    assert shown["bookie"]["port"] == {"value": 1, "source": str(file)}
    assert shown["bookie"]["http_port"] == {"value": "2", "source": "BOOKGATE_BOOKIE_HTTP_PORT"}
    assert shown["bookie"]["gateway_port"] == {"value": "3", "source": "option"}
    assert shown["bookie"]["journal_max_backups"] == {"value": 5, "source": "default"}


def test_all_three_parts_are_shown_without_a_file() -> None:
    code, output, errors = config("show", "--json")
    assert (code, errors) == (0, "")
    assert {part: set(lines) for part, lines in json.loads(output).items()} == {
        "bookie": set(BOOKIE.fields),
        "gateway": set(GATEWAY.fields),
        "client": set(CLIENT.fields),
    }
    assert "journal_max_size_mb" in config("show", "bookie")[1]


def test_secrets_are_masked_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_GATEWAY_ZOOKEEPER_AUTH", "me:hidden1")
    monkeypatch.setenv("BOOKGATE_AUTH_TOKEN", "hidden2")
    file = written(
        tmp_path,
        VALID + '[auth_options]\ntoken = "hidden3"\n[gateway]\nzookeeper_auth = "hidden4"\ntls_cert = "seen"\n',
    )
    for form in ((), ("--json",)):
        whole = config("show", *form)[1] + "".join(config("show", "bookie", "--config", file, *form)[1:])
        assert "hidden" not in whole
        assert whole.count(MASK) == 4
        assert "seen" in whole
    monkeypatch.setenv("BOOKGATE_GATEWAY_ZOOKEEPER_AUTH", "hidden1")
    assert "hidden" not in "".join(map(str, config("check", file)))


@pytest.mark.parametrize("part", [BOOKIE, GATEWAY, CLIENT])
def test_every_secret_is_known_by_its_type(part: Part) -> None:
    for key, field in part.fields.items():
        assert is_secret(key) == (
            "SecretStr" in str(field.annotation) or key in ("auth_token", "auth_options", "passwords", "token")
        ), key
        if is_secret(key):
            assert "hidden" not in str(effective(part, {key: Given("hidden", "file")}))


def test_every_problem_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_HTP_PORT", "1")
    monkeypatch.setenv("BOOKGATE_BOOKIE_HTTP_PORT", "x")
    file = written(
        tmp_path,
        'prot = 1\njournalDirectories = "/a"\nport = 70000\ndata_dir = "/d"\ntls_cert = "c"\n'
        'zzz = 1\njournal_directory = "/a"\njournal_directories = "/b"\n[auth_options]\na = "b"\n'
        '[gateway]\ntls_crt = "c"\ntls_cert = "c"\n',
    )
    code, output, errors = config("check", file)
    assert (code, errors) == (1, "")
    lines = output.splitlines()
    expected = [
        ("BOOKGATE_BOOKIE_HTP_PORT:", "did you mean BOOKGATE_BOOKIE_HTTP_PORT?"),
        ("prot ", "did you mean port?"),
        ("journalDirectories ", "did you mean journal_directories?"),
        ("zzz ", "there is no such key"),
        ("metadata_uri: ", "must be set"),
        ("port ", "less than or equal to 65535; it is 70000"),
        ("http_port (BOOKGATE_BOOKIE_HTTP_PORT)", "integer"),
        ("set journal_directory or journal_directories, not both", ""),
        ("tls_cert and tls_key go together", ""),
        ("auth_options have no effect", "auth_provider"),
        ("gateway.tls_crt ", "did you mean tls_cert?"),
        ("gateway: tls_cert and tls_key go together", ""),
    ]
    for start, word in expected:
        assert [line for line in lines if line.startswith(start) and word in line], (start, word, lines)
    assert len(lines) == len(expected)
    described = json.loads(config("check", file, "--json")[1])
    assert (described["part"], len(described["problems"])) == ("bookie", len(expected))


def test_no_contradiction_is_made_up_of_a_value_left_out(tmp_path: Path) -> None:
    file = written(tmp_path, VALID + 'tls_cert = 1\ntls_key = "k"\nport = "x"\n')
    lines = config("check", file)[1].splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["port", "tls_cert"]


def test_a_valid_file_is_said_to_be(tmp_path: Path) -> None:
    code, output, _ = config("check", written(tmp_path, VALID))
    assert (code, output.strip().endswith("these settings of the bookie are valid")) == (0, True)
    lacking = written(tmp_path, 'metadata_uri = "sqlite:///m"\n')
    assert config("check", "--for", "bookie", lacking)[0] == 1
    assert config("check", "--for", "bookie", "--set", "data_dir=/data", "--set", "insecure=true", lacking)[0] == 0


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    assert config("check", tmp_path / "missing.toml")[0::2][0] == 2
    code, output, errors = config("check", written(tmp_path, "port = \n"))
    assert (code, output) == (2, "")
    assert "line 1" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"data_dir": "/d"}, BOOKIE),
        ({"journalDirectories": "/d", "port": 1, "data_dir": "x"}, BOOKIE),
        ({"metadata_uri": "sqlite:///m", "port": 1}, GATEWAY),
        ({"gateways": "grpc://a:1", "add_timeout_seconds": 1}, CLIENT),
    ],
)
def test_the_part_is_seen_by_its_keys(content: dict[str, object], part: object) -> None:
    assert part_of(content) is part


def test_a_start_refuses_unknown_keys_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, VALID + "journal_max_backup = 1\n")
    with pytest.raises(IncorrectParameterException, match="did you mean journal_max_backups"):
        load_config(file)
    with pytest.raises(IncorrectParameterException, match="did you mean add_timeout_seconds"):
        load_client_config(None, addTimeout=1)
    with pytest.raises(IncorrectParameterException, match="did you mean max_batch"):
        GatewayConfig.load(None, {"metadata_uri": "sqlite:///m", "max_batches": 1})
    monkeypatch.setenv("BOOKGATE_BOOKIE_JOURNAL_SYNC", "false")
    with pytest.raises(IncorrectParameterException, match="did you mean BOOKGATE_BOOKIE_JOURNAL_SYNC_DATA"):
        load_config(written(tmp_path, VALID))
    monkeypatch.setenv("BOOKGATE_GATEWAY_WORKER", "2")
    with pytest.raises(IncorrectParameterException, match="did you mean BOOKGATE_GATEWAY_WORKERS"):
        GatewayConfig.load(None, {"metadata_uri": "sqlite:///m"})


def test_a_misspelt_variable_of_the_client_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no mistake of the client's, whose prefix others share: those are nothing to it."""
    monkeypatch.setenv("BOOKGATE_READ_TIMOUT", "2")
    for of_another in ("BOOKIE_PORTS", "GATEWAY_PORT", "HTTP_TOKEN", "CONFIG", "SPARK_METRICS_DIRECTORY"):
        monkeypatch.setenv(f"BOOKGATE_{of_another}", "1")
    load_client_config(None)
    (told,) = [record.getMessage() for record in caplog.records if "variable_unknown" in record.getMessage()]
    assert "name=BOOKGATE_READ_TIMOUT" in told
    assert "did you mean BOOKGATE_READ_TIMEOUT_SECONDS?" in told
    (problem,) = problems_of(CLIENT, gather(CLIENT.settings).given)
    assert "BOOKGATE_READ_TIMOUT: no setting has" in str(problem)


def test_what_check_accepts_a_start_accepts(tmp_path: Path) -> None:
    content: dict[str, Any] = {"metadata_uri": "sqlite:///m", "data_dir": str(tmp_path)}
    content["ledger_directories"] = ["/a", "/b"]
    (open_to_all,) = problems_of(BOOKIE, gather(BOOKIE.settings, content).given)
    assert "nobody is authenticated at: entry, gateway, http" in str(open_to_all)
    with pytest.raises(IncorrectParameterException, match="nobody is authenticated"):
        load_config(None, **content).check_exposure()
    content["insecure"] = True
    assert problems_of(BOOKIE, gather(BOOKIE.settings, content).given) == []
    load_config(None, **content).check_exposure()
    assert len(load_config(None, **content).ledgers) == 2
    assert problems_of(BOOKIE, {"data_dir": Given("/d", "")})[0].key == "metadata_uri"


def test_check_judges_the_hosted_gateway_by_what_a_start_would_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, VALID + "[gateway]\nmax_batch = 7\n")
    monkeypatch.setenv("BOOKGATE_GATEWAY_MAX_BATCH", "0")
    assert "gateway.max_batch (BOOKGATE_GATEWAY_MAX_BATCH)" in config("check", file)[1]
    assert config("check", file, "--set", 'gateway={"max_batch": 8}')[0] == 0
    file = written(tmp_path, VALID + "[gateway]\nmax_batch = 0\n")
    monkeypatch.setenv("BOOKGATE_GATEWAY_MAX_BATCH", "5")
    assert config("check", file)[0] == 0
