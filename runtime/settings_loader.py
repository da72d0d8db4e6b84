"""The loader of all settings: a TOML file, the environment, options and arguments, in rising order of precedence.

Bookie, gateway and client use the same loader, and `bookgate config` shows its results: `gather` collects the values
and their sources, `settings_problems` their problems. Former names of keys are accepted everywhere, with one warning
each.
"""

from __future__ import annotations

import inspect
import logging
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.logs import lines_before_set_up, log_event
from bookgate.runtime.settings import (
    ConsistentSettings,
    ContradictionError,
    FormerName,
    Renamed,
    arguments_only,
    only_arguments,
    renamed_keys,
    with_present_names,
)
from bookgate.runtime.settings_problems import OPTION, Given, Problem, unknown_variable_problems, value_problems

_LOG = logging.getLogger(__name__)
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_BETWEEN = ("pydantic", "bookgate.runtime.settings", "bookgate.thinclient.config", "bookgate.bookie.config")
"""Modules between the caller that passes a keyword and the warning about it."""


class Settings(BaseSettings, ConsistentSettings):
    """All settings of a process. The constructor reads the environment and arguments; `load` reads all sources."""

    RENAMED: ClassVar[Mapping[str, Renamed]] = {}
    """Former keys; base classes may have tables of their own."""
    VARIABLES_OF_OTHERS: ClassVar[tuple[str, ...] | None] = None
    """Not None if other programs have variables with the same prefix, so that an unknown one is a mistake only if it is
    all but a key: what theirs begin with behind the prefix.
    """

    def __init__(self, **values: Any) -> None:
        """Raises IncorrectParameterException, which names each wrong key."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            if arguments_only():
                raise
            given = {key: Given(value) for key, value in values.items()}
            problems = value_problems(type(self), given) or [Problem("", str(each["msg"])) for each in error.errors()]
            raise IncorrectParameterException(f"configuration is not valid: {'; '.join(map(str, problems))}") from None

    @classmethod
    def load(
        cls, file: Path | None = None, values: Mapping[str, Any] = NOTHING, options: Mapping[str, Any] = NOTHING
    ) -> Self:
        """Loads settings from all sources. Values that are None count as not given.

        Args:
            file: A TOML file; None: no file.
            values: Values that override all other sources.
            options: Options of a command, which override file and environment.

        Raises:
            IncorrectParameterException: Names each wrong key and its source.
        """
        gathered = gather(cls, read_file(file) if file else {}, str(file), options)
        try:
            given = _of_keywords(cls, {key: value for key, value in values.items() if value is not None})
        except ContradictionError as error:
            raise IncorrectParameterException(f"configuration is not valid: {error}") from error
        return cls.made_of(replace(gathered, given={**gathered.given, **{key: Given(given[key]) for key in given}}))

    @classmethod
    def made_of(cls, gathered: Gathered) -> Self:
        """The gathered values as settings; warns of former names. Raises IncorrectParameterException."""
        problems = (unknown_variable_problems(cls) if cls.VARIABLES_OF_OTHERS is None else []) + gathered.problems()
        if not problems:
            try:
                with only_arguments():
                    settings = cls(**{key: each.value for key, each in gathered.given.items()})
                with lines_before_set_up(getattr(settings, "log_format", "text")):
                    gathered.warn()
                return settings
            except ValidationError:
                problems = value_problems(cls, gathered.given)
        raise IncorrectParameterException(f"configuration is not valid: {'; '.join(map(str, problems))}")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments and environment, former names included."""
        if arguments_only():
            return (init_settings,)
        arguments = _of_keywords(cls, init_settings())
        environment = _environment(cls)
        environment.without(arguments).warn()
        given = {key: each.value for key, each in environment.given.items()}
        return InitSettingsSource(settings_cls, arguments), InitSettingsSource(settings_cls, given)


@dataclass(frozen=True, slots=True)
class Gathered:
    """All values, including unknown keys of the file and the options, and the former names that were used."""

    given: Mapping[str, Given]
    former: tuple[FormerName, ...] = field(default=())
    misspelt: tuple[Problem, ...] = field(default=())
    """Environment variables that are probably meant for these settings, where the prefix is not theirs alone."""

    def problems(self) -> list[Problem]:
        """Settings that were given under both names."""
        return [Problem("", str(each)) for each in self.former if each.doubled]

    def renamed(self) -> list[FormerName]:
        """The other former names, which are effective."""
        return [each for each in self.former if not each.doubled]

    def warn(self) -> None:
        """Logs one line for each effective former name and each misspelt variable."""
        for each in self.renamed():
            warn_of_former_name(each)
        for problem in self.misspelt:
            _warn_of_misspelling(problem)

    def without(self, keys: Mapping[str, object]) -> Gathered:
        """The values without those that these keys replace. Raises ContradictionError for a setting given under both
        names.
        """
        if any(each.doubled for each in self.former):
            raise ContradictionError(str(each) for each in self.former if each.doubled)
        lost = {each.source for key, each in self.given.items() if key in keys}
        return replace(self, former=tuple(each for each in self.former if each.name not in lost))


@cache
def warn_of_former_name(name: FormerName) -> None:
    """Warns of a former name, once per process."""
    log_event(_LOG, "setting_renamed", logging.WARNING, former=name.name, now=name.key, source=name.source)


@cache
def _warn_of_misspelling(problem: Problem) -> None:
    """Warns of a variable that no setting has, once per process."""
    log_event(_LOG, "variable_unknown", logging.WARNING, name=problem.key, error=problem.message)


def read_file(path: Path) -> dict[str, Any]:
    """Reads a TOML file. Raises IncorrectParameterException, which says what is wrong and where."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IncorrectParameterException(f"configuration file {path} can't be read: {error}") from error


def gather(
    settings: type[BaseSettings],
    content: Mapping[str, Any] = NOTHING,
    source: str = "file",
    options: Mapping[str, Any] = NOTHING,
    not_ours: str | None = None,
) -> Gathered:
    """Collects the values from all sources. Variables that begin with `not_ours` belong to others.

    Raises IncorrectParameterException for an environment variable that can't be parsed as its type.
    """
    layers = (_layer(settings, content, source), _environment(settings, not_ours), _layer(settings, options, OPTION))
    given = {key: each for layer in layers for key, each in layer.given.items()}
    former = tuple(each for layer in layers for each in layer.former)
    return Gathered(given, former, tuple(each for layer in layers for each in layer.misspelt))


def _layer(settings: type[BaseSettings], content: Mapping[str, Any], source: str) -> Gathered:
    present, former = with_present_names(settings, content)
    given = {key: Given(value, source) for key, value in present.items()}
    return Gathered(given, tuple(replace(each, source=source) for each in former))


def _environment(settings: type[BaseSettings], not_ours: str | None = None) -> Gathered:
    prefix = settings.model_config["env_prefix"]
    reader = EnvSettingsSource(settings)
    try:
        values = reader()
    except SettingsError as error:
        raise IncorrectParameterException(f"environment {prefix}…: {error}") from error
    layer = _layer(settings, values, "environment")
    given = {key: Given(each.value, prefix + key.upper()) for key, each in layer.given.items()}
    former = list(layer.former)
    for name, renamed in renamed_keys(settings).items():
        variable = prefix + name.upper()
        text = reader.env_vars.get(variable.lower())
        if text is not None:
            now = prefix + renamed.key.upper()
            former.append(FormerName(variable, now, renamed.key in given, "environment"))
            given.setdefault(renamed.key, Given(renamed.convert(text), variable))
    ours = {key: each for key, each in given.items() if not (not_ours and each.source.startswith(not_ours))}
    shared = getattr(settings, "VARIABLES_OF_OTHERS", None) is not None
    return Gathered(ours, tuple(former), tuple(unknown_variable_problems(settings)) if shared else ())


def _of_keywords(settings: type[BaseSettings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under their present names. Raises ContradictionError for a setting given under both names."""
    present, former = with_present_names(settings, values)
    if any(each.doubled for each in former):
        raise ContradictionError(str(each) for each in former if each.doubled)
    for each in former:
        warnings.warn(str(each), DeprecationWarning, stacklevel=_callers_level())
    return present


def _callers_level() -> int:
    """The stack level of the caller that passed the keyword, relative to the calling function."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    return level
