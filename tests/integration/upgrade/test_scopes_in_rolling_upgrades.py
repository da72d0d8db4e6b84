"""Clusters that have ledgers with a scope while some of their bookies do not know scopes.

Such a bookie is one of this version that does not announce the feature: what clients do goes by that alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookgate import BookKeeper
from bookgate.bookie.membership import registration
from bookgate.bookie.server import BookieServer
from bookgate.ledger.errors import BKException, NotEnoughBookiesException
from bookgate.ledger.ledger_id import LedgerId
from tests.integration.bookie.in_process import running_bookie

PAYLOADS = [b"entry %d" % number for number in range(30)]


class Bookies:
    """Bookies over one store, each started as of this version or of one without scopes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._running: dict[str, AsyncExitStack] = {}
        self._servers: dict[str, BookieServer] = {}

    async def start(self, name: str, *, knows_scopes: bool) -> None:
        """Starts a bookie, or stops it and starts it again as another version."""
        await self.stop(name)
        stack = self._running[name] = AsyncExitStack()
        uri = f"sqlite://{self._root}/metadata.db"
        with pytest.MonkeyPatch.context() as patch:
            if not knows_scopes:
                patch.setattr(registration, "LEDGER_SCOPE", "")
            bookie = running_bookie(self._root / name, bookie_id=name, metadata_uri=uri)
            self._servers[name] = await stack.enter_async_context(bookie)

    def gateway(self, name: str) -> str:
        """The URI of the bookie's gateway."""
        return f"grpc://{self._servers[name].addresses['gateway']}"

    async def stop(self, name: str) -> None:
        if (stack := self._running.pop(name, None)) is not None:
            await stack.aclose()

    async def stop_all(self) -> None:
        for name in list(self._running):
            await self.stop(name)


@asynccontextmanager
async def cluster(root: Path) -> AsyncIterator[tuple[Bookies, BookKeeper]]:
    """Bookies `one` and `two` know scopes, `old` does not. The client asks the gateway of `two`."""
    bookies = Bookies(root)
    try:
        await bookies.start("one", knows_scopes=True)
        await bookies.start("old", knows_scopes=False)
        await bookies.start("two", knows_scopes=True)
        async with await BookKeeper.connect(bookies.gateway("two")) as client:
            yield bookies, client
    finally:
        await bookies.stop_all()


async def write(client: BookKeeper, size: int, **options: Any) -> LedgerId:
    async with await client.create_ledger(size, size, 2, **options) as ledger:
        await ledger.append_all(PAYLOADS)
    return ledger.ledger_id


async def read(client: BookKeeper, ledger_id: LedgerId) -> list[bytes]:
    async with await client.open_ledger(ledger_id) as reader:
        return [bytes(entry.payload) async for entry in reader.read(0, reader.last_add_confirmed)]


@pytest.mark.asyncio
async def test_bookies_are_upgraded_and_taken_back_one_by_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (bookies, client):
        unscoped, scoped = await write(client, 3), await write(client, 2, scope_id=5)
        with pytest.raises(NotEnoughBookiesException, match=r"do not understand .* Upgrade"):
            await write(client, 3, scope_id=5)
        assert (await client.read_record(scoped)).metadata.bookies == {"one", "two"}

        await bookies.start("old", knows_scopes=True)
        wide = await write(client, 3, scope_id=5)
        assert (await client.read_record(wide)).metadata.bookies == {"one", "two", "old"}
        for ledger_id in (unscoped, scoped, wide):
            assert await read(client, ledger_id) == PAYLOADS

        # Taken back: its copies of what has a scope are not asked for.
        await bookies.start("one", knows_scopes=False)
        for ledger_id in (unscoped, scoped, wide):
            assert await read(client, ledger_id) == PAYLOADS
        await bookies.stop("old")
        await bookies.start("two", knows_scopes=False)
        async with await BookKeeper.connect(bookies.gateway("two")) as another:
            assert await read(another, unscoped) == PAYLOADS
            with pytest.raises(BKException, match="does not understand ledgers with a scope"):
                await read(another, scoped)
