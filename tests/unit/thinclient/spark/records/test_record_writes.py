"""The driver's side of writes to streams."""

from __future__ import annotations

import time

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from bookgate.ledger.errors import MetaStoreException
from bookgate.thinclient.spark.source import BookKeeperDataSource

_FRAME = StructType([StructField("payload", BinaryType())])


def test_a_query_waits_for_gateways_that_are_away_and_a_batch_write_does_not() -> None:
    """Spark asks a query's sink with each batch, in whichever worker process, which may have no client yet."""
    source = BookKeeperDataSource(
        {"gateways": "grpc://127.0.0.1:1", "stream": "orders", "client.metadata_timeout_seconds": "1"}
    )
    with pytest.raises(MetaStoreException, match="within 1 s"):
        source.streamWriter(_FRAME, False)
    began = time.monotonic()
    with pytest.raises(MetaStoreException, match="could describe the cluster"):
        source.writer(_FRAME, False)
    assert time.monotonic() - began < 1
