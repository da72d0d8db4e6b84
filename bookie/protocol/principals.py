"""Authentication at the entry port where principals count: by certificate, by a token in AUTH, or by another provider.

The plugin's name on the wire is that of tokens, so a client shows a static token or a JWT as it shows the token of
`bookgate-token`. Where the settings name another provider, that one decides who is let in, and its session says who it
is in an attribute `principal`; one that has none is known by its certificate, else as `token:` and the provider's name.

Without AUTH a connection is that of its certificate, of this machine (`local`) where nobody can be authenticated, or
anonymous; the last is let in only where the policy names `anonymous`.

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
    """See the module. `other`: the provider that the settings name."""

    def __init__(self, access: AccessControl, other: BookieAuthProvider | None = None) -> None:
        self._access = access
        self._other = other
        self.name = TOKEN if other is None else other.name

    def new_session(self, peer: str) -> AuthSession:
        """A session for a fresh connection."""
        if self._other is not None:
            return _OtherSession(self._access, self._other.new_session(peer), self.name, peer)
        return PrincipalSession(self._access, peer)


class PrincipalSession:
    """One connection's, by tokens and certificates. `principal` may become another with each AUTH."""

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
        """As the provider has it, else by the certificate, else by the provider's name."""
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
