"""Authentication of clients: providers, how they are found, and the two that are included.

A provider is one object per bookie; it creates a session for each connection (`auth_gate.AuthSession`). Providers are
found by name in the entry-point group `bookgate.bookie_auth_providers`; the object named there is called with the
setting `auth_options` as keyword arguments and returns the provider. The provider's `name` is the plugin name on the
wire, which the client's provider must share. Without a provider every connection is accepted, as with BookKeeper's
`AuthDisabledPlugin`.

`bookgate-token`: the client presents a secret that is listed in a file. Use it inside TLS only. `bookgate-tls-role`:
the client's certificate names a role in its subject's OU (docs/protocol/wire.md#authorised-roles).

Not its job: which requests are allowed before authentication (`auth_gate`), the client's side.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from bookgate.bookie.protocol.auth_gate import AuthenticationException, AuthSession
from bookgate.ledger.errors import IncorrectParameterException

GROUP = "bookgate.bookie_auth_providers"
TOKEN = "bookgate-token"
TLS_ROLE = "bookgate-tls-role"


class BookieAuthProvider(Protocol):
    """One way to authenticate clients."""

    @property
    def name(self) -> str:
        """The plugin's name on the wire."""

    def new_session(self, peer: str) -> AuthSession:
        """A session for a new connection; `peer` is the client's address, for messages."""


class TokenProvider:
    """Accepts any token of a file with one token per line, so that a new token can be valid together with the old one
    for a while.

    The file is read for each authentication. Raises IncorrectParameterException if it can't be used.
    """

    name = TOKEN

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        try:
            self._tokens()
        except AuthenticationException as error:
            raise IncorrectParameterException(
                f"{error}: set the option file of {TOKEN} to a file with a token"
            ) from error

    def new_session(self, peer: str) -> TokenSession:
        return TokenSession(self)

    def knows(self, token: bytes) -> bool:
        """Whether the file lists the token. Takes the same time for every token that it does not list."""
        return sum(hmac.compare_digest(token, known) for known in self._tokens()) > 0

    def _tokens(self) -> list[bytes]:
        try:
            lines = self._file.read_bytes().splitlines()
        except OSError as error:
            raise AuthenticationException(f"token file {self._file} can't be read: {error.strerror}") from error
        tokens = [line.strip() for line in lines if line.strip()]
        if not tokens:
            raise AuthenticationException(f"token file {self._file} holds no token")
        return tokens


class TokenSession:
    """Authenticated by the first payload; the response is empty."""

    def __init__(self, provider: TokenProvider) -> None:
        self._provider = provider
        self.authenticated = False

    def process(self, payload: bytes) -> bytes:
        if not self._provider.knows(payload.strip()):
            raise AuthenticationException("the token is not known")
        self.authenticated = True
        return b""

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        pass


class TlsRoleProvider:
    """Accepts certificates whose first role is one of `roles`, a comma-separated list.

    Roles are in the subject's OU under the code 0: `OU=0:writer,reader;1:cluster`.
    """

    name = TLS_ROLE

    def __init__(self, roles: str) -> None:
        self._roles = frozenset(role.strip() for role in roles.split(","))
        if "" in self._roles:
            raise IncorrectParameterException(f"{TLS_ROLE}: the option roles has an empty role in {roles!r}")

    def new_session(self, peer: str) -> TlsRoleSession:
        return TlsRoleSession(self._roles)


class TlsRoleSession:
    """Authenticated by the certificate, once TLS is established."""

    def __init__(self, roles: frozenset[str]) -> None:
        self._roles = roles
        self.authenticated = False

    def process(self, payload: bytes) -> bytes:
        raise AuthenticationException("clients show a certificate here, nothing else")

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        role = role_of(certificate or {})
        if role not in self._roles:
            raise AuthenticationException(f"the certificate's role {role!r} is not let in")
        self.authenticated = True


def role_of(certificate: Mapping[str, Any]) -> str | None:
    """The first role that a certificate (as `ssl.getpeercert` returns it) names; None without one."""
    names = (pair for part in certificate.get("subject", ()) for pair in part)
    for unit in (value for key, value in names if key == "organizationalUnitName"):
        for field in unit.split(";"):
            code, colon, roles = field.partition(":")
            if colon and code.strip() == "0":
                return str(roles.split(",")[0].strip()) or None
    return None


_SHIPPED: dict[str, Callable[..., BookieAuthProvider]] = {TOKEN: TokenProvider, TLS_ROLE: TlsRoleProvider}


def load_provider(name: str, options: Mapping[str, str]) -> BookieAuthProvider:
    """The provider with this name. Raises IncorrectParameterException with the problem."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in _SHIPPED and name not in found:
        known = ", ".join(sorted({*_SHIPPED, *found}))
        raise IncorrectParameterException(f"there is no authentication provider {name!r}; installed are: {known}")
    factory = _SHIPPED[name] if name in _SHIPPED else found[name].load()
    try:
        provider: BookieAuthProvider = factory(**options)
    except TypeError as error:
        raise IncorrectParameterException(
            f"auth_options don't fit the authentication provider {name}: {error}"
        ) from error
    return provider
