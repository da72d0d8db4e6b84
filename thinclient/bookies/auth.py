"""Authentication to bookies: the provider interface, how providers are found, and the token provider.

A client has one provider, which creates a session for each connection. The session returns the first payload; then it
takes each payload of the bookie and returns the next one, or None once it is satisfied. Payloads are opaque to all
other code. A bookie without authentication responds in the name of `AuthDisabledPlugin`, which ends the exchange
successfully.

Providers are found by name in the entry-point group `bookgate.client_auth_providers`. The entry point's callable
receives those of the keyword arguments `token_file` and `token` that it accepts, with the client's `auth_token_file`
and `auth_token`. Applications may pass an object instead.

Source: docs/protocol/wire.md#authentication.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from bookgate.ledger.errors import IncorrectParameterException, UnauthorizedAccessException

GROUP = "bookgate.client_auth_providers"
AUTH_DISABLED = "AuthDisabledPlugin"
TOKEN_PLUGIN = "bookgate-token"


class ClientAuthSession(Protocol):
    """The exchange on one connection."""

    def initial(self) -> bytes:
        """The first payload. Raises BKException."""

    def process(self, payload: bytes) -> bytes | None:
        """The response to a bookie's payload; None: authenticated. Raises UnauthorizedAccessException."""


class ClientAuthProvider(Protocol):
    """An authentication method."""

    @property
    def plugin_name(self) -> str:
        """The name, which the bookie's plugin has too."""

    def new_session(self) -> ClientAuthSession:
        """A session for a new connection."""


class TokenAuthProvider:
    """A shared secret, read from its file for each connection. Use it inside TLS only."""

    plugin_name = TOKEN_PLUGIN
    needs_tls = True
    """A connection in clear to another machine is refused."""

    def __init__(self, token_file: Path | None = None, token: str | None = None) -> None:
        if (token_file is None) == (not token):
            raise IncorrectParameterException(
                f"authentication by {TOKEN_PLUGIN} needs one of auth_token_file and auth_token"
            )
        self._token_file = token_file
        self._token = token

    def __repr__(self) -> str:
        return f"TokenAuthProvider({self._token_file or '…'})"

    def new_session(self) -> TokenSession:
        return TokenSession(self._read())

    def _read(self) -> bytes:
        if self._token_file is None:
            return (self._token or "").encode()
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnauthorizedAccessException(f"token file {self._token_file} can't be read: {reason}") from error
        if not token:
            raise UnauthorizedAccessException(f"token file {self._token_file} is empty")
        return token


class TokenSession:
    """Sends the token; the bookie accepts with an empty payload."""

    def __init__(self, token: bytes) -> None:
        self._token = token

    def initial(self) -> bytes:
        return self._token

    def process(self, payload: bytes) -> bytes | None:
        return None


def load_provider(name: str, token_file: Path | None, token: str | None) -> ClientAuthProvider:
    """The provider of that name. Raises IncorrectParameterException if it is not installed."""
    if name == TOKEN_PLUGIN:
        return TokenAuthProvider(token_file, token)
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({TOKEN_PLUGIN, *found}))
        raise IncorrectParameterException(f"there is no authentication provider {name!r}; installed are: {known}")
    provider: ClientAuthProvider = found[name].load()(token_file=token_file, token=token)
    return provider
