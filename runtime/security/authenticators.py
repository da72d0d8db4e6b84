"""Authentication, the same at every door: what a caller shows becomes a principal, or is refused.

    a bearer token: `authorization: Bearer …`,   a static token's, else a JWT's; refused when it is neither
    or the payload of AUTH
    a client certificate, which TLS verified     by the mapping rules, else its subject
    nothing                                      `local` from this machine where nobody can be authenticated,
                                                 else `anonymous`

A token goes before a certificate: a proxy's certificate does not lend its name to whoever it passes on. What was
refused is said to the caller in general words, to the log in particular ones, and never with anything of the token.

Not its job: what the principal may do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookgate.runtime.security.principal import (
    ANONYMOUS,
    LOCAL,
    CertificateNames,
    MappingRule,
    Principal,
    names_of_certificate,
    parse_mapping_rules,
    principal_of_certificate,
)
from bookgate.runtime.security.refused_files import FileKind, RefusedFiles
from bookgate.runtime.security.settings import SecuritySettings
from bookgate.runtime.security.static_tokens import StaticTokens
from bookgate.runtime.security.watched_file import WatchedFile

if TYPE_CHECKING:
    from bookgate.runtime.security.jwt import JwtVerifier

_SCHEME = "bearer "


class NotAuthenticatedException(Exception):
    """What a caller has shown is not taken. The message is for the server's log; callers are told `PUBLIC`."""

    PUBLIC = "the credentials are missing or not taken here"


class Authenticators:
    """All ways to authenticate that a process has."""

    def __init__(
        self,
        tokens: StaticTokens | None = None,
        jwts: JwtVerifier | None = None,
        rules: Sequence[MappingRule] = (),
        *,
        certificates: bool = False,
    ) -> None:
        """`certificates`: this process demands client certificates somewhere, so that nobody is just `local`."""
        self._tokens = tokens
        self._jwts = jwts
        self._rules = rules
        self._none = tokens is None and jwts is None and not certificates
        self.files: tuple[WatchedFile[Any], ...] = () if tokens is None else tokens.files
        """By which tokens are told whose principal never changes while the file is the same."""

    @classmethod
    def from_settings(cls, settings: SecuritySettings, *, certificates: bool = False) -> Authenticators:
        """Raises IncorrectParameterException for files that can't be used, and for a missing extra."""
        tokens = StaticTokens(settings.security_tokens) if settings.security_tokens else None
        rules = parse_mapping_rules(settings.security_principal_rules)
        return cls(tokens, _jwts(settings), rules, certificates=certificates)

    @property
    def refused_files(self) -> RefusedFiles:
        """Of its files those that can't be used as they are now."""
        sources = {FileKind.TOKENS: self._tokens, FileKind.KEYS: self._jwts}
        return {
            kind: problem
            for kind, each in sources.items()
            if each is not None and (problem := each.problem) is not None
        }

    def authenticate(
        self, *, bearer: str | None = None, certificate: CertificateNames | None = None, loopback: bool = False
    ) -> Principal:
        """Who calls. `bearer` is the token alone. Raises NotAuthenticatedException."""
        if bearer is not None:
            return self._of_token(bearer)
        if certificate is not None:
            principal = principal_of_certificate(certificate, self._rules)
            if principal is not None:
                return principal
        return LOCAL if self._none and loopback else ANONYMOUS

    def authenticate_peer(self, certificate: Mapping[str, Any] | None, *, loopback: bool) -> Principal:
        """The same for a certificate as `ssl.SSLSocket.getpeercert` tells it, and no token."""
        names = names_of_certificate(certificate) if certificate else None
        return self.authenticate(certificate=names, loopback=loopback)

    def _of_token(self, token: str) -> Principal:
        if self._tokens is not None and (principal := self._tokens.principal(token)) is not None:
            return principal
        if self._jwts is None:
            raise NotAuthenticatedException("a token that is not known")
        from bookgate.runtime.security.jwt import TokenRefused

        try:
            return self._jwts.principal(token)
        except TokenRefused as error:
            raise NotAuthenticatedException(f"a token was refused: {error}") from error


def _jwts(settings: SecuritySettings) -> JwtVerifier | None:
    if settings.security_jwt_keys is None:
        return None
    # The extra is needed by those only who have JWTs.
    from bookgate.runtime.security.jwt import FileKeys, JwtRules, JwtVerifier, UrlKeys

    where = settings.security_jwt_keys
    assert settings.security_jwt_issuer is not None, "set wherever keys are"
    assert settings.security_jwt_audience is not None, "set wherever keys are"
    source = UrlKeys(where) if "://" in where else FileKeys(Path(where))
    rules = JwtRules(
        settings.security_jwt_issuer,
        settings.security_jwt_audience,
        settings.security_jwt_name_claim,
        settings.security_jwt_groups_claim,
    )
    return JwtVerifier(source, rules)


def bearer_of(header: str | None) -> str | None:
    """The token of an `authorization` header; None without one, and for another scheme."""
    if header is None or header[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return header[len(_SCHEME) :].strip()


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; a name is not looked up."""
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
