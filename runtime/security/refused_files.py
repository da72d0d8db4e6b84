"""Files of security that changed and can't be used: what was read before is still in force, and somebody must be told.

The log has the reason once; metrics, doctor and console show it until the file is right again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class FileKind(StrEnum):
    """Which file it is: `security_policy`, `security_tokens` or `security_jwt_keys`."""

    POLICY = "policy"
    TOKENS = "tokens"
    KEYS = "keys"


LABELS: Final = ("file",)
TEXT: Final = (
    "1: the file can't be used as it is now, and what was read before is in force; policy, tokens, or keys (of JWTs)"
)

RefusedFiles = Mapping[FileKind, str]
"""Why each was refused; those that count are not in it."""


def refused_samples(refused: RefusedFiles) -> list[tuple[str, int]]:
    """Each kind of file, 1 where it was refused; a file that is not configured is 0."""
    return [(str(kind), int(kind in refused)) for kind in FileKind]
