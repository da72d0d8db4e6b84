"""Writes deploy/grafana/dashboards/*.json from the description below: `make reference`.

`--check` writes nothing and fails when a file is not what would be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from panels import Dashboard, Panel, chart, histogram_p99, number, p99, rate, render, value

FOLDER = Path(__file__).parent / "dashboards"
EACH = "{{instance}}"
_GC_RUNS = 'changes(bookie_gc_THREAD_RUNTIME_count{instance=~"$instance"}[1h])'


def _access(metric: str, refused_files: str) -> tuple[str, tuple[Panel, ...]]:
    """The row of what principals asked for."""
    refused = rate(metric, "instance, door, outcome", ', outcome!="allowed"')
    return (
        "Access",
        (
            chart(
                "Refused",
                "ops",
                (refused, f"{EACH} {{{{door}}}} {{{{outcome}}}}"),
                text="Denied by the policy, not authenticated, over a rate or a quota. The audit trail says who.",
            ),
            chart(
                "By kind of principal",
                "ops",
                (rate(metric, "instance, door, principal"), f"{EACH} {{{{door}}}} {{{{principal}}}}"),
            ),
            chart(
                "Files that can't be used",
                "none",
                (value(refused_files, "instance, file", how="max"), f"{EACH} {{{{file}}}}"),
                text="1: a policy, token file or key set can't be used as it is now; what was read before is in force.",
            ),
        ),
    )


BOOKIE = Dashboard(
    "bookgate-bookie",
    "Bookgate: bookies",
    "bookie_SERVER_STATUS",
    (
        (
            "Cluster",
            (
                number(
                    "Bookies that take writes", "none", "count(bookie_SERVER_STATUS == 1) or vector(0)", red_below=3
                ),
                number("Read-only", "none", "count(bookie_SERVER_STATUS == 0) or vector(0)", red_above=1),
                number("Not registered", "none", "count(bookie_SERVER_STATUS == -1) or vector(0)", red_above=1),
                number("Fullest disk", "percent", 'max({__name__=~"bookie_ledger_dir_.+_usage"})', red_above=90),
            ),
        ),
        (
            "Requests",
            (
                chart("Adds", "ops", (rate("bookkeeper_server_ADD_ENTRY_COUNT"), EACH)),
                chart("Entries read", "ops", (rate("bookkeeper_server_READ_ENTRY_COUNT"), EACH)),
                chart(
                    "Refused",
                    "ops",
                    (rate("bookkeeper_server_ADD_ENTRY_REFUSED"), f"{EACH} adds"),
                    (rate("bookkeeper_server_READ_ENTRY_REFUSED"), f"{EACH} reads"),
                    text="A read that is answered with 'no such entry' is among them.",
                ),
                chart("Written", "Bps", (rate("bookie_WRITE_BYTES"), EACH)),
                chart("Read", "Bps", (rate("bookie_READ_BYTES"), EACH)),
                chart(
                    "Latency, 99 %",
                    "ms",
                    (p99("bookkeeper_server_ADD_ENTRY_REQUEST"), f"{EACH} adds"),
                    (p99("bookkeeper_server_READ_ENTRY_REQUEST"), f"{EACH} reads"),
                    text="Of the last one to two minutes.",
                ),
            ),
        ),
        (
            "Journal",
            (
                chart("Queue", "percentunit", ("instance:bookie_journal_queue_used:ratio", EACH), text="Full at 1."),
                chart(
                    "Sync",
                    "ms",
                    (p99("bookie_journal_JOURNAL_SYNC"), f"{EACH} 99 %"),
                    (p99("bookie_journal_JOURNAL_SYNC", quantile="0.5"), f"{EACH} 50 %"),
                ),
                chart(
                    "Records of a sync",
                    "none",
                    (
                        rate("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_sum")
                        + " / "
                        + rate("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_count"),
                        EACH,
                    ),
                    text="How many requests share one sync.",
                ),
            ),
        ),
        (
            "Storage",
            (
                chart(
                    "Disks used", "percent", ('{__name__=~"bookie_ledger_dir_.+_usage", instance=~"$instance"}', EACH)
                ),
                chart("Write cache", "bytes", (value("bookie_write_cache_size"), EACH)),
                chart(
                    "Flush and checkpoint, 99 %",
                    "ms",
                    (p99("bookie_flush"), f"{EACH} flush"),
                    (p99("bookie_CHECKPOINT"), f"{EACH} checkpoint"),
                ),
                chart("Clients made to wait", "ops", (rate("bookie_SKIP_LIST_THROTTLING"), EACH)),
                chart(
                    "Single reads found in memory",
                    "ops",
                    (rate("bookie_write_cache_hits"), f"{EACH} write cache"),
                    (rate("bookie_read_cache_hits"), f"{EACH} read ahead"),
                    (rate("bookie_read_cache_misses"), f"{EACH} read from the disk"),
                ),
                chart(
                    "Connections",
                    "none",
                    (value("bookkeeper_server_CONNECTIONS"), EACH),
                    (value("process_open_fds"), f"{EACH} file descriptors"),
                ),
            ),
        ),
        (
            "Garbage collection",
            (
                chart(
                    "Entry logs",
                    "bytes",
                    (value("bookie_gc_ENTRY_LOG_SPACE_BYTES"), f"{EACH} all"),
                    (value("bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES"), f"{EACH} of existing ledgers"),
                ),
                chart("Ledgers held", "none", (value("bookie_gc_ACTIVE_LEDGER_TOTAL"), EACH)),
                chart(
                    "Freed",
                    "Bps",
                    (rate("bookie_gc_RECLAIMED_DELETION_SPACE_BYTES"), f"{EACH} by removing logs"),
                    (rate("bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES"), f"{EACH} by compaction"),
                ),
                chart("Runs in an hour", "none", (_GC_RUNS, EACH)),
                chart("Time in compaction", "ms", (rate("bookie_gc_COMPACT_RUNTIME_sum"), EACH), text="A second."),
                chart(
                    "Trouble",
                    "none",
                    (value("bookie_gc_FAILED_LISTINGS"), f"{EACH} failed listings"),
                    (value("bookie_gc_HELD_BACK_LEDGERS"), f"{EACH} ledgers held back"),
                    (value("bookie_gc_RECLAIM_FAILED_TO_DELETE"), f"{EACH} logs not removable"),
                ),
            ),
        ),
        _access("bookie_ACCESS", "bookie_ACCESS_FILE_REFUSED"),
        (
            "Process",
            (
                chart("CPU", "percentunit", (rate("process_cpu_seconds_total"), EACH), width=12),
                chart("Memory", "bytes", (value("process_resident_memory_bytes"), EACH), width=12),
            ),
        ),
    ),
)

_HITS = rate("bookgate_gateway_cache_hits_total")

GATEWAY = Dashboard(
    "bookgate-gateway",
    "Bookgate: gateways",
    "bookgate_gateway_store_sessions",
    (
        (
            "At a glance",
            (
                number("Gateways with a store session", "none", "sum(bookgate_gateway_store_sessions)", red_below=1),
                number(
                    "Sessions lost, last hour",
                    "none",
                    "sum(increase(bookgate_gateway_store_losses_total[1h]))",
                    red_above=3,
                ),
                number("Slowest Watch stream", "s", "max(bookgate_gateway_watch_lag_seconds)", red_above=10),
                number("Calls", "reqps", "sum(rate(bookgate_gateway_requests_total[$__rate_interval]))"),
            ),
        ),
        (
            "Calls",
            (
                chart("By method", "reqps", (rate("bookgate_gateway_requests_total", "method"), "{{method}}")),
                chart(
                    "That did not succeed",
                    "reqps",
                    (
                        rate("bookgate_gateway_requests_total", "method, code", ', code!="SUCCESS"'),
                        "{{method}} {{code}}",
                    ),
                    text="Answers such as 'no such ledger' are among them.",
                ),
                chart(
                    "Latency, 99 %", "s", (histogram_p99("bookgate_gateway_request_seconds", "method"), "{{method}}")
                ),
                chart("Under way", "none", (value("bookgate_gateway_requests_in_flight", "method"), "{{method}}")),
                chart("Streams", "none", (value("bookgate_gateway_streams"), EACH)),
                chart("CPU", "percentunit", (rate("process_cpu_seconds_total"), EACH)),
            ),
        ),
        (
            "Metadata store",
            (
                chart("Calls", "reqps", (rate("bookgate_gateway_store_seconds_count", "operation"), "{{operation}}")),
                chart(
                    "Latency, 99 %",
                    "s",
                    (histogram_p99("bookgate_gateway_store_seconds", "operation"), "{{operation}}"),
                ),
                chart("Under way", "none", (value("bookgate_gateway_store_calls"), EACH)),
            ),
        ),
        (
            "Watches, leases and cache",
            (
                chart(
                    "Watches",
                    "none",
                    (value("bookgate_gateway_subscriptions"), f"{EACH} subscriptions"),
                    (value("bookgate_gateway_watched_ledgers"), f"{EACH} ledgers"),
                    (value("bookgate_gateway_watch_streams"), f"{EACH} streams"),
                ),
                chart("Lag of the slowest Watch stream", "s", (value("bookgate_gateway_watch_lag_seconds"), EACH)),
                chart(
                    "Bookies",
                    "none",
                    (value("bookgate_gateway_bookie_leases"), f"{EACH} leases"),
                    (value("bookgate_gateway_bookie_watch_streams"), f"{EACH} watched by"),
                ),
                chart(
                    "Reads answered from the cache",
                    "percentunit",
                    (
                        f"{_HITS} / ({_HITS} + {rate('bookgate_gateway_cache_misses_total')})",
                        EACH,
                    ),
                ),
                chart("Cache", "bytes", (value("bookgate_gateway_cache_bytes"), EACH)),
                chart("Dropped from the cache", "ops", (rate("bookgate_gateway_cache_evictions_total"), EACH)),
            ),
        ),
        _access("bookgate_gateway_access_total", "bookgate_gateway_access_file_refused"),
    ),
)

_CLIENT = "bookkeeper_client_"
_CHANNEL = _CLIENT + "per_channel_bookie_client_"

CLIENT = Dashboard(
    "bookgate-client",
    "Bookgate: clients",
    _CLIENT + "NUM_PENDING_ADD",
    (
        (
            "At a glance",
            (
                number("Appends under way", "none", f"sum({_CLIENT}NUM_PENDING_ADD)"),
                number(
                    "Failed appends, last hour",
                    "none",
                    f'sum(increase({_CLIENT}ADD_ENTRY_count{{success="false"}}[1h]))',
                    red_above=1,
                ),
                number(
                    "Digest mismatches, last hour", "none", f"sum(increase({_CLIENT}READ_ENTRY_DM[1h]))", red_above=1
                ),
                number("Ensemble changes, last hour", "none", f"sum(increase({_CLIENT}NUM_ENSEMBLE_CHANGE[1h]))"),
            ),
        ),
        (
            "Entries",
            (
                chart(
                    "Appends",
                    "ops",
                    (rate(_CLIENT + "ADD_ENTRY_count", "instance, success"), f"{EACH} {{{{success}}}}"),
                ),
                chart(
                    "Reads", "ops", (rate(_CLIENT + "READ_ENTRY_count", "instance, success"), f"{EACH} {{{{success}}}}")
                ),
                chart(
                    "Latency, 99 %",
                    "ms",
                    (p99(_CLIENT + "ADD_ENTRY"), f"{EACH} append"),
                    (p99(_CLIENT + "READ_ENTRY"), f"{EACH} read"),
                    text="Of single entries; reads in batches are not among them.",
                ),
                chart("Under way", "none", (value(_CLIENT + "NUM_PENDING_ADD"), EACH)),
                chart("Batches read", "ops", (rate(_CLIENT + "BATCH_READ"), EACH)),
                chart(
                    "Long polls of tailing readers",
                    "ops",
                    (rate(_CLIENT + "READ_LAST_CONFIRMED_AND_ENTRY_count"), EACH),
                ),
            ),
        ),
        (
            "Ledgers",
            (
                chart(
                    "Operations",
                    "ops",
                    *(
                        (rate(f"{_CLIENT}LEDGER_{name}_count"), f"{EACH} {name.lower()}")
                        for name in ("CREATE", "OPEN", "DELETE", "RECOVER")
                    ),
                ),
                chart(
                    "Latency, 99 %",
                    "ms",
                    *(
                        (p99(f"{_CLIENT}LEDGER_{name}"), f"{EACH} {name.lower()}")
                        for name in ("CREATE", "OPEN", "RECOVER")
                    ),
                ),
                chart(
                    "Ensembles",
                    "ops",
                    (rate(_CLIENT + "NUM_ENSEMBLE_CHANGE"), f"{EACH} changed"),
                    (rate(_CLIENT + "bookie_watcher_BOOKIE_QUARANTINE"), f"{EACH} bookies in quarantine"),
                    (
                        rate(_CLIENT + "bookie_watcher_ENSEMBLE_NOT_ADHERING_TO_PLACEMENT_POLICY_TOTAL"),
                        f"{EACH} on too few racks",
                    ),
                ),
            ),
        ),
        (
            "Bookies",
            (
                chart(
                    "Retries and trouble",
                    "ops",
                    (rate(_CLIENT + "ADD_ENTRY_UR"), f"{EACH} adds not stored"),
                    (rate(_CLIENT + "SPECULATIVE_READ_COUNT"), f"{EACH} speculative reads"),
                    (rate(_CLIENT + "READ_ENTRY_DM"), f"{EACH} digest mismatches"),
                ),
                chart(
                    "Connections",
                    "none",
                    (value(_CHANNEL + "ACTIVE_TLS_CHANNEL_COUNTER"), f"{EACH} TLS"),
                    (value(_CHANNEL + "ACTIVE_NON_TLS_CHANNEL_COUNTER"), f"{EACH} in clear"),
                ),
                chart(
                    "Failures",
                    "ops",
                    (rate(_CHANNEL + "TIMEOUT"), f"{EACH} timeouts"),
                    (rate(_CHANNEL + "FAILED_CONNECTION_COUNTER"), f"{EACH} connections"),
                ),
            ),
        ),
    ),
)

_SPARK = "bookgate_spark_"
_WORKERS = ', worker!=""'
_FAILED = f'{_SPARK}tasks_total{{instance=~"$instance", outcome="failed"}}'
_MOST_FAILED = f"max_over_time({_FAILED}[1h])"

SPARK = Dashboard(
    "bookgate-spark",
    "Bookgate: Spark jobs",
    _SPARK + "rows_total",
    (
        (
            "At a glance",
            (
                number(
                    "Workers",
                    "none",
                    f'count(count by (instance, worker) ({_SPARK}rows_total{{instance=~"$instance"}}))',
                ),
                number("Rows", "rowsps", f'sum(rate({_SPARK}rows_total{{instance=~"$instance"}}[$__rate_interval]))'),
                number("Bytes", "Bps", f'sum(rate({_SPARK}bytes_total{{instance=~"$instance"}}[$__rate_interval]))'),
                number(
                    "Failed tasks, last hour",
                    "none",
                    # Not an increase: a task that fails ends its worker, whose series may begin with it.
                    f"sum({_MOST_FAILED}) - (sum({_FAILED} offset 1h and {_MOST_FAILED}) or vector(0))",
                    red_above=1,
                ),
            ),
        ),
        (
            "Job",
            (
                chart("Rows", "rowsps", (rate(_SPARK + "rows_total", "instance, table"), f"{EACH} {{{{table}}}}")),
                chart("Arrow data", "Bps", (rate(_SPARK + "bytes_total", "instance, table"), f"{EACH} {{{{table}}}}")),
                chart(
                    "Rows of a batch",
                    "none",
                    (f"{rate(_SPARK + 'rows_total')} / {rate(_SPARK + 'batches_total')}", EACH),
                ),
                chart(
                    "Tasks ended", "ops", (rate(_SPARK + "tasks_total", "instance, outcome"), f"{EACH} {{{{outcome}}}}")
                ),
                chart(
                    "Time of a task",
                    "s",
                    (f"{rate(_SPARK + 'task_seconds_total')} / {rate(_SPARK + 'tasks_total')}", EACH),
                ),
                chart(
                    "Tasks at once",
                    "none",
                    (rate(_SPARK + "task_seconds_total"), EACH),
                    text="Seconds of tasks a second.",
                ),
            ),
        ),
        (
            "Client of the workers",
            (
                chart(
                    "Entries read",
                    "ops",
                    (rate(_CLIENT + "READ_ENTRY_count", "instance, success", _WORKERS), f"{EACH} {{{{success}}}}"),
                ),
                chart(
                    "Retries",
                    "ops",
                    (rate(_CLIENT + "SPECULATIVE_READ_COUNT", more=_WORKERS), f"{EACH} speculative reads"),
                    (rate(_CLIENT + "READ_ENTRY_DM", more=_WORKERS), f"{EACH} digest mismatches"),
                    (rate(_CHANNEL + "TIMEOUT", more=_WORKERS), f"{EACH} timeouts"),
                    (rate(_CHANNEL + "FAILED_CONNECTION_COUNTER", more=_WORKERS), f"{EACH} failed connections"),
                ),
                chart("Batches read", "ops", (rate(_CLIENT + "BATCH_READ", more=_WORKERS), EACH)),
            ),
        ),
    ),
)

_WORKER = "replication_worker_"

RECOVERY = Dashboard(
    "bookgate-recovery",
    "Bookgate: auto-recovery",
    "auditor_IS_AUDITOR",
    (
        (
            "Cluster",
            (
                number("Auditors in office", "none", "sum(auditor_IS_AUDITOR)", red_below=1),
                number("Marked ledgers", "none", "max(auditor_MARKED_LEDGERS)", text="For repair or a move."),
                number(
                    "Oldest mark",
                    "s",
                    "max(auditor_OLDEST_MARK_SECONDS)",
                    text="Of a ledger that lacks copies and can be repaired.",
                    red_above=3600,
                ),
                number("Unrecoverable ledgers", "none", "max(auditor_UNRECOVERABLE_LEDGERS)", red_above=1),
                number(
                    "Corrupt ledgers",
                    "none",
                    "max(auditor_CORRUPT_LEDGERS)",
                    text="With copies that a scrub found damaged, and that are not repaired yet.",
                    red_above=1,
                ),
                number("Enabled", "bool_on_off", "max(auditor_ENABLED)", red_below=1),
                number("Bookies missed", "none", "max(auditor_BOOKIES_MISSED)", red_above=1),
                number("Bookies lost", "none", "max(auditor_BOOKIES_LOST)", text="Missed for the delay.", red_above=1),
                number(
                    "Audit held back",
                    "bool_yes_no",
                    "max(auditor_AUDIT_HELD_BACK)",
                    text="Most bookies, or most of a rack, are missed at once.",
                    red_above=1,
                ),
            ),
        ),
        (
            "Auditor",
            (
                chart("Who is the auditor", "none", (value("auditor_IS_AUDITOR"), EACH)),
                chart(
                    "Marks",
                    "none",
                    ("max(auditor_MARKED_LEDGERS)", "marked"),
                    ("max(auditor_UNRECOVERABLE_LEDGERS)", "unrecoverable"),
                ),
                chart(
                    "Ledgers by danger",
                    "none",
                    ("max by (class) (auditor_LEDGERS_IN_DANGER)", "{{class}}"),
                    text="By the copies that the worst entry has left; moving and misplaced ledgers have all of them.",
                ),
                chart(
                    "Bytes to copy", "bytes", ("max by (class) (auditor_BYTES_TO_COPY)", "{{class}}"), text="At most."
                ),
                chart(
                    "Ledgers to repair by bookie",
                    "none",
                    ("max by (bookie) (auditor_LEDGERS_TO_REPAIR)", "{{bookie}}"),
                    text="Lost bookies, such as are to be emptied, and such as lack entries.",
                ),
                chart(
                    "Audits",
                    "ops",
                    (rate("auditor_NUM_LEDGERS_CHECKED"), f"{EACH} ledgers looked at"),
                    (rate("auditor_NUM_UNDER_REPLICATED_LEDGERS"), f"{EACH} ledgers marked"),
                    (rate("auditor_AUDITS_FAILED"), f"{EACH} audits begun anew"),
                ),
            ),
        ),
        (
            "Checks",
            (
                chart(
                    "Since all was looked at",
                    "s",
                    ("max(auditor_REPLICA_CHECK_SECONDS_SINCE)", "replica check"),
                    ("max(auditor_SCRUB_SECONDS_SINCE)", "scrub"),
                    ("max(auditor_PLACEMENT_CHECK_SECONDS_SINCE)", "placement check"),
                ),
                chart("Bytes scrubbed", "Bps", (rate("auditor_SCRUB_BYTES"), EACH)),
                chart(
                    "Found",
                    "ops",
                    (rate("auditor_REPLICA_CHECK_LEDGERS_MARKED"), f"{EACH} ledgers that lack copies"),
                    (rate("auditor_SCRUB_CORRUPT_COPIES"), f"{EACH} corrupt copies"),
                    (rate("auditor_PLACEMENT_CHECK_LEDGERS_MARKED"), f"{EACH} misplaced ledgers"),
                ),
                chart("Left out by the scrub", "none", ("max(auditor_SCRUB_LEDGERS_LEFT_OUT)", "ledgers")),
            ),
        ),
        (
            "Workers",
            (
                chart("Ledgers repaired", "ops", (rate(_WORKER + "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"), EACH)),
                chart("Entries copied", "ops", (rate(_WORKER + "NUM_ENTRIES_WRITTEN"), EACH)),
                chart(
                    "Bytes copied",
                    "Bps",
                    (rate(_WORKER + "NUM_BYTES_WRITTEN"), EACH),
                    (value(_WORKER + "BYTES_A_SECOND"), f"{EACH} granted"),
                    text="Granted is what may be read and stored; 0: without limit.",
                ),
                chart("Under repair", "none", (value(_WORKER + "LEDGERS_IN_PROGRESS"), EACH)),
                chart(
                    "Failures",
                    "ops",
                    (rate(_WORKER + "LEDGERS_POSTPONED"), f"{EACH} to be tried again"),
                    (rate(_WORKER + "LEDGERS_UNRECOVERABLE"), f"{EACH} unrecoverable"),
                ),
                chart("Taken from writers and closed", "ops", (rate(_WORKER + "LEDGERS_RECOVERED"), EACH)),
            ),
        ),
    ),
)

DASHBOARDS = (BOOKIE, GATEWAY, CLIENT, SPARK, RECOVERY)


def main() -> None:
    for dashboard in DASHBOARDS:
        file = FOLDER / f"{dashboard.uid.removeprefix('bookgate-')}.json"
        text = json.dumps(render(dashboard), indent=2) + "\n"
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file} is not up to date; run: make reference")


if __name__ == "__main__":
    main()
