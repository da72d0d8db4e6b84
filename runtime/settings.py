"""The common part of all settings: rules over several keys, former names of keys, detection of unknown names.

Pure: `settings_loader` reads the values (files, environment, options).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

MOST_SECONDS: Final = 1_000_000_000
"""Limit of every setting in seconds. Waits of threads end with an error above some 9,000,000,000, and for NaN."""

SECRET: Final = "secret"
"""Annotation of a key whose value is never shown, and that can't be a SecretStr."""


@dataclass(frozen=True, slots=True)
class TableOf:
    """Annotation of a key that holds a table: the class of the settings in it."""

    settings: type[BaseModel]


@dataclass(frozen=True, slots=True)
class Renamed:
    """The present name of a former key. `per_unit`: how many of the former key's units are one of the present key's."""

    key: str
    per_unit: int = 1

    def convert(self, value: Any) -> Any:
        """The value in the present unit; a value that is not a number stays, and validation rejects it."""
        try:
            return value if self.per_unit == 1 else float(value) / self.per_unit
        except (TypeError, ValueError):
            return value


@dataclass(frozen=True, slots=True)
class FormerName:
    """A former name that was used, and its present one. `doubled`: the present one was also given at the same place."""

    name: str
    key: str
    doubled: bool
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        what = "is the same setting as" if self.doubled else "is now called"
        return f"{self.name}{where} {what} {self.key}{'; give that alone' if self.doubled else ''}"


def with_unit(suffix: str, *keys: str) -> dict[str, Renamed]:
    """For a table of renames: keys whose names got the unit as a suffix."""
    return {key: Renamed(key + suffix) for key in keys}


def renamed_keys(settings: type[BaseModel]) -> Mapping[str, Renamed]:
    """The former keys of a settings class: the RENAMED tables of all its classes."""
    return {name: to for each in settings.__mro__ for name, to in vars(each).get("RENAMED", {}).items()}


def with_present_names(
    settings: type[BaseModel], content: Mapping[str, Any]
) -> tuple[dict[str, Any], list[FormerName]]:
    """The values under the present names, also in tables, and the former names that were found."""
    renamed = renamed_keys(settings)
    found = [FormerName(name, renamed[name].key, renamed[name].key in content) for name in content if name in renamed]
    present: dict[str, Any] = {}
    for name, value in content.items():
        if name not in renamed:
            present[name] = value
        elif renamed[name].key not in content:
            present[renamed[name].key] = renamed[name].convert(value)
    for table, inner in tables_of(settings).items():
        if isinstance(present.get(table), Mapping):
            present[table], names = with_present_names(inner, present[table])
            found += [FormerName(f"{table}.{each.name}", f"{table}.{each.key}", each.doubled) for each in names]
    return present, found


def tables_of(settings: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The keys that hold tables of other settings, with the class of these."""
    fields = settings.model_fields.items()
    return {key: each.settings for key, field in fields for each in field.metadata if isinstance(each, TableOf)}


_ONLY_ARGUMENTS = ContextVar("_ONLY_ARGUMENTS", default=False)


@contextmanager
def only_arguments() -> Iterator[None]:
    """Settings created inside use only arguments as source: the other sources have been read already."""
    token = _ONLY_ARGUMENTS.set(True)
    try:
        yield
    finally:
        _ONLY_ARGUMENTS.reset(token)


def arguments_only() -> bool:
    """Whether this is inside `only_arguments`."""
    return _ONLY_ARGUMENTS.get()


def secret_keys(settings: type[BaseModel]) -> frozenset[str]:
    """The keys whose values are never shown, including those of tables."""
    found = {key for key, field in settings.model_fields.items() if _is_secret(field)}
    return frozenset(found.union(*map(secret_keys, tables_of(settings).values())))


def _is_secret(field: FieldInfo) -> bool:
    return SECRET in field.metadata or SecretStr in (field.annotation, *get_args(field.annotation))


def _is_path(field: FieldInfo, *, in_list: bool) -> bool:
    """Whether a setting is a path, or with `in_list` a list of paths."""
    is_list = get_origin(field.annotation) in (list, tuple)
    return is_list == in_list and Path in (field.annotation, *get_args(field.annotation))


class ContradictionError(ValueError):
    """Values that are valid individually but contradict each other; each problem names the keys and a way to fix it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class ConsistentSettings(BaseModel):
    """Settings with rules over several keys; validation reports all violations at once."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_empty_path(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses an empty text, which would become the current directory, as a path and as an item of a list of paths.

        A list of directories as one text may be empty: it has no items.
        """
        paths = value if isinstance(value, list | tuple) else (value,)
        if "" in paths and _is_path(cls.model_fields[str(info.field_name)], in_list=paths is value):
            raise ValueError("it is empty, which is no path; give one, or remove the setting from there")
        return value

    def contradictions(self) -> Iterator[str]:
        """Yields one sentence per violation.

        Overrides must yield from `super()` first, so that several such models can be combined.
        """
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name.endswith("_seconds") and isinstance(value, int | float) and not value <= MOST_SECONDS:
                yield f"{name} is {value}; give at most {MOST_SECONDS:,} (31 years)"

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = tuple(self.contradictions())
        if problems:
            raise ContradictionError(problems)
        return self


_MISSPELT = 0.87
"""Of 1: a letter or two in a key are wrong."""


def nearest_key(name: str, valid: Collection[str], similarity: float = 0.7) -> str | None:
    """The valid key closest to `name`: `journal_directories` for `journalDirectories`, `port` for `prot`."""
    by_form = {_form(key): key for key in sorted(valid)}
    found = difflib.get_close_matches(_form(name), by_form, 1, similarity)
    return by_form[found[0]] if found else None


def unknown_key(name: str, settings: type[BaseModel]) -> str:
    """The error message for an unknown key."""
    meant = _meant(name, settings)
    return f"there is no such key; did you mean {meant}?" if meant else "there is no such key"


def unknown_variables(environment: Iterable[str], prefix: str, settings: type[BaseModel]) -> list[tuple[str, str]]:
    """Environment variables, sorted, that begin with `prefix` but match no key, each with a message."""
    known = {*settings.model_fields, *renamed_keys(settings)}
    unknown = [
        name for name in environment if name.upper().startswith(prefix) and name[len(prefix) :].lower() not in known
    ]
    return [(name, _unknown_variable(name, prefix, settings)) for name in sorted(unknown)]


def misspelt_variables(
    environment: Iterable[str], prefix: str, settings: type[BaseModel], of_others: tuple[str, ...]
) -> list[tuple[str, str]]:
    """As `unknown_variables` for a prefix that other programs use too: only those that are all but a key. Names that
    begin with one of `of_others` behind the prefix are theirs.
    """
    known = {*settings.model_fields, *renamed_keys(settings)}
    return [
        (name, message)
        for name, message in unknown_variables(environment, prefix, settings)
        if not name[len(prefix) :].upper().startswith(of_others)
        and nearest_key(name[len(prefix) :], known, _MISSPELT) is not None
    ]


def _unknown_variable(name: str, prefix: str, settings: type[BaseModel]) -> str:
    meant = _meant(name[len(prefix) :], settings)
    suggestion = f"did you mean {prefix}{meant.upper()}?" if meant else "unset it"
    return f"no setting has this environment variable; {suggestion}"


def _meant(name: str, settings: type[BaseModel]) -> str | None:
    """The key closest to `name`; if that is a former key, the present one."""
    renamed = renamed_keys(settings)
    found = nearest_key(name, {*settings.model_fields, *renamed})
    return renamed[found].key if found is not None and found in renamed else found


def _form(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
