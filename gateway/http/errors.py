"""The exceptions with which a handler of HTTP admin rejects a request."""

from __future__ import annotations

import math
from collections.abc import Mapping


class HttpError(Exception):
    """A refusal with a status of its own."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class OverLimit(HttpError):
    """There was too much of it, and nothing was done. Whoever raises it has told the audit trail."""

    def __init__(self, message: str, seconds: float) -> None:
        """`seconds`: after which it is worth another try."""
        wait = max(math.ceil(seconds), 1)
        super().__init__(429, f"{message}; try again in {wait} s", {"Retry-After": str(wait)})
