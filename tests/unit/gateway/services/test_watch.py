"""Store listeners follow the hub, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookgate.gateway.services.caller import Caller, set_caller
from bookgate.gateway.services.freshness import RevisionBarrier
from bookgate.gateway.services.watch import WatchService
from bookgate.gateway.services.watch_answers import WatchResponse
from bookgate.ledger.errors import (
    IncorrectParameterException,
    MetadataFormatException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    WatchAction,
    WatchEvent,
)
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal

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

    async def revision(self) -> int:
        return 1


class Client:
    """A client's stream: asks, and takes what it is sent only when the test does."""

    def __init__(self, service: WatchService, context: Any = None) -> None:
        self._asked: asyncio.Queue[LedgerMetadataRequest] = asyncio.Queue()
        self._handled = asyncio.Semaphore(0)
        self._responses: Any = service.serve(self._requests(), context)
        self._next: asyncio.Future[WatchResponse] | None = None
        self.begin_to_take()

    async def _requests(self) -> AsyncIterator[LedgerMetadataRequest]:
        while True:
            yield await self._asked.get()
            self._handled.release()

    async def ask(self, **fields: Any) -> None:
        """Subscribes to ledger 1, or asks something else of it; returns once the service has dealt with the request."""
        self.ask_soon(ledger_id=1, **fields)
        await self._handled.acquire()

    def ask_soon(self, **fields: Any) -> None:
        self._asked.put_nowait(LedgerMetadataRequest(**fields))

    def begin_to_take(self) -> None:
        """Is sent the next response, as soon as there is one."""
        self._next = asyncio.ensure_future(anext(self._responses))

    async def take(self) -> LedgerMetadataResponse:
        """The next response; a further one is not taken until `begin_to_take`."""
        assert self._next is not None
        response = await self._next
        self._next = None
        return LedgerMetadataResponse.FromString(response) if isinstance(response, bytes) else response

    async def end(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._responses.aclose()


@asynccontextmanager
async def clients(service: WatchService, count: int, context: Any = None) -> AsyncIterator[list[Client]]:
    streams = [Client(service, context) for _ in range(count)]
    try:
        yield streams
    finally:
        for each in streams:
            await each.end()


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
    async with clients(service, 1) as (client,):
        await client.ask()
        factory.ledger_manager.listener(LEDGER, None)
        assert (await client.take()).event == WatchEvent.REMOVED
        await client.ask(watch_action=WatchAction.UNSUBSCRIBE)
    assert factory.ledger_manager.calls == ["register"]


async def test_ledger_that_the_store_can_not_hold_is_refused_each_time(service: WatchService, factory: Factory) -> None:
    factory.ledger_manager.refuses = True
    async with clients(service, 1) as (client,):
        for _ in range(2):
            await client.ask()
            assert (await client.take()).code == StatusCode.BAD_REQUEST
            client.begin_to_take()
        assert service.hub.ledger_count == 0


class _CaughtUp(RevisionBarrier):
    """As the barrier is once the gateway has caught up."""

    async def wait_for(self, revision: int) -> None:
        return


async def test_a_state_that_could_not_be_read_anew_answers_nobody_who_has_seen_a_later_one(factory: Any) -> None:
    """The gateway had caught up with the store, and the read of this one ledger had failed."""
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    older, newer = (LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), version) for version in (1, 2))
    async with clients(service, 3) as (first, second, third):
        await first.ask()
        manager.listener(LEDGER, older)
        manager.listener.was_read(MetaStoreException("connection lost"), False)
        await second.ask(min_revision=9)
        # It is gone, and the stream with its other subscriptions goes on.
        assert (await second.take()).code == StatusCode.LEDGER_NOT_FOUND
        second.begin_to_take()
        manager.stored = newer
        await second.ask(min_revision=9)
        assert (await second.take()).version == 2
        # Once it was read the listener knows the newest, and nobody else has to read.
        manager.listener.was_read(None, True)
        await third.ask(min_revision=9)
        assert manager.calls.count("read") == 2
        assert (await third.take()).version == 2


def _state(version: int, incarnation: int) -> LedgerRecord:
    return LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), version, incarnation=incarnation)


async def test_a_stream_that_ends_while_it_is_told_a_removal_leaves_no_listener(factory: Any) -> None:
    """Another ledger has the id of the one that the client has seen, so the store keeps the listener."""
    manager, service = factory.ledger_manager, WatchService(factory)
    async with clients(service, 1) as (client,):
        await client.ask(expected_version=5, incarnation=10)
        manager.listener(LEDGER, _state(0, 20))
        assert (await client.take()).event == WatchEvent.REMOVED
    assert manager.calls == ["register", "unregister"]
    assert not service._listening


async def test_a_stream_that_is_cancelled_before_it_is_told_a_removal_leaves_no_listener(factory: Any) -> None:
    manager, service = factory.ledger_manager, WatchService(factory)
    async with clients(service, 1) as (client,):
        await client.ask(expected_version=5, incarnation=10)
        async with service._follow_lock:  # another ledger's listener is being added
            manager.listener(LEDGER, _state(0, 20))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not service.hub.has_answers(next(iter(service._streams)))
            await client.end()
        async with service._follow_lock:
            assert manager.calls == ["register", "unregister"]


@pytest.mark.parametrize("version", [0, 7])
async def test_a_ledger_made_anew_while_its_state_is_in_doubt_is_no_change_of_the_former_one(
    factory: Any, version: int
) -> None:
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    async with clients(service, 2) as (early, late):
        await early.ask()
        former = manager.listener
        former(LEDGER, _state(5, 10))
        assert (await early.take()).version == 5
        early.begin_to_take()
        former.was_read(MetaStoreException("connection lost"), False)
        manager.stored = _state(version, 20)
        await late.ask(min_revision=9)
        assert (await early.take()).event == WatchEvent.REMOVED
        told = await late.take()
        assert (told.event, told.version, told.incarnation) == (WatchEvent.STATE, version, 20)
        # The former ledger's listener tells its end, which is not that of the new one.
        late.begin_to_take()
        former(LEDGER, None)
        assert manager.calls == ["register", "read", "unregister", "register"]
        manager.listener(LEDGER, _state(version + 1, 20))
        assert (await late.take()).version == version + 1
        assert service.hub.subscription_count == 1


async def test_a_state_read_before_a_ledger_was_made_anew_tells_nobody_of_the_former_one(
    factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def read(ledger_id: LedgerId) -> LedgerRecord:
        reading.set()
        await go_on.wait()
        return _state(6, 10)

    monkeypatch.setattr(manager, "read", read)
    async with clients(service, 3) as (early, slow, late):
        await early.ask()
        manager.listener(LEDGER, _state(5, 10))
        assert (await early.take()).version == 5
        manager.listener.was_read(MetaStoreException("connection lost"), False)
        asking = asyncio.ensure_future(slow.ask(min_revision=9))
        await reading.wait()
        # Meanwhile the listener comes to know, and somebody asks for the new ledger, of which nothing is known yet.
        manager.listener(LEDGER, None)
        await late.ask(min_revision=9)
        go_on.set()
        await asking
        manager.listener(LEDGER, _state(0, 20))
        for each in (slow, late):
            told = await each.take()
            assert (told.version, told.incarnation) == (0, 20)


async def test_each_response_tells_how_many_requests_came_before_its_state(factory: Any) -> None:
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    async with clients(service, 1) as (client,):
        await client.ask()
        manager.listener(LEDGER, LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), 1))
        assert (await client.take()).requests_handled == 1
        await client.ask(watch_action=WatchAction.UNSUBSCRIBE)
        client.begin_to_take()
        await client.ask()
        manager.listener(LEDGER, None)
        removal = await client.take()
        assert (removal.event, removal.requests_handled) == (WatchEvent.REMOVED, 3)
        manager.refuses = True
        client.begin_to_take()
        await client.ask()
        refusal = await client.take()
        assert (refusal.code, refusal.requests_handled) == (StatusCode.BAD_REQUEST, 4)


async def test_a_state_that_waits_for_its_client_is_of_the_requests_before_it(factory: Any) -> None:
    """The gateway still catches up with what the next request demands: that one will be answered itself."""
    catches_up = asyncio.Event()

    class CatchesUp(RevisionBarrier):
        async def wait_for(self, revision: int) -> None:
            await catches_up.wait()

    manager, service = factory.ledger_manager, WatchService(factory, freshness=CatchesUp(factory))
    async with clients(service, 1) as (client,):
        await client.ask()
        asking = asyncio.ensure_future(client.ask(min_revision=9))
        await asyncio.sleep(0)
        manager.listener(LEDGER, None)
        assert (await client.take()).requests_handled == 1
        client.begin_to_take()
        catches_up.set()
        await asking
        manager.listener(LEDGER, LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), 1))
        assert (await client.take()).requests_handled == 2


async def test_a_denial_that_waits_for_its_client_ends_no_later_subscription(factory: Any) -> None:
    own = parse_policy('[[bindings]]\nprincipals = ["token:a"]\nrole = "reader"\nowned = true\n')
    control = AccessControl(Authenticators(), own)
    set_caller(Caller(control, Principal(Kind.TOKEN, "a"), "peer"))
    of_another = LedgerMetadata.new(["b1"], 1, 1, custom_metadata={OWNER_KEY: b"token:b"})
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))
    async with clients(service, 1) as (client,):
        await client.ask()
        manager.listener(LEDGER, LedgerRecord(LEDGER, of_another, 3))
        assert (await client.take()).code == StatusCode.PERMISSION_DENIED
        # It takes nothing more, and the policy lets everybody read now.
        control._policy = parse_policy('[[bindings]]\nprincipals = ["token:a"]\nrole = "reader"\n')
        await client.ask(watch_action=WatchAction.UNSUBSCRIBE)
        await client.ask()
        client.begin_to_take()
        manager.listener(LEDGER, LedgerRecord(LEDGER, of_another, 4))
        async with asyncio.timeout(10):
            response = await client.take()
        assert (response.code, response.version) == (StatusCode.SUCCESS, 4)
    assert service.hub.subscription_count == 0


async def test_a_damaged_ledger_in_doubt_is_told_as_such(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, service = factory.ledger_manager, WatchService(factory, freshness=_CaughtUp(factory))

    async def damaged(ledger_id: LedgerId) -> LedgerRecord:
        raise MetadataFormatException("no metadata")

    async with clients(service, 1) as (client,):
        await client.ask()
        manager.listener(LEDGER, LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), 1))
        assert (await client.take()).version == 1
        manager.listener.was_read(MetaStoreException("connection lost"), False)
        monkeypatch.setattr(manager, "read", damaged)
        client.begin_to_take()
        await client.ask(min_revision=9)
        assert (await client.take()).code == StatusCode.LEDGER_METADATA_ERROR


async def test_lag_is_that_of_the_stream_that_takes_nothing(
    service: WatchService, factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    async with clients(service, 2) as (slow, quick):
        for client in (slow, quick):
            await client.ask()
        factory.ledger_manager.listener(LEDGER, LedgerRecord(LEDGER, LedgerMetadata.new(["b1"], 1, 1), 1))
        for client in (slow, quick):
            await client.take()
            client.begin_to_take()
        await asyncio.sleep(0)
        assert service.lag_seconds() == 0
        factory.ledger_manager.listener(LEDGER, None)
        for client in (slow, quick):
            assert (await client.take()).event == WatchEvent.REMOVED
        monkeypatch.setattr(loop, "time", lambda: now + 60)
        lags = []
        for client in (quick, slow):
            client.begin_to_take()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            lags.append(service.lag_seconds())
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
    # The wait's own task has its result before whoever waits for it goes on.
    service.store_lost()
    await asyncio.sleep(0)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert service.stream_count == 0


class _Abort:
    """A call's context, whose abort raises as gRPC's does."""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        raise ConnectionAbortedError(details)


async def test_a_stream_whose_requests_failed_ends_however_much_it_has_to_tell(factory: Any) -> None:
    """It once went on for as long as its ledgers changed faster than its client took the changes."""

    class Fails(RevisionBarrier):
        async def wait_for(self, revision: int) -> None:
            raise MetaStoreException("the store did not answer")

    manager, service = factory.ledger_manager, WatchService(factory, freshness=Fails(factory))
    metadata = LedgerMetadata.new(["b1"], 1, 1)

    async def take_all(client: Client) -> int:
        for version in range(2, 2000):
            # The ledger changes whenever the client takes a response.
            manager.listener(LEDGER, LedgerRecord(LEDGER, metadata, version))
            if client._next is None:
                client.begin_to_take()
            await client.take()
        return version

    async with clients(service, 1, _Abort()) as (client,):
        await client.ask()
        manager.listener(LEDGER, LedgerRecord(LEDGER, metadata, 1))
        await client.take()
        client.ask_soon(ledger_id=2, min_revision=5)
        with pytest.raises(ConnectionAbortedError, match="the store did not answer"):
            await take_all(client)
    assert service.hub.subscription_count == 0
