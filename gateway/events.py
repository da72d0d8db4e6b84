"""Changes of state in the log, one line each, as `event=… key=value …`: for people and for what collects logs."""

from __future__ import annotations

import json
import logging


def log_event(logger: logging.Logger, event: str, level: int = logging.INFO, **fields: object) -> None:
    """Writes one line; values with spaces, quotes or `=` are quoted as JSON strings."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", " ".join([f"event={event}", *(f"{key}={_value(fields[key])}" for key in fields)]))


def _value(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text and not any(character in ' "=\\' or not character.isprintable() for character in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
