"""A process that fights for a stream: it opens a writer again and again, and appends numbered records of its own.

Arguments: gateways, stream, producer, log. For each record that is acknowledged it writes a line to the log before it
goes on: the number, and the position or `-` for a record that was there already. It ends by SIGKILL only.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TextIO

from bookgate import BKException, BookKeeper, ClientConfig
from bookgate.streams import Stream, Streams

IMPATIENT = ClientConfig(
    add_timeout_seconds=2.0,
    read_timeout_seconds=2.0,
    metadata_timeout_seconds=5.0,
    failed_bookie_interval_seconds=0.5,
    connect_fails_fast=False,
)
RUN = 25
"""Records that are appended together; one of them is a duplicate of the run before."""


async def fight(gateways: str, name: str, producer: str, log: Path) -> None:
    """Until it is killed."""
    with log.open("a") as acknowledged:
        while True:
            try:
                async with BookKeeper.connect(gateways, IMPATIENT) as client:
                    await _again_and_again(client, name, producer, acknowledged)
            except (BKException, TimeoutError):
                await asyncio.sleep(0.05)


async def _again_and_again(client: BookKeeper, name: str, producer: str, acknowledged: TextIO) -> None:
    while True:
        try:
            stream = await Streams(client).open(name)
            await _one_term(stream, producer, acknowledged)
        except (BKException, TimeoutError):
            # Bookies may be away, and somebody else is always about to take over.
            await asyncio.sleep(0.05)


async def _one_term(stream: Stream, producer: str, acknowledged: TextIO) -> None:
    async with stream.writer(batch_bytes=256, linger_seconds=0.001) as writer:
        while True:
            last = writer.last_sequence(producer)
            first = 0 if last is None else last
            numbers = range(first, first + RUN)
            appends = [
                writer.append(f"{producer} {number}".encode(), producer=producer, sequence=number) for number in numbers
            ]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            for number, outcome in zip(numbers, outcomes, strict=True):
                if not isinstance(outcome, BaseException):
                    where = "-" if outcome is None else f"{outcome.entry_id}:{outcome.number}"
                    print(number, where, file=acknowledged, flush=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome


if __name__ == "__main__":
    asyncio.run(fight(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
