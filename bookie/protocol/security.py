"""Security of the entry port: the objects, created from the settings, that every connection uses."""

from __future__ import annotations

from dataclasses import dataclass

from bookgate.bookie.protocol.auth_gate import Gate
from bookgate.bookie.protocol.authentication import BookieAuthProvider
from bookgate.runtime.tls.server_context import ServerContexts


@dataclass(frozen=True, slots=True)
class Security:
    """By default without TLS and authentication. With `tls_required` nothing is served in clear text."""

    certificates: ServerContexts | None = None
    tls_required: bool = False
    provider: BookieAuthProvider | None = None
    handshake_seconds: float = 10.0
    """Seconds that a connection may take to authenticate and complete its TLS handshake."""

    def new_gate(self, peer: str) -> Gate | None:
        """A gate for a new connection; None if every client is accepted."""
        if self.provider is None:
            return Gate(None, None, tls_required=True) if self.tls_required else None
        return Gate(self.provider.new_session(peer), self.provider.name, tls_required=self.tls_required)


OPEN = Security()
