"""An application that has packages called as the project's folders are, with the project installed from a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from tests.spark.sessions import SETTINGS, environment

ROOT = Path(__file__).parents[2]
FOLDERS = ("protos", "ledger", "runtime", "thinclient", "gateway", "bookie")
SHIPPED = ("bookgate", *FOLDERS, "pyspark_bookkeeper", "pyproject.toml", "README.md", "LICENSE")

APPLICATION = """
import sys
import bookie, gateway, ledger, protos, runtime, thinclient
from pyspark.sql import SparkSession
import bookgate
from bookgate.blocking import BookKeeper

assert {each.OWNER for each in (bookie, gateway, ledger, protos, runtime, thinclient)} == {"application"}
with BookKeeper.connect(sys.argv[1]) as client, client.create_ledger() as written:
    written.append(b"by the application")
builder = SparkSession.builder.master("local[1]")
for setting in sys.argv[3:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
options = {"gateways": sys.argv[1], "ledgerIds": str(written.ledger_id)}
[row] = spark.read.format("bookkeeper").options(**options).load().collect()
assert bytes(row.payload) == b"by the application", row
spark.stop()
print(bookgate.__version__, bookgate.__file__.startswith(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the project lies after `pip install`, alone."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site-packages")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-compile",
    ]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=200)
    return target


def test_an_install_adds_one_package_and_the_one_that_spark_looks_for(site_packages: Path) -> None:
    installed = {path.name for path in site_packages.iterdir() if path.suffix != ".dist-info"}
    assert installed == {"bookgate", "pyspark_bookkeeper", "bin"}
    for folder in FOLDERS:
        own = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        assert {
            path.relative_to(site_packages / "bookgate") for path in (site_packages / "bookgate" / folder).rglob("*.py")
        } == own
    assert (site_packages / "bookgate" / "py.typed").is_file()


@pytest.mark.long
def test_an_application_may_have_packages_of_these_names(
    site_packages: Path, standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text('OWNER = "application"\n')
    (tmp_path / "application.py").write_text(APPLICATION)
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(site_packages)])}
    settings = [f"{key}={value}" for key, value in SETTINGS.items() if "PYTHONPATH" not in key]
    ended = subprocess.run(
        [sys.executable, "application.py", standalone_cluster.gateway_uri, str(site_packages), *settings],
        cwd=tmp_path,
        env={**os.environ, **environment(), **paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].endswith(" True")
