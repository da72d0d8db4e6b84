"""Service discovery from ZooKeeper: registrations of any implementation, and cookies.

A snapshot reads the three lists of names and then the contents of each registration; bookies that disappear meanwhile
are left out. For listeners the same reads set watches (on the lists, and on the contents of each registration), and any
event causes a new snapshot; after a lost connection a new snapshot sets them again. So no notification can be lost for
good.

As long as none of these watches has fired or was lost, the last such snapshot is what the registrations are, as far as
this session's server has told. `bookies` then asks that server for a single node instead of reading all registrations:
every event of an earlier change precedes the answer, so a snapshot that is valid after it is as new as a snapshot begun
at the call. Without listeners, after an event and after a lost connection everything is read. Source:
docs/protocol/metadata.md#registration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from bookgate.gateway.stores.bookie_listeners import BookieListeners, select
from bookgate.gateway.stores.bounded_map import map_unordered
from bookgate.gateway.stores.zookeeper.kazoo_thread import NodeWatch
from bookgate.gateway.stores.zookeeper.layout import FACTORY_CLASSES, ClusterPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BookieHandleNotAvailableException, MetaStoreException
from bookgate.ledger.metadata_store import BookieSet, BookiesListener, ClusterInfo, RegisteredBookie, ServiceDiscovery

_READ_ONLY_DIRECTORY = "readonly"


@dataclass(frozen=True)
class _Moment:
    """A time at which watches are set: it is over with their next event, or with their connection."""

    events: int
    connection_epoch: int


@dataclass(frozen=True)
class _WatchedSet:
    """All bookies, and the moment at which every read of them, and every watch of theirs, was valid."""

    moment: _Moment
    bookies: Sequence[RegisteredBookie]

    @cached_property
    def sets(self) -> dict[BookieSet, tuple[RegisteredBookie, ...]]:
        return {each: select(self.bookies, each) for each in BookieSet}


class ZooKeeperServiceDiscovery(ServiceDiscovery):
    """The factory reports restored connections to `listeners`."""

    def __init__(self, session: ZooKeeperSession, paths: ClusterPaths, manager: Callable[[], str]) -> None:
        """`manager` returns the name of the cluster's ledger manager, which is known once LAYOUT was read."""
        self._session = session
        self._paths = paths
        self._manager = manager
        self._events = 0
        self._watched: _WatchedSet | None = None
        self.listeners = BookieListeners(self._read_for_listeners)

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        watched = self._watched
        if watched is not None and watched.moment == self._moment():
            await self._session.exists(self._paths.available)
            if watched.moment == self._moment():
                return watched.sets[bookie_set]
        return select(await self._snapshot(None), bookie_set)

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        writable = await self._content(self._paths.writable_bookie(bookie_id), None)
        read_only = await self._content(self._paths.read_only_bookie(bookie_id), None)
        if writable is None and read_only is None:
            # The bookie may have moved to the first list in between.
            writable = await self._content(self._paths.writable_bookie(bookie_id), None)
        content = writable if writable is not None else read_only
        if content is None or bookie_id == _READ_ONLY_DIRECTORY:
            raise BookieHandleNotAvailableException(f"bookie {bookie_id} is not registered")
        return RegisteredBookie(
            BookieServiceInfo.announced(bookie_id, content), writable is not None, read_only is not None
        )

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        return self.listeners.add(bookie_set, listener)

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(await read_instance_id(self._session, self._paths), FACTORY_CLASSES[self._manager()])

    def _moment(self) -> _Moment:
        return _Moment(self._events, self._session.connection_epoch)

    def _on_event(self, event: WatchedEvent) -> None:
        self._events += 1
        self.listeners.changed()

    async def _read_for_listeners(self) -> Sequence[RegisteredBookie]:
        before = self._moment()
        bookies = await self._snapshot(self._on_event)
        # An event between two of the reads may be of a bookie that was read before it.
        self._watched = _WatchedSet(before, bookies) if before == self._moment() else None
        return bookies

    async def _snapshot(self, watch: NodeWatch | None) -> list[RegisteredBookie]:
        writable = set(await self._names(self._paths.available, watch)) - {_READ_ONLY_DIRECTORY}
        read_only = set(await self._names(self._paths.read_only, watch))
        # Read again: a bookie that moved to the first list in between appears in neither of the two results.
        writable |= set(await self._names(self._paths.available, watch)) - {_READ_ONLY_DIRECTORY}
        known = set(await self._names(self._paths.cookies, watch))

        async def describe(bookie_id: str) -> RegisteredBookie | None:
            return await self._describe(bookie_id, bookie_id in writable, bookie_id in read_only, watch)

        found = {
            bookie.bookie_id: bookie async for bookie in map_unordered(describe, sorted(writable | read_only)) if bookie
        }
        for bookie_id in sorted(known):
            found.setdefault(bookie_id, RegisteredBookie(BookieServiceInfo.legacy(bookie_id), False, False))
        return list(found.values())

    async def _describe(
        self, bookie_id: str, writable: bool, read_only: bool, watch: NodeWatch | None
    ) -> RegisteredBookie | None:
        listed, other = self._paths.writable_bookie(bookie_id), self._paths.read_only_bookie(bookie_id)
        if not writable:
            listed, other = other, listed
        content = await self._content(listed, watch)
        if content is not None:
            return RegisteredBookie(BookieServiceInfo.announced(bookie_id, content), writable, read_only)
        # The bookie may have moved between the lists since they were read.
        content = await self._content(other, watch)
        return (
            None
            if content is None
            else RegisteredBookie(BookieServiceInfo.announced(bookie_id, content), not writable, writable)
        )

    async def _names(self, path: str, watch: NodeWatch | None) -> list[str]:
        try:
            return await self._session.children(path, watch)
        except NoNodeError:
            # A node that does not exist has no watch on its children; a watch on its creation serves as well.
            if watch is not None and await self._session.exists(path, watch) is not None:
                return await self._session.children(path, watch)
            return []

    async def _content(self, path: str, watch: NodeWatch | None) -> bytes | None:
        try:
            return (await self._session.get(path, watch))[0]
        except NoNodeError:
            return None


def no_cluster(session: ZooKeeperSession, paths: ClusterPaths) -> MetaStoreException:
    """The error for a store without a cluster, with its remedy."""
    return MetaStoreException(
        f"ZooKeeper ({session.servers}) has no cluster at {paths.root}; are its servers, the chroot and the ledgers "
        "root the right ones? If there is to be a new cluster, `bookgate cluster init` makes it"
    )


async def read_instance_id(session: ZooKeeperSession, paths: ClusterPaths) -> str:
    """The cluster's id. Raises MetaStoreException when the cluster was never initialised."""
    try:
        content, _ = await session.get(paths.instance_id)
    except NoNodeError:
        raise MetaStoreException(
            f"ZooKeeper has no {paths.instance_id}: the cluster was never initialised, or the ledgers root is wrong"
        ) from None
    return content.decode(errors="replace").strip()
