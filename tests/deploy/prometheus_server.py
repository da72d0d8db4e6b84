"""A real Prometheus for tests, and what PromQL of rules and dashboards is made of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.held_ports import held_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)?\s*(\{[^{}]*\})?")
_CLAUSE = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^()]*\)")
_WORDS = {"and", "or", "unless", "bool", "offset"}


def tool(name: str) -> str:
    """`prometheus` or `promtool`; skips the test where there is none."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here; deploy/setup/ensure-prometheus.sh gets it")
    return found


def selectors(expression: str) -> set[str]:
    """The vector selectors in an expression, such as `up{job="bookie"}`, without ranges."""
    plain = re.sub(r"\[[^\]]*\]", "", _CLAUSE.sub(" ", expression))
    found, position = set(), 0
    while position < len(plain):
        match = _SELECTOR.match(plain, position)
        assert match is not None, "both parts may be missing"
        name, braces = match[1] or "", match[2] or ""
        following = plain[match.end() :].lstrip()[:1]
        if (name and name not in _WORDS and (braces or following != "(")) or (not name and braces):
            found.add(name + braces)
        if match.end() == position and plain[position] == '"':
            position = plain.index('"', position + 1)
        elif plain[position].isdigit():
            position = re.compile(r"[\w.]+").match(plain, position).end() - 1  # type: ignore[union-attr]
        position = max(match.end(), position + 1)
    return found


class Prometheus:
    """A running server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its HTTP API. Raises AssertionError with what it did not like."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query: a vector."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def until_not_empty(self, expressions: set[str], seconds: float = 45.0) -> set[str]:
        """Those that still gave nothing after so long."""
        deadline = time.monotonic() + seconds
        missing = set(expressions)
        while True:
            missing = {expression for expression in missing if not self.query(expression)}
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.2)


@contextmanager
def running_prometheus(directory: Path, config: dict[str, Any], wait_seconds: float = 30.0) -> Iterator[Prometheus]:
    """With this configuration (prometheus.yml as data), its own data in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [tool("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    command += ["--log.level=warn"]
    with (
        held_port() as port,
        (directory / "prometheus.log").open("wb") as log,
        subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            _wait_until_ready(process, f"127.0.0.1:{port}", directory / "prometheus.log", wait_seconds)
            yield Prometheus(f"127.0.0.1:{port}")
        finally:
            process.terminate()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start: {log.read_text()[-2000:]}")
