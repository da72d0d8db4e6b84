"""A copy of the sources with a mutation in it; the working tree is never touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.simulation.mutations.mutation import Edit, Mutation

ROOT = Path(__file__).parents[3]
_PACKAGES = (
    "bookgate",
    "protos",
    "runtime",
    "ledger",
    "thinclient",
    "gateway",
    "bookie",
    "pyspark_bookkeeper",
    "tests",
)
_FILES = ("pyproject.toml",)


class StaleMutationError(Exception):
    """The text that a mutation replaces does not stand once in its file any more."""


def mutated(edit: Edit) -> str:
    """The file's text with the edit. Raises StaleMutationError."""
    text = (ROOT / edit.file).read_text()
    if text.count(edit.before) != 1:
        raise StaleMutationError(f"{edit.file} has {text.count(edit.before)} times, not once: {edit.before!r}")
    return text.replace(edit.before, edit.after)


def environment(directory: Path) -> dict[str, str]:
    """In which Python takes the sources of a tree."""
    # Nothing compiled is kept: two mutations may leave a file of the same size and second.
    return {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}


class Tree:
    """One copy, for one mutation after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for package in _PACKAGES:
            if (ROOT / package).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", ".*", "images")
                shutil.copytree(ROOT / package, directory / package, symlinks=True, ignore=ignore)
        for file in _FILES:
            shutil.copy2(ROOT / file, directory / file)

    @contextmanager
    def holding(self, mutation: Mutation) -> Iterator[Path]:
        """The copy has the mutation inside the block."""
        texts = {edit.file: mutated(edit) for edit in mutation.edits}
        if len(texts) != len(mutation.edits):
            texts = _several(mutation)
        try:
            for file, text in texts.items():
                (self.directory / file).write_text(text)
            yield self.directory
        finally:
            for file in texts:
                shutil.copy2(ROOT / file, self.directory / file)


def _several(mutation: Mutation) -> dict[str, str]:
    """Edits of one file, one after the other."""
    texts: dict[str, str] = {}
    for edit in mutation.edits:
        mutated(edit)  # raises when it is stale
        text = texts.get(edit.file) or (ROOT / edit.file).read_text()
        texts[edit.file] = text.replace(edit.before, edit.after)
    return texts
