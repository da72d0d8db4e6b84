"""What the commands over HTTP admin share: which bookie, and the token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookgate.runtime.command_line.output import fail
from bookgate.thinclient.commands.client_options import client_config, complete_bookie, with_metadata
from bookgate.thinclient.tools.admin_client import AdminHttp, admin_url, read_token

BookieName = Annotated[
    str | None,
    typer.Argument(
        metavar="BOOKIE",
        help="The bookie's id; or use --http.",
        show_default=False,
        autocompletion=complete_bookie,
    ),
]
HttpAddress = Annotated[
    str | None,
    typer.Option("--http", metavar="[https://]HOST:PORT", help="Its HTTP admin, where no gateway is to be asked."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="BOOKGATE_HTTP_TOKEN",
        help="Token of the HTTP admin. An argument is shown by ps.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="BOOKGATE_HTTP_TOKEN_FILE",
        help="File with that token; - is the first line of standard input.",
    ),
]


def admin_of(
    context: typer.Context,
    gateways: str | None,
    bookie: str | None,
    http: str | None,
    token: str | None = None,
    token_file: Path | None = None,
) -> AdminHttp:
    """The HTTP admin that the options name. Raises BKException, CommandFailed."""
    if (bookie is None) == (http is None):
        fail("name one bookie: its id (and --gateways), or the address of its HTTP admin with --http host:8080")
    secret = read_token(token, token_file)
    config = client_config(context, gateways)
    # Whom the client trusts for the entry port, whose certificate HTTP shares.
    authorities = config.bookie_tls_ca or config.tls_ca
    if http is not None:
        return AdminHttp((http if "://" in http else f"http://{http}").rstrip("/"), secret, authorities)
    named = bookie or ""
    url = with_metadata(context, gateways, lambda factory: admin_url(factory.service_discovery, named))
    return AdminHttp(url, secret, authorities)
