"""Commands of `bookgate ledger` for after the metadata store was put back: what bookies hold that it does not know."""

from __future__ import annotations

from typing import Annotated

import typer

from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import (
    AsJson,
    Yes,
    confirm,
    fail,
    print_json,
    print_note,
    print_result,
    print_table,
)
from bookgate.runtime.command_line.tables import Table
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import (
    Gateways,
    Password,
    client_config,
    with_client,
    with_metadata,
)
from bookgate.thinclient.commands.http_options import Token, TokenFile
from bookgate.thinclient.commands.ledger_naming import LedgerName, ScopeId, names_ledger, parse_scope
from bookgate.thinclient.commands.ledger_output import describe
from bookgate.thinclient.tools.admin_client import read_token
from bookgate.thinclient.tools.adoption import adopt as adopt_ledger
from bookgate.thinclient.tools.held_ledgers import HeldLedgers, held_ledgers, unknown_to_metadata

adopt_app = new_group("Ledgers that bookies hold.")


@adopt_app.command()
def orphans(
    context: typer.Context,
    ledger_scope_id: ScopeId = None,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Lists ledgers that bookies hold and the metadata do not know, asking every bookie's HTTP admin.

    They were deleted and not collected yet, or the metadata store was put back to a state before them: nobody but you
    can tell. `bookgate ledger adopt` makes metadata for those that are to stay. Exit code 1 when a bookie could not be
    asked. One scope is looked at, 0 unless --ledger-scope-id names another.

    JSON: {"orphans": [{"ledger_id", "bookies": [ids]}], "largest_held": id, -1 for none, "not_asked": {bookie: why}}.

    \b
    Example: bookgate ledger orphans --gateways grpc://gw-1:4181
    """
    config = client_config(context, gateways)
    scope_id, secret = parse_scope(ledger_scope_id), read_token(token, token_file)

    async def work(factory: LedgerManagerFactory) -> tuple[HeldLedgers, dict[int, list[str]]]:
        held = await held_ledgers(factory, config.bookie_tls_ca or config.tls_ca, scope_id, secret)
        return held, await unknown_to_metadata(factory, held)

    held, unknown = with_metadata(context, gateways, work)
    if as_json:
        rows = [{"ledger_id": number, "bookies": bookies} for number, bookies in unknown.items()]
        print_json({"orphans": rows, "largest_held": held.largest, "not_asked": held.not_asked})
    else:
        table = Table("ledger", "held by")
        for number, bookies in unknown.items():
            table.add_row(str(number), ", ".join(bookies))
        print_table(table)
        for bookie_id, why in held.not_asked.items():
            print_note(f"not asked: {bookie_id}: {why}")
    if held.not_asked:
        raise typer.Exit(1)


@adopt_app.command("largest-held")
def largest_held(
    context: typer.Context,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Prints the largest ledger id that any bookie holds, -1 for none; fails when one could not be asked.

    For `bookgate cluster advance-ids --beyond ID`, after metadata were restored from a backup.

    JSON: {"largest_held"}.

    \b
    Example: bookgate ledger largest-held --gateways grpc://gw-1:4181
    """
    config = client_config(context, gateways)
    secret = read_token(token, token_file)
    authorities = config.bookie_tls_ca or config.tls_ca
    held = with_metadata(context, gateways, lambda factory: held_ledgers(factory, authorities, token=secret))
    _require_all(held)
    if as_json:
        print_json({"largest_held": held.largest})
    else:
        print(held.largest)


@adopt_app.command()
@names_ledger
def adopt(
    context: typer.Context,
    ledger_id: LedgerName,
    password: Password = "",
    despite: Annotated[
        bool, typer.Option("--despite-missing", help="Also when a bookie can't be asked: what only it has is lost.")
    ] = False,
    yes: Yes = False,
    token: Token = None,
    token_file: TokenFile = None,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Makes metadata for a ledger that bookies hold and the metadata do not know, and closes it at its end.

    The ledger is fenced and recovered from all bookies that hold it, which must be up. The password must be the
    ledger's; custom metadata, creation time and quorums are not known any more. Don't adopt what was deleted.

    JSON: the ledger, as `bookgate ledger show` has it.

    \b
    Example: bookgate ledger adopt 7
    """
    config, secret = client_config(context, gateways), read_token(token, token_file)

    async def find(factory: LedgerManagerFactory) -> list[str]:
        held = await held_ledgers(factory, config.bookie_tls_ca or config.tls_ca, ledger_id.scope_id, secret)
        if not despite:
            _require_all(held)
        return held.holders.get(ledger_id.low, [])

    holders = with_metadata(context, gateways, find)
    if not holders:
        fail(f"no bookie holds ledger {ledger_id}")
    confirm(f"Make metadata for ledger {ledger_id}, which {', '.join(holders)} hold", yes)

    async def work(client: BookKeeper) -> dict[str, object]:
        return describe(await adopt_ledger(client, ledger_id, holders, password.encode()))

    print_result(with_client(context, gateways, work), as_json)


def _require_all(held: HeldLedgers) -> None:
    """Raises CommandFailed when a bookie could not be asked."""
    for bookie_id, why in held.not_asked.items():
        fail(f"bookie {bookie_id} does not tell what it holds: {why}")
