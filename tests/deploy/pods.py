"""A pod of a rendered manifest as a process on this machine: the container's own command, environment and files.

The image's entry point and the container's arguments run as they are written. What is mounted lies below a directory
of the pod, so the paths of mounts in arguments, environment and settings become paths there; a pod has all ports of its
address to itself, so it gets a loopback address of its own (127.a.b.n) to listen on. Nothing else is changed.

Not its job: rendering (`test_kubernetes`, `test_helm`); users and groups, which are those of the tests.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.deploy.prometheus_server import DEPLOY, ROOT

Manifest = dict[str, Any]

_IMAGE = (DEPLOY / "container" / "Containerfile").read_text()
_HOME = "/var/lib/bookgate"
"""The image's working directory, where it keeps data unless settings say otherwise."""
_WITHOUT_CHECK = ssl._create_unverified_context()
"""As a kubelet's probes: they take any certificate."""


def loopback_address() -> str:
    """One that nobody else is likely to listen on."""
    chance = random.SystemRandom()
    return f"127.{chance.randint(64, 250)}.{chance.randint(1, 250)}.{chance.randint(2, 250)}"


class Pod:
    """One container of the first pod of a StatefulSet, or of a Job."""

    def __init__(
        self, root: Path, manifests: Sequence[Manifest], workload: Manifest, container: str, namespace: str
    ) -> None:
        """`manifests` have the ConfigMaps that the workload mounts."""
        self._root = root
        self._workload = workload
        self._spec: Manifest = workload["spec"]["template"]["spec"]
        [self.container] = [each for each in self._spec["containers"] if each["name"] == container]
        self._configs = {each["metadata"]["name"]: each["data"] for each in manifests if each["kind"] == "ConfigMap"}
        self.name = f"{workload['metadata']['name']}-0"
        self._namespace = namespace
        self.address = loopback_address()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def mounts(self) -> list[Path]:
        """The directories that are mounted."""
        return [self._below(each["mountPath"]) for each in self.container.get("volumeMounts", ())]

    @property
    def log(self) -> str:
        return (self._root / "log").read_text(errors="replace")

    def port(self, name: str) -> int:
        [found] = [each["containerPort"] for each in self.container["ports"] if each["name"] == name]
        return int(found)

    def start(self, secrets: Mapping[str, Path], listen_on: str, stores: Mapping[str, str]) -> None:
        """Starts the container.

        Args:
            secrets: The files of each Secret, by its name.
            listen_on: The variable that says on which address this process listens.
            stores: URIs of metadata stores as they are written in the manifests, and those that are here.
        """
        for volume in self.container.get("volumeMounts", ()):
            self._mount(volume, secrets, stores)
        home = self._below(_HOME)
        home.mkdir(parents=True, exist_ok=True)
        environment = self._environment(stores) | {listen_on: self.address}
        with (self._root / "log").open("ab") as output:
            self._process = subprocess.Popen(
                self._command(stores),
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Waits for a container that ends by itself; its exit code."""
        assert self._process is not None, "started"
        return self._process.wait(60)

    def end(self) -> int:
        """Ends the pod as a kubelet does, within the time that it gives; the exit code."""
        assert self._process is not None, "started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(float(self._spec.get("terminationGracePeriodSeconds", 30)))

    def probe(self, kind: str) -> int:
        """The status that a probe of the container gets now; 0 if it gets none."""
        wanted = self.container[kind]["httpGet"]
        url = f"{wanted['scheme'].lower()}://{self.address}:{self.port(wanted['port'])}{wanted['path']}"
        try:
            timeout = self.container[kind].get("timeoutSeconds", 1)
            with urllib.request.urlopen(url, timeout=timeout, context=_WITHOUT_CHECK) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait_until_ready(self, seconds: float = 90.0) -> None:
        """Returns once the startup probe and then the readiness probe have succeeded."""
        deadline = time.monotonic() + seconds
        for kind in ("startupProbe", "readinessProbe"):
            while not 200 <= self.probe(kind) < 400:
                assert self._process is not None, "started"
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the {kind} of {self.name} fails: {self.log[-3000:]}")
                time.sleep(0.1)

    def written_elsewhere(self) -> list[Path]:
        """Files beside what is mounted; the container's own file system is read-only."""
        return [
            file
            for file in self._root.rglob("*")
            if file.is_file() and file.name != "log" and not any(file.is_relative_to(each) for each in self.mounts)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # --- from the container's view to this machine's ---

    def _below(self, path: str) -> Path:
        return self._root / "files" / path.lstrip("/")

    def _mount(self, mount: Manifest, secrets: Mapping[str, Path], stores: Mapping[str, str]) -> None:
        here = self._below(mount["mountPath"])
        here.mkdir(parents=True, exist_ok=True)
        [volume] = [each for each in self._volumes() if each["name"] == mount["name"]]
        if "configMap" in volume:
            for name, text in self._configs[volume["configMap"]["name"]].items():
                (here / name).write_text(self._here(text, stores))
        elif "secret" in volume:
            for file in secrets[volume["secret"]["secretName"]].iterdir():
                shutil.copyfile(file, here / file.name)
                (here / file.name).chmod(volume["secret"]["defaultMode"])

    def _volumes(self) -> list[Manifest]:
        claims = self._workload["spec"].get("volumeClaimTemplates", ())
        return [*self._spec.get("volumes", ()), *({"name": each["metadata"]["name"]} for each in claims)]

    def _command(self, stores: Mapping[str, str]) -> list[str]:
        [entry_point] = re.findall(r"^ENTRYPOINT (.*)$", _IMAGE, re.MULTILINE)
        assert json.loads(entry_point) == ["bookgate"]
        assert "command" not in self.container, "the image's entry point runs"
        return [sys.executable, "-m", "bookgate", *(self._here(each, stores) for each in self.container["args"])]

    def _environment(self, stores: Mapping[str, str]) -> dict[str, str]:
        fields = {"metadata.name": self.name, "metadata.namespace": self._namespace}
        found = {
            "BOOKGATE_BOOKIE_DATA_DIR": self._here("/var/lib/bookgate", stores),
            "TMPDIR": self._here("/tmp", stores),
        }
        assert f"BOOKGATE_BOOKIE_DATA_DIR={_HOME}" in _IMAGE
        known: dict[str, str] = {}
        for each in self.container.get("env", ()):
            if "valueFrom" in each:
                value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                value = re.sub(r"\$\((\w+)\)", lambda name: known[name[1]], each["value"])
            known[each["name"]] = value
        return found | {name: self._here(value, stores) for name, value in known.items()}

    def _here(self, text: str, stores: Mapping[str, str]) -> str:
        for written, here in stores.items():
            text = text.replace(written, here)
        paths = {each["mountPath"] for each in self.container.get("volumeMounts", ())} | {_HOME}
        if text in paths:
            return str(self._below(text))
        found = "|".join(sorted(map(re.escape, paths), key=len, reverse=True))
        return re.sub(rf'(?<![\w./-])({found})(?=[/"\s])', lambda path: str(self._below(path[1])), text)
