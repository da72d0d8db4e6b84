"""`bookgate config`: shows what is in effect, checks a file, takes over a configuration of Apache BookKeeper."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bookgate.bookie.tools.configuration.check import part_of, problems_of
from bookgate.bookie.tools.configuration.migrate import migrate_properties
from bookgate.bookie.tools.configuration.migrate_toml import migrate_toml
from bookgate.bookie.tools.configuration.reference import render
from bookgate.bookie.tools.configuration.schema import GATEWAY, PARTS, Part, assignments, effective
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_json, print_table
from bookgate.runtime.command_line.tables import Table
from bookgate.runtime.settings_loader import Gathered, gather, read_file
from bookgate.runtime.settings_problems import Problem

app = new_group("Show, check and migrate settings.")


class PartName(str, Enum):  # noqa: UP042  typer shows the values of this form
    """A part that has settings."""

    BOOKIE = "bookie"
    GATEWAY = "gateway"
    CLIENT = "client"


Options = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the command line; repeatable.")
]


@app.command()
def show(
    part: Annotated[
        PartName | None,
        typer.Argument(help="Whose settings. Default: all three; of a file, the one it is for.", show_default=False),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")] = None,
    options: Options = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference of all keys instead.")] = False,
) -> None:
    """Shows the settings in effect and where each comes from: default, file, environment or option.

    Secrets are masked. What is wrong is told on standard error; `bookgate config check` fails for it.

    JSON: {part: {key: {"value", "source"}}}.

    \b
    Example: bookgate config show bookie --config bookie.toml
    """
    if markdown:
        sys.stdout.write(render())
        return
    _show(_parts(part, config), config, options or [], as_json)


def _parts(part: PartName | None, config: Path | None) -> list[Part]:
    if part is not None:
        return [PARTS[part.value]]
    return [part_of(read_file(config))] if config else list(PARTS.values())


def _show(parts: list[Part], config: Path | None, options: list[str], as_json: bool) -> None:
    content = read_file(config) if config else {}
    shown: dict[str, dict[str, dict[str, object]]] = {}
    for part in parts:
        gathered = gather(part.settings, content, str(config), assignments(options))
        lines = effective(part, gathered.given)
        shown[part.name] = {line.key: {"value": line.value, "source": line.source} for line in lines}
        for told in (*_all_problems(part, gathered), *gathered.renamed()) if gathered.given else ():
            print(f"{part.name}: {told}", file=sys.stderr)
        if not as_json:
            table = Table("key", "value", "from", title=part.name)
            for line in lines:
                value = (
                    "" if line.value is None else line.value if isinstance(line.value, str) else json.dumps(line.value)
                )
                table.add_row(line.key, value, line.source)
            print_table(table)
    if as_json:
        print_json(shown)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="TOML file with settings.", show_default=False)],
    part: Annotated[
        PartName | None, typer.Option("--for", help="Whose settings they are. Default: what the keys look like.")
    ] = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Checks a file, together with the environment, as a start would: every problem is one line; exit code 1.

    Former names of settings are no problems: a line on standard error says what each is called now.

    JSON: {"part", "problems": [{"key", "message", "source"}], "renamed": [{"name", "key", "source"}]}.

    \b
    Example: bookgate config check bookie.toml
    """
    content = read_file(file)
    chosen = PARTS[part.value] if part else part_of(content)
    gathered = gather(chosen.settings, content, str(file), assignments(options or []))
    problems, renamed = _all_problems(chosen, gathered), gathered.renamed()
    if as_json:
        described = [{"key": each.key, "message": each.message, "source": each.source} for each in problems]
        names = [{"name": each.name, "key": each.key, "source": each.source} for each in renamed]
        print_json({"part": chosen.name, "problems": described, "renamed": names})
    else:
        for each in renamed:
            print(each, file=sys.stderr)
        print("\n".join(map(str, problems)) or f"{file}: these settings of the {chosen.name} are valid")
    if problems:
        raise typer.Exit(1)


def _all_problems(part: Part, gathered: Gathered) -> list[Problem]:
    return gathered.problems() + problems_of(part, gathered.given)


@app.command()
def migrate(
    file: Annotated[
        Path,
        typer.Argument(
            help="bk_server.conf or bk_client.conf, or a TOML file of Bookgate (.toml).", show_default=False
        ),
    ],
    target: Annotated[
        PartName | None,
        typer.Option("--for", help="Whose settings. Default: the bookie's; of a TOML file, what the keys look like."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prints as TOML what a properties file of Apache BookKeeper says, or a TOML file without former names of settings.

    Each of BookKeeper's keys without a counterpart, or with another meaning, has a comment. Of a TOML file only the
    lines of renamed settings change.

    JSON: {"part", "toml"}.

    \b
    Example: bookgate config migrate bk_server.conf
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        fail(f"{file} can't be read: {error}")
    if file.suffix == ".toml":
        part = PARTS[target.value] if target else part_of(read_file(file))
        toml = migrate_toml(text, part.settings)
    else:
        part = PARTS[target.value if target else "bookie"]
        if part is GATEWAY:
            fail("BookKeeper has no gateway: its files are for --for bookie and --for client")
        toml = migrate_properties(text, part.name)
    if as_json:
        print_json({"part": part.name, "toml": toml})
    else:
        sys.stdout.write(toml)


if __name__ == "__main__":
    app()
