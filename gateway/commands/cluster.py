"""`bookgate cluster`: makes, describes, empties and removes a cluster in its metadata store.

Works on the store itself, not through a gateway: these are an operator's commands. Settings are the gateway's, so the
same file and environment serve both. What destroys asks first, and takes the instance id into the question, so that
nobody empties the wrong cluster by habit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.cluster_admin import ClusterAdmin, ClusterSummary
from bookgate.gateway.stores.drivers import create_admin
from bookgate.ledger.bookie_registry import store_in_words
from bookgate.ledger.errors import BKException, LedgerExistException
from bookgate.ledger.replication_control import SETTINGS_OF_NEW_CLUSTERS
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, Yes, confirm, print_result

T = TypeVar("T")

app = new_group("Make, describe, empty or remove a cluster in its metadata store.")

MetadataUri = Annotated[
    str | None,
    typer.Option(help="Metadata store: zk+hierarchical://host:2181/ledgers or sqlite:///path/metadata.db"),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the settings of the gateway.")]


@app.command()
def init(
    metadata_uri: MetadataUri = None,
    config: Config = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Where there is a cluster, leave it as it is and show it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Makes a cluster; fails where there is one.

    The first step of each cluster: bookies and gateways refuse a store without one, and never make it. It belongs into
    what is done once, not into what runs at each start: a store that is gone must not become a new cluster unasked.

    JSON: the cluster, as `bookgate cluster info` has it.

    \b
    Example: bookgate cluster init --metadata-uri zk+hierarchical://zk-1:2181/ledgers
    """

    async def work(admin: ClusterAdmin) -> ClusterSummary:
        with contextlib.suppress(*((LedgerExistException,) if exist_ok else ())):
            await admin.initialize(SETTINGS_OF_NEW_CLUSTERS)
        return await admin.summary()

    print_summary(with_admin(metadata_uri, config, work), as_json)


@app.command("format")
def format_cluster(
    metadata_uri: MetadataUri = None, config: Config = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Forgets all ledgers and cookies and takes a new instance id; only without registered bookies.

    JSON: the cluster, as `bookgate cluster info` has it.

    \b
    Example: bookgate cluster format --metadata-uri zk+hierarchical://zk-1:2181/ledgers
    """

    async def work(admin: ClusterAdmin) -> ClusterSummary:
        await admin.refuse_if_bookies_live("formatted")
        _confirm("Forget all ledgers of", await admin.summary(), yes)
        await admin.format()
        return await admin.summary()

    print_summary(with_admin(metadata_uri, config, work), as_json)


@app.command("advance-ids")
def advance_ids(
    beyond: Annotated[int, typer.Option(min=0, max=2**62, help="No ledger gets this id or one below it from now on.")],
    metadata_uri: MetadataUri = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Makes new ledgers begin above an id: for a metadata store that was put back to an older state.

    Its counter would give ids to new ledgers whose entries bookies hold already. `bookgate ledger largest-held` prints
    the largest that they hold. Never goes back. Restart gateways that have created ledgers since: they keep ids that
    they have reserved.

    JSON: {"next_id"}.

    \b
    Example: bookgate cluster advance-ids --beyond 120345 --metadata-uri zk+hierarchical://zk-1:2181/ledgers
    """
    print_result({"next_id": with_admin(metadata_uri, config, lambda admin: admin.advance_ids(beyond))}, as_json)


@app.command()
def nuke(metadata_uri: MetadataUri = None, config: Config = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Removes the cluster with everything in it; only without registered bookies.

    JSON: {"removed": instance id, null for a damaged cluster}.

    \b
    Example: bookgate cluster nuke --metadata-uri zk+hierarchical://zk-1:2181/ledgers
    """

    async def work(admin: ClusterAdmin) -> ClusterSummary | None:
        await admin.require_cluster()
        await admin.refuse_if_bookies_live("removed")
        summary = await _summary_if_whole(admin)
        _confirm("Remove", summary, yes)
        await admin.nuke()
        return summary

    summary = with_admin(metadata_uri, config, work)
    instance_id = summary.instance_id if summary else None
    if as_json:
        print_result({"removed": instance_id}, as_json)
    else:
        print(f"removed cluster {instance_id or '(it was damaged)'}")


async def _summary_if_whole(admin: ClusterAdmin) -> ClusterSummary | None:
    """None for a cluster that can't be described any more: removing it is then the way out."""
    try:
        return await admin.summary()
    except BKException:
        return None


def _confirm(action: str, summary: ClusterSummary | None, yes: bool) -> None:
    """Asks on the terminal. Raises CommandFailed if the answer is not yes."""
    what = "what is left of the cluster"
    if summary is not None:
        what = f"cluster {summary.instance_id} ({summary.ledgers} ledgers, {summary.known_bookies} bookies known)"
    confirm(f"{action} {what}", yes)


def with_admin(metadata_uri: str | None, config: Path | None, work: Callable[[ClusterAdmin], Awaitable[T]]) -> T:
    """Connects, works, disconnects. Raises BKException."""

    async def run() -> T:
        settings = GatewayConfig.load(config, {"metadata_uri": metadata_uri})
        async with create_admin(settings.metadata_uri, settings) as admin:
            return await work(admin)

    return asyncio.run(run())


def print_summary(summary: ClusterSummary, as_json: bool) -> None:
    """Prints what a cluster is and has."""
    facts = {"metadata_store": store_in_words(summary.ledger_manager), **asdict(summary)}
    if not as_json:
        # The name of a class, for programs that have gone by it.
        del facts["ledger_manager"]
    print_result(facts, as_json)


if __name__ == "__main__":
    app()
