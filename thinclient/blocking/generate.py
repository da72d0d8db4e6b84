"""Generates the blocking client from the asynchronous one: `python -m bookgate.thinclient.blocking.generate`.

`--check` writes nothing and exits 1 where the committed `client.py` differs from what would be generated.

Each public member of an asynchronous class becomes one of the same name, parameters and docstring that waits for it:

| asynchronous | blocking |
|---|---|
| property | property |
| `async def` | method that waits for the coroutine |
| generator of pages | iterator that fetches one page ahead |
| generator of entries, with a sibling `…_batches` | iterator over the elements of that one's lists |

What is returned becomes its facade where it has one. Members that stand in the facade (`facades`) or that only make
sense on the loop (`_ON_THE_LOOP`) are left out.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TARGET = HERE / "client.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """A class to be waited for, and where it and its base classes are defined: bases first."""

    name: str
    classes: tuple[tuple[str, str], ...]


_HANDLES = "bookgate.thinclient.handles"
_STREAMS = "bookgate.thinclient.streams"
_BASE = (f"{_HANDLES}.base_write_handle", "BaseWriteHandle")
_APPENDING = (f"{_HANDLES}.appending", "Appending")
_SOURCES = (
    Source("WriteHandle", (_BASE, _APPENDING, (f"{_HANDLES}.write_handle", "WriteHandle"))),
    Source("UnboundedWriteHandle", (_APPENDING, (f"{_HANDLES}.unbounded.write_handle", "UnboundedWriteHandle"))),
    Source("RecordWriter", ((f"{_HANDLES}.record_writer", "RecordWriter"),)),
    Source("AdvancedWriteHandle", (_BASE, (f"{_HANDLES}.advanced_write_handle", "AdvancedWriteHandle"))),
    Source("ReadHandle", ((f"{_HANDLES}.read_handle", "ReadHandle"),)),
    Source("ServiceDiscovery", (("bookgate.ledger.bookie_registry", "ServiceDiscovery"),)),
    Source("LedgerManager", (("bookgate.ledger.ledger_manager", "LedgerManager"),)),
    Source("BookKeeper", (("bookgate.thinclient.client", "BookKeeper"),)),
    Source("Cursor", ((f"{_STREAMS}.cursor", "Cursor"),)),
    Source("StreamWriter", ((f"{_STREAMS}.writer", "StreamWriter"),)),
    Source("StreamReader", ((f"{_STREAMS}.reader", "StreamReader"),)),
    Source("Stream", ((f"{_STREAMS}.stream", "Stream"),)),
    Source("Streams", ((f"{_STREAMS}.directory", "Streams"),)),
)
_FACADES = {source.name for source in _SOURCES}
_ON_THE_LOOP = {
    "append_nowait",  # its future is asyncio's
    "of_factory",
    "on_close",
    "read_listed",
    "register_listener",
    "unregister_listener",
    "watch_bookies",
}
_WORDS = {
    "an async context manager": "a context manager",
    "It belongs to the event loop it was created on; close it": "It may be used from several threads; close it",
}
_LEFT_OUT = {"abstractmethod", "opens"}
"""Decorators that say nothing of a call that is waited for."""
_PAGES = {"AsyncGenerator", "AsyncIterator"}
_HEADER = '''"""The client without asyncio: the same names, each call returning when it is done.

Iterators are plain iterators that fetch whole pages, so that the hop between threads is paid once a page, not once an
entry; the next page is fetched while the present one is being used.

Generated from the asynchronous client by `make blocking`; not edited by hand. What is not generated is in `facades`.
"""

from __future__ import annotations

'''


class _Module:
    """A module's text: its classes, and where the names it uses come from."""

    def __init__(self, name: str) -> None:
        path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
        tree = ast.parse(path.read_text())
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.origins = dict.fromkeys(_defined(tree), name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.origins.update({alias.name: node.module for alias in node.names})


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


class _Generator:
    def __init__(self) -> None:
        self._imports: set[tuple[str, str]] = {("bookgate.thinclient.blocking.loop_thread", "iterate")}
        self._facades = _Module("bookgate.thinclient.blocking.facades")

    def module(self) -> str:
        """The generated module, not yet formatted."""
        classes = "\n\n".join(map(self._class, _SOURCES))
        # A name that is also re-exported elsewhere is imported once.
        origins = {name: module for module, name in sorted(self._imports, reverse=True)}
        imports = "\n".join(f"from {module} import {name}" for name, module in origins.items())
        return f"{_HEADER}{imports}\n\n\n{classes}\n"

    def _class(self, source: Source) -> str:
        facade = f"{source.name}Facade"
        self._imports.add(("bookgate.thinclient.blocking.facades", facade))
        members: dict[str, tuple[Function, _Module]] = {}
        docstring = ""
        for module_name, class_name in source.classes:
            module = _Module(module_name)
            node = module.classes[class_name]
            docstring = _docstring(node)
            members.update({each.name: (each, module) for each in _public(node)})
        by_hand = {each.name for part in self._with_bases(facade) for each in _public(part)}
        generated = [
            self._member(function, module, set(members))
            for name, (function, module) in members.items()
            if name not in by_hand | _ON_THE_LOOP
        ]
        return f"class {source.name}({facade}):\n" + textwrap.indent("\n\n".join([docstring, *generated]), "    ")

    def _with_bases(self, facade: str) -> Iterator[ast.ClassDef]:
        """The facade, and its base classes of the same module."""
        node = self._facades.classes.get(facade)
        if node is not None:
            yield node
            for base in node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                yield from self._with_bases(ast.unparse(name))

    def _member(self, function: Function, module: _Module, siblings: set[str]) -> str:
        decorators = [text for each in function.decorator_list if (text := ast.unparse(each)) not in _LEFT_OUT]
        returned, element = _returned(function)
        self._import(module, function, decorators)
        is_property = "property" in decorators
        call = f"self._asynchronous.{function.name}" + ("" if is_property else f"({_arguments(function)})")
        if element:
            returned = f"Generator[{element}, None, None]"
            self._imports.add(("collections.abc", "Generator"))
            body = self._iterator(function, call, siblings)
        elif isinstance(function, ast.AsyncFunctionDef):
            body = _waited(f"self._run({call})", returned)
        else:
            body = _waited(call, returned)
        head = [f"@{each}" for each in decorators]
        head.append(f"def {function.name}({ast.unparse(function.args)}) -> {returned}:")
        return "\n".join([*head, textwrap.indent(f"{_docstring(function)}\n{body}", "    ")])

    def _iterator(self, function: Function, call: str, siblings: set[str]) -> str:
        batches = f"{function.name}_batches"
        if batches not in siblings:
            return f"return iterate(self._thread, {call})"
        self._imports.add(("bookgate.thinclient.blocking.loop_thread", "flat"))
        return f"return flat(self.{batches}({_arguments(function)}))"

    def _import(self, module: _Module, function: Function, decorators: list[str]) -> None:
        annotations = [each.annotation for each in _parameters(function)] + [function.returns]
        defaults = [*function.args.defaults, *function.args.kw_defaults]
        names = {
            node.id
            for part in (*annotations, *defaults)
            if part is not None
            for node in ast.walk(part)
            if isinstance(node, ast.Name)
        }
        for name in (names | set(decorators)) - _FACADES - _PAGES:
            if name in module.origins:
                self._imports.add((module.origins[name], name))


def _public(node: ast.ClassDef) -> Iterator[Function]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
            yield each


def _docstring(node: ast.ClassDef | Function) -> str:
    text = ast.get_docstring(node, clean=True)
    if text is None:
        raise RuntimeError(f"{node.name} needs a docstring, since the blocking client shows it")
    for word, replacement in _WORDS.items():
        text = text.replace(word, replacement)
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _returned(function: Function) -> tuple[str, str]:
    """The annotation, and what it is a generator of, if it is one."""
    returns = function.returns
    if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) in _PAGES:
        element = returns.slice.elts[0] if isinstance(returns.slice, ast.Tuple) else returns.slice
        return "", ast.unparse(element)
    if returns is None:
        raise RuntimeError(f"{function.name} does not say what it returns")
    return ast.unparse(returns), ""


def _waited(call: str, returned: str) -> str:
    if returned == "None":
        return call
    if returned in _FACADES:
        return f"return {returned}(self._thread, {call})"
    if (element := returned.removeprefix("list[").removesuffix("]")) in _FACADES and element != returned:
        return f"return [{element}(self._thread, each) for each in {call}]"
    if (one := returned.removesuffix(" | None")) in _FACADES and one != returned:
        return f"found = {call}\nreturn None if found is None else {one}(self._thread, found)"
    return f"return {call}"


def _parameters(function: Function) -> list[ast.arg]:
    return [*function.args.args[1:], *function.args.kwonlyargs]


def _arguments(function: Function) -> str:
    """The parameters, passed on as they came."""
    by_name = (f"{each.arg}={each.arg}" for each in function.args.kwonlyargs)
    return ", ".join([*(each.arg for each in function.args.args[1:]), *by_name])


def client_text() -> str:
    """The text of `client.py`. Raises CalledProcessError when ruff refuses it."""
    return _formatted(_Generator().module())


def _formatted(text: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    for arguments in (("check", "--fix", "--quiet", "--select", "I"), ("format", "--quiet")):
        command = [ruff, *arguments, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> int:
    """Writes the module, or compares it; returns the exit code."""
    text = client_text()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.read_text() == text:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is not what the asynchronous client makes of it: run `make blocking`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
