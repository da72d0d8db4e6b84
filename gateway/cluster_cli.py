"""`bookgate cluster`: makes, describes, empties and removes a cluster in its metadata store.

Works on the store itself, not through a gateway: these are an operator's commands. Settings are the gateway's, so the
same file and environment serve both. What destroys asks first, and takes the instance id into the question, so that
nobody empties the wrong cluster by habit.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from gateway.cluster_admin import ClusterAdmin, ClusterSummary
from gateway.config import GatewayConfig
from gateway.drivers import create_admin
from ledger.errors import BKException, IllegalOpException

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make, describe, empty or remove a cluster in its metadata store."
)

MetadataUri = Annotated[
    str | None,
    typer.Option(help="Metadata store: zk+hierarchical://host:2181/ledgers or sqlite:///path/metadata.db"),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the settings of the gateway.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "--force", "-y", help="Do not ask.")]


@app.command()
def init(metadata_uri: MetadataUri = None, config: Config = None, as_json: AsJson = False) -> None:
    """Make a cluster; fails where there is one."""

    async def work(admin: ClusterAdmin) -> ClusterSummary:
        await admin.initialize()
        return await admin.summary()

    _print(_with_admin(metadata_uri, config, work), as_json)


@app.command()
def info(metadata_uri: MetadataUri = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show the cluster's instance id, its layout, and how many ledgers and bookies it has."""
    _print(_with_admin(metadata_uri, config, lambda admin: admin.summary()), as_json)


@app.command("format")
def format_cluster(
    metadata_uri: MetadataUri = None, config: Config = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Forget all ledgers and cookies and take a new instance id; only without registered bookies."""

    async def work(admin: ClusterAdmin) -> ClusterSummary:
        await admin.refuse_if_bookies_live("formatted")
        _confirm("Forget all ledgers of", await admin.summary(), yes)
        await admin.format()
        return await admin.summary()

    _print(_with_admin(metadata_uri, config, work), as_json)


@app.command()
def nuke(metadata_uri: MetadataUri = None, config: Config = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove the cluster with everything in it; only without registered bookies."""

    async def work(admin: ClusterAdmin) -> ClusterSummary | None:
        await admin.require_cluster()
        await admin.refuse_if_bookies_live("removed")
        summary = await _summary_if_whole(admin)
        _confirm("Remove", summary, yes)
        await admin.nuke()
        return summary

    summary = _with_admin(metadata_uri, config, work)
    instance_id = summary.instance_id if summary else None
    print(json.dumps({"removed": instance_id}) if as_json else f"removed cluster {instance_id or '(it was damaged)'}")


async def _summary_if_whole(admin: ClusterAdmin) -> ClusterSummary | None:
    """None for a cluster that can't be described any more: removing it is then the way out."""
    try:
        return await admin.summary()
    except BKException:
        return None


def _confirm(action: str, summary: ClusterSummary | None, yes: bool) -> None:
    """Asks on the terminal. Raises IllegalOpException if the answer is not yes."""
    if yes:
        return
    what = "what is left of the cluster"
    if summary is not None:
        what = f"cluster {summary.instance_id} ({summary.ledgers} ledgers, {summary.known_bookies} bookies known)"
    if not sys.stdin.isatty():
        raise IllegalOpException(f"{action} {what}: not confirmed; use --yes where nobody can be asked")
    print(f"{action} {what}? This can't be undone. Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise IllegalOpException("not confirmed; nothing was changed")


def _with_admin(metadata_uri: str | None, config: Path | None, work: Callable[[ClusterAdmin], Awaitable[T]]) -> T:
    """Connects, works, disconnects; a failure is one line and exit code 1."""

    async def run() -> T:
        settings = GatewayConfig.load(config, {"metadata_uri": metadata_uri})
        async with create_admin(settings.metadata_uri, settings) as admin:
            return await work(admin)

    try:
        return asyncio.run(run())
    except BKException as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _print(summary: ClusterSummary, as_json: bool) -> None:
    values = asdict(summary)
    if as_json:
        print(json.dumps(values))
        return
    table = Table(show_header=False)
    for name, value in values.items():
        table.add_row(name.replace("_", " "), str(value))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    app()
