"""Which directories are writable, and whether the bookie as a whole has space: rules over measured disk usage.

A directory is writable, almost full (above the warn threshold, still written to) or full (above the threshold). A full
one becomes writable again when its usage falls below the low-water mark, which is never above the threshold: between
the two marks nothing changes, so usage that fluctuates around one of them does not make the bookie flap.

If no directory is writable, or any is full and the settings treat that alike, the bookie must be read-only. What must
still be written then (flushes, replay, compaction) goes to directories that have the minimum left; recovery of ledgers
(high-priority adds) continues while one directory has its minimum.

Event in: one measurement of all directories. Effects out: the changes, one directory at a time. Source:
docs/protocol/storage.md#disk-space. Chosen here: each directory has to fall below the low-water mark by itself, where
Apache BookKeeper requires it of their sum and only when none was writable; almost full and writable are reported when
they begin, not at every check.

Not its job: measuring (`monitor`), the bookie's mode (`mode.mode`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

D = TypeVar("D", bound=Hashable)
"""Identifies a directory."""


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """Bytes of a file system; `free_bytes` is what an unprivileged user may still use."""

    total_bytes: int
    free_bytes: int

    @property
    def used_fraction(self) -> float:
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


@dataclass(frozen=True, slots=True)
class DiskThresholds:
    """Fractions of a disk, and bytes that must stay free. `low_water` None: the same as `full`."""

    full: float = 0.95
    warn: float = 0.90
    low_water: float | None = None
    any_full: bool = True
    """One full directory is enough for read-only mode."""
    min_high_priority_bytes: int = 1 << 30
    min_entry_log_bytes: int = 1 << 30
    min_index_bytes: int = 100 << 20


class DiskLevel(Enum):
    WRITABLE = auto()
    ALMOST_FULL = auto()
    FULL = auto()


class DiskEventKind(Enum):
    """The events have the names of BookKeeper's listener methods."""

    DISK_FULL = auto()
    DISK_ALMOST_FULL = auto()
    DISK_WRITABLE = auto()
    DISK_JUST_WRITABLE = auto()
    """It was full and is writable again, but is still above the warn threshold."""


@dataclass(frozen=True, slots=True)
class DiskEvent(Generic[D]):
    kind: DiskEventKind
    directory: D
    usage: DirectoryUsage


class DiskSpace(Generic[D]):
    """The states of the directories of one kind. All begin as writable."""

    def __init__(self, thresholds: DiskThresholds, directories: Sequence[D]) -> None:
        self._thresholds = thresholds
        low_water = thresholds.full if thresholds.low_water is None else thresholds.low_water
        self._low_water = min(low_water, thresholds.full)
        self._levels = dict.fromkeys(directories, DiskLevel.WRITABLE)
        self._usages: dict[D, DirectoryUsage] = {}

    def measured(self, usages: Mapping[D, DirectoryUsage]) -> list[DiskEvent[D]]:
        """Applies one measurement of every directory; returns the changes, in the order of the directories."""
        self._usages = {directory: usages[directory] for directory in self._levels}
        events: list[DiskEvent[D]] = []
        for directory, before in self._levels.items():
            usage = usages[directory]
            after = self._level(before, usage.used_fraction)
            if after is not before:
                self._levels[directory] = after
                events.append(DiskEvent(_kind(before, after), directory, usage))
        return events

    def present(self) -> list[DiskEvent[D]]:
        """The directories that are short of space, as events for a new listener."""
        kinds = {DiskLevel.FULL: DiskEventKind.DISK_FULL, DiskLevel.ALMOST_FULL: DiskEventKind.DISK_ALMOST_FULL}
        short = ((directory, kinds.get(level)) for directory, level in self._levels.items())
        return [DiskEvent(kind, directory, self._usages[directory]) for directory, kind in short if kind is not None]

    def _level(self, before: DiskLevel, used: float) -> DiskLevel:
        if used > self._thresholds.full:
            return DiskLevel.FULL
        if before is DiskLevel.FULL and used > self._low_water:
            return DiskLevel.FULL
        return DiskLevel.ALMOST_FULL if used > self._thresholds.warn else DiskLevel.WRITABLE

    @property
    def usages(self) -> Mapping[D, DirectoryUsage]:
        """The last measurement; empty before the first."""
        return self._usages

    @property
    def demands_read_only(self) -> bool:
        full = [level is DiskLevel.FULL for level in self._levels.values()]
        return any(full) if self._thresholds.any_full else all(full)

    @property
    def room_for_high_priority(self) -> bool:
        return any(usage.free_bytes > self._thresholds.min_high_priority_bytes for usage in self._usages.values())

    def writable(self) -> tuple[D, ...]:
        """Directories that are not full."""
        return tuple(directory for directory, level in self._levels.items() if level is not DiskLevel.FULL)

    def for_new_entry_log(self) -> tuple[D, ...]:
        """Directories in which an entry log may begin; if all are full, those that have the minimum left, possibly
        none.
        """
        return self.writable() or self._with(self._thresholds.min_entry_log_bytes)

    def for_new_index_file(self) -> tuple[D, ...]:
        return self.writable() or self._with(self._thresholds.min_index_bytes)

    def _with(self, minimum: int) -> tuple[D, ...]:
        return tuple(directory for directory, usage in self._usages.items() if usage.free_bytes > minimum)


def _kind(before: DiskLevel, after: DiskLevel) -> DiskEventKind:
    if after is DiskLevel.FULL:
        return DiskEventKind.DISK_FULL
    if after is DiskLevel.WRITABLE:
        return DiskEventKind.DISK_WRITABLE
    return DiskEventKind.DISK_JUST_WRITABLE if before is DiskLevel.FULL else DiskEventKind.DISK_ALMOST_FULL
