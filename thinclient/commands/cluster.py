"""The commands of `bookgate cluster` and `bookgate gateway` that ask gateways (or a store, as any client may)."""

from __future__ import annotations

import typer

from bookgate.ledger.bookie_info import GATEWAY_GRPC
from bookgate.ledger.bookie_registry import store_in_words
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, print_json, print_result, print_table
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.commands.client_options import Gateways, with_client, with_metadata

cluster_app = new_group("The cluster as a whole.")
gateway_app = new_group("Metadata gateways.")


@cluster_app.callback()
@gateway_app.callback()
def group() -> None:
    """Keeps these groups with few commands."""


@cluster_app.command("instance-id")
def instance_id(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Prints the cluster's instance id, which cookies carry.

    JSON: {"instance_id", "ledger_manager", "features": [names]}.

    \b
    Example: bookgate cluster instance-id --gateways grpc://gw-1:4181
    """
    info = with_metadata(context, gateways, lambda factory: factory.service_discovery.cluster_info())
    if as_json:
        features = list(info.features)
        print_json({"instance_id": info.instance_id, "ledger_manager": info.ledger_manager, "features": features})
    else:
        print(info.instance_id)


@cluster_app.command()
def status(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Counts the cluster's bookies: known by their cookies, writable, read-only, not registered.

    JSON: {"instance_id", "metadata_store", "ledger_manager", "total_bookies", "writable_bookies", "read_only_bookies",
    "unavailable_bookies"}.

    \b
    Example: bookgate cluster status --json
    """

    async def work(factory: LedgerManagerFactory) -> dict[str, object]:
        discovery = factory.service_discovery
        info, found = await discovery.cluster_info(), await discovery.bookies(BookieSet.ALL)
        return {
            "instance_id": info.instance_id,
            "metadata_store": store_in_words(info.ledger_manager),
            # The name of a class, for programs that have gone by it.
            **({"ledger_manager": info.ledger_manager} if as_json else {}),
            "total_bookies": len(found),
            "writable_bookies": sum(bookie.writable for bookie in found),
            "read_only_bookies": sum(bookie.read_only and not bookie.writable for bookie in found),
            "unavailable_bookies": sum(not bookie.registered for bookie in found),
        }

    print_result(with_metadata(context, gateways, work), as_json)


@gateway_app.command("list")
def list_gateways(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Lists the gateways that bookies host and have registered. Those that stand alone register nowhere.

    JSON: a list of {"address", "bookie_id"}.

    \b
    Example: bookgate gateway list --gateways grpc://gw-1:4181
    """
    found = with_client(context, gateways, lambda bookkeeper: bookkeeper.bookies(BookieSet.ALL))
    rows = [
        (endpoint.address, bookie.bookie_id)
        for bookie in found
        for endpoint in bookie.info.endpoints
        if endpoint.protocol == GATEWAY_GRPC
    ]
    if as_json:
        print_json([{"address": address, "bookie_id": bookie_id} for address, bookie_id in rows])
        return
    table = Table("gateway", "of bookie")
    for row in rows:
        table.add_row(*row)
    print_table(table)
