"""The operators' commands against a live cluster: what they print as JSON, what they do, and how they refuse."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bookgate import AdminRefusedException, IllegalOpException, IncorrectParameterException
from bookgate.blocking import Admin, BookKeeper
from bookgate.bookie.membership.cookie import Cookie
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger import metadata_codec
from bookgate.ledger.metadata import Fragment
from bookgate.runtime import replaced_files
from bookgate.thinclient.commands.main import app
from bookgate.thinclient.tools.collection import SuspendedGc
from bookgate.thinclient.tools.single_replica import ranges_of_bookie
from tests.stores import made as made_in

Run = Callable[..., Any]


@pytest.fixture
def run(standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command with --json: what it prints, or with `fails` the error that it tells."""
    monkeypatch.setenv("BOOKGATE_GATEWAYS", standalone_cluster.gateway_uri)
    return command


def command(*arguments: object, fails: int = 0, text: bool = False) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), *([] if text else ["--json"])])
    assert result.exit_code == fails, result.output
    assert "Traceback" not in result.stderr
    if text:
        return result.stdout
    if fails and not result.stdout:
        error = json.loads(result.stderr)
        assert error.keys() == {"error", "type", "code"}
        return error
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines[0] if len(lines) == 1 else lines


@pytest.fixture
def written(run: Run, standalone_cluster: StandaloneCluster, tmp_path: Path) -> int:
    """A closed ledger of ten entries, each on two of three bookies."""
    lines = tmp_path / "lines"
    lines.write_text("".join(f"entry {number}\n" for number in range(10)))
    made = run("ledger", "create", "--write-quorum-size", 2)
    assert made["state"] == "OPEN"
    assert run("ledger", "write", made["ledger_id"], lines)["entries"] == 10
    # Each command is a client of its own, and may meet a gateway that has not heard of the closing yet.
    seen = 0
    while seen < 2 * len(standalone_cluster.processes):
        seen = seen + 1 if run("ledger", "show", made["ledger_id"])["state"] == "CLOSED" else 0
    return int(made["ledger_id"])


def test_a_payload_does_not_command_the_terminal_that_it_is_read_on(run: Run, tmp_path: Path) -> None:
    forging, lines = b"a\tb\x1b[2K\rforged\xff\xc2\x9b1m", tmp_path / "lines"
    lines.write_bytes(forging + b"\n")
    ledger = run("ledger", "create")["ledger_id"]
    run("ledger", "write", ledger, lines)
    asked = [sys.executable, "-m", "bookgate", "ledger", "read", str(ledger)]
    as_json = subprocess.run([*asked, "--json"], check=True, capture_output=True, text=True).stdout
    assert as_json.rstrip("\n").isprintable()
    assert subprocess.run(asked, check=True, capture_output=True).stdout == forging + b"\n"
    ours, theirs = pty.openpty()
    subprocess.run([*asked, "--format", "text"], check=True, stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as screen:
        assert screen.readline() == b"a\tb\\u001b[2K\\rforged\\xff\\u009b1m\r\n"


def test_reading_from_one_bookie_gives_what_it_holds(run: Run, written: int) -> None:
    whole = run("ledger", "read", written)
    assert [entry["payload"] for entry in whole] == [f"entry {number}" for number in range(10)]
    ensemble = run("ledger", "show", written)["fragments"][0]["bookies"]
    seen: list[int] = []
    for index, bookie in enumerate(ensemble):
        entries = [entry["entry_id"] for entry in run("ledger", "read", written, "--bookie", bookie)]
        # Entry e is on the bookies at e and e + 1, modulo three.
        assert entries == [entry for entry in range(10) if index in (entry % 3, (entry + 1) % 3)]
        seen += entries
    assert sorted(seen) == sorted([*range(10), *range(10)])


def test_reading_from_a_bookie_that_has_nothing_of_it_says_so(run: Run, written: int) -> None:
    refused = run("ledger", "read", written, "--bookie", "nobody", fails=1)["error"]
    assert refused == f"no fragment of ledger {written} names bookie nobody; they name bookie-1, bookie-2, bookie-3"
    ensemble = run("ledger", "show", written)["fragments"][0]["bookies"]
    # Entry 0 is on the first two of three.
    asked = ("ledger", "read", str(written), "--to", "0", "--bookie", ensemble[2])
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"note: none of the entries 0 to 0 is due on bookie {ensemble[2]}\n"
    assert CliRunner().invoke(app, ["ledger", "read", str(written), "--to", "0", "--bookie", ensemble[0]]).stderr == ""


def test_an_empty_ledger_is_read_from_a_bookie(run: Run) -> None:
    made = run("ledger", "create")["ledger_id"]
    bookie = run("ledger", "recover", made)["fragments"][0]["bookies"][0]
    result = CliRunner().invoke(app, ["ledger", "read", str(made), "--bookie", bookie])
    assert (result.exit_code, result.stdout) == (0, "")
    run("ledger", "delete", made, "--yes")


def test_ledgers_of_a_bookie(run: Run, written: int) -> None:
    ensemble = run("ledger", "show", written)["fragments"][0]["bookies"]
    one = run("ledger", "create", "--ensemble-size", 1, "--write-quorum-size", 1, "--ack-quorum-size", 1)
    other = next(bookie for bookie in ensemble if bookie not in one["fragments"][0]["bookies"])
    listed = {ledger["ledger_id"] for ledger in run("ledger", "list", "--bookie", other)}
    assert written in listed
    assert one["ledger_id"] not in listed


def test_a_listing_has_filters_and_says_where_it_goes_on(run: Run, tmp_path: Path) -> None:
    ids = [
        run("ledger", "create", "-m", f"of={tmp_path}", "-m", f"number={number}")["ledger_id"] for number in range(4)
    ]
    lines = tmp_path / "lines"
    lines.write_text("some text\n")
    run("ledger", "write", ids[0], lines)

    def listed(*filters: object) -> list[int]:
        found = run("ledger", "list", "-o", "jsonl", "-m", f"of={tmp_path}", *filters)
        return [each["ledger_id"] for each in ([found] if isinstance(found, dict) else found)]

    assert listed() == ids
    assert listed("--state", "open") == ids[1:]
    assert listed("--min-size", 1) == listed("--max-size", "1KiB") == ids[:1]
    assert listed("-m", "number=2") == ids[2:3]
    assert listed("--created-after", "1h") == ids
    assert listed("--created-before", "1h") == listed("-m", "nothing") == []
    result = CliRunner().invoke(app, ["ledger", "list", "-m", f"of={tmp_path}", "--limit", "2"])
    header, *rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert header[:4] == ["ledger", "state", "entries", "bytes"]
    assert [row[:4] for row in rows] == [[str(ids[0]), "CLOSED", "1", "9"], [str(ids[1]), "OPEN", "", ""]]
    assert result.stderr == f"more: add --start-after {ids[1]}\n"
    assert listed("--start-after", ids[1], "--limit", 2) == ids[2:]


def test_reading_what_is_not_there_says_what_is(run: Run, written: int) -> None:
    beyond = run("ledger", "read", written, "--from", 100, fails=1)
    assert beyond["error"].endswith(f"ledger {written} is closed, and its last confirmed entry is 9")
    assert "no entry 12 to read" in run("ledger", "read", written, "--to", 12, fails=1)["error"]
    [first, *_] = run("ledger", "read", written)
    sizes = {"size": 7, "ledger_length": 7, "length": 7}
    assert first == {"entry_id": 0, **sizes, "payload": "entry 0", "encoding": "text"}
    rows = run("ledger", "read", written, "--to", 0, "-o", "tsv", text=True)
    assert rows == "0\t7\t7\ttext\tentry 0\n"


def test_the_cluster_is_described_by_gateways_and_by_its_store(
    run: Run, standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    by_gateways = run("cluster", "info")
    assert by_gateways == run("cluster", "info", "--metadata-uri", standalone_cluster.metadata_uri)
    assert by_gateways["known_bookies"] == len(standalone_cluster.processes)
    settings = tmp_path / "gateway.toml"
    settings.write_text(f'metadata_uri = "{standalone_cluster.metadata_uri}"\n')
    assert run("cluster", "info", "--config", settings) == by_gateways


def test_the_operators_client_does_what_the_commands_do(
    run: Run, written: int, standalone_cluster: StandaloneCluster
) -> None:
    with Admin.connect(standalone_cluster.gateway_uri) as admin:
        assert repr(admin) == f"<Admin {standalone_cluster.gateway_uri}, open>"
        names = [bookie.bookie_id for bookie in admin.bookies()]
        assert names == [process.bookie_id for process in standalone_cluster.processes]
        assert 0 < admin.bookie_space(names[0]).free <= admin.bookie_space(names[0]).total
        assert admin.bookie_state(names[0])["running"] is True
        assert admin.gc_status(names[0])[0]["majorCompactionCounter"] >= 0
        admin.trigger_gc(names[0])
        admin.trigger_gc(names[0], minor=True, force_ledgers=True)
        assert admin.suspend_gc(names[0], major=True) == SuspendedGc(major=True, minor=False, ledgers=False)
        assert admin.suspend_gc(names[0], ledgers=True) == SuspendedGc(major=True, minor=False, ledgers=True)
        assert admin.resume_gc(names[0]) == SuspendedGc(major=False, minor=False, ledgers=True)
        assert admin.resume_gc(names[0], ledgers=True) == admin.gc_suspended(names[0])
        assert admin.gc_suspended(names[0]) == SuspendedGc(major=False, minor=False, ledgers=False)
        with pytest.raises(AdminRefusedException, match="index is not RocksDB"):
            admin.compact_index(names[0])
        replicas = admin.replicas(written)
        assert sorted(each.bookie_id for each in replicas) == sorted(names)
        assert all((each.missing, each.error, each.last_entry_id) == ((), None, 9) for each in replicas)
        status = admin.recovery_status()
        assert (status.enabled, status.survey.marked) == (True, 0)
        assert admin.enable_recovery() is False
        assert [ledger for page in admin.under_replicated() for ledger in page] == []
        assert admin.begin_draining(names[0]) is True
        assert any(each.low == written for each in admin.draining(names[0]).left)
        assert admin.end_draining(names[0]) is True
        admin.set_read_only(names[0], True)
        assert admin.bookie_state(names[0])["readOnly"] is True
        admin.set_read_only(names[0], False)


def test_a_bookie_is_renamed_in_ledgers_of_every_scope(standalone_cluster: StandaloneCluster) -> None:
    with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        plain, scoped = (client.create_ledger(scope_id=scope) for scope in (0, 77))
        numbers = [plain.ledger_id, scoped.ledger_id]
        for handle in (plain, scoped):
            handle.close()
            record = client.read_record(handle.ledger_id)
            gone = replace(record.metadata, fragments=(Fragment(0, ("bookie-8", "bookie-2", "bookie-3")),))
            client.ledger_manager.write(record.ledger_id, gone, record.version)
        with Admin.connect(standalone_cluster.gateway_uri) as admin:
            found = admin.rename_bookie("bookie-8", "bookie-1", dry_run=True)
            assert (found.named, found.changed, found.failed) == (2, 0, ())
            with pytest.raises(IllegalOpException, match="bookie-1 is registered"):
                admin.rename_bookie("bookie-1", "bookie-8")
            with pytest.raises(IncorrectParameterException, match="rate"):
                admin.rename_bookie("bookie-8", "bookie-1", rate=0)
            found = admin.rename_bookie("bookie-8", "bookie-1", rate=1000)
            assert (found.named, found.changed, found.failed) == (2, 2, ())
        assert [client.read_record(number).metadata.bookies for number in numbers] == [
            {"bookie-1", "bookie-2", "bookie-3"}
        ] * 2
        for number in numbers:
            client.delete_ledger(number)


def test_metadata_goes_to_a_file_and_back(run: Run, written: int, tmp_path: Path) -> None:
    file, before = tmp_path / "metadata", run("ledger", "metadata", "show", written)
    file.touch(0o644)
    assert run("ledger", "metadata", "dump", written, file)["bytes"] == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    assert metadata_codec.decode(file.read_bytes()).last_entry_id == 9
    assert "--update" in run("ledger", "metadata", "restore", written, file, fails=1)["error"]
    assert "use --yes" in run("ledger", "metadata", "restore", written, file, "--update", fails=1)["error"]
    assert run("ledger", "metadata", "restore", written, file, "--update", "--yes")["version"] == before["version"] + 1
    run("ledger", "delete", written, "--yes")
    restored = run("ledger", "metadata", "restore", written, file)
    # Metadata without a time of their own have the store's, which is another now.
    differs = {"version": 0, "created_ms": 0}
    assert {**restored, **differs} == {**before, **differs}
    assert len(run("ledger", "read", written)) == 10
    file.write_bytes(b"no metadata")
    assert run("ledger", "metadata", "restore", written, file, fails=1)["type"] == "MetadataFormatException"
    assert "No such file" in run("ledger", "metadata", "restore", written, tmp_path / "nothing", fails=1)["error"]


def test_a_file_stays_where_the_one_that_replaces_it_can_not_be_written(
    run: Run, written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, cookie = tmp_path / "metadata", tmp_path / "cookie"
    writes = (("ledger", "metadata", "dump", written, dump), ("cookie", "get", "bookie-1", "--output", cookie))
    for words in writes:
        run(*words)
    before = (dump.read_bytes(), cookie.read_bytes())
    with _full_disk(monkeypatch):
        for words in writes:
            assert run(*words, fails=1)["error"].endswith(": No space left on device")
    assert (dump.read_bytes(), cookie.read_bytes()) == before


@contextmanager
def _full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file can be made, and nothing be written to it."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened_then_full(path: Path, _content: bytes) -> int:
        path.open("wb").close()
        return full()

    with monkeypatch.context() as patch:
        patch.setattr(replaced_files, "_write", full)
        patch.setattr(Path, "write_bytes", opened_then_full)
        yield


def test_metadata_of_a_ledger_that_was_open_go_back_by_force_only(
    run: Run, standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    file = tmp_path / "metadata"
    with BookKeeper.connect(standalone_cluster.gateway_uri) as client, client.create_ledger(3, 2, 2) as writer:
        number = writer.ledger_id.low
        run("ledger", "metadata", "dump", number, file)
    assert "--force" in run("ledger", "metadata", "restore", number, file, "--update", "--yes", fails=1)["error"]
    assert run("ledger", "metadata", "restore", number, file, "--update", "--yes", "--force")["state"] == "OPEN"
    run("ledger", "delete", number, "--yes")


def test_a_ledger_of_a_renamed_bookie(run: Run, written: int, tmp_path: Path) -> None:
    file = tmp_path / "metadata"
    run("ledger", "metadata", "dump", written, file)
    file.write_bytes(file.read_bytes().replace(b"bookie-1", b"bookie-9"))
    run("ledger", "metadata", "restore", written, file, "--update", "--yes")
    replaced = run("ledger", "replace-bookie", "bookie-9", "bookie-1", "--dry-run")
    assert (replaced["named"], replaced["changed"]) == (1, 0)
    assert "use --yes" in run("ledger", "replace-bookie", "bookie-9", "bookie-1", fails=1)["error"]
    assert "is registered" in run("ledger", "replace-bookie", "bookie-1", "bookie-9", "--yes", fails=1)["error"]
    twice = run("ledger", "replace-bookie", "bookie-9", "bookie-2", "--yes", fails=1)
    assert [each["ledger_id"] for each in twice["failed"]] == [written]
    assert run("ledger", "replace-bookie", "bookie-9", "bookie-1", "--yes", "--rate", 1000)["changed"] == 1
    assert len(run("ledger", "read", written)) == 10


def test_a_simple_test_leaves_nothing(run: Run) -> None:
    done = run("ledger", "simple-test", "-n", 50)
    assert (done["entries"], done["passed"]) == (50, True)
    # Each command is a client of its own, and may meet a gateway that has not heard of the deletion yet.
    while CliRunner().invoke(app, ["ledger", "show", str(done["ledger_id"])]).exit_code == 0:
        pass
    assert run("ledger", "show", done["ledger_id"], fails=1)["code"] == -25
    assert run("ledger", "simple-test", "-e", 9, fails=1)["type"] == "NotEnoughBookiesException"


def test_bookies_over_the_network(run: Run) -> None:
    listed = run("bookie", "list", "-rw")
    assert [bookie["bookie_id"] for bookie in listed] == ["bookie-1", "bookie-2", "bookie-3"]
    assert run("bookie", "list", "-ro") == []
    told = run("bookie", "endpoints", "bookie-2")
    assert {each["protocol"] for each in told["endpoints"]} == {"bookie-rpc", "bookgate-grpc", "http"}
    assert run("bookie", "endpoints", "nobody", fails=1)["type"] == "BookieHandleNotAvailableException"
    space = run("bookie", "info")
    assert space["total_bytes"] == sum(each["total_bytes"] for each in space["bookies"]) > space["free_bytes"] > 0
    lost = run("bookie", "info", "bookie-1", "127.0.0.1:1", fails=1)
    assert [each["error"] is None for each in lost["bookies"]] == [True, False]
    assert "\nall\t" in run("bookie", "info", text=True)
    assert run("bookie", "sanity", "bookie-1", "--entries", 3) == {
        "bookie_id": "bookie-1",
        "passed": True,
        "reason": None,
    }
    assert run("bookie", "sanity", "127.0.0.1:1", "--timeout", 5, fails=1)["passed"] is False


def test_a_bookie_is_made_read_only_and_writable_again(run: Run, standalone_cluster: StandaloneCluster) -> None:
    assert run("bookie", "state", "bookie-3")["readOnly"] is False
    try:
        assert run("bookie", "read-only", "on", "bookie-3") == {"readOnly": True}
        http = standalone_cluster.processes[2].addresses["http"]
        assert run("bookie", "state", "--http", f"http://{http}/")["readOnly"] is True
        assert [each["bookie_id"] for each in run("bookie", "list", "--read-only")] == ["bookie-3"]
        status = run("cluster", "status")
        assert (status["writable_bookies"], status["read_only_bookies"], status["total_bookies"]) == (2, 1, 3)
        assert status["metadata_store"] == "embedded (SQLite)"
        assert status["ledger_manager"].endswith("SqliteLedgerManagerFactory")
        assert "ledger_manager" not in run("cluster", "status", text=True)
    finally:
        assert run("bookie", "read-only", "off", "bookie-3") == {"readOnly": False}
    assert "name one bookie" in run("bookie", "state", fails=1)["error"]
    assert "does not answer" in run("bookie", "state", "--http", "127.0.0.1:1", fails=1)["error"]


def test_garbage_collection_of_a_bookie(run: Run) -> None:
    suspended = {"major_suspended": True, "minor_suspended": False, "ledgers_suspended": False}
    assert run("gc", "suspend", "bookie-1", "--major") == suspended
    assert run("gc", "status", "bookie-1")["major_suspended"] is True
    assert "major_suspended\ttrue" in run("gc", "status", "bookie-1", text=True)
    assert run("gc", "resume", "bookie-1") == {**suspended, "major_suspended": False}
    assert run("gc", "trigger", "bookie-1", "--major") == {
        "triggered": True,
        "major": True,
        "minor": False,
        "ledgers": False,
    }
    assert "index is not RocksDB" in run("gc", "compact-index", "bookie-1", fails=1)["error"]


def test_what_is_no_http_admin_is_told_in_a_line(run: Run, standalone_cluster: StandaloneCluster) -> None:
    for address, words in (
        (standalone_cluster.gateways[0], "is no HTTP admin"),
        ("127.0.0.1:http", "nonnumeric port"),
        ("127.0.0.1:1", "does not answer"),
    ):
        assert words in run("gc", "status", "--http", address, fails=1)["error"]
    refused = run("gc", "trigger", "--http", standalone_cluster.http[0], "--token", "two\nlines", fails=2)
    assert "one line" in refused["error"]
    assert "two" not in refused["error"]


def test_the_cluster_and_its_gateways(run: Run, standalone_cluster: StandaloneCluster) -> None:
    instance = run("cluster", "instance-id")["instance_id"]
    assert run("cluster", "info", "--metadata-uri", standalone_cluster.metadata_uri)["instance_id"] == instance
    assert run("cluster", "instance-id", text=True) == f"{instance}\n"
    assert [each["address"] for each in run("gateway", "list")] == standalone_cluster.gateways


def test_cookies(run: Run, standalone_cluster: StandaloneCluster, tmp_path: Path) -> None:
    directory = standalone_cluster.processes[0].data_dir
    own = run("cookie", "get", "bookie-1", "--output", tmp_path / "saved")
    assert own["ledger_directories"] == [f"{directory}/ledgers"]
    assert (tmp_path / "saved").read_bytes() == (directory / "ledgers/current/VERSION").read_bytes()
    settings = (
        *("--set", f"metadata_uri={standalone_cluster.metadata_uri}"),
        *("--set", "bookie_id=spare", "--set", f"data_dir={tmp_path / 'spare'}"),
    )
    file = tmp_path / "spare.cookie"
    generated = run("cookie", "generate", "--output", file, *settings)
    assert generated["instance_id"] == own["instance_id"]
    assert run("cookie", "create", "spare", file)["bookie_id"] == "spare"
    assert "has a cookie already" in run("cookie", "create", "spare", file, fails=1)["error"]
    assert "spare" in {cookie["bookie_id"] for cookie in run("cookie", "list")}
    assert "spare" in run("cookie", "list", text=True)
    assert "of bookie spare" in run("cookie", "update", "bookie-1", file, "--yes", fails=1)["error"]
    file.write_bytes(Cookie("spare", "/j", "1\t/l").encode())
    assert run("cookie", "update", "spare", file, "--yes")["journal_directories"] == ["/j"]
    assert run("cookie", "get", "spare")["version"] == 1
    assert "is registered" in run("cookie", "delete", "bookie-1", "--yes", fails=1)["error"]
    assert "use --yes" in run("cookie", "delete", "spare", fails=1)["error"]
    assert run("cookie", "delete", "spare", "--yes")["deleted"] is True
    assert "has no cookie" in run("cookie", "get", "spare", fails=1)["error"]


def test_a_bookie_is_made_and_emptied(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = (
        *("--set", f"metadata_uri={made_in(f'sqlite://{tmp_path}/metadata.db')}", "--set", "bookie_id=b"),
        *("--set", f"data_dir={data}"),
    )
    made = command("bookie", "init", *options)
    assert made["directories"] == [f"{data}/journal", f"{data}/ledgers"]
    assert (data / "ledgers/current/VERSION").exists()
    assert "has a cookie already" in command("bookie", "init", *options, fails=1)["error"]
    (data / "ledgers/current/0.log").write_bytes(b"entries")
    assert "use --yes" in command("bookie", "format", *options, fails=1)["error"]
    assert (data / "ledgers/current/0.log").exists()
    assert command("bookie", "format", *options, "--delete-cookie", "--yes")["cookie_deleted"] is True
    assert list((data / "ledgers/current").iterdir()) == []
    (data / "ledgers/current/0.log").write_bytes(b"entries")
    assert "not empty" in command("bookie", "init", *options, fails=1)["error"]


def test_a_running_bookie_is_not_emptied(standalone_cluster: StandaloneCluster) -> None:
    process = standalone_cluster.processes[0]
    options = (
        *("--set", f"metadata_uri={standalone_cluster.metadata_uri}", "--set", "bookie_id=bookie-1"),
        *("--set", f"data_dir={process.data_dir}"),
    )
    assert "in use by another bookie" in command("bookie", "format", *options, "--yes", fails=1)["error"]


def test_a_bookies_files(standalone_cluster: StandaloneCluster, tmp_path: Path) -> None:
    data = standalone_cluster.processes[0].data_dir
    assert {each["kind"] for each in command("bookie", "inspect", "files", data)} >= {"journal"}
    mark = command("bookie", "inspect", "last-mark", data)
    assert [each["file"] for each in mark] == [f"{data}/ledgers/current/lastMark"]
    assert "no journal" in command("bookie", "inspect", "files", tmp_path, fails=1)["error"]


def test_runs_of_entries_on_a_bookie() -> None:
    from bookgate.ledger.metadata import Fragment, LedgerMetadata

    fragments = (Fragment(0, ("a", "b", "c")), Fragment(6, ("a", "b", "d")))
    metadata = LedgerMetadata(3, 2, 2, fragments)
    assert list(ranges_of_bookie(metadata, "c", 0, 9)) == [(1, 2), (4, 5)]
    assert list(ranges_of_bookie(metadata, "d", 0, 9)) == [(7, 8)]
    assert list(ranges_of_bookie(metadata, "a", 2, 3)) == [(2, 3)]
    assert list(ranges_of_bookie(metadata, "e", 0, 9)) == []
