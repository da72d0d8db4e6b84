"""Certificates of an authority that was made for the run."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

authority = trustme.CA()
stranger = trustme.CA()


class Files:
    """Certificate, key and authority of a bookie in a directory."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "server.pem"
        self.key = directory / "server.key"
        self.authority = directory / "ca.pem"
        self.tokens = directory / "tokens"
        authority.cert_pem.write_to_path(self.authority)
        self.tokens.write_text("open sesame\n")
        self.issue(authority)

    def issue(self, by: trustme.CA) -> None:
        certificate = by.issue_cert("127.0.0.1", "localhost")
        certificate.private_key_pem.write_to_path(self.key)
        certificate.cert_chain_pems[0].write_to_path(self.certificate)

    @property
    def tls(self) -> dict[str, object]:
        return {"tls_cert": self.certificate, "tls_key": self.key}


def client_context(ca: trustme.CA = authority, *, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if identity is not None:
        identity.configure_cert(context)
    return context
