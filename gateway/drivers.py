"""From a metadata URI to the factory that serves it.

Drivers are found by scheme in the entry-point group `bookgate.metadata_drivers`, so another store is another package.
Run from a source tree, where no distribution declares the group, the built-in drivers stand in. A driver is a function
`create_factory(uri, settings) -> LedgerManagerFactory` that does no I/O yet: `initialize` does. The same module may
have `create_admin(uri, settings) -> ClusterAdmin`, for making and removing clusters.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from gateway.cluster_admin import ClusterAdmin
from gateway.metadata_uri import scheme_of
from gateway.store_settings import DEFAULTS, StoreSettings
from ledger.errors import IncorrectParameterException
from ledger.manager import LedgerManagerFactory

GROUP = "bookgate.metadata_drivers"

_BUILT_IN = {
    "grpc": "thinclient.metadata:create_factory",
    "grpcs": "thinclient.metadata:create_factory",
    "sqlite": "gateway.embedded.factory:create_factory",
    "zk": "gateway.zookeeper.factory:create_factory",
}

_EXTRA_OF_MODULE = {"kazoo": "zookeeper"}

Driver = Callable[[str, StoreSettings], LedgerManagerFactory]


def create_factory(uri: str, settings: StoreSettings = DEFAULTS) -> LedgerManagerFactory:
    """The factory of a URI's scheme, not yet connected. Raises IncorrectParameterException."""
    return _driver(uri)(uri, settings)


def create_admin(uri: str, settings: StoreSettings = DEFAULTS) -> ClusterAdmin:
    """The administration of the cluster that a URI names, not yet connected. Raises IncorrectParameterException."""
    module = importlib.import_module(_driver(uri).__module__)
    create = getattr(module, "create_admin", None)
    if create is None:
        raise IncorrectParameterException(f"metadata URI {uri!r}: clusters in this store are not made or removed here")
    return cast(ClusterAdmin, create(uri, settings))


def _driver(uri: str) -> Driver:
    scheme = scheme_of(uri)
    drivers = _drivers()
    target = drivers.get(scheme)
    if target is None:
        raise IncorrectParameterException(
            f"metadata URI {uri!r}: no driver for scheme {scheme!r}; installed are {', '.join(sorted(drivers))}"
        )
    return _load(scheme, target)


def _drivers() -> dict[str, str]:
    found: dict[str, str] = dict(_BUILT_IN)
    point: EntryPoint
    for point in entry_points(group=GROUP):
        found[point.name] = point.value
    return found


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
