"""One cluster and one Spark session for all tests here: both take long to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.digest import ledger_master_key
from bookgate.thinclient.blocking.client import BookKeeper
from tests.spark.sessions import HERE, environment, start

PASSWORD = b"planted-secret"
KEY = ledger_master_key(PASSWORD)


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
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        settings = {
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            # Workers with another setting of this would be workers of their own, which take seconds to start.
            "spark.sql.pyspark.worker.logging.enabled": "true",
        }
        session = start(HERE, settings)
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
