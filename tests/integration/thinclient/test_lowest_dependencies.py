"""The client beside the lowest grpcio and protobuf that it says it runs on, against a real cluster.

The quick form of `make test-dependencies`: only these two packages are older, the others are those of this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from tests.dependencies import floors

ROOT = Path(__file__).parents[3]
LOWEST = {name: version for name, _, version in (each.partition("==") for each in floors())}

PROGRAM = """
import sys
import google.protobuf, grpc
from bookgate.blocking import BookKeeper

with BookKeeper.connect(sys.argv[1]) as client:
    with client.create_ledger(password=b"planted-secret", custom_metadata={"app": b"floors"}) as written:
        for number in range(100):
            written.append(b"entry %d" % number)
    with client.open_ledger(written.ledger_id, password=b"planted-secret") as reader:
        assert [entry.payload for entry in reader.read(0, 99)] == [b"entry %d" % number for number in range(100)]
    assert written.ledger_id in [record.ledger_id for page in client.list_ledgers() for record in page]
    client.delete_ledger(written.ledger_id)
print(google.protobuf.__version__, grpc.__version__)
"""


@pytest.mark.long
def test_the_client_runs_on_the_lowest_grpcio_and_protobuf(
    standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    older = [f"{name}=={LOWEST[name]}" for name in ("protobuf", "grpcio")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
    installed = subprocess.run(
        [*pip, tmp_path, "--only-binary=:all:", *older], capture_output=True, text=True, check=False
    )
    if installed.returncode != 0:
        pytest.skip(f"no wheels of {' and '.join(older)} for this Python, or no registry: {installed.stderr[-300:]}")
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, standalone_cluster.gateway_uri],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.stdout.split(), result.stderr) == ([LOWEST["protobuf"], LOWEST["grpcio"]], "")
