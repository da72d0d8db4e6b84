"""Where each ledger manager keeps a ledger's node, and the order in which its nodes are listed.

A *tree* has fixed digit widths per level: an id, zero-padded to their sum, split at those widths, the last part
prefixed with `L`. Short hierarchical is 2-4-4, long hierarchical 3-4-4-4-4, flat one level of ten digits or more
directly under the root. The composite manager, BookKeeper's default, keeps ids below 2**31 - 1 in the short tree and
the others in the long one. Names of other shapes (LAYOUT, available, idgen, …) are never ledgers. Source:
docs/protocol/metadata.md#ledger-paths, docs/protocol/metadata.md#listing-ledgers.

Ledgers with a scope are stored apart, whichever tree manager the cluster has: under `scoped`, scope and id as 16
hexadecimal digits each, split 4-4-4-4, the last part prefixed with `L` (`ScopedPaths`). No tree has a node called
`scoped`, so other implementations skip it. Source: docs/protocol/scoped-ledgers.md#zookeeper.

Listing: children are walked in numeric order, a subtree is skipped when its whole range is outside the requested one,
and the two trees of the composite manager are merged, so ids are strictly ascending whatever tree they are in. The
readers of children are passed in; when one raises, the listing raises. The next nodes of a level are read while the
listing waits for its consumer: at most `_AHEAD` leaf nodes of each tree, of at most 10,000 ids, are held.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import HALF_MASK, LedgerId, halves_of

Result = TypeVar("Result")

FIRST_LONG_ID = (1 << 31) - 1
"""The composite manager's border: from here on ids are in the long tree."""

LARGEST_ID = (1 << 63) - 1

Children = Callable[[str], Awaitable[Sequence[str]]]
"""Names of the children of a path; empty if the node does not exist."""

Numbers = Callable[[str, int], Awaitable[Sequence[int]]]
"""Numbers of a path's children whose names are `L` and that many digits, ascending; empty if the node does not
exist.
"""

_DIGITS = {10: re.compile(r"[0-9]+", re.ASCII), 16: re.compile(r"[0-9a-f]+")}

_AHEAD = 4
_NOTHING: Sequence[int] = []


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids above `after` and below `before`."""

    after: int = -1
    before: int = LARGEST_ID + 1
    largest: int = LARGEST_ID
    """The largest valid id."""

    def overlaps(self, lowest: int, highest: int) -> bool:
        return lowest < self.before and highest > self.after

    def select(self, ids: Sequence[int]) -> Sequence[int]:
        """Those of the ascending ids that are in the range and valid."""
        before = min(self.before, self.largest + 1)
        if not ids or (ids[0] > self.after and ids[-1] < before):
            return ids
        return [ledger_id for ledger_id in ids if self.after < ledger_id < before]


class _Node(NamedTuple):
    """An inner node of a tree: its full path, and all digits on the way to it."""

    path: str
    digits: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of fixed digit widths per level; digits are of `base`, 10 or 16."""

    widths: tuple[int, ...]
    base: int = 10

    @property
    def digits(self) -> int:
        return sum(self.widths)

    def path(self, ledger_id: int) -> str:
        """The path below the root, with its leading slash."""
        text = f"{ledger_id:0{self.digits}{'d' if self.base == 10 else 'x'}}"
        if len(text) > self.digits:
            raise IncorrectParameterException(
                f"ledger id {ledger_id} has more than the {self.digits} digits of this ledger manager"
            )
        parts, start = [], 0
        for width in self.widths:
            parts.append(text[start : start + width])
            start += width
        return "/" + "/".join((*parts[:-1], f"L{parts[-1]}"))

    @property
    def pattern(self) -> str:
        """A regular expression for the paths of ledgers below the root, with one group per level."""
        *above, last = (f"([0-9]{{{width}}})" for width in self.widths)
        return "/" + "/".join((*above, f"L{last}"))

    async def runs(
        self, root: str, children: Children, numbers: Numbers, wanted: IdRange
    ) -> AsyncGenerator[Sequence[int], None]:
        """Ids in ascending order, one run per leaf level node."""
        width = self.widths[-1]
        leaves = self._nodes(len(self.widths) - 1, root, children, wanted)
        async with aclosing(_ahead(leaves, lambda node: numbers(node.path, width))) as found:
            async for node, below in found:
                first = int(node.digits or "0", self.base) * self.base**width
                whole = isinstance(below, range)
                ids = range(first + below[0], first + below[-1] + 1) if whole and below else [first + n for n in below]
                run = wanted.select(ids)
                if run:
                    yield run

    async def parts(
        self, root: str, children: Children, wanted: IdRange
    ) -> AsyncGenerator[tuple[str, Sequence[str]], None]:
        """Each node above the last level, in order: the digits on the way to it, and the names of its children."""
        nodes = self._nodes(
            len(self.widths) - 1,
            root,
            children,
            IdRange(before=self.base**self.digits, largest=self.base**self.digits - 1),
        )
        async with aclosing(_ahead(nodes, lambda node: children(node.path))) as found:
            async for node, names in found:
                yield node.digits, names

    async def _nodes(self, level: int, root: str, children: Children, wanted: IdRange) -> AsyncGenerator[_Node, None]:
        """The nodes of a level, in order, that may have ids in the range below them."""
        if level == 0:
            yield _Node(root, "")
            return
        above = self._nodes(level - 1, root, children, wanted)
        below = self.base ** sum(self.widths[level:])
        async with aclosing(_ahead(above, lambda node: children(node.path))) as parents:
            async for parent, names in parents:
                for digits in digit_names(names, self.widths[level - 1], "", self.base):
                    node = _Node(f"{parent.path}/{digits}", parent.digits + digits)
                    first = int(node.digits, self.base) * below
                    if wanted.overlaps(first, first + below - 1):
                        yield node


async def _ahead(
    nodes: AsyncGenerator[_Node, None], read: Callable[[_Node], Awaitable[Result]]
) -> AsyncGenerator[tuple[_Node, Result], None]:
    """Each node with its result, in order; the next ones are read meanwhile."""

    async def run(node: _Node) -> Result:
        return await read(node)

    reading: deque[tuple[_Node, asyncio.Task[Result]]] = deque()
    try:
        async with aclosing(nodes):
            async for node in nodes:
                reading.append((node, asyncio.ensure_future(run(node))))
                if len(reading) > _AHEAD:
                    first, task = reading[0]
                    yield first, await task
                    reading.popleft()
        while reading:
            first, task = reading[0]
            yield first, await task
            reading.popleft()
    finally:
        tasks = [task for _, task in reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def digit_names(names: Sequence[str], width: int, mark: str, base: int = 10) -> list[str]:
    """The digits of the names that are `mark` and exactly `width` digits, sorted."""
    wanted = [name[len(mark) :] for name in names if name.startswith(mark) and len(name) == len(mark) + width]
    digits = _DIGITS[base]
    return sorted(each for each in wanted if digits.fullmatch(each))


SHORT = Tree((2, 4, 4))
LONG = Tree((3, 4, 4, 4, 4))
_HALF = Tree((4, 4, 4, 4), 16)
SCOPED_ROOT = "scoped"
"""The parent, below the ledgers root, of all ledgers with a scope."""
_SCOPED_PATH = re.compile("/".join(["([0-9a-f]{4})"] * 7) + "/L([0-9a-f]{4})")


class LedgerPaths:
    """The paths of one ledger manager."""

    def __init__(self, root: str, removes_parents: bool, *patterns: str) -> None:
        """`patterns` match the paths of ledgers below the root; their groups, joined, are the id's digits."""
        self.root = root
        self._scoped = f"{root}/{SCOPED_ROOT}/"
        self.removes_parents = removes_parents
        """Whether empty nodes above a removed ledger are removed as well."""
        self._patterns = [re.compile(re.escape(root) + pattern) for pattern in patterns]

    def ledger_id_at(self, path: str) -> int | None:
        """The number of the ledger whose node is at a full path; None if the path is not a ledger's."""
        if path.startswith(self._scoped):
            scoped = _SCOPED_PATH.fullmatch(path, len(self._scoped))
            number = 0 if scoped is None else int("".join(scoped.groups()), 16)
            return number if number > HALF_MASK else None
        for pattern in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None and (ledger_id := int("".join(match.groups()))) <= LARGEST_ID:
                return ledger_id
        return None

    def path(self, ledger_id: int) -> str:
        """The full path. Raises IncorrectParameterException for an id that the manager does not support."""
        raise NotImplementedError

    def runs(
        self, children: Children, wanted: IdRange, numbers: Numbers | None = None
    ) -> AsyncGenerator[Sequence[int], None]:
        """All ids in `wanted`, strictly ascending, in non-empty runs of bounded size (except for the flat manager).

        `numbers` reads leaf nodes faster than by names.
        """
        raise NotImplementedError


class TreePaths(LedgerPaths):
    """A manager with one tree: legacy hierarchical (short) or long hierarchical."""

    def __init__(self, root: str, tree: Tree, removes_parents: bool) -> None:
        super().__init__(root, removes_parents, tree.pattern)
        self._tree = tree

    def path(self, ledger_id: int) -> str:
        return self.root + self._tree.path(ledger_id)

    def runs(
        self, children: Children, wanted: IdRange, numbers: Numbers | None = None
    ) -> AsyncGenerator[Sequence[int], None]:
        return self._tree.runs(self.root, children, numbers or _numbers_from(children), wanted)


class CompositePaths(LedgerPaths):
    """BookKeeper's default manager, called hierarchical."""

    def __init__(self, root: str) -> None:
        super().__init__(root, True, SHORT.pattern, LONG.pattern)

    def path(self, ledger_id: int) -> str:
        return self.root + (SHORT if ledger_id < FIRST_LONG_ID else LONG).path(ledger_id)

    def runs(
        self, children: Children, wanted: IdRange, numbers: Numbers | None = None
    ) -> AsyncGenerator[Sequence[int], None]:
        numbers = numbers or _numbers_from(children)
        return _merge(SHORT.runs(self.root, children, numbers, wanted), LONG.runs(self.root, children, numbers, wanted))


class FlatPaths(LedgerPaths):
    """All ledgers directly under the root."""

    def __init__(self, root: str) -> None:
        super().__init__(root, False, "/L([0-9]{10,})")

    def path(self, ledger_id: int) -> str:
        return f"{self.root}/L{ledger_id:010d}"

    async def runs(
        self, children: Children, wanted: IdRange, numbers: Numbers | None = None
    ) -> AsyncGenerator[Sequence[int], None]:
        digits = [name[1:] for name in await children(self.root) if name.startswith("L") and len(name) > 10]
        run = wanted.select(sorted({int(text) for text in digits if text.isascii() and text.isdigit()}))
        if run:
            yield run


def paths_of(manager: str, root: str) -> LedgerPaths:
    """The paths of a manager by its name in `layout.FACTORY_CLASSES`."""
    if manager == "hierarchical":
        return CompositePaths(root)
    if manager == "flat":
        return FlatPaths(root)
    if manager == "legacyhierarchical":
        return TreePaths(root, SHORT, removes_parents=False)
    if manager in ("longhierarchical", "longlonghierarchical"):
        return TreePaths(root, LONG, removes_parents=True)
    raise IncorrectParameterException(
        f"the ledger manager {manager!r} is not supported on ZooKeeper; use hierarchical, longhierarchical, "
        "longlonghierarchical or flat"
    )


class ScopedPaths:
    """The paths of ledgers with a scope other than 0, under one ledgers root. Ids are signed halves."""

    def __init__(self, root: str) -> None:
        self.root = f"{root}/{SCOPED_ROOT}"

    def path(self, ledger_id: LedgerId) -> str:
        """The full path."""
        return self._scope(ledger_id.scope_id) + _HALF.path(ledger_id.low & HALF_MASK)

    def _scope(self, scope_id: int) -> str:
        digits = f"{scope_id & HALF_MASK:016x}"
        return "/".join((self.root, digits[:4], digits[4:8], digits[8:12], digits[12:]))

    async def runs(
        self, scope_id: int, children: Children, start_after: int | None, end_before: int | None
    ) -> AsyncGenerator[Sequence[int], None]:
        """The ids of a scope between two ids (exclusive), in unsigned order, one run per leaf level node."""
        wanted = IdRange(
            -1 if start_after is None else start_after & HALF_MASK,
            HALF_MASK + 1 if end_before is None else end_before & HALF_MASK,
            HALF_MASK,
        )
        numbers = _numbers_from(children, 16)
        async with aclosing(_HALF.runs(self._scope(scope_id), children, numbers, wanted)) as runs:
            async for run in runs:
                yield [halves_of(1 << 64 | number)[1] for number in run]

    async def scopes(self, children: Children, start_after: int) -> AsyncGenerator[Sequence[int], None]:
        """The scopes above `start_after` that have a node, in unsigned order, one run per node above them."""
        wanted = IdRange(start_after & HALF_MASK, HALF_MASK + 1, HALF_MASK)
        async with aclosing(_HALF.parts(self.root, children, wanted)) as parts:
            async for digits, names in parts:
                found = wanted.select([int(digits + each, 16) for each in digit_names(names, 4, "", 16)])
                if found:
                    yield [halves_of(each << 64)[0] for each in found]


def _numbers_from(children: Children, base: int = 10) -> Numbers:
    async def numbers(path: str, width: int) -> Sequence[int]:
        return [int(digits, base) for digits in digit_names(await children(path), width, "L", base)]

    return numbers


async def _merge(
    first: AsyncGenerator[Sequence[int], None], second: AsyncGenerator[Sequence[int], None]
) -> AsyncGenerator[Sequence[int], None]:
    """Two ascending listings as one, without duplicates. Holds one run of each."""
    async with aclosing(first), aclosing(second):
        left, right = await anext(first, _NOTHING), await anext(second, _NOTHING)
        while left and right:
            if left[-1] < right[0]:
                yield left
                left = await anext(first, _NOTHING)
                continue
            # Ids that are not above the end of both runs are final.
            border = min(left[-1], right[-1])
            yield sorted({ledger_id for ledger_id in (*left, *right) if ledger_id <= border})
            left = [ledger_id for ledger_id in left if ledger_id > border] or await anext(first, _NOTHING)
            right = [ledger_id for ledger_id in right if ledger_id > border] or await anext(second, _NOTHING)
        for rest, iterator in ((left, first), (right, second)):
            if rest:
                yield rest
            async for run in iterator:
                yield run
