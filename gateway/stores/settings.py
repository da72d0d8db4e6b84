"""Settings of a metadata store beyond its URI, which become part of the gateway's configuration.

The model of a store's settings is an entry point of the group `bookgate.metadata_settings`. Its name is the first word
of every key: `zookeeper = …` has `zookeeper_tls`, `zookeeper_auth`. Thus no two stores, and no store and the gateway,
use one key for different things. The keys of all installed stores are known, whichever store is used, so a settings
file is valid wherever the same packages are installed. For this reason the model's module must not need the store's
library.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from pydantic import create_model

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings import ConsistentSettings

GROUP = "bookgate.metadata_settings"


class StoreSettings(ConsistentSettings):
    """The base of each store's settings.

    A configuration inherits from the models of all stores; each driver takes its own part with `of`.
    """

    def of(self, kind: type[_Kind]) -> _Kind:
        """The part of these settings that belongs to one store; its defaults if they do not include it."""
        return self if isinstance(self, kind) else kind()


_Kind = TypeVar("_Kind", bound=StoreSettings)

DEFAULTS = StoreSettings()


def settings_of_all_stores(points: Iterable[EntryPoint] | None = None) -> type[StoreSettings]:
    """One model with the keys of every installed store.

    Raises IncorrectParameterException, which names the entry point that can't be used.
    """
    found = entry_points(group=GROUP) if points is None else points
    models = {point.name: _model_of(point) for point in found}
    return create_model("SettingsOfAllStores", __base__=(*(models[name] for name in sorted(models)), StoreSettings))


def _model_of(point: EntryPoint) -> type[StoreSettings]:
    where = f"the settings of the metadata store {point.name} ({point.value})"
    try:
        model = point.load()
    except (ImportError, AttributeError) as error:
        raise IncorrectParameterException(f"{where} can't be loaded: {error}; repair or remove its package") from error
    if not (isinstance(model, type) and issubclass(model, StoreSettings)):
        raise IncorrectParameterException(f"{where} are no StoreSettings (bookgate.gateway.stores.settings)")
    unprefixed = [key for key in model.model_fields if not key.startswith(f"{point.name}_")]
    if unprefixed:
        raise IncorrectParameterException(f"{where}: {', '.join(unprefixed)} must begin with {point.name}_")
    return model
