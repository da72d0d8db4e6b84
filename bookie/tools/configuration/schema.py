"""Every setting of the three parts, and the source of its value.

The definitions are the settings classes themselves; this module only reads them. Not its job: collecting the values
(`runtime.settings_loader`), rules (`check`), printing (`commands.config`, `reference`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.gateway.config import GatewayConfig
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.command_line.secret_options import warn_of_argument
from bookgate.runtime.settings import secret_keys
from bookgate.runtime.settings_loader import Settings
from bookgate.runtime.settings_problems import Given
from bookgate.thinclient.config import ClientConfig

MASK = "********"


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts that have settings."""

    name: str
    settings: type[Settings]

    @property
    def prefix(self) -> str:
        """The prefix of environment variables."""
        return self.settings.model_config["env_prefix"]

    @property
    def fields(self) -> Mapping[str, FieldInfo]:
        return self.settings.model_fields


BOOKIE = Part("bookie", BookieConfig)
GATEWAY = Part("gateway", GatewayConfig)
CLIENT = Part("client", ClientConfig)
PARTS = {part.name: part for part in (BOOKIE, GATEWAY, CLIENT)}
_SECRET_KEYS = frozenset[str]().union(*(secret_keys(part.settings) for part in PARTS.values()))


@dataclass(frozen=True, slots=True)
class Shown:
    """A setting in effect, with the value of a secret masked."""

    key: str
    value: object
    source: str


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """The settings given by `--set`; a value that begins with a brace is a table in JSON.

    Warns of secrets on standard error. Raises IncorrectParameterException.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise IncorrectParameterException(f"--set {text}: write KEY=VALUE")
        if key.strip() in _SECRET_KEYS and not value.startswith("{"):
            warn_of_argument(f"--set {key.strip()}", "the file of the settings, or the environment")
        try:
            values[key.strip()] = json.loads(value) if value.startswith("{") else value
        except ValueError as error:
            raise IncorrectParameterException(f"--set {key}: the table is not JSON: {error}") from None
    return values


def effective(part: Part, given: Mapping[str, Given]) -> list[Shown]:
    """Every setting in the order of its definition, with its effective value; unknown settings are not included."""
    return [
        Shown(key, shown_value(key, given[key].value), given[key].source)
        if key in given
        else Shown(key, shown_value(key, default_of(field)), "default")
        for key, field in part.fields.items()
    ]


def default_of(field: FieldInfo) -> object:
    """The default; None also if there is none."""
    return None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def is_secret(key: str) -> bool:
    return key.rpartition(".")[2] in _SECRET_KEYS


def shown_value(key: str, value: object) -> object:
    """A value as JSON, with secrets masked, also those in a table."""
    if isinstance(value, Mapping):
        return {name: MASK if is_secret(key) else shown_value(name, each) for name, each in value.items()}
    if value is None:
        return None
    if is_secret(key) or isinstance(value, SecretStr):
        return MASK
    if isinstance(value, list | tuple):
        return [shown_value(key, each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str) else str(value)
