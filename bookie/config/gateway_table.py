"""The settings of a hosted gateway: those of the table in the bookie's settings, and those of the environment.

Not its job: what the gateway takes over from its bookie (`bookie`), the settings themselves, which are the gateway's.
"""

from __future__ import annotations

from typing import Final

from bookgate.gateway.config import GatewayConfig
from bookgate.runtime.settings_loader import Gathered, gather
from bookgate.runtime.settings_problems import Given

GATEWAY_TABLE: Final = "gateway"
"""The key that holds the table."""


def gather_gateway(table: Given) -> Gathered:
    """The settings, each with its source. The environment is above a table in a file, and below one in an option.

    Raises IncorrectParameterException for an environment variable that can't be parsed as its type.
    """
    if table.precedes_environment:
        return gather(GatewayConfig, options=table.value)
    return gather(GatewayConfig, table.value, table.source)
