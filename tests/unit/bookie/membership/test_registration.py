"""What a bookie announces of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.instances.rules import settings_of
from bookgate.bookie.membership.registration import bookie_id_of, service_info
from bookgate.thinclient.placement.racks import RackMapping


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
