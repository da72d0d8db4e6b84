"""A metadata store that is put back to an older state: no id comes twice, nothing is collected, ledgers come back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.standalone.cluster import BookieProcess, StandaloneCluster
from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.blocking.client import BookKeeper
from tests.forked_commands import COMMAND

OLD, NEW = [b"old %d" % number for number in range(5)], [b"new %d" % number for number in range(50)]
SCOPED = LedgerId(-42, -7)


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[tuple[StandaloneCluster, int, int]]:
    """A cluster whose store knows the first ledger and has forgotten the second, and one of a scope.

    It collects nothing by itself.
    """
    root = tmp_path / "cluster"
    store = root / "metadata.sqlite"
    options = ("--set=gc_collect_ledgers=false", "--set=gc_wait_seconds=0.2")
    with StandaloneCluster(root, bookies=3) as before:
        known = write(before, OLD)
    # Stopped in order, the file is whole without its journal.
    shutil.copy(store, tmp_path / "backup")
    with StandaloneCluster(root, bookies=3) as before:
        lost = write(before, NEW)
        write(before, NEW, ledger_id=SCOPED)
    for suffix in ("-wal", "-shm"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", store)
    with StandaloneCluster(root, bookies=3, bookie_options=options) as cluster:
        yield cluster, known, lost


def write(cluster: StandaloneCluster, payloads: list[bytes], ledger_id: LedgerId | None = None) -> int:
    with BookKeeper.connect(cluster.gateway_uri) as client:
        with client.create_ledger(3, 2, 2, password=b"planted-secret", ledger_id=ledger_id) as ledger:
            ledger.append_all(payloads)
        return ledger.ledger_id.low


def run(cluster: StandaloneCluster, *arguments: str, fails: bool = False) -> Any:
    words = [*COMMAND, *arguments, "--json"]
    if arguments[0] != "cluster":
        words.append(f"--gateways={cluster.gateway_uri}")
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (result.returncode != 0) == fails, result.stderr
    return json.loads(result.stderr if fails and not result.stdout else result.stdout)


def read(cluster: StandaloneCluster, ledger_id: int | LedgerId) -> list[bytes]:
    with BookKeeper.connect(cluster.gateway_uri) as client:
        handle = client.open_ledger(ledger_id, password=b"planted-secret")
        return [bytes(entry.payload) for entry in handle.read(0, handle.last_add_confirmed)]


@pytest.mark.long
def test_what_came_after_the_backup_is_found_and_adopted(restored: tuple[StandaloneCluster, int, int]) -> None:
    cluster, known, lost = restored
    assert run(cluster, "ledger", "largest-held") == {"largest_held": lost}
    advanced = run(cluster, "cluster", "advance-ids", f"--beyond={lost}", f"--metadata-uri={cluster.metadata_uri}")
    assert advanced == {"next_id": lost + 1}
    assert write(cluster, OLD) > lost

    found = run(cluster, "ledger", "orphans")
    assert found["orphans"] == [{"ledger_id": lost, "bookies": ["bookie-1", "bookie-2", "bookie-3"]}]
    assert found["not_asked"] == {}
    for bookie_id in found["orphans"][0]["bookies"]:
        assert run(cluster, "gc", "trigger", bookie_id, "--force-ledgers")["ledgers"]
        assert run(cluster, "gc", "status", bookie_id)["ledgers_suspended"] is True

    assert "error" in run(cluster, "ledger", "adopt", str(lost), "--password=wrong", "--yes", fails=True)
    with BookKeeper.connect(cluster.gateway_uri) as client, pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
        client.read_record(lost)
    adopted = run(cluster, "ledger", "adopt", str(lost), "--password=planted-secret", "--yes")
    assert (adopted["state"], adopted["last_entry_id"]) == ("CLOSED", 49)
    assert read(cluster, lost) == NEW
    assert read(cluster, known) == OLD
    assert run(cluster, "ledger", "orphans")["orphans"] == []
    assert (
        "exists"
        in run(cluster, "ledger", "adopt", str(lost), "--password=planted-secret", "--yes", fails=True)["error"]
    )

    in_scope = ("ledger", "orphans", f"--ledger-scope-id={SCOPED.scope_id}")
    assert [each["ledger_id"] for each in run(cluster, *in_scope)["orphans"]] == [SCOPED.low]
    adopted = run(cluster, "ledger", "adopt", SCOPED.qualified_name, "--password=planted-secret", "--yes")
    assert (adopted["state"], adopted["last_entry_id"]) == ("CLOSED", 49)
    assert read(cluster, SCOPED) == NEW
    assert run(cluster, *in_scope)["orphans"] == []


@pytest.mark.long
def test_suspension_lasts_over_restarts(own_bookie: BookieProcess) -> None:
    http = f"--http={own_bookie.addresses['http']}"

    def told(*arguments: str) -> Any:
        result = subprocess.run(
            [*COMMAND, "gc", *arguments, http, "--json"], capture_output=True, text=True, check=True
        )
        return json.loads(result.stdout)

    assert told("suspend", "--ledgers") == {
        "major_suspended": False,
        "minor_suspended": False,
        "ledgers_suspended": True,
    }
    own_bookie.terminate()
    own_bookie.wait()
    own_bookie.start()
    own_bookie.wait_until_serving()
    http = f"--http={own_bookie.addresses['http']}"
    assert told("status")["ledgers_suspended"] is True
    assert told("resume", "--ledgers")["ledgers_suspended"] is False
    assert told("status")["ledgers_suspended"] is False
