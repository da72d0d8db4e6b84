"""What the commands share: options, running a coroutine with a client, printing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from thinclient.client import BookKeeper
from thinclient.config import load_config
from thinclient.gateway_uri import TlsFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What stands before the command: the configuration file and the TLS files."""

    file: Path | None = None
    tls: TlsFiles = field(default=TlsFiles())


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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Password = Annotated[
    str,
    typer.Option("--password", envvar="BOOKGATE_LEDGER_PASSWORD", help="The ledger's password.", show_default=False),
]
LedgerNumber = Annotated[int, typer.Argument(metavar="ID", min=0, help="The ledger's id.", show_default=False)]


def fail(message: str) -> NoReturn:
    """Ends the command with one line on standard error and exit code 1."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(1)


def with_client(context: typer.Context, gateways: str | None, work: Callable[[BookKeeper], Awaitable[T]]) -> T:
    """Connects, does `work`, disconnects. Raises what either raises."""
    options = context.obj if isinstance(context.obj, ClientOptions) else ClientOptions()
    tls = options.tls
    config = load_config(options.file, gateways=gateways, tls_ca=tls.ca, tls_cert=tls.cert, tls_key=tls.key)

    async def run() -> T:
        async with await BookKeeper.connect(config=config) as bookkeeper:
            return await work(bookkeeper)

    return run_async(run())


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


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


def print_json(value: object) -> None:
    """One JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False))


def print_table(table: object) -> None:
    """A rich table, as wide as it needs to be when nobody looks at it."""
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def end_quietly() -> NoReturn:
    """Whoever read our output has gone: not an error of ours, and nothing more can be printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
