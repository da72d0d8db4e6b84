"""The bookie's metrics: numbers that follow from what was asked."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.statistics import SAMPLED
from bookgate.ledger.wire.messages import AddResponse, ReadLacRequest, Request, Status
from tests.integration.bookie.entry_client import EntryClient, add, fence, packet, read
from tests.integration.bookie.in_process import entry_address, running_bookie

LEDGER = 77_100_001


def samples(cluster: StandaloneCluster) -> dict[str, float]:
    return samples_at(cluster.http[0])


def samples_at(http: str | None) -> dict[str, float]:
    """Every sample by its name and its labels, the quantiles aside. The parser ends counters in `_total`."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        "".join([sample.name, *(f" {key}={value}" for key, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "quantile" not in sample.labels
    }


def test_every_sample_has_the_name_whose_type_is_told(standalone_cluster: StandaloneCluster) -> None:
    """Those of the hosted gateway end in `_total`, as ever."""
    with urllib.request.urlopen(f"http://{standalone_cluster.http[0]}/metrics", timeout=10) as response:
        text = response.read().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert kinds["bookgate_gateway_requests_total"] == kinds["bookie_WRITE_BYTES"] == "counter"
    shown = set(re.findall(r"^(\w+)[ {]", text, re.MULTILINE))
    endings = {"summary": ("", "_count", "_sum"), "histogram": ("_bucket", "_count", "_sum")}
    told = {name + ending for name, kind in kinds.items() for ending in endings.get(kind, ("",))}
    assert shown <= told


def test_counts_follow_from_what_was_asked(standalone_cluster: StandaloneCluster) -> None:
    before = samples(standalone_cluster)
    with EntryClient(standalone_cluster.bookies[0]) as client:
        client.send(*(add(LEDGER, entry_id) for entry_id in range(SAMPLED)))
        for _ in range(SAMPLED):
            answer = client.receive()
            assert isinstance(answer, AddResponse)
            assert answer.status == Status.EOK
        assert client.status(read(LEDGER, 0)) == Status.EOK
        assert client.status(fence(LEDGER, 0)) == Status.EOK
        assert client.status(add(LEDGER, SAMPLED)) == Status.EFENCED
    after = samples(standalone_cluster)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("bookkeeper_server_ADD_ENTRY_REQUEST_count success=true") == SAMPLED
    assert grown("bookkeeper_server_ADD_ENTRY_REQUEST_count success=false") == 1
    assert after["bookkeeper_server_ADD_ENTRY_REQUEST_sum success=true"] > 0
    assert grown("bookkeeper_server_READ_ENTRY_REQUEST_count success=true") == 2
    assert grown("bookkeeper_server_READ_ENTRY_FENCE_REQUEST_count success=true") == 1
    # The entries, the ledger's key and the fence.
    assert grown("bookie_journal_JOURNAL_ADD_ENTRY_count journalIndex=0 success=true") == SAMPLED + 2
    batches = grown("bookie_journal_JOURNAL_SYNC_count journalIndex=0 success=true")
    assert 2 <= batches <= SAMPLED + 2
    assert grown("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_count journalIndex=0 success=true") == batches
    assert grown("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_sum journalIndex=0 success=true") == SAMPLED + 2
    assert grown("bookie_journal_JOURNAL_WRITE_BYTES_total journalIndex=0") > grown("bookie_WRITE_BYTES_total") > 0
    assert after["bookie_journal_JOURNAL_QUEUE_SIZE journalIndex=0"] == 0
    assert after["bookie_ledger_num_dirs"] == after["bookie_ledger_writable_dirs"] == 1


@pytest.mark.asyncio
async def test_what_storage_counts(tmp_path: Path) -> None:
    """Write cache, flushes, entry logs, index pages and reading ahead; READ_LAC and long polls."""

    def ask(*asked: Request) -> list[int]:
        with EntryClient(entry_address(server)) as client:
            return [client.status(request) for request in asked]

    async with running_bookie(tmp_path, flush_interval_seconds=3600) as server:
        http = server.addresses["http"]
        payload = bytes(1000)
        await asyncio.to_thread(ask, *(add(5, entry_id, payload) for entry_id in range(40)), read(5, 3))
        poll = read(5, -1)._replace(previous_lac=0, timeout_ms=1000, piggyback=True)
        lacs: list[Request] = [ReadLacRequest(1, 5), ReadLacRequest(2, 6), poll]
        assert await asyncio.to_thread(ask, *lacs) == [Status.EOK, Status.ENOENTRY, Status.EOK]
        shown = await asyncio.to_thread(samples_at, http)
        assert shown["bookie_write_cache_count"] == 40
        assert shown["bookie_write_cache_hits_total"] == 1
        assert shown["bookie_flush_entrylog_count success=true"] == shown["bookie_ENTRYLOGS_CREATED_total"] == 0
        assert shown["bookkeeper_server_READ_LAC_count success=true"] == 1
        assert shown["bookkeeper_server_READ_LAC_count success=false"] == 1
        assert shown["bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST_count success=true"] == 1
        assert shown["bookie_SERVER_SANITY"] == 1

        await asyncio.to_thread(server.storage.checkpoint)
        await asyncio.to_thread(ask, *(read(5, entry_id) for entry_id in range(40)))
        shown = await asyncio.to_thread(samples_at, http)
        assert shown["bookie_write_cache_count"] == 0
        assert shown["bookie_write_cache_misses_total"] == 40
        for name in ("flush", "flush_entrylog", "flush_ledger_index", "flush_size", "CHECKPOINT"):
            assert shown[f"bookie_{name}_count success=true"] == 1, name
        assert shown["bookie_ENTRYLOGS_CREATED_total"] == 1
        assert shown["bookie_ENTRYLOGS_WRITE_BYTES_total"] == 40 * (4 + len(packet(5, 0, payload)))
        assert shown["bookie_NUM_INDEX_PAGES"] == 1
        assert shown["bookie_LEDGER_CACHE_MISS_total"] == 1
        assert shown["bookie_LEDGER_CACHE_HIT_total"] >= 39
        assert shown["bookie_LEDGER_CACHE_READ_PAGE_count success=true"] == 1
        ahead = shown["bookie_read_cache_hits_total"]
        assert ahead > 20
        assert shown["bookie_read_cache_misses_total"] + ahead == 40
        assert shown["bookie_readahead_batch_count_sum success=true"] == shown["bookie_read_cache_count"] == ahead
        assert shown["bookie_readahead_batch_size_sum success=true"] > shown["bookie_read_cache_count"] * 1000
        assert shown["bookie_SKIP_LIST_THROTTLING_total"] == 0
        assert shown["bookkeeper_server_CONNECTIONS_ACCEPTED_total"] == 3
