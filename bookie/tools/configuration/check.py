"""Checks the settings of a part, including its tables, and determines the part that a file is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.config.gateway_table import GATEWAY_TABLE, gather_gateway
from bookgate.bookie.tools.configuration.schema import BOOKIE, CLIENT, GATEWAY, PARTS, Part
from bookgate.gateway.config import GatewayConfig
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings import only_arguments, with_present_names
from bookgate.runtime.settings_problems import Given, Problem, unknown_variable_problems, value_problems

_OWN_OF_BOOKIE = {"metadata_uri": "metadata_uri", "host": "host", "gateway_port": "port"}
"""Settings of the bookie that its hosted gateway takes over, by the gateway's names."""


def problems_of(part: Part, given: Mapping[str, Given]) -> list[Problem]:
    """All problems, in the order of the settings. The environment is checked for unknown variables."""
    settings = part.settings
    problems = unknown_variable_problems(settings) + value_problems(settings, given)
    if part is BOOKIE:
        problems += _of_hosted_gateway(given) + _of_own_client(given)
    return problems or _of_exposure(part, given)


def part_of(content: Mapping[str, Any]) -> Part:
    """The part that a file is probably for: the one that knows most of its keys and reports the fewest problems."""

    def strangeness(part: Part) -> tuple[int, int]:
        present, _ = with_present_names(part.settings, content)
        problems = value_problems(part.settings, {key: Given(value) for key, value in present.items()})
        return sum(key not in part.fields for key in present), len(problems)

    return min(PARTS.values(), key=strangeness)


def _of_hosted_gateway(given: Mapping[str, Given]) -> list[Problem]:
    table = given.get(GATEWAY_TABLE, Given({}))
    nested = dict(gather_gateway(table if isinstance(table.value, Mapping) else Given({})).given)
    for own, name in _OWN_OF_BOOKIE.items():
        nested.pop(name, None)
        if own in given:
            nested[name] = given[own]
    own_keys = {*_OWN_OF_BOOKIE.values()}
    nested.setdefault("metadata_uri", Given("sqlite:///unknown"))
    problems = [each for each in value_problems(GATEWAY.settings, nested) if each.key not in own_keys]
    return unknown_variable_problems(GATEWAY.settings) + _of_table(GATEWAY_TABLE, problems)


def _of_exposure(part: Part, given: Mapping[str, Given]) -> list[Problem]:
    """Problems for which a start would fail although the settings are valid."""
    values = {key: each.value for key, each in given.items()}
    try:
        with only_arguments():
            settings = part.settings(**values)
        if isinstance(settings, BookieConfig | GatewayConfig):
            settings.check_exposure()
    except IncorrectParameterException as error:
        return [Problem("", str(error))]
    return []


def _of_own_client(given: Mapping[str, Given]) -> list[Problem]:
    return _of_table("client", value_problems(CLIENT.settings, _table(given, "client")))


def _table(given: Mapping[str, Given], name: str) -> dict[str, Given]:
    """The contents of a table of the settings; nothing if it is not a table, which is a problem of its own."""
    table = given.get(name)
    if table is None or not isinstance(table.value, Mapping):
        return {}
    return {key: Given(value, table.source) for key, value in table.value.items()}


def _of_table(name: str, problems: Iterable[Problem]) -> list[Problem]:
    return [Problem(f"{name}.{each.key}" if each.key else name, each.message, each.source) for each in problems]
