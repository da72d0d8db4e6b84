"""`bookgate bookie inspect`: prints a bookie's files as a person wants to read them, or as JSON, an object a line.

For a person: a table of at most `--limit` rows, what is to be said of the file, and what is wrong with it. As JSON: an
object for each row with what kind of row it is, then one for the file. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from bookgate.bookie.collection.scope_usage import ScopeCounts
from bookgate.bookie.journal.format import LogMark
from bookgate.bookie.journal.last_mark import LAST_MARK_FILE
from bookgate.bookie.system.files import read_whole
from bookgate.bookie.tools.inspection import places
from bookgate.bookie.tools.inspection.contents import (
    Filter,
    Findings,
    JournalContents,
    LedgerContents,
    LogFileContents,
    Row,
    bytes_in_log,
    shown,
)
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import ledger_name
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import WRONG_USAGE, AsJson, fail, print_json, print_table
from bookgate.runtime.command_line.tables import Table
from bookgate.runtime.control_characters import visible
from bookgate.thinclient.commands.ledger_naming import QualifiedName, ScopeId, parse_ledger

inspect_app = new_group(
    "Print journals, entry logs and indexes, also those of Apache BookKeeper. Reads only, also beside a running "
    "bookie. Exit code 1 when something is wrong with what was read."
)

_SHOWN_PAYLOAD = 32
_WIDTH = 160


class PayloadForm(enum.StrEnum):
    """How bytes are printed."""

    HEX = "hex"
    TEXT = "text"


File = Annotated[Path, typer.Argument(help="A file, or a directory: all its files, oldest first.")]
Directories = Annotated[list[Path], typer.Argument(help="The bookie's data directory, or its several directories.")]
Ledger = Annotated[str | None, typer.Option(metavar="ID", help="Only this ledger: its id, a qualified name or a UUID.")]
Entry = Annotated[int | None, typer.Option(help="Only this entry; its payload is then printed whole.")]
Payload = Annotated[
    PayloadForm | None, typer.Option(help="Print what follows an entry's first 32 bytes: the digest, then the payload.")
]
Limit = Annotated[int, typer.Option(min=0, help="Rows printed of a file; 0 for all. JSON has all.")]
Logs = Annotated[list[Path] | None, typer.Option(help="Directories of the entry logs, where they lie elsewhere.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Read what every slot points at.")]


class Printer:
    """Prints rows and findings, and remembers whether something was wrong."""

    def __init__(self, *, as_json: bool, payload: PayloadForm | None, whole_payload: bool, limit: int) -> None:
        self._as_json = as_json
        self._payload = payload
        self._whole_payload = whole_payload
        self._limit = limit
        self._console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
        self.problems = 0

    def rows(self, kind: str, rows: Iterable[Row]) -> None:
        """Prints the rows; all of them are taken, however many are printed."""
        if self._as_json:
            for row in rows:
                print(json.dumps({"type": kind} | {name: _plain(value) for name, value in row.items()}))
            return
        remaining = iter(rows)
        printed = list(itertools.islice(remaining, self._limit or None))
        hidden = sum(1 for _ in remaining)
        if printed:
            self._console.print(self._table(printed))
        if hidden:
            self._console.print(f"… and {hidden} more; --limit 0 prints all")

    def _table(self, rows: list[Row]) -> RichTable:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = RichTable(box=None, header_style="bold")
        for column in columns:
            numbers = all(isinstance(row.get(column, 0), int) for row in rows)
            table.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(self._cell(row.get(column))) for column in columns))
        return table

    def _cell(self, value: object) -> str:
        if isinstance(value, bytes):
            part = value if self._whole_payload else value[:_SHOWN_PAYLOAD]
            text = _printable(part) if self._payload is PayloadForm.TEXT else part.hex(" ", 4)
            return text + ("…" if len(part) < len(value) else "")
        return "" if value is None else visible(str(value))

    def findings(self, kind: str, findings: Findings) -> None:
        self.problems += len(findings.problems)
        if self._as_json:
            facts = {name: _plain(value) for name, value in findings.facts.items()}
            problems = {"problems": findings.problems, "more_problems": findings.more_problems}
            print(json.dumps({"type": kind} | facts | problems))
            return
        for name, value in findings.facts.items():
            label = name.replace("_", " ")
            self._console.print(
                f"[bold]{label:>20}[/]  {escape(visible('' if value is None else str(value)))}", soft_wrap=True
            )
        for problem in findings.problems:
            self._console.print(f"[red]{'wrong':>20}[/]  {escape(visible(problem))}", soft_wrap=True)
        if findings.more_problems:
            self._console.print(f"[red]{'wrong':>20}[/]  … and {findings.more_problems} more", soft_wrap=True)
        self._console.print()

    def end(self) -> None:
        if self.problems:
            raise typer.Exit(1)


def _wanted(ledger: str | None, scope: str | None, qualified_name: str | None, entry: int | None) -> Filter:
    """What the options choose."""
    if ledger is None and scope is None and qualified_name is None:
        return Filter(None, entry)
    return Filter(_number(ledger, scope, qualified_name), entry)


def _number(ledger: str | None, scope: str | None, qualified_name: str | None = None) -> int:
    """The number of the ledger that is named. A name that can't be ends the command."""
    try:
        return parse_ledger(ledger, scope, qualified_name).number
    except IncorrectParameterException as error:
        fail(str(error), WRONG_USAGE)


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _printable(data: bytes) -> str:
    return "".join(character if character.isprintable() else "·" for character in data.decode("utf-8", "replace"))


def _removed_meanwhile(path: Path) -> contextlib.suppress:
    """Passes over a file that is not there any more: a running bookie may have removed it after the listing of the
    directory. A file that was named itself has to be there.
    """
    return contextlib.suppress(*((FileNotFoundError,) if path.is_dir() else ()))


@inspect_app.command()
def journal(
    path: File,
    ledger: Ledger = None,
    ledger_scope_id: ScopeId = None,
    ledger_qualified_name: QualifiedName = None,
    entry: Entry = None,
    payload: Payload = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Records of journal files, where their data ends and why.

    JSON, an object a line: {"type": "record", …} for each record, then {"type": "journal", facts, "problems"}.

    \b
    Example: bookgate bookie inspect journal /data/journal --ledger 7
    """
    wanted = _wanted(ledger, ledger_scope_id, ledger_qualified_name, entry)
    printer = Printer(as_json=as_json, payload=payload, whole_payload=entry is not None, limit=limit)
    for file in places.journal_files(path):
        contents = JournalContents(file, wanted, with_payload=payload is not None)
        with _removed_meanwhile(path):
            printer.rows("record", contents)
            printer.findings("journal", contents.findings)
    printer.end()


@inspect_app.command()
def log(
    path: File,
    ledger: Ledger = None,
    ledger_scope_id: ScopeId = None,
    ledger_qualified_name: QualifiedName = None,
    entry: Entry = None,
    payload: Payload = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Records of entry logs, bytes by ledger, and whether the map at their end agrees with them.

    JSON, an object a line: {"type": "record", …}, {"type": "ledger", …}, then {"type": "log", facts, "problems"}.

    \b
    Example: bookgate bookie inspect log /data/ledgers/current/1f.log --limit 0
    """
    wanted = _wanted(ledger, ledger_scope_id, ledger_qualified_name, entry)
    printer = Printer(as_json=as_json, payload=payload, whole_payload=entry is not None, limit=limit)
    for file in places.log_files(path):
        contents = LogFileContents(file, wanted, with_payload=payload is not None)
        with _removed_meanwhile(path):
            printer.rows("record", contents)
            by_ledger = sorted(contents.bytes_by_ledger.items())
            printer.rows("ledger", ({"ledger": shown(number), "bytes in this log": size} for number, size in by_ledger))
            printer.findings("log", contents.findings)
    printer.end()


@inspect_app.command()
def index(
    path: Annotated[Path, typer.Argument(help="An index file, or a directory with index files or RocksDB.")],
    ledger: Ledger = None,
    ledger_scope_id: ScopeId = None,
    ledger_qualified_name: QualifiedName = None,
    entry: Entry = None,
    logs: Logs = None,
    check: Check = True,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Ledgers of an index, or with a file or --ledger its entries; whether every slot leads to its entry.

    JSON, an object a line: {"type": "ledger" or "entry", …}, then {"type": "index" or "ledger", facts, "problems"}.

    \b
    Example: bookgate bookie inspect index /data/ledgers
    """
    wanted = _wanted(ledger, ledger_scope_id, ledger_qualified_name, entry)
    printer = Printer(as_json=as_json, payload=None, whole_payload=False, limit=limit)
    given_logs = places.find(logs).logs if logs else None
    for each, found_logs in _indexes(path):
        wanted_logs = (found_logs if given_logs is None else given_logs) if check else ()
        if wanted.ledger is None and path.is_dir():
            _print_ledgers(printer, each, wanted_logs)
        else:
            for number in _all_ledgers(each) if wanted.ledger is None else (wanted.ledger,):
                _print_ledger(printer, LedgerContents(each, number, wanted_logs, wanted))
        each.close()
    printer.end()


def _indexes(path: Path) -> list[places.OpenIndex]:
    if path.is_file():
        single = places.SingleIndexFile(path)
        return [places.OpenIndex(single, places.find([single.root]).logs)]
    indexes = places.open_indexes(places.find([path]))
    if not indexes:
        raise places.NothingToInspectException(f"{path} holds neither index files nor an index in RocksDB")
    return indexes


def _all_ledgers(each: places.ReadableIndex) -> list[int]:
    """The numbers of all ledgers of an index, those without a scope first."""
    return [*each.ledger_ids(), *each.scoped_ledgers()]


def _print_ledgers(printer: Printer, each: places.ReadableIndex, logs: tuple[Path, ...]) -> None:
    total, numbers = Findings(), _all_ledgers(each)

    def rows() -> Iterable[Row]:
        for number in numbers:
            contents = LedgerContents(each, number, logs, Filter())
            contents.header()
            for _ in contents:
                pass
            for problem in contents.findings.problems:
                total.problem(f"ledger {ledger_name(number)}: {problem}")
            total.more_problems += contents.findings.more_problems
            yield contents.findings.facts

    printer.rows("ledger", rows())
    total.facts["ledgers"] = len(numbers)
    printer.findings("index", total)


def _print_ledger(printer: Printer, contents: LedgerContents) -> bool:
    if not contents.header():
        return False
    printer.rows("entry", contents)
    printer.findings("ledger", contents.findings)
    return True


@inspect_app.command("ledger")
def ledger_command(
    ledger: Annotated[str, typer.Argument(metavar="ID", help="The ledger's id; also a qualified name or a UUID.")],
    paths: Directories,
    ledger_scope_id: ScopeId = None,
    entry: Entry = None,
    payload: Payload = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """All that a bookie's directories hold of one ledger: index, entries, and records in the journals.

    JSON, an object a line: {"type": "entry", …}, {"type": "record", …}, then {"type": "summary", facts, "problems"}.

    \b
    Example: bookgate bookie inspect ledger 7 /data
    """
    printer = Printer(as_json=as_json, payload=payload, whole_payload=entry is not None, limit=limit)
    number = _number(ledger, ledger_scope_id)
    wanted = Filter(number, entry)
    found = places.find(paths)
    known = False
    for each, logs in places.open_indexes(found):
        contents = LedgerContents(each, number, logs, wanted, with_payload=payload is not None)
        known |= _print_ledger(printer, contents)
        each.close()
    summary = Findings({"ledger": shown(number), "in the index": "yes" if known else "no"})
    for file in (file for directory in found.journals for file in places.journal_files(directory)):
        journal_file = JournalContents(file, wanted, with_payload=payload is not None)
        count = itertools.count()
        with _removed_meanwhile(file.parent):
            printer.rows("record", (row for row in journal_file if next(count) >= 0))
            summary.facts[f"in journal {file.name}"] = f"{next(count)} records"
            summary.problems += journal_file.findings.problems
    for mark in places.marks(found.logs + found.indexes + found.databases):
        position = LogMark.decode(read_whole(places.FILES, mark) or b"")
        name = f"mark {mark.name.removeprefix(LAST_MARK_FILE)}".strip()
        summary.facts[name] = f"journal {position.journal_id:x}.txn, offset {position.offset}: replay begins there"
    printer.findings("summary", summary)
    printer.end()


@inspect_app.command()
def scopes(paths: Directories, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Scopes of which a bookie's directories hold ledgers: how many, and their bytes in entry logs.

    Bytes of deleted entries count until their log is collected.

    JSON, an object a line: {"type": "scope", …}, then {"type": "summary", facts, "problems"}.

    \b
    Example: bookgate bookie inspect scopes /data
    """
    printer = Printer(as_json=as_json, payload=None, whole_payload=False, limit=limit)
    found, counts = places.find(paths), ScopeCounts()
    for each, _ in places.open_indexes(found):
        counts.add_ledgers(each.ledger_ids(), each.scoped_ledgers())
        each.close()
    for directory in found.logs:
        for file in places.log_files(directory):
            with _removed_meanwhile(directory):
                counts.add_bytes(bytes_in_log(file))
    usages = counts.usages()
    printer.rows("scope", ({"scope": each.scope_id, "ledgers": each.ledgers, "bytes": each.bytes} for each in usages))
    printer.findings("summary", Findings({"scopes": len(usages)}))
    printer.end()


@inspect_app.command("last-mark")
def last_mark(paths: Directories, as_json: AsJson = False) -> None:
    """Where the replay of each journal begins, as the lastMark files say.

    JSON: a list of {"file", "journal_file", "journal_id", "offset"}.

    \b
    Example: bookgate bookie inspect last-mark /data
    """
    found = places.find(paths)
    files = dict.fromkeys(places.marks(found.logs + found.indexes + found.databases))
    marks = [(file, LogMark.decode(read_whole(places.FILES, file) or b"")) for file in files]
    if as_json:
        print_json(
            [{"file": str(file), "journal_file": f"{each.journal_id:x}.txn", **each._asdict()} for file, each in marks]
        )
        return
    table = Table("file", "journal", "offset")
    for file, each in marks:
        table.add_row(str(file), f"{each.journal_id:x}.txn", str(each.offset))
    print_table(table)


class FileKind(enum.StrEnum):
    """Kinds of a bookie's files."""

    JOURNAL = "journal"
    LOG = "log"
    INDEX = "index"


@inspect_app.command()
def files(
    paths: Directories,
    kind: Annotated[FileKind | None, typer.Option("--kind", help="Only these.")] = None,
    as_json: AsJson = False,
) -> None:
    """Names and sizes of a bookie's files: journals, entry logs, index files, or the files of a RocksDB index.

    JSON: a list of {"kind", "file", "bytes"}.

    \b
    Example: bookgate bookie inspect files /data --kind journal
    """
    found = [(name, file) for name, file in places.data_files(places.find(paths)) if kind in (None, name)]
    if as_json:
        print_json([{"kind": name, "file": str(file), "bytes": file.stat().st_size} for name, file in found])
        return
    table = Table("kind", "file", "bytes", right=("bytes",))
    for name, file in found:
        table.add_row(name, str(file), str(file.stat().st_size))
    print_table(table)
