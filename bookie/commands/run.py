"""`bookgate run`: the main job from the command line.

Exit codes: 0 equal, 1 different or failed, 2 the input can't be used (nothing was started), 130 interrupted.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from bookgate.bookie.standalone.cluster import ClusterException
from bookgate.bookie.standalone.main_job.report import Report
from bookgate.bookie.standalone.main_job.text import InputError, Selection, select_text, standard_library
from bookgate.ledger.errors import BKException, IncorrectParameterException
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import WRONG_USAGE, AsJson, fail
from bookgate.thinclient.commands.ledger_naming import parse_scope
from bookgate.thinclient.spark.session import SparkUnavailable, job_errors, reason, require_spark

app = new_group(None, asks_for_a_command=False)

EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED = 1, 2, 130


class MetadataStore(str, Enum):  # noqa: UP042  typer shows the values of this form
    """Where the cluster keeps its metadata."""

    EMBEDDED = "embedded"
    ZOOKEEPER = "zookeeper"


@app.callback(invoke_without_command=True)
def run(
    input_dir: Annotated[
        Path | None,
        typer.Option("--input", help="Directory of text files. Default: the running Python's standard library."),
    ] = None,
    metadata: Annotated[
        MetadataStore, typer.Option(help="Metadata in SQLite, or in a ZooKeeper started for the run.")
    ] = MetadataStore.EMBEDDED,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the cluster keeps its data; left in place. Default: temporary.")
    ] = None,
    keep_data: Annotated[bool, typer.Option("--keep-data", help="Keep a temporary data directory.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the whole table to this file, as CSV.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the table to show.")] = 20,
    ledger_scope_id: Annotated[
        str | None, typer.Option(metavar="N", help="Scope of the ledgers; a number, or 0x and hex digits. Default: 0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ingests text into a cluster of three bookies, counts it with Spark, and compares with a plain read of the files.

    JSON: {"input", "metadata", "equal", "ledgers": [counts of each], "totals", "stages", "left_out", "differences"}.

    \b
    Example: bookgate run --input ./texts --metadata zookeeper
    """
    report = Report(as_json)
    selection, scope_id = _selection(input_dir), _scope(ledger_scope_id)
    _end_in_good_order_on_signals()
    try:
        require_spark()
        with _data_directory(data_dir, keep_data, report) as directory:
            equal = _run(selection, directory, report, metadata, output, top, scope_id)
    except KeyboardInterrupt:
        fail("interrupted; everything that was started is stopped again", EXIT_INTERRUPTED)
    except (SparkUnavailable, ClusterException, InputError, BKException, OSError) as error:
        fail(str(error))
    raise typer.Exit(0 if equal else EXIT_FAILED)


def _selection(input_dir: Path | None) -> Selection:
    try:
        return select_text(input_dir) if input_dir is not None else select_text(*standard_library())
    except InputError as error:
        fail(str(error), EXIT_INPUT)


def _scope(text: str | None) -> int:
    try:
        return parse_scope(text)
    except IncorrectParameterException as error:
        fail(str(error), WRONG_USAGE)


def _run(
    selection: Selection,
    directory: Path,
    report: Report,
    metadata: MetadataStore,
    output: Path | None,
    top: int,
    scope_id: int,
) -> bool:
    from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeperError
    from bookgate.bookie.standalone.main_job.job import MainJob

    try:
        job = MainJob(selection, directory, report, metadata=metadata.value, output=output, top=top, scope_id=scope_id)
        return job.run().equal
    except LocalZooKeeperError as error:
        fail(str(error))
    except job_errors() as error:
        fail(f"the Spark job failed: {reason(error)}")


@contextmanager
def _data_directory(given: Path | None, keep: bool, report: Report) -> Iterator[Path]:
    """The directory that was given, or a temporary one that goes away at the end unless it is to be kept."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    directory = Path(tempfile.mkdtemp(prefix="bookgate-run-"))
    try:
        yield directory
    finally:
        if keep:
            report.say(f"data     kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _end_in_good_order_on_signals() -> None:
    """SIGTERM unwinds like Ctrl-C, so that bookies, ZooKeeper and Spark are stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        # What libraries log of the calls that this cuts short is of no use to anybody.
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
