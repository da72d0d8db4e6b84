"""Where each ledger manager keeps a ledger's node, and the order in which its nodes are listed.

A *tree* has fixed digit widths a level: an id, zero-padded to their sum, split at those widths, the last part prefixed
with `L`. Short hierarchical is 2-4-4, long hierarchical 3-4-4-4-4, flat one level of ten digits or more directly under
the root. The composite manager, BookKeeper's default, keeps ids below 2**31 - 1 in the short tree and the others in
the long one. Names of other shapes (LAYOUT, available, idgen, …) are never ledgers. Source: metadata page, sections
5.1 and 5.5.

Listing: children are walked in numeric order, a subtree is skipped when its whole range lies outside what is asked
for, and the two trees of the composite manager are merged, so ids come strictly ascending whatever stands where. The
reader of children is passed in; when it raises, the listing raises.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from ledger.errors import IncorrectParameterException

FIRST_LONG_ID = (1 << 31) - 1
"""The composite manager's border: from here on ids are in the long tree."""

LARGEST_ID = (1 << 63) - 1

Children = Callable[[str], Awaitable[Sequence[str]]]
"""Names of the children of a path; empty for a node that is not there."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids above `after` and below `before`."""

    after: int = -1
    before: int = LARGEST_ID + 1

    def overlaps(self, lowest: int, highest: int) -> bool:
        return lowest < self.before and highest > self.after


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of fixed digit widths a level."""

    widths: tuple[int, ...]

    @property
    def digits(self) -> int:
        return sum(self.widths)

    def path(self, ledger_id: int) -> str:
        """The path below the root, with its leading slash."""
        text = f"{ledger_id:0{self.digits}d}"
        if len(text) > self.digits:
            raise IncorrectParameterException(
                f"ledger id {ledger_id} has more than the {self.digits} digits of this ledger manager"
            )
        parts, start = [], 0
        for width in self.widths:
            parts.append(text[start : start + width])
            start += width
        return "/" + "/".join((*parts[:-1], f"L{parts[-1]}"))

    async def runs(self, root: str, children: Children, wanted: IdRange) -> AsyncIterator[list[int]]:
        """Ids in ascending order, a run a leaf level node."""
        async with aclosing(self._walk(root, "", 0, children, wanted)) as runs:
            async for run in runs:
                yield run

    async def _walk(
        self, path: str, prefix: str, level: int, children: Children, wanted: IdRange
    ) -> AsyncGenerator[list[int], None]:
        leaf = level == len(self.widths) - 1
        names = _digit_names(await children(path), self.widths[level], "L" if leaf else "")
        if leaf:
            ids = [int(prefix + name) for name in names]
            run = [ledger_id for ledger_id in ids if wanted.after < ledger_id < min(wanted.before, LARGEST_ID + 1)]
            if run:
                yield run
            return
        below = 10 ** (self.digits - len(prefix) - self.widths[level])
        for name in names:
            first = int(prefix + name) * below
            if not wanted.overlaps(first, first + below - 1):
                continue
            async with aclosing(self._walk(f"{path}/{name}", prefix + name, level + 1, children, wanted)) as runs:
                async for run in runs:
                    yield run


def _digit_names(names: Sequence[str], width: int, mark: str) -> list[str]:
    """The digits of the names that are `mark` and exactly `width` digits, sorted."""
    wanted = [name[len(mark) :] for name in names if name.startswith(mark) and len(name) == len(mark) + width]
    return sorted(digits for digits in wanted if digits.isascii() and digits.isdigit())


SHORT = Tree((2, 4, 4))
LONG = Tree((3, 4, 4, 4, 4))


class LedgerPaths:
    """One ledger manager's places."""

    def __init__(self, root: str, removes_parents: bool) -> None:
        self.root = root
        self.removes_parents = removes_parents
        """Whether empty nodes above a removed ledger are removed as well."""

    def path(self, ledger_id: int) -> str:
        """The whole path. Raises IncorrectParameterException for an id that the manager can't hold."""
        raise NotImplementedError

    def runs(self, children: Children, wanted: IdRange) -> AsyncIterator[list[int]]:
        """All ids in `wanted`, strictly ascending, in non-empty runs of bounded size (but for the flat manager)."""
        raise NotImplementedError


class TreePaths(LedgerPaths):
    """A manager with one tree: legacy hierarchical (short) or long hierarchical."""

    def __init__(self, root: str, tree: Tree, removes_parents: bool) -> None:
        super().__init__(root, removes_parents)
        self._tree = tree

    def path(self, ledger_id: int) -> str:
        return self.root + self._tree.path(ledger_id)

    def runs(self, children: Children, wanted: IdRange) -> AsyncIterator[list[int]]:
        return self._tree.runs(self.root, children, wanted)


class CompositePaths(LedgerPaths):
    """BookKeeper's default manager, called hierarchical."""

    def __init__(self, root: str) -> None:
        super().__init__(root, removes_parents=True)

    def path(self, ledger_id: int) -> str:
        return self.root + (SHORT if ledger_id < FIRST_LONG_ID else LONG).path(ledger_id)

    def runs(self, children: Children, wanted: IdRange) -> AsyncIterator[list[int]]:
        return _merge(SHORT.runs(self.root, children, wanted), LONG.runs(self.root, children, wanted))


class FlatPaths(LedgerPaths):
    """All ledgers directly under the root."""

    def __init__(self, root: str) -> None:
        super().__init__(root, removes_parents=False)

    def path(self, ledger_id: int) -> str:
        return f"{self.root}/L{ledger_id:010d}"

    async def runs(self, children: Children, wanted: IdRange) -> AsyncIterator[list[int]]:
        digits = [name[1:] for name in await children(self.root) if name.startswith("L") and len(name) > 10]
        ids = sorted({int(text) for text in digits if text.isascii() and text.isdigit()})
        run = [ledger_id for ledger_id in ids if wanted.after < ledger_id < min(wanted.before, LARGEST_ID + 1)]
        if run:
            yield run


def paths_of(manager: str, root: str) -> LedgerPaths:
    """The places of a manager by its name in `layout.FACTORY_CLASSES`."""
    if manager == "hierarchical":
        return CompositePaths(root)
    if manager == "flat":
        return FlatPaths(root)
    if manager == "legacyhierarchical":
        return TreePaths(root, SHORT, removes_parents=False)
    if manager == "longhierarchical":
        return TreePaths(root, LONG, removes_parents=True)
    raise IncorrectParameterException(
        f"the ledger manager {manager!r} is not supported on ZooKeeper; use hierarchical, longhierarchical or flat"
    )


async def _merge(first: AsyncIterator[list[int]], second: AsyncIterator[list[int]]) -> AsyncIterator[list[int]]:
    """Two ascending listings as one, without duplicates. Holds one run of each."""
    left: list[int] = await anext(first, [])
    right: list[int] = await anext(second, [])
    while left and right:
        # What is not above the end of both runs can't be overtaken any more.
        border = min(left[-1], right[-1])
        yield sorted({ledger_id for ledger_id in (*left, *right) if ledger_id <= border})
        left = [ledger_id for ledger_id in left if ledger_id > border] or await anext(first, [])
        right = [ledger_id for ledger_id in right if ledger_id > border] or await anext(second, [])
    for rest, iterator in ((left, first), (right, second)):
        if rest:
            yield rest
        async for run in iterator:
            yield run
