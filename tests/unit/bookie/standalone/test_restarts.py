"""What `bookgate standalone` does about bookies that end, and about ports."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from bookgate.bookie.commands import standalone
from bookgate.bookie.standalone.cluster import ClusterException, StandaloneCluster
from bookgate.runtime.child_process import Pauses
from bookgate.runtime.command_line.output import CommandFailed


class Process:
    """A bookie that has ended; the first `failures` starts fail. `stop` is set once it serves."""

    bookie_id = "bookie-1"
    log = "bookie.log"

    def __init__(self, failures: int, stop: threading.Event) -> None:
        self._failures, self._stop = failures, stop
        self.starts = 0
        self.has_ended = True
        self.process: object | None = object()

    def start(self) -> None:
        self.starts += 1
        self.has_ended = False

    def wait_until_serving(self) -> None:
        if self.starts <= self._failures:
            self.process = None
            raise ClusterException("it did not start")
        self._stop.set()


class Cluster:
    """`stop` is set at the latest when it was looked at `most` times."""

    def __init__(self, process: Process, stop: threading.Event, most: int = 10**5) -> None:
        self.processes = [process]
        self._stop, self._left = stop, most

    def ended(self) -> list[Process]:
        self._left -= 1
        if not self._left:
            self._stop.set()
        return [process for process in self.processes if process.has_ended]


def test_a_bookie_is_started_again_until_it_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standalone, "_LOOK_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(Pauses, "FIRST_SECONDS", 0.001)
    stop = threading.Event()
    process = Process(3, stop)
    standalone._watch(cast(StandaloneCluster, Cluster(process, stop)), stop, True)
    assert process.starts == 4
    said = capsys.readouterr().err
    assert said.count("bookie-1 has ended") == 1
    assert said.count("it did not start. It is tried again") == 3


def test_ports_above_the_last_one_are_refused_before_anything_starts() -> None:
    with pytest.raises(CommandFailed, match="3 ports from 65534 on end above 65535"):
        standalone._check_ports("--bookie-port", 65534, 3)
