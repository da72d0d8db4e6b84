"""One cluster and one Spark session for all tests here: both take long to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookie.standalone import StandaloneCluster
from tests.spark.jvm import SHORT_LIVED
from thinclient.blocking import BookKeeper
from thinclient.spark.session import require_spark

PASSWORD = b"secret"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: StandaloneCluster) -> Iterator[BookKeeper]:
    with BookKeeper.connect(cluster.gateway_uri) as connected:
        yield connected


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    require_spark()
    own = str(Path(__file__).parents[2])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        environment.setenv("PYTHONPATH", os.pathsep.join([own, os.environ.get("PYTHONPATH", "")]))
        builder = SparkSession.builder.master("local[2]").appName("tests")
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Python workers of a busy machine take their time to start.
            "spark.python.authenticate.socketTimeout": "120s",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        }
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


class Tables:
    """Reads tables of the source from the cluster under test."""

    def __init__(self, spark: SparkSession, gateways: str) -> None:
        self.spark = spark
        self.gateways = gateways

    def load(self, **options: object) -> DataFrame:
        """Options as given; the gateways and the password of these tests unless told otherwise."""
        merged = {"gateways": self.gateways, **options}
        if merged.get("table", "entries") == "entries":
            merged.setdefault("password", PASSWORD.decode())
        return self.spark.read.format("bookkeeper").options(**merged).load()  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def tables(spark: SparkSession, cluster: StandaloneCluster) -> Tables:
    return Tables(spark, cluster.gateway_uri)
