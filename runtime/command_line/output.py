"""Output, prompts and failures of commands, uniform in all packages.

Results go to standard output, everything else to standard error. `--output` chooses the form of a result: a `table`
(the default on a terminal), `tsv` (the default elsewhere), `json`, one document on one line (or one object per line if
the command says so), or `jsonl`, one line per element of a list. `--json` is `--output json`. A failure is one line
`error: message`, and in the two JSON forms `{"error": message, "type": class, "code": number}`, on standard error. Exit
codes: 0 done, 1 failed (or the inspected object has a problem), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Generic, NoReturn, TypeVar

import typer

from bookgate.ledger.errors import BKException, IncorrectParameterException
from bookgate.runtime.command_line.tables import RowWriter, Table
from bookgate.runtime.control_characters import visible

if TYPE_CHECKING:
    from bookgate.runtime.logs import LogFormat

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


class OutputForm(str, Enum):  # noqa: UP042  typer shows the values of this form
    """The form of a result; see the module."""

    TABLE = "table"
    TSV = "tsv"
    JSON = "json"
    JSONL = "jsonl"


_FORM: ContextVar[OutputForm | None] = ContextVar("_FORM", default=None)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "--force", "-y", "-f", help="Do not ask.")]


class CommandFailed(Exception):
    """The command can't continue; the message is addressed to a person and says what to do."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


FORESEEN = (CommandFailed, BKException, OSError)
"""Exceptions that end a command with one line; any other is a bug and keeps its traceback."""


def exit_code_of(error: Exception) -> int:
    """The exit code for one of the FORESEEN exceptions: a wrong parameter is wrong usage."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    return WRONG_USAGE if isinstance(error, IncorrectParameterException) else FAILED


def choose_form(form: OutputForm | None) -> None:
    """Sets the form of what the command prints; None for the default."""
    _FORM.set(form)


def chosen_form() -> OutputForm | None:
    """The form requested by `--output` or `--json`; None for the default."""
    return _FORM.get()


def laid_out() -> bool:
    """Whether tables are laid out for a person."""
    form = _FORM.get()
    return form is OutputForm.TABLE or (form is None and sys.stdout.isatty())


def fail(message: str, exit_code: int = FAILED) -> NoReturn:
    """Ends the command with one line on standard error."""
    raise CommandFailed(message, exit_code)


def print_error(message: str, kind: str = "CommandFailed", code: int | None = None, *, as_json: bool) -> None:
    """Prints a failure in the common form; see the module. `code` is BookKeeper's error code, if the error has one."""
    line = " ".join(message.split())
    if as_json:
        print(json_line({"error": line, "type": kind, "code": code}), file=sys.stderr, flush=True)
    else:
        print_aside(f"error: {line}")


def error_text(error: BaseException) -> str:
    """Describes an expected failure to a person: never just a class name or a number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def print_failure(error: Exception, *, as_json: bool) -> None:
    """Prints an exception like `print_error`."""
    code = error.code if isinstance(error, BKException) else None
    print_error(error_text(error), type(error).__name__, code, as_json=as_json)


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
        from bookgate.runtime.logs import log_event

        log_event(_LOG, "process_failed", logging.CRITICAL, error=error_text(error), type=type(error).__name__)
        raise typer.Exit(exit_code_of(error)) from error


def print_json(value: object) -> None:
    """Prints one JSON document on one line; in the form `jsonl`, one line per element of a list."""
    for each in value if isinstance(value, list) and _FORM.get() is OutputForm.JSONL else [value]:
        print(json_line(each), flush=True)


def json_line(value: object) -> str:
    """JSON in one line. What JSON itself leaves as it is, a terminal may obey."""
    return visible(json.dumps(value, ensure_ascii=False))


def print_table(table: Table) -> None:
    """Prints a table, for a person or tab-separated."""
    if laid_out():
        table.print_laid_out()
    else:
        table.print_separated()


def print_note(text: str) -> None:
    """Prints a remark after a table: with the table for a person, on standard error if the table is for a program."""
    print(visible(text), file=sys.stdout if laid_out() else sys.stderr, flush=True)


def print_aside(text: str) -> None:
    """Prints a remark on standard error in every form, because standard output has the result alone."""
    print(visible(text), file=sys.stderr, flush=True)


_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that Python's calendar has."""


def shown_time(milliseconds: int | None, absent: str = "") -> str:
    """A point in time, from milliseconds since 1970; `absent` where a calendar does not have it."""
    # Whoever creates a ledger writes its time: one that can't be shown must not end a listing.
    if not milliseconds or not 0 < milliseconds <= _LAST_MS:
        return absent
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PrintedListing(Generic[T]):
    """A listing of any length, printed page by page in the requested form.

    As JSON it is one array, whose end is missing if the listing fails.
    """

    def __init__(
        self,
        columns: Mapping[str, Callable[[T], str]],
        describe: Callable[[T], object],
        *,
        as_json: bool,
        right: frozenset[str] = frozenset(),
    ) -> None:
        """`columns`: the columns of a table and their cells; `describe`: an element of the array."""
        self._cells = tuple(columns.values())
        self._describe = describe
        self._as_json = as_json
        self._lines = chosen_form() is OutputForm.JSONL
        self._rows = RowWriter(tuple(columns), laid_out(), right)
        self._between = "["

    def write(self, items: Sequence[T]) -> None:
        """Prints a page."""
        if not self._as_json:
            self._rows.write([[cell(item) for cell in self._cells] for item in items])
            return
        documents = [json_line(self._describe(item)) for item in items]
        if self._lines:
            sys.stdout.write("".join(f"{each}\n" for each in documents))
        else:
            sys.stdout.write("".join(self._joined(each) for each in documents))
        sys.stdout.flush()

    def _joined(self, document: str) -> str:
        between, self._between = self._between, ", "
        return between + document

    def end(self) -> None:
        """Ends the output after the last page."""
        if not self._as_json:
            self._rows.end()
        elif not self._lines:
            print("[]" if self._between == "[" else "]", flush=True)


def print_result(value: dict[str, object], as_json: bool) -> None:
    """Prints a result of a few facts: one JSON object, or one row per fact."""
    if as_json:
        print_json(value)
        return
    table = Table("name", "value", header=False)
    for name, each in value.items():
        label = name.replace("_", " ") if laid_out() else name
        if isinstance(each, list) and each and all(isinstance(inner, dict) for inner in each):
            for number, inner in enumerate(each):
                table.add_row(f"{label}{' ' if laid_out() else '.'}{number}", _facts_in_a_line(inner))
        else:
            table.add_row(label, _fact(each))
    print_table(table)


def _fact(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _facts_in_a_line(facts: dict[str, object]) -> str:
    texts = {
        name: ",".join(map(_fact, each)) if isinstance(each, list) else _fact(each) for name, each in facts.items()
    }
    return " ".join(f"{name}={text}" for name, text in texts.items() if text)


def confirm(question: str, yes: bool) -> None:
    """Asks before something is destroyed. Raises CommandFailed unless the user answers yes or `yes` is set."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question}: not confirmed; use --yes where nobody can be asked")
    print(f"{visible(question)}? This can't be undone. Type yes: ", end="", file=sys.stderr, flush=True)
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
    """Ends the process when the reader of its output has gone, which is not an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
