"""Machines for the steps of the operations page: each a directory and a loopback address, with its own `systemctl`.

What a block calls /etc/bookgate or /var/lib/bookgate lies below the machine's directory, /backup is shared, and
`bookie-1:8080` and the like become addresses. `systemctl` starts and stops a real bookie and does what the unit does:
start returns once the bookie serves, stop once it has ended.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.deploy.prometheus_server import ROOT

TOKEN = "planted-token-for-the-steps"
_FENCE = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)

_SYSTEMCTL = """\
#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path

home = Path(os.environ["HOST_HOME"])
pid_file = home / "pid"


def start():
    config = home / "etc/bookgate/bookie.toml"
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bookgate", "bookie", "start", "--config", str(config), "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )
    if not process.stdout.readline():
        sys.exit(f"the bookie did not start: {{(home / 'log').read_text()[-1000:]}}")
    pid_file.write_text(str(process.pid))


def stop():
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{{pid}}").exists() and ") Z " not in Path(f"/proc/{{pid}}/stat").read_text():
        if time.monotonic() > deadline:
            sys.exit("the bookie did not stop")
        time.sleep(0.02)
    pid_file.unlink()


command, unit = sys.argv[1:]
if unit != "bookgate-bookie":
    sys.exit(f"there is no unit {{unit}} here")
if command in ("stop", "restart"):
    stop()
if command in ("start", "restart"):
    start()
"""


_OWNER = """\
#!/bin/sh
# Nobody's group or owner is changed here: there is no such one.
[ "${1%:}" = bookgate ] && shift && exec ls -d "$@"
"""


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """The `sh` blocks below a heading, up to the next one: machine (or none) and text."""
    headings = list(_HEADING.finditer(page))
    [index] = [number for number, found in enumerate(headings) if found[1] == heading]
    end = headings[index + 1].start() if index + 1 < len(headings) else len(page)
    return [
        (host, text) for language, host, text in _FENCE.findall(page[headings[index].end() : end]) if language == "sh"
    ]


class Hosts:
    """All machines of a test."""

    def __init__(
        self, root: Path, metadata_uri: str, names: list[str], prelude: str, variables: dict[str, str]
    ) -> None:
        """`prelude` runs before each block; `variables` are the environment that it is given."""
        self._root = root
        self._prelude = prelude
        self._variables = variables
        network = f"127.{random.SystemRandom().randint(64, 250)}.{random.SystemRandom().randint(1, 250)}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(names, 1)}
        tools = root / "bin"
        tools.mkdir()
        self._tool(tools / "systemctl", _SYSTEMCTL.format(python=sys.executable))
        for command in ("chgrp", "chown"):
            self._tool(tools / command, _OWNER)
        self._tool(tools / "bookgate", f'#!/bin/sh\nexec {sys.executable} -m bookgate "$@"\n')
        (root / "backup").mkdir()
        for name, address in self.addresses.items():
            self._make(name, address, metadata_uri)

    @property
    def gateways(self) -> str:
        """Of every machine that may have one."""
        return "grpc://" + ",".join(f"{address}:4181" for address in self.addresses.values())

    def home(self, name: str) -> Path:
        return self._root / name

    def run(self, block: str, host: str = "bookie-1") -> str:
        """What a block prints. Raises AssertionError when a command in it fails."""
        home = self.home(host)
        environment = {**os.environ, **self._variables, "HOST_HOME": str(home), "PYTHONPATH": str(ROOT)}
        environment["PATH"] = f"{self._root / 'bin'}:{os.environ['PATH']}"
        result = subprocess.run(
            ["bash", "-euc", self._here(self._prelude + block, home)],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            # An auditor may take a minute to notice what it is to do.
            timeout=180,
            check=False,
        )
        assert result.returncode == 0, f"on {host}:\n{block}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def stop(self) -> None:
        for name in self.addresses:
            pid_file = self.home(name) / "pid"
            if pid_file.exists():
                os.kill(int(pid_file.read_text()), signal.SIGKILL)

    def _here(self, text: str, home: Path) -> str:
        for path in ("/etc/bookgate", "/etc/bookkeeper", "/var/lib/bookgate"):
            text = text.replace(path, f"{home}{path}")
        text = re.sub(r"(?<![\w/.])/backup\b", str(self._root / "backup"), text)
        # A name before a port, or as the address that is advertised.
        names = "|".join(sorted(map(re.escape, self.addresses), key=len, reverse=True))
        text = re.sub(rf"\b({names})(?=:\d)", lambda found: self.addresses[found[1]], text)
        return re.sub(
            rf'(advertised_address = ")({names})"', lambda found: f'{found[1]}{self.addresses[found[2]]}"', text
        )

    def _make(self, name: str, address: str, metadata_uri: str) -> None:
        home = self.home(name)
        for folder in ("etc/bookgate", "etc/bookkeeper", "var/lib/bookgate"):
            (home / folder).mkdir(parents=True)
        (home / "etc/bookgate/http-token").write_text(TOKEN)
        (home / "etc/bookgate/bookie.toml").write_text(
            f'bookie_id = "{name}"\nadvertised_address = "{address}"\nhost = "{address}"\n'
            f'metadata_uri = "{metadata_uri}"\nauto_recovery = true\n'
            f'journal_directory = "{home}/var/lib/bookgate/journal"\n'
            f'ledger_directories = ["{home}/var/lib/bookgate/ledgers"]\n'
            f'http_token_file = "{home}/etc/bookgate/http-token"\nwrite_cache_mb = 16\njournal_pre_alloc_size_mb = 1\n'
        )

    def _tool(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)
