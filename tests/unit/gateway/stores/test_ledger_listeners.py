from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bookgate.gateway.stores.ledger_listeners import IncarnatedRecord, LedgerListeners
from bookgate.ledger.errors import MetaStoreException, ZKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.cooperative_yield import giving_way

LEDGER = LedgerId.unscoped(1)
METADATA = LedgerMetadata.new(["b1"], 1, 1)


class Store:
    """Answers reads when it is let to."""

    def __init__(self) -> None:
        self.state: tuple[int, int] | None = (0, 1)
        self.failures = 0
        self.error: Exception = MetaStoreException("away")
        self.reads = 0
        self.running = 0
        self.most_running = 0
        self.open = asyncio.Event()
        self.open.set()
        self.released: list[LedgerId] = []
        self.release_seen = asyncio.Event()

    def release(self, ledger_id: LedgerId) -> None:
        self.released.append(ledger_id)
        self.release_seen.set()

    async def read(self, ledger_id: LedgerId) -> IncarnatedRecord | None:
        self.reads += 1
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await self.open.wait()
        # Gives others the chance to run at the same time.
        await asyncio.sleep(0)
        self.running -= 1
        if self.failures:
            self.failures -= 1
            raise self.error
        if self.state is None:
            return None
        version, incarnation = self.state
        return IncarnatedRecord(LedgerRecord(ledger_id, METADATA, version), incarnation)


class Listener:
    def __init__(self) -> None:
        self.told: list[int | None] = []
        self.called = asyncio.Event()

    def __call__(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        self.told.append(record.version if record else None)
        self.called.set()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest_asyncio.fixture
async def listeners(store: Store) -> AsyncIterator[LedgerListeners]:
    listeners = LedgerListeners(store.read, store.release, parallel_reads=3, retry_delay_seconds=0)
    yield listeners
    await listeners.close()


@pytest.mark.asyncio
async def test_newcomer_is_told_the_present_state_and_others_nothing_again(
    store: Store, listeners: LedgerListeners
) -> None:
    first, second = Listener(), Listener()
    listeners.add(LEDGER, first)
    await listeners.settled()
    listeners.add(LEDGER, second)
    await listeners.settled()
    assert (first.told, second.told) == ([0], [0])


@pytest.mark.asyncio
async def test_changes_during_a_read_cause_one_more_read(store: Store, listeners: LedgerListeners) -> None:
    listener = Listener()
    store.open.clear()
    listeners.add(LEDGER, listener)
    await asyncio.sleep(0)
    for version in (1, 2, 3):
        store.state = (version, 1)
        listeners.changed(LEDGER)
    store.open.set()
    await listeners.settled()
    assert store.reads == 2
    assert listener.told == [3]


@pytest.mark.asyncio
async def test_who_waited_first_goes_on_first(store: Store, listeners: LedgerListeners) -> None:
    order: list[int] = []

    async def wait(number: int) -> None:
        await listeners.settled()
        order.append(number)

    store.open.clear()
    listeners.add(LEDGER, Listener())
    waiting = [asyncio.create_task(wait(number)) for number in range(50)]
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(*waiting)
    assert order == list(range(50))


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [MetaStoreException("away"), ValueError("nobody foresaw it")])
async def test_failed_read_is_tried_again(store: Store, listeners: LedgerListeners, error: Exception) -> None:
    listener = Listener()
    store.failures, store.error = 3, error
    listeners.add(LEDGER, listener)
    await asyncio.wait_for(listener.called.wait(), 30)
    assert listener.told == [0]
    assert store.reads == 4


@pytest.mark.asyncio
async def test_ledger_that_can_never_be_read_keeps_nobody_waiting(store: Store, listeners: LedgerListeners) -> None:
    broken, sound = LedgerId.unscoped(2), Listener()

    async def read(ledger_id: LedgerId) -> IncarnatedRecord | None:
        if ledger_id == broken:
            raise ZKException("not authorised")
        return await store.read(ledger_id)

    some = LedgerListeners(read, retry_delay_seconds=0)
    some.add(broken, Listener())
    some.add(LEDGER, sound)
    await asyncio.wait_for(some.settled(), 30)
    assert sound.told == [0]
    await some.close()


@pytest.mark.asyncio
async def test_gone_is_told_once_then_silence(store: Store, listeners: LedgerListeners) -> None:
    listener = Listener()
    listeners.add(LEDGER, listener)
    await listeners.settled()
    store.state = None
    listeners.changed(LEDGER)
    await listeners.settled()
    listeners.changed(LEDGER)
    await listeners.settled()
    assert listener.told == [0, None]
    assert len(listeners) == 0
    assert store.released == [LEDGER]


@pytest.mark.asyncio
async def test_ledger_made_anew_under_the_same_id_is_another(store: Store, listeners: LedgerListeners) -> None:
    listener = Listener()
    store.state = (5, 1)
    listeners.add(LEDGER, listener)
    await listeners.settled()
    store.state = (9, 2)
    listeners.changed(LEDGER)
    await listeners.settled()
    assert listener.told == [5, None]


@pytest.mark.asyncio
async def test_ledger_made_anew_is_no_removal_for_who_has_heard_nothing_of_the_former_one(
    store: Store, listeners: LedgerListeners
) -> None:
    former, new = Listener(), Listener()
    store.state = (5, 1)
    listeners.add(LEDGER, former)
    await listeners.settled()
    store.state = (0, 2)
    listeners.add(LEDGER, new)
    await listeners.settled()
    store.state = (1, 2)
    listeners.changed(LEDGER)
    await listeners.settled()
    assert (former.told, new.told) == ([5, None], [0, 1])
    assert store.released == []


@pytest.mark.asyncio
async def test_last_listener_releases_the_watch_also_during_a_read(store: Store, listeners: LedgerListeners) -> None:
    first, second = Listener(), Listener()
    listeners.add(LEDGER, first)
    listeners.add(LEDGER, second)
    await listeners.settled()
    listeners.remove(LEDGER, first)
    assert store.released == []
    store.open.clear()
    listeners.changed(LEDGER)
    await asyncio.sleep(0)
    listeners.remove(LEDGER, second)
    store.open.set()
    await store.release_seen.wait()
    assert store.released == [LEDGER]
    assert second.told == [0]


@pytest.mark.asyncio
async def test_reading_everything_again_is_bounded_in_parallel(store: Store, listeners: LedgerListeners) -> None:
    listener = Listener()
    for number in range(50):
        listeners.add(LedgerId.unscoped(number), listener)
    await listeners.settled()
    store.most_running = 0
    listeners.all_changed()
    await listeners.settled()
    assert store.most_running == 3


@pytest.mark.asyncio
async def test_all_are_read_that_lost_their_watch_again_while_others_were_still_to_be_read() -> None:
    connection, ledgers = 0, [LedgerId.unscoped(number) for number in range(200)]
    versions, watched_in = dict.fromkeys(ledgers, 0), dict.fromkeys(ledgers, -1)

    async def read(ledger_id: LedgerId) -> IncarnatedRecord:
        """Sets a watch that ends with the connection, as in ZooKeeper."""
        watched_in[ledger_id] = connection
        return IncarnatedRecord(LedgerRecord(ledger_id, METADATA, versions[ledger_id]), 1)

    listeners, first = LedgerListeners(read), Listener()
    for ledger_id in ledgers:
        listeners.add(ledger_id, first if ledger_id == ledgers[0] else Listener())
    await listeners.settled()

    connection = 1
    listeners.all_changed()
    await asyncio.sleep(0)  # the first slice
    async with giving_way():  # then the next slice waits
        while watched_in[ledgers[0]] != 1 or listeners._busy:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        assert watched_in[ledgers[-1]] == 0, "its turn has not come"
        connection, versions[ledgers[0]] = 2, 7
        listeners.all_changed()
    await listeners.settled()
    assert set(watched_in.values()) == {2}
    assert first.told == [0, 7]
    await listeners.close()


@pytest.mark.asyncio
async def test_ledgers_that_wait_to_be_read_have_no_tasks(store: Store, listeners: LedgerListeners) -> None:
    """A task each, of hundreds of thousands of ledgers, would keep the collection of garbage busy for seconds."""
    listener, before = Listener(), len(asyncio.all_tasks())
    store.open.clear()
    for number in range(500):
        listeners.add(LedgerId.unscoped(number), listener)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) - before <= 3
    store.open.set()
    await listeners.settled()
    assert len(listener.told) == 500
    # The readers have left; others come for what is due now.
    listeners.add(LedgerId.unscoped(500), listener)
    await listeners.settled()
    assert len(listener.told) == 501


@pytest.mark.asyncio
async def test_listener_that_fails_does_not_silence_the_others(store: Store, listeners: LedgerListeners) -> None:
    def broken(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        raise ValueError("broken listener")

    listener = Listener()
    listeners.add(LEDGER, broken)
    listeners.add(LEDGER, listener)
    await listeners.settled()
    assert listener.told == [0]
