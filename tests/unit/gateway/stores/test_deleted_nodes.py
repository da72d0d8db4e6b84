"""Deletions of nodes in whose place another may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NoNodeError

from bookgate.gateway.stores.zookeeper.nodes import delete_as_read

pytestmark = pytest.mark.asyncio


class Session:
    """One node. After it was read once, it is replaced by another's of the same version, over a new connection."""

    connected = True

    def __init__(self, *, replaced: bool) -> None:
        self.connection_epoch = 0
        self.content: bytes | None = b"own"
        self.version = 0
        self._replaced = replaced

    async def get(self, path: str) -> tuple[bytes, Any]:
        if self.content is None:
            raise NoNodeError
        found = self.content, SimpleNamespace(version=self.version)
        if self._replaced:
            self._replaced = False
            self.content = b"another's"
            self.connection_epoch += 1
        return found

    async def delete(self, path: str, version: int) -> None:
        if version != self.version:
            raise BadVersionError
        self.content = None


async def test_a_node_goes_as_it_was_read() -> None:
    session: Any = Session(replaced=False)
    assert not await delete_as_read(session, "/l/n", lambda content, stat: content != b"own")
    assert session.content == b"own"
    assert await delete_as_read(session, "/l/n", lambda content, stat: content == b"own")
    assert session.content is None
    with pytest.raises(NoNodeError):
        await delete_as_read(session, "/l/n", lambda content, stat: True)


async def test_a_node_that_was_read_over_an_earlier_connection_is_read_again() -> None:
    session: Any = Session(replaced=True)
    assert not await delete_as_read(session, "/l/n", lambda content, stat: content == b"own")
    assert session.content == b"another's"
