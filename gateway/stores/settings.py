"""What metadata stores are told beyond their URI: keys of their own, which the gateway's configuration takes over.

The model of a store's keys is an entry point of the group `bookgate.metadata_settings`. Its name is the first word of
every key: `zookeeper = …` has `zookeeper_tls`, `zookeeper_auth`. So no two stores, nor a store and the gateway, mean
different things by one key. All that are installed are known, whichever store is used: a file of settings holds
wherever the same packages are. So the module of a model needs nothing of its store's library.
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
    """The settings of no store in particular; a store that has keys inherits from it.

    A configuration inherits from the models of all stores, and each driver takes its own part by `of`.
    """

    def of(self, kind: type[_Kind]) -> _Kind:
        """These settings as those of one store; its defaults where they are not."""
        return self if isinstance(self, kind) else kind()


_Kind = TypeVar("_Kind", bound=StoreSettings)

DEFAULTS = StoreSettings()


def settings_of_all_stores(points: Iterable[EntryPoint] | None = None) -> type[StoreSettings]:
    """One model with the keys of every store that is installed.

    Raises IncorrectParameterException that names the entry point which is of no use.
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
    strangers = [key for key in model.model_fields if not key.startswith(f"{point.name}_")]
    if strangers:
        raise IncorrectParameterException(f"{where}: {', '.join(strangers)} must begin with {point.name}_")
    return model
