"""When a worker reads anew what holds for all ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from bookgate.bookie.replication.repairs.circumstances import KnownCircumstances
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata

pytestmark = pytest.mark.usefixtures("virtual_time")


class Store:
    """Draining bookies and a delay; each reading takes a tenth of a second."""

    def __init__(self) -> None:
        self.draining: set[str] = set()
        self.readings = 0

    async def records(self, kind: RecordKind) -> Mapping[str, Versioned[bytes]]:
        if kind is not RecordKind.DRAINING_BOOKIE:
            return {}
        self.readings += 1
        found = {bookie_id: Versioned(b"", 0) for bookie_id in self.draining}
        await asyncio.sleep(0.1)
        return found

    async def lost_bookie_delay(self) -> int | None:
        return 60


def known_of(store: Store) -> KnownCircumstances:
    return KnownCircumstances(cast("ReplicationMetadata", store))


async def test_repairs_that_begin_together_share_a_reading() -> None:
    store = Store()
    known = known_of(store)
    found = await asyncio.gather(*(known.now() for _ in range(20)))
    assert store.readings == 1
    assert {each.delay_ms for each in found} == {60_000}
    await asyncio.sleep(1.5)
    await known.now()
    assert store.readings == 2


async def test_what_was_forgotten_is_read_again() -> None:
    store = Store()
    known = known_of(store)
    assert (await known.now()).draining == set()
    store.draining.add("b1")
    known.forget()
    assert (await known.now()).draining == {"b1"}


async def test_a_reading_under_way_does_not_count_after_a_change() -> None:
    store = Store()
    known = known_of(store)
    reading = asyncio.ensure_future(known.now())
    await asyncio.sleep(0.05)
    store.draining.add("b1")
    known.forget()
    assert (await reading).draining == {"b1"}
    assert (await known.now()).draining == {"b1"}
