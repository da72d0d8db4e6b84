"""Ledgers in limbo, as an Apache BookKeeper bookie marks them in RocksDB: what is not held is unknown, not absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict

from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.ledger.errors import DataUnknownException
from bookgate.ledger.wire.messages import Status
from bookgate.protos.bookkeeper.proto.db_ledger_storage_pb2 import LedgerData
from tests.unit.bookie.storage.storage_support import KEY, opened, packet, read_entries

LEDGER = 5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One entry, and a mark in its ledger's row that others are lost."""
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(LEDGER, 3)
    path = tmp_path / "ledgers" / "current" / "ledgers"
    rows = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_write())
    key = LEDGER.to_bytes(8, "big")
    row = LedgerData.FromString(bytes(rows[key] or b""))
    row.limbo = True
    rows[key] = row.SerializeToString()
    rows.close()
    return tmp_path


def stored(storage: LedgerStorage) -> LedgerDescriptor:
    ledger = storage.ledgers.recent(LEDGER)
    assert ledger is not None
    return ledger


def test_what_is_held_is_served_and_the_rest_is_unknown(directory: Path) -> None:
    with opened(directory, storage="db") as bookie:
        ledger = bookie.ledger(LEDGER)
        assert bookie.storage.reader.read_entry(ledger, 3) == packet(LEDGER, 3)
        assert read_entries(bookie, ledger, 3, 10, 1 << 20) == [packet(LEDGER, 3)]
        for question in (
            lambda: bookie.storage.reader.read_entry(ledger, 4),
            lambda: read_entries(bookie, ledger, 4, 10, 1 << 20),
            lambda: bookie.storage.reader.last_entry_id(ledger),
            lambda: bookie.storage.reader.known_lac(ledger),
        ):
            with pytest.raises(DataUnknownException, match="ledger 5 is in limbo"):
                question()
        assert bookie.storage.reader.loaded_lac(ledger) is None


def test_recovery_writes_what_is_missing_and_nobody_else(directory: Path) -> None:
    with opened(directory, storage="db") as bookie:
        ledger = bookie.ledger(LEDGER)
        # Not "fenced": a writer that lives may go on with another bookie.
        assert ledger.check_add(KEY, recovery=False) is Status.EUNKNOWNLEDGERSTATE
        assert ledger.check_add(KEY, recovery=True) is Status.EOK
        bookie.add(LEDGER, 4)


def test_the_mark_stays(directory: Path) -> None:
    with opened(directory, storage="db") as bookie:
        bookie.fence(LEDGER)
        bookie.add(LEDGER, 4)
    with opened(directory, storage="db") as bookie:
        assert bookie.ledger(LEDGER).limbo
        assert stored(bookie.storage).fenced
