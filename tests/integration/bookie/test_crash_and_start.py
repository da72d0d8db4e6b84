"""What a bookie process keeps over a kill, and what it says when it can't start."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import BookieProcess, ClusterException, StandaloneCluster
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import Status
from bookgate.runtime.command_line.output import FAILED, WRONG_USAGE
from tests.held_ports import held_port
from tests.integration.bookie.entry_client import KEY, WRONG_KEY, EntryClient, add, fence, lac_packet, packet, read
from tests.integration.cluster import restart
from tests.stores import made


def kill_and_restart(bookie: BookieProcess) -> None:
    bookie.kill()
    restart(bookie)


# --- kill -9 ---


def test_every_acknowledged_entry_survives_a_kill_in_the_middle_of_adds(own_bookie: BookieProcess) -> None:
    payloads = {entry_id: bytes([entry_id % 251]) * (entry_id % 700) for entry_id in range(20_000)}
    acknowledged: set[int] = set()
    with EntryClient.to(own_bookie) as client:
        client.send(*(add(1, entry_id, payload) for entry_id, payload in payloads.items()))
        while len(acknowledged) < 5_000:
            response = client.receive()
            assert isinstance(response, messages.AddResponse)
            assert response.status == Status.EOK
            acknowledged.add(response.entry_id)
        own_bookie.kill()
    restart(own_bookie)
    with EntryClient.to(own_bookie) as client:
        for entry_id in sorted(acknowledged):
            response = client.ask(read(1, entry_id))
            assert isinstance(response, messages.ReadResponse)
            assert response.body == packet(1, entry_id, payloads[entry_id])


@pytest.mark.long
def test_a_taking_over_survives_a_kill(own_bookie: BookieProcess) -> None:
    """U1, U3: the term holds, and what was truncated stays away, in a ledger with entries and in one without."""

    def at_term(ledger_id: int, entry_id: int, term: int, text: bytes) -> messages.AddRequest:
        body = packet(ledger_id, entry_id, text, lac=min(entry_id - 1, 2))
        return add(ledger_id, entry_id, body=body)._replace(term=term)

    def take_over(ledger_id: int, term: int, entry_id: int = -1) -> messages.ReadRequest:
        return messages.ReadRequest(7, ledger_id, entry_id, entry_id == -1, KEY, term=term)

    with EntryClient.to(own_bookie) as client:
        for entry_id in range(6):
            assert client.status(at_term(1, entry_id, 1, b"old")) == Status.EOK
        assert client.status(take_over(1, 2)) == Status.EOK
        assert client.status(take_over(2, 5)) == Status.ENOENTRY
        truncate = at_term(1, 3, 2, b"")._replace(recovery=True, truncate=True)
        assert client.status(truncate) == Status.EOK
        assert client.status(at_term(1, 5, 2, b"new")) == Status.EOK
    kill_and_restart(own_bookie)
    with EntryClient.to(own_bookie) as client:
        assert client.status(at_term(1, 6, 1, b"old")) == Status.EINVALIDTERM
        assert client.status(at_term(2, 0, 4, b"old")) == Status.EINVALIDTERM
        answers = [client.ask(take_over(1, 2, entry_id)) for entry_id in (2, 3, 4, 5)]
        bodies = [answer.body for answer in answers if isinstance(answer, messages.ReadResponse)]
        assert bodies == [packet(1, 2, b"old"), packet(1, 3, b""), None, packet(1, 5, b"new", lac=2)]
        assert {answer.term for answer in answers if isinstance(answer, messages.ReadResponse)} == {2}


def test_a_fence_survives_a_kill_also_of_a_ledger_without_entries(own_bookie: BookieProcess) -> None:
    """F2, F3: the Java bookie loses it."""
    with EntryClient.to(own_bookie) as client:
        client.ask(add(1, 0))
        assert client.status(fence(1)) == Status.EOK
        assert client.status(fence(2)) == Status.ENOENTRY
    kill_and_restart(own_bookie)
    with EntryClient.to(own_bookie) as client:
        assert client.status(add(1, 1)) == Status.EFENCED
        assert client.status(add(2, 0)) == Status.EFENCED
        assert client.status(add(2, 0, recovery=True)) == Status.EOK


@pytest.mark.long
@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
def test_key_and_explicit_lac_survive(own_bookie: BookieProcess, crash: bool) -> None:
    """F4, F5: index-file storages of the Java bookie forget both at a clean restart."""
    with EntryClient.to(own_bookie) as client:
        client.ask(add(1, 0))
        client.ask(messages.WriteLacRequest(5, 1, 3, KEY, lac_packet(1, 3)))
    if crash:
        own_bookie.kill()
    else:
        own_bookie.terminate()
        own_bookie.wait()
    restart(own_bookie)
    with EntryClient.to(own_bookie) as client:
        assert client.status(add(1, 1, key=WRONG_KEY)) == Status.EUA
        assert client.status(add(1, 1)) == Status.EOK
        answer = client.ask(messages.ReadLacRequest(6, 1))
        assert isinstance(answer, messages.ReadLacResponse)
        assert answer.lac_body == lac_packet(1, 3)


@pytest.mark.long
def test_entries_are_read_from_the_entry_log_after_a_clean_stop(own_bookie: BookieProcess) -> None:
    with EntryClient.to(own_bookie) as client:
        client.send(*(add(ledger, entry, b"x" * 100) for entry in range(200) for ledger in range(20)))
        for _ in range(4000):
            assert client.receive().status == Status.EOK
    own_bookie.terminate()
    own_bookie.wait()
    restart(own_bookie)
    with EntryClient.to(own_bookie) as client:
        client.send(*(read(ledger, entry) for ledger in range(20) for entry in range(200)))
        for ledger in range(20):
            for entry in range(200):
                response = client.receive()
                assert isinstance(response, messages.ReadResponse)
                assert (response.body, response.max_lac) == (packet(ledger, entry, b"x" * 100), 198)
        assert client.status(read(0, 200)) == Status.ENOENTRY
        assert client.status(read(20, 0)) == Status.ENOLEDGER


# --- a client that does not read ---


@pytest.mark.long
def test_a_client_that_never_reads_its_answers_does_not_fill_the_bookies_memory(own_bookie: BookieProcess) -> None:
    payload = b"x" * 1_000_000
    with EntryClient.to(own_bookie) as client:
        for entry_id in range(10):
            assert client.status(add(1, entry_id, payload)) == Status.EOK
    before = memory_of(own_bookie)
    with EntryClient.to(own_bookie) as silent, EntryClient.to(own_bookie) as other:
        silent.send(*(read(1, entry_id % 10) for entry_id in range(1000)))
        for entry_id in range(100):
            assert other.status(add(2, entry_id)) == Status.EOK
            assert other.status(read(2, entry_id)) == Status.EOK
        assert memory_of(own_bookie) - before < 100_000_000
        for _ in range(1000):
            response = silent.receive()
            assert isinstance(response, messages.ReadResponse)
            assert response.body is not None


def memory_of(bookie: BookieProcess) -> int:
    """Resident bytes of the process."""
    assert bookie.process is not None
    status = Path(f"/proc/{bookie.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


# --- starting ---


def run_bookie(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bookgate", "bookie", "--host=127.0.0.1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def free_ports(*, but: str = "") -> list[str]:
    return [f"--{name}=0" for name in ("port", "gateway-port", "http-port") if name != but]


def assert_refused(result: subprocess.CompletedProcess[str], *words: str, code: int = FAILED) -> None:
    assert result.returncode == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    for word in words:
        assert word in last


@pytest.mark.parametrize("kind", ["port", "gateway-port", "http-port"])
def test_a_port_in_use_is_named(tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_bookie(
            f"--metadata-uri={made(f'sqlite://{tmp_path}/m.sqlite')}",
            f"--data-dir={tmp_path}/b",
            f"--{kind}={port}",
            *free_ports(but=kind),
        )
    assert_refused(result, str(port), "in use")


def test_the_directory_of_a_running_bookie_is_refused(own_cluster: StandaloneCluster) -> None:
    first = own_cluster.processes[0]
    result = run_bookie(f"--metadata-uri={own_cluster.metadata_uri}", f"--data-dir={first.data_dir}", *free_ports())
    assert_refused(result, str(first.data_dir), "in use")


def test_the_directory_of_another_bookie_is_refused(own_cluster: StandaloneCluster) -> None:
    first = own_cluster.processes[0]
    first.terminate()
    first.wait()
    result = run_bookie(
        f"--metadata-uri={own_cluster.metadata_uri}", f"--data-dir={first.data_dir}", "--bookie-id=other", *free_ports()
    )
    assert_refused(result, "cookie", "'bookie-1'", "'other'")
    restart(first)


def test_a_bookie_id_with_another_directory_is_refused(own_cluster: StandaloneCluster, tmp_path: Path) -> None:
    own_cluster.processes[0].kill()
    result = run_bookie(
        f"--metadata-uri={own_cluster.metadata_uri}",
        f"--data-dir={tmp_path}/new",
        "--bookie-id=bookie-1",
        *free_ports(),
    )
    assert_refused(result, "bookie-1", "cookie")


def test_a_directory_of_another_cluster_is_refused(own_cluster: StandaloneCluster, tmp_path: Path) -> None:
    first = own_cluster.processes[0]
    first.kill()
    result = run_bookie(
        f"--metadata-uri={made(f'sqlite://{tmp_path}/other.sqlite')}",
        f"--data-dir={first.data_dir}",
        "--bookie-id=bookie-1",
        *free_ports(),
    )
    assert_refused(result, "cookie")


@pytest.mark.long
def test_a_first_start_that_was_cut_short_goes_on(own_bookie: BookieProcess) -> None:
    """Killed between stamping its directories and telling the metadata store."""
    own_bookie.terminate()
    own_bookie.wait()
    stamped = (own_bookie.data_dir / "journal" / "current" / "VERSION").read_bytes()
    for kind in ("journal", "ledgers"):
        shutil.rmtree(own_bookie.data_dir / kind)
        current = own_bookie.data_dir / kind / "current"
        current.mkdir(parents=True)
        (current / "VERSION").write_bytes(stamped)
    store = own_bookie.data_dir.parent / "metadata.sqlite"
    with contextlib.closing(sqlite3.connect(store)) as database, database:
        assert database.execute("delete from cookies").rowcount == 1
    restart(own_bookie)


def test_a_metadata_store_that_is_down_is_named(tmp_path: Path) -> None:
    with held_port() as port:
        result = run_bookie(
            f"--metadata-uri=zk+hierarchical://127.0.0.1:{port}/ledgers", f"--data-dir={tmp_path}/b", *free_ports()
        )
    assert_refused(result, f"127.0.0.1:{port}")


def test_a_metadata_uri_that_is_none_is_named(tmp_path: Path) -> None:
    assert_refused(run_bookie("--metadata-uri=nosuch://x", f"--data-dir={tmp_path}/b"), "nosuch", code=WRONG_USAGE)


def test_settings_that_are_missing_are_named() -> None:
    assert_refused(run_bookie(), "metadata_uri", code=WRONG_USAGE)
    assert_refused(run_bookie("--metadata-uri=sqlite:///x"), "data_dir", code=WRONG_USAGE)


def test_settings_come_from_a_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(f'metadata_uri = "nosuch://x"\ndata_dir = "{tmp_path}/b"\nport = 0\n')
    assert_refused(run_bookie(f"--config={file}"), "nosuch", code=WRONG_USAGE)
    assert_refused(run_bookie(f"--config={file}", "--metadata-uri=none://x"), "'none'", code=WRONG_USAGE)
    file.write_text("port = 70000\nshoe_size = 44\n")
    assert_refused(run_bookie(f"--config={file}"), "port", "shoe_size", code=WRONG_USAGE)


def test_a_journal_that_is_corrupt_stops_the_start_and_names_the_file(own_bookie: BookieProcess) -> None:
    with EntryClient.to(own_bookie) as client:
        client.ask(add(1, 0))
    own_bookie.kill()
    [journal] = (own_bookie.data_dir / "journal" / "current").glob("*.txn")
    with journal.open("r+b") as file:
        file.seek(512)
        file.write(b"\xff\xff\xff\x01")
    own_bookie.start()
    with pytest.raises(ClusterException, match=journal.name):
        own_bookie.wait_until_serving()


def test_a_cluster_whose_database_is_damaged_says_so(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"this is no database" * 1000)
    with pytest.raises(ClusterException, match=r"metadata\.sqlite"), StandaloneCluster(tmp_path):
        pass


# --- the cluster as a whole ---


@pytest.mark.long
def test_a_cluster_keeps_its_data_over_restarts_on_other_ports(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path) as cluster:
        for bookie in cluster.processes:
            with EntryClient.to(bookie) as client:
                assert client.status(add(1, 0)) == Status.EOK
    with StandaloneCluster(tmp_path) as cluster:
        for bookie in cluster.processes:
            with EntryClient.to(bookie) as client:
                assert client.status(read(1, 0)) == Status.EOK


def test_bookies_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import json, sys, time; from pathlib import Path\n"
        "from bookgate.bookie.standalone.cluster import StandaloneCluster\n"
        f"cluster = StandaloneCluster(Path({str(tmp_path)!r}), bookies=1); cluster.start()\n"
        "print(json.dumps(cluster.bookies), flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    [address] = json.loads(parent.stdout.readline())
    with EntryClient(address) as client:
        parent.kill()
        parent.wait()
        assert client.is_closed_by_bookie()
    parent.stdout.close()


def test_a_bookie_that_was_started_without_standard_input_stops_in_order(tmp_path: Path) -> None:
    """As from a shell's `<&-`. The client's command as well."""
    options = [
        f"--metadata-uri={made(f'sqlite://{tmp_path}/m.sqlite')}",
        f"--data-dir={tmp_path}/b",
        "--host=127.0.0.1",
    ]
    without_input = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "bookgate"]
    command = [*without_input, "bookie", "start", *options, *free_ports(), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as bookie:
        try:
            assert bookie.stdout is not None
            gateway = json.loads(bookie.stdout.readline())["gateway"]
            one = [f"--{each}-size=1" for each in ("ensemble", "write-quorum", "ack-quorum")]
            create = [*without_input, "ledger", "create", f"--gateways=grpc://{gateway}", *one]
            created = subprocess.run(create, capture_output=True, text=True, timeout=60)
            assert (created.returncode, created.stdout) == (0, "0\n"), created.stderr
            bookie.terminate()
            assert bookie.wait(timeout=60) == 0
        finally:
            bookie.kill()
