"""Watches on auto-recovery's nodes: the switch, the delay, the bookies to be emptied, and the marks' directories.

Active as long as there are listeners. Each watched node is read again after its event, then its contents are reported.
Of the marks, the directories above the lowest level are watched: a ledger marked for the first time gets a lowest
directory of its own, a new child of a watched one. A mark may follow its directory a moment later, and a mark that is
written again shows in no directory; marks are therefore also reported as changed at intervals, and only that if there
are too many directories. Source: docs/protocol/auto-recovery.md#changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from dataclasses import dataclass

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import BKException, MetadataFormatException
from bookgate.ledger.replication import decode_delay
from bookgate.ledger.replication_store import DelayChanged, DrainsChanged, MarksChanged, RecordKind, SwitchChanged
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event
from bookgate.runtime.replication_listeners import ReplicationListeners

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 10.0
_WATCHED_LEVELS = 4
_WATCHED_SCOPED_LEVELS = 8
_MOST_DIRECTORIES = 2_000
_DIRECTORY = re.compile(r"[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class _NodeWatch:
    """All objects of one node are equal, so an event is reported once."""

    changes: ReplicationChanges
    path: str

    def __call__(self, event: WatchedEvent) -> None:
        self.changes.look_at(self.path)


class ReplicationChanges:
    """Used by the manager; the factory reports restored connections."""

    def __init__(self, session: ZooKeeperSession, paths: ReplicationPaths, look_seconds: float = _LOOK_SECONDS) -> None:
        self._session = session
        self._paths = paths
        self._look_seconds = look_seconds
        self.listeners = ReplicationListeners(self._interest_changed)
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._directories: set[str] = set()
        self._delay_written: int | None = None
        self._drains = paths.records(RecordKind.DRAINING_BOOKIE)
        self._draining: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def look_at(self, path: str) -> None:
        """Reads a node again, and reports its contents."""
        self._due[path] = None
        self._wake.set()

    def reconnected(self) -> None:
        """Every watch is gone: reads everything that is watched."""
        if self._task is not None:
            self._look_at_all()

    async def close(self) -> None:
        """Reports nothing any more."""
        self.listeners.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _interest_changed(self) -> None:
        if len(self.listeners) and self._task is None:
            self._delay_written = None
            self._look_at_all()
            self._task = keep_running("changes of auto-recovery", self._read_forever)
        elif not len(self.listeners) and self._task is not None:
            self._task.cancel()
            self._task = None

    def _look_at_all(self) -> None:
        self._directories.clear()
        roots = self._paths.marks, self._paths.scoped_marks
        for path in (self._paths.disable, self._paths.delay, self._drains, *roots):
            self.look_at(path)

    async def _read_forever(self) -> None:
        while True:
            self._wake.clear()
            marks_changed = False
            while self._due:
                path = next(iter(self._due))
                del self._due[path]
                try:
                    marks_changed |= await self._read(path)
                except BKException as error:
                    self._due[path] = None
                    log_event(_LOG, "auto_recovery_not_watched", logging.WARNING, error=error, note="it is tried again")
                    await asyncio.sleep(_RETRY_SECONDS)
            if marks_changed:
                self.listeners.tell(MarksChanged())
            try:
                async with asyncio.timeout(self._look_seconds * random.uniform(0.75, 1.25)):
                    await self._wake.wait()
            except TimeoutError:
                self.listeners.tell(MarksChanged())

    async def _read(self, path: str) -> bool:
        """Reads and watches a node; true if marks may have changed."""
        if path == self._paths.disable:
            disabled = await self._session.exists(path, _NodeWatch(self, path))
            self.listeners.tell(SwitchChanged(enabled=disabled is None))
            return False
        if path == self._paths.delay:
            await self._read_delay(path)
            return False
        if path == self._drains:
            await self._read_drains(path)
            return False
        await self._watch_directories(path)
        return True

    async def _read_delay(self, path: str) -> None:
        stat = await self._session.exists(path, _NodeWatch(self, path))
        seconds, written = None, 0
        if stat is not None:
            try:
                content, stat = await self._session.get(path)
            except NoNodeError:
                self.look_at(path)
                return
            written = stat.mzxid
            with contextlib.suppress(MetadataFormatException):
                seconds = decode_delay(content)
        if written != self._delay_written:
            self._delay_written = written
            self.listeners.tell(DelayChanged(seconds))

    async def _read_drains(self, path: str) -> None:
        names: frozenset[str] = frozenset()
        try:
            names = frozenset(await self._session.children(path, _NodeWatch(self, path)))
        except NoNodeError:
            if await self._session.exists(path, _NodeWatch(self, path)) is not None:
                self.look_at(path)
                return
        if names != self._draining:
            self._draining = names
            self.listeners.tell(DrainsChanged())

    async def _watch_directories(self, path: str) -> None:
        """Watches a directory, and those below it that are not watched yet."""
        waiting = [path]
        while waiting:
            directory = waiting.pop()
            watched = directory in self._directories
            if not watched and len(self._directories) >= _MOST_DIRECTORIES:
                return
            self._directories.add(directory)
            try:
                names = await self._session.children(directory, _NodeWatch(self, directory))
            except NoNodeError:
                self._directories.discard(directory)
                if directory in (self._paths.marks, self._paths.scoped_marks):
                    # The node may be created later.
                    await self._session.exists(directory, _NodeWatch(self, directory))
                continue
            if self._is_lowest(directory):
                continue
            below = [f"{directory}/{name}" for name in sorted(names) if _DIRECTORY.fullmatch(name)]
            waiting += [each for each in below if each not in self._directories]

    def _is_lowest(self, directory: str) -> bool:
        """Whether those below it are not watched: each of them has one mark."""
        root = self._paths.marks_above(f"{directory}/")
        levels = _WATCHED_LEVELS if root == self._paths.marks else _WATCHED_SCOPED_LEVELS
        return directory[len(root) :].count("/") + 1 >= levels
