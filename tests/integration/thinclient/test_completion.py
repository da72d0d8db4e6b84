"""The shell's completion of what only the cluster knows."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.thinclient.commands.main import app
from tests.integration.cluster import standalone_cluster

__all__ = ["standalone_cluster"]


def _complete(line: str, gateways: str) -> str:
    environment = {"_BOOKGATE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = CliRunner().invoke(app, [], env={**environment, "BOOKGATE_GATEWAYS": gateways}, prog_name="bookgate")
    assert done.exit_code == 0
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bookgate bookie info boo", ["bookie-1", "bookie-2", "bookie-3"]),
        ("bookgate bookie endpoints bookie-2", ["bookie-2"]),
        ("bookgate ledger list --bookie ", ["bookie-1", "bookie-2", "bookie-3"]),
        ("bookgate ledger read 7 --bookie ", ["bookie-1", "bookie-2", "bookie-3"]),
        ("bookgate bookie recover bookie-", ["bookie-1", "bookie-2", "bookie-3"]),
        ("bookgate bookie info x", []),
    ],
)
def test_ids_of_bookies(standalone_cluster: StandaloneCluster, line: str, offered: list[str]) -> None:
    assert _complete(line, standalone_cluster.gateway_uri).split() == offered


def test_without_a_gateway_nothing_is_offered_and_nothing_said() -> None:
    assert _complete("bookgate bookie info boo", "grpc://127.0.0.1:1").split() == []
