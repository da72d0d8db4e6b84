"""Metadata drivers: maps the scheme of a metadata URI to the package that implements that store.

Drivers are found in the entry-point group `bookgate.metadata_drivers`, so another store is another package, and a
store's library is needed only where the store is used. A driver is a function `create_factory(uri, settings) ->
LedgerManagerFactory` that does no I/O yet (`initialize` does); without settings it uses its own defaults. An entry
point whose driver needs an extra of its package names the extra in brackets.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata_store import LedgerManagerFactory

GROUP = "bookgate.metadata_drivers"


class Driver(Protocol):
    """The function that an entry point of the group names."""

    __module__: str

    def __call__(self, uri: str, settings: object = ...) -> LedgerManagerFactory:
        """Creates the factory. Raises IncorrectParameterException for a URI that is invalid for this store."""


def scheme_of(uri: str) -> str:
    """The part before `+` or `:`, in lower case. Raises IncorrectParameterException if the URI has no scheme."""
    match = re.match(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+[^:]*)?:", uri)
    if not match:
        raise IncorrectParameterException(
            f"metadata URI {uri!r} has no scheme; write for example sqlite:///var/lib/bookgate/metadata.db "
            "or zk+hierarchical://host:2181/ledgers"
        )
    return match.group(1).lower()


def installed_schemes() -> list[str]:
    """The schemes that a metadata URI may have here, ordered."""
    return sorted(entry_points(group=GROUP).names)


def load_driver(uri: str) -> Driver:
    """The driver of a URI's scheme. Raises IncorrectParameterException, which says what to install."""
    scheme = scheme_of(uri)
    found = entry_points(group=GROUP, name=scheme)
    if not found:
        raise IncorrectParameterException(
            f"metadata URI {uri!r}: no driver for scheme {scheme!r}; installed are {', '.join(installed_schemes())}"
        )
    return _load(next(iter(found)))


def _load(point: EntryPoint) -> Driver:
    try:
        return cast(Driver, point.load())
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        raise IncorrectParameterException(
            f"the driver for {point.name} metadata needs the Python module {missing!r}, which is not installed; "
            f"{_advice(point)}"
        ) from error


def _advice(point: EntryPoint) -> str:
    if not point.extras or point.dist is None:
        return "install the package that has it"
    return f"install it with: pip install '{point.dist.name}[{','.join(point.extras)}]'"
