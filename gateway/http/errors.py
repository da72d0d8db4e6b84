"""The exceptions with which a handler of HTTP admin rejects a request."""

from __future__ import annotations

from collections.abc import Mapping


class HttpError(Exception):
    """A refusal with a status of its own."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
