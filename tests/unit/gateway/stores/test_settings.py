"""Keys that metadata stores bring to the gateway's configuration, by entry points alone."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.settings import DEFAULTS, GROUP, StoreSettings, settings_of_all_stores
from bookgate.gateway.stores.zookeeper.settings import ZooKeeperSettings
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.config import ClientConfig

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "configuration.md").read_text()
PARTS: dict[str, type[BaseModel]] = {
    "BOOKGATE_BOOKIE_": BookieConfig,
    "BOOKGATE_GATEWAY_": GatewayConfig,
    "BOOKGATE_": ClientConfig,
}
ZOOKEEPER = {
    "zookeeper_tls": True,
    "zookeeper_tls_ca": "/ca",
    "zookeeper_tls_cert": "/cert",
    "zookeeper_tls_key": "/key",
    "zookeeper_tls_verify_host_name": False,
    "zookeeper_auth": "user:hidden",
    "zookeeper_acl": "creator",
}


class OddSettings(StoreSettings):
    odd_size: int = 1


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_every_documented_key_is_one_by_its_documented_variable() -> None:
    documented = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert len(documented) > 150
    by_part = {prefix: [key for key, name in documented if name == prefix + key.upper()] for prefix in PARTS}
    assert {prefix: list(part.model_fields) for prefix, part in PARTS.items()} == by_part
    assert sum(map(len, by_part.values())) == len(documented)


@pytest.mark.parametrize("source", ["environment", "file", "option", "bookie"])
def test_a_stores_keys_are_read_from_every_source(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, options = None, dict[str, Any]()
    if source == "environment":
        for key, value in ZOOKEEPER.items():
            monkeypatch.setenv(f"BOOKGATE_GATEWAY_{key.upper()}", str(value))
    elif source == "file":
        file = tmp_path / "gateway.toml"
        file.write_text(
            "".join(f"{key} = {str(v).lower() if isinstance(v, bool) else repr(v)}\n" for key, v in ZOOKEEPER.items())
        )
    else:
        options = ZOOKEEPER
    if source == "bookie":
        loaded = load_config(metadata_uri="zk://h/l", data_dir=tmp_path, gateway=ZOOKEEPER).hosted_gateway()
    else:
        loaded = GatewayConfig.load(file, {"metadata_uri": "zk://h/l", **options})
    found = loaded.of(ZooKeeperSettings)
    assert found.zookeeper_auth is not None
    assert {
        **found.model_dump(include={*ZOOKEEPER}),
        "zookeeper_auth": found.zookeeper_auth.get_secret_value(),
    } == ZOOKEEPER


def test_a_store_takes_its_own_settings_or_its_defaults() -> None:
    both = settings_of_all_stores([point("odd", f"{__name__}:OddSettings"), point("zookeeper", ZOOKEEPER_MODEL)])
    settings = both(odd_size=7, zookeeper_acl="open")  # type: ignore[call-arg]
    assert settings.of(OddSettings).odd_size == 7
    assert settings.of(ZooKeeperSettings).zookeeper_acl == "open"
    assert DEFAULTS.of(OddSettings).odd_size == 1
    with pytest.raises(ValueError, match="zookeeper_tls_key go together"):
        both(zookeeper_tls_cert="c")  # type: ignore[call-arg]
    assert not settings_of_all_stores([]).model_fields


ZOOKEEPER_MODEL = "bookgate.gateway.stores.zookeeper.settings:ZooKeeperSettings"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("other", f"{__name__}:OddSettings", "odd_size must begin with other_"),
        ("odd", "no_such_package:Settings", "can't be loaded: No module named 'no_such_package'"),
        ("odd", f"{__name__}:Missing", "can't be loaded"),
        ("odd", f"{__name__}:point", "are no StoreSettings"),
    ],
)
def test_settings_of_no_use_are_refused_naming_the_entry_point(name: str, value: str, problem: str) -> None:
    with pytest.raises(IncorrectParameterException, match=problem) as refused:
        settings_of_all_stores([point(name, value)])
    assert f"{name} ({value})" in str(refused.value)
