"""Locks of ledgers under repair: ephemeral nodes of this process's ZooKeeper session.

States of a lock here: free → taking → held → released, or lost. A lock is lost when its session ends, and when someone
deletes its node, as BookKeeper's workers may do by mistake; the holder is notified in both cases, and the node is
watched for that.

A node is recognised as this lock's by its session and its data version: a lock begins at a random version of 1 or more,
while BookKeeper's begin at 0. So a check or deletion of a lock by its version never matches BookKeeper's, and hardly
ever that of a later holder in the same place. A write under the lock is sent in the lock's session only.

A node whose creation has an unknown outcome is deleted before the ledger can be locked here again. Source:
docs/protocol/auto-recovery.md#locks.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from bookgate.gateway.stores.zookeeper.nodes import children_or_none, ensure_node, parent_of
from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.gateway.stores.zookeeper.session import GuardGoneError, ZooKeeperSession
from bookgate.ledger.errors import BKException, LockLostException, MetadataFormatException, UnknownOutcomeException
from bookgate.ledger.replication import decode_lock, encode_lock, ledger_id_of_mark, mark_name
from bookgate.ledger.replication_store import LedgerLock
from bookgate.runtime.background import keep_running

_RETRY_SECONDS = 1.0
_LOWEST_VERSION, _HIGHEST_VERSION = 1, 16
_READ_TOGETHER = 200


@dataclass(frozen=True, slots=True)
class _Held:
    lock: LedgerLock
    version: int
    session_id: int


class LedgerLocks:
    """The factory reports each reconnect."""

    def __init__(self, session: ZooKeeperSession, paths: ReplicationPaths, lost: Callable[[LedgerLock], None]) -> None:
        self._session = session
        self._paths = paths
        self._lost = lost
        self._numbers = itertools.count(1)
        self._held: dict[int, _Held] = {}
        self._busy: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        """See the interface."""
        if ledger_id in self._held or ledger_id in self._busy:
            return None
        self._busy.add(ledger_id)
        try:
            version = await self._create(ledger_id, holder)
        except BaseException as error:
            if isinstance(error, (UnknownOutcomeException, asyncio.CancelledError)):
                self._remove_soon(ledger_id)
            else:
                self._busy.discard(ledger_id)
            raise
        self._busy.discard(ledger_id)
        if version is None:
            return None
        session_id = self._session.session_id
        lock = LedgerLock(ledger_id, f"{session_id:x}-{next(self._numbers)}")
        self._held[ledger_id] = _Held(lock, version, session_id)
        self._look_soon(lock)
        return lock

    async def release(self, lock: LedgerLock) -> None:
        """See the interface."""
        held = self._held.get(lock.ledger_id)
        if held is None or held.lock != lock:
            return
        del self._held[lock.ledger_id]
        self._busy.add(lock.ledger_id)
        try:
            await self._delete_own(lock.ledger_id)
        except BaseException:
            self._remove_soon(lock.ledger_id)
            raise
        self._busy.discard(lock.ledger_id)

    async def is_held(self, lock: LedgerLock) -> bool:
        """See the interface."""
        held = self._held.get(lock.ledger_id)
        if held is None or held.lock != lock:
            return False
        stat = await self._session.exists(self._paths.lock(lock.ledger_id))
        if self._is_of(stat, held):
            return True
        self._lose(held)
        return False

    async def holders(self) -> Mapping[int, str]:
        """All locks, including those of other processes."""
        found: dict[int, str] = {}
        for directory in (self._paths.locks, self._paths.scoped_locks):
            numbers = map(ledger_id_of_mark, await children_or_none(self._session, directory) or ())
            locked = sorted(number for number in numbers if number is not None)
            for start in range(0, len(locked), _READ_TOGETHER):
                part = locked[start : start + _READ_TOGETHER]
                contents = await self._session.get_many([self._paths.lock(number) for number in part])
                for number, content in zip(part, contents, strict=True):
                    if not isinstance(content, Exception):
                        found[number] = _holder(content[0])
        return found

    async def set_under(self, lock: LedgerLock, path: str, data: bytes, version: int) -> ZnodeStat:
        """Changes a node, in one transaction with the check of the lock."""
        held = self._held.get(lock.ledger_id)
        if held is None or held.lock != lock:
            raise _lock_lost(lock)
        guard = (self._paths.lock(lock.ledger_id), held.version)
        try:
            return await self._session.set_guarded(path, data, version, guard, held.session_id)
        except GuardGoneError:
            self._lose(held)
            raise _lock_lost(lock) from None

    def reconnected(self, new_session: bool) -> None:
        """In a new session every lock is lost. In the same session the watches are gone, and events were missed."""
        for held in list(self._held.values()):
            if new_session:
                self._lose(held)
                # A client that was created anew may continue the same session, and its nodes with it.
                self._busy.add(held.lock.ledger_id)
                self._remove_soon(held.lock.ledger_id)
            else:
                self._look_soon(held.lock)

    async def close(self) -> None:
        """Stops all work. The nodes are deleted with the session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _create(self, ledger_id: int, holder: str) -> int | None:
        """The version of the created node; None if another process has the lock."""
        path, data = self._paths.lock(ledger_id), encode_lock(holder)
        version = random.randint(_LOWEST_VERSION, _HIGHEST_VERSION)
        while True:
            try:
                await self._session.create_ephemeral_at(path, data, version)
                return version
            except NodeExistsError:
                return None
            except NoNodeError:
                await ensure_node(self._session, parent_of(path), self._paths.root)

    async def _delete_own(self, ledger_id: int) -> None:
        """Deletes the lock's node if it belongs to this session; at its version only, so never a successor."""
        path = self._paths.lock(ledger_id)
        stat = await self._session.exists(path)
        if stat is None or stat.ephemeralOwner != self._session.session_id or not stat.version:
            return
        try:
            await self._session.delete(path, stat.version)
        except (NoNodeError, BadVersionError):
            return

    def _remove_soon(self, ledger_id: int) -> None:
        """Removes the node of a ledger that is busy until this has succeeded."""

        async def remove() -> None:
            while True:
                try:
                    # A server that was connected to since may not yet have a node whose creation was not answered.
                    await self._session.sync(self._paths.base)
                    await self._delete_own(ledger_id)
                except BKException:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                self._busy.discard(ledger_id)
                return

        self._start("removal of a lock", remove)

    def _look_soon(self, lock: LedgerLock) -> None:
        """Checks whether the node still exists, and watches it."""

        def on_event(event: WatchedEvent) -> None:
            self._look_soon(lock)

        async def look() -> None:
            while (held := self._held.get(lock.ledger_id)) is not None and held.lock == lock:
                try:
                    stat = await self._session.exists(self._paths.lock(lock.ledger_id), on_event)
                except BKException:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if not self._is_of(stat, held):
                    self._lose(held)
                return

        self._start("watch of a lock", look)

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = keep_running(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _is_of(stat: ZnodeStat | None, held: _Held) -> bool:
        return stat is not None and (stat.ephemeralOwner, stat.version) == (held.session_id, held.version)

    def _lose(self, held: _Held) -> None:
        if self._held.get(held.lock.ledger_id) is held:
            del self._held[held.lock.ledger_id]
            self._lost(held.lock)


def _holder(content: bytes) -> str:
    try:
        return decode_lock(content)
    except MetadataFormatException:
        return ""


def _lock_lost(lock: LedgerLock) -> LockLostException:
    return LockLostException(f"the lock {mark_name(lock.ledger_id)} is lost: nothing was written under it")
