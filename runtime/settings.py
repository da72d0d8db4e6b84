"""What the settings of bookie, gateway and client share: rules over several keys, and detection of unknown names.

Pure: each package's own configuration reads the values (files, environment, options).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self, TypeVar, cast, get_args

from pydantic import BaseModel, SecretStr, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

AnySettings = TypeVar("AnySettings", bound=BaseSettings)

SECRET: Final = "secret"
"""In the annotation of a key whose value is never shown, and that can't be a SecretStr."""


@dataclass(frozen=True, slots=True)
class TableOf:
    """In the annotation of a key that holds a table: whose settings these are."""

    settings: type[BaseModel]


def from_arguments_only(settings: type[AnySettings]) -> type[AnySettings]:
    """The same settings from nothing but arguments: where the other sources have been gathered already."""

    def only_arguments(
        _class: type[BaseSettings],
        /,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        **_others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    own = {"settings_customise_sources": classmethod(only_arguments), "__module__": settings.__module__}
    return cast("type[AnySettings]", type(settings.__name__, (settings,), own))


def secret_keys(settings: type[BaseModel]) -> frozenset[str]:
    """The keys whose values are never shown, those of its tables included."""
    found = {key for key, field in settings.model_fields.items() if _is_secret(field)}
    for field in settings.model_fields.values():
        for each in field.metadata:
            found |= secret_keys(each.settings) if isinstance(each, TableOf) else set()
    return frozenset(found)


def _is_secret(field: FieldInfo) -> bool:
    return SECRET in field.metadata or SecretStr in (field.annotation, *get_args(field.annotation))


class ContradictionError(ValueError):
    """Values that are valid individually but contradict each other; each problem names the keys and a way to fix it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class ConsistentSettings(BaseModel):
    """Settings with rules over several keys; validation reports all violations at once."""

    def contradictions(self) -> Iterator[str]:
        """Yields one sentence per violation. Overrides must yield from `super()` first, so that several such models can
        be combined.
        """
        yield from ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = tuple(self.contradictions())
        if problems:
            raise ContradictionError(problems)
        return self


def nearest_key(name: str, valid: Collection[str]) -> str | None:
    """The valid key closest to `name`: `journal_directories` for `journalDirectories`, `port` for `prot`."""
    by_form = {_form(key): key for key in sorted(valid)}
    found = difflib.get_close_matches(_form(name), by_form, 1, 0.7)
    return by_form[found[0]] if found else None


def unknown_key(name: str, valid: Collection[str]) -> str:
    """The error message for an unknown key."""
    meant = nearest_key(name, valid)
    return f"there is no such key; did you mean {meant}?" if meant else "there is no such key"


def unknown_variables(environment: Iterable[str], prefix: str, valid: Collection[str]) -> list[str]:
    """Problems, sorted, with environment variables that begin with `prefix` but match no key."""
    strangers = [
        name for name in environment if name.upper().startswith(prefix) and not _stands_for(name, prefix, valid)
    ]
    return [f"{name}: {_unknown_variable(name, prefix, valid)}" for name in sorted(strangers)]


def _stands_for(name: str, prefix: str, valid: Collection[str]) -> bool:
    return name[len(prefix) :].lower() in valid


def _unknown_variable(name: str, prefix: str, valid: Collection[str]) -> str:
    meant = nearest_key(name[len(prefix) :], valid)
    suggestion = f"did you mean {prefix}{meant.upper()}?" if meant else "unset it"
    return f"no setting has this environment variable; {suggestion}"


def _form(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
