"""Creates the factory for a metadata URI, with the settings of its store.

`bookgate.runtime.metadata_drivers` says which package serves which scheme. A driver's module may also have
`create_admin(uri, settings) -> ClusterAdmin`, for creating and removing clusters.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import cast

from bookgate.gateway.stores.cluster_admin import ClusterAdmin
from bookgate.gateway.stores.settings import DEFAULTS, StoreSettings
from bookgate.ledger.errors import IncorrectParameterException, LedgerExistException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.metadata_drivers import load_driver


def create_factory(uri: str, settings: StoreSettings = DEFAULTS) -> LedgerManagerFactory:
    """The factory for a URI, not yet connected. Raises IncorrectParameterException."""
    return load_driver(uri)(uri, settings)


async def ensure_cluster(uri: str, settings: StoreSettings = DEFAULTS) -> None:
    """Creates a cluster if there is none. Call it only on request: a store without a cluster is usually the wrong
    store.

    Raises IncorrectParameterException, MetaStoreException.
    """
    async with create_admin(uri, settings) as admin:
        with contextlib.suppress(LedgerExistException):
            await admin.initialize()


def create_admin(uri: str, settings: StoreSettings = DEFAULTS) -> ClusterAdmin:
    """The administration of the cluster that a URI names, not yet connected. Raises IncorrectParameterException."""
    module = importlib.import_module(load_driver(uri).__module__)
    create = getattr(module, "create_admin", None)
    if create is None:
        raise IncorrectParameterException(f"metadata URI {uri!r}: clusters in this store are not made or removed here")
    return cast(ClusterAdmin, create(uri, settings))
