"""What a gateway's metrics show, by name."""

from __future__ import annotations

from bookgate.gateway.server import GatewayServer


def shown(server: GatewayServer, name: str) -> float:
    """The value of one reading."""
    (reading,) = [each for each in server.metrics.readings() if each.name == name]
    return reading.read()
