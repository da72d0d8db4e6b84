"""A bookie's ephemeral nodes and its cookie in ZooKeeper.

A bookie is registered if this session created a node in `available` or in `available/readonly`. Moving between the
lists creates the new node before the old one is deleted, so for a moment the bookie is in both. An existing node of
another session may be from this bookie's previous life: its end is awaited, up to the session timeout. A node of the
same lease (a bookie that moves here from another gateway) is taken over in one transaction, so discovery never misses
the bookie. A later node of the same lease, in either list, means that the bookie has moved on: then none is created.
Both lists are checked again after a node was created: of two gateways that create one at the same time, the later sees
the other's.

When a session has expired, the nodes of this process are created again in the new one, until that succeeds or the
bookie is unregistered. What is done for one bookie id is done in turn, so an unregistration comes after whatever was
tried before it and takes that back, also what a lost answer has left. It does not wait for a registration that is
being repeated. Source: docs/protocol/metadata.md#registration, docs/protocol/metadata.md#cookies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from bookgate.gateway.stores.claims import Claims, MovedOnException, held_by_another, moved_on
from bookgate.gateway.stores.zookeeper.discovery import read_instance_id
from bookgate.gateway.stores.zookeeper.layout import ClusterPaths
from bookgate.gateway.stores.zookeeper.nodes import create_with_parents, delete_as_read, ensure_node
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease, check_bookie_id, lease_of
from bookgate.ledger.errors import BKException, MetadataVersionException
from bookgate.ledger.metadata_store import RegistrationManager, Versioned
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class ZooKeeperRegistrationManager(RegistrationManager):
    """The factory reports new sessions."""

    def __init__(self, session: ZooKeeperSession, paths: ClusterPaths) -> None:
        self._session = session
        self._paths = paths
        self._claims = Claims()
        self._held = self._claims.held
        self._new_sessions = 0
        self._lost: set[str] = set()
        self._again: asyncio.Task[None] | None = None
        # Two concurrent moves, one to each list, could each delete the other's node.
        self._moving: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waits: dict[str, asyncio.Event] = {}
        """By the path of a node whose end is waited for: set when it has changed."""
        self._repeating: dict[str, asyncio.Timeout] = {}
        """What ends the repetition of a registration early."""

    async def cluster_instance_id(self) -> str:
        return await read_instance_id(self._session, self._paths)

    def reserve(self, bookie_id: str) -> None:
        self._claims.reserve(bookie_id)

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        check_bookie_id(info.bookie_id)
        async with self._turn(info.bookie_id):
            self._claims.check(info)
            new_sessions = -1
            while new_sessions != self._new_sessions:
                # A session that began meanwhile does not have nodes made before it.
                new_sessions = self._new_sessions
                await self._put(info, read_only)
            self._held[info.bookie_id] = (info, read_only)

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        if self._claims.may_change(bookie_id, lease) and (repeating := self._repeating.pop(bookie_id, None)):
            repeating.reschedule(0)
        async with self._turn(bookie_id):
            if not self._claims.may_change(bookie_id, lease):
                return
            self._held.pop(bookie_id, None)
            # Even if nothing is held: a registration whose response was lost may have left a node of this session.
            await self._take_back(bookie_id, lease)

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        try:
            stored, stat = await self._session.get(self._lists(info.bookie_id, read_only)[0])
        except NoNodeError:
            return False
        return stored == info.encode() and bool(stat.ephemeralOwner == self._session.session_id)

    async def _take_back(self, bookie_id: str, lease: Lease | None) -> None:
        # A server that was connected to since may not yet have a node whose creation was not answered.
        await self._session.sync(self._paths.available)
        for path in self._lists(bookie_id, read_only=False):
            await self._delete(path, lambda stored, own: own and _is_of(lease, lease_of(stored)))

    def _turn(self, bookie_id: str) -> asyncio.Lock:
        """The lock of what is done for a bookie id, which exists as long as somebody holds it or waits for it."""
        return self._moving.setdefault(bookie_id, asyncio.Lock())

    def _lists(self, bookie_id: str, read_only: bool) -> tuple[str, str]:
        """The bookie's node in the list in which it must be, and in the other one."""
        writable, other = self._paths.writable_bookie(bookie_id), self._paths.read_only_bookie(bookie_id)
        return (other, writable) if read_only else (writable, other)

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        try:
            content, stat = await self._session.get(self._paths.cookie(bookie_id))
        except NoNodeError:
            return None
        return Versioned(content, stat.version)

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        path = self._paths.cookie(check_bookie_id(bookie_id))
        try:
            if expected_version is None:
                await create_with_parents(self._session, path, cookie, self._paths.root)
            else:
                await self._session.set(path, cookie, _real_version(bookie_id, expected_version))
        except NodeExistsError:
            raise MetadataVersionException(f"there is a cookie of bookie {bookie_id} already") from None
        except (BadVersionError, NoNodeError):
            raise _cookie_conflict(bookie_id, expected_version) from None

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        try:
            await self._session.delete(self._paths.cookie(bookie_id), _real_version(bookie_id, expected_version))
        except (BadVersionError, NoNodeError):
            raise _cookie_conflict(bookie_id, expected_version) from None

    def session_renewed(self) -> None:
        """The old session's nodes are gone or will be soon: creates them again."""
        self._new_sessions += 1
        self._lost.update(self._held)
        if self._lost and self._again is None:
            self._again = keep_running("registration in a new session", self._register_again)

    async def close(self) -> None:
        """Removes every registration made here."""
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        for bookie_id, (info, _) in list(self._held.items()):
            # If ZooKeeper is unreachable, the nodes are deleted with the session.
            with contextlib.suppress(BKException):
                if self._session.connected:
                    await self.unregister_bookie(bookie_id, info.lease)

    async def _put(self, info: BookieServiceInfo, read_only: bool) -> None:
        try:
            await self._put_into_list(info, read_only)
        except MovedOnException:
            # An earlier attempt, too, may have left a node: its answer was lost.
            await self._take_back(info.bookie_id, info.lease)
            raise

    async def _put_into_list(self, info: BookieServiceInfo, read_only: bool) -> None:
        await self.check_membership(info.bookie_id)
        target, other = self._lists(info.bookie_id, read_only)
        if read_only:
            await ensure_node(self._session, self._paths.read_only, self._paths.root)
        await self._check_not_moved_on(info, other)
        await self._create_own(info, target)
        await self._delete(other, lambda stored, own: own or info.may_replace(stored))
        await self._check_not_moved_on(info, other)

    async def _check_not_moved_on(self, info: BookieServiceInfo, path: str) -> None:
        """Raises MovedOnException if the node is a later one of the same lease."""
        if info.lease is None:
            return
        with contextlib.suppress(NoNodeError):
            if info.superseded_by((await self._session.get(path))[0]):
                raise moved_on(info.bookie_id)

    async def _create_own(self, info: BookieServiceInfo, path: str) -> None:
        content = info.encode()
        try:
            await create_with_parents(self._session, path, content, self._paths.root, ephemeral=True)
            return
        except NodeExistsError:
            pass
        if await self._refresh_own(path, content) or await self._take_over(info, path):
            return
        await self._wait_until_gone(info.bookie_id, path)
        try:
            await create_with_parents(self._session, path, content, self._paths.root, ephemeral=True)
        except NodeExistsError:
            raise held_by_another(info.bookie_id) from None

    async def _refresh_own(self, path: str, content: bytes) -> bool:
        """True if the node is this session's; its content is then up to date."""
        try:
            stored, stat = await self._session.get(path)
            if stat.ephemeralOwner != self._session.session_id:
                return False
            if stored != content:
                await self._session.set(path, content, stat.version)
        except (NoNodeError, BadVersionError):
            return False
        return True

    async def _take_over(self, info: BookieServiceInfo, path: str) -> bool:
        """True if the node was an earlier one of the same lease and now belongs to this session.

        Raises MovedOnException if it is a later one: waiting would not help.
        """
        try:
            stored, stat = await self._session.get(path)
            if info.may_replace(stored):
                await self._session.take_over(path, info.encode(), stat.version)
                log_event(_LOG, "registration_moved", bookie=info.bookie_id, from_session=f"{stat.ephemeralOwner:x}")
                return True
        except (NoNodeError, BadVersionError):
            return False
        if info.superseded_by(stored):
            raise moved_on(info.bookie_id)
        return False

    async def _wait_until_gone(self, bookie_id: str, path: str) -> None:
        """Waits for the end of another session's node, up to the session timeout."""
        log_event(_LOG, "registration_waits", bookie=bookie_id, reason="another session has registered this id")
        changed = self._waits[path] = asyncio.Event()
        try:
            # The server checks for expired sessions once per tick: a little more than the timeout.
            async with asyncio.timeout(self._session.session_timeout_seconds * 1.2):
                while await self._session.exists(path, _NodeWatch(self, path)) is not None:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise held_by_another(bookie_id) from None
        finally:
            del self._waits[path]

    def node_changed(self, path: str) -> None:
        """For `_NodeWatch`."""
        if (changed := self._waits.get(path)) is not None:
            changed.set()

    async def _delete(self, path: str, may: Callable[[bytes, bool], bool]) -> None:
        """Deletes the node if `may`, given its content and whether it is this session's, returns true.

        Deletes that version only: a node that another gateway takes over at this moment stays.
        """
        with contextlib.suppress(NoNodeError, BadVersionError):
            if await self._session.exists(path) is None:
                return
            await delete_as_read(
                self._session, path, lambda stored, stat: may(stored, stat.ephemeralOwner == self._session.session_id)
            )

    async def _register_again(self) -> None:
        while self._lost:
            try:
                failed = {bookie_id for bookie_id in sorted(self._lost) if not await self._try_again(bookie_id)}
            except Exception:
                self._lost.update(self._held)  # those not reached yet
                raise
            self._lost |= failed
            if failed:
                await asyncio.sleep(_RETRY_SECONDS)
        self._again = None

    async def _put_until_unregistered(self, info: BookieServiceInfo, read_only: bool) -> None:
        """Raises TimeoutError once the bookie is to be unregistered."""
        try:
            async with asyncio.timeout(None) as self._repeating[info.bookie_id]:
                await self._put(info, read_only)
        finally:
            self._repeating.pop(info.bookie_id, None)

    async def _try_again(self, bookie_id: str) -> bool:
        """False if it failed. If the session is lost meanwhile, the bookie counts as lost again."""
        self._lost.discard(bookie_id)
        try:
            async with self._turn(bookie_id):
                held = self._held.get(bookie_id)
                if held is None:
                    return True
                try:
                    await self._put_until_unregistered(*held)
                except MovedOnException as error:
                    log_event(_LOG, "registration_not_renewed", error=error)
                    self._held.pop(bookie_id, None)
                    return True
                except TimeoutError:
                    # Whoever unregisters the bookie takes back what was put.
                    return False
        except BKException as error:
            log_event(_LOG, "not_registered", logging.WARNING, bookie=bookie_id, error=error, note="it is tried again")
            return False
        log_event(_LOG, "registered_again", bookie=bookie_id, session=f"{self._session.session_id:x}")
        return True


@dataclass(frozen=True, slots=True)
class _NodeWatch:
    """Tells who waits for the end of a node. All objects of a path are equal, so one is kept, however often the node
    outlives the wait.
    """

    manager: ZooKeeperRegistrationManager
    path: str

    def __call__(self, event: WatchedEvent) -> None:
        self.manager.node_changed(self.path)


def _is_of(lease: Lease | None, stored: Lease | None) -> bool:
    """Whether a node is of this owner; one of a later stream of a lease is not."""
    return stored is None if lease is None else lease.may_replace(stored)


def _real_version(bookie_id: str, version: int) -> int:
    """Rejects negative versions: ZooKeeper would take -1 for any version."""
    if version < 0:
        raise _cookie_conflict(bookie_id, version)
    return version


def _cookie_conflict(bookie_id: str, expected_version: int | None) -> MetadataVersionException:
    return MetadataVersionException(f"the cookie of bookie {bookie_id} is not at version {expected_version}")
