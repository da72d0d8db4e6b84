"""Removals at a gateway whose ZooKeeper server still shows a former ledger of the id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.http.caller import ANYBODY
from bookgate.gateway.http.routes.ledgers import remove_ledger
from bookgate.gateway.services import checked_changes
from bookgate.gateway.services.checked_changes import CheckedChanges
from bookgate.gateway.stores.zookeeper.ledger_manager import ZooKeeperLedgerManager
from bookgate.gateway.stores.zookeeper.ledger_paths import FlatPaths
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.runtime.security.decision import Reach

pytestmark = pytest.mark.asyncio

SEVEN = LedgerId.unscoped(7)
DATA = encode(LedgerMetadata.new(["b-1"], 1, 1))


def _stat(czxid: int) -> ZnodeStat:
    return ZnodeStat(czxid, czxid, 1, 1, 0, 0, 0, 0, len(DATA), 0, czxid)


class Session:
    """Reads are of a server that lags until `sync`; changes are the leader's."""

    def __init__(self) -> None:
        self.leader: ZnodeStat | None = _stat(200)
        self._shown: ZnodeStat | None = _stat(100)

    async def get(self, _path: str, _watch: Any = None) -> tuple[bytes, ZnodeStat]:
        if self._shown is None:
            raise NoNodeError
        return DATA, self._shown

    async def exists(self, _path: str, _watch: Any = None) -> ZnodeStat | None:
        return self._shown

    async def sync(self, _path: str) -> None:
        self._shown = self.leader

    async def delete(self, _path: str, version: int = -1) -> None:
        if self.leader is None:
            raise NoNodeError
        if version not in (-1, self.leader.version):
            raise BadVersionError
        self.leader = None


Removal = Callable[[Any], Awaitable[None]]


def _over_http(factory: Any) -> Awaitable[None]:
    return remove_ledger(factory, ANYBODY, SEVEN)


def _of_any_version(factory: Any) -> Awaitable[None]:
    return CheckedChanges(factory, None).remove(SEVEN, None)  # type: ignore[arg-type]


def _of_a_version(factory: Any) -> Awaitable[None]:
    return CheckedChanges(factory, None).remove(SEVEN, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("remove", [_over_http, _of_any_version, _of_a_version])
async def test_the_ledger_that_is_there_is_removed(remove: Removal, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a caller whose permission depends on the ledger, which is looked at first."""
    session: Any = Session()
    ids: Any = None
    manager = ZooKeeperLedgerManager(session, FlatPaths("/ledgers"), ids)
    factory = SimpleNamespace(ledger_manager=manager, catch_up=session.sync)
    who = SimpleNamespace(require_some=lambda *_: Reach.OWNED, take=lambda *_: None, require_ledger=lambda *_: None)
    monkeypatch.setattr(checked_changes, "caller", lambda: who)
    await remove(factory)
    assert session.leader is None
