"""The table `held-ledgers`, used by the job `orphans`: the ledgers of a scope that bookies say they hold, one task
per bookie.

A bookie that holds nothing has one row without a ledger; for one that can't be asked, `trouble` gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from bookgate.ledger.bookie_info import HTTP
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.worker_client import client_config, clients
from bookgate.thinclient.tools.admin_client import AdminHttp, AdminRefusedException, endpoint_url, read_token
from bookgate.thinclient.tools.held_ledgers import held_pages

if TYPE_CHECKING:
    from bookgate.thinclient.config import ClientConfig

HELD_SCHEMA = pa.schema(
    [
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64()),
        pa.field("trouble", pa.string()),
    ]
)


class BookiePartition(InputPartition):
    """One bookie, and the URL of its HTTP admin, or None."""

    def __init__(self, bookie_id: str, http: str | None) -> None:
        super().__init__(None)
        self.bookie_id = bookie_id
        self.http = http


class HeldLedgersReader(DataSourceReader):
    """Reads the table for one `BookiePartition`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        with clients.plan(self._options.gateways, self._options.client_settings) as client:
            found = client.bookies(BookieSet.ALL)
        endpoints = {bookie.bookie_id: bookie.info.endpoint(HTTP) for bookie in found}
        return [
            BookiePartition(bookie_id, None if endpoint is None else endpoint_url(endpoint))
            for bookie_id, endpoint in endpoints.items()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BookiePartition):
            return
        bookie_id = partition.bookie_id
        yield _held_batch(bookie_id, [None], None if partition.http else "it is not registered with an HTTP admin")
        if partition.http is None:
            return
        admin = admin_as(client_config(self._options.client_settings), partition.http)
        try:
            for page in held_pages(admin, self._options.scope_id):
                yield _held_batch(bookie_id, page, None)
        except AdminRefusedException as error:
            yield _held_batch(bookie_id, [None], f"it does not tell its ledgers: {error}")


def admin_as(config: ClientConfig, url: str) -> AdminHttp:
    """A bookie's HTTP admin, asked as whom the client's settings show to bookies.

    Raises IncorrectParameterException for a token that can't be read.
    """
    # HTTP shares the certificate of the entry port, so the client's authorities for that port apply. So do a bookie's
    # principals: who has a token for it has the same one here. A bookie without principals is not shown any.
    admin = AdminHttp(url, authorities=config.bookie_tls_ca or config.tls_ca)
    if config.auth_provider is None or not admin.may_carry_token:
        return admin
    file, token = config.token_for_bookies
    return replace(admin, token=read_token(token, file))


def _held_batch(bookie_id: str, ledgers: Sequence[int | None], trouble: str | None) -> pa.RecordBatch:
    count = len(ledgers)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([bookie_id] * count, pa.string()),
            pa.array(ledgers, pa.int64()),
            pa.array([trouble] * count, pa.string()),
        ],
        schema=HELD_SCHEMA,
    )
