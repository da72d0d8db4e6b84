"""Authentication at the entry port with principals: by certificate, by a token in AUTH, or by another provider.

The plugin's name on the wire is that of tokens, so a client sends a static token or a JWT like a token of
`bookgate-token`. If the settings name another provider, that one authenticates clients, and its session has the
principal in an attribute `principal`; without it, the principal is that of the certificate, else `token:` with the
provider's name.

Without AUTH the principal of a connection is that of its certificate, this machine (`local`) if no authentication is
configured, or anonymous; the latter is accepted only if the policy names `anonymous`.

Not its job: what the principal may do (`entry_access`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookgate.bookie.protocol.auth_gate import AuthenticationException, AuthSession
from bookgate.bookie.protocol.authentication import TOKEN, BookieAuthProvider
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import NotAuthenticatedException, is_loopback
from bookgate.runtime.security.principal import ANONYMOUS, Kind, Principal, names_of_certificate

DOOR = "entry"


class PrincipalProvider:
    """See the module. `other` is the provider that the settings name."""

    def __init__(self, access: AccessControl, other: BookieAuthProvider | None = None) -> None:
        self._access = access
        self._other = other
        self.name = TOKEN if other is None else other.name

    def new_session(self, peer: str) -> AuthSession:
        """A session for a new connection."""
        if self._other is not None:
            return _OtherSession(self._access, self._other.new_session(peer), self.name, peer)
        return PrincipalSession(self._access, peer)


class PrincipalSession:
    """One connection's authentication by tokens and certificates. Each AUTH may change `principal`."""

    def __init__(self, access: AccessControl, peer: str) -> None:
        self._access = access
        self._peer = peer
        self.principal = self._authenticate()

    @property
    def authenticated(self) -> bool:
        return self.principal is not ANONYMOUS or any(
            binding.has(ANONYMOUS) for binding in self._access.policy.bindings
        )

    def process(self, payload: bytes) -> bytes:
        try:
            self.principal = self._authenticate(bearer=payload.decode().strip())
        except UnicodeDecodeError:
            raise AuthenticationException("the token is no text") from None
        return b""

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        if certificate:
            self.principal = self._authenticate(certificate=names_of_certificate(certificate))

    def _authenticate(self, **shown: Any) -> Principal:
        loopback = is_loopback(self._peer.rpartition(":")[0])
        try:
            return self._access.authenticate(door=DOOR, peer=self._peer, loopback=loopback, **shown)
        except NotAuthenticatedException as error:
            raise AuthenticationException(str(error)) from error


class _OtherSession:
    """A session of another provider, with a principal."""

    def __init__(self, access: AccessControl, session: AuthSession, name: str, peer: str) -> None:
        self._session = session
        self._certificate = PrincipalSession(access, peer)
        self._name = name

    @property
    def authenticated(self) -> bool:
        return self._session.authenticated

    @property
    def principal(self) -> Principal:
        """The principal from the provider, else from the certificate, else from the provider's name."""
        own = getattr(self._session, "principal", None)
        if isinstance(own, Principal):
            return own
        by_certificate = self._certificate.principal
        return by_certificate if by_certificate.is_authenticated else Principal(Kind.TOKEN, self._name)

    def process(self, payload: bytes) -> bytes:
        return self._session.process(payload)

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        self._certificate.secured(certificate)
        self._session.secured(certificate)
