"""Names of principals, of certificates, and the mapping rules between them."""

from __future__ import annotations

import pytest

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.principal import (
    ANONYMOUS,
    CertificateNames,
    Kind,
    Principal,
    names_of_certificate,
    parse_mapping_rules,
    parse_principal,
    principal_of_certificate,
)

CERTIFICATE = {
    "subject": ((("countryName", "DE"),), (("organizationName", "Acme, Inc."),), (("commonName", "etl"),)),
    "subjectAltName": (("URI", "spiffe://acme/ns/data/etl"), ("DNS", "etl.acme"), ("IP Address", "10.0.0.1")),
}


def test_names_of_a_certificate() -> None:
    names = names_of_certificate(CERTIFICATE)
    assert names == CertificateNames("CN=etl,O=Acme\\, Inc.,C=DE", ("spiffe://acme/ns/data/etl",), ("etl.acme",))


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ([], "CN=etl,O=Acme\\, Inc.,C=DE"),
        (["subject:CN=([^,]+),.* => \\1"], "etl"),
        (["dns:nothing => x", "uri:spiffe://acme/ns/(.*)/(.*) => \\1/\\2"], "data/etl"),
        (["dns:etl => no-part-is-enough"], "CN=etl,O=Acme\\, Inc.,C=DE"),
    ],
)
def test_maps_names(rules: list[str], name: str) -> None:
    names = names_of_certificate(CERTIFICATE)
    assert principal_of_certificate(names, parse_mapping_rules(rules)) == Principal(Kind.TLS, name)


@pytest.mark.parametrize("rule", ["CN=x", "subject:(=> x", "subject:a => \\1", "mail:a => b", "subject:a =>", "a => b"])
def test_refuses_rules(rule: str) -> None:
    with pytest.raises(IncorrectParameterException, match="principal rule"):
        parse_mapping_rules([rule])


def test_reads_what_it_writes() -> None:
    for principal in (ANONYMOUS, Principal(Kind.TLS, "CN=a:b"), Principal(Kind.JWT, "team-a")):
        assert parse_principal(str(principal)) == principal
    for text in ("", "bob", "token", "token:", "anonymous:x", "spy:x"):
        with pytest.raises(IncorrectParameterException):
            parse_principal(text)
