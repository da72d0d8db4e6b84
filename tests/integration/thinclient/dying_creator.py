"""A process that is killed while it creates a stream: after the ledger, and before the record that names it.

Arguments: gateways, stream.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from bookgate import BookKeeper, LedgerOptions
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import STREAM_KEY
from bookgate.streams import Streams


async def die(gateways: str, name: str) -> None:
    async with BookKeeper.connect(gateways) as client:
        manager = client.ledger_manager
        create = manager.create

        async def created(ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
            if STREAM_KEY in metadata.custom_metadata:
                os.kill(os.getpid(), signal.SIGKILL)
            return await create(ledger_id, metadata)

        manager.create = created  # type: ignore[method-assign]
        await Streams(client).create(name, LedgerOptions(1, 1, 1))


if __name__ == "__main__":
    asyncio.run(die(sys.argv[1], sys.argv[2]))
