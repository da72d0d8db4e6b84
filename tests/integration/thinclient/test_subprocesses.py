"""Processes that an application starts while it has a client: PySpark starts Java so."""

from __future__ import annotations

import os
import subprocess
import sys

from bookgate.bookie.standalone.cluster import StandaloneCluster

STARTED = 150

APPLICATION = f"""
import signal, subprocess, sys
from bookgate.blocking import BookKeeper

codes = set()
for _ in range({STARTED} // 5):
    with BookKeeper.connect(sys.argv[1]) as client:
        client.service_discovery.bookies()
        for _ in range(5):
            ignored = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
            codes.add(subprocess.Popen(["/bin/true"], preexec_fn=ignored).wait())
print(codes)
"""


def test_processes_that_are_started_beside_a_client_run(standalone_cluster: StandaloneCluster) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    ended = subprocess.run(
        [sys.executable, "-c", APPLICATION, standalone_cluster.gateway_uri],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=True,
    )
    assert ended.stdout == "{0}\n"
