"""Secrets that a test run's logs tell: of this process as they are written, of bookies' processes in their files.

A test's password or token begins with `planted-`, or is one that the product itself makes (`bkg_…`, a JSON Web Token).
A test during which one of them is in a log record fails.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = "planted-"

_SECRET = re.compile(
    # As it stands, in hex, in base64; tokens of ours, and JWTs.
    r"planted-|706c616e7465642d|cGxhbnRlZC|bkg_[\w-]{43}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}"
)


def tells_secret(text: str) -> bool:
    return _SECRET.search(text) is not None


class Listener:
    """Sees every log record that this process makes, whatever its logger does with it."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._made_by = logging.getLogRecordFactory()
        logging.setLogRecordFactory(self._make)

    def take(self) -> list[str]:
        """What has told a secret since the last call."""
        told, self._told = self._told, []
        return told

    def _make(self, *arguments: Any, **options: Any) -> logging.LogRecord:
        record = self._made_by(*arguments, **options)
        said = " ".join(_said(record))
        if tells_secret(said):
            self._told.append(f"{record.name}: {said}")
        return record


def _said(record: logging.LogRecord) -> Iterator[str]:
    try:
        yield record.getMessage()
    except (TypeError, ValueError):
        # Told by logging itself.
        yield repr(record.args)
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


LISTENER = Listener()


def assert_nothing_told(logs: Iterable[Path]) -> None:
    """Fails for a log file with a secret in it."""
    for log in logs:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        told = [line for line in lines if tells_secret(line)]
        assert not told, f"{log} tells a secret: {told[:3]}"
