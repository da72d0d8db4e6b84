"""A private authority and its certificates, as PEM. Keys are EC P-256, certificates are valid for a year."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 365
_AUTHORITY_DAYS = 10 * 365


class Authority:
    """A new authority, or the one in the given files. With its key alone it gets a certificate anew."""

    def __init__(self, certificate: bytes | None = None, key: bytes | None = None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1()) if key is None else _loaded(key)
        if certificate is not None and key is not None:
            self._certificate = x509.load_pem_x509_certificate(certificate)
            return
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bookgate trial authority")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            _builder(name, name, self._key.public_key(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        return _key_text(self._key)

    def issue(self, name: str, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Certificate and key for `CN=name`, valid for a server at these hosts and for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(subject, self._certificate.subject, key.public_key(), _DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer_key, critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(each) for each in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _key_text(key)


def _loaded(key: bytes) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key, None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not one that this command made")
    return loaded


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
