"""What the export takes, and its check that the files of a ledger hold all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.thinclient.spark.commit_protocol import with_claim
from bookgate.thinclient.spark.jobs import export as exporting
from bookgate.thinclient.spark.jobs.export import (
    MANIFEST_SCHEMA,
    ExportException,
    _check,
    _Ledger,
    _line,
    _lost,
    _Written,
)
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.worker_client import WorkerClients
from tests.unit.thinclient.spark.reading.test_entries import FakeClient, Lagging, as_client, sink_ledger

ORDINARY = _Ledger(0, 7, "CLOSED", 1, entries=10, bytes=100, created_ms=None, deleted_before=None)
UNBOUNDED = replace(ORDINARY, deleted_before=0)
TRIMMED = replace(ORDINARY, deleted_before=4)


def written(entries: int, size: int, last: int | None, before: int = 0, first: int = 0) -> _Written:
    return _Written(entries, size, before, None if last is None else first, last)


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
        (TRIMMED, _Written()),
    ],
)
def test_gaps_in_the_ids_of_an_unbounded_ledger_are_no_losses(ledger: _Ledger, found: _Written) -> None:
    _check(ledger, found)
    assert _lost(ledger, found, skips_losses=False) == 0


@pytest.mark.parametrize(
    ("ledger", "found", "lost"),
    [
        (ORDINARY, written(9, 90, 9), 1),
        (UNBOUNDED, written(8, 90, 9), 2),
        (UNBOUNDED, written(8, 90, 9, before=10), 2),
        (UNBOUNDED, _Written(), 10),
        (TRIMMED, written(5, 50, 8, before=40), 1),
        (replace(UNBOUNDED, entries=1), _Written(), 1),
    ],
)
def test_what_is_missing_is_told(ledger: _Ledger, found: _Written, lost: int) -> None:
    with pytest.raises(ExportException, match="ledger 7 of scope 0"):
        _check(ledger, found)
    assert _lost(ledger, found, skips_losses=False) == lost
    assert _lost(ledger, found, skips_losses=True) == lost


@pytest.mark.parametrize(
    ("ledger", "found", "lost"),
    [
        (TRIMMED, written(6, 60, 9, before=40, first=4), 0),
        (TRIMMED, written(5, 60, 9, before=40, first=4), 0),
        (TRIMMED, written(5, 50, 9, before=50, first=5), 1),
        (TRIMMED, _Written(), 6),
        (replace(TRIMMED, deleted_before=9), _Written(), 1),
        (replace(TRIMMED, deleted_before=10), _Written(), 0),
        (replace(UNBOUNDED, entries=0, bytes=0), _Written(), 0),
        (ORDINARY, written(9, 90, 9), 1),
    ],
)
def test_where_losses_are_skipped_the_head_of_a_trimmed_ledger_may_be_lost(
    ledger: _Ledger, found: _Written, lost: int
) -> None:
    """Its length tells nothing of what was before the first entry in the files."""
    complete, entries = MANIFEST_SCHEMA.names.index("complete"), MANIFEST_SCHEMA.names.index("lost_entries")
    line = _line(ledger, found, "instance", skips_losses=True)
    assert (line[complete], line[entries]) == (not lost, lost)


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
