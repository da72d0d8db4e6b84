"""The client settings of a bookie, or of a separate auto-recovery process, for its own access to the cluster.

Not its job: the settings themselves, which are the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from bookgate.runtime.settings import TableOf
from bookgate.runtime.settings_loader import NOTHING, Settings, gather
from bookgate.thinclient.config import ClientConfig


class OwnClientSettings(Settings):
    """The table of client settings in the owner's file."""

    client: Annotated[dict[str, Any], TableOf(ClientConfig)] = Field(
        default_factory=dict,
        description="settings of the client that copies entries and answers HTTP requests for ledgers; also in the "
        "environment, BOOKGATE_…, which wins, but not in BOOKGATE_BOOKIE_…, which are the bookie's own",
    )

    @classmethod
    def load(
        cls, file: Path | None = None, values: Mapping[str, Any] = NOTHING, options: Mapping[str, Any] = NOTHING
    ) -> Self:
        """Loads as all settings do, and checks the client's settings too."""
        config = super().load(file, values, options)
        if config.client:
            config.own_client()
        return config

    def own_client(self) -> ClientConfig:
        """The client's settings from the table and, overriding it, the environment.

        A variable with the owner's prefix is the owner's: `BOOKGATE_BOOKIE_TLS_KEY` is the key of the bookie's entry
        port, although a client has a setting `bookie_tls_key`.

        Raises:
            IncorrectParameterException: Names the keys that are wrong.
        """
        owners = self.model_config["env_prefix"]
        return ClientConfig.made_of(gather(ClientConfig, self.client, "table client", not_ours=owners))
