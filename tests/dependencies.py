"""The client, the gateway and the formats with the lowest and with the newest dependencies: `make test-dependencies`.

Each environment is one of its own, made by pip: *lowest* has every direct dependency at its floor in `pyproject.toml`,
*newest* has what the registry offers, and *protobuf-6* the major between. Every Python from 3.11 to 3.14 that is on the
machine takes its turn with *newest*. `tests/integration/test_plain_install.py` has the quick form.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("bookie", "cli", "compression", "otel", "security", "spark", "zookeeper")
PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout")
TOOLS = ("detangle", "greenlet", "httpx", "hypothesis", "opentelemetry-sdk", *PYTEST, "pyyaml", "trustme")
TESTS = (
    "tests/conformance",
    "tests/unit/ledger",
    "tests/unit/runtime",
    "tests/unit/gateway",
    "tests/unit/thinclient",
    "tests/integration/gateway/test_contract_over_rpc.py",
    "tests/integration/test_end_to_end.py",
)
LEFT_OUT = ("--ignore=tests/unit/thinclient/spark", "-k", "not zookeeper and not facades")
"""Needs PySpark (its ZooKeeper too), or the generators."""

_FLOOR = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)")


def floors(extras: Sequence[str] = ()) -> list[str]:
    """The direct dependencies of the project and these extras, each pinned to the lowest version it takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for extra in extras for each in optional[extra])]
    return [f"{match[1]}=={match[2]}" for each in wanted if (match := _FLOOR.match(each))]


def interpreters() -> Iterator[tuple[str, str]]:
    """Versions of Python that are here, and what runs each: on the path, or where pyenv keeps them."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        kept = sorted(pyenv.glob(f"{version}.*/bin/python"))
        for candidate in (*map(str, kept), shutil.which(f"python{version}")):
            if candidate and subprocess.run([candidate, "-c", "import ssl, sqlite3"], check=False).returncode == 0:
                yield version, candidate
                break


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "dependencies", help="of the environments")
    parser.add_argument("--only", help="the environments whose names contain this")
    given = parser.parse_args()
    found = list(interpreters())
    if not found:
        sys.exit("error: no Python of these versions is here: " + ", ".join(PYTHONS))
    oldest = found[0]
    environments = [
        ("lowest", oldest, floors(EXTRAS)),
        ("protobuf-6", oldest, ["protobuf>=6,<7", "grpcio-health-checking<1.83", "grpcio-reflection<1.83"]),
        *((f"newest-{version}", (version, python), []) for version, python in found),
    ]
    failed = [
        name
        for name, (_, python), pins in environments
        if (given.only or "") in name and not _passes(given.directory / name, python, pins)
    ]
    print("failed: " + ", ".join(failed) if failed else "all passed", flush=True)
    return 1 if failed else 0


def _passes(directory: Path, python: str, pins: Sequence[str]) -> bool:
    print(f"== {directory.name}: {python} {' '.join(pins)}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", directory], check=True)
    own = str(directory / "bin" / "python")
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--editable", f"{ROOT}[{','.join(EXTRAS)}]", *pins, *TOOLS], check=True)
    tests = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *LEFT_OUT, *TESTS]
    # A gateway that is forked where an old grpcio has been imported lets calls wait for ever.
    started = {**os.environ, "BOOKGATE_TESTS_FORK": "0"}
    return subprocess.run(tests, cwd=ROOT, env=started, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
