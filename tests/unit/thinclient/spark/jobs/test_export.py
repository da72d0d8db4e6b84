"""What the export takes, and its check that the files of a ledger hold all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.thinclient.spark.commit_protocol import with_claim
from bookgate.thinclient.spark.jobs import export as exporting
from bookgate.thinclient.spark.jobs.export import ExportException, _check, _Ledger, _lost, _Written
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.worker_client import WorkerClients
from tests.unit.thinclient.spark.reading.test_entries import FakeClient, Lagging, as_client, sink_ledger

ORDINARY = _Ledger(0, 7, "CLOSED", 1, entries=10, bytes=100, created_ms=None, deleted_before=None)
UNBOUNDED = replace(ORDINARY, deleted_before=0)
TRIMMED = replace(ORDINARY, deleted_before=4)


def written(entries: int, size: int, last: int | None, before: int = 0) -> _Written:
    return _Written(entries, size, before, None if last is None else 0, last)


@pytest.mark.parametrize(
    ("ledger", "found"),
    [
        (ORDINARY, written(10, 100, 9)),
        (UNBOUNDED, written(10, 100, 9)),
        (UNBOUNDED, written(8, 100, 9)),
        (UNBOUNDED, written(9, 100, 8)),
        (replace(UNBOUNDED, entries=0, bytes=0), _Written()),
        (replace(UNBOUNDED, entries=1, bytes=0), _Written()),
        (TRIMMED, written(5, 60, 9, before=40)),
        (TRIMMED, written(4, 50, 9, before=50)),
        (replace(TRIMMED, deleted_before=10), _Written()),
    ],
)
def test_gaps_in_the_ids_of_an_unbounded_ledger_are_no_losses(ledger: _Ledger, found: _Written) -> None:
    _check(ledger, found)
    assert _lost(ledger, found) == 0


@pytest.mark.parametrize(
    ("ledger", "found", "lost"),
    [
        (ORDINARY, written(9, 90, 9), 1),
        (UNBOUNDED, written(8, 90, 9), 2),
        (UNBOUNDED, written(8, 90, 9, before=10), 2),
        (UNBOUNDED, _Written(), 10),
        (TRIMMED, written(5, 50, 8, before=40), 1),
        (TRIMMED, _Written(), 6),
    ],
)
def test_what_is_missing_is_told(ledger: _Ledger, found: _Written, lost: int) -> None:
    with pytest.raises(ExportException, match="ledger 7 of scope 0"):
        _check(ledger, found)
    assert _lost(ledger, found) == lost


def test_committed_ledgers_without_their_mark_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their driver may have died right after the commit point, and no later commit sets the marks."""
    unmarked = [replace(each, metadata=with_claim(each.metadata, 1)) for each in (sink_ledger(2), sink_ledger(3))]
    client = FakeClient(sink_ledger(1, mark=[1, 2]), *unmarked)

    monkeypatch.setattr(exporting, "clients", WorkerClients(lambda *_: as_client(client)))
    assert exporting._committed(Options(gateways="g"), [2, 3]) == {2}
    assert exporting._committed(Options(gateways="g"), []) == set()


def test_what_is_committed_is_exported_where_the_gateway_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = sink_ledger(1, mark=[1, 2]), sink_ledger(2, mark=[1])
    client = Lagging(*marked, older=[sink_ledger(1), sink_ledger(2)])
    monkeypatch.setattr(exporting, "clients", WorkerClients(lambda *_: as_client(client)))
    assert exporting._committed(Options(gateways="g"), [1, 2]) == {1, 2}
