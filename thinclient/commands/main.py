"""The command `bookgate`: ledgers and bookies of a cluster, and whatever other packages mount under it.

How results, failures and exit codes look is in `bookgate.runtime.command_line.output`. Other packages mount commands
through the entry-point group `bookgate.commands`: an entry `noun` is a whole command or group, an entry `noun.part`
adds its commands to those of the noun.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from bookgate.runtime.command_line.groups import Group, load_noun, not_installed
from bookgate.thinclient.commands.client_options import ClientOptions
from bookgate.thinclient.gateways.uri import TlsFiles

_ENTRY_POINTS = "bookgate.commands"

_EXTRAS = {"run": "bookie,spark-local", "spark": "spark-local"}


def mounted_commands() -> dict[str, str]:
    """Names of mounted commands, or parts of them, and where their typer app is (`module:attribute`)."""
    return {entry.name: entry.value for entry in entry_points(group=_ENTRY_POINTS)}


def parts_of_nouns(mounted: Mapping[str, str]) -> dict[str, list[str]]:
    """The apps that each noun is made of, the one that has its name first."""
    nouns: dict[str, list[str]] = {}
    for name in sorted(mounted):
        nouns.setdefault(name.partition(".")[0], []).append(mounted[name])
    return nouns


class CommandGroup(Group):
    """Loads a mounted command when it is asked for, so that none costs another's start or needs another's packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(parts_of_nouns(mounted_commands()))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        parts = parts_of_nouns(mounted_commands()).get(cmd_name)
        if parts is None:
            return super().get_command(ctx, cmd_name)
        install = f"pip install 'bookgate[{_EXTRAS.get(cmd_name, 'bookie')}]'"
        try:
            return load_noun(cmd_name, parts, install)
        except ModuleNotFoundError as error:
            missing = error.name or str(error)
            message = f"`bookgate {cmd_name}` needs {missing}, which is not installed; run: {install}"
            return not_installed(cmd_name, message, f"Not installed: {install}")


app = typer.Typer(
    name="bookgate",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Apache BookKeeper ledgers without ZooKeeper in the client.",
)


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="Client settings (TOML).", envvar="BOOKGATE_CONFIG")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="grpcs://: PEM file with the gateways' authorities.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="grpcs://: PEM file of the client's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="grpcs://: PEM file of its key.")] = None,
) -> None:
    """Apache BookKeeper ledgers without ZooKeeper in the client."""
    context.obj = ClientOptions(config, TlsFiles(tls_ca, tls_cert, tls_key))


def main() -> None:
    """The command's entry point."""
    app(prog_name="bookgate")
