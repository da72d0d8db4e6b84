"""A principal: who calls, as every door names it. Pure.

Written `kind:name`: `tls:CN=etl`, `token:spark`, `jwt:team-a`; `local` and `anonymous` have no name. Groups come from a
JWT's claim and are named `group:NAME` in policies. Principals of certificates get short names by mapping rules
(docs/protocol/security.md#principals), the first that fits:

    ["subject:CN=([^,]+),.* => \\1", "uri:spiffe://acme/(.*) => \\1"]

Not its job: proof of identity (`authenticators`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bookgate.ledger.errors import IncorrectParameterException


class Kind(StrEnum):
    """How a principal was authenticated. Metrics are counted by it: the set is small."""

    TLS = "tls"
    TOKEN = "token"
    JWT = "jwt"
    LOCAL = "local"
    ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. Equal principals share limits and own the same ledgers."""

    kind: Kind
    name: str = ""
    groups: frozenset[str] = frozenset()
    _text: str = field(default="", init=False, repr=False, compare=False)
    _hash: int = field(default=0, init=False, repr=False, compare=False)
    """Both are asked for several times a call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", f"{self.kind}:{self.name}" if self.name else str(self.kind))
        object.__setattr__(self, "_hash", hash((self._text, self.groups)))

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Principal], tuple[Kind, str, frozenset[str]]]:
        # Another process hashes otherwise.
        return Principal, (self.kind, self.name, self.groups)

    @property
    def is_authenticated(self) -> bool:
        """Whether somebody vouches for the name."""
        return self.kind not in (Kind.LOCAL, Kind.ANONYMOUS)

    @property
    def names(self) -> tuple[str, ...]:
        """What the patterns of a policy are compared with."""
        return (str(self), *sorted(f"group:{group}" for group in self.groups))


ANONYMOUS = Principal(Kind.ANONYMOUS)
LOCAL = Principal(Kind.LOCAL)
"""Somebody on the same machine, of a cluster without authentication."""


def parse_principal(text: str) -> Principal:
    """Reads `kind:name`. Raises IncorrectParameterException."""
    kind, _, name = text.partition(":")
    try:
        principal = Principal(Kind(kind), name)
    except ValueError:
        known = ", ".join(Kind)
        raise IncorrectParameterException(f"principal {text!r}: its kind is none of {known}") from None
    if principal.is_authenticated != bool(name):
        raise IncorrectParameterException(f"principal {text!r} is not kind:name, anonymous or local")
    return principal


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names that a certificate vouches for. `subject` is in RFC 2253's form, `CN=etl,O=Acme`."""

    subject: str
    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()

    def of_source(self, source: str) -> tuple[str, ...]:
        """`subject`, `uri` or `dns`."""
        return {"subject": (self.subject,), "uri": self.uris, "dns": self.dns}[source]


_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "domainComponent": "DC",
    "userId": "UID",
    "surname": "SN",
    "givenName": "GN",
}
_SPECIAL = re.compile(r'([,+"\\<>;])')


def names_of_certificate(certificate: Mapping[str, Any]) -> CertificateNames:
    """The names of a certificate as `ssl.SSLSocket.getpeercert` tells it."""
    parts = (
        "+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in reversed(part))
        for part in reversed(certificate.get("subject", ()))
    )
    alternatives = certificate.get("subjectAltName", ())
    return CertificateNames(
        ",".join(parts),
        tuple(value for kind, value in alternatives if kind == "URI"),
        tuple(value for kind, value in alternatives if kind == "DNS"),
    )


def _escaped(value: str) -> str:
    """As gRPC tells it, which has the bytes of control characters, and of all but ASCII, as two hexadecimal digits."""
    text = _SPECIAL.sub(r"\\\1", value)
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:02X}" for byte in text.encode())
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text


@dataclass(frozen=True, slots=True)
class MappingRule:
    """Makes a name of one that a certificate has: the whole of it must match."""

    source: str
    pattern: re.Pattern[str]
    name: str

    def apply(self, names: CertificateNames) -> str | None:
        """The name, None where the rule does not fit."""
        for candidate in names.of_source(self.source):
            if match := self.pattern.fullmatch(candidate):
                return match.expand(self.name)
        return None


def parse_mapping_rules(lines: Iterable[str]) -> tuple[MappingRule, ...]:
    """Reads `SOURCE:REGEX => NAME`. Raises IncorrectParameterException naming the rule and what is wrong."""
    return tuple(_parse_rule(line) for line in lines)


def _parse_rule(line: str) -> MappingRule:
    left, arrow, name = line.rpartition("=>")
    source, colon, expression = left.strip().partition(":")
    if not (arrow and colon and name.strip() and expression) or source not in ("subject", "uri", "dns"):
        raise IncorrectParameterException(
            f"principal rule {line!r} is not SOURCE:REGEX => NAME, where SOURCE is subject, uri or dns"
        )
    try:
        pattern = re.compile(expression)
        # Groups that the expression lacks are found now, not at the first certificate.
        re.compile(f"(?:{expression})|").fullmatch("").expand(name.strip())  # type: ignore[union-attr]
    except (re.error, IndexError) as error:
        raise IncorrectParameterException(f"principal rule {line!r}: {error}") from error
    return MappingRule(source, pattern, name.strip())


def principal_of_certificate(names: CertificateNames, rules: Sequence[MappingRule]) -> Principal | None:
    """The principal of a certificate: by the first rule that fits, else its subject. None: it has no name."""
    for rule in rules:
        if name := rule.apply(names):
            return Principal(Kind.TLS, name)
    return Principal(Kind.TLS, names.subject) if names.subject else None
