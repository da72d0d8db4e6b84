"""What is told of a ledger's password to those who may not have it: enough to tell a wrong one.

Source: docs/protocol/security.md#withheld-passwords.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """A salt, and HMAC-SHA-256 of the password with the salt as key."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: bytes, salt: bytes) -> PasswordCheck:
        return cls(salt, hmac.digest(salt, password, hashlib.sha256))

    def matches(self, password: bytes) -> bool:
        """Whether this is the password."""
        return hmac.compare_digest(self.digest, hmac.digest(self.salt, password, hashlib.sha256))
