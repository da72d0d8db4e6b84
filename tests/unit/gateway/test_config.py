"""Settings that contradict each other are refused, a worker gets all of them, and the page names each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.zookeeper.settings import ZooKeeperSettings
from bookgate.ledger.errors import IncorrectParameterException
from tests.stores import made

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()
METRICS = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()


def load(**options: Any) -> GatewayConfig:
    return GatewayConfig.load(None, {"metadata_uri": "sqlite:///m.db", **options})


def test_defaults_are_those_of_the_limits() -> None:
    assert load().limits() == GatewayLimits()
    assert load().tls_files() is None


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"tls_cert": "c"}, "tls_key"),
        ({"tls_cert": "c", "tls_key": "k", "tls_require_client_cert": True}, "needs tls_client_ca"),
        ({"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"}, "no effect"),
        ({"tls_client_ca": "a", "tls_require_client_cert": True}, "tls_cert"),
        ({"workers": 0}, "workers"),
        ({"cache_bytes": -1}, "cache_bytes"),
    ],
    ids=["half-a-pair", "no-authority", "authority-unused", "no-tls", "workers", "cache"],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(IncorrectParameterException, match=hint):
        load(**options)


def test_worker_gets_every_setting_and_an_http_port_of_its_own() -> None:
    settings = load(workers=3, http_port=9000, zookeeper_auth="user:secret", cache_bytes=5, tls_cert="c", tls_key="k")
    worker = GatewayConfig.model_validate_json(settings.for_worker(2, 4444).as_json_line())
    assert (worker.port, worker.http_port, worker.workers) == (4444, 9002, 1)
    auth = worker.of(ZooKeeperSettings).zookeeper_auth
    assert auth is not None
    assert auth.get_secret_value() == "user:secret"
    assert "secret" not in repr(settings)
    with_token = load(http_token="hidden").for_worker(1, 1)
    assert GatewayConfig.model_validate_json(with_token.as_json_line()).http_bearer_token() == "hidden"
    assert worker.limits() == settings.limits()
    assert worker.tls_files() == settings.tls_files()
    assert load(http_port=0).for_worker(1, 1).http_port == 0
    assert load().for_worker(1, 1).http_port is None


@pytest.mark.parametrize("key", GatewayConfig.model_fields)
def test_page_names_every_setting(key: str) -> None:
    assert f"`{key}`" in PAGE


@pytest.mark.asyncio
async def test_page_names_every_metric(tmp_path: Path) -> None:
    from bookgate.gateway.stores.drivers import create_factory

    factory = create_factory(made(f"sqlite://{tmp_path}/m.db"))
    await factory.initialize()
    server = GatewayServer(factory)
    await server.start()
    server.metrics.observe_store("read", 0.1)
    families = list(server.metrics.collect())
    # Before anything fails: a server left over would hold up whichever test happens to free it.
    await server.stop(0)
    await factory.close()
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}`" in METRICS
