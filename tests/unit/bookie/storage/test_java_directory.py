"""Directories of Apache BookKeeper's own bookies (interleaved and RocksDB storage, killed with SIGKILL) opened by ours.

The index files point behind the end of entry logs, RocksDB has everything in its own write-ahead log, and the journals
have what is missing: replay must repair it.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from bookgate.bookie.disks import directories
from bookgate.bookie.membership.cookie import Cookie
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import decode_entry
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from tests.conformance.golden import VECTORS
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet

Expected = tuple[int, DigestType, bytes, int, str]

LEDGERS: list[Expected] = [
    (0, DigestType.CRC32C, b"secret", 500, "441fb79175f0d10c9deb8813b6e8f7c03b0f4e4a07e431288b95231df339c69d"),
    (1, DigestType.HMAC, b"secret", 300, "ed84f13e872629afa2195ddc22db85302bb5b16b551aba26ba78bdb4e1687810"),
    (2, DigestType.CRC32, b"", 50, "0fac4a6587db9ef043314f40d9feea2932db1292df1961a724f6f4a58c43243a"),
    (3, DigestType.DUMMY, b"pw", 2000, "b619eda485ce0c135168f245b987eb1107aa9f7647c16d82f6c85dbe367841fd"),
    (4, DigestType.CRC32C, b"gone", 400, "9e53c5ec651e72adbe9b496cb88aec274b3011aa022f6742a2962c823872cd40"),
    (5, DigestType.CRC32C, b"secret", 700, "5b0b2398f22a0a070b2e6e9764187e2b646f57db70f6bf8c04382025a29d3d87"),
    (6, DigestType.CRC32C, b"secret", 120, "07cb87818ab95eb5aaf7873efabf0794c0b771103c7c29b973e933c9a00fe9b1"),
    (7, DigestType.CRC32C, b"secret", 64, "88aa9e9c9b693cdb6b74eac721370ea95e6a4e532f7253e096ed63b6102c06d6"),
]


def extracted(tmp_path: Path, bookie: str) -> Path:
    with tarfile.open(VECTORS / f"java-{bookie}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / bookie


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return extracted(tmp_path, "bookie1")


def serves_everything(bookie: OpenStorage) -> None:
    serves(bookie, LEDGERS)
    assert bookie.storage.ledgers.get(LedgerId.unscoped(8)) is None


def serves(bookie: OpenStorage, ledgers: list[Expected]) -> None:
    for number, digest_type, password, count, expected in ledgers:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(number))
        assert ledger is not None
        assert ledger.fenced == (number == 6)
        assert list(bookie.storage.reader.entry_ids(ledger)) == [(0, count)]
        digest = digest_for(digest_type, password)
        packets = (bookie.storage.reader.read_entry(ledger, entry_id) for entry_id in range(count))
        payloads = [decode_entry(digest, data, number, entry_id).payload for entry_id, data in enumerate(packets)]
        assert hashlib.sha256(b"".join(payloads)).hexdigest() == expected


def test_a_directory_whose_entries_are_all_in_the_journal(tmp_path: Path) -> None:
    """Of sorted storage: no entry log and no index file was ever written."""
    root = extracted(tmp_path, "bookie2")
    assert not list((root / "ledgers/current").glob("*.log"))
    for _ in range(2):
        with opened(root) as bookie:
            serves_everything(bookie)
    assert list((root / "ledgers/current").glob("*.log"))


def test_every_entry_is_served_and_again_after_a_restart(root: Path) -> None:
    for _ in range(2):
        with opened(root) as bookie:
            serves_everything(bookie)


def test_every_entry_of_the_rocksdb_storage_is_served_and_again_after_a_restart(tmp_path: Path) -> None:
    root = extracted(tmp_path, "bookie3")
    for _ in range(2):
        with opened(root, storage="db") as bookie:
            serves_everything(bookie)
    with opened(root, storage="db") as bookie:
        bookie.add(5, 700)
        bookie.fence(7)
    with opened(root, storage="db") as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(5))) == [(0, 701)]
        assert bookie.ledger(7).fenced


@pytest.mark.parametrize(("name", "kind"), [("bookie1", "interleaved"), ("bookie3", "db")])
def test_what_the_metadata_no_longer_has_is_collected_from_it(tmp_path: Path, name: str, kind: str) -> None:
    root = extracted(tmp_path, name)
    with opened(root, storage=kind) as bookie:
        bookie.storage.delete_ledgers([4])
        collection = Collection(bookie.storage)
        collection.run(threshold=1.0)
        remaining = [expected for expected in LEDGERS if expected[0] != 4]
        assert list(bookie.storage.ledger_ids()) == [number for number, *_ in remaining]
        serves(bookie, remaining)
        assert bookie.storage.ledgers.get(LedgerId.unscoped(4)) is None
        assert collection.statistics.failed_deletions == 0
    with opened(root, storage=kind) as bookie:
        serves(bookie, remaining)


def test_new_entries_join_the_old_ones(root: Path) -> None:
    with opened(root) as bookie:
        ledger = bookie.ledger(5)
        bookie.writer.add_entry(ledger, 700, packet(5, 700), "added")
        bookie.acks.wait_for("added")
    assert (root / "ledgers/current/6.log").exists()
    with opened(root) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(5))) == [(0, 701)]


def test_its_cookie_is_read(root: Path) -> None:
    found = directories.read_version_files(REAL_FILE_SYSTEM, [root / "journal", root / "ledgers"])
    contents = set(found.values())
    assert len(contents) == 1
    content = contents.pop()
    assert content is not None
    cookie = Cookie.decode(content)
    assert cookie.bookie_id == "127.0.0.1:3181"
    assert cookie.encode() == content
