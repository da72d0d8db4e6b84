"""Former names of settings: taken from wherever settings come, converted, warned of, refused beside the present one."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from bookgate.bookie.commands.autorecovery import AutoRecoveryConfig
from bookgate.bookie.commands.config import app
from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.tools.configuration.check import part_of
from bookgate.bookie.tools.configuration.reference import render
from bookgate.bookie.tools.configuration.schema import BOOKIE, CLIENT, GATEWAY, PARTS, Part
from bookgate.gateway.config import GatewayConfig
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings import ContradictionError, Renamed, renamed_keys
from bookgate.runtime.settings_loader import warn_of_former_name
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.config import load_config as load_client_config
from bookgate.thinclient.spark.options.read_options import parse_options

REQUIRED: dict[Part, dict[str, Any]] = {
    BOOKIE: {"metadata_uri": "sqlite:///m", "data_dir": "/data"},
    GATEWAY: {"metadata_uri": "sqlite:///m"},
    CLIENT: {},
}
RENAMES = [(part, former, to) for part in PARTS.values() for former, to in renamed_keys(part.settings).items()]
EVERY_FORMER_NAME = pytest.mark.parametrize(
    ("part", "former", "to"), RENAMES, ids=[f"{part.name}.{former}" for part, former, _ in RENAMES]
)


@pytest.fixture(autouse=True)
def _nothing_was_told() -> None:
    warn_of_former_name.cache_clear()


def valid(part: Part, former: str) -> tuple[Any, Any]:
    """A value by the former name that is not the default, and what it is by the present one."""
    if former == "tls_certificate":
        return "c.pem", Path("c.pem")
    if former == "zookeeper_tls_hostname":
        return False, False
    if former == "tls_require_client_certificate":
        return True, True
    to = renamed_keys(part.settings)[former]
    return 2048, 2048 / to.per_unit


def others(part: Part, former: str) -> dict[str, Any]:
    """What has to be set beside it."""
    secured = {"tls_key": "k"} if former == "tls_certificate" else {}
    if former == "tls_require_client_certificate":
        secured = {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"}
    return {**REQUIRED[part], **secured}


def as_toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@EVERY_FORMER_NAME
def test_a_file_may_have_it(
    part: Part, former: str, to: Renamed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given, meant = valid(part, former)
    file = tmp_path / "settings.toml"
    file.write_text(as_toml({**others(part, former), former: given}))
    assert getattr(part.settings.load(file), to.key) == meant
    assert warnings_in(caplog) == [f"event=setting_renamed former={former} now={to.key} source={file}"]


@EVERY_FORMER_NAME
@pytest.mark.parametrize("make", ["load", "directly"])
def test_the_environment_may_have_it(
    part: Part,
    former: str,
    to: Renamed,
    make: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given, meant = valid(part, former)
    monkeypatch.setenv(part.prefix + former.upper(), str(given))
    values = others(part, former)
    settings = part.settings.load(values=values) if make == "load" else part.settings(**values)
    assert getattr(settings, to.key) == meant
    names = f"former={part.prefix}{former.upper()} now={part.prefix}{to.key.upper()}"
    assert warnings_in(caplog) == [f"event=setting_renamed {names} source=environment"]


@EVERY_FORMER_NAME
def test_an_option_may_have_it(part: Part, former: str, to: Renamed, caplog: pytest.LogCaptureFixture) -> None:
    given, meant = valid(part, former)
    settings = part.settings.load(values=others(part, former), options={former: str(given)})
    assert getattr(settings, to.key) == meant
    assert warnings_in(caplog) == [f"event=setting_renamed former={former} now={to.key} source=option"]


@EVERY_FORMER_NAME
@pytest.mark.parametrize("make", ["load", "directly"])
def test_a_keyword_may_have_it(part: Part, former: str, to: Renamed, make: str) -> None:
    given, meant = valid(part, former)
    values = {**others(part, former), former: given}
    with pytest.warns(DeprecationWarning, match=f"{former} is now called {to.key}") as caught:
        settings = part.settings.load(values=values) if make == "load" else part.settings(**values)
    assert getattr(settings, to.key) == meant
    assert [(each.filename, len(caught)) for each in caught] == [(__file__, 1)]


@EVERY_FORMER_NAME
@pytest.mark.parametrize("place", ["file", "environment", "option", "keyword"])
def test_both_names_at_one_place_are_an_error(
    part: Part, former: str, to: Renamed, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, meant = valid(part, former)
    both = {former: given, to.key: str(meant)}
    file = tmp_path / "settings.toml"
    file.write_text(as_toml(both) if place == "file" else "")
    if place == "environment":
        for key, value in both.items():
            monkeypatch.setenv(part.prefix + key.upper(), str(value))
    values = {**others(part, former), **(both if place == "keyword" else {})}
    wanted = rf"(?i){former} .*is the same setting as \w*{to.key}; give that alone|{former} is the same .*{to.key}"
    with pytest.raises(IncorrectParameterException, match=wanted):
        part.settings.load(file, values, both if place == "option" else {})
    if place in ("environment", "keyword"):
        with pytest.raises(ContradictionError, match=wanted):
            part.settings(**values)


def test_a_later_source_wins_by_whichever_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.toml"
    file.write_text("add_timeout = 1\nread_timeout_seconds = 1\n")
    monkeypatch.setenv("BOOKGATE_ADD_TIMEOUT_SECONDS", "2")
    monkeypatch.setenv("BOOKGATE_READ_TIMEOUT", "2")
    settings = load_client_config(file)
    assert (settings.add_timeout_seconds, settings.read_timeout_seconds) == (2, 2)
    assert ClientConfig(read_timeout_seconds=3).read_timeout_seconds == 3
    with pytest.warns(DeprecationWarning, match="read_timeout_seconds"):
        assert load_client_config(file, read_timeout=3).read_timeout_seconds == 3


def test_milliseconds_become_seconds(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(
        as_toml(REQUIRED[BOOKIE]) + "journal_max_group_wait_ms = 2\nminor_compaction_max_time_millis = -1\n"
    )
    settings = load_config(file)
    assert settings.storage().journal.max_group_wait_seconds == 0.002
    assert settings.minor_compaction_max_time_seconds < 0
    file.write_text(as_toml(REQUIRED[BOOKIE]) + 'journal_max_group_wait_ms = "soon"\n')
    with pytest.raises(IncorrectParameterException, match=r"journal_max_group_wait_seconds .*number.*it is 'soon'"):
        load_config(file)


TABLES = "[client]\nadd_timeout = 7\n[gateway]\nzookeeper_tls_hostname = false\n"


def of_a_file(tmp_path: Path) -> BookieConfig:
    file = tmp_path / "bookie.toml"
    file.write_text(as_toml(REQUIRED[BOOKIE]) + TABLES)
    return load_config(file)


def of_an_option(_: Path) -> BookieConfig:
    return BookieConfig.load(values=REQUIRED[BOOKIE], options=tomllib.loads(TABLES))


@pytest.mark.parametrize("load", [of_a_file, of_an_option])
def test_the_tables_of_a_bookie_may_have_them(
    load: Callable[[Path], BookieConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load(tmp_path)
    assert settings.own_client().add_timeout_seconds == 7
    assert not settings.hosted_gateway().zookeeper_tls_verify_host_name  # type: ignore[attr-defined]
    told = warnings_in(caplog)
    assert len(told) == 2
    assert "former=client.add_timeout now=client.add_timeout_seconds" in told[0] + told[1]


def test_a_table_that_is_a_keyword_or_a_variable_may_have_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(DeprecationWarning, match=r"client\.add_timeout is now called client\.add_timeout_seconds"):
        settings = BookieConfig(**REQUIRED[BOOKIE], client={"add_timeout": 7})
    assert settings.own_client().add_timeout_seconds == 7
    monkeypatch.setenv("BOOKGATE_BOOKIE_CLIENT", '{"add_timeout": 8}')
    assert load_config(**REQUIRED[BOOKIE]).own_client().add_timeout_seconds == 8
    assert len(warnings_in(caplog)) == 1
    with pytest.raises(IncorrectParameterException, match=r"client\.add_timeout .*is the same setting"):
        load_config(**REQUIRED[BOOKIE], client={"add_timeout": 7, "add_timeout_seconds": 7})


def test_a_process_of_auto_recovery_takes_them_too(tmp_path: Path) -> None:
    file = tmp_path / "autorecovery.toml"
    file.write_text('metadata_uri = "sqlite:///m"\n[client]\nadd_timeout = 7\n')
    assert AutoRecoveryConfig.load(file).own_client().add_timeout_seconds == 7


def test_a_bookies_variable_by_its_former_name_is_not_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_TLS_CERTIFICATE", "/server.pem")
    monkeypatch.setenv("BOOKGATE_BOOKIE_TLS_KEY", "/server.key")
    settings = load_config(**REQUIRED[BOOKIE])
    assert settings.tls_cert == Path("/server.pem")
    assert settings.own_client().bookie_tls_cert is None


def test_spark_hands_on_the_present_names() -> None:
    options = parse_options({"gateways": "g:1", "client.add_timeout": "7"})
    assert ("add_timeout_seconds", "7") in options.client_settings
    assert "add_timeout" not in dict(options.client_settings)


def test_settings_say_their_units_and_no_former_name_is_a_setting() -> None:
    unitless = ("timeout", "interval", "time", "delay", "millis", "ms", "size", "wait", "rate", "rate_limit")
    for part in PARTS.values():
        assert not [key for key in part.fields if key.endswith(tuple(f"_{word}" for word in unitless))]
        for former, to in renamed_keys(part.settings).items():
            assert former not in part.fields
            assert to.key in part.fields
            assert f"(formerly `{former}`)" in render()
            assert f"`{former}`" not in render().replace(f"(formerly `{former}`)", "")


@pytest.mark.parametrize("settings", [BookieConfig, GatewayConfig])
def test_tls_has_the_same_names_everywhere(settings: type[BaseSettings]) -> None:
    assert {"tls_cert", "tls_key", "tls_client_ca", "tls_require_client_cert"} <= set(settings.model_fields)
    assert {"tls_cert", "tls_key", "tls_ca"} <= set(ClientConfig.model_fields)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_warning_is_a_line_of_the_log_before_that_is_set_up(form: str, tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(as_toml({**REQUIRED[BOOKIE], "log_format": form, "max_frame_size": 2048}))
    script = "import pathlib, sys; from bookgate.bookie.config.bookie import load_config as load; file = sys.argv[1]; "
    script += "[load(pathlib.Path(file)) for _ in range(2)]"
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    words = ["setting_renamed", "warning", "max_frame_size", "max_frame_size_bytes", str(file)]
    if form == "json":
        told = json.loads(line)
        assert [told[key] for key in ("event", "level", "former", "now", "source")] == words
    else:
        assert line.startswith("time=")
        assert all(word in line for word in words)


# bookgate config


def config(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.stdout, result.stderr


OLD = """# My bookie
metadata_uri = "sqlite:///m"   # not add_timeout
data_dir="/data"
  tls_certificate   =  "/a b.pem" # certificate of "2026"
tls_key = "k"
journal_max_group_wait_ms = 2_500 # ms
client.read_timeout = 4

[gateway]   # hosted
zookeeper_tls_hostname = false
cache_bytes = 7

[auth_options]
tls_certificate = "is not ours"
"""
NEW = (
    OLD.replace('tls_certificate   =  "/a', 'tls_cert   =  "/a')
    .replace("journal_max_group_wait_ms = 2_500", "journal_max_group_wait_seconds = 2.5")
    .replace("client.read_timeout", "client.read_timeout_seconds")
    .replace("zookeeper_tls_hostname", "zookeeper_tls_verify_host_name")
)


def test_migrate_changes_the_lines_of_renamed_settings_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(OLD + 'auth_provider_is = "unknown keys stay"\n')
    code, output, _ = config("migrate", file)
    assert (code, output) == (0, NEW + 'auth_provider_is = "unknown keys stay"\n')
    file.write_text(OLD.partition("[auth_options]")[0])
    before = load_config(file)
    assert len(warnings_in(caplog)) == 4
    caplog.clear()
    file.write_text(config("migrate", file)[1])
    assert load_config(file) == before
    assert warnings_in(caplog) == []
    assert config("migrate", file)[1] == file.read_text()


@EVERY_FORMER_NAME
def test_a_file_that_was_migrated_means_the_same(
    part: Part, former: str, to: Renamed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(as_toml({**others(part, former), former: valid(part, former)[0]}))
    before = part.settings.load(file)
    caplog.clear()
    code, output, _ = config("migrate", "--for", part.name, file)
    assert (code, to.key in tomllib.loads(output)) == (0, True)
    file.write_text(output)
    assert part.settings.load(file) == before
    assert warnings_in(caplog) == []


@pytest.mark.parametrize(
    "text",
    [
        "client = { add_timeout = 7 }\n",
        '"add_timeout" = 7\n',
        'journal_max_group_wait_ms = "2"\n',
        'note = """\nadd_timeout = 7\n"""\ntls_certificate = "c"\n',
    ],
)
def test_what_can_not_be_rewritten_is_left_to_the_operator(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(text)
    part = "client" if "add_timeout" in text and "client" not in text and '"""' not in text else "bookie"
    code, output, errors = config("migrate", "--for", part, file)
    if '"""' in text:
        # A bookie has no add_timeout: the text in the string is left alone, and the setting is rewritten.
        assert (code, output) == (0, text.replace("tls_certificate", "tls_cert"))
        return
    assert (code, output) == (2, "")
    assert "by hand" in errors


def test_migrate_refuses_both_names_and_a_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text("add_timeout = 1\nadd_timeout_seconds = 1\n")
    code, output, errors = config("migrate", file)
    assert (code, output) == (2, "")
    assert "is the same setting as add_timeout_seconds" in errors
    file.write_text("add_timeout = \n")
    assert config("migrate", file)[0] == 2
    properties = tmp_path / "bk_server.conf"
    properties.write_text("bookiePort=3181\n")
    assert "port = 3181" in config("migrate", properties)[1]
    assert config("migrate", "--for", "gateway", properties)[0] == 1


def test_check_says_the_present_name_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.toml"
    file.write_text('gateways = "grpc://a:1"\nadd_timeout = 1\n')
    monkeypatch.setenv("BOOKGATE_READ_TIMEOUT", "2")
    code, output, errors = config("check", file)
    assert (code, output) == (0, f"{file}: these settings of the client are valid\n")
    assert errors.splitlines() == [
        f"add_timeout ({file}) is now called add_timeout_seconds",
        "BOOKGATE_READ_TIMEOUT (environment) is now called BOOKGATE_READ_TIMEOUT_SECONDS",
    ]
    described = json.loads(config("check", file, "--json")[1])
    assert described["problems"] == []
    assert described["renamed"][0] == {"name": "add_timeout", "key": "add_timeout_seconds", "source": str(file)}
    file.write_text("add_timeout = 1\nadd_timeout_seconds = 1\n")
    code, output, _ = config("check", "--for", "client", file)
    assert (code, output) == (
        1,
        f"add_timeout ({file}) is the same setting as add_timeout_seconds; give that alone\n",
    )


def test_check_tells_a_wrong_value_by_the_present_name(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text("add_timeout = -1\nadd_timout = 1\n")
    lines = config("check", "--for", "client", file)[1].splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"add_timout ({file}): there is no such key; did you mean add_timeout_seconds?")
    assert lines[1].startswith(f"add_timeout_seconds ({file}): ")


def test_show_has_the_value_under_the_present_name(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(as_toml(REQUIRED[BOOKIE]) + "journal_max_group_wait_ms = 2\n")
    code, output, errors = config("show", "--config", file, "--json")
    shown = json.loads(output)["bookie"]
    assert (code, shown["journal_max_group_wait_seconds"]) == (0, {"value": 0.002, "source": str(file)})
    assert "journal_max_group_wait_ms" in errors
    assert "journal_max_group_wait_seconds" in errors


def test_the_part_of_a_file_is_seen_by_former_names_too() -> None:
    assert part_of({"add_timeout": 1, "read_timeout": 1}) is CLIENT
    assert part_of({"tls_certificate": "c", "tls_key": "k"}) is BOOKIE


def test_a_secret_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IncorrectParameterException) as caught:
        GatewayConfig.load(None, {"metadata_uri": "sqlite:///m", "zookeeper_auth": SecretStr("hidden")})
    assert "hidden" not in str(caught.value)
    with pytest.raises(IncorrectParameterException, match="auth_token") as caught:
        load_client_config(auth_provider="bookgate-token", auth_token=["hidden"])
    assert "hidden" not in str(caught.value)
    monkeypatch.setenv("BOOKGATE_GATEWAY_ZOOKEEPER_AUTH", "hidden")
    with pytest.raises(IncorrectParameterException) as caught:
        GatewayConfig.load(None, {"metadata_uri": "sqlite:///m"})
    assert "hidden" not in str(caught.value)
