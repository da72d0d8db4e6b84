"""What a bookie announces of itself, and whose directories it starts on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.instances.rules import settings_of
from bookgate.bookie.limbo.former_life import find_former_life
from bookgate.bookie.membership import registration
from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException
from bookgate.bookie.membership.registration import bookie_id_of, check_cookie, service_info
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import MetadataVersionException
from bookgate.thinclient.placement.racks import RackMapping
from tests.stores import made


def host_of(number: int, **values: Any) -> str:
    """The host of an instance, as placement sees it."""
    host = load_config(
        metadata_uri="sqlite:///m", data_dir=Path("/data"), advertised_address="10.0.0.7", instances=2, **values
    )
    settings = settings_of(host, number, 2)
    ports = {"bookie": settings.port, "gateway": settings.gateway_port, "http": settings.http_port}
    return RackMapping().place(service_info(settings, bookie_id_of(settings, settings.port), ports)).host


def test_instances_announce_one_host() -> None:
    assert [host_of(number) for number in (1, 2)] == ["10.0.0.7", "10.0.0.7"]
    assert [host_of(number, bookie_id="b") for number in (1, 2)] == ["10.0.0.7", "10.0.0.7"]
    assert [host_of(number, announced_host="node-3") for number in (1, 2)] == ["node-3", "node-3"]


@pytest.mark.asyncio
async def test_of_two_first_starts_under_one_id_the_later_one_is_refused_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On hosts with the same paths both would write the same cookie."""
    uri = f"sqlite://{tmp_path}/metadata.db"
    config = load_config(metadata_uri=uri, data_dir=tmp_path / "data", bookie_id="b")
    for path in (*config.journals, *config.ledgers):
        (path / "current").mkdir(parents=True, exist_ok=True)
    factory = create_factory(made(uri))
    await factory.initialize()
    manager, find = factory.registration_manager, find_former_life
    instance_id = await manager.cluster_instance_id()
    content = Cookie.build("b", config.journals, config.ledgers, instance_id, config.indexes).encode()

    async def while_another_starts(*arguments: Any) -> Any:
        found = await find(*arguments)
        await manager.write_cookie("b", content, None)
        return found

    try:
        with monkeypatch.context() as patched:
            patched.setattr(registration, "find_former_life", while_another_starts)
            with pytest.raises(MetadataVersionException):
                await check_cookie(config, "b", factory)
        with pytest.raises(InvalidCookieException):
            await check_cookie(config, "b", factory)
    finally:
        await factory.close()
