"""Store listeners follow the hub, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bookgate.gateway.services.freshness import RevisionBarrier
from bookgate.gateway.services.watch import WatchService, _Stream
from bookgate.gateway.services.watch_answers import DamagedLedger
from bookgate.ledger.errors import (
    IncorrectParameterException,
    MetadataFormatException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    WatchEvent,
)

LEDGER = LedgerId.unscoped(1)

pytestmark = pytest.mark.asyncio


class Manager:
    """Counts listeners."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuses = False
        self.listener: Any = None
        self.stored: LedgerRecord | None = None

    async def register_listener(self, ledger_id: LedgerId, listener: Any) -> None:
        if self.refuses:
            raise IncorrectParameterException("no place for this id")
        self.calls.append("register")
        self.listener = listener

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        self.calls.append("read")
        if self.stored is None:
            raise NoSuchLedgerExistsOnMetadataServerException("none")
        return self.stored

    async def unregister_listener(self, ledger_id: LedgerId, listener: Any) -> None:
        self.calls.append("unregister")


class Factory:
    def __init__(self) -> None:
        self.ledger_manager = Manager()


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def service(factory: Any) -> WatchService:
    service = WatchService(factory)
    for stream in ("a", "b"):
        service.hub.open_stream(stream)
    return service


async def test_second_subscriber_needs_no_listener_of_its_own(service: WatchService, factory: Factory) -> None:
    for stream in ("a", "b"):
        service.hub.subscribe(stream, LEDGER, None)
        await service.follow(LEDGER)
    service.hub.close_stream("a")
    await service.follow(LEDGER)
    assert factory.ledger_manager.calls == ["register"]
    service.hub.close_stream("b")
    await service.follow(LEDGER)
    assert factory.ledger_manager.calls == ["register", "unregister"]


async def test_break_that_nobody_followed_still_asks_for_the_state_again(
    service: WatchService, factory: Factory
) -> None:
    service.hub.subscribe("a", LEDGER, None)
    await service.follow(LEDGER)
    service.hub.close_stream("a")
    service.hub.subscribe("b", LEDGER, None)
    await service.follow(LEDGER)
    await service.follow(LEDGER)
    assert factory.ledger_manager.calls == ["register", "unregister", "register"]


async def test_removed_ledger_has_no_listener_to_take_away(service: WatchService, factory: Factory) -> None:
    stream = _Stream()
    service.hub.open_stream(stream)
    service.hub.subscribe(stream, LEDGER, None)
    await service.follow(LEDGER)
    service._on_state(LEDGER, None)
    assert stream.wake.is_set()
    await service.follow(LEDGER)
    assert factory.ledger_manager.calls == ["register"]


async def test_ledger_that_the_store_can_not_hold_is_refused_each_time(service: WatchService, factory: Factory) -> None:
    stream = _Stream()
    service.hub.open_stream(stream)
    factory.ledger_manager.refuses = True
    for _ in range(2):
        await service._handle(stream, LedgerMetadataRequest(ledger_id=1))
    assert [response.code for response in stream.direct] == [StatusCode.BAD_REQUEST] * 2
    assert service.hub.ledger_count == 0


class _CaughtUp(RevisionBarrier):
    """As the barrier is once the gateway has caught up."""

    async def wait_for(self, revision: int) -> None:
        return


async def test_a_state_that_could_not_be_read_anew_answers_nobody_who_has_seen_a_later_one(factory: Any) -> None:
    """The gateway had caught up with the store, and the read of this one ledger had failed."""
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    first, second, third = _Stream(), _Stream(), _Stream()
    for stream in (first, second, third):
        service.hub.open_stream(stream)
    older, newer = (LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), version) for version in (1, 2))
    again = LedgerMetadataRequest(ledger_id=1, min_revision=9)
    await service._handle(first, LedgerMetadataRequest(ledger_id=1))
    manager.listener(LEDGER, older)
    manager.listener.was_read(MetaStoreException("connection lost"), False)
    await service._handle(second, again)
    # It is gone, and the stream with its other subscriptions goes on.
    assert [response.code for response in second.direct] == [StatusCode.LEDGER_NOT_FOUND]
    assert not service.hub.has_answers(second)
    manager.stored = newer
    await service._handle(second, again)
    answer = service.hub.take(second)
    assert answer is not None
    assert answer.record is not None
    assert answer.record.version == 2
    # Once it was read the listener knows the newest, and nobody else has to read.
    manager.listener.was_read(None, True)
    await service._handle(third, again)
    assert manager.calls.count("read") == 2
    assert service.hub.has_answers(third)


async def test_a_damaged_ledger_in_doubt_is_told_as_such(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    stream = _Stream()
    service.hub.open_stream(stream)
    await service._handle(stream, LedgerMetadataRequest(ledger_id=1))
    manager.listener(LEDGER, LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), 1))
    manager.listener.was_read(MetaStoreException("connection lost"), False)

    async def damaged(ledger_id: LedgerId) -> LedgerRecord:
        raise MetadataFormatException("no metadata")

    monkeypatch.setattr(manager, "read", damaged)
    await service._handle(stream, LedgerMetadataRequest(ledger_id=1, min_revision=9))
    answer = service.hub.take(stream)
    assert answer is not None
    assert isinstance(answer.record, DamagedLedger)


async def test_lag_is_that_of_the_stream_that_takes_nothing(
    service: WatchService, factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def revision() -> int:
        return 1

    factory.revision = revision  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    now = loop.time()
    slow, quick = _Stream(), _Stream()
    for stream in (slow, quick):
        service.hub.open_stream(stream)
        service._streams[stream] = None
        service.hub.subscribe(stream, LEDGER, None)
    assert service.lag_seconds() == 0
    service._on_state(LEDGER, None)
    monkeypatch.setattr(loop, "time", lambda: now + 60)
    assert service.lag_seconds() >= 59
    lags = []
    for stream in (quick, slow):
        responses = service._responses(stream)
        removed = await anext(responses)
        assert isinstance(removed, LedgerMetadataResponse)
        assert removed.event == WatchEvent.REMOVED
        waiting = asyncio.ensure_future(anext(responses))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        lags.append(service.lag_seconds())
        waiting.cancel()
    assert lags[0] >= 59
    assert lags[1] == 0


async def test_a_stream_that_is_cancelled_in_the_moment_of_news_ends(service: WatchService) -> None:
    """It once went on for ever, and its subscriptions with it: the wait had lost the cancellation."""

    async def requests() -> AsyncIterator[LedgerMetadataRequest]:
        await asyncio.Event().wait()
        yield LedgerMetadataRequest()

    async def follow() -> None:
        async for _ in service.serve(requests(), None):  # type: ignore[arg-type]
            pass

    stream = asyncio.ensure_future(follow())
    for _ in range(5):
        await asyncio.sleep(0)
    assert service.stream_count == 1
    (waiting,) = service._streams
    # The wait's own task has its result before whoever waits for it goes on.
    waiting.wake.set()
    await asyncio.sleep(0)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert service.stream_count == 0
