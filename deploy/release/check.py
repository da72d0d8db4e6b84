"""Whether what is about to be published works where nothing of this tree is: `make release-check`.

1. Builds the source distribution and, from that, the wheel; `twine check --strict` reads their metadata.
2. Looks into both: no tests, no caches; the console's files, stubs, `py.typed` and vendored licences are there.
3. Installs the wheel alone in an empty environment: the library imports, and the command says what it needs.
4. Installs it with the extras of a quick start, and runs README's commands and its ten lines from there, against a
   cluster that this environment starts.
5. Writes an SBOM (CycloneDX) of that environment beside the distributions.

What it makes stays in `build/release`. The changelog has an entry for the version, and the chart is of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "release"
EXTRAS = "bookie"
MUST_HAVE = (
    "bookgate/py.typed",
    "bookgate/gateway/console/static/index.html",
    "bookgate/gateway/console/static/uplot.js",
    "bookgate/gateway/console/static/uplot.LICENSE.txt",
    "bookgate/protos/bookkeeper/gateway/v1/ledger_metadata_service.proto",
    "bookgate/protos/bookkeeper/gateway/v1/ledger_metadata_service_pb2.pyi",
    "pyspark_bookkeeper/__init__.py",
)
MUST_NOT_HAVE = re.compile(r"(^|/)(tests|benchmarks|__pycache__|\.venv)/|\.pyc$|^bookgate/.*/test_")


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    _check_papers(version)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tools = _environment(OUT / "tools", [f"{ROOT}[release]", "--no-deps"], project["optional-dependencies"]["release"])
    step("builds")
    with tempfile.TemporaryDirectory() as clean:
        source = Path(clean) / "source"
        _export(source)
        run([tools, "-m", "build", "--outdir", OUT, source], stdout=subprocess.DEVNULL)
    [wheel], [sdist] = OUT.glob("*.whl"), OUT.glob("*.tar.gz")
    run([tools, "-m", "twine", "check", "--strict", wheel, sdist])
    step("looks into them")
    _check_files(wheel, sdist, version)
    step("installs the wheel alone")
    alone = _environment(OUT / "alone", [str(wheel)])
    run([alone, "-c", "import bookgate, bookgate.blocking; assert bookgate.__version__ == " + repr(version)])
    refused = subprocess.run([alone.with_name("bookgate"), "--help"], capture_output=True, text=True, check=False)
    if refused.returncode != 1 or "pip install 'bookgate[cli]'" not in refused.stderr:
        fail(f"without its extra the command should say what to install, not: {refused.stderr or refused.stdout}")
    step("runs the quick start from the wheel")
    quick = _environment(OUT / "quick-start", [f"{wheel}[{EXTRAS}]"])
    _quick_start(quick)
    step("writes the SBOM")
    sbom = OUT / f"bookgate-{version}.cdx.json"
    run([tools, "-m", "cyclonedx_py", "environment", quick, "--of", "JSON", "--output-file", sbom])
    components = {each["name"] for each in json.loads(sbom.read_text())["components"]}
    if not components >= {"bookgate", "grpcio", "protobuf", "starlette"}:
        fail(f"the SBOM lacks components: it has {sorted(components)}")
    print(f"{wheel.name}, {sdist.name} and {sbom.name} are in {OUT.relative_to(ROOT)}", flush=True)
    return 0


def step(what: str) -> None:
    print(f"== {what}", flush=True)


def fail(why: str) -> None:
    sys.exit(f"error: {why}")


def run(command: Sequence[str | Path], **more: object) -> None:
    done = subprocess.run(list(map(str, command)), cwd=OUT, env=_clean(), check=False, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}")


def _clean() -> dict[str, str]:
    """Nothing of this tree reaches what is installed."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BOOKGATE", "VIRTUAL"))}


def _environment(directory: Path, what: Sequence[str], more: Sequence[str] = ()) -> Path:
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *(more or what)])
    return python


def _export(target: Path) -> None:
    """What git knows of the tree, as it is here: no leftovers come along."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def _check_papers(version: str) -> None:
    if f"## {version} " not in (ROOT / "CHANGELOG.md").read_text():
        fail(f"CHANGELOG.md has no section {version}")
    chart = (ROOT / "deploy" / "helm" / "bookgate" / "Chart.yaml").read_text()
    if f"version: {version}\n" not in chart or f"appVersion: {version}\n" not in chart:
        fail(f"the Helm chart is not of version {version}")


def _check_files(wheel: Path, sdist: Path, version: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    missing = [each for each in MUST_HAVE if each not in names]
    foreign = [each for each in names if MUST_NOT_HAVE.search(each)]
    if missing or foreign:
        fail(f"the wheel lacks {missing} or has too much: {foreign[:10]}")
    tops = {name.partition("/")[0] for name in names}
    if tops != {"bookgate", "pyspark_bookkeeper", f"bookgate-{version}.dist-info"}:
        fail(f"the wheel has top-level names of its own: {sorted(tops)}")
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    if not {"pyproject.toml", "README.md", "LICENSE"} <= set(sources):
        fail("the source distribution lacks pyproject.toml, README.md or LICENSE")


def _quick_start(python: Path) -> None:
    """README's commands and its ten lines, in a directory of their own, against `bookgate standalone`."""
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    [ten_lines] = [code for language, code in blocks if language == "python" and code.startswith("import asyncio")]
    [commands] = [code for language, code in blocks if language == "sh" and "standalone --data-dir" in code]
    with tempfile.TemporaryDirectory() as scratch:
        ports = ["--bookie-port", "0", "--gateway-port", "0", "--http-port", "0"]
        cluster = subprocess.Popen(
            [python.with_name("bookgate"), "standalone", "--data-dir", f"{scratch}/cluster", *ports, "--json"],
            cwd=scratch,
            env=_clean(),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert cluster.stdout is not None
            line = cluster.stdout.readline()
            if not line:
                fail("bookgate standalone did not start")
            gateway = json.loads(line)["gateways"]
            uri = gateway if isinstance(gateway, str) else gateway[0]
            uri = uri if "://" in uri else f"grpc://{uri}"
            env = {**_clean(), "BOOKGATE_GATEWAYS": uri, "PATH": f"{python.parent}:{os.environ['PATH']}"}
            lines = [
                each for each in commands.splitlines() if "standalone" not in each and not each.startswith("export")
            ]
            shown = subprocess.run(
                ["sh", "-euc", "\n".join(lines)], cwd=scratch, env=env, capture_output=True, text=True, check=False
            )
            if shown.returncode != 0 or "one\ntwo\n" not in shown.stdout:
                fail(f"README's commands: {shown.stdout}{shown.stderr}")
            code = ten_lines.replace("grpc://127.0.0.1:4181", uri)
            told = subprocess.run(
                [python, "-c", code], cwd=scratch, env=env, capture_output=True, text=True, check=False
            )
            if told.stdout.splitlines() != ["0 entry 0", "1 entry 1", "2 entry 2"]:
                fail(f"README's ten lines: {told.stdout}{told.stderr}")
        finally:
            cluster.send_signal(signal.SIGTERM)
            cluster.wait(60)


if __name__ == "__main__":
    sys.exit(main())
