"""`bookgate cookie`: the cookies in the metadata store, which tie a bookie's id to its directories and its cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookgate.bookie.commands.local_options import Config, Settings, own_bookie_id, read_settings, with_own_metadata
from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException
from bookgate.ledger.bookie_info import check_bookie_id
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, Versioned
from bookgate.ledger.replication_control import require_unregistered
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, Yes, confirm, fail, print_json, print_result, print_table
from bookgate.runtime.command_line.tables import Table
from bookgate.runtime.replaced_files import replace_file
from bookgate.thinclient.commands.client_options import BookieId, Gateways, with_metadata

app = new_group("Cookies in the metadata store: what ties a bookie to its directories and its cluster.")

CookieFile = Annotated[Path, typer.Argument(metavar="FILE", help="The cookie, as `generate` or a VERSION file has it.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file, byte for byte.")]
_COOKIE_MODE = 0o644


@app.command("list")
def list_cookies(context: typer.Context, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Lists all bookies that have a cookie, with what it says.

    JSON: a list of {"bookie_id", "version", "instance_id", "journal_directories", "ledger_directories",
    "index_directories", "error"}.

    \b
    Example: bookgate cookie list --json
    """

    async def work(factory: LedgerManagerFactory) -> list[dict[str, object]]:
        known = [bookie.bookie_id for bookie in await factory.service_discovery.bookies(BookieSet.ALL)]
        found = [(name, await factory.registration_manager.read_cookie(name)) for name in known]
        return [_described_or_damaged(name, cookie) for name, cookie in found if cookie is not None]

    rows = with_metadata(context, gateways, work)
    if as_json:
        print_json(rows)
        return
    columns = ("bookie_id", "version", "instance_id", "journal_directories", "ledger_directories", "error")
    table = Table("bookie", "version", "cluster", "journals", "ledgers", "wrong")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    print_table(table)


@app.command()
def get(
    context: typer.Context, bookie: BookieId, output: Output = None, gateways: Gateways = None, as_json: AsJson = False
) -> None:
    """Shows a bookie's cookie; with --output it is saved as it is, for `create` or `update`.

    JSON: {"bookie_id", "version", "instance_id", "journal_directories", "ledger_directories", "index_directories"}.

    \b
    Example: bookgate cookie get bookie-1 --output bookie-1.cookie
    """
    stored = with_metadata(context, gateways, lambda factory: _stored(factory, bookie))
    if output is not None:
        replace_file(output, stored.value, _COOKIE_MODE)
    print_result(_described(Cookie.decode(stored.value), stored.version), as_json)


@app.command()
def create(
    context: typer.Context, bookie: BookieId, file: CookieFile, gateways: Gateways = None, as_json: AsJson = False
) -> None:
    """Creates a cookie for a bookie that has none, so that directories with the same cookie are taken for its.

    JSON: the cookie, as `bookgate cookie get` has it.

    \b
    Example: bookgate cookie create bookie-1 bookie-1.cookie
    """
    content = _read(file, bookie)

    async def work(factory: LedgerManagerFactory) -> None:
        try:
            await factory.registration_manager.write_cookie(bookie, content, None)
        except MetadataVersionException:
            fail(f"bookie {bookie} has a cookie already; `bookgate cookie update` replaces it")

    with_metadata(context, gateways, work)
    print_result(_described(Cookie.decode(content), 0), as_json)


@app.command()
def update(
    context: typer.Context,
    bookie: BookieId,
    file: CookieFile,
    yes: Yes = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Replaces a bookie's cookie. With one that its directories don't match the bookie refuses to start.

    JSON: the cookie, as `bookgate cookie get` has it.

    \b
    Example: bookgate cookie update bookie-1 bookie-1.cookie
    """
    content = _read(file, bookie)
    confirm(f"Replace the cookie of bookie {bookie}", yes)

    async def work(factory: LedgerManagerFactory) -> int:
        stored = await _stored(factory, bookie)
        await factory.registration_manager.write_cookie(bookie, content, stored.version)
        return stored.version + 1

    print_result(_described(Cookie.decode(content), with_metadata(context, gateways, work)), as_json)


@app.command()
def delete(
    context: typer.Context, bookie: BookieId, yes: Yes = False, gateways: Gateways = None, as_json: AsJson = False
) -> None:
    """Deletes a bookie's cookie: for one that is gone for good. Its directories, if any are left, are then refused.

    JSON: {"bookie_id", "deleted": true}.

    \b
    Example: bookgate cookie delete bookie-1
    """

    async def work(factory: LedgerManagerFactory) -> None:
        stored = await _stored(factory, bookie)
        await require_unregistered(factory, bookie, "its cookie goes")
        confirm(f"Delete the cookie of bookie {bookie}", yes)
        # It may have been started while the question stood.
        await require_unregistered(factory, bookie, "its cookie goes")
        await factory.registration_manager.remove_cookie(bookie, stored.version)

    with_metadata(context, gateways, work)
    print_result({"bookie_id": bookie, "deleted": True}, as_json)


@app.command()
def generate(
    output: Output = None,
    instance_id: Annotated[
        str | None, typer.Option(help="The cluster's instance id; default: that of the metadata store.")
    ] = None,
    config: Config = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Makes the cookie that a bookie with these settings should have. Nothing is stored.

    JSON: the cookie, as `bookgate cookie get` has it.

    \b
    Example: bookgate cookie generate --config bookie.toml --output bookie-1.cookie
    """
    chosen = read_settings(config, settings)
    cluster = instance_id or with_own_metadata(
        chosen, lambda factory: factory.registration_manager.cluster_instance_id()
    )
    cookie = Cookie.build(own_bookie_id(chosen), chosen.journals, chosen.ledgers, cluster, chosen.indexes)
    if output is not None:
        replace_file(output, cookie.encode(), _COOKIE_MODE)
    print_result(_described(cookie, None), as_json)


def _cell(value: object) -> str:
    return "" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


async def _stored(factory: LedgerManagerFactory, bookie: str) -> Versioned[bytes]:
    stored = await factory.registration_manager.read_cookie(check_bookie_id(bookie))
    return stored if stored is not None else fail(f"bookie {bookie} has no cookie; `bookgate cookie list` shows all")


def _read(file: Path, bookie: str) -> bytes:
    """Raises InvalidCookieException for what is no cookie, or another bookie's."""
    content = file.read_bytes()
    named = Cookie.decode(content).bookie_id
    if named != check_bookie_id(bookie):
        raise InvalidCookieException(f"{file} is the cookie of bookie {named}, not of {bookie}")
    return content


def _described(cookie: Cookie, version: int | None) -> dict[str, object]:
    index = cookie.index_directories
    return {
        "bookie_id": cookie.bookie_id,
        "version": version,
        "instance_id": cookie.instance_id,
        "journal_directories": cookie.journal_directories.split(","),
        "ledger_directories": cookie.ledger_directories.split("\t")[1:],
        "index_directories": index.split("\t")[1:] if index else None,
    }


def _described_or_damaged(bookie: str, stored: Versioned[bytes]) -> dict[str, object]:
    try:
        return {**_described(Cookie.decode(stored.value), stored.version), "bookie_id": bookie, "error": None}
    except InvalidCookieException as error:
        names = ("instance_id", "journal_directories", "ledger_directories", "index_directories")
        return {"bookie_id": bookie, "version": stored.version, **dict.fromkeys(names), "error": str(error)}
