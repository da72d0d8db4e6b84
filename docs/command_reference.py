"""Renders docs/reference/commands.md from the typer apps themselves."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).parent))

from commands_of_bookkeeper import ROWS

from bookgate.thinclient.commands.main import app

_INTRODUCTION = """# Reference: commands

Generated from the commands by `make reference`; `bookgate COMMAND --help` says the same. How to use them day by day:
[operations.md](../operations.md).

Every command

- prints its result on standard output, in the form that `--output` (`-o`) names (below);
- tells a failure in one line on standard error, `error: …`, in the JSON forms as
  `{"error": message, "type": class of the error, "code": BookKeeper's code or null}`;
- ends with one of the exit codes below;
- has `--timeout SECONDS` where it asks gateways: how long they are asked, all attempts together, and how long a
  connection may take to be made;
- asks before it destroys something: `--yes` (or `--force`) answers; where nobody can be asked it is refused without;
- shows a progress bar on standard error if that is a terminal and the work is long.

`--output` is

- `table`: for a person, laid out for the width of the terminal; the default on a terminal;
- `tsv`: a row a line, cells separated by tabs, the names of the columns in the first line; facts are a name, a tab and
  the value. A tab, a line end and a backslash within a cell are `\\t`, `\\n`, `\\r` and `\\\\`, other
  characters that a terminal obeys are `\\u001b` and so on. The default in a pipe;
- `json`: one JSON document on one line, or an object a line where the command says so; `--json` is the same;
- `jsonl`: each element of a list on a line of its own.

`ledger list` prints ledgers as they arrive; where it fails midway, its JSON array has no end. Commands that have an
`--output` of their own, a file or a directory, have `--json` only.

Exit codes:

- 0: done, and nothing wrong was found;
- 1: it failed (the cluster, a bookie or a file said no or is out of reach), or what was looked at has something wrong;
- 2: wrong usage (an unknown command or option, a value that can't be, settings that contradict each other): nothing was
  done;
- 130: interrupted by Ctrl-C; `bench` has told what it had measured.

`bookgate --version` prints the version, and `-h` is `--help`. `bookgate --install-completion` sets up completion in
bash, zsh and fish. `--gateways` (`BOOKGATE_GATEWAYS`) names the gateways of the cluster, or a metadata store; its TLS
files stand before the command, `bookgate --tls-ca ca.pem …`."""

_MAPPING = """## Coming from BookKeeper

`bookkeeper shell COMMAND` (and `bkctl`) and what takes its place."""


class Command(NamedTuple):
    """`path` is what follows `bookgate`."""

    path: str
    command: Any


def commands() -> list[Command]:
    """Every command that is no group, by its noun."""
    return sorted(_walk(typer.main.get_command(app), ""), key=lambda each: each.path)


def _walk(command: Any, path: str) -> Iterator[Command]:
    context = command.make_context(path or "bookgate", [], resilient_parsing=True)
    if not hasattr(command, "list_commands") or (command.invoke_without_command and path):
        yield Command(path, command)
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if not found.hidden:
            yield from _walk(found, f"{path} {name}".strip())


def text_of(command: Any) -> str:
    """The help text, a paragraph a line."""
    paragraphs = inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def example_of(command: Any) -> str:
    """The command line of its example, or nothing."""
    found = re.search(r"^Example: (.+)$", text_of(command), re.MULTILINE)
    return found.group(1) if found else ""


def render() -> str:
    """The whole page."""
    found = commands()
    parts = [_INTRODUCTION, _overview(found), _mapping(found)]
    parts += [_section(each) for each in found]
    return "\n\n".join(parts) + "\n"


def _overview(found: list[Command]) -> str:
    rows = ["## Overview", "", "| command | does |", "|---|---|"]
    for each in found:
        first = text_of(each.command).partition(". ")[0].partition("\n")[0].rstrip(".")
        rows.append(f"| [`{each.path}`](#{_anchor(each)}) | {_cell(first)} |")
    return "\n".join(rows)


def _anchor(each: Command) -> str:
    return f"bookgate-{each.path.replace(' ', '-')}"


def _mapping(found: list[Command]) -> str:
    known = {each.path: each for each in found}
    rows = [_MAPPING, "", "| BookKeeper | here | remark |", "|---|---|---|"]
    for row in ROWS:
        ours = f"[`{row.ours}`](#{_anchor(known[row.ours])})" if row.ours else "–"
        rows.append(f"| {_cell(row.theirs)} | {ours} | {_cell(row.remark)} |")
    return "\n".join(rows)


def _section(each: Command) -> str:
    paragraphs = text_of(each.command).split("\n\n")
    body = [paragraph for paragraph in paragraphs if not paragraph.startswith(("Example: ", "JSON"))]
    shape = [_shape(paragraph) for paragraph in paragraphs if paragraph.startswith("JSON")]
    example = example_of(each.command)
    shown = [f"## bookgate {each.path}", *body, *shape]
    if example:
        shown.append(f"```bash\n{example}\n```")
    return "\n\n".join([*shown, _parameters(each)])


def _shape(paragraph: str) -> str:
    """`JSON: {…}.` with the shape as code."""
    label, _, shape = paragraph.partition(": ")
    shown = re.sub(r"([{].*[}])", r"`\1`", shape, count=1)
    return f"{label}: {shown}"


def _parameters(each: Command) -> str:
    rows = ["| argument or option | meaning |", "|---|---|"]
    context = each.command.make_context(each.path, [], resilient_parsing=True)
    for parameter in each.command.params:
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:
            name, meaning = (" ".join(text.split()) for text in record)
            rows.append(f"| `{_cell(name)}` | {_cell(meaning)} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
