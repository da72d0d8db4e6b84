"""Tokens that the servers of a test take: static ones, which are told by their names, and JSON Web Tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from bookgate.runtime.security.static_tokens import token_line

_KEY = ec.generate_private_key(ec.SECP256R1())


def token_of(name: str) -> str:
    return f"token-of-{name}"


def token_file(root: Path, names: Iterable[str]) -> Path:
    """With a token of each."""
    file = root / "tokens"
    file.write_text("\n".join(token_line(name, token_of(name)) for name in names))
    return file


def jwt_settings(root: Path) -> dict[str, str]:
    """Of a server that takes what `signed` makes."""
    keys = root / "keys.json"
    keys.write_text(json.dumps({"keys": [ECAlgorithm.to_jwk(_KEY.public_key(), as_dict=True)]}))
    return {"security_jwt_keys": str(keys), "security_jwt_issuer": "idp", "security_jwt_audience": "bookgate"}


def signed(**changes: Any) -> str:
    """A JSON Web Token. A claim that is None is left out."""
    claims = {"sub": "admin", "iss": "idp", "aud": "bookgate", "exp": int(time.time()) + 600} | changes
    return jwt.encode({key: value for key, value in claims.items() if value is not None}, _KEY, "ES256")
