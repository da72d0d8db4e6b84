"""`bookgate stream` and the blocking client of streams, against a live cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookgate.blocking import BookKeeper, Streams
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.streams import CursorMovedException, Start
from tests.integration.cluster import own_cluster, standalone_cluster
from tests.integration.test_commands import command

__all__ = ["own_cluster", "standalone_cluster"]

Run = Callable[..., Any]


@pytest.fixture
def run(standalone_cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("BOOKGATE_GATEWAYS", standalone_cluster.gateway_uri)
    return command


def test_a_stream_from_its_creation_to_its_end(run: Run, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"record {number}\n" for number in range(100)))
    made = run("stream", "create", "orders", "--max-bytes", 10_000)
    assert made["ledger_id"].startswith("6b664e3a2557d3b5")
    assert "already" in run("stream", "create", "orders", fails=1)["error"]
    appended = run("stream", "append", "orders", lines, "--producer", "lines")
    assert appended["records"] == 100
    # The same input again: nothing is appended twice.
    assert run("stream", "append", "orders", lines, "--producer", "lines")["records"] == 100
    printed = run("stream", "tail", "orders", "--no-follow", text=True).splitlines()
    assert printed == [f"record {number}" for number in range(100)]

    first = run("stream", "tail", "orders", "--cursor", "c", "--limit", 30)
    rest = run("stream", "tail", "orders", "--cursor", "c", "--no-follow")
    assert [each["payload"] for each in first + rest] == printed
    last = rest[-1]
    where = f"{last['entry_id']}:{last['record']}"
    assert run("stream", "tail", "orders", "--from", where, "--no-follow")["payload"] == "record 99"

    shown = run("stream", "show", "orders")
    assert (shown["retention"]["max_bytes"], shown["cursors"][0]["cursor"]) == (10_000, "c")
    assert run("stream", "retention", "orders", "--max-age", 60)["max_bytes"] is None
    assert run("stream", "take-over", "orders")["term"] == shown["term"] + 1
    assert run("stream", "cursor", "orders", "c", "--reset", "earliest")["entry_id"] == 0
    assert run("stream", "cursor", "orders", "c", "--delete", "--yes")["deleted"]
    assert run("stream", "trim", "orders", "--before", "latest", "--yes")["first_entry_id"] >= 0
    assert "orders" in run("stream", "list", text=True).split()
    assert run("stream", "delete", "orders", "--yes")["deleted"]
    assert "no stream 'orders'" in run("stream", "show", "orders", fails=1)["error"]


@pytest.mark.parametrize("begin", ["yesterday", "2026-01-31T12:00:00", "5:x"])
def test_a_place_that_is_none_is_told(run: Run, begin: str) -> None:
    assert "ENTRY:RECORD" in run("stream", "tail", "any", "--from", begin, fails=2)["error"]


def test_streams_without_asyncio(standalone_cluster: StandaloneCluster) -> None:
    with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client)
        stream = streams.open_or_create("blocking")
        with stream.writer(batch_bytes=100) as writer:
            assert writer.append(b"0", producer="p", sequence=0)
            assert writer.append(b"0", producer="p", sequence=0) is None
            position = writer.append_future(b"1").result()
            assert position is not None
            writer.append_all((b"%d" % number for number in range(2, 2500)), producer="p", first_sequence=2)
            assert writer.last_sequence("p") == 2499
        with stream.reader(cursor="c") as reader:
            # A page more is fetched ahead; it counts only when it is delivered.
            records = reader.records()
            assert [next(records).payload for _ in range(3)] == [b"0", b"1", b"2"]
            reader.commit()
            records.close()
            again = reader.records()
            assert next(again).payload == b"3"
            again.close()
        with stream.reader(cursor="c", follow=False) as reader:
            found = [record.payload for batch in reader.records_batches() for record in batch]
            assert found == [b"%d" % number for number in range(3, 2500)]
            (cursor,) = stream.cursors()
            cursor.commit(stream.position_of(Start.LATEST))
            with pytest.raises(CursorMovedException):
                reader.commit()
            assert reader.cursor is not None
            assert reader.cursor.refresh() == cursor.position
        assert [name for page in streams.names() for name in page].count("blocking") == 1
        assert stream.state().cursors[0].lag_entries == 0
        assert streams.delete("blocking")
