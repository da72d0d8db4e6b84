"""How a ledger is named on the command line: by its id, its scope and id, or its qualified name.

A command that takes `ledger_id: LedgerName` is decorated with `names_ledger`, which gives it the two options that name
a scope, and gives the command the whole id.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.command_line.output import WRONG_USAGE, fail

_NUMBER = re.compile(r"(?![0-9]{32}$)-?[0-9]+")
"""An id; 32 digits are a qualified name."""

LedgerName = LedgerId
"""The type of a command's parameter `ledger_id`."""

_Name = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="The ledger's id; also a qualified name or a UUID.", show_default=False),
]
ScopeId = Annotated[
    str | None,
    typer.Option("--ledger-scope-id", metavar="N", help="The scope that the id is in; a number, or 0x and hex digits."),
]
QualifiedName = Annotated[
    str | None,
    typer.Option("--ledger-qualified-name", metavar="HEX", help="In place of ID: 32 hex digits, or a UUID."),
]


def parse_scope(text: str | None) -> int:
    """The signed scope that somebody typed; 0 for None. Raises IncorrectParameterException."""
    if text is None:
        return 0
    try:
        number = int(text, 0)
    except ValueError:
        raise IncorrectParameterException(f"{text!r} is no scope: give a number, or 0x and hex digits") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise IncorrectParameterException(f"scope {text} does not fit 64 bits")
    return number - (1 << 64) if number >= 1 << 63 else number


def parse_ledger(name: str | None, scope: str | None = None, qualified_name: str | None = None) -> LedgerId:
    """The ledger that somebody named. Raises IncorrectParameterException, which says what to type."""
    if (name is None) == (qualified_name is None):
        raise IncorrectParameterException("name one ledger: by its ID, or with --ledger-qualified-name")
    text = qualified_name if name is None else name
    scope_id = parse_scope(scope)
    is_number = name is not None and _NUMBER.fullmatch(name) is not None
    try:
        if is_number:
            return LedgerId(scope_id, int(text or ""))
        found = LedgerId.parse(text or "")
    except ValueError as error:
        hint = "" if name is None or is_number else "; an id alone is a number"
        raise IncorrectParameterException(f"{error}{hint}") from error
    if scope is not None and scope_id != found.scope_id:
        raise IncorrectParameterException(f"ledger {found} is in scope {found.scope_id}, not in scope {scope_id}")
    return found


def ledger_fields(ledger_id: LedgerId) -> dict[str, Any]:
    """What JSON says of a ledger: its id, and its scope where it has one."""
    scope = {"scope_id": ledger_id.scope_id} if ledger_id.scope_id else {}
    return {"ledger_id": ledger_id.low, **scope}


def names_ledger(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of commands; see the module."""
    hints = get_type_hints(command, include_extras=True)

    @wraps(command)
    def run(
        *, ledger_id: str | None, ledger_scope_id: str | None, ledger_qualified_name: str | None, **others: Any
    ) -> Any:
        try:
            found = parse_ledger(ledger_id, ledger_scope_id, ledger_qualified_name)
        except IncorrectParameterException as error:
            fail(str(error), WRONG_USAGE)
        return command(ledger_id=found, **others)

    parameters = []
    for parameter in signature(command).parameters.values():
        if parameter.name == "ledger_id":
            parameters.append(_parameter("ledger_id", _Name))
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))
    parameters += [_parameter("ledger_scope_id", ScopeId), _parameter("ledger_qualified_name", QualifiedName)]
    shown: Any = run
    shown.__signature__ = inspect.Signature(parameters)
    shown.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameter(name: str, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
