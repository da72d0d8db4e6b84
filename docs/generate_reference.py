"""Writes docs/reference/thinclient.md from the docstrings of what `thinclient` exports, docs/reference/commands.md
from the commands and docs/reference/logs.md from the calls that log: `make reference`.

`--check` writes nothing and fails when a page is not what would be written.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import bookgate
from bookgate.ledger import errors
from bookgate.thinclient.config import ClientConfig

REFERENCE = Path(__file__).parent / "reference"


def render() -> str:
    """The whole page."""
    parts = [
        "# Reference: thinclient",
        "Generated from the docstrings by `make reference`. The guide is [client.md](../client.md); "
        "`bookgate.blocking` has the same names without asyncio.",
    ]
    for name in sorted(bookgate.__all__):
        value = getattr(bookgate, name)
        if inspect.isclass(value) and value is not ClientConfig and not issubclass(value, Exception):
            parts += _class(name, value)
    parts += ["## Settings: ClientConfig", _text(ClientConfig), _settings()]
    parts += ["## Errors", "Subclasses of `bookgate.ledger.errors.BKException`; the codes are BookKeeper's.", _errors()]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _class(name: str, value: type) -> Iterator[str]:
    yield f"## {name}"
    yield _text(value)
    for member_name, member in _members(value):
        yield f"### {name}.{member_name}"
        yield f"```python\n{_signature(member_name, member)}\n```"
        yield _text(member)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, in the order of the source."""
    seen: dict[str, Any] = {}
    for owner in reversed(value.__mro__[:-1]):
        if owner.__module__.startswith(("bookgate.thinclient.", "bookgate.ledger.")):
            seen.update({name: member for name, member in vars(owner).items() if not name.startswith("_")})
    for name, member in seen.items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(plain, property | types.FunctionType) and inspect.getdoc(plain):
            yield name, member


def _signature(name: str, member: Any) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        return f"{name} -> {inspect.signature(member.fget).return_annotation}"
    plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    signature = inspect.signature(plain)
    shown = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    kind = "async " if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain) else ""
    return _wrapped(f"{kind}def {name}", list(_parameters(shown)), f" -> {signature.return_annotation}")


def _parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    star = False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        yield f"{parameter.name}: {parameter.annotation}{default}"


def _default(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _wrapped(head: str, parameters: list[str], tail: str) -> str:
    one_line = f"{head}({', '.join(parameters)}){tail}"
    if len(one_line) <= 100:
        return one_line
    return "\n".join([f"{head}(", *(f"    {parameter}," for parameter in parameters), f"){tail}"])


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _settings() -> str:
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in ClientConfig.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{name}` | {_type(field.annotation)} | {default} | {field.description or ''} |")
    return "\n".join(rows)


def _type(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation) if part is not type(None))
    return getattr(annotation, "__name__", str(annotation))


def _errors() -> str:
    rows = ["| error | code | meaning |", "|---|---|---|"]
    for name, error in sorted(vars(errors).items()):
        if inspect.isclass(error) and issubclass(error, errors.BKException) and error is not errors.BKException:
            rows.append(f"| `{name}` | {error.code} | {_text(error).partition(chr(10))[0]} |")
    return "\n".join(rows)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import command_reference
    import log_reference

    pages = {
        REFERENCE / "thinclient.md": render(),
        REFERENCE / "commands.md": command_reference.render(),
        REFERENCE / "logs.md": log_reference.render(),
    }
    REFERENCE.mkdir(exist_ok=True)
    for path, page in pages.items():
        if "--check" not in sys.argv:
            path.write_text(page, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != page:
            sys.exit(f"{path} is not up to date; run: make reference")


if __name__ == "__main__":
    main()
