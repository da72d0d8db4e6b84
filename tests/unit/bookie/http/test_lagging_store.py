"""Changes over HTTP where the store's replica still shows a former ledger of the id, or an earlier version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError
from kazoo.protocol.states import ZnodeStat

from bookgate.bookie.http.callers_ledgers import CallersLedgers
from bookgate.gateway.http.caller import ANYBODY
from bookgate.gateway.stores.zookeeper.ledger_manager import ZooKeeperLedgerManager
from bookgate.gateway.stores.zookeeper.ledger_paths import FlatPaths
from bookgate.ledger.metadata_codec import decode
from bookgate.ledger.metadata_store import LedgerRecord
from tests.unit.gateway.services.test_removals import DATA, SEVEN
from tests.unit.gateway.services.test_removals import Session as Removals

pytestmark = pytest.mark.asyncio

METADATA = decode(DATA)


class Session(Removals):
    async def set(self, _path: str, _data: bytes, version: int) -> ZnodeStat:
        assert self.leader is not None
        if version != self.leader.version:
            raise BadVersionError
        self.leader = self.leader._replace(version=version + 1)
        return self.leader


def ledgers(session: Any) -> CallersLedgers:
    ids: Any = None
    manager = ZooKeeperLedgerManager(session, FlatPaths("/ledgers"), ids)
    factory: Any = SimpleNamespace(ledger_manager=manager, catch_up=session.sync)
    return CallersLedgers(factory, ANYBODY)


@pytest.mark.parametrize("how", ["write", "write_once"])
async def test_the_ledger_that_is_there_is_written(how: str) -> None:
    written = await getattr(ledgers(Session()), how)(SEVEN, METADATA.close(-1, 0), 0)
    assert (written.version, written.incarnation) == (1, 200)


async def test_the_record_of_the_ledger_that_is_there_is_written() -> None:
    record = LedgerRecord(SEVEN, METADATA, 0, incarnation=200)
    assert (await ledgers(Session()).write_to(record, METADATA.close(-1, 0))).incarnation == 200


async def test_a_record_of_a_later_version_than_is_shown_is_removed() -> None:
    session = Session()
    assert session.leader is not None
    session.leader = session.leader._replace(version=1)
    await ledgers(session).remove_record(LedgerRecord(SEVEN, METADATA, 1, incarnation=200))
    assert session.leader is None
