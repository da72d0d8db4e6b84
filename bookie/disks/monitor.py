"""Measures the disks of all directories periodically, and knows which directories are writable.

Each pass measures every directory and checks that it can be read and written; if not, the bookie stops. The measurement
runs in a thread, since a failing disk may block; everything else is on the event loop. The writable directories may be
read from any thread.

A ledger can't choose its journal. A single full journal directory therefore requires read-only mode, whatever the
settings say about full ledger directories, and ends high-priority adds if less than their minimum is left.

Not its job: the rules (`rules`), the bookie's reaction (`state_manager`, garbage collection).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bookgate.bookie.disks import directories
from bookgate.bookie.disks.directories import DirectoryException
from bookgate.bookie.disks.rules import DirectoryUsage, DiskEvent, DiskEventKind, DiskSpace, DiskThresholds
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

Usage = Callable[[Path], DirectoryUsage]


def measure(directory: Path, files: FileSystem = REAL_FILE_SYSTEM) -> DirectoryUsage:
    """Usage of the directory's disk. Raises DirectoryException when it is not a directory, or can't be read and
    written.
    """
    try:
        if not files.is_directory(directory):
            raise DirectoryException(f"directory {directory} is gone; mend the disk and start the bookie again")
        if not files.may_change(directory):
            raise DirectoryException(
                f"directory {directory} can't be read and written: if its file system has become read-only, look at "
                f"the kernel's log (dmesg) and the disk; else give it to the bookie's user ({os.geteuid()}). Then "
                "start the bookie again"
            )
        return directories.usage(directory, files)
    except DirectoryException:
        raise
    except OSError as error:
        raise DirectoryException(f"directory {directory} has failed: {error.strerror}; look at the disk") from error


class DiskMonitor:
    """Measures the configured directories; `usage` raises OSError for a failed one."""

    def __init__(
        self,
        thresholds: DiskThresholds,
        ledger_directories: Sequence[Path],
        index_directories: Sequence[Path],
        usage: Usage = measure,
        journal_directories: Sequence[Path] = (),
    ) -> None:
        self._ledgers = DiskSpace(thresholds, ledger_directories)
        self._indexes = DiskSpace(thresholds, index_directories)
        self._journals = DiskSpace(replace(thresholds, any_full=True), journal_directories)
        self._directories = tuple(dict.fromkeys((*ledger_directories, *index_directories, *journal_directories)))
        self._min_high_priority_bytes = thresholds.min_high_priority_bytes
        self._usage = usage
        self._hurried = asyncio.Event()
        self.listeners: list[Callable[[DiskEvent[Path]], None]] = []
        """Called on the event loop for every ledger or index directory whose state changed."""

    def hurry(self) -> None:
        """Measures now, because a write found a disk full."""
        self._hurried.set()

    async def run(self, interval_seconds: float, on_measured: Callable[[], None]) -> None:
        """Measures every interval and calls `on_measured` after each measurement. Raises DirectoryException."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_seconds):
                    await self._hurried.wait()
            self._hurried.clear()
            await self.check()
            on_measured()

    async def check(self) -> None:
        """One pass. Raises DirectoryException."""
        self._take(await asyncio.get_running_loop().run_in_executor(None, self._measure))

    def check_now(self) -> None:
        """One pass, blocking; for use before storage is opened."""
        self._take(self._measure())

    def _measure(self) -> Mapping[Path, DirectoryUsage]:
        return {directory: self._usage(directory) for directory in self._directories}

    def _take(self, usages: Mapping[Path, DirectoryUsage]) -> None:
        for space in (self._ledgers, self._indexes):
            events = space.measured(usages)
            if space is self._indexes:
                events = [event for event in events if event.directory not in self._ledgers.usages]
            for event in events:
                _report(event)
                for listener in self.listeners:
                    listener(event)
        for event in self._journals.measured(usages):
            _report(event)

    def follow(self, listener: Callable[[DiskEvent[Path]], None]) -> None:
        """Calls the listener for each ledger directory that is short of space, and from now on for every change."""
        for event in self._ledgers.present():
            listener(event)
        self.listeners.append(listener)

    @property
    def demands_read_only(self) -> bool:
        spaces = (self._ledgers, self._indexes, self._journals)
        return any(space.demands_read_only for space in spaces)

    @property
    def room_for_high_priority(self) -> bool:
        journals = self._journals.usages.values()
        return self._ledgers.room_for_high_priority and all(
            usage.free_bytes > self._min_high_priority_bytes for usage in journals
        )

    @property
    def usages(self) -> Mapping[Path, DirectoryUsage]:
        """The last measurement of the ledger directories."""
        return self._ledgers.usages

    def writable_directories(self) -> tuple[Path, ...]:
        """Ledger directories that are not full. Any thread, like the methods below."""
        return self._ledgers.writable()

    def directories_for_entry_logs(self) -> tuple[Path, ...]:
        """Ledger directories in which a new entry log may begin; none when not even the minimum is left."""
        return self._ledgers.for_new_entry_log()

    def is_full_journal_directory(self, directory: Path) -> bool:
        return directory not in self._journals.writable()

    def directories_for_index_files(self) -> tuple[Path, ...]:
        """Index directories in which a new index file may be created."""
        return self._indexes.for_new_index_file()


def _report(event: DiskEvent[Path]) -> None:
    level = logging.WARNING if event.kind in _BAD_NEWS else logging.INFO
    log_event(
        _log,
        "disk",
        level,
        directory=event.directory,
        state=_WORDS[event.kind],
        used_percent=round(used_percent(event.usage), 1),
    )


def used_percent(usage: DirectoryUsage) -> float:
    return 100 * usage.used_fraction


_BAD_NEWS = {DiskEventKind.DISK_FULL, DiskEventKind.DISK_ALMOST_FULL}
_WORDS = {
    DiskEventKind.DISK_FULL: "full, nothing is written to it any more",
    DiskEventKind.DISK_ALMOST_FULL: "almost full",
    DiskEventKind.DISK_WRITABLE: "has room",
    DiskEventKind.DISK_JUST_WRITABLE: "has room again, but not much",
}
