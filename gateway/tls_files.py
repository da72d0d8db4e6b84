"""Where a gateway's TLS certificates are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca` clients must show a certificate of these authorities."""

    cert: str
    key: str
    client_ca: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))
