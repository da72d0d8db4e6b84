"""`bookgate spark …` as processes, each with a Spark of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bookie.standalone import StandaloneCluster
from tests.spark.conftest import PASSWORD
from tests.spark.planted import Copy, plant, sound
from thinclient.blocking import BookKeeper

_CONF = ("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false", "--master", "local[2]")


def command(*arguments: str) -> tuple[int, Any, str]:
    """Exit code, the JSON printed, and standard error."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-m", "thinclient.cli", "spark", *arguments, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else None, ended.stderr


def test_an_audit_with_damage_ends_with_1_and_keeps_its_result(
    cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    def lost(ledger_id: int, copy: Copy) -> bytes | None:
        return None if (copy.bookie_id, copy.entry_id) == ("bookie-2", 3) else sound(ledger_id, copy)

    ledger = plant(client, cluster, lost, entries=10)
    output = tmp_path / "report"
    common = ("-g", cluster.gateway_uri, "--ledger-ids", str(ledger), *_CONF)
    code, result, _ = command("audit", *common, "--output", str(output), "--format", "json")
    assert code == 1
    assert {name: result[name] for name in ("ledgers", "copies", "good", "missing", "corrupt")} == {
        "ledgers": 1,
        "copies": 30,
        "good": 29,
        "missing": 1,
        "corrupt": 0,
    }
    (damage,) = result["damage"]
    assert (damage["ledger_id"], damage["bookie_id"], damage["ranges"][0]["first_entry_id"]) == (ledger, "bookie-2", 3)
    lines = [json.loads(line) for file in output.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(line["bookie_id"] for line in lines) == ["bookie-1", "bookie-2", "bookie-3"]


def test_an_export_prints_what_its_manifest_says(
    cluster: StandaloneCluster, client: BookKeeper, tmp_path: Path
) -> None:
    with client.create_ledger(password=PASSWORD) as ledger:
        ledger.append_all([b"abc"] * 5)
    output = str(tmp_path / "out")
    common = ("-g", cluster.gateway_uri, "--ledger-ids", str(ledger.ledger_id.ledger_id), *_CONF)
    code, result, _ = command("export", output, *common, "--password", PASSWORD.decode())
    assert (code, result) == (0, {"ledgers": 1, "complete": 1, "entries": 5, "bytes": 15, "output": output})


def test_what_can_not_be_done_is_one_line(cluster: StandaloneCluster) -> None:
    code, _, said = command("usage", "-g", cluster.gateway_uri, "--option", "custmMetadata=x")
    assert code == 1
    assert "unknown option 'custmmetadata'" in json.loads(said)["error"].lower()
    assert len(said.strip().splitlines()) == 1
