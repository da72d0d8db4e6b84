"""Files of a disk in memory: what they hold, what of it is durable, and the changes that are pending between the two.

Pages are made where something was written: files that are allocated ahead cost nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK = 512
"""What a disk writes as a whole."""
PAGE = 4096

Survival = Callable[[int, int], bool]
"""(number of the pending operation, block within it) → whether it reached the disk."""


def nothing_survives(operation: int, block: int) -> bool:
    return False


def everything_survives(operation: int, block: int) -> bool:
    """The process was killed, the machine goes on."""
    return True


def oldest_survive(last: int, blocks: int) -> Survival:
    """Operations before `last`, and of that one the first `blocks` blocks: in order, the last write torn."""
    return lambda operation, block: operation < last or (operation == last and block < blocks)


def some_survive(seed: int) -> Survival:
    """Each pending block and name by itself, few, half or most of them."""
    choice = random.Random(seed)
    share = choice.choice((0.15, 0.5, 0.85))
    return lambda operation, block: choice.random() < share


class Content:
    """A sparse sequence of bytes."""

    __slots__ = ("_own", "pages", "size")

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.size = 0
        self._own: set[int] = set()
        """Pages that no copy shares; the others are copied when they are written."""

    def copy(self) -> Content:
        copy = Content()
        copy.pages = self.pages.copy()
        copy.size = self.size
        self._own.clear()
        return copy

    def _writable(self, number: int) -> bytearray:
        page = self.pages.get(number)
        if number not in self._own or page is None:
            page = self.pages[number] = bytearray(PAGE) if page is None else bytearray(page)
            self._own.add(number)
        return page

    def read(self, size: int, offset: int) -> bytes:
        end = min(self.size, offset + size)
        if offset >= end:
            return b""
        parts: list[bytes | bytearray] = []
        pages, first, last = self.pages, offset // PAGE, (end - 1) // PAGE
        # What is allocated ahead is long, and zeros.
        present = range(first, last + 1) if last - first < len(pages) else sorted(pages)
        for number in present:
            page = pages.get(number)
            if page is None or not first <= number <= last:
                continue
            start = number * PAGE
            if start > offset:
                parts.append(bytes(start - offset))
                offset = start
            stop = min(end, start + PAGE)
            parts.append(page[offset - start : stop - start])
            offset = stop
        if offset < end:
            parts.append(bytes(end - offset))
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes, offset: int) -> None:
        position = 0
        while position < len(data):
            number, start = divmod(offset + position, PAGE)
            part = data[position : position + PAGE - start]
            self._writable(number)[start : start + len(part)] = part
            position += len(part)
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            last, start = divmod(size, PAGE)
            self.pages = {number: page for number, page in self.pages.items() if number <= last}
            if last in self.pages:
                self._writable(last)[start:] = bytes(PAGE - start)
        self.size = size

    def extents(self, start: int) -> Iterator[tuple[int, int]]:
        for number in sorted(self.pages):
            first, end = number * PAGE, min(self.size, (number + 1) * PAGE)
            if end > start and first < self.size:
                yield max(first, start), end


class Change(NamedTuple):
    """A pending change of a file: a write at `offset`, or with `data` None a new size (`grow_only`: at least that)."""

    operation: int
    offset: int
    data: bytes | None
    grow_only: bool = False

    def apply(self, content: Content) -> None:
        if self.data is not None:
            content.write(self.data, self.offset)
        elif not self.grow_only or self.offset > content.size:
            content.truncate(self.offset)

    def apply_surviving(self, content: Content, survival: Survival) -> None:
        if self.data is None:
            if survival(self.operation, 0):
                self.apply(content)
            return
        position = 0
        block = 0
        while position < len(self.data):
            stop = position + BLOCK - (self.offset + position) % BLOCK
            if survival(self.operation, block):
                content.write(self.data[position:stop], self.offset + position)
            position = stop
            block += 1


@dataclass(eq=False)
class Inode:
    """A file, or with `content` None a directory."""

    content: Content | None = field(default_factory=Content)
    durable: Content = field(default_factory=Content)
    pending: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        assert self.content is not None
        change.apply(self.content)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def evict(self) -> None:
        """What is not pending is read from the disk again: what a sync failed for is seen no more."""
        if self.content is None:
            return
        self.content = self.durable.copy()
        for change in self.pending:
            change.apply(self.content)

    def after_power_loss(self, survival: Survival) -> Inode:
        if self.content is None:
            return self
        durable = self.durable.copy()
        for change in self.pending:
            change.apply_surviving(durable, survival)
        return Inode(durable.copy(), durable)
