"""How soon a silent gateway is given up depends on whether gRPC reads while the application has the interpreter."""

from __future__ import annotations

import pytest

from bookgate.thinclient.gateways.grpc_channels import ping_milliseconds


@pytest.mark.parametrize(
    ("version", "within"),
    [("1.66.2", 11_000), ("1.78.1", 11_000), ("1.80.0", 700), ("1.85.0rc1", 700), ("2.0.0", 700)],
)
def test_older_releases_wait_longer(version: str, within: int) -> None:
    assert sum(ping_milliseconds(version)) == within
