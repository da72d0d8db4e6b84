"""The settings of security: one definition, which gateway and bookie take over with their own prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.principal import parse_mapping_rules
from bookgate.runtime.settings import ConsistentSettings

_JWT_KEYS = {
    "security_jwt_issuer": "a token that another signs with the same keys would do here",
    "security_jwt_audience": "a token that was made for another service would do here",
}
"""What goes with the keys, and what would be without."""


class SecuritySettings(ConsistentSettings):
    """A model to inherit from. Without any of these nobody is authenticated and everything is allowed."""

    security_policy: Path | None = Field(
        default=None, description="TOML file that says who may do what; without one whoever is authenticated may do all"
    )
    security_tokens: Path | None = Field(
        default=None, description="file of NAME:SHA256 lines, the static tokens; `bookgate token create` makes them"
    )
    security_jwt_keys: str | None = Field(
        default=None, description="JSON Web Tokens: file, or https:// URL, of the key set (JWKS) that signs them"
    )
    security_jwt_issuer: str | None = Field(default=None, min_length=1, description="their claim iss must be this")
    security_jwt_audience: str | None = Field(default=None, min_length=1, description="their claim aud must have this")
    security_jwt_name_claim: str = Field(default="sub", min_length=1, description="their claim that names who it is")
    security_jwt_groups_claim: str = Field(
        default="groups", min_length=1, description="their claim that lists the principal's groups"
    )
    security_principal_rules: list[str] = Field(
        default_factory=list,
        description="names of certificates' principals: SOURCE:REGEX => NAME, the first that fits; "
        "SOURCE is subject, uri or dns; default: the subject",
    )
    insecure: bool = Field(
        default=False,
        description="serve other machines although nobody is authenticated; without it such a server does not start",
    )
    audit_file: Path | None = Field(
        default=None, description="file of the audit trail, beside the log; a JSON object a line"
    )
    audit_file_bytes: int = Field(default=64 * 1024 * 1024, ge=4096, description="a longer audit file begins anew")
    audit_files: int = Field(default=8, ge=1, le=1000, description="audit files that are kept, the present one too")
    audit_reads: bool = Field(default=False, description="the audit trail has calls that read, too")

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        try:
            parse_mapping_rules(self.security_principal_rules)
        except IncorrectParameterException as error:
            yield f"security_principal_rules: {error}"
        for key, reason in _JWT_KEYS.items():
            if self.security_jwt_keys is None and getattr(self, key) is not None:
                yield f"{key} has no effect without security_jwt_keys; set that too"
            elif self.security_jwt_keys is not None and getattr(self, key) is None:
                yield f"security_jwt_keys needs {key}: {reason}"
        if (keys := self.security_jwt_keys) and "://" in keys and not keys.lower().startswith("https://"):
            yield "security_jwt_keys is neither a file nor an https:// URL"

    @property
    def authenticates_tokens(self) -> bool:
        """Whether bearers of tokens can be told."""
        return self.security_tokens is not None or self.security_jwt_keys is not None

    @property
    def has_security(self) -> bool:
        """Whether principals are asked for anything at all."""
        return self.security_policy is not None or self.authenticates_tokens
