"""What the commands of a client share: options, and running a coroutine with a client."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Annotated, TypeVar

import typer

from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.runtime.command_line.groups import time_limit
from bookgate.runtime.event_loop import run_async
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.global_options import ClientOptions
from bookgate.thinclient.config import ClientConfig, load_config
from bookgate.thinclient.metadata_source import metadata_factory

T = TypeVar("T")
_COMPLETION_SECONDS = 2.0
"""Whoever presses Tab waits for it."""

Gateways = Annotated[
    str | None,
    typer.Option(
        "--gateways",
        "-g",
        "--metadata-uri",
        envvar="BOOKGATE_GATEWAYS",
        help="Metadata gateways: grpc://host:port,host:port; or a metadata store itself: zk+hierarchical://….",
    ),
]
Password = Annotated[
    str,
    typer.Option(
        "--password",
        envvar="BOOKGATE_LEDGER_PASSWORD",
        help="The ledger's password. An argument is shown by ps.",
        show_default=False,
    ),
]
WriteQuorumSize = Annotated[
    int | None, typer.Option(min=1, help="Bookies that get each entry. Default: 3, or all of a smaller ensemble.")
]
AckQuorumSize = Annotated[
    int | None,
    typer.Option(min=1, help="Bookies that must have stored an entry. Default: 2, or 1 for a write quorum of 1."),
]


def complete_bookie(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of bookies for the shell's completion; none where no gateway tells them in time."""

    async def registered(factory: LedgerManagerFactory) -> list[str]:
        async with asyncio.timeout(_COMPLETION_SECONDS):
            return [each.bookie_id for each in await factory.service_discovery.bookies(BookieSet.ALL)]

    try:
        found = with_metadata(context, context.params.get("gateways"), registered)
    except (BKException, TimeoutError):
        return []
    return sorted(each for each in found if each.startswith(incomplete))


BookieId = Annotated[
    str,
    typer.Argument(metavar="BOOKIE", help="The bookie's id.", show_default=False, autocompletion=complete_bookie),
]
LedgerNumber = Annotated[int, typer.Argument(metavar="ID", min=0, help="The ledger's id.", show_default=False)]


def client_config(context: typer.Context, gateways: str | None) -> ClientConfig:
    """The settings of a command's client. Raises IncorrectParameterException."""
    options = context.obj if isinstance(context.obj, ClientOptions) else ClientOptions()
    tls = options.tls
    limit = time_limit(context)
    return load_config(
        options.file,
        gateways=gateways,
        tls_ca=tls.ca,
        tls_cert=tls.cert,
        tls_key=tls.key,
        metadata_timeout_seconds=limit,
        connect_timeout_seconds=limit,
    )


def with_client(context: typer.Context, gateways: str | None, work: Callable[[BookKeeper], Awaitable[T]]) -> T:
    """Connects, does `work`, disconnects. Raises what either raises."""
    config = client_config(context, gateways)

    async def run() -> T:
        async with await BookKeeper.connect(config=config) as bookkeeper:
            return await work(bookkeeper)

    return run_async(run())


def with_metadata(
    context: typer.Context, gateways: str | None, work: Callable[[LedgerManagerFactory], Awaitable[T]]
) -> T:
    """The same for what needs the metadata alone, cookies included."""
    config = client_config(context, gateways)

    async def run() -> T:
        factory = metadata_factory(None, config)
        try:
            await factory.initialize()
            return await work(factory)
        finally:
            await factory.close()

    return run_async(run())


def with_pool(
    context: typer.Context,
    gateways: str | None,
    work: Callable[[BookiePool, Sequence[RegisteredBookie]], Awaitable[T]],
) -> T:
    """The same for requests to single bookies: their connections, and the known bookies."""
    # Only protocol v3 can ask a bookie about itself, whatever the client speaks otherwise.
    config = client_config(context, gateways).model_copy(update={"wire_protocol": "v3"})

    async def with_factory(factory: LedgerManagerFactory) -> T:
        discovery = factory.service_discovery
        found = await discovery.bookies(BookieSet.ALL)
        pool = BookiePool.of(config, discovery, tcp_connector, random.SystemRandom())
        try:
            return await work(pool, found)
        finally:
            await pool.close_and_wait()

    return with_metadata(context, gateways, with_factory)


async def in_daemon_thread(call: Callable[..., T], *arguments: object) -> T:
    """Runs a call that may block for ever: neither cancelling nor the command's end waits for it."""
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
