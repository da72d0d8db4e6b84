"""The version of this software, as reported over HTTP and compared by the doctor."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    """`bookgate/1.2.3`, or `bookgate/source` for a source tree that is not installed."""
    try:
        return f"bookgate/{version('bookgate')}"
    except PackageNotFoundError:
        return "bookgate/source"
