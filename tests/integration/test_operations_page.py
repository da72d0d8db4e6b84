"""The steps of docs/operations.md, run as they stand there: what was written before each is there after it.

They take a minute or two, so `make test-deploy` runs them; what can be seen without running is looked at by every run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.commands.main import app as bookgate
from tests.deploy.hosts import Hosts, blocks
from tests.deploy.prometheus_server import ROOT
from tests.stores import made

DOCS = ROOT / "docs"
PAGE = (DOCS / "operations.md").read_text()
ENTRIES = [b"one", b"two", b"three"]


class Cluster:
    """The machines, and ledgers that no step may lose."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.ledgers: list[LedgerId] = []

    def client(self) -> BookKeeper:
        return BookKeeper.connect(self.hosts.gateways)

    def write(self) -> LedgerId:
        with self.client() as client:
            with client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as ledger:
                ledger.append_all(ENTRIES)
            self.ledgers.append(ledger.ledger_id)
            return ledger.ledger_id

    def steps(self, heading: str) -> str:
        """Runs the blocks below a heading; what they print. Everything written before is there, and can be written."""
        printed = "".join(self.hosts.run(text, host or "bookie-1") for host, text in blocks(PAGE, heading))
        self.write()
        with self.client() as client:
            for ledger_id in self.ledgers:
                assert [each.payload for each in client.open_ledger(ledger_id).read(0, 2)] == ENTRIES, ledger_id
        return printed

    def lose(self, name: str) -> None:
        """The machine ends at once, and its disks are gone. Returns once nobody finds it any more."""
        home = self.hosts.home(name)
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        (home / "pid").unlink()
        shutil.rmtree(home / "var/lib/bookgate")
        (home / "var/lib/bookgate").mkdir()
        deadline = time.monotonic() + 60
        while name in self.writable():
            assert time.monotonic() < deadline, f"{name} is registered for ever"
            time.sleep(0.2)

    def bookies_of(self, ledger_id: LedgerId) -> set[str]:
        with self.client() as client:
            return set(client.read_record(ledger_id).metadata.bookies)

    def writable(self) -> set[str]:
        with self.client() as client:
            return {each.bookie_id for each in client.bookies(BookieSet.WRITABLE)}


@pytest.fixture(scope="module")
def cluster(zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    names = [*(f"bookie-{number}" for number in range(1, 6)), "bookie-3-new"]
    [(_, prelude)] = blocks(PAGE, "Step by step")
    root = tmp_path_factory.mktemp("hosts")
    variables = {"LEDGER": ""}
    hosts = Hosts(root, made(zookeeper.metadata_uri("/operations")), names, prelude, variables)
    try:
        for name in names[:4]:
            hosts.run("systemctl start bookgate-bookie", name)
        running = Cluster(hosts)
        variables["LEDGER"] = str(running.write().low)
        yield running
    finally:
        hosts.stop()


run_at_length = pytest.mark.skipif(
    not os.environ.get("BOOKGATE_DEPLOY"), reason="make test-deploy runs the steps of the operations page"
)
ALL = {"bookie-1", "bookie-2", "bookie-3", "bookie-4"}


@run_at_length
def test_upgrade(cluster: Cluster) -> None:
    printed = cluster.steps("Upgrade")
    assert "OK" in printed
    assert cluster.writable() == ALL


@run_at_length
def test_rollback(cluster: Cluster) -> None:
    cluster.steps("Rollback")
    assert cluster.writable() == ALL


@run_at_length
def test_backup_and_restore(cluster: Cluster) -> None:
    cluster.steps("Backup")
    copy = cluster.hosts.home("bookie-1").parent / "backup" / "bookie-1.tar"
    assert copy.stat().st_mode & 0o077 == 0, "entries are their bookies' alone"
    # Nothing may be acknowledged by bookie-1 between its backup and its restoration; a ledger was just written.
    [block] = [text for on, text in blocks(PAGE, "Backup") if on == "bookie-1"]
    cluster.hosts.run(block, "bookie-1")
    with cluster.client() as client:
        client.delete_ledger(cluster.ledgers[0])
    printed = cluster.steps("Restore")
    assert "one\ntwo\nthree\n" in printed
    assert cluster.writable() == ALL


@run_at_length
def test_restoring_the_metadata_store(cluster: Cluster) -> None:
    """The store has lost one ledger: the steps bring it back from what bookies hold."""
    with cluster.client() as client:
        client.delete_ledger(cluster.ledgers[0])
    printed = cluster.steps("Restoring the metadata store")
    assert "one\ntwo\nthree\n" in printed
    assert cluster.writable() == ALL
    with cluster.client() as client:
        assert client.read_record(cluster.ledgers[0]).metadata.custom_metadata == {"bookgate.adopted": b"1"}


@run_at_length
def test_scaling_out_and_in(cluster: Cluster) -> None:
    assert "bookie-5" in cluster.steps("Scaling out")
    assert "bookie-5" in cluster.writable()
    while not any("bookie-5" in cluster.bookies_of(ledger_id) for ledger_id in cluster.ledgers):
        cluster.write()
    printed = cluster.steps("Scaling in")
    assert "cookie removed" in printed
    assert cluster.writable() == ALL
    for ledger_id in cluster.ledgers:
        assert "bookie-5" not in cluster.bookies_of(ledger_id)
    with cluster.client() as client:
        assert {each.bookie_id for each in client.bookies(BookieSet.ALL)} == ALL, "its cookie is gone too"


@run_at_length
def test_adding_a_disk(cluster: Cluster) -> None:
    cluster.steps("Adding a disk")
    disk = cluster.hosts.home("bookie-2") / "var/lib/bookgate/disk-2"
    assert (disk / "current" / "VERSION").is_file()
    assert cluster.writable() == ALL


@pytest.fixture
def soon(cluster: Cluster) -> Iterator[None]:
    """Who is missed is lost after a second, instead of a minute."""
    cluster.hosts.run("bookgate autorecovery delay 1")
    yield
    cluster.hosts.run("bookgate autorecovery delay 60")


@run_at_length
@pytest.mark.usefixtures("soon")
def test_losing_a_bookie(cluster: Cluster) -> None:
    cluster.lose("bookie-4")
    hit = [ledger_id for ledger_id in cluster.ledgers if "bookie-4" in cluster.bookies_of(ledger_id)]
    hit = hit or pytest.fail("no ledger was on it")
    printed = cluster.steps("Losing a bookie")
    assert "auditor" in printed
    assert cluster.writable() == ALL - {"bookie-4"}
    with cluster.client() as client:
        assert {each.bookie_id for each in client.bookies(BookieSet.ALL)} == cluster.writable(), "its cookie is gone"
    for ledger_id in hit:
        for bookie_id in sorted(cluster.bookies_of(ledger_id)):
            printed = cluster.hosts.run(f"bookgate ledger read {ledger_id} --bookie {bookie_id}")
            assert printed == "one\ntwo\nthree\n", f"of {ledger_id} on {bookie_id}"
    # Empty, and unknown to the cluster, it begins anew.
    cluster.hosts.run("systemctl start bookgate-bookie", "bookie-4")
    assert cluster.writable() == ALL


@run_at_length
def test_losing_a_rack(cluster: Cluster) -> None:
    printed = cluster.steps("Losing a rack")
    assert "auto-recovery is disabled" in printed
    assert "auto-recovery is enabled" in printed
    assert '"enabled": true' in cluster.hosts.run("bookgate autorecovery status --json")


@run_at_length
@pytest.mark.usefixtures("soon")
def test_replacing_a_disk(cluster: Cluster) -> None:
    cluster.steps("Replacing a disk")
    assert cluster.writable() == ALL - {"bookie-4"} | {"bookie-4b"}
    for ledger_id in cluster.ledgers:
        assert "bookie-4" not in cluster.bookies_of(ledger_id)
    with cluster.client() as client:
        assert "bookie-4" not in {each.bookie_id for each in client.bookies(BookieSet.ALL)}, "its cookie is gone"


@run_at_length
def test_replacing_a_bookie(cluster: Cluster) -> None:
    stopping, starting = blocks(PAGE, "Replacing a bookie")
    assert [stopping[0], starting[0]] == ["bookie-3", "bookie-3-new"]
    cluster.hosts.run(stopping[1], "bookie-3")
    # The same paths, as when disks are moved.
    old, new = cluster.hosts.home("bookie-3"), cluster.hosts.home("bookie-3-new")
    shutil.rmtree(new)
    old.rename(new)
    old.symlink_to(new)
    file = new / "etc/bookgate/bookie.toml"
    file.write_text(
        re.sub("^host = .*$", f'host = "{cluster.hosts.addresses["bookie-3-new"]}"', file.read_text(), flags=re.M)
    )
    assert cluster.hosts.addresses["bookie-3-new"] in cluster.hosts.run(starting[1], "bookie-3-new")
    cluster.write()
    assert "bookie-3" in cluster.writable()


@run_at_length
def test_moving_from_java_bookies(cluster: Cluster) -> None:
    home = cluster.hosts.home("bookie-2")
    (home / "etc/bookkeeper/bk_server.conf").write_text(
        "bookiePort=3181\nzkServers=zk-1:2181\njournalDirectories=/data/journal\nledgerDirectories=/data/ledgers\n"
    )
    assert "valid" in cluster.steps("Moving from Java bookies")
    assert "journal_director" in (home / "etc/bookgate/migrated.toml").read_text()


@run_at_length
def test_security(cluster: Cluster) -> None:
    cluster.steps("Security")
    folder = cluster.hosts.home("bookie-1") / "etc/bookgate/secure"
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert {str(each.relative_to(folder)) for each in files} == {
        *("ca.crt", "tokens", "policy.toml"),
        *(f"bookies/bookie-1.{kind}" for kind in ("crt", "key", "token", "toml")),
    }
    assert {each.stat().st_mode & 0o777 for each in files} == {0o640}


@pytest.mark.parametrize(
    "lines",
    ["", "auto_recovery = true", "auto_recovery=true\ngc_collect_ledgers = true", "gc_collect_ledgers = false"],
    ids=["by default", "as in the examples", "in another form", "off already"],
)
def test_a_store_is_restored_without_auto_recovery_and_deletion(tmp_path: Path, lines: str) -> None:
    """Either would act on what the old metadata say. At the end the settings are what they were."""
    file = tmp_path / "bookie.toml"
    before = (
        f'{lines}\nmetadata_uri = "zk://zk-1/ledgers"\ndata_dir = "/d"\nhost = "127.0.0.1"\n[gateway]\nmax_batch = 8\n'
    )
    file.write_text(before)
    steps = [text for on, text in blocks(PAGE, "Restoring the metadata store") if on == "bookie-1"]

    def run(block: str) -> None:
        text = "systemctl() { :; }\n" + block.replace("/etc/bookgate", str(tmp_path))
        subprocess.run(["bash", "-euc", text], check=True)

    run(steps[0])
    config = load_config(file)
    assert (config.auto_recovery, config.gc_collect_ledgers) == (False, False)
    run(steps[-1])
    assert file.read_text() == before


def test_every_block_of_the_steps_is_run() -> None:
    """Blocks in `sh` are run by the tests above; `bash` is for what one machine does not have."""
    headings = set(re.findall(r"^#{2,3} (.+)$", PAGE, re.MULTILINE))
    with_blocks = {heading for heading in headings if blocks(PAGE, heading)}
    assert with_blocks == {
        "Step by step",
        "Upgrade",
        "Rollback",
        "Backup",
        "Restore",
        "Restoring the metadata store",
        "Scaling out",
        "Scaling in",
        "Adding a disk",
        "Losing a bookie",
        "Losing a rack",
        "Replacing a disk",
        "Replacing a bookie",
        "Moving from Java bookies",
        "Security",
    }


def test_blocks_are_sound_shell() -> None:
    for text in re.findall(r"^ *```(?:sh|bash)[^\n]*\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_commands_on_the_pages_exist(page: Path) -> None:
    """Every `bookgate …` in a block: its command, and the options that it is given."""
    root = typer.main.get_command(bookgate)
    for block in re.findall(r"^ *```(?:sh|bash)[^\n]*\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for words in commands_in(block):
            known_options(root, words, f"{page.name}: bookgate {' '.join(words)}")


def commands_in(block: str) -> Iterator[list[str]]:
    """The words behind each `bookgate`, as a shell would have them."""
    tokens = shlex.shlex(block.replace("\n", "\n;\n"), posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    found: list[str] | None = None
    begins = True
    for token in tokens:
        ends = not token.strip("();<>|&")
        if found is not None and ends:
            yield found
            found = None
        elif found is not None:
            found.append(token)
        elif token == "bookgate" and begins:
            found = []
        begins = ends or token in ("do", "then", "exec", "$") or "=" in token


def known_options(command: Any, words: list[str], where: str) -> None:
    context = typer.Context(command)
    while hasattr(command, "get_command") and words:
        if words[0].startswith("-"):
            # The client's settings stand before the noun, each with a value.
            if words[0] not in {option for parameter in command.params for option in parameter.opts}:
                break
            words = words[2:]
            continue
        found = command.get_command(context, words[0])
        assert found is not None, f"{where}: there is no {words[0]}"
        command, words = found, words[1:]
        context = typer.Context(command, parent=context)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if hasattr(command, "get_command") and (start := command.get_command(context, "start")) is not None:
        # `start` may be left out.
        known |= {option for parameter in start.params for option in parameter.opts}
    for word in words:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known | {"--help"}, f"{where}: {word} is no option"
