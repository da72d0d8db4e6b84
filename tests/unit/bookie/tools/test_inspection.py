"""`bookgate bookie inspect` on directories of ours, of Apache BookKeeper's bookie, and on damaged ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bookgate.bookie.collection.scope_usage import scope_usage
from bookgate.bookie.commands.bookie import app
from bookgate.bookie.entry_logs import format as entry_log_format
from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.tools.inspection.places import FILES, LIBRARY_FILE, ReadOnlyFileSystem
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import AddRequest
from tests.conformance.golden import VECTORS
from tests.unit.bookie.storage.storage_support import KEY, Token, lac_packet, opened, packet


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def inspect_json(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = inspect(*arguments, "--json")
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def fingerprint(root: Path) -> dict[str, tuple[str, int]]:
    files = list(root.rglob("*"))
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "", path.stat().st_mtime_ns)
        for path in files
    }


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("java")
    with tarfile.open(VECTORS / "java-bookie1.tar.gz") as archive:
        archive.extractall(root, filter="data")
    return root / "bookie1"


@pytest.fixture(scope="module")
def java_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an index in RocksDB."""
    root = tmp_path_factory.mktemp("java-db")
    with tarfile.open(VECTORS / "java-bookie3.tar.gz") as archive:
        archive.extractall(root, filter="data")
    return root / "bookie3"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Two rotated logs and a current one, a fenced ledger with explicit LAC, records behind the mark."""
    with opened(tmp_path, entry_log_max_bytes=2000) as bookie:
        bookie.add(1, *range(30))
        bookie.add(2, 0, 3, size=300)
        bookie.write_lac(2, 3)
        bookie.fence(2)
    return tmp_path


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_scopes_and_their_bytes(tmp_path: Path, storage: str) -> None:
    """By the maps of rotated logs, and the records of the one that has none yet; beside a ledger of the same half."""
    with opened(tmp_path, entry_log_max_bytes=2000, storage=storage) as bookie:
        bookie.add(7, *range(30))
        for scope_id, entries in ((42, 4), (-1, 2)):
            bookie.add(LedgerId(scope_id, 7).number, *range(entries))
        bookie.add(LedgerId(42, -7).number, 0)
        bookie.storage.checkpoint()
        told = [
            (each.scope_id, each.ledgers, each.bytes)
            for each in scope_usage((store, {}) for store in bookie.storage.stores)
        ]
    *scopes, summary = inspect_json("scopes", tmp_path)
    assert [(each["scope"], each["ledgers"], each["bytes"]) for each in scopes] == told
    assert [each[:2] for each in told] == [(0, 1), (42, 2), (-1, 1)]
    ledgers = {scope: total for scope, _, total in told}
    assert ledgers[0] > ledgers[42] > ledgers[-1] > 0
    assert summary["scopes"] == 3


def test_a_java_journal(java: Path) -> None:
    rows = inspect_json("journal", java)
    files = [row for row in rows if row["type"] == "journal"]
    assert [(row["version"], row["records"]) for row in files] == [(6, 831), (6, 3320), (6, 12)]
    assert all(row["tail"].startswith("zeros") for row in files)
    assert rows[0] == {
        "type": "record",
        "offset": 512,
        "kind": "key",
        "ledger": 0,
        "bytes": 40,
        "key": "e793cbc379107648537183605cd361d3bb789a39",
    }
    assert [row["ledger"] for row in rows if row.get("kind") == "fence"] == [6]


def test_a_java_log(java: Path) -> None:
    rows = inspect_json("log", java)
    logs = {row["log"]: row for row in rows if row["type"] == "log"}
    assert [logs[name]["records"] for name in "012345"] == [811, 17, 17, 3297, 0, 0]
    assert all("agrees" in logs[name]["map"] for name in "0123")
    assert logs["4"]["header"].startswith("none")


def test_a_java_index_whose_last_slots_lead_nowhere(java: Path) -> None:
    """A killed bookie's: replay mends it."""
    rows = inspect_json("index", java, code=1)
    ledgers = {row["ledger"]: row for row in rows if row["type"] == "ledger"}
    assert {number: row["entries"] for number, row in ledgers.items()} == {
        0: 500, 1: 300, 2: 50, 3: 2000, 4: 400, 5: 700, 6: 120, 7: 64,
    }  # fmt: skip
    assert [number for number, row in ledgers.items() if row["fenced"]] == [6]
    assert ledgers[7]["unreadable"] == 12
    assert len(rows[-1]["problems"]) == 12
    assert "4.log" in rows[-1]["problems"][0]
    unchecked = inspect_json("index", java, "--no-check")
    assert "unreadable" not in unchecked[0]


def test_a_ledger_of_a_java_bookie_with_its_journal(java: Path) -> None:
    rows = inspect_json("ledger", 6, java, "--entry", 119, "--payload", "hex")
    kinds = [row["type"] for row in rows]
    assert kinds == ["entry", "ledger", "record", "record", "summary"]
    assert bytes.fromhex(rows[0]["payload"])[4:] == bytes((119 * 31 + j * 7 + (j >> 8)) & 0xFF for j in range(333))
    # Added again by recovery, with another LAC.
    assert [row["lac"] for row in rows if row["type"] == "record"] == [99, 117]
    assert rows[-1]["mark"].endswith("offset 1922048: replay begins there")


def test_an_index_in_rocksdb(java_db: Path) -> None:
    rows = inspect_json("index", java_db)
    assert [row["entries"] for row in rows if row["type"] == "ledger"] == [500, 300, 50, 2000, 400, 700, 120]
    entries = inspect_json("index", java_db / "ledgers", "--ledger", 6, "--entry", 119)
    assert [row["length"] for row in entries if row["type"] == "entry"] == [120 * 333]
    assert entries[-1]["fenced"] is True


def test_nothing_is_changed(java: Path, java_db: Path, ours: Path) -> None:
    before = fingerprint(java) | fingerprint(java_db) | fingerprint(ours)
    for root in (java, java_db, ours):
        for what in (("journal", root), ("log", root), ("index", root), ("ledger", 1, root)):
            inspect(*what)
    assert fingerprint(java) | fingerprint(java_db) | fingerprint(ours) == before
    for forbidden in (
        lambda: FILES.open(ours / "x", os.O_RDWR | os.O_CREAT),
        lambda: FILES.pwrite(0, b"", 0),
        lambda: FILES.unlink(ours),
        lambda: FILES.rename(ours, ours),
        lambda: FILES.make_directory(ours / "x"),
        lambda: FILES.sync_directory(ours),
    ):
        with pytest.raises(PermissionError):
            forbidden()


def test_our_databases_are_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library writes a file of its own into a database that it opens, also into one that it only reads."""
    scoped = LedgerId(42, 7)
    with opened(tmp_path, storage="db") as bookie:
        bookie.add(1, *range(5))
        bookie.add(scoped.number, 0, 1)
        bookie.storage.checkpoint()
    assert len(list(tmp_path.rglob(LIBRARY_FILE))) == 4
    before = fingerprint(tmp_path)
    rows = inspect_json("index", tmp_path)
    assert [(row["ledger"], row["entries"]) for row in rows if row["type"] == "ledger"] == [
        (1, 5),
        (scoped.qualified_name, 2),
    ]
    assert [row["entry"] for row in inspect_json("ledger", 1, tmp_path) if row["type"] == "entry"] == [*range(5)]
    assert len(inspect_json("scopes", tmp_path)) == 3
    assert fingerprint(tmp_path) == before


def test_our_directory_beside_a_running_bookie(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        bookie.add(1, 0, 1)
        bookie.storage.checkpoint()
        bookie.add(1, 2)
        rows = inspect_json("ledger", 1, tmp_path)
    assert [row["entry"] for row in rows if row["type"] == "entry"] == [0, 1]
    assert [row["entry"] for row in rows if row.get("kind") == "entry"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("what", "kind"), [(("log",), ".log"), (("journal",), ".txn"), (("scopes",), ".log"), (("ledger", 1), ".txn")]
)
def test_a_file_that_a_running_bookie_removes_after_the_listing_is_passed_over(
    ours: Path, monkeypatch: pytest.MonkeyPatch, what: tuple[object, ...], kind: str
) -> None:
    rows = inspect_json(*what, ours)
    (log,), (journal,) = ours.glob("ledgers/current/0.log"), ours.glob("journal/current/*.txn")
    removed = (log.with_name("ff.log"), journal.with_name("7fffffffffff.txn"))
    for file, copy in zip((log, journal), removed, strict=True):
        shutil.copy(file, copy)
    opening = ReadOnlyFileSystem.open

    def removing(files: ReadOnlyFileSystem, path: Path, flags: int) -> int:
        for each in removed if path.suffix == kind else ():
            each.unlink(missing_ok=True)
        return opening(files, path, flags)

    monkeypatch.setattr(ReadOnlyFileSystem, "open", removing)
    assert inspect_json(*what, ours) == rows


@pytest.mark.parametrize("what", ["log", "journal"])
def test_a_file_that_was_named_is_not_passed_over(ours: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    (file,) = ours.rglob("0.log" if what == "log" else "*.txn")
    monkeypatch.setattr(ReadOnlyFileSystem, "open", lambda _files, path, _flags: os.open(f"{path}.gone", os.O_RDONLY))
    assert inspect(what, file).exit_code == 1


def test_our_files(ours: Path) -> None:
    logs = inspect_json("log", ours)
    summaries = [row for row in logs if row["type"] == "log"]
    assert len(summaries) == 4
    assert ["agrees" in row["map"] for row in summaries] == [True, True, True, False]
    [_, two] = [row for row in inspect_json("index", ours) if row["type"] == "ledger"]
    assert (two["fenced"], two["explicit_lac"], two["last_entry"], two["entries"]) == (True, 3, 3, 2)
    assert two["missing_before_last"] == 2
    entries = inspect_json("index", ours / "ledgers/current/0/2/2.idx")
    assert [row["entry"] for row in entries if row["type"] == "entry"] == [0, 3]


@pytest.mark.parametrize("kind", ["files", "db"])
def test_ledgers_of_scopes_are_named_and_shown(tmp_path: Path, kind: str) -> None:
    """By any of their names, and each for itself: all have the id 7."""
    scoped = LedgerId(42, 7)
    with opened(tmp_path, storage="db" if kind == "db" else "files", entry_log_max_bytes=100) as bookie:
        for ledger_id, entries in ((LedgerId.unscoped(7), 1), (scoped, 2), (LedgerId(-1, 7), 3)):
            bookie.add(ledger_id.number, *range(entries))
        bookie.fence(scoped.number)
    rows = inspect_json("index", tmp_path)
    names = [7, scoped.qualified_name, "f" * 16 + f"{7:016x}"]
    assert [(row["ledger"], row["entries"]) for row in rows if row["type"] == "ledger"] == list(
        zip(names, (1, 2, 3), strict=True)
    )
    assert rows[-1]["ledgers"] == 3
    for named in (
        ("--ledger", 7, "--ledger-scope-id", 42),
        ("--ledger", scoped.to_uuid()),
        ("--ledger-qualified-name", scoped.qualified_name),
    ):
        [first, second, ledger] = inspect_json("index", tmp_path, *named)
        assert (first["entry"], second["entry"]) == (0, 1)
        assert ledger["ledger"] == scoped.qualified_name
        records = inspect_json("journal", tmp_path, *named)
        assert [row["kind"] for row in records if row["type"] == "record"] == ["key", "entry", "entry", "fence"]
        logged = inspect_json("log", tmp_path, *named)
        assert [row["entry"] for row in logged if row["type"] == "record"] == [0, 1]
    assert {row["ledger"] for row in logged if row["type"] == "ledger"} == set(names)
    one: tuple[object, ...]
    for one in ((scoped.qualified_name,), ("--ledger-scope-id", "0x2a", 7)):
        *_, summary = inspect_json("ledger", *one, tmp_path)
        assert (summary["ledger"], summary["in the index"]) == (scoped.qualified_name, "yes")
    if kind == "files":
        file = tmp_path / "ledgers/current" / file_format.relative_path(scoped)
        rows = inspect_json("index", file)
        assert [row["type"] for row in rows] == ["entry", "entry", "ledger"]
        assert rows[-1]["unreadable"] == 0


def test_terms_and_truncations_are_shown(tmp_path: Path) -> None:
    with opened(tmp_path) as bookie:
        for entry_id, truncate in ((0, False), (1, False), (0, True)):
            body = packet(1, entry_id, lac=-1)
            request = AddRequest(1, 1, entry_id, KEY, body, term=2 + truncate, lafr=-1, truncate=truncate)
            bookie.storage.writer.add_at_term(bookie.ledger(1), request, Token((entry_id, truncate)))
        bookie.acks.wait_for((0, True))
    rows = inspect_json("journal", tmp_path)
    terms = [(row["term"], row["fenced"], row["known_lac"], row["lafr"]) for row in rows if row.get("kind") == "term"]
    assert terms == [(2, False, -1, -1), (3, False, -1, -1)]
    assert [row["last_entry"] for row in rows if row.get("kind") == "truncate"] == [0]
    (ledger,) = (row for row in inspect_json("index", tmp_path) if row["type"] == "ledger")
    kept = (ledger["term"], ledger["last_add_confirmed"], ledger["last_add_fully_replicated"], ledger["last_entry"])
    assert kept == (3, -1, -1, 0)


def test_what_names_no_ledger_is_refused(ours: Path) -> None:
    for named in (("--ledger", "x"), ("--ledger-scope-id", 1), ("--ledger", 1, "--ledger-qualified-name", "1" * 32)):
        result = inspect("index", ours, *named)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ")
    assert inspect("ledger", "x", ours).exit_code == 2


def test_tables_are_for_persons(ours: Path) -> None:
    text = inspect("journal", ours, "--limit", 5, "--payload", "text").output
    assert "… and 31 more; --limit 0 prints all" in text
    assert "key" in text
    assert "zeros" in text
    everything = inspect("journal", ours, "--limit", 0).output
    assert everything.count("\n") > 36
    one = inspect("log", ours, "--ledger", 2, "--entry", 3, "--payload", "hex").output
    assert "03030303" in one
    assert inspect("index", ours, "--ledger", 1).exit_code == 0


def test_a_torn_journal_says_so(tmp_path: Path) -> None:
    file = tmp_path / "5.txn"
    begun = struct.pack(">i", 500) + bytes(100)
    file.write_bytes(journal_format.encode_header() + journal_format.encode_records([packet(1, 0)]) + begun)
    [record, summary] = inspect_json("journal", file)
    assert record["entry"] == 0
    assert summary["tail"] == "torn: a record of 500 bytes begins, the file has 100 more"
    file.write_bytes(journal_format.encode_header() + b"\xff\xff\xff\x01" + bytes(20))
    [summary] = inspect_json("journal", file, code=1)
    assert "offset 512" in summary["problems"][0]


def test_unknown_and_damaged_meta_records(tmp_path: Path) -> None:
    records = [
        struct.pack(">qq", 1, -0x4000) + b"x",
        struct.pack(">qqi", 1, journal_format.LEDGER_KEY, 500),
        journal_format.encode_explicit_lac(1, lac_packet(1, 7)),
    ]
    (tmp_path / "5.txn").write_bytes(journal_format.encode_header() + journal_format.encode_records(records))
    rows = inspect_json("journal", tmp_path, code=1)
    assert [row["kind"] for row in rows[:3]] == ["unknown", "key", "lac"]
    assert rows[2]["lac"] == 7
    assert "announces 500" in rows[3]["problems"][0]


def test_a_map_that_differs_from_the_records(tmp_path: Path) -> None:
    record = entry_log_format.encode_records([packet(1, 0)])
    end = 1024 + len(record)
    header = entry_log_format.encode_header(end, 2)
    body = record + entry_log_format.encode_ledgers_map({1: len(record) + 1, 9: 5})
    (tmp_path / "0.log").write_bytes(header + body)
    summary = inspect_json("log", tmp_path, code=1)[-1]
    assert summary["problems"] == [
        f"ledger 1: the map says {len(record) + 1} bytes, the records have {len(record)}",
        "ledger 9: the map says 5 bytes, the records have 0",
    ]
    (tmp_path / "0.log").write_bytes(header + record)
    assert inspect_json("log", tmp_path, code=1)[-1]["map"] == "damaged"
    (tmp_path / "0.log").write_bytes(b"nothing like it")
    assert len(inspect_json("log", tmp_path, code=1)[-1]["problems"]) == 1


def test_many_problems_are_counted(tmp_path: Path) -> None:
    path = tmp_path / file_format.relative_path(LedgerId.unscoped(1))
    path.parent.mkdir(parents=True)
    slots = struct.pack(">50Q", *range(1 << 32, (1 << 32) + 50))
    path.write_bytes(IndexHeader(KEY, False, None).encode() + slots)
    (tmp_path / "1.log").write_bytes(entry_log_format.encode_header())
    summary = inspect_json("index", path, code=1)[-1]
    assert (summary["unreadable"], len(summary["problems"]), summary["more_problems"]) == (50, 20, 30)
    assert "… and 30 more" in inspect("index", path).output


def test_an_index_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / file_format.relative_path(LedgerId.unscoped(1))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 2000)
    (tmp_path / "1.log").write_bytes(entry_log_format.encode_header())
    assert "begins with b'xxxx'" in inspect("index", path).output
    path.write_bytes(b"")
    assert "header was never written" in inspect("index", path).output


@pytest.mark.parametrize("what", ["journal", "log", "index"])
def test_what_is_not_there_is_one_line(tmp_path: Path, what: str) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        result = inspect(what, path)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert str(path) in result.stderr
        assert result.stderr.count("\n") == 1
    assert inspect("ledger", 1, tmp_path).exit_code == 1


def test_a_ledger_that_nobody_knows(ours: Path) -> None:
    [summary] = inspect_json("ledger", 77, ours)
    assert summary["in the index"] == "no"


@pytest.mark.parametrize("own_index", [False, True])
def test_several_directories_with_rocksdb(tmp_path: Path, own_index: bool) -> None:
    """Each has logs of its own, with the same names."""
    ledgers = (tmp_path / "l0", tmp_path / "l1")
    indexes = (tmp_path / "i0", tmp_path / "i1") if own_index else ()
    with opened(tmp_path, storage="db", ledger_directories=ledgers, index_directories=indexes) as bookie:
        for number in (4, 5):
            bookie.add(number, *range(3))
    for number in (4, 5):
        rows = inspect_json("ledger", number, tmp_path)
        assert [row["entry"] for row in rows if "offset" in row and "log" in row] == [0, 1, 2]
