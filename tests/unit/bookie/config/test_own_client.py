"""The settings of a bookie as a client of its cluster: its table, the environment, and whose variables are whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.tools.configuration.check import problems_of
from bookgate.bookie.tools.configuration.schema import BOOKIE
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings_problems import Given
from bookgate.thinclient.config import TlsMode


def config(**client: object) -> BookieConfig:
    return load_config(metadata_uri="sqlite:///nowhere", data_dir="/nowhere", client=client)


def test_the_table_counts_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_READ_TIMEOUT_SECONDS", "7")
    own = config(add_timeout_seconds=3, read_timeout_seconds=4).own_client()
    assert (own.add_timeout_seconds, own.read_timeout_seconds) == (3, 7)


def test_a_variable_of_the_bookie_is_not_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_TLS_CERT", "/server.pem")
    monkeypatch.setenv("BOOKGATE_BOOKIE_TLS_KEY", "/server.key")
    bookie = load_config(metadata_uri="sqlite:///nowhere", data_dir="/nowhere", client={"bookie_tls": "start-tls"})
    assert str(bookie.tls_key) == "/server.key"
    own = bookie.own_client()
    assert (own.bookie_tls, own.bookie_tls_key) == (TlsMode.START_TLS, None)


def test_what_is_wrong_is_told_by_the_start_and_by_the_check(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text('metadata_uri = "sqlite:///nowhere"\ndata_dir = "/nowhere"\n[client]\nread_timeuot = 3\n')
    with pytest.raises(
        IncorrectParameterException, match=r"read_timeuot \(table client\): .*mean read_timeout_seconds"
    ):
        load_config(file)
    given = {
        "metadata_uri": Given("sqlite:///nowhere", "file"),
        "data_dir": Given("/nowhere", "file"),
        "client": Given({"read_timeuot": 3, "add_timeout_seconds": -1}, "file"),
    }
    assert {each.key for each in problems_of(BOOKIE, given)} == {"client.read_timeuot", "client.add_timeout_seconds"}
