"""Ledgers that were deleted and created anew, at a ZooKeeper server that has not seen it yet."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.ledger_manager import ZooKeeperLedgerManager
from bookgate.gateway.stores.zookeeper.ledger_paths import FlatPaths
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord

pytestmark = pytest.mark.asyncio

METADATA = LedgerMetadata.new(["b-1"], 1, 1)
FORMER, LATER = 7, 9


class Session:
    """Its server sees the former ledger, or none, until `sync` was called, and then the later one."""

    def __init__(self, seen: int | None) -> None:
        self._seen = seen
        self.changes: list[str] = []

    async def sync(self, _path: str) -> None:
        self._seen = LATER

    async def exists(self, _path: str, _watch: Any = None) -> ZnodeStat | None:
        return None if self._seen is None else ZnodeStat(self._seen, self._seen, 0, 0, 0, 0, 0, 0, 1, 0, self._seen)

    async def set(self, path: str, _data: bytes, _version: int) -> ZnodeStat:
        self.changes.append(path)
        return ZnodeStat(LATER, 10, 0, 0, 1, 0, 0, 0, 1, 0, LATER)

    async def delete(self, path: str, _version: int) -> None:
        self.changes.append(path)


@pytest.mark.parametrize("seen", [FORMER, None])
async def test_a_server_that_lags_is_asked_once_it_has_caught_up(seen: int | None) -> None:
    session: Any = Session(seen)
    ids: Any = None
    manager = ZooKeeperLedgerManager(session, FlatPaths("/ledgers"), ids)
    former = LedgerRecord(LedgerId.unscoped(5), METADATA, 0, incarnation=FORMER)
    for change in (manager.write_to(former, METADATA.close(9, 900)), manager.remove_record(former)):
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="another one was created"):
            await change
    assert session.changes == []
