"""Table `ledgers`, over a client at its interface."""

from __future__ import annotations

import pytest

from bookgate.thinclient.spark.reading import batch
from bookgate.thinclient.spark.reading.batch import LedgersReader
from bookgate.thinclient.spark.worker_client import WorkerClients
from tests.unit.thinclient.spark.reading.test_entries import Lagging, as_client, ledger, options


@pytest.mark.parametrize("asked_for", [None, (1, 2)])
def test_all_ledgers_are_there_where_the_gateway_lags(
    asked_for: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Lagging(ledger(1), ledger(2), older=[ledger(1)])
    monkeypatch.setattr(batch, "clients", WorkerClients(lambda *_: as_client(client)))
    found = [number for rows in LedgersReader(options(ledger_ids=asked_for))._read() for number in rows["ledger_id"]]
    assert [number.as_py() for number in found] == [1, 2]
