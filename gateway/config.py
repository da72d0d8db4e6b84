"""The gateway's configuration: built-in values, then a TOML file, then `BOOKGATE_GATEWAY_…`, then options."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from gateway.store_settings import StoreSettings
from ledger.errors import IncorrectParameterException


class GatewayConfig(StoreSettings, BaseSettings):
    """Every key, with its meaning and its limits; those of the metadata store are `StoreSettings`."""

    model_config = SettingsConfigDict(env_prefix="BOOKGATE_GATEWAY_", extra="forbid")

    metadata_uri: str = Field(description="where the metadata is: zk+hierarchical://… or sqlite:///…")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen at")
    port: int = Field(default=4181, ge=0, le=65535, description="port to listen at; 0 chooses a free one")
    bookmark_seconds: float = Field(default=10.0, gt=0, description="silence on a Watch stream before a bookmark")
    max_subscriptions: int = Field(default=100_000, ge=1, description="subscriptions on one Watch stream")
    drain_seconds: float = Field(default=5.0, ge=0, description="grace for calls under way when stopping")

    @classmethod
    def load(cls, file: Path | None, options: dict[str, Any]) -> GatewayConfig:
        """Reads all sources; options that are None count as not given.

        Raises IncorrectParameterException naming each key that is wrong.
        """
        given = {name: value for name, value in options.items() if value is not None}
        try:
            return _configured(file)(**given)
        except ValidationError as error:
            raise IncorrectParameterException("; ".join(_problem(detail) for detail in error.errors())) from error
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise IncorrectParameterException(f"the configuration file {file} can't be read: {error}") from error


def _configured(file: Path | None) -> type[GatewayConfig]:
    """The settings class that also reads `file`."""

    class _WithFile(GatewayConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            if file is None:
                return init_settings, env_settings
            # A missing file would be passed over in silence.
            file.read_bytes()
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, file)

    return _WithFile


def _problem(detail: Any) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        option = "--" + key.replace("_", "-")
        return f"{key} is not set; give {option}, BOOKGATE_GATEWAY_{key.upper()} or the key in the configuration file"
    if detail["type"] == "value_error":
        # Of a rule of ours, which says enough; what was given may be a secret.
        return f"{key}: {detail['ctx']['error']}" if key else str(detail["ctx"]["error"])
    return f"{key}: {detail['msg']} (got {detail.get('input')!r})"
