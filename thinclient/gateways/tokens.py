"""The token by which a client identifies itself to gateways, and the channel that sends it.

It comes from a setting (also the environment), from a file, which is reloaded when it changes (projected tokens of
Kubernetes), or from a callable of the application. If a gateway responds UNAUTHENTICATED, the client reads the token
again: if it has changed, the call is repeated, else it has failed.

A token is sent over a channel without TLS only to this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpc.aio import Channel

from bookgate.ledger.errors import IncorrectParameterException, UnauthorizedAccessException
from bookgate.runtime.file_marks import FileMark, mark_of
from bookgate.runtime.security.authenticators import is_loopback

_LOOK_SECONDS = 1.0
"""Minimum seconds between two checks of a file."""

Provider = Callable[[], str]
"""Returns the token to use now. It is called for each call to a gateway, on the event loop: it must not block."""


class TokenSource:
    """The source of the token: one of the three."""

    def __init__(self, token: str | None = None, file: Path | None = None, provider: Provider | None = None) -> None:
        """Raises IncorrectParameterException for no source, or more than one."""
        if sum(each is not None for each in (token, file, provider)) != 1:
            raise IncorrectParameterException("a token comes from one of token, token_file and a token provider")
        self._token = token
        self._file = file
        self._provider = provider
        self._mark: FileMark | None = None
        self._next_look = 0.0
        self._sent: str | None = None

    def __repr__(self) -> str:
        return f"TokenSource({self._file or '…'})"

    def current(self) -> str:
        """The token to send. Raises UnauthorizedAccessException for a file that can't be read."""
        if self._provider is not None:
            self._token = self._provider()
        elif self._file is not None and time.monotonic() >= self._next_look:
            self._read()
        assert self._token is not None
        self._sent = self._token
        return self._token

    def changed(self) -> bool:
        """Reads the token now; whether it differs from the one sent last."""
        before = self._sent
        self._next_look, self._mark = 0.0, None
        try:
            return self.current() != before
        except UnauthorizedAccessException:
            return False

    def _read(self) -> None:
        """Reads the file; if it is missing for a moment, the token stays unchanged."""
        assert self._file is not None
        self._next_look = time.monotonic() + _LOOK_SECONDS
        try:
            mark = mark_of(self._file)
            if mark == self._mark:
                return
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._token is not None:
                return
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise UnauthorizedAccessException(f"token file {self._file} can't be read: {reason}") from error
        if token:
            self._mark, self._token = mark, token
        elif self._token is None:
            raise UnauthorizedAccessException(f"token file {self._file} is empty")


def may_carry_tokens(address: str, *, tls: bool) -> bool:
    """Whether a token may be sent to `host:port`."""
    return tls or is_loopback(address.rpartition(":")[0])


class AuthorizedChannel:
    """The part of a channel that stubs need; each call carries the token."""

    def __init__(self, channel: Channel, tokens: TokenSource) -> None:
        self._channel = channel
        self._tokens = tokens

    def _wrap(self, rpc: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, metadata: Any = None, **named: Any) -> Any:
            header = ("authorization", f"Bearer {self._tokens.current()}")
            return rpc(*arguments, metadata=(*(metadata or ()), header), **named)

        return call

    def unary_unary(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        return self._wrap(self._channel.unary_unary(*arguments, **named))

    def unary_stream(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        return self._wrap(self._channel.unary_stream(*arguments, **named))

    def stream_unary(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        return self._wrap(self._channel.stream_unary(*arguments, **named))

    def stream_stream(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        return self._wrap(self._channel.stream_stream(*arguments, **named))
