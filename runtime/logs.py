"""The log of every process: one line an event on standard error, in a form that programs can take apart.

As text a line is `time=… level=… logger=… event=… key=value …` (logfmt), as JSON an object with the same names. A
record that is no event has its words as `message`. A stack trace stays within the line, as `exception`; it is there for
what nobody foresaw only. What is so for the whole process (the bookie's id) is in every line.

Levels: `error`, something is lost or will not heal by itself; `warning`, an operator may want to know, and it is dealt
with; `info`, changes of state; `debug`, what is of use to developers. `critical` is said before a process ends.

Libraries of ours only call `log_event`; processes call `set_up_logging` once.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

from pydantic import BaseModel, Field

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_LOG = logging.getLogger(__name__)


class LogSettings(BaseModel):
    """A model to inherit from: what and how a process logs."""

    log_level: LogLevel = Field(default="info", description="what is logged to standard error")
    log_format: LogFormat = Field(default="text", description="text: key=value; json: an object a line")


class Event:
    """The message of a log record: a name, and what is known of it."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return _logfmt({"event": self.name, **self.fields})


def log_event(logger: logging.Logger, event: str, level: int = logging.INFO, **fields: object) -> None:
    """Logs one event. An `error` among the fields is told by its message, without a trace."""
    if logger.isEnabledFor(level):
        logger.log(level, Event(event, fields))


def log_bug(logger: logging.Logger, event: str, error: BaseException, **fields: object) -> None:
    """Logs what nobody foresaw, with its trace."""
    about = {**fields, "error": error, "type": type(error).__name__}
    logger.error(Event(event, about), exc_info=(type(error), error, error.__traceback__))


def set_up_logging(level: LogLevel, form: LogFormat) -> None:
    """Sends the log of this process to standard error, what nobody caught included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda uncaught: _log_uncaught(
        uncaught.exc_type, uncaught.exc_value or uncaught.exc_type(), uncaught.exc_traceback
    )


def add_to_every_line(**fields: object) -> None:
    """What is so for the whole process from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.of_process.update(fields)


class LineFormatter(logging.Formatter):
    """See the module."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self.of_process: dict[str, object] = {}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, Event):
            fields |= {"event": record.msg.name, **self.of_process, **record.msg.fields}
        else:
            fields |= {**self.of_process, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = self.formatException(record.exc_info)
        return _json(fields) if self._as_json else _logfmt(fields)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log_bug(_LOG, "uncaught_exception", error.with_traceback(trace))


def _logfmt(fields: Mapping[str, object]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in fields.items())


def _value(value: object) -> str:
    """Values with spaces, quotes or `=` are quoted as JSON strings."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text and not any(character in ' "=\\' or not character.isprintable() for character in text)
    return text if plain else _json(text)


_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""What JSON leaves as it is and some take for the end of a line."""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str).translate(_LINE_ENDS)
