"""Creating, describing, emptying and removing a cluster in ZooKeeper. Source: docs/protocol/metadata.md#zookeeper-tree.

A cluster is created in one transaction. Format keeps the root, LAYOUT, the directories of registrations and the
coordination of auto-recovery, except its marks and locks; the new instance id comes last, so that an interrupted format
can be repeated. Nuke begins with the directories of registrations, which ZooKeeper does not delete while a bookie is
registered below them: a bookie that registers at the last moment therefore stops it before anything is lost.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Mapping

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError

from bookgate.gateway.stores.cluster_admin import NO_SETTINGS, ClusterAdmin, ClusterSummary
from bookgate.gateway.stores.zookeeper.discovery import no_cluster
from bookgate.gateway.stores.zookeeper.id_generator import id_generator_of
from bookgate.gateway.stores.zookeeper.kazoo_thread import MakeHandler, ThreadHandler
from bookgate.gateway.stores.zookeeper.layout import (
    DEFAULT_MANAGER,
    FACTORY_CLASSES,
    ClusterPaths,
    cluster_nodes,
    manager_of_layout,
)
from bookgate.gateway.stores.zookeeper.ledger_listing import LeafListings, list_ids
from bookgate.gateway.stores.zookeeper.ledger_paths import IdRange, paths_of
from bookgate.gateway.stores.zookeeper.nodes import children_or_none, ensure_node, parent_of, remove_tree
from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths, setting_nodes
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.gateway.stores.zookeeper.settings import DEFAULTS, ZooKeeperSettings
from bookgate.gateway.stores.zookeeper.uri import ZooKeeperUri
from bookgate.ledger.errors import BKException, IllegalOpException, LedgerExistException, MetaStoreException
from bookgate.ledger.replication_store import OF_LEDGERS_AND_BOOKIES

_OF_LEDGERS = re.compile(r"\d{2}|\d{3}|L\d{10,}|ID-.*|idgen|idgen-long|cookies|scoped")
_OF_RECOVERY = (
    "underreplication/ledgers",
    "underreplication/locks",
    "underreplication/bookgate/scoped",
    *(f"underreplication/bookgate/{kind.value}" for kind in OF_LEDGERS_AND_BOOKIES),
)


class ZooKeeperClusterAdmin(ClusterAdmin):
    """See the module."""

    def __init__(
        self,
        uri: ZooKeeperUri,
        settings: ZooKeeperSettings = DEFAULTS,
        make_handler: MakeHandler = ThreadHandler,
    ) -> None:
        self._uri = uri
        self._paths = ClusterPaths(uri.ledgers_root)
        self._session = ZooKeeperSession(uri.servers, settings=settings, make_handler=make_handler)

    async def connect(self) -> None:
        await self._session.start()

    async def close(self) -> None:
        await self._session.close()

    async def initialize(self, settings: Mapping[str, bytes] = NO_SETTINGS) -> None:
        manager = self._uri.manager or DEFAULT_MANAGER
        paths_of(manager, self._paths.root)
        parent = parent_of(self._paths.root)
        if parent != "/":
            await ensure_node(self._session, parent)
        try:
            nodes = [*cluster_nodes(self._paths, manager), *setting_nodes(ReplicationPaths(self._paths.root), settings)]
            await self._session.create_together(nodes)
        except NodeExistsError:
            raise LedgerExistException(
                f"ZooKeeper has {self._paths.root} already; to begin anew, use `bookgate cluster nuke` first"
            ) from None

    async def require_cluster(self) -> None:
        await self._session.sync(parent_of(self._paths.root))
        if await children_or_none(self._session, self._paths.root) is None:
            raise self._no_cluster()

    async def summary(self) -> ClusterSummary:
        manager = await self._manager(self._uri.manager)
        paths = paths_of(manager, self._paths.root)
        ledgers = 0
        async for run in list_ids(self._session, paths, IdRange(), LeafListings(self._session)):
            ledgers += len(run)
        writable, read_only = await self._registered()
        known = await children_or_none(self._session, self._paths.cookies)
        instance_id, _ = await self._session.get(self._paths.instance_id)
        return ClusterSummary(
            instance_id.decode(errors="replace").strip(),
            FACTORY_CLASSES[manager],
            ledgers,
            len(writable),
            len(read_only),
            len(known or ()),
        )

    async def registered_bookies(self) -> list[str]:
        writable, read_only = await self._registered()
        return sorted(writable | read_only)

    async def format(self) -> None:
        await self._manager(self._uri.manager)
        await self.refuse_if_bookies_live("formatted")
        root = self._paths.root
        for name in await self._session.children(root):
            if _OF_LEDGERS.fullmatch(name):
                await remove_tree(self._session, f"{root}/{name}")
        for name in _OF_RECOVERY:
            await remove_tree(self._session, f"{root}/{name}")
        await self._put(self._paths.instance_id, str(uuid.uuid4()).encode())

    async def advance_ids(self, beyond: int) -> int:
        manager = await self._manager(self._uri.manager)
        return await id_generator_of(manager, self._session, self._paths.root).advance(beyond)

    async def nuke(self) -> None:
        await self.require_cluster()
        await self.refuse_if_bookies_live("removed")
        try:
            for path in (self._paths.read_only, self._paths.available):
                with contextlib.suppress(NoNodeError):
                    await self._session.delete(path)
        except NotEmptyError:
            await self._restore_directories()
            raise IllegalOpException(
                "the cluster is not removed: a bookie has just registered; stop it first"
            ) from None
        await remove_tree(self._session, self._paths.root)

    async def _restore_directories(self) -> None:
        with contextlib.suppress(KazooException, BKException):
            await ensure_node(self._session, self._paths.read_only, self._paths.root)

    async def _registered(self) -> tuple[set[str], set[str]]:
        writable = set(await children_or_none(self._session, self._paths.available) or ())
        read_only = set(await children_or_none(self._session, self._paths.read_only) or ())
        return writable - {"readonly"}, read_only

    async def _manager(self, configured: str | None) -> str:
        await self._session.sync(parent_of(self._paths.root))
        try:
            content, _ = await self._session.get(self._paths.layout)
        except NoNodeError:
            raise self._no_cluster() from None
        return manager_of_layout(content, configured, self._paths.layout)

    def _no_cluster(self) -> MetaStoreException:
        return no_cluster(self._session, self._paths)

    async def _put(self, path: str, content: bytes) -> None:
        try:
            await self._session.create(path, content)
        except NodeExistsError:
            await self._session.set(path, content, -1)
