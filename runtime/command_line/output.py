"""Output, prompts and failures of commands, uniform in all packages.

Results go to standard output, everything else to standard error. With `--json` a result is one JSON document on one
line (or one object per line where the command says so), and a failure is `{"error": message, "type": class, "code":
number}` on standard error; without it, a failure is one line `error: message`. Exit codes: 0 done, 1 failed (or the
inspected object has a problem), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from bookgate.ledger.errors import BKException
from bookgate.runtime.logs import LogFormat, log_event

_LOG = logging.getLogger(__name__)

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130

_WIDTH = 200
"""Columns of a table written to a file or a pipe."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "--force", "-y", "-f", help="Do not ask.")]


class CommandFailed(Exception):
    """The command can't continue; the message is addressed to a person and says what to do."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


FORESEEN = (CommandFailed, BKException, OSError)
"""Exceptions that end a command with one line; any other is a bug and keeps its traceback."""


def fail(message: str, exit_code: int = FAILED) -> NoReturn:
    """Ends the command with one line on standard error."""
    raise CommandFailed(message, exit_code)


def tell_error(message: str, kind: str = "CommandFailed", code: int | None = None, *, as_json: bool) -> None:
    """Prints a failure in the common form; see the module. `code` is BookKeeper's error code, if the error has one."""
    line = " ".join(message.split())
    if as_json:
        print(json.dumps({"error": line, "type": kind, "code": code}, ensure_ascii=False), file=sys.stderr, flush=True)
    else:
        print(f"error: {line}", file=sys.stderr, flush=True)


def error_text(error: BaseException) -> str:
    """Describes an expected failure to a person: never just a class name or a number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def tell_failure(error: Exception, *, as_json: bool) -> None:
    """Prints an exception as `tell_error` does."""
    code = error.code if isinstance(error, BKException) else None
    tell_error(error_text(error), type(error).__name__, code, as_json=as_json)


@contextmanager
def ends_in_the_log(form: LogFormat) -> Iterator[None]:
    """Wraps a server: if the log is JSON, the failure that ends the process is logged instead of printed.

    Raises typer.Exit in place of an expected exception.
    """
    try:
        yield
    except FORESEEN as error:
        if form == "text":
            raise
        log_event(_LOG, "process_failed", logging.CRITICAL, error=error_text(error), type=type(error).__name__)
        raise typer.Exit(FAILED) from error


def print_json(value: object) -> None:
    """Prints one JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(table: object) -> None:
    """Prints a rich table, as wide as needed if the output is not a terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def print_result(value: dict[str, object], as_json: bool) -> None:
    """Prints a result of a few facts: one JSON object, or one row per fact."""
    if as_json:
        print_json(value)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False)
    for name, each in value.items():
        shown = "" if each is None else each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
        table.add_row(name.replace("_", " "), escape(shown))
    print_table(table)


def confirm(question: str, yes: bool) -> None:
    """Asks before something is destroyed. Raises CommandFailed unless the user answers yes or `yes` is set."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question}: not confirmed; use --yes where nobody can be asked")
    print(f"{question}? This can't be undone. Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        fail("not confirmed; nothing was changed")


@contextmanager
def progress(what: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on standard error if it is a terminal; the yielded function takes the amount done so far."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn(f"{{task.completed:,.0f}} {unit}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def end_quietly() -> NoReturn:
    """Ends the process when the reader of its output has gone: that is no error, and nothing more can be printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
