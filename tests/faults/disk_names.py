"""The names of a disk in memory: which there are, which of them are durable, and the changes pending between the two.

A change (a name made, taken away or renamed) is seen at once and pending until its directory is synced, which makes the
changes of that directory durable in their order. A rename between two directories is pending in both, and durable as
soon as one of them is. A power loss keeps what is durable and of what is pending whatever survives; a name counts only
where all directories above it survived.

Not its job: locks, errors, numbers of operations (`memory_disk`); what a name stands for (`disk_content`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.faults.disk_content import Inode, Survival


class NameChange(NamedTuple):
    """A pending change of a directory: the name now stands for `inode`, or for nothing. It happens whole or not."""

    operation: int
    name: str
    inode: Inode | None
    old: str | None = None
    """For a rename: the name that is gone with the same change."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The directories that it changes."""
        parent = _parent(self.name)
        if self.old is None or _parent(self.old) == parent:
            return (parent,)
        return (parent, _parent(self.old))

    def apply(self, names: dict[str, Inode]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.inode is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.inode


class DiskNames:
    """Names are absolute paths as text, which is quicker to look up than a Path."""

    def __init__(self) -> None:
        self.seen: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: dict[str, list[NameChange]] = {}
        """By directory."""
        self._listings: dict[str, list[str]] | None = None
        """Names by directory, made when somebody lists one, as long as no name changes."""

    def put(self, name: str, inode: Inode) -> None:
        """A name that is durable at once."""
        self.seen[name] = self._durable[name] = inode
        self._listings = None

    def in_directory(self, directory: str) -> Sequence[str]:
        """The last parts of its names, in no order that means anything."""
        if self._listings is None:
            self._listings = {}
            for name in self.seen:
                parent, _, last = name.rpartition("/")
                if last:
                    self._listings.setdefault(parent or "/", []).append(last)
        return self._listings.get(directory, [])

    # Changes

    def begin(self, change: NameChange) -> None:
        """It is under way: pending, and not seen yet."""
        for parent in change.parents:
            self._pending.setdefault(parent, []).append(change)

    def withdraw(self, change: NameChange) -> None:
        """It failed after `begin`."""
        for parent in change.parents:
            self._pending[parent].remove(change)

    def complete(self, change: NameChange) -> None:
        """It is seen from now on, and still pending."""
        change.apply(self.seen)
        self._listings = None

    def sync(self, directory: str) -> None:
        """What is pending in this directory is durable."""
        for change in self._pending.pop(directory, ()):
            change.apply(self._durable)
            if change.old is not None:
                self._settle(change)

    def sync_all(self) -> None:
        """What is pending anywhere is durable, and so is every file."""
        for inode in self.seen.values():
            inode.sync()
        for pending in self._pending.values():
            for change in pending:
                change.apply(self._durable)
        self._pending.clear()

    def _settle(self, change: NameChange) -> None:
        """A rename between two directories is durable as soon as one of them is."""
        for parent, pending in self._pending.items():
            self._pending[parent] = [other for other in pending if other is not change]

    # Power

    def after_power_loss(self, survival: Survival) -> DiskNames:
        """The names, and the files behind them, as they are found; all of it is durable. These here are not touched."""
        names = dict(self._durable)
        changes = (change for pending in self._pending.values() for change in pending)
        for change in sorted(changes, key=lambda change: change.operation):
            if survival(change.operation, 0):
                change.apply(names)
        found = DiskNames()
        inodes: dict[int, Inode] = {}
        for name in sorted(names, key=_depth):
            if name != "/" and _parent(name) not in found.seen:
                continue
            inode = names[name]
            if id(inode) not in inodes:
                inodes[id(inode)] = inode.after_power_loss(survival)
            found.put(name, inodes[id(inode)])
        return found


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"


def _depth(name: str) -> int:
    return 0 if name == "/" else name.count("/")
