"""`bookgate cluster info`: what a cluster is and has, asked of its gateways or of its metadata store.

The other commands of `bookgate cluster` that need the store itself are the gateway's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookgate.gateway.commands.cluster import print_summary, with_admin
from bookgate.gateway.stores.cluster_admin import ClusterSummary
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson
from bookgate.thinclient.commands.client_options import Gateways, with_metadata
from bookgate.thinclient.gateways.uri import is_gateway_uri

app = new_group("The cluster as a whole.")


@app.callback()
def group() -> None:
    """Keeps this group with its one command."""


@app.command()
def info(
    context: typer.Context,
    gateways: Gateways = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the settings of a gateway, which name the metadata store.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Shows the cluster's instance id, its layout, and how many ledgers and bookies it has.

    Asks the gateways, or the store where --metadata-uri names one. Without either it is the store of the gateway's
    settings (--config, BOOKGATE_GATEWAY_METADATA_URI).

    JSON: {"metadata_store", "instance_id", "ledger_manager", "ledgers", "writable_bookies", "read_only_bookies",
    "known_bookies"}.

    \b
    Example: bookgate cluster info --metadata-uri sqlite:///var/lib/bookgate/metadata.db
    """
    if gateways is not None and config is None and is_gateway_uri(gateways):
        print_summary(with_metadata(context, gateways, _summary), as_json)
        return
    uri = gateways if config is None or _is_option(context) else None
    print_summary(with_admin(uri, config, lambda admin: admin.summary()), as_json)


def _is_option(context: typer.Context) -> bool:
    """Whether the address stands on the command line, before which that of a file gives way."""
    source = context.get_parameter_source("gateways")
    return source is not None and source.name == "COMMANDLINE"


async def _summary(factory: LedgerManagerFactory) -> ClusterSummary:
    discovery = factory.service_discovery
    cluster, found = await discovery.cluster_info(), await discovery.bookies(BookieSet.ALL)
    ledgers = 0
    factory.ledger_manager.demand_complete_listings()
    async for ids in factory.ledger_manager.ledger_ranges():
        ledgers += len(ids)
    return ClusterSummary(
        cluster.instance_id,
        cluster.ledger_manager,
        ledgers,
        sum(bookie.writable for bookie in found),
        sum(bookie.read_only and not bookie.writable for bookie in found),
        len(found),
    )
