"""Combinations of node operations that several parts of the ZooKeeper store use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import MetaStoreException

_REMOVED_TOGETHER = 500


async def ensure_node(session: ZooKeeperSession, path: str, root: str = "/", *, open_to_all: bool = False) -> None:
    """Creates an empty persistent node, and its missing parents below `root`, unless they exist."""
    while True:
        try:
            await session.create(path, open_to_all=open_to_all)
        except NodeExistsError:
            return
        except NoNodeError:
            await _ensure_above(session, path, root)
        else:
            return


async def create_with_parents(
    session: ZooKeeperSession, path: str, data: bytes, root: str, *, ephemeral: bool = False
) -> int:
    """Creates a node and its missing parents, again if somebody removes those meanwhile; never the root. Returns the
    node's czxid.

    Raises NodeExistsError, and MetaStoreException if the root is gone.
    """
    while True:
        try:
            return await session.create(path, data, ephemeral=ephemeral)
        except NoNodeError:
            await _ensure_above(session, path, root)


async def _ensure_above(session: ZooKeeperSession, path: str, root: str) -> None:
    parent = parent_of(path)
    if len(parent) <= len(root):
        raise MetaStoreException(
            f"ZooKeeper has no {root}: the cluster was removed, or the ledgers root or chroot is wrong"
        )
    await ensure_node(session, parent, root)


async def delete_as_read(session: ZooKeeperSession, path: str, may: Callable[[bytes, ZnodeStat], bool]) -> bool:
    """Deletes a node if `may`, given its content and stat, returns true; returns that.

    A version alone does not tell a node from one that was made in its place. The deletion is therefore sent over the
    connection over which the node was read, right after that: it does not wait for another connection.

    Raises NoNodeError, and BadVersionError if the node was changed meanwhile.
    """
    while True:
        epoch = session.connection_epoch
        content, stat = await session.get(path)
        if not may(content, stat):
            return False
        if session.connected and session.connection_epoch == epoch:
            await session.delete(path, stat.version)
            return True


async def remove_empty_parents(session: ZooKeeperSession, path: str, root: str) -> None:
    """Removes the nodes above `path`, from the lowest up, while they are empty; never the root."""
    parent = parent_of(path)
    while len(parent) > len(root):
        try:
            await session.delete(parent)
        except NotEmptyError:
            return
        except NoNodeError:
            pass
        parent = parent_of(parent)


async def children_or_none(session: ZooKeeperSession, path: str) -> list[str] | None:
    """Names of the children; None if the node does not exist."""
    try:
        return await session.children(path)
    except NoNodeError:
        return None


async def remove_tree(session: ZooKeeperSession, path: str) -> None:
    """Removes a node and everything below it, hundreds of nodes per request; missing nodes are ignored."""
    for names in _cut(await children_or_none(session, path) or []):
        below = [f"{path}/{name}" for name in names]
        try:
            await session.delete_together(below)
        except (NotEmptyError, NoNodeError):
            # One of them has children, or another process removes them too.
            for child in below:
                await remove_tree(session, child)
    try:
        await session.delete(path)
    except NoNodeError:
        return
    except NotEmptyError:
        await remove_tree(session, path)


def _cut(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _REMOVED_TOGETHER] for start in range(0, len(names), _REMOVED_TOGETHER)]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
