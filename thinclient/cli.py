"""The command `bookgate`: ledgers and bookies of a cluster, and whatever other packages mount under it.

Results go to standard output (with `--json` in a form for programs), everything else to standard error. A failure is
one line, `error: …`, and exit code 1; wrong usage is exit code 2.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ledger.errors import BKException
from thinclient.cli_bench import bench_app
from thinclient.cli_bookies import bookies_app
from thinclient.cli_ledger import ledger_app
from thinclient.cli_support import ClientOptions, fail
from thinclient.gateway_uri import TlsFiles

_ENTRY_POINTS = "bookgate.commands"

# The same table as in pyproject.toml, for a source tree that is not installed, or was before it got a command.
BUILT_IN_COMMANDS = {
    "bookie": "bookie.cli:app",
    "cluster": "gateway.cluster_cli:app",
    "config": "bookie.configuration.cli:app",
    "doctor": "bookie.doctor.cli:app",
    "gateway": "gateway.cli:app",
    "standalone": "bookie.standalone_cli:app",
    "run": "bookie.main_job_cli:app",
}
_EXTRAS = {"run": "bookie,spark"}


def mounted_commands() -> dict[str, str]:
    """Names of mounted commands and where their typer app is (`module:attribute`)."""
    found = {entry.name: entry.value for entry in entry_points(group=_ENTRY_POINTS)}
    # An editable install keeps the table of the day it was made.
    return {**BUILT_IN_COMMANDS, **found}


class CommandGroup(typer.core.TyperGroup):
    """Loads a mounted command when it is asked for, so that none costs another's start or needs another's packages."""

    # typer's own command classes differ between its versions, hence Any.
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(mounted_commands())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        target = mounted_commands().get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        try:
            return _load(cmd_name, target)
        except ModuleNotFoundError as error:
            return _not_installed(cmd_name, error.name or str(error))


def _load(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    command = typer.main.get_command(getattr(import_module(module), attribute))
    command.name = name
    return command


def _not_installed(name: str, missing: str) -> Any:
    """Stands in for a command whose packages are missing."""
    install = f"pip install 'bookgate[{_EXTRAS.get(name, 'bookie')}]'"
    stub = typer.Typer(add_completion=False)

    @stub.command(
        name,
        help=f"Not installed: {escape(install)}",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def refuse() -> None:
        fail(f"`bookgate {name}` needs {missing}, which is not installed; run: {install}")

    return typer.main.get_command(stub)


app = typer.Typer(
    name="bookgate",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Apache BookKeeper ledgers without ZooKeeper in the client.",
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(bookies_app, name="bookies")
app.add_typer(bench_app, name="bench")


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
    try:
        app(prog_name="bookgate")
    except BKException as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
