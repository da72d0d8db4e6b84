"""The log of every process: one line per event on standard error, in a machine-readable form.

A text line is `time=… level=… logger=… event=… key=value …` (logfmt), a JSON line an object with the same names. A
record that is not an event has its text as `message`. A stack trace stays within the line, as `exception`; only
unexpected errors have one. Fields that hold for the whole process (the bookie's id) are in every line.

Levels: `error`, something is lost or will not recover by itself; `warning`, the process handles it, but an operator may
want to know; `info`, changes of state; `debug`, details for developers. `critical` is logged before a process ends.

Library code only calls `log_event`; processes call `set_up_logging` once. The latest lines stay in memory for who asks
the process for them (`recent_lines`).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, TextIO

from pydantic import BaseModel, Field

from bookgate.runtime.control_characters import visible

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_LOG = logging.getLogger(__name__)

KEPT_LINES = 1000
"""Lines that stay in memory."""
_KEPT_CHARACTERS = 2000
"""Of each line: together they stay below a few MiB."""


class LogSettings(BaseModel):
    """Settings model to inherit from: log level and form of a process."""

    log_level: LogLevel = Field(default="info", description="what is logged to standard error")
    log_format: LogFormat = Field(default="text", description="text: key=value; json: an object a line")


class Event:
    """The message of a log record: an event name and its fields."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return _logfmt({"event": self.name, **self.fields})


def log_event(logger: logging.Logger, event: str, level: int = logging.INFO, **fields: object) -> None:
    """Logs one event. The field `error` is logged as its message, without a traceback."""
    if logger.isEnabledFor(level):
        logger.log(level, Event(event, fields))


def log_bug(logger: logging.Logger, event: str, error: BaseException, **fields: object) -> None:
    """Logs an unexpected error with its traceback."""
    about = {**fields, "error": error, "type": type(error).__name__}
    logger.error(Event(event, about), exc_info=(type(error), error, error.__traceback__))


def set_up_logging(level: LogLevel, form: LogFormat) -> None:
    """Directs the log of this process to standard error, including uncaught exceptions."""
    handler = _KeepingHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda uncaught: _log_uncaught(
        uncaught.exc_type, uncaught.exc_value or uncaught.exc_type(), uncaught.exc_traceback
    )


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line as it was written, cut if it is very long; `level` as `logging` numbers it."""

    level: int
    text: str


def recent_lines() -> Sequence[LogLine]:
    """The latest lines of this process, oldest first; none if `set_up_logging` was not called."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _KeepingHandler):
            return handler.lines()
    return ()


class _KeepingHandler(logging.StreamHandler[TextIO]):
    """Writes lines, and keeps the latest."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._kept: deque[LogLine] = deque(maxlen=KEPT_LINES)

    def lines(self) -> Sequence[LogLine]:
        with self.lock or nullcontext():
            return tuple(self._kept)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        cut = text if len(text) <= _KEPT_CHARACTERS else f"{text[:_KEPT_CHARACTERS]}…"
        self._kept.append(LogLine(record.levelno, cut))
        return text


@contextmanager
def lines_before_set_up(form: LogFormat) -> Iterator[None]:
    """Writes events inside the block as log lines even if logging is not set up yet, while its settings are being
    read.
    """
    root = logging.getLogger()
    early = logging.StreamHandler(sys.stderr) if not root.hasHandlers() else logging.NullHandler()
    early.setFormatter(LineFormatter(as_json=form == "json"))
    root.addHandler(early)
    try:
        yield
    finally:
        root.removeHandler(early)


def add_to_every_line(**fields: object) -> None:
    """Adds fields to every later log line of the process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.of_process.update(fields)


class LineFormatter(logging.Formatter):
    """Formats log lines; see the module."""

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
    """Formats a value: one with spaces, quotes or `=` is quoted as a JSON string."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text and not any(character in ' "=\\' or not character.isprintable() for character in text)
    return text if plain else _json(text)


def _json(value: object) -> str:
    # Some programs take for a line end, and terminals obey, what JSON leaves unescaped.
    return visible(json.dumps(value, ensure_ascii=False, default=str))
