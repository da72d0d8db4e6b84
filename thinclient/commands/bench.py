"""`bookgate bench`: how fast this cluster writes and reads, from here."""

from __future__ import annotations

import asyncio
import enum
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from bookgate.ledger.metadata import DigestType
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import INTERRUPTED, AsJson, laid_out, print_result, progress
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import (
    AckQuorumSize,
    Gateways,
    Password,
    WriteQuorumSize,
    with_client,
)
from bookgate.thinclient.commands.ledger import Digests
from bookgate.thinclient.commands.ledger_naming import LedgerName, ledger_fields, names_ledger
from bookgate.thinclient.handles.ledger_options import ledger_options
from bookgate.thinclient.tools.load import LoadResult, random_load, sequential_load, write_load

bench_app = new_group("Measures writing and reading: rates and latencies.")


class Order(enum.StrEnum):
    """In which order entries are read."""

    SEQUENTIAL = "sequential"
    RANDOM = "random"


@bench_app.command("write")
def bench_write(
    context: typer.Context,
    size: Annotated[int, typer.Option(min=0, help="Payload bytes of an entry.")] = 1024,
    entries: Annotated[int | None, typer.Option(min=1, help="So many entries; else as long as --seconds says.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long, without --entries.")] = 10.0,
    outstanding: Annotated[int, typer.Option(min=1, help="Appends under way at a time.")] = 1000,
    ensemble_size: Annotated[int, typer.Option(min=1, help="Bookies that the ledger is spread over.")] = 3,
    write_quorum_size: WriteQuorumSize = None,
    ack_quorum_size: AckQuorumSize = None,
    digest: Annotated[Digests, typer.Option(help="Digest of the entries.")] = Digests.CRC32C,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the ledger and print its id.")] = False,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Writes to a ledger of its own, closes it, and deletes it unless told to keep it.

    Ctrl-C ends it early and tells what was measured so far; a second Ctrl-C ends it at once.

    JSON: {"interrupted" (if it was), "ledger_id" (with --keep), "payload_bytes", "outstanding", "quorums", "entries",
    "bytes", "seconds", "entries_per_second", "megabytes_per_second", and latencies in milliseconds}.

    \b
    Example: bookgate bench write --size 1024 --seconds 10 --keep
    """
    options = ledger_options(
        ensemble_size, write_quorum_size, ack_quorum_size, DigestType[digest.name], password.encode()
    )
    quorums = options.ensemble_size, options.write_quorum_size, options.ack_quorum_size

    async def work(bookkeeper: BookKeeper) -> tuple[int, LoadResult]:
        handle = await bookkeeper.create_ledger(options=options)
        try:
            async with handle:
                with progress("writing", entries, "entries") as done, interruption.heard():
                    if keep:
                        print(f"ledger {handle.ledger_id}", file=sys.stderr, flush=True)
                    result = await write_load(
                        handle,
                        b"b" * size,
                        outstanding=outstanding,
                        entries=entries,
                        seconds=None if entries else seconds,
                        progress=done,
                        stop=interruption.is_set,
                    )
        finally:
            if not keep:
                await bookkeeper.delete_ledger(handle.ledger_id)
        return handle.ledger_id.low, result

    interruption = _Interruption()
    ledger_id, result = with_client(context, gateways, work)
    facts: dict[str, Any] = {"ledger_id": ledger_id} if keep else {}
    facts |= {"payload_bytes": size, "outstanding": outstanding, "quorums": "/".join(map(str, quorums))}
    _print(facts | result.summary(), as_json, interruption)


@bench_app.command("read")
@names_ledger
def bench_read(
    context: typer.Context,
    ledger_id: LedgerName,
    order: Annotated[Order, typer.Option(help="From the first entry on, or at random places.")] = Order.SEQUENTIAL,
    entries: Annotated[int | None, typer.Option(min=1, help="So many; default: all (random: 10,000).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Entries a read.")] = 1000,
    outstanding: Annotated[int, typer.Option(min=1, help="Random reads under way at a time.")] = 10,
    password: Password = "",
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Reads a ledger, for one that `bench write --keep` has left. Latencies are those of a read of --batch entries.

    JSON: {"ledger_id", "order", "batch", and what `bookgate bench write` has}.

    \b
    Example: bookgate bench read 7 --order random
    """

    async def work(bookkeeper: BookKeeper) -> LoadResult:
        async with await bookkeeper.open_ledger(ledger_id, password.encode()) as handle:
            wanted = entries or (10_000 if order is Order.RANDOM else handle.last_add_confirmed + 1)
            stop = interruption.is_set
            with progress("reading", wanted, "entries") as done, interruption.heard():
                if order is Order.SEQUENTIAL:
                    return await sequential_load(handle, batch=batch, entries=entries, progress=done, stop=stop)
                return await random_load(
                    handle, outstanding=outstanding, entries=wanted, width=batch, progress=done, stop=stop
                )

    interruption = _Interruption()
    result = with_client(context, gateways, work)
    _print({**ledger_fields(ledger_id), "order": order.value, "batch": batch} | result.summary(), as_json, interruption)


class _Interruption:
    """Ctrl-C ends the load and not the command; a second one is the ordinary Ctrl-C again."""

    def __init__(self) -> None:
        self._came = False

    def is_set(self) -> bool:
        return self._came

    @contextmanager
    def heard(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGINT)

        def on_interrupt() -> None:
            self._came = True
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, before)

        loop.add_signal_handler(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            if not self._came:
                loop.remove_signal_handler(signal.SIGINT)
                signal.signal(signal.SIGINT, before)


def _print(facts: dict[str, Any], as_json: bool, interruption: _Interruption) -> None:
    if interruption.is_set():
        facts = {"interrupted": True, **facts}
    if as_json or not laid_out():
        print_result(facts, as_json)
    else:
        shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in facts.items()}
        print_result({k: f"{v:,.1f}" if isinstance(v, float) else v for k, v in shown.items()}, False)
    if interruption.is_set():
        raise typer.Exit(INTERRUPTED)
