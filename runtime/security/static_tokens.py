"""Static tokens: a file of `name:sha256` lines, which `bookgate token create` writes.

The file holds no secret that could be used, only SHA-256 of each token, in hex. It is read anew when it changes; one
that can't be used is logged once for each state of it, and the tokens known before stay. Two lines may have one name,
so that a new token stands beside the old for a while. `#` begins a comment.

A token is looked up by its hash and the hash compared in constant time: whoever measures learns about hashes that he
can't choose, nothing about tokens. One that was found is remembered while the file is the same: every call shows it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.clock import monotonic
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.watched_file import WatchedFile

_NAME = re.compile(r"[A-Za-z0-9._@/=-]{1,128}")
_NOBODY: tuple[bytes, Principal | None] = (bytes(32), None)
_HASH = re.compile(r"[0-9a-f]{64}")


class StaticTokens:
    """The tokens of a file. Raises IncorrectParameterException when it can't be used at first."""

    files: tuple[WatchedFile[Any], ...] = ()
    """Which they are of."""

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._file = WatchedFile(path, parse_tokens, "token file", clock)
        self.files = (self._file,)
        self._found: tuple[object, dict[str, Principal]] = (None, {})
        """By token, and the content of the file that they were found in."""

    @property
    def problem(self) -> str | None:
        """Why the file as it is now was refused; None: it counts."""
        return self._file.problem

    def principal(self, token: str) -> Principal | None:
        """Whose token it is; None: nobody's, also after another look at the file."""
        principal = self._find(token)
        return self._find(token) if principal is None and self._file.look_sooner() else principal

    def _find(self, token: str) -> Principal | None:
        tokens, (searched, found) = self._file.value, self._found
        if tokens is not searched:
            found = {}
            self._found = (tokens, found)
        principal = found.get(token)
        if principal is None:
            digest = _hash(token)
            known, principal = tokens.get(digest, _NOBODY)
            if principal is None or not hmac.compare_digest(digest, known):
                return None
            found[token] = principal
        return principal


def parse_tokens(text: str) -> dict[bytes, tuple[bytes, Principal | None]]:
    """Principals by the hash of their token. Raises IncorrectParameterException naming the line, never its hash."""
    tokens: dict[bytes, tuple[bytes, Principal | None]] = {}
    names: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, _, digest = line.rpartition(":")
        if not _NAME.fullmatch(name) or not _HASH.fullmatch(digest.lower()):
            raise IncorrectParameterException(
                f"line {number} is not NAME:SHA256 with 64 hex digits; `bookgate token create NAME` prints such a line"
            )
        key = bytes.fromhex(digest)
        if names.setdefault(key, name) != name:
            raise IncorrectParameterException(f"line {number}: the same token is {names[key]}'s already")
        tokens[key] = (key, Principal(Kind.TOKEN, name))
    return tokens


def new_token(name: str) -> tuple[str, str]:
    """A fresh token of 256 random bits, and its line for the file. Raises IncorrectParameterException."""
    token = "bkg_" + secrets.token_urlsafe(32)
    return token, token_line(name, token)


def token_line(name: str, token: str) -> str:
    """A token's line for the file. Raises IncorrectParameterException."""
    if not _NAME.fullmatch(name):
        raise IncorrectParameterException(f"token name {name!r}: it has 1 to 128 letters, digits and . _ @ / = -")
    return f"{name}:{_hash(token).hex()}"


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
