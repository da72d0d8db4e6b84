"""The settings of a bookie, or of auto-recovery in a process of its own, as a client of its cluster.

Not its job: the settings themselves, which are the client's.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import BaseSettings, EnvSettingsSource

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings import TableOf, from_arguments_only
from bookgate.thinclient.config import ClientConfig, load_settings


class OwnClientSettings(BaseSettings):
    """The table of a client's settings in its owner's file."""

    client: Annotated[dict[str, Any], TableOf(ClientConfig)] = Field(
        default_factory=dict,
        description="settings of the client that copies entries and answers HTTP requests for ledgers; also in the "
        "environment, BOOKGATE_…, which wins, but not in BOOKGATE_BOOKIE_…, which are the bookie's own",
    )

    def own_client(self) -> ClientConfig:
        """The table and the environment, which wins.

        A variable that begins with the owner's prefix is the owner's: `BOOKGATE_BOOKIE_TLS_KEY` is the key of the
        bookie's entry port, although a client has a setting `bookie_tls_key`.

        Raises:
            IncorrectParameterException: It names the keys that are wrong.
        """
        prefix = ClientConfig.model_config["env_prefix"]
        owners = self.model_config["env_prefix"]
        environment = EnvSettingsSource(ClientConfig)()
        used = {key: value for key, value in environment.items() if not f"{prefix}{key.upper()}".startswith(owners)}
        try:
            return load_settings(from_arguments_only(ClientConfig), None, {**self.client, **used})
        except IncorrectParameterException as error:
            raise IncorrectParameterException(f"table client, or the environment: {error}") from error
