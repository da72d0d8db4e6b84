"""Every alert fires on the series it is for, after its time, and not on healthy ones: by promtool's own unit tests.

Series are in promtool's notation: `a+bxn` is a, then n steps of b; a step is a minute.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.prometheus_server import tool
from tests.deploy.test_monitoring import RULES, alerts

Series = dict[str, str]

_BOOKIE = 'job="bookie", instance="b:1"'
_OTHER_BOOKIE = 'job="bookie", instance="b:2"'
_GATEWAY = 'job="gateway", instance="g:1"'

# What a healthy cluster shows.
HEALTHY: Series = {
    f"up{{{_BOOKIE}}}": "1x1500",
    f"up{{{_GATEWAY}}}": "1x1500",
    **{f'bookie_SERVER_STATUS{{job="bookie", instance="b:{number}"}}': "1x1500" for number in (1, 2, 3)},
    f"bookie_SERVER_SANITY{{{_BOOKIE}}}": "1x1500",
    f"bookie_ledger_dir__data_usage{{{_BOOKIE}}}": "50x1500",
    f"bookie_ledger_writable_dirs{{{_BOOKIE}}}": "2x1500",
    f"bookie_ledger_num_dirs{{{_BOOKIE}}}": "2x1500",
    f'bookie_journal_JOURNAL_MEMORY_USED{{{_BOOKIE}, journalIndex="0"}}': "100x1500",
    f'bookie_journal_JOURNAL_MEMORY_MAX{{{_BOOKIE}, journalIndex="0"}}': "1000x1500",
    f'bookie_journal_JOURNAL_SYNC{{{_BOOKIE}, journalIndex="0", success="true", quantile="0.99"}}': "4x1500",
    f"bookie_SKIP_LIST_THROTTLING{{{_BOOKIE}}}": "7x1500",
    f'bookie_gc_THREAD_RUNTIME_count{{{_BOOKIE}, success="true"}}': "0+1x1500",
    f"bookie_gc_FAILED_LISTINGS{{{_BOOKIE}}}": "3x1500",
    f"bookie_gc_HELD_BACK_LEDGERS{{{_BOOKIE}}}": "0x1500",
    f"bookie_gc_RECLAIM_FAILED_TO_DELETE{{{_BOOKIE}}}": "1x1500",
    f"auditor_IS_AUDITOR{{{_BOOKIE}}}": "1x1500",
    f"auditor_IS_AUDITOR{{{_OTHER_BOOKIE}}}": "0x1500",
    f"auditor_ENABLED{{{_BOOKIE}}}": "1x1500",
    f"auditor_AUDIT_HELD_BACK{{{_BOOKIE}}}": "0x1500",
    f"auditor_UNRECOVERABLE_LEDGERS{{{_BOOKIE}}}": "0x1500",
    f"auditor_CORRUPT_LEDGERS{{{_BOOKIE}}}": "0x1500",
    f"auditor_SCRUB_CORRUPT_COPIES{{{_BOOKIE}}}": "3x1500",
    f"auditor_SCRUB_SECONDS_SINCE{{{_BOOKIE}}}": "0+60x1500",
    f"auditor_REPLICA_CHECK_SECONDS_SINCE{{{_BOOKIE}}}": "0+60x1500",
    f"auditor_REPLICA_CHECK_INCOMPLETE{{{_BOOKIE}}}": "1x1500",
    # A ledger is marked now and then, and repaired within ten minutes.
    f"auditor_OLDEST_MARK_SECONDS{{{_BOOKIE}}}": " ".join(["0+60x10"] * 137),
    f"replication_worker_PLACEMENT_COMPROMISES{{{_BOOKIE}}}": "2x1500",
    f"replication_worker_NUM_ENTRIES_WRITTEN{{{_BOOKIE}}}": "5x1500",
    f"replication_worker_NUM_ENTRIES_WRITTEN{{{_OTHER_BOOKIE}}}": "5x1500",
    f"replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED{{{_BOOKIE}}}": "5x1500",
    f"replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED{{{_OTHER_BOOKIE}}}": "5x1500",
    f"process_start_time_seconds{{{_BOOKIE}}}": "0x1500",
    f"process_open_fds{{{_BOOKIE}}}": "100x1500",
    f"process_max_fds{{{_BOOKIE}}}": "1000x1500",
    f"bookgate_gateway_store_sessions{{{_GATEWAY}}}": "1x1500",
    f"bookgate_gateway_process_up{{{_BOOKIE}}}": "1x1500",
    f"bookgate_gateway_process_restarts_total{{{_BOOKIE}}}": "2x1500",
    f"bookgate_gateway_process_open_fds{{{_BOOKIE}}}": "100x1500",
    f"bookgate_gateway_process_max_fds{{{_BOOKIE}}}": "1000x1500",
    f"bookgate_gateway_store_losses_total{{{_GATEWAY}}}": "2x1500",
    f'bookgate_gateway_store_seconds_bucket{{{_GATEWAY}, operation="read", le="0.001"}}': "0+60x1500",
    f'bookgate_gateway_store_seconds_bucket{{{_GATEWAY}, operation="read", le="2.0"}}': "0+60x1500",
    f'bookgate_gateway_store_seconds_bucket{{{_GATEWAY}, operation="read", le="+Inf"}}': "0+60x1500",
    f"bookgate_gateway_watch_lag_seconds{{{_GATEWAY}}}": "0.1x1500",
    f'bookgate_gateway_requests_total{{{_GATEWAY}, method="Iterate", code="SUCCESS"}}': "0+600x1500",
    f'bookgate_gateway_requests_total{{{_GATEWAY}, method="Iterate", code="CANCELLED"}}': "0+60x1500",
    f'bookgate_gateway_requests_total{{{_GATEWAY}, method="Read", code="LEDGER_NOT_FOUND"}}': "0+600x1500",
    'bookkeeper_client_READ_ENTRY_DM{job="client", instance="c:1"}': "0x1500",
    'bookkeeper_client_ADD_ENTRY_count{job="client", instance="c:1", success="false"}': "2x1500",
    'bookkeeper_client_ADD_ENTRY_count{job="client", instance="c:1", success="true"}': "0+600x1500",
    'bookkeeper_client_NUM_ENSEMBLE_CHANGE{job="client", instance="c:1"}': "1x1500",
    'bookgate_spark_tasks_total{instance="e:1", table="entries", outcome="failed", worker="9"}': "0x1500",
    'bookgate_spark_tasks_total{instance="e:1", table="entries", outcome="ok", worker="9"}': "0+6x1500",
}


def _slow_store() -> Series:
    name = f'bookgate_gateway_store_seconds_bucket{{{_GATEWAY}, operation="read", le='
    return {f'{name}"0.001"}}': "0x1500", f'{name}"2.0"}}': "0+60x1500", f'{name}"+Inf"}}': "0+60x1500"}


def _counted(code: str) -> Series:
    return {f'bookgate_gateway_requests_total{{{_GATEWAY}, method="Iterate", code="{code}"}}': "0+60x1500"}


_MARK_STAYS: Series = {f"auditor_OLDEST_MARK_SECONDS{{{_BOOKIE}}}": "0+60x1500"}

# What each alert is for, on top of the healthy series, and the time by which it fires.
ILL: dict[str, tuple[Series, str]] = {
    "BookieDown": ({f"up{{{_BOOKIE}}}": "0x1500"}, "2m"),
    "BookieNotRegistered": ({f"bookie_SERVER_STATUS{{{_BOOKIE}}}": "-1x1500"}, "3m"),
    "BookieReadOnly": ({f"bookie_SERVER_STATUS{{{_BOOKIE}}}": "0x1500"}, "6m"),
    "BookieNotSane": ({f"bookie_SERVER_SANITY{{{_BOOKIE}}}": "0x1500"}, "1m"),
    "BookieDiskNearlyFull": ({f"bookie_ledger_dir__data_usage{{{_BOOKIE}}}": "92x1500"}, "12m"),
    "BookieLedgerDirectoryFull": ({f"bookie_ledger_writable_dirs{{{_BOOKIE}}}": "1x1500"}, "2m"),
    "BookieJournalQueueSaturated": (
        {f'bookie_journal_JOURNAL_MEMORY_USED{{{_BOOKIE}, journalIndex="1"}}': "900x1500"}
        | {f'bookie_journal_JOURNAL_MEMORY_MAX{{{_BOOKIE}, journalIndex="1"}}': "1000x1500"},
        "7m",
    ),
    "BookieJournalSyncSlow": (
        {f'bookie_journal_JOURNAL_SYNC{{{_BOOKIE}, journalIndex="0", success="true", quantile="0.99"}}': "250x1500"},
        "11m",
    ),
    "BookieThrottlesClients": ({f"bookie_SKIP_LIST_THROTTLING{{{_BOOKIE}}}": "0+5x1500"}, "20m"),
    "BookieGarbageCollectionStalled": (
        {f'bookie_gc_THREAD_RUNTIME_count{{{_BOOKIE}, success="true"}}': "5x1500"},
        "110m",
    ),
    "BookieGarbageCollectionBlind": ({f"bookie_gc_FAILED_LISTINGS{{{_BOOKIE}}}": "0+0.1x1500"}, "60m"),
    "BookieGarbageCollectionHeldBack": ({f"bookie_gc_HELD_BACK_LEDGERS{{{_BOOKIE}}}": "0x10 12x1500"}, "20m"),
    "BookieEntryLogNotRemovable": ({f"bookie_gc_RECLAIM_FAILED_TO_DELETE{{{_BOOKIE}}}": "0x10 1x1500"}, "30m"),
    "FileDescriptorsNearlyUsedUp": ({f"process_open_fds{{{_BOOKIE}}}": "900x1500"}, "6m"),
    "ClusterUnderWritable": ({f"bookie_SERVER_STATUS{{{_BOOKIE}}}": "0x1500"}, "3m"),
    "AuditorMissing": ({f"auditor_IS_AUDITOR{{{_BOOKIE}}}": "0x1500"}, "4m"),
    "LedgersUnderReplicated": (_MARK_STAYS, "67m"),
    "LedgersUnrecoverable": ({f"auditor_UNRECOVERABLE_LEDGERS{{{_BOOKIE}}}": "0x5 2x1500"}, "7m"),
    "RepairStalled": (_MARK_STAYS, "37m"),
    "ReplicaCheckOverdue": ({f"auditor_REPLICA_CHECK_SECONDS_SINCE{{{_BOOKIE}}}": "1209000+60x1500"}, "25m"),
    "CorruptCopiesFound": ({f"auditor_SCRUB_CORRUPT_COPIES{{{_BOOKIE}}}": "3x10 4x1500"}, "15m"),
    "ScrubOverdue": ({f"auditor_SCRUB_SECONDS_SINCE{{{_BOOKIE}}}": "5183000+60x1500"}, "35m"),
    "CopiesMisplaced": ({f"replication_worker_PLACEMENT_COMPROMISES{{{_BOOKIE}}}": "2x10 3x1500"}, "15m"),
    "AuditHeldBack": ({f"auditor_AUDIT_HELD_BACK{{{_BOOKIE}}}": "1x1500"}, "2m"),
    "GatewayDown": ({f"up{{{_GATEWAY}}}": "0x1500"}, "2m"),
    "GatewayProcessDown": ({f"bookgate_gateway_process_up{{{_BOOKIE}}}": "0x1500"}, "2m"),
    "GatewayProcessUnstable": ({f"bookgate_gateway_process_restarts_total{{{_BOOKIE}}}": "0+1x1500"}, "15m"),
    "GatewayStoreSessionLost": ({f"bookgate_gateway_store_sessions{{{_GATEWAY}}}": "0x1500"}, "2m"),
    "GatewayStoreUnstable": ({f"bookgate_gateway_store_losses_total{{{_GATEWAY}}}": "0+1x1500"}, "15m"),
    "GatewayStoreSlow": (_slow_store(), "20m"),
    "GatewayWatchLag": ({f"bookgate_gateway_watch_lag_seconds{{{_GATEWAY}}}": "0+60x1500"}, "5m"),
    "GatewayIterateErrors": (_counted("LEDGER_METADATA_ERROR"), "12m"),
    "GatewayErrors": (_counted("UNAVAILABLE"), "12m"),
    "GatewayOverLimits": (_counted("RESOURCE_EXHAUSTED"), "12m"),
    "ClientDigestMismatch": ({'bookkeeper_client_READ_ENTRY_DM{job="client", instance="c:1"}': "0x5 1x1500"}, "10m"),
    "ClientAppendsFail": (
        {'bookkeeper_client_ADD_ENTRY_count{job="client", instance="c:1", success="false"}': "0+1x1500"},
        "6m",
    ),
    "StreamCursorBehind": (
        {'bookkeeper_client_STREAM_CURSOR_LAG_SECONDS{job="client", instance="c:1"}': "3500+60x1500"},
        "25m",
    ),
    "ClientReplacesBookies": (
        {'bookkeeper_client_NUM_ENSEMBLE_CHANGE{job="client", instance="c:1"}': "0+2x1500"},
        "15m",
    ),
    "SparkTasksFail": (
        {'bookgate_spark_tasks_total{instance="e:1", table="entries", outcome="failed", worker="9"}': "0x5 2x1500"},
        "10m",
    ),
    "AuthenticationFailures": (
        {f'bookie_ACCESS{{{_BOOKIE}, door="http", principal="-", outcome="unauthenticated"}}': "0+10x1500"},
        "10m",
    ),
    "Denied": (
        {f'bookgate_gateway_access_total{{{_GATEWAY}, door="gateway", principal="b", outcome="denied"}}': "0+5x1500"},
        "20m",
    ),
    "AccessFileRefused": ({f'bookie_ACCESS_FILE_REFUSED{{{_BOOKIE}, file="policy"}}': "0x5 1x1500"}, "9m"),
    "QuotaReached": (
        {f'bookgate_gateway_access_total{{{_GATEWAY}, door="gateway", principal="b", outcome="quota"}}': "0x5 1x1500"},
        "10m",
    ),
}


def case(name: str, series: Series, at: str, *, fires: bool) -> dict[str, Any]:
    """One of promtool's tests. `name` is a regular expression of alerts."""
    return {
        "name": f"{name} at {at}",
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname=~"{name}", alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def run(cases: list[dict[str, Any]], directory: Path) -> subprocess.CompletedProcess[str]:
    file = directory / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rule) for rule in RULES], "tests": cases}))
    command = [tool("promtool"), "test", "rules", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_alert_has_a_case() -> None:
    assert set(ILL) == {rule["alert"] for rule in alerts()}


def test_every_alert_fires_when_it_should(tmp_path: Path) -> None:
    result = run([case(name, HEALTHY | more, at, fires=True) for name, (more, at) in ILL.items()], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_none_fires_on_a_healthy_cluster(tmp_path: Path) -> None:
    result = run([case(".+", HEALTHY, at, fires=False) for at in ("10m", "3h")], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "early"),
    [
        ("BookieReadOnly", "3m"),
        ("BookieGarbageCollectionStalled", "3m"),
        ("GatewayStoreSlow", "3m"),
        ("AuditorMissing", "2m"),
        ("LedgersUnderReplicated", "60m"),
        ("RepairStalled", "30m"),
    ],
)
def test_an_alert_waits_for_its_time(tmp_path: Path, name: str, early: str) -> None:
    result = run([case(name, HEALTHY | ILL[name][0], early, fires=False)], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "more",
    [
        {f"replication_worker_NUM_ENTRIES_WRITTEN{{{_OTHER_BOOKIE}}}": "0+1x1500"},
        {f"replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED{{{_OTHER_BOOKIE}}}": "0+1x1500"},
        {f"auditor_ENABLED{{{_BOOKIE}}}": "0x1500"},
    ],
    ids=["copies are made", "ledgers are found whole", "disabled"],
)
def test_repairs_have_not_stalled(tmp_path: Path, more: Series) -> None:
    """Wherever they are made; while auto-recovery is disabled none is to be. The mark is as old all the same."""
    cases = [
        case("RepairStalled", HEALTHY | _MARK_STAYS | more, "80m", fires=False),
        case("LedgersUnderReplicated", HEALTHY | _MARK_STAYS | more, "80m", fires=True),
    ]
    result = run(cases, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_auditor_may_change(tmp_path: Path) -> None:
    """What only the former one showed is gone with it; what it did not count its successor has."""
    changed = {
        f"auditor_IS_AUDITOR{{{_BOOKIE}}}": "1x10 0x1500",
        f"auditor_IS_AUDITOR{{{_OTHER_BOOKIE}}}": "0x10 1x1500",
        f"auditor_OLDEST_MARK_SECONDS{{{_BOOKIE}}}": "0+60x10 stale",
        f"auditor_OLDEST_MARK_SECONDS{{{_OTHER_BOOKIE}}}": "_x10 660+60x1500",
    }
    cases = [
        case("AuditorMissing", HEALTHY | changed, "15m", fires=False),
        case("LedgersUnderReplicated", HEALTHY | changed, "67m", fires=True),
    ]
    result = run(cases, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_cluster_whose_bookies_are_not_scraped_is_not_judged(tmp_path: Path) -> None:
    """Gateways beside Java bookies are scraped alone; with a job of bookies none of which answers it is an outage."""
    gateways = {series: values for series, values in HEALTHY.items() if _GATEWAY in series}
    silent = {f"up{{{_BOOKIE}}}": "0x1500", f"up{{{_OTHER_BOOKIE}}}": "0x1500"}
    cases = [
        case(".+", gateways, "3h", fires=False),
        case("ClusterUnderWritable", gateways | silent, "3m", fires=True),
    ]
    result = run(cases, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_giving_way_to_an_auditor_of_bookkeeper_is_no_missing_auditor(tmp_path: Path) -> None:
    nobody = {f"auditor_IS_AUDITOR{{{_BOOKIE}}}": "0x1500"}
    gives_way = {f"auditor_GIVES_WAY{{{each}}}": "1x30 0x1500" for each in (_BOOKIE, _OTHER_BOOKIE)}
    cases = [
        case("AuditorMissing", HEALTHY | nobody | gives_way, "30m", fires=False),
        case("AuditorMissing", HEALTHY | nobody | gives_way, "36m", fires=True),
    ]
    result = run(cases, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("SparkTasksFail", 'bookgate_spark_tasks_total{instance="e:1", table="entries", outcome="failed", worker="8"}'),
        ("ClientDigestMismatch", 'bookkeeper_client_READ_ENTRY_DM{instance="e:1", worker="8", client="1"}'),
    ],
)
def test_what_a_new_worker_of_spark_counted_before_its_first_scrape_is_noticed(
    tmp_path: Path, name: str, series: str
) -> None:
    """Its series begins with the event, and ends with the worker: a task that fails ends it."""
    cases = [
        case(name, HEALTHY | {series: "_x20 1x1 stale"}, "22m", fires=True),
        case(name, HEALTHY | {series: "_x20 1x1 stale"}, "60m", fires=False),
        case(name, HEALTHY | {series: "_x20 1x1500"}, "60m", fires=False),
        case(name, HEALTHY | {series: "_x20 0x1500"}, "22m", fires=False),
    ]
    result = run(cases, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
