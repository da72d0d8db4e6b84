"""Settings: defaults, file, environment, arguments, in rising order."""

from pathlib import Path

import pytest

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.config import ClientConfig, load_config


def test_rising_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.toml"
    file.write_text('gateways = "grpc://file:1"\nadd_timeout_seconds = 1.5\nread_timeout_seconds = 2.5\n')
    monkeypatch.setenv("BOOKGATE_GATEWAYS", "grpc://environment:1")
    monkeypatch.setenv("BOOKGATE_READ_TIMEOUT_SECONDS", "3.5")
    config = load_config(file, gateways="grpc://argument:1", connect_timeout_seconds=None)
    assert config.gateways == "grpc://argument:1"
    assert (config.add_timeout_seconds, config.read_timeout_seconds, config.connect_timeout_seconds) == (1.5, 3.5, 10.0)
    assert load_config(file).gateways == "grpc://environment:1"


def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.toml"
    file.write_text("add_timout = 3")
    with pytest.raises(IncorrectParameterException, match="add_timout"):
        load_config(file)
    file.write_text("add_timeout_seconds = ")
    with pytest.raises(IncorrectParameterException, match=r"client\.toml can't be read"):
        load_config(file)
    with pytest.raises(IncorrectParameterException, match="can't be read"):
        load_config(tmp_path / "none.toml")
    monkeypatch.setenv("BOOKGATE_READ_TIMEOUT_SECONDS", "soon")
    with pytest.raises(IncorrectParameterException, match="read_timeout_seconds"):
        load_config()


def test_the_largest_packet_leaves_headroom_in_a_frame() -> None:
    assert ClientConfig().max_packet_size == 5 * 1024 * 1024 - 500


def test_an_enforced_minimum_of_racks_needs_a_policy_that_looks_at_racks() -> None:
    with pytest.raises(
        IncorrectParameterException, match="enforce_min_racks has no effect with placement_policy default"
    ):
        ClientConfig(enforce_min_racks=True)
    assert ClientConfig(enforce_min_racks=True, placement_policy="rackaware").enforce_min_racks
    assert ClientConfig(enforce_min_racks=True, placement_policy="one-of-another-package").enforce_min_racks
