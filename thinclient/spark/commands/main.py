"""`bookgate spark`: the included jobs, on any Spark.

Each command calls a function of `bookgate.thinclient.spark.jobs` and adds a session, a progress bar, a table of the
results, and an exit code: 1 if the job failed or found damage, also if copies could not be examined.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import (
    AsJson,
    Yes,
    confirm,
    fail,
    print_json,
    print_note,
    print_table,
    progress,
)
from bookgate.thinclient.commands.client_options import Gateways, Password
from bookgate.thinclient.core.undeletable import NotAllDeletedException
from bookgate.thinclient.spark.commands.results import Format, printable, show_result, store_result, table_of
from bookgate.thinclient.spark.session import (
    SparkUnavailable,
    job_errors,
    reason,
    require_spark,
    spark_session,
    watched,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bookgate.ledger.metadata_store import LedgerRecord
    from bookgate.thinclient.spark.commit_protocol import Write
    from bookgate.thinclient.spark.jobs.marking import Marking

app = new_group("Jobs on Spark over the ledgers of a cluster: export, audit, usage, orphans; leftovers of its sink.")

_SHOWN_ROWS = 50
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


Master = Annotated[
    str | None,
    typer.Option(help="local[4], spark://host:7077, yarn, …. Default: what spark-submit says, else local[*]."),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the source (see the guide); repeatable."),
]
LedgerIds = Annotated[str | None, typer.Option(help="Only these ledgers: 1,2,3. Default: all of the scope.")]
Output = Annotated[
    str | None,
    typer.Option(help="Write the whole result to this directory: a new or empty one, or this job's, to be replaced."),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="What --output is written as.")]


@app.command("export")
def export_command(
    output: Annotated[str, typer.Argument(help="Directory for Parquet files and the manifest; it may hold a part.")],
    gateways: Gateways = None,
    password: Password = "",
    ledger_ids: LedgerIds = None,
    option: SourceOption = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Writes ledgers as Parquet, a directory a ledger, and a manifest. Stopped anywhere, it goes on when run again.

    Exit code 1 when entries were lost and skipped (--option failOnDataLoss=false), or a ledger can't be read.

    JSON: {"ledgers", "complete", "entries", "lost_entries", "bytes", "output"}.

    \b
    Example: bookgate spark export /data/ledgers -g grpc://bookie-1:4181 --option customMetadata.app=orders
    """
    options = _options(gateways, password, ledger_ids, option)
    with _session("export", master, conf) as spark:
        from pyspark.sql import functions as F  # noqa: N812

        from bookgate.thinclient.spark.jobs.export import export

        with progress("ledgers", None, "ledgers") as update:
            manifest = export(spark, options, output, on_group=lambda done, _total: update(done))
        totals = manifest.agg(
            F.count("*").alias("ledgers"),
            F.count_if("complete").alias("complete"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("entries", "lost_entries", "bytes")),
        )
        (row,) = totals.collect()
        rows = manifest.orderBy("scope_id", "ledger_id").limit(_SHOWN_ROWS).drop("files").collect()
    summary = {**row.asDict(), "output": output}
    show_result(summary, rows, as_json)
    if summary["lost_entries"]:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    gateways: Gateways = None,
    password: Password = "",
    ledger_ids: LedgerIds = None,
    option: SourceOption = None,
    output: Output = None,
    output_format: OutputFormat = Format.PARQUET,
    mark: Annotated[
        bool, typer.Option("--mark", help="Have auto-recovery copy again what bookies lack or have damaged.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Reads every entry on every bookie that should hold it, and reports what is missing, corrupt or of wrong length.

    Nothing is fenced or changed; with --mark ledgers with missing or corrupt copies are marked for auto-recovery. Exit
    code 1 when a copy is not known to be good, whether its ledger is marked or not.

    JSON: {"ledgers", "copies", "good", "missing", "corrupt", "wrong_length", "unreachable", "busy", "unauthorized",
    "damage": [a row each, at most 50]}; with --mark also "marked", "left": numbers of ledgers, and
    "obstacle": why nothing is repaired now, or null.

    \b
    Example: bookgate spark audit -g grpc://bookie-1:4181 --output /reports/audit --format json
    """
    from bookgate.thinclient.spark.jobs.marking import mark_lacking, require_auto_recovery

    options = _options(gateways, password, ledger_ids, option, "copies")
    if mark:
        require_auto_recovery(options)
    with _session("audit", master, conf) as spark:
        from pyspark.sql import functions as F  # noqa: N812

        from bookgate.thinclient.spark.jobs.audit import FAULTS, audit

        with _shown(spark, "audit"):
            found = store_result(audit(spark, options), "audit", output, output_format)
        counts = ("copies", "good", *FAULTS)
        (row,) = found.agg(
            F.count_distinct("scope_id", "ledger_id").alias("ledgers"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counts),
        ).collect()
        damaged = found.where(" + ".join(FAULTS) + " > 0").orderBy("scope_id", "ledger_id", "fragment", "bookie_id")
        rows = damaged.limit(_SHOWN_ROWS).collect()
        marking = mark_lacking(found, options) if mark else None
    summary = row.asDict()
    show_result(summary if marking is None else summary | _amounts(marking, as_json), rows, as_json, rows_name="damage")
    if marking is not None:
        _tell_what_is_in_the_way(marking, as_json)
    if any(summary[name] for name in FAULTS):
        raise typer.Exit(1)


def _amounts(marking: Marking, as_json: bool) -> dict[str, Any]:
    amounts = {"marked": marking.marked, "left": marking.left}
    return {**amounts, "obstacle": marking.obstacle} if as_json else amounts


def _tell_what_is_in_the_way(marking: Marking, as_json: bool) -> None:
    """Prints why nothing is repaired at present (for people), and fails if ledgers could not be marked."""
    if marking.obstacle is not None and not as_json:
        print_note(f"nothing is repaired now: {marking.obstacle}")
    if marking.failure is not None:
        fail(f"marking did not come to its end: {marking.failure}; run it again")


@app.command("usage")
def usage_command(
    gateways: Gateways = None,
    ledger_ids: LedgerIds = None,
    option: SourceOption = None,
    output: Output = None,
    output_format: OutputFormat = Format.PARQUET,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Sums up ledgers, entries and bytes by bookie, state, key of custom metadata, age and write quorum.

    JSON: {"usage": [{"dimension", "value", "ledgers", "unfinished", "entries", "bytes", "stored_bytes"}, …]}.

    \b
    Example: bookgate spark usage -g grpc://bookie-1:4181
    """
    options = _options(gateways, "", ledger_ids, option, "ledgers")
    with _session("usage", master, conf) as spark:
        from bookgate.thinclient.spark.jobs.usage import usage

        with _shown(spark, "usage"):
            found = store_result(usage(spark, options), "usage", output, output_format)
        rows = found.orderBy("dimension", "value").collect()
    show_result({}, rows, as_json, rows_name="usage")


@app.command("orphans")
def orphans_command(
    gateways: Gateways = None,
    option: SourceOption = None,
    output: Output = None,
    output_format: OutputFormat = Format.PARQUET,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Lists ledgers that bookies hold and the metadata do not know, and those that a bookie should hold and has not.

    Ledgers deleted since a bookie's last garbage collection are among the first. Exit code 1 when there are any.

    JSON: {"unknown_to_the_metadata", "not_held", "not_checked", "orphans": [a row each, at most 50]}.

    \b
    Example: bookgate spark orphans -g grpc://bookie-1:4181
    """
    options = _options(gateways, "", None, option, "held-ledgers")
    with _session("orphans", master, conf) as spark:
        from bookgate.thinclient.spark.jobs.orphans import NOT_CHECKED, NOT_HELD, UNKNOWN_TO_METADATA, orphans

        with _shown(spark, "orphans"):
            found = store_result(orphans(spark, options), "orphans", output, output_format)
        counted = {row.kind: row["count"] for row in found.groupBy("kind").count().collect()}
        rows = found.orderBy("kind", "bookie_id", "ledger_id").limit(_SHOWN_ROWS).collect()
    kinds = (UNKNOWN_TO_METADATA, NOT_HELD, NOT_CHECKED)
    show_result({kind.replace(" ", "_"): counted.get(kind, 0) for kind in kinds}, rows, as_json, rows_name="orphans")
    if counted.get(UNKNOWN_TO_METADATA) or counted.get(NOT_HELD):
        raise typer.Exit(1)


@app.command("leftovers")
def leftovers_command(
    gateways: Gateways = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Longer than any write takes: 90s, 30m, 12h, 7d.", show_default=True)
    ] = "1d",
    delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False,
    option: SourceOption = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Lists ledgers that writes by Spark left behind without ever committing them, and deletes them on demand.

    A batch write without writeId whose driver was killed leaves such ledgers. Needs no Spark to run.

    JSON: {"leftovers", "deleted", "ledgers": [{"scope_id", "ledger_id", "query", "batch", "state", "entries",
    "created_ms"}, …]}.

    \b
    Example: bookgate spark leftovers -g grpc://bookie-1:4181 --older-than 7d --delete

    Those of scope 0, unless --option scopeId=... names another. Fails for whoever may not see all ledgers of the scope.
    """
    from bookgate.thinclient.spark.jobs import leftovers
    from bookgate.thinclient.spark.options.read_options import parse_options
    from bookgate.thinclient.spark.worker_client import clients

    before_ms = time.time_ns() // 1_000_000 - _milliseconds(older_than)
    options = parse_options(_options(gateways, "", None, option))
    with clients.use(options.gateways, options.client_settings) as client:
        found = leftovers.leftovers(client, before_ms, options.scope_id)
        rows = [_leftover(write, record) for write, records in found.items() for record in records]
        deleted, refusal = 0, None
        if delete and rows:
            confirm(f"Delete {len(rows)} ledgers", yes)
            try:
                deleted = len(leftovers.delete(client, found))
            except NotAllDeletedException as error:
                deleted, refusal = error.deleted, error
    _print_leftovers(rows, deleted, as_json=as_json)
    if refusal is not None:
        raise refusal


def _print_leftovers(rows: list[dict[str, Any]], deleted: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"leftovers": len(rows), "deleted": deleted, "ledgers": rows})
        return
    if rows:
        print_table(table_of(rows[:_SHOWN_ROWS]))
    typer.echo(f"leftovers: {len(rows)}, deleted: {deleted}")


def _leftover(write: Write, record: LedgerRecord) -> dict[str, Any]:
    """`entries` is None for a ledger that is not closed."""
    metadata = record.metadata
    return {
        "scope_id": record.ledger_id.scope_id,
        "ledger_id": record.ledger_id.low,
        "query": write.query,
        "batch": write.batch,
        "state": metadata.state.name,
        "entries": metadata.last_entry_id + 1 if metadata.is_closed else None,
        "created_ms": record.creation_ms,
    }


def _milliseconds(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdigit()):
        fail(f"--older-than {text}: write it as a number and s, m, h or d, such as 12h", 2)
    return int(number) * _UNITS[unit]


@app.command("sql")
def sql_command(
    query: Annotated[str, typer.Argument(help="A query of Spark's SQL over the tables entries, ledgers and bookies.")],
    gateways: Gateways = None,
    password: Password = "",
    ledger_ids: LedgerIds = None,
    option: SourceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many rows.")] = 1000,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Runs a query over the cluster's ledgers, entries and bookies, each a table of that name.

    Comparisons of ids with numbers decide what is read, where the query reads no table twice. Each ledger is read with
    the password that its metadata has, unless --password or --option passwords=… says otherwise.

    JSON: {"rows": [{column: value}, …], "more": whether --limit cut rows off}.

    \b
    Example: bookgate spark sql "SELECT state, count(*) FROM ledgers GROUP BY state" -g grpc://bookie-1:4181
    """
    from bookgate.thinclient.spark.options.read_options import FROM_METADATA

    options = _options(gateways, password, ledger_ids, option)
    if not {"password", "passwords"} & {name.lower() for name in options}:
        options["passwords"] = FROM_METADATA
    with _session("sql", master, conf) as spark:
        from bookgate.thinclient.spark.jobs.views import query_views

        with _shown(spark, "query"):
            rows = query_views(spark, query, options).limit(limit + 1).collect()
    shown = [printable(row) for row in rows[:limit]]
    if as_json:
        print_json({"rows": shown, "more": len(rows) > limit})
        return
    if shown:
        print_table(table_of(shown))
    if len(rows) > limit:
        typer.echo(f"more than {limit:,} rows: --limit, or a condition, says which")


def _options(
    gateways: str | None, password: str, ledger_ids: str | None, more: Sequence[str] | None, table: str = "entries"
) -> dict[str, str]:
    """The source's options, checked here for `table`, so that an invalid one is reported before Spark starts."""
    from bookgate.thinclient.spark.commands.secret_arguments import warn_of_secrets
    from bookgate.thinclient.spark.options.read_options import OptionError, parse_options

    options = _pairs(more, "--option")
    named = {"gateways": gateways, "password": password, "ledgerIds": ledger_ids}
    warn_of_secrets(options)
    options |= {name: value for name, value in named.items() if value}
    try:
        parse_options({**options, "table": table})
    except OptionError as error:
        fail(str(error))
    return options


def _pairs(given: Sequence[str] | None, name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            fail(f"{name} {text}: write it as NAME=VALUE", 2)
        pairs[key] = value
    return pairs


@contextmanager
def _session(job: str, master: str | None, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """A session for one job; an error of Spark or of the source ends the command with one line."""
    settings = {"spark.ui.showConsoleProgress": "false", **_pairs(conf, "--conf")}
    try:
        require_spark()
    except SparkUnavailable as error:
        fail(str(error))
    from bookgate.thinclient.spark.jobs.export import ExportException
    from bookgate.thinclient.spark.jobs.output_directory import OutputException
    from bookgate.thinclient.spark.options.read_options import OptionError

    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_SUBMIT_ARGS" in os.environ
    chosen = master or (None if submitted else "local[*]")
    try:
        with spark_session(f"bookgate spark {job}", chosen, None, settings) as spark:
            try:
                yield spark
            except job_errors() as error:
                # The text of Spark's errors comes from the JVM, which is gone once the session has ended.
                fail(reason(error))
    except (SparkUnavailable, ExportException, OutputException, OptionError) as error:
        fail(str(error))


@contextmanager
def _shown(spark: SparkSession, what: str) -> Iterator[None]:
    """Shows a progress bar of Spark's tasks while the block runs."""
    with progress(what, None, "tasks") as update, watched(spark, lambda done, _total: update(done)):
        yield
