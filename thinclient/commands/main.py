"""The command `bookgate`: ledgers and bookies of a cluster, and whatever other packages mount under it.

How results, failures and exit codes look is in `bookgate.runtime.command_line.output`. Other packages mount commands
through the entry-point group `bookgate.commands`: an entry `noun` is a whole command or group, an entry `noun.part`
adds its commands to those of the noun.

`bookgate --help` loads no command of this distribution: their summaries are a table here, which a test compares with
what the commands say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bookgate.runtime.command_line.groups import Group, load_noun, not_installed
from bookgate.thinclient.commands.global_options import ClientOptions
from bookgate.thinclient.gateways.uri import ClientTlsFiles

_ENTRY_POINTS = "bookgate.commands"

_EXTRAS = {"run": "bookie,spark-local", "spark": "spark-local"}
_OWN = "bookgate."

SUMMARIES: dict[str, tuple[str, str | None]] = {
    "autorecovery": ("Auto-recovery: copies again what lost bookies held.", None),
    "bench": ("Measures writing and reading: rates and latencies.", None),
    "bookie": ("Bookies: start one, look at one, look at all. Without a command: start one.", None),
    "cluster": ("Make, describe, empty or remove a cluster in its metadata store.", None),
    "config": ("Show, check and migrate settings.", None),
    "cookie": ("Cookies in the metadata store: what ties a bookie to its directories and its cluster.", None),
    "doctor": (
        "Looks at gateways, their metadata store, every bookie and auto-recovery, and says what to change.",
        None,
    ),
    "gateway": ("Metadata gateways. Without a command: start one.", None),
    "gc": ("Garbage collection and compaction of a bookie, over its HTTP admin.", None),
    "ledger": ("Ledgers: create, write, read, list, recover, delete; their metadata.", None),
    "policy": ("The policy, which says who may do what.", None),
    "run": (
        "Ingests text into a cluster of three bookies, counts it with Spark, and compares with a plain read of the "
        "files.",
        "pyspark",
    ),
    "scope": ("Scopes: which there are, what is in them, removing all ledgers of one.", None),
    "security": ("Certificates, tokens and a policy, to begin with.", None),
    "spark": (
        "Jobs on Spark over the ledgers of a cluster: export, audit, usage, orphans; leftovers of its sink.",
        None,
    ),
    "token": ("Static tokens, by which programs show who they are.", None),
    "stream": ("Streams: logs of records by name, their writers, cursors and retention.", None),
    "standalone": (
        "Runs a whole cluster on this machine until Ctrl-C: bookies, each with a metadata gateway and HTTP admin.",
        None,
    ),
}
"""What `bookgate --help` says of each noun of this distribution, and a module that it needs of an extra."""


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, self._summary(ctx, name, parts)) for name, parts in parts_of_nouns(mounted_commands()).items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _summary(self, ctx: Any, name: str, parts: list[str]) -> str:
        if name not in SUMMARIES or not all(part.startswith(_OWN) for part in parts):
            return str(self.get_command(ctx, name).get_short_help_str(100))
        summary, needed = SUMMARIES[name]
        return summary if needed is None or _is_installed(needed) else f"Not installed: {_install(name)}"

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        parts = parts_of_nouns(mounted_commands()).get(cmd_name)
        if parts is None:
            return super().get_command(ctx, cmd_name)
        install = _install(cmd_name)
        try:
            return load_noun(cmd_name, parts, install)
        except ModuleNotFoundError as error:
            missing = error.name or str(error)
            message = f"`bookgate {cmd_name}` needs {missing}, which is not installed; run: {install}"
            return not_installed(cmd_name, message, f"Not installed: {install}")


def _install(noun: str) -> str:
    return f"pip install 'bookgate[{_EXTRAS.get(noun, 'bookie')}]'"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


app = typer.Typer(
    name="bookgate",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Apache BookKeeper ledgers without ZooKeeper in the client.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"bookgate {version('bookgate')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="Client settings (TOML).", envvar="BOOKGATE_CONFIG")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="grpcs://: PEM file with the gateways' authorities.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="grpcs://: PEM file of the client's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="grpcs://: PEM file of its key.")] = None,
    show_version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Apache BookKeeper ledgers without ZooKeeper in the client."""
    context.obj = ClientOptions(config, ClientTlsFiles(tls_ca, tls_cert, tls_key))


@app.command("version", hidden=True)
def print_version() -> None:
    """Prints the version: the same as `bookgate --version`."""
    _print_version(True)


def main() -> None:
    """The command's entry point."""
    # What is wrong with a connection is told in words of ours, and logs have one form. Read when gRPC is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app(prog_name="bookgate")
