"""What a start makes of the journal: crashes at every step, torn tails, and journals written by others."""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.index.terms import Terms
from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.format import LogMark
from bookgate.bookie.journal.last_mark import read_mark
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, StorageCorruptException
from bookgate.ledger.digest import Digest, digest_for
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire.messages import Status
from tests.unit.bookie.storage.storage_support import KEY, OpenStorage, RecordingFileSystem, lac_packet, opened, packet

Contents = dict[int, tuple[bytes, bool, bytes | None, list[bytes]]]


def contents(bookie: OpenStorage, ledgers: Iterator[int] | range) -> Contents:
    """Key, fence, explicit LAC and entries of the ledgers that are known."""
    found: Contents = {}
    for number in ledgers:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(number))
        if ledger is not None:
            runs = bookie.storage.reader.entry_ids(ledger)
            entries = [
                bookie.storage.reader.read_entry(ledger, e) for first, n in runs for e in range(first, first + n)
            ]
            found[number] = (ledger.master_key, ledger.fenced, ledger.explicit_lac, entries)
    return found


def write_journal(root: Path, payloads: list[bytes], tail: bytes = b"", journal_id: int = 5, version: int = 6) -> Path:
    directory = root / "journal/current"
    directory.mkdir(parents=True, exist_ok=True)
    header = fmt.encode_header() if version == 6 else b"BKLG" + struct.pack(">i", version)
    path = directory / fmt.file_name(journal_id)
    path.write_bytes(header.ljust(512 if version >= 5 else 8, b"\0") + fmt.encode_records(payloads) + tail)
    return path


def write_mark(root: Path, mark: LogMark) -> None:
    directory = root / "ledgers/current"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lastMark").write_bytes(mark.encode())


class CrashEverywhere:
    """Copies the directories after every change of the disk, as a killed process and as a loss of power leave them."""

    def __init__(self, root: Path, images: Path) -> None:
        self.files = RecordingFileSystem(root)
        self.files.on_step = self._step
        self.images: list[tuple[str, Path]] = []
        self.recording = False
        self._seen: set[frozenset[tuple[Path, int]]] = set()
        self._steps = itertools.count()
        self._root = root
        self._images = images

    def _step(self, what: str) -> None:
        if not self.recording:
            return
        number = next(self._steps)
        for kind, copy in (("killed", self._copy), ("power", self.files.write_survivors)):
            target = self._images / f"{number}-{kind}"
            copy(target)
            if (state := _content(target)) in self._seen:
                continue
            self._seen.add(state)
            self.images.append((f"{number} {kind} after {what}", target))

    def _copy(self, target: Path) -> None:
        shutil.copytree(self._root, target)


def _content(directory: Path) -> frozenset[tuple[Path, int]]:
    paths = (path for path in directory.rglob("*") if path.is_file() and path.name != "bookie.lock")
    return frozenset((path.relative_to(directory), hash(path.read_bytes())) for path in paths)


def fill(bookie: OpenStorage) -> None:
    bookie.add(1, 0, 1, 2)
    bookie.add(300, 0, 5, 1030)
    bookie.fence(2)
    bookie.write_lac(3, 4)
    bookie.add(4, 0)
    bookie.fence(4)
    bookie.write_lac(4, 0)


EXPECTED: Contents = {
    1: (KEY, False, None, [packet(1, i) for i in range(3)]),
    2: (KEY, True, None, []),
    3: (KEY, False, lac_packet(3, 4), []),
    4: (KEY, True, lac_packet(4, 0), [packet(4, 0)]),
    300: (KEY, False, None, [packet(300, i) for i in (0, 5, 1030)]),
}


def check_image(image: Path, expected: Contents, what: str) -> None:
    for _ in range(2):  # replaying twice equals once
        with opened(image) as bookie:
            assert contents(bookie, range(400)) == expected, what


def test_a_crash_at_any_step_of_a_checkpoint_loses_nothing(tmp_path: Path) -> None:
    """S1, S6, F2, F3, F5, over entries, fences and explicit LACs with and without cached entries."""
    root = tmp_path / "root"
    crash = CrashEverywhere(root, tmp_path / "images")
    with opened(root, crash.files, entry_log_max_bytes=1500, journal_max_backups=0) as bookie:
        fill(bookie)
        crash.recording = True
        bookie.storage.checkpoint()
        crash.recording = False
    steps = " ".join(what for what, _ in crash.images)
    assert "sync 0.log" in steps
    assert "write 12c.idx" in steps
    assert "write lastMark" in steps
    for what, image in crash.images:
        check_image(image, EXPECTED, what)


def test_a_crash_at_any_step_of_a_later_checkpoint_loses_nothing(tmp_path: Path) -> None:
    """Only known ledgers, so that nothing but the new entry log asks for its name to be made durable."""
    root = tmp_path / "root"
    crash = CrashEverywhere(root, tmp_path / "images")
    with opened(
        root, crash.files, entry_log_max_bytes=1200, journal_max_size_bytes=600, journal_max_backups=0
    ) as bookie:
        bookie.add(1, 0)
        bookie.storage.checkpoint()
        bookie.add(1, 1)
        bookie.add(1, 2)
        crash.recording = True
        bookie.storage.checkpoint()
        crash.recording = False
    assert "unlink" in crash.images[-1][0]
    for what, image in crash.images:
        check_image(image, {1: (KEY, False, None, [packet(1, i) for i in range(3)])}, what)


def test_a_crash_at_any_step_of_a_start_loses_nothing(tmp_path: Path) -> None:
    first = tmp_path / "first"
    bookie = OpenStorage(first)
    fill(bookie)
    root = tmp_path / "root"
    shutil.copytree(first, root)
    bookie.storage.close()
    crash = CrashEverywhere(root, tmp_path / "images")
    shutil.copytree(root, tmp_path / "before")
    # What lies there was synced by the process that wrote it.
    for path in sorted(root.rglob("*")):
        if path.is_file():
            fd = crash.files.open(path, 0)
            crash.files.fsync(fd)
            crash.files.close(fd)
        else:
            crash.files.sync_directory(path)
    crash.recording = True
    with opened(root, crash.files):
        crash.recording = False
    assert len(crash.images) > 20
    for what, image in crash.images:
        check_image(image, EXPECTED, what)


def test_a_state_change_without_entries_survives_checkpoint_and_loss_of_power(tmp_path: Path) -> None:
    """F2, F5: the mark passes the record of a fence only when the fence is in the index header."""
    root = tmp_path / "root"
    files = RecordingFileSystem(root)
    with opened(root, files) as bookie:
        bookie.add(1, 0)
        bookie.storage.checkpoint()
        bookie.fence(1)
        bookie.write_lac(1, 0)
        bookie.storage.checkpoint()
        files.write_survivors(tmp_path / "after")
        mark = bookie.storage.synced_marks[0]
    assert read_mark(REAL_FILE_SYSTEM, [tmp_path / "after/ledgers"]) == mark, "nothing is left to be replayed"
    with opened(tmp_path / "after") as again:
        assert contents(again, range(3)) == {1: (KEY, True, lac_packet(1, 0), [packet(1, 0)])}


def test_a_fence_of_a_ledger_without_entries_survives_a_crash(tmp_path: Path) -> None:
    """F3: also when a recovery add followed it."""
    bookie = OpenStorage(tmp_path / "root")
    bookie.fence(1)
    bookie.fence(2)
    bookie.add(2, 0)
    shutil.copytree(tmp_path / "root", tmp_path / "crashed")
    bookie.storage.close()
    with opened(tmp_path / "crashed") as again:
        for number in (1, 2):
            ledger = again.ledger(number)
            assert ledger.check_add(KEY, recovery=False) is Status.EFENCED
            assert ledger.check_add(KEY, recovery=True) is Status.EOK
            assert ledger.check_add(b"w" * 20, recovery=True) is Status.EUA


def test_a_journal_larger_than_the_write_cache_is_replayed(tmp_path: Path) -> None:
    write_journal(tmp_path, [fmt.encode_key(1, KEY), *(packet(1, i, 500) for i in range(400))])
    with opened(tmp_path, write_cache_bytes=50_000) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 400)]
        assert bookie.storage.writer.accepts_adds


def test_a_torn_tail_at_every_byte_of_the_last_record(tmp_path: Path) -> None:
    last = fmt.encode_records([packet(1, 1, 8)])
    for cut in range(len(last)):
        root = tmp_path / str(cut)
        write_journal(root, [fmt.encode_key(1, KEY), packet(1, 0)], last[:cut])
        with opened(root) as bookie:
            assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 1)]
            bookie.add(1, 1)
        with opened(root) as bookie:
            assert bookie.storage.reader.read_entry(bookie.ledger(1), 1) == packet(1, 1)


def test_a_corrupt_record_refuses_the_start_and_frees_the_directory(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [fmt.encode_key(1, KEY)], struct.pack(">i", -7) + bytes(20))
    offset = 512 + 4 + 40
    for _ in range(2):
        with pytest.raises(StorageCorruptException, match=f"{path}: the record at offset {offset}"):
            OpenStorage(tmp_path)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (struct.pack(">qqi", 1, fmt.LEDGER_KEY, 500) + bytes(20), "announces 500"),
        (fmt.encode_key(1, b"w" * 20), "another master key"),
        (fmt.encode_explicit_lac(1, bytes(10)), "explicit LAC of 10"),
        (packet(1, 1 << 50), "entry id"),
        (packet(-1, 0), "negative"),
    ],
)
def test_a_record_that_can_not_be_applied_refuses_the_start(tmp_path: Path, payload: bytes, why: str) -> None:
    write_journal(tmp_path, [fmt.encode_key(1, KEY), payload])
    with pytest.raises(StorageCorruptException, match=f"at offset 556 .*{why}"):
        OpenStorage(tmp_path)


def test_records_of_unknown_ledgers_and_kinds_are_passed_over(tmp_path: Path) -> None:
    payloads = [
        packet(9, 0),
        fmt.encode_fence(9),
        fmt.encode_explicit_lac(9, lac_packet(9, 1)),
        struct.pack(">qq", 1, -0x4000) + b"x",
        fmt.encode_key(1, KEY),
        packet(1, 0),
    ]
    write_journal(tmp_path, payloads)
    with opened(tmp_path) as bookie:
        assert contents(bookie, range(10)) == {1: (KEY, False, None, [packet(1, 0)])}


def test_records_behind_the_mark_rely_on_the_key_in_the_index(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        mark = bookie.storage.synced_marks[0]
    write_journal(tmp_path, [packet(1, 1), fmt.encode_fence(1)], journal_id=mark.journal_id + 1)
    with opened(tmp_path) as bookie:
        assert contents(bookie, range(3)) == {1: (KEY, True, None, [packet(1, 0), packet(1, 1)])}


def test_the_key_in_the_index_counts_before_one_in_the_journal(tmp_path: Path) -> None:
    """S7: a key record of another key, as the Java bookie may have journaled it, does not displace the stored one."""
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        mark = bookie.storage.synced_marks[0]
    write_journal(tmp_path, [fmt.encode_key(1, b"w" * 20)], journal_id=mark.journal_id + 1)
    with opened(tmp_path) as bookie:
        assert bookie.ledger(1).master_key == KEY


@pytest.mark.parametrize("unset", [b"", bytes(20)])
def test_an_unset_key_in_the_index_is_replaced(tmp_path: Path, unset: bytes) -> None:
    with opened(tmp_path) as bookie:
        bookie.writer.fence(bookie.ledger(1, unset), "fenced")
        mark = bookie.storage.synced_marks[0]
    write_journal(tmp_path, [fmt.encode_key(1, KEY)], journal_id=mark.journal_id + 1)
    for _ in range(2):
        with opened(tmp_path) as bookie:
            assert bookie.ledger(1).master_key == KEY
            assert bookie.ledger(1).fenced


def test_an_index_file_without_header_gets_it_from_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "ledgers/current/0/1/1.idx"
    path.parent.mkdir(parents=True)
    path.touch()
    write_journal(tmp_path, [fmt.encode_key(1, KEY), packet(1, 0)])
    for _ in range(2):
        with opened(tmp_path) as bookie:
            assert contents(bookie, range(3)) == {1: (KEY, False, None, [packet(1, 0)])}


def test_a_ledger_whose_index_file_has_no_header_stays_one_object_over_its_records(tmp_path: Path) -> None:
    path = tmp_path / "ledgers/current/0/1/1.idx"
    path.parent.mkdir(parents=True)
    path.touch()
    key = fmt.encode_key(1, KEY)
    write_journal(tmp_path, [key, fmt.encode_fence(1), packet(1, 0), key, packet(1, 1)])
    for _ in range(2):
        with opened(tmp_path) as bookie:
            assert contents(bookie, range(3)) == {1: (KEY, True, None, [packet(1, 0), packet(1, 1)])}


def test_records_of_a_ledger_that_was_deleted_and_made_anew_do_not_refuse_the_start(tmp_path: Path) -> None:
    """The new index file was created and not yet written; what the journal has of the old ledger is passed over."""
    path = tmp_path / "ledgers/current/0/1/1.idx"
    path.parent.mkdir(parents=True)
    path.touch()
    write_journal(tmp_path, [packet(1, 7), fmt.encode_fence(1), fmt.encode_key(1, KEY), packet(1, 0)])
    for _ in range(2):
        with opened(tmp_path) as bookie:
            assert contents(bookie, range(3)) == {1: (KEY, False, None, [packet(1, 0)])}


def test_records_of_a_ledger_whose_header_is_lost_refuse_the_start(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0)
        mark = bookie.storage.synced_marks[0]
    path = tmp_path / "ledgers/current/0/1/1.idx"
    path.write_bytes(bytes(1024) + path.read_bytes()[1024:])
    write_journal(tmp_path, [packet(1, 1)], journal_id=mark.journal_id + 1)
    with pytest.raises(StorageCorruptException, match="has lost its header"):
        OpenStorage(tmp_path)


def test_an_index_file_without_header_and_without_key_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledgers/current/0/1/1.idx"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(1024))
    with opened(tmp_path) as bookie, pytest.raises(StorageCorruptException, match="ledger 1 has no header"):
        bookie.storage.ledgers.get(LedgerId.unscoped(1))


def test_a_missing_journal_refuses_the_start(tmp_path: Path) -> None:
    write_mark(tmp_path, LogMark(4, 512))
    write_journal(tmp_path, [], journal_id=5)
    with pytest.raises(StorageCorruptException, match=r"4\.txn is missing"):
        OpenStorage(tmp_path)


@pytest.mark.parametrize("offset", [0, 512, 556, 642, 646, 2642])
def test_marks_where_records_or_scans_of_others_end_are_accepted(tmp_path: Path, offset: int) -> None:
    payloads = [fmt.encode_key(1, KEY), packet(1, 0)]
    write_mark(tmp_path, LogMark(5, offset))
    write_journal(tmp_path, payloads, bytes(2000))
    write_journal(tmp_path, [fmt.encode_key(1, KEY), packet(1, 1)], journal_id=6)
    with opened(tmp_path) as bookie:
        runs = list(bookie.storage.reader.entry_ids(bookie.ledger(1)))
        assert runs == ([(0, 2)] if offset <= 512 else [(1, 1)])


def test_journals_before_the_mark_are_ignored(tmp_path: Path) -> None:
    write_journal(tmp_path, [], struct.pack(">i", -7), journal_id=4)
    write_journal(tmp_path, [fmt.encode_key(1, KEY), packet(1, 0)], journal_id=5)
    write_mark(tmp_path, LogMark(5, 512))
    with opened(tmp_path) as bookie:
        assert list(bookie.storage.reader.entry_ids(bookie.ledger(1))) == [(0, 1)]


@pytest.mark.parametrize("version", [4, 5])
def test_older_journal_versions(tmp_path: Path, version: int) -> None:
    write_journal(tmp_path, [fmt.encode_key(1, KEY), packet(1, 0), fmt.encode_fence(1)], version=version)
    with opened(tmp_path) as bookie:
        assert contents(bookie, range(3)) == {1: (KEY, True, None, [packet(1, 0)])}


def test_a_journal_whose_name_was_not_durable_does_not_block_later_starts(tmp_path: Path) -> None:
    """The mark may name a file only once the file's name is durable, whoever made the file."""
    root = tmp_path / "root"
    (root / "ledgers/current").mkdir(parents=True)
    write_journal(root, [fmt.encode_key(1, KEY), packet(1, 0)])
    crash = CrashEverywhere(root, tmp_path / "images")
    crash.recording = True
    with opened(root, crash.files):
        crash.recording = False
    for what, image in crash.images:
        with opened(image) as bookie:
            assert len(contents(bookie, range(3))) <= 1, what


def test_the_header_is_durable_though_a_killed_process_had_written_it(tmp_path: Path) -> None:
    """The header's bytes are in the page cache only; the start that passes the fence's record must sync them."""
    root = tmp_path / "root"
    (root / "ledgers/current").mkdir(parents=True)
    write_journal(root, [fmt.encode_fence(1)])
    written = LedgerCache(REAL_FILE_SYSTEM, [root / "ledgers/current"], 1 << 20)
    written.update(LedgerId.unscoped(1), IndexHeader(KEY, True, None), ())
    written.close()
    files = RecordingFileSystem(root)
    bookie = OpenStorage(root, files)
    files.write_survivors(tmp_path / "after")
    bookie.storage.close()
    survived = LedgerCache(REAL_FILE_SYSTEM, [tmp_path / "after/ledgers/current"], 1 << 20)
    assert survived.read_header(LedgerId.unscoped(1)) == (IndexHeader(KEY, True, None), -1)


def put_unsynced_header(root: Path, header: IndexHeader) -> None:
    """What a checkpoint leaves that a kill cut short before its sync: its bytes are in the page cache only."""
    (root / "ledgers/current").mkdir(parents=True)
    written = LedgerCache(REAL_FILE_SYSTEM, [root / "ledgers/current"], 1 << 20)
    written.update(LedgerId.unscoped(1), header, ())
    written.close()


@pytest.mark.parametrize("after_an_add", [False, True])
def test_a_fence_that_a_killed_process_had_written_is_durable_before_it_is_answered(
    tmp_path: Path, after_an_add: bool
) -> None:
    """S6: the header says fenced, but neither it nor a journal record is durable."""
    root = tmp_path / "root"
    put_unsynced_header(root, IndexHeader(KEY, True, None))
    files = RecordingFileSystem(root)
    bookie = OpenStorage(root, files)
    if after_an_add:
        bookie.add(1, 0)
    bookie.fence(1)
    files.write_survivors(tmp_path / "after")
    bookie.storage.close()
    with opened(tmp_path / "after") as again:
        assert again.ledger(1).check_add(KEY, recovery=False) is Status.EFENCED


def test_an_index_file_that_a_killed_process_had_made_is_durable_before_the_mark_passes_its_entries(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    put_unsynced_header(root, IndexHeader(KEY, False, None))
    files = RecordingFileSystem(root)
    bookie = OpenStorage(root, files)
    bookie.add(1, 0)
    bookie.storage.checkpoint()
    files.write_survivors(tmp_path / "after")
    bookie.storage.close()
    with opened(tmp_path / "after") as again:
        assert contents(again, range(3)) == {1: (KEY, False, None, [packet(1, 0)])}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["in the journal", "in the index"])
def test_a_torn_second_copy_does_not_replace_the_first(tmp_path: Path, checkpointed: bool) -> None:
    """P1: power was lost while an entry was added again; one block of the second copy never reached the disk."""
    good = packet(7, 0, 3000, fill=9)
    again = packet(7, 0, 3000, lac=-2, fill=9)
    key = fmt.encode_key(7, KEY)
    first, second = [key, good], [again]
    if checkpointed:
        write_journal(tmp_path, first)
        with opened(tmp_path):
            pass
        first = []
    path = write_journal(tmp_path, first + second, journal_id=7 if checkpointed else 5)
    data = bytearray(path.read_bytes())
    end = len(data)
    block = (end - 1500) // 512 * 512
    data[block : block + 512] = bytes(512)
    path.write_bytes(data)
    with opened(tmp_path) as bookie:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(7))
        assert ledger is not None
        assert bookie.storage.reader.read_entry(ledger, 0) == good


def test_an_entry_of_zeros_replaces_one(tmp_path: Path) -> None:
    first, second = packet(7, 0, 3000, fill=0), packet(7, 0, 3000, lac=-2, fill=0)
    write_journal(tmp_path, [fmt.encode_key(7, KEY), first, second, packet(7, 1)])
    with opened(tmp_path) as bookie:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(7))
        assert ledger is not None
        assert bookie.storage.reader.read_entry(ledger, 0) == second


def _value(digest: Digest, payload: bytes, lac: int) -> bytes:
    return encode_entry(digest, 7, 9, lac, 100_000, payload)


def _replayed(root: Path, first: bytes, second: bytes, lost_block: int | None, checkpointed: bool) -> bytes:
    """Entry 9 of ledger 7 after its two copies, of which the second may have lost a block, were replayed."""
    records = [fmt.encode_key(7, KEY), fmt.encode_term(7, Terms(1, False, 3, 3)), first]
    if checkpointed:
        write_journal(root, records)
        with opened(root):
            pass
        records = []
    path = write_journal(root, [*records, second], journal_id=7 if checkpointed else 5)
    if lost_block is not None:
        data = bytearray(path.read_bytes())
        begin = (len(data) - len(second)) // 512 * 512 + lost_block * 512
        data[begin : begin + 512] = bytes(512)
        path.write_bytes(data)
    with opened(root) as bookie:
        ledger = bookie.storage.ledgers.get(LedgerId.unscoped(7))
        assert ledger is not None
        return bookie.storage.reader.read_entry(ledger, 9)


_DIGESTS = pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC])
_CHECKPOINTED = pytest.mark.parametrize("checkpointed", [False, True], ids=["in the journal", "in the index"])


@_CHECKPOINTED
@_DIGESTS
def test_another_value_of_an_entry_may_hold_zeros(tmp_path: Path, digest_type: DigestType, checkpointed: bool) -> None:
    """P1: a later term gave an id of the dirty part again; what it acknowledged is no torn copy of the old entry."""
    digest = digest_for(digest_type, b"password")
    old = _value(digest, b"o" * 4000, 3)
    new = _value(digest, b"n" * 1000 + bytes(2000) + b"n" * 1000, 4)
    assert _replayed(tmp_path, old, new, None, checkpointed) == new


@_CHECKPOINTED
@_DIGESTS
@pytest.mark.parametrize("lac", [3, 4], ids=["the same LAC", "another LAC"])
@pytest.mark.parametrize("lost_block", [2, 5])
def test_a_torn_copy_of_the_same_value_is_skipped(
    tmp_path: Path, digest_type: DigestType, lac: int, lost_block: int, checkpointed: bool
) -> None:
    digest = digest_for(digest_type, b"password")
    good, again = (_value(digest, b"o" * 4000, each) for each in (3, lac))
    assert _replayed(tmp_path, good, again, lost_block, checkpointed) == good


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32])
def test_a_torn_copy_of_another_value_is_skipped_where_a_crc_tells(tmp_path: Path, digest_type: DigestType) -> None:
    digest = digest_for(digest_type, b"")
    old, new = _value(digest, b"o" * 4000, 3), _value(digest, b"n" * 4000, 4)
    assert _replayed(tmp_path, old, new, 3, True) == old
