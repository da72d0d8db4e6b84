"""Parses `sqlite:///absolute/path`. No I/O."""

from __future__ import annotations

from bookgate.ledger.errors import IncorrectParameterException


def parse_sqlite(uri: str) -> str:
    """The database file's absolute path."""
    prefix = "sqlite://"
    path = uri.removeprefix(prefix)
    if not uri.startswith(prefix) or not path.startswith("/") or path.endswith("/"):
        raise IncorrectParameterException(
            f"metadata URI {uri!r} must name a database file by its absolute path: sqlite:///path/to/metadata.db"
        )
    return path
