"""The thin client at a gateway with security: where its token comes from, what it makes of refusals and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.ledger.errors import (
    IncorrectParameterException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    TooManyRequestsException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerRecord
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.tokens import TokenSource
from bookgate.thinclient.handles.context import secrets_of
from tests.access_policy import look_at_files
from tests.integration.bookie.in_process import until
from tests.integration.gateway.conftest import Recorder
from tests.integration.gateway.guarded import POLICY, Guarded, guarded_gateway

pytestmark = pytest.mark.asyncio

METADATA = LedgerMetadata.new(["b-1"], 1, 1, password=b"planted-password")
SLOW = """
[[limits]]
principals = ["token:team-a"]
calls_per_second = 5
creates_per_second = 4
subscriptions = 2
[[limits]]
principals = ["token:team-b"]
ledgers = 2
[[limits]]
principals = ["token:reader"]
metadata_bytes_per_second = 2000
"""


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_gateway(tmp_path, POLICY + SLOW) as guarded:
        yield guarded


def uri(gateway: Guarded) -> str:
    return f"grpc://127.0.0.1:{gateway.port}"


def client(gateway: Guarded, tokens: TokenSource | str, timeout: float = 10) -> RpcLedgerManagerFactory:
    source = TokenSource(gateway.token(tokens)) if isinstance(tokens, str) else tokens
    return RpcLedgerManagerFactory(uri(gateway), timeout, tokens=source)


async def test_a_watch_that_the_policy_denies_fails_and_one_beyond_a_limit_waits_for_room(
    gateway: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """`subscriptions = 2`."""
    manager = gateway.factory.ledger_manager
    ids = [
        (await manager.create(None, _owned_by(owner))).ledger_id for owner in ("team-a", "team-a", "team-a", "team-b")
    ]
    async with await BookKeeper.connect(uri(gateway), ClientConfig(token=gateway.token("team-a"))) as client:
        async with asyncio.timeout(30):
            with pytest.raises(UnauthorizedAccessException):
                await anext(client.watch_ledger(ids[3]))
        watches = [client.watch_ledger(each) for each in ids[:3]]
        for watch in watches[:2]:
            await anext(watch)
        third = asyncio.ensure_future(anext(watches[2]))
        await until(lambda: "watch_refused" in caplog.text)
        await watches[0].aclose()
        assert (await third).version == 0


async def test_a_second_listener_needs_no_room_at_the_limit(gateway: Guarded) -> None:
    """`subscriptions = 2`: its client asks again for a ledger that it has subscribed to already."""
    manager, heard = gateway.factory.ledger_manager, asyncio.Queue[int]()
    ids = [(await manager.create(None, _owned_by("team-a"))).ledger_id for _ in range(2)]

    def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        assert record is not None
        heard.put_nowait(record.version)

    factory = client(gateway, "team-a")
    await factory.initialize()
    try:
        async with asyncio.timeout(30):
            for each in ids:
                await factory.ledger_manager.register_listener(each, lambda *told: listener(*told))
                assert await heard.get() == 0
            await factory.ledger_manager.register_listener(ids[0], lambda *told: listener(*told))
            assert await heard.get() == 0
            await manager.write(ids[0], _owned_by("team-a"), 0)
            assert [await heard.get() for _ in range(2)] == [1, 1]
    finally:
        await factory.close()


def _owned_by(name: str) -> LedgerMetadata:
    return LedgerMetadata.new(["b-1"], 1, 1, custom_metadata={OWNER_KEY: f"token:{name}".encode()})


async def test_a_token_comes_from_a_setting_the_environment_a_file_or_a_callable(
    gateway: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(gateway.token("reader") + "\n")
    with monkeypatch.context() as environment:
        environment.setenv("BOOKGATE_TOKEN", gateway.token("reader"))
        of_environment = ClientConfig()
    for config in (ClientConfig(token=gateway.token("reader")), of_environment, ClientConfig(token_file=file)):
        async with await BookKeeper.connect(uri(gateway), config) as bookkeeper:
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
                await bookkeeper.open_ledger(5)
    async with await BookKeeper.connect(uri(gateway), token_provider=lambda: gateway.token("reader")):
        pass
    for wrong in (None, ClientConfig(token="nonsense")):
        with pytest.raises(UnauthorizedAccessException, match="UNAUTHENTICATED"):
            await BookKeeper.connect(uri(gateway), wrong)


async def test_a_file_that_was_swapped_is_read_again_at_a_refusal(gateway: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(gateway.token("team-a"))
    factory = client(gateway, TokenSource(file=file))
    await factory.initialize()
    try:
        # Within the second in which the file is not looked at: only the refusal makes the client look.
        for name in ("team-b", "admin"):
            old = gateway.token_file.read_text().splitlines()
            gateway.token_file.write_text("\n".join(line for line in old if line.startswith((name, "admin"))))
            look_at_files(gateway.access)
            file.write_text(gateway.token(name))
            record = await factory.ledger_manager.create(None, METADATA)
            assert record.metadata.custom_metadata[OWNER_KEY] == f"token:{name}".encode()
        file.write_text("nonsense")
        gateway.token_file.write_text("")
        look_at_files(gateway.access)
        with pytest.raises(UnauthorizedAccessException):
            await factory.ledger_manager.create(None, METADATA)
    finally:
        await factory.close()


async def test_no_token_leaves_this_machine_in_clear() -> None:
    with pytest.raises(IncorrectParameterException, match="TLS"):
        RpcLedgerManagerFactory("grpc://127.0.0.1:4181,gateway.example:4181", tokens=TokenSource("t"))
    factory = RpcLedgerManagerFactory("grpc://127.0.0.1:4181", tokens=TokenSource("t"))
    await factory.gateways.learn(["10.0.0.9:4181", "127.0.0.1:4182"])
    assert sorted(factory.gateways.addresses) == ["127.0.0.1:4181", "127.0.0.1:4182"]
    await factory.close()
    assert "t" not in repr(TokenSource("t")).replace("TokenSource", "")


async def test_a_withheld_password_is_checked_and_stays(gateway: Guarded) -> None:
    writer, recoverer = client(gateway, "team-b"), client(gateway, "recoverer")
    await writer.initialize()
    try:
        made = await writer.ledger_manager.create(None, METADATA)
        seen = await recoverer.ledger_manager.read(made.ledger_id)
        assert seen.metadata.password == b""
        assert seen.metadata.password_check is not None
        secrets_of(seen, b"planted-password", ClientConfig())
        for wrong in (b"", b"another"):
            with pytest.raises(UnauthorizedAccessException):
                secrets_of(seen, wrong, ClientConfig())
        recovering = await recoverer.ledger_manager.write(made.ledger_id, seen.metadata.begin_recovery(), 0)
        assert recovering.metadata.password_check is not None
        closed = await recoverer.ledger_manager.write(made.ledger_id, recovering.metadata.close(-1, 0), 1)
        assert closed.metadata.is_closed
        stored = await gateway.factory.ledger_manager.read(made.ledger_id)
        assert stored.metadata.password == b"planted-password"
        with pytest.raises(MetadataVersionException):
            await recoverer.ledger_manager.write(made.ledger_id, recovering.metadata.close(-1, 0), 1)
    finally:
        await writer.close()
        await recoverer.close()


async def test_batches_and_watches_of_what_is_anothers(gateway: Guarded) -> None:
    mine, theirs = client(gateway, "team-b"), client(gateway, "admin")
    try:
        made = [await factory.ledger_manager.create(None, METADATA) for factory in (mine, theirs)]
        first, second = await mine.ledger_manager.read_many([each.ledger_id for each in made])
        assert first == made[0]
        assert isinstance(second, UnauthorizedAccessException)
        told = Recorder()
        await mine.ledger_manager.register_listener(made[1].ledger_id, told)
        await mine.ledger_manager.register_listener(made[0].ledger_id, told)
        await told.until_version(0)
        assert [record.ledger_id for record in told.told] == [made[0].ledger_id]
        assert [i async for run in mine.ledger_manager.ledger_ranges() for i in run] == [made[0].ledger_id.low]
    finally:
        await mine.close()
        await theirs.close()


async def test_a_limit_is_waited_for(gateway: Guarded) -> None:
    factory = client(gateway, "team-a", timeout=30)
    try:
        began = time.monotonic()
        records = await asyncio.gather(*(factory.ledger_manager.create(None, METADATA) for _ in range(12)))
        assert len({record.ledger_id for record in records}) == 12
        # One second's worth at once, the others at four a second.
        assert time.monotonic() - began > (12 - 4) / 4 - 0.1
        assert gateway.access.counts["grpc", "token", "limited"] > 0
    finally:
        await factory.close()


async def test_a_limit_that_can_not_be_waited_for_is_told(gateway: Guarded) -> None:
    factory = client(gateway, "team-a", timeout=0.3)
    try:
        with pytest.raises((TooManyRequestsException, MetaStoreException)) as caught:
            await asyncio.gather(*(factory.ledger_manager.create(None, METADATA) for _ in range(12)))
        assert isinstance(caught.value, TooManyRequestsException)
        assert "RESOURCE_EXHAUSTED" in str(caught.value)
    finally:
        await factory.close()


async def test_a_quota_is_told_at_once_and_deleting_makes_room(gateway: Guarded) -> None:
    factory = client(gateway, "team-b", timeout=30)
    try:
        made = await factory.ledger_manager.create(None, METADATA)
        await factory.ledger_manager.create_many([CreateRequest(None, METADATA)])
        began = time.monotonic()
        with pytest.raises(TooManyRequestsException, match="token:team-b has 2 ledgers, and its quota is 2"):
            await factory.ledger_manager.create(None, METADATA)
        (outcome,) = await factory.ledger_manager.create_many([CreateRequest(None, METADATA)])
        assert isinstance(outcome, TooManyRequestsException)
        assert time.monotonic() - began < 15, "nothing is waited for"
        assert await factory.ledger_manager.read(made.ledger_id) == made
        await factory.ledger_manager.remove(made.ledger_id)
        await factory.ledger_manager.create(None, METADATA)
        told = [(row["action"], row["rule"]) for row in gateway.audit() if row["outcome"] == "quota"]
        assert told == [("ledger.create", "token:team-b has 2 ledgers, and its quota is 2")] * 2
    finally:
        await factory.close()


async def test_metadata_are_paid_for_whatever_call_sends_them(gateway: Guarded) -> None:
    big = LedgerMetadata.new(["b-1"], 1, 1, custom_metadata={"what": bytes(1500)})
    made = await gateway.factory.ledger_manager.create(None, big)
    asked: list[Callable[[RpcLedgerManagerFactory], Awaitable[object]]] = [
        lambda factory: factory.ledger_manager.read(made.ledger_id),
        lambda factory: factory.ledger_manager.read_many([made.ledger_id]),
    ]
    for ask in asked:
        factory = client(gateway, "reader", timeout=30)
        try:
            began = time.monotonic()
            for _ in range(4):
                await ask(factory)
            # 6 kB, of which the first second's worth goes at once and the last is waited for by the next only.
            assert time.monotonic() - began > 1
        finally:
            await factory.close()
    assert gateway.access.counts["grpc", "token", "limited"] > 0


async def test_a_batch_over_the_rate_creates_nothing(gateway: Guarded) -> None:
    factory = client(gateway, "team-a", timeout=0.3)
    try:
        await factory.ledger_manager.create_many([CreateRequest(None, METADATA)] * 4)
        outcomes = await factory.ledger_manager.create_many(
            [CreateRequest(LedgerId.unscoped(n), METADATA) for n in range(900, 904)]
        )
        assert {type(each) for each in outcomes} == {TooManyRequestsException}
        assert max([i async for run in gateway.factory.ledger_manager.ledger_ranges() for i in run]) < 900
    finally:
        await factory.close()
