"""Metadata drivers: from the scheme of a metadata URI to the package that speaks to that store.

Drivers are found in the entry-point group `bookgate.metadata_drivers`, so another store is another package, and nobody
who does not use a store needs its library. A driver is a function `create_factory(uri, settings) ->
LedgerManagerFactory` that does no I/O yet (`initialize` does); without settings it takes its own defaults.
"""

from __future__ import annotations

import importlib
import re
from importlib.metadata import entry_points
from typing import Protocol, cast

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata_store import LedgerManagerFactory

GROUP = "bookgate.metadata_drivers"

_EXTRA_OF_MODULE = {"kazoo": "zookeeper"}


class Driver(Protocol):
    """What an entry point of the group gives."""

    __module__: str

    def __call__(self, uri: str, settings: object = ...) -> LedgerManagerFactory:
        """Raises IncorrectParameterException for a URI that is not one of this store."""


def scheme_of(uri: str) -> str:
    """The part before `+` or `:`, in lower case. Raises IncorrectParameterException where there is none."""
    match = re.match(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+[^:]*)?:", uri)
    if not match:
        raise IncorrectParameterException(
            f"metadata URI {uri!r} has no scheme; write for example sqlite:///var/lib/bookgate/metadata.db "
            "or zk+hierarchical://host:2181/ledgers"
        )
    return match.group(1).lower()


def load_driver(uri: str) -> Driver:
    """The driver of a URI's scheme. Raises IncorrectParameterException that says what to install."""
    scheme = scheme_of(uri)
    drivers = _drivers()
    target = drivers.get(scheme)
    if target is None:
        raise IncorrectParameterException(
            f"metadata URI {uri!r}: no driver for scheme {scheme!r}; installed are {', '.join(sorted(drivers))}"
        )
    return _load(scheme, target)


def _drivers() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}


def _load(scheme: str, target: str) -> Driver:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        extra = _EXTRA_OF_MODULE.get(missing)
        advice = f"install it with: pip install 'bookgate[{extra}]'" if extra else "install the package that has it"
        raise IncorrectParameterException(
            f"the driver for {scheme} metadata needs the Python module {missing!r}, which is not installed; {advice}"
        ) from error
    return cast(Driver, getattr(module, attribute))
