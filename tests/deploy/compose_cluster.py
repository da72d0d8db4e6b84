"""The services of deploy/compose/compose.yaml as processes on this machine, with the same configuration.

Each service gets a loopback address of its own (127.a.b.n), so that all keep the ports they have in their containers;
the names of services in commands, environment and mounted files become those addresses, and Prometheus scrapes every
second. Volumes are directories. What an image's own entry point does with its environment is done here for ZooKeeper,
as its page documents it.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import yaml

from bookgate.bookie.standalone.local_zookeeper import _class_path, _find_java
from tests.deploy.prometheus_server import DEPLOY, ROOT, tool

FOLDER = DEPLOY / "compose"
SECURE = "/etc/bookgate/secure"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


class ComposeCluster:
    """All services but Grafana, which no package brings here."""

    def __init__(self, root: Path) -> None:
        self._root = root
        network = f"127.{random.SystemRandom().randint(64, 250)}.{random.SystemRandom().randint(1, 250)}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(SERVICES, 1)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def gateway_uri(self) -> str:
        """Of all bookies, at the port that the containers expose."""
        ports = {
            name: SERVICES[name]["environment"].get("BOOKGATE_BOOKIE_GATEWAY_PORT", "4181")
            for name in SERVICES
            if name.startswith("bookie")
        }
        return "grpcs://" + ",".join(f"{self.addresses[name]}:{port}" for name, port in ports.items())

    @property
    def secure(self) -> Path:
        """Certificates, tokens and policy."""
        return self._root / "volumes" / "secure"

    def names(self, kind: str) -> list[str]:
        return [name for name in SERVICES if name.startswith(kind)]

    def running(self) -> list[str]:
        return list(self._processes)

    def start(self, *names: str) -> None:
        for name in names:
            log = self._home(name) / "log"
            with log.open("ab") as output:
                self._processes[name] = subprocess.Popen(
                    self._command(name),
                    env={**os.environ, "PYTHONPATH": str(ROOT), **self._environment(name)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._home(name),
                    start_new_session=True,
                )

    def run(self, name: str) -> int:
        """Runs a service that ends by itself; its exit code."""
        self.start(name)
        return self._processes.pop(name).wait(60)

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends a service and waits for it; its exit code."""
        process = self._processes.pop(name)
        process.send_signal(how)
        return process.wait(float(SERVICES[name].get("stop_grace_period", "30s").removesuffix("s")))

    def log(self, name: str) -> str:
        return (self._home(name) / "log").read_text(errors="replace")

    def wait_until(self, name: str, condition: Any, seconds: float = 60.0) -> None:
        """Returns once the condition holds. Raises AssertionError with the service's last words."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            try:
                if condition():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{name} is not as it should be: {self.log(name)[-3000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for name in list(self._processes):
            process = self._processes.pop(name)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- from a container's view to this machine's ---

    def _home(self, name: str) -> Path:
        home = self._root / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _environment(self, name: str) -> dict[str, str]:
        given = {key: str(value) for key, value in SERVICES[name].get("environment", {}).items()}
        # A bookie's id is a name, wherever it runs.
        given = {key: value if key.endswith("_ID") else self._here(value) for key, value in given.items()}
        if name.startswith("bookie"):
            # A container has all its addresses to itself; the processes here share theirs.
            given["BOOKGATE_BOOKIE_HOST"] = self.addresses[name]
            given["BOOKGATE_BOOKIE_DATA_DIR"] = str(self._path(name, "/var/lib/bookgate"))
        return given

    def _command(self, name: str) -> list[str]:
        if name.startswith("zookeeper"):
            return self._zookeeper(name)
        arguments = [self._argument(name, argument) for argument in SERVICES[name]["command"]]
        if name == "security-init":
            # The containers are known by their names, the processes here by their addresses.
            arguments += [f"--host={address}" for address in self.addresses.values()]
        if name == "prometheus":
            return [tool("prometheus"), *arguments, f"--web.listen-address={self.addresses[name]}:9090"]
        return [sys.executable, "-m", "bookgate", *arguments]

    def _argument(self, name: str, argument: str) -> str:
        option, _, value = argument.rpartition("=")
        if option == "--bookie":
            # An id, as those of the environment.
            return argument
        if not value.startswith("/"):
            return self._here(argument)
        path = str(self._path(name, value))
        return f"{option}={path}" if option else path

    def _path(self, name: str, inside: str) -> Path:
        """Where a path of the container lies here: in a volume's directory, or in a copy of what is mounted."""
        for volume in SERVICES[name]["volumes"]:
            source, target = volume.split(":")[:2]
            if inside != target and not inside.startswith(target + "/"):
                continue
            here = self._volume(name, source)
            return here / inside[len(target) :].lstrip("/") if here.is_dir() else here
        raise AssertionError(f"{name} has nothing mounted at {inside}")

    def _volume(self, name: str, source: str) -> Path:
        if not source.startswith("."):
            assert source in COMPOSE["volumes"], f"{source} is no volume"
            directory = self._root / "volumes" / source
            directory.mkdir(parents=True, exist_ok=True)
            return directory
        original, copied = FOLDER / source, self._home(name) / Path(source).name
        for file in [original] if original.is_file() else original.rglob("*"):
            here = copied / file.relative_to(original) if original.is_dir() else copied
            if file.is_file():
                here.parent.mkdir(parents=True, exist_ok=True)
                here.write_text(self._here(file.read_text()).replace("_interval: 15s", "_interval: 1s"))
        return copied

    def _here(self, text: str) -> str:
        """Names of services as addresses, where they end or a port follows; what `security-init` made, where it is."""
        text = text.replace(SECURE, str(self.secure))
        names = "|".join(map(re.escape, self.addresses))
        return re.sub(rf"\b({names})(?=[:/;]|$)", lambda found: self.addresses[found[1]], text)

    def _zookeeper(self, name: str) -> list[str]:
        environment = self._environment(name)
        data, log = self._path(name, "/data"), self._path(name, "/datalog")
        (data / "myid").write_text(environment["ZOO_MY_ID"])
        config = self._home(name) / "zoo.cfg"
        lines = [
            f"dataDir={data}",
            f"dataLogDir={log}",
            f"tickTime={environment['ZOO_TICK_TIME']}",
            "initLimit=5",
            "syncLimit=2",
            "standaloneEnabled=true",
            f"admin.enableServer={environment['ZOO_ADMINSERVER_ENABLED']}",
            f"4lw.commands.whitelist={environment['ZOO_4LW_COMMANDS_WHITELIST']}",
            f"autopurge.purgeInterval={environment['ZOO_AUTOPURGE_PURGEINTERVAL']}",
        ]
        for server in environment["ZOO_SERVERS"].split():
            # `;2181` is every address of the container.
            host = server.partition("=")[2].partition(":")[0]
            lines.append(server.replace(";2181", f";{host}:2181"))
        config.write_text("\n".join(lines) + "\n")
        options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [
            _find_java(),
            *options,
            "-cp",
            _class_path(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]
