"""What is repeated, how often and with which pauses: the policy's effects in virtual time, and the docs' table."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from itertools import islice, pairwise
from pathlib import Path

import grpc
import pytest
from grpc import ChannelConnectivity
from grpc.aio import AioRpcError
from grpc.aio import Metadata as GrpcMetadata

from bookgate import ClientConfig, LedgerOptions
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetadataVersionException,
    MetaStoreException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.gateway_headers import INSTANCE
from bookgate.thinclient.bookies import reconnect_backoff
from bookgate.thinclient.config import load_config
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.pinned_create import Metadata, create_pinned
from bookgate.thinclient.gateways.retry_policy import RetryPolicy, doubling
from bookgate.thinclient.handles.metadata_cas import begin_recovery, update
from bookgate.thinclient.metadata_source import metadata_factory
from bookgate.thinclient.spark.options.read_options import DEFAULT_NUM_RETRIES
from tests.unit.thinclient.fake_gateway import METADATA, SEVEN
from tests.unit.thinclient.fakes import InMemoryLedgerManager, fake_cluster, ledger_of

pytestmark = pytest.mark.usefixtures("virtual_time")

CLIENT_GUIDE = Path(__file__).parents[4] / "docs" / "client.md"
POLICY = RetryPolicy(
    metadata_first_pause_seconds=1,
    metadata_longest_pause_seconds=4,
    metadata_connect_seconds=8,
    metadata_connect_patience_seconds=3,
    metadata_hedge_seconds=7,
    metadata_first_ask_last_seconds=2,
    metadata_longest_ask_last_seconds=5,
    metadata_change_attempts=4,
    pinned_create_repeats=2,
    metadata_conflict_attempts=6,
    metadata_unknown_outcomes=2,
    ensemble_change_first_pause_seconds=0.5,
    ensemble_change_longest_pause_seconds=1.5,
)


class NoShorter(random.Random):
    """Pauses are not cut, so that they can be told."""

    def uniform(self, a: float, b: float) -> float:
        return b


class FakeChannel:
    """A gRPC channel that is in one state for ever."""

    def __init__(self, state: ChannelConnectivity) -> None:
        self._state = state

    def get_state(self, try_to_connect: bool = False) -> ChannelConnectivity:
        return self._state

    async def wait_for_state_change(self, state: ChannelConnectivity) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def gateways_of(
    count: int,
    timeout: float = 30,
    retries: RetryPolicy = POLICY,
    state: ChannelConnectivity = ChannelConnectivity.READY,
) -> GatewayChannel:
    uri = "grpc://" + ",".join(f"127.0.0.{n}:4181" for n in range(1, count + 1))
    return GatewayChannel(uri, timeout, NoShorter(1), connector=lambda *_: FakeChannel(state), retries=retries)  # type: ignore[arg-type]


def lost(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, instance: str = "") -> AioRpcError:
    trailing = GrpcMetadata((INSTANCE, instance)) if instance else GrpcMetadata()
    return AioRpcError(code, GrpcMetadata(), trailing, "the connection broke")


class Sent:
    """Calls that were sent: when, and to whom; each fails."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.to: list[str] = []

    async def __call__(self, gateway: Gateway, seconds: float) -> LedgerRecord:
        self.note(gateway)
        raise lost()

    async def named(self, gateway: Gateway, seconds: float, metadata: Metadata) -> None:
        self.note(gateway)
        raise lost(instance="that one")

    def note(self, gateway: Gateway) -> None:
        self.at.append(asyncio.get_running_loop().time())
        self.to.append(gateway.address)


def gaps(times: Sequence[float]) -> list[float]:
    return [round(later - earlier, 3) for earlier, later in pairwise(times)]


async def test_after_each_round_of_gateways_that_failed_the_pause_doubles() -> None:
    sent = Sent()
    with pytest.raises(MetaStoreException, match="within 30 s"):
        await gateways_of(2).call("ask", sent)
    assert gaps(sent.at)[:11] == [0, 1, 0, 2, 0, 4, 0, 4, 0, 4, 0]
    assert list(islice(doubling(1, 5), 5)) == [1, 2, 4, 5, 5]


async def test_a_read_without_answer_is_sent_to_a_second_gateway_after_a_while() -> None:
    started: list[float] = []

    async def slow(gateway: Gateway, seconds: float) -> str:
        started.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10)
        return gateway.address

    gateways = gateways_of(3, timeout=60)
    for gateway in gateways.in_order():
        assert await gateway.connect(1)  # only one with a connection is asked as well
    assert await gateways.call("ask", slow)
    assert gaps(started) == [7]


async def test_a_connection_is_waited_for_longer_at_the_last_gateway() -> None:
    gateways = gateways_of(2, timeout=11, state=ChannelConnectivity.CONNECTING)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(MetaStoreException, match="no connection"):
        await gateways.call("ask", Sent())
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3 + 8)


async def test_a_gateway_that_failed_is_asked_last_for_longer_each_time() -> None:
    (gateway,) = gateways_of(1).in_order()
    pauses = []
    for _ in range(4):
        gateway.failed(100, "slow")
        pauses.append(next(seconds for seconds in range(20) if gateway.healthy(100 + seconds)))
    assert pauses == [2, 4, 5, 5]


async def test_a_change_is_sent_so_often_while_its_answer_is_lost() -> None:
    sent = Sent()
    with pytest.raises(UnknownOutcomeException):
        await gateways_of(2).change_repeatedly("change", sent)
    assert len(sent.at) == 4


async def test_a_creation_without_an_id_is_asked_again_of_the_one_process() -> None:
    sent = Sent()
    with pytest.raises(UnknownOutcomeException):
        await create_pinned(gateways_of(2), "create", sent.named)
    assert len(sent.at) == 1 + 2
    assert len(set(sent.to)) == 1


class Writes(InMemoryLedgerManager):
    """A store at which each write goes as `write_once` has it."""

    def __init__(self, write_once: Callable[[], Awaitable[LedgerRecord]]) -> None:
        super().__init__()
        self.tries = 0
        self._write_once = write_once

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        return LedgerRecord(ledger_id, METADATA, self.tries)

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        self.tries += 1
        return await self._write_once()


async def tries_of(error: type[BKException], retries: RetryPolicy) -> int:
    async def fails() -> LedgerRecord:
        raise error("somebody was faster")

    store = Writes(fails)
    with pytest.raises(error):
        await update(store, await store.read(SEVEN), begin_recovery, retries)
    return store.tries


async def test_a_compare_and_set_gives_up_after_so_many_conflicts_or_unknown_outcomes() -> None:
    assert await tries_of(MetadataVersionException, POLICY) == 6
    assert await tries_of(UnknownOutcomeException, POLICY) == 2


async def most_sends(retries: RetryPolicy) -> int:
    """Of one compare-and-set of which every answer is lost: repeats within repeats."""
    gateways, sent = gateways_of(2, retries=retries), Sent()

    async def write_once() -> LedgerRecord:
        return (await gateways.change_repeatedly("write", sent))[0]

    store = Writes(write_once)
    with pytest.raises(UnknownOutcomeException):
        await update(store, await store.read(SEVEN), begin_recovery, retries)
    return len(sent.at)


async def test_repeats_within_repeats_are_their_product() -> None:
    assert await most_sends(POLICY) == 2 * 4


async def test_an_ensemble_change_that_the_metadata_does_not_take_is_tried_with_growing_pauses() -> None:
    tried: list[float] = []

    def unreachable(*_: object) -> None:
        tried.append(asyncio.get_running_loop().time())
        raise MetaStoreException("no gateway answers")

    async with fake_cluster(4) as cluster:
        settings = {each.name: getattr(POLICY, each.name) for each in fields(POLICY)}
        ledger = await ledger_of(cluster, 1, ensemble_change_timeout_seconds=6, **settings)
        cluster.metadata.before_write = unreachable
        await cluster.ensemble(ledger.metadata)[0].stop()
        with pytest.raises(MetaStoreException, match="within 6 s"):
            await ledger.append_all(b"%d" % n for n in range(20_000))
    assert gaps(tried) == [0.5, 1, 1.5, 1.5]


async def test_the_settings_are_the_policy_and_reach_the_gateways() -> None:
    assert ClientConfig().retries == RetryPolicy()
    # BOOKGATE_GATEWAY_… and BOOKGATE_BOOKIE_… are variables of those processes, which refuse what they don't know.
    assert not [each.name for each in fields(POLICY) if each.name.startswith(("gateway_", "bookie_"))]
    config = ClientConfig(**{each.name: getattr(POLICY, each.name) for each in fields(POLICY)})
    assert config.retries == POLICY
    factory = metadata_factory("grpc://127.0.0.1:4181", config)
    assert isinstance(factory, RpcLedgerManagerFactory)
    assert factory.gateways.retries == POLICY
    with pytest.raises(IncorrectParameterException, match="metadata_first_pause_seconds is longer than"):
        load_config(metadata_first_pause_seconds=2)
    with pytest.raises(IncorrectParameterException, match="metadata_change_attempts"):
        load_config(metadata_change_attempts=0)


# The client's guide


def section(title: str) -> str:
    return CLIENT_GUIDE.read_text(encoding="utf-8").split(f"\n### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def default_in_words(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def test_the_guide_has_every_setting_of_the_policy_with_its_default() -> None:
    told = dict(re.findall(r"`(\w+)` \(([\d.]+)(?: s)?\)", section("What is repeated")))
    settings = ClientConfig()
    assert {each.name for each in fields(RetryPolicy)} <= told.keys()
    for name, default in told.items():
        found = DEFAULT_NUM_RETRIES if name == "numRetries" else getattr(settings, name)
        assert default == default_in_words(found), name


async def test_the_guide_has_the_products_of_nested_repeats() -> None:
    text = section("What is repeated")
    policy, timeout = RetryPolicy(), ClientConfig().metadata_timeout_seconds
    sends = await most_sends(policy)
    assert f"{sends} sends" in text
    write = policy.metadata_change_attempts * timeout
    unknown = policy.metadata_unknown_outcomes * write + (policy.metadata_unknown_outcomes - 1) * timeout
    assert f"{write:g} s" in text
    assert f"{unknown:g} s" in text
    assert f"{policy.metadata_conflict_attempts * policy.metadata_change_attempts} sends" in text
    assert f"{1 + policy.pinned_create_repeats} sends" in text
    reconnect = f"{reconnect_backoff.FIRST_PAUSE:g} s to {reconnect_backoff.LONGEST_PAUSE:g} s"
    assert reconnect in text


def option_in_words(value: object) -> str:
    if isinstance(value, DigestType):
        return f"DigestType.{value.name}"
    if value is None:
        return "none"
    return str(value).replace("'", '"')


def test_the_guide_has_every_option_of_a_ledger_with_its_default() -> None:
    guide = CLIENT_GUIDE.read_text(encoding="utf-8")
    table = guide.split("| option | default | is |")[1].split("\n\n")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", table, re.MULTILINE))
    options = LedgerOptions()
    expected = {each.name: getattr(options, each.name) for each in fields(LedgerOptions)}
    assert told == {name: option_in_words(value) for name, value in expected.items()}
