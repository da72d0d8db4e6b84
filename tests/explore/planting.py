"""Plants a bug of the table in this process, for the length of a block: functions get the code of the changed source.

Not its job: what the bugs are (`tests.simulation.mutations`, which plants them in copies of the sources).
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation.mutations.mutation import Edit, Mutation
from tests.simulation.mutations.tree import mutated


@contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """The product behaves as the mutation says inside the block."""
    kept: list[tuple[types.FunctionType, types.CodeType]] = []
    try:
        for edit in mutation.edits:
            kept += _plant(edit)
        yield
    finally:
        for function, code in reversed(kept):
            function.__code__ = code


def _plant(edit: Edit) -> list[tuple[types.FunctionType, types.CodeType]]:
    module = importlib.import_module("bookgate." + edit.file.removesuffix(".py").replace("/", "."))
    changed = types.ModuleType(module.__name__)
    changed.__dict__.update(__name__=module.__name__, __file__=module.__file__)
    exec(compile(mutated(edit), edit.file, "exec", dont_inherit=True), changed.__dict__)
    new = _functions(changed)
    kept = []
    for name, function in _functions(module).items():
        if function.__code__ != new[name].__code__:
            kept.append((function, function.__code__))
            function.__code__ = new[name].__code__
    assert kept, f"{edit.file} has no function that the edit changes"
    return kept


def _functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """Those of the module and of its classes, by qualified name."""
    found: dict[str, types.FunctionType] = {}
    own = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
    for each in own:
        members = vars(each).values() if isinstance(each, type) else (each,)
        for member in members:
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                found[function.__qualname__] = function
    return found
