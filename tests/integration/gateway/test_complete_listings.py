"""Who concludes from what a listing lacks gets a complete one, or none: through gateways, on every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pyspark.sql.types import StringType, StructField, StructType
from typer.testing import CliRunner, Result

from bookgate.bookie.commands.cluster_info import _summary
from bookgate.bookie.limbo.check import all_ledgers
from bookgate.bookie.limbo.former_life import find_former_life
from bookgate.bookie.membership.cookie import Cookie
from bookgate.bookie.replication.ledger_pages import see_all_ledgers
from bookgate.bookie.replication.repairs.by_hand import Order, make_plan
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import UnauthorizedAccessException, WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.ledger.replication_control import records_of_all_scopes
from bookgate.ledger.streams import NAME_KEY, STREAM_KEY, encoded_stream, stream_record_id
from bookgate.thinclient.commands.main import app as main_app
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.tokens import TokenSource
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata, sink_state, with_mark
from bookgate.thinclient.spark.options.write_options import parse_write_options
from bookgate.thinclient.spark.source import BookKeeperDataSource
from bookgate.thinclient.spark.writing.commit import Written
from bookgate.thinclient.spark.writing.sink import BatchSink, StreamSink, TaskMessage
from tests.integration.gateway.guarded import POLICY, Guarded

pytestmark = pytest.mark.asyncio

METADATA = LedgerMetadata.new(["b-1"], 1, 1)
TWO_BINDINGS = """
[roles.registers]
actions = ["bookie.register", "cookie.*", "discovery.read"]
[[bindings]]
principals = ["token:stranger"]
role = "registers"
[[bindings]]
principals = ["token:stranger"]
role = "reader"
scopes = ["0"]
"""


@pytest_asyncio.fixture
async def gateway(metadata_uri: str, tmp_path: Path) -> AsyncIterator[Guarded]:
    """With one ledger in scope 0 and one in scope 7, neither owned by anybody."""
    factory = create_factory(metadata_uri)
    await factory.initialize()
    for ledger_id in (LedgerId.unscoped(1), LedgerId(7, 1)):
        await factory.ledger_manager.create(ledger_id, METADATA)
    cookie = Cookie("bookie-1", "/journal", "1\t/ledgers", await factory.registration_manager.cluster_instance_id())
    await factory.registration_manager.write_cookie("bookie-1", cookie.encode(), None)
    guarded = Guarded(tmp_path, factory, POLICY + TWO_BINDINGS)
    guarded.port = await guarded.server.start()
    yield guarded
    await guarded.server.stop(0)
    guarded.access.close()
    await factory.close()


@asynccontextmanager
async def client(gateway: Guarded, name: str) -> AsyncIterator[RpcLedgerManagerFactory]:
    factory = RpcLedgerManagerFactory(f"grpc://127.0.0.1:{gateway.port}", tokens=TokenSource(gateway.token(name)))
    await factory.initialize()
    yield factory
    await factory.close()


async def listed(factory: LedgerManagerFactory, scope_id: int = 0) -> list[int]:
    return [number async for run in factory.ledger_manager.ledger_ranges(scope_id) for number in run]


async def scopes(factory: LedgerManagerFactory) -> list[int]:
    return [scope async for run in factory.ledger_manager.scopes() for scope in run]


async def records(factory: LedgerManagerFactory) -> int:
    return sum([len(page) async for page in records_of_all_scopes(factory.ledger_manager)])


async def membership(factory: LedgerManagerFactory) -> Membership:
    return Membership("bookie-1", (await factory.service_discovery.cluster_info()).instance_id)


async def of_limbo(factory: LedgerManagerFactory) -> list[int]:
    return await all_ledgers(factory, await membership(factory))


async def of_an_audit(factory: LedgerManagerFactory) -> list[int]:
    await see_all_ledgers(factory, await membership(factory))
    return await listed(factory, 7)


async def of_a_bookie(factory: LedgerManagerFactory) -> list[int]:
    factory.join(await membership(factory))
    return await listed(factory, 7)


async def of_a_recovery(factory: LedgerManagerFactory) -> Any:
    return await make_plan(factory, Order(frozenset({"b-1"})))


async def of_a_former_life(factory: LedgerManagerFactory) -> Any:
    return await find_former_life(factory, "bookie-1")


CONCLUDE: tuple[Callable[[LedgerManagerFactory], Awaitable[Any]], ...] = (
    records,
    of_limbo,
    of_an_audit,
    of_a_bookie,
    of_a_recovery,
    of_a_former_life,
)


async def test_a_narrowed_principal_lists_what_it_sees_unless_it_demands_all(gateway: Guarded) -> None:
    for name, scope_id, seen in (("elsewhere", 7, [1]), ("team-a", 0, []), ("stranger", 0, [1])):
        async with client(gateway, name) as factory:
            assert await listed(factory, scope_id) == seen
            assert await scopes(factory) == ([] if name == "stranger" else [7])
            factory.ledger_manager.demand_complete_listings()
            with pytest.raises(UnauthorizedAccessException, match=f"token:{name} .*complete listing.* binding"):
                await scopes(factory)
    async with client(gateway, "elsewhere") as factory:
        factory.ledger_manager.demand_complete_listings()
        assert await listed(factory, 7) == [1], "nothing of this scope is left out"
    async with client(gateway, "team-a") as factory:
        factory.ledger_manager.demand_complete_listings()
        with pytest.raises(UnauthorizedAccessException, match=r"token:team-a .*scope:0.* binding"):
            await listed(factory)
    assert gateway.audit()[-1]["outcome"] == "denied"


async def test_whoever_concludes_from_absence_demands_all(gateway: Guarded) -> None:
    for conclude in CONCLUDE:
        async with client(gateway, "bookie-1") as factory:
            await conclude(factory)
        async with client(gateway, "stranger") as factory:
            with pytest.raises(UnauthorizedAccessException, match="complete listing"):
                await conclude(factory)


async def test_an_administrator_counts_all_ledgers_or_none(gateway: Guarded) -> None:
    async with client(gateway, "admin") as factory:
        assert (await _summary(factory)).ledgers == 1
    async with client(gateway, "team-a") as factory:
        with pytest.raises(UnauthorizedAccessException, match="complete listing"):
            await _summary(factory)


async def command(gateway: Guarded, name: str, *words: str) -> Result:
    """A command by this principal, as its user calls it."""
    environment = {"BOOKGATE_TOKEN": gateway.token(name)}
    arguments = [*words, "--gateways", f"grpc://127.0.0.1:{gateway.port}", "--json"]
    return await asyncio.to_thread(CliRunner().invoke, main_app, arguments, env=environment)


async def test_a_scope_is_shown_as_far_as_it_may_be_seen_and_says_so(gateway: Guarded) -> None:
    for name, scope, complete, ledgers in (
        ("elsewhere", "7", True, 1),
        ("team-a", "0", False, 0),
        ("admin", "0", True, 1),
    ):
        shown = json.loads((await command(gateway, name, "scope", "show", scope)).stdout)
        assert (shown["complete"], shown["ledgers"]) == (complete, ledgers), name
    for name, complete in (("elsewhere", True), ("admin", True)):
        [row] = json.loads((await command(gateway, name, "scope", "list", "--count")).stdout)
        assert (row["scope_id"], row["complete"], row["ledgers"]) == (7, complete, 1)


async def test_a_scope_is_deleted_by_who_sees_all_of_it_or_by_nobody(gateway: Guarded) -> None:
    for name in ("team-a", "stranger"):
        refused = await command(gateway, name, "scope", "delete", "7", "--yes")
        assert refused.exit_code == 1
        assert f"token:{name}" in refused.stderr
        assert refused.stdout == "", "nothing is said of a scope that is not shown"
    assert await listed(gateway.factory, 7) == [1]
    done = await command(gateway, "elsewhere", "scope", "delete", "7", "--yes")
    assert json.loads(done.stdout) == {"scope_id": 7, "deleted": 1, "failed": []}
    assert await listed(gateway.factory, 7) == []


async def test_a_write_whose_commit_is_not_shown_is_not_called_left_over(gateway: Guarded) -> None:
    """Ledger 2 has the commit of ledger 3 as well, and belongs to another principal than 3."""
    lead, other = sunk("q", "team-b"), sunk("q", "team-a")
    manager = gateway.factory.ledger_manager
    for number, metadata in ((2, with_mark(lead, [2, 3])), (3, other), (4, sunk("never-committed", "team-a"))):
        await manager.create(LedgerId.unscoped(number), metadata)
    words = ("spark", "leftovers", "--older-than", "0s", "--delete", "--yes")
    refused = await command(gateway, "team-a", *words)
    assert refused.exit_code == 1
    assert "a complete listing is demanded" in refused.stderr
    assert await listed(gateway.factory) == [1, 2, 3, 4]
    done = await command(gateway, "admin", *words)
    assert [row["ledger_id"] for row in json.loads(done.stdout)["ledgers"]] == [4]
    assert await listed(gateway.factory) == [1, 2, 3]


async def test_a_stream_whose_record_is_not_shown_is_not_called_an_orphan(gateway: Guarded) -> None:
    """The record belongs to another principal than the ledger that it names."""
    manager, scope = gateway.factory.ledger_manager, 9
    ledger, record = LedgerId(scope, 1), stream_record_id("orders", scope)
    for ledger_id, owner, custom in (
        (ledger, "team-a", {NAME_KEY: b"orders"}),
        (record, "team-b", {STREAM_KEY: encoded_stream("orders", ledger)}),
        (LedgerId(scope, 2), "team-a", {NAME_KEY: b"killed"}),
    ):
        metadata = LedgerMetadata.new(["b-1"], 1, 1, custom_metadata={**custom, OWNER_KEY: f"token:{owner}".encode()})
        await manager.create(ledger_id, metadata)
    before = await listed(gateway.factory, scope)
    words = ("stream", "orphans", "--scope", str(scope), "--older-than", "0s", "--delete", "--yes")
    refused = await command(gateway, "team-a", *words)
    assert refused.exit_code == 1
    assert "a complete listing is demanded" in refused.stderr
    assert await listed(gateway.factory, scope) == before
    done = await command(gateway, "admin", *words)
    assert [row["stream"] for row in json.loads(done.stdout)["ledgers"]] == ["killed"]
    assert await listed(gateway.factory, scope) == [number for number in before if number != 2]


def given(gateway: Guarded, name: str, **more: str) -> dict[str, str]:
    """Options of a sink with this principal's token."""
    return {"gateways": f"grpc://127.0.0.1:{gateway.port}", "client.token": gateway.token(name), **more}


def sink_options(gateway: Guarded, name: str, **more: str) -> Any:
    return parse_write_options(given(gateway, name, **more))


async def state_of(gateway: Guarded, ledger_id: LedgerId) -> bool:
    """Whether a sink's ledger is marked as committed."""
    state = sink_state(await gateway.factory.ledger_manager.read(ledger_id))
    assert state is not None
    return state.marked


async def test_a_sink_that_is_not_shown_all_commits_no_batch_again_and_deletes_none(gateway: Guarded) -> None:
    """Another principal's driver has committed the batch: ledger 3 alone, or as the lead of ledger 5."""
    manager = gateway.factory.ledger_manager
    committed, own, of_lead = sunk("q", "team-b"), sunk("q", "team-a"), sunk("q", "team-a")
    for number, metadata in ((3, with_mark(committed, [3, 5])), (4, own), (5, of_lead)):
        await manager.create(LedgerId.unscoped(number), metadata)
    sink = StreamSink(sink_options(gateway, "team-a"), 0)
    messages: list[Any] = [TaskMessage(Write("q"), "a later run", Written(LedgerId.unscoped(4), 3))]
    for end in (sink.commit, sink.abort):
        with pytest.raises(UnauthorizedAccessException, match=r"narrows it; .* scope 0 .* is committed: .*scopeId"):
            await asyncio.to_thread(end, messages, 0)
    assert not await state_of(gateway, LedgerId.unscoped(4))
    assert await listed(gateway.factory) == [1, 3, 4, 5]
    # Who sees all finds the commit. It is another owner's, who may have forged it, or committed with other credentials:
    # so nothing is written again, and nothing deleted.
    messages = [TaskMessage(Write("q"), "a later run", Written(LedgerId.unscoped(4), 3))]
    with pytest.raises(WriteException, match="ledger 3 of another owner says that batch 0 of query q is committed"):
        await asyncio.to_thread(StreamSink(sink_options(gateway, "admin"), 0).commit, messages, 0)
    assert await listed(gateway.factory) == [1, 3, 4, 5]
    assert not await state_of(gateway, LedgerId.unscoped(4))


async def test_a_sink_commits_in_a_scope_that_it_sees_all_of(gateway: Guarded) -> None:
    ledger_id = LedgerId(7, 3)
    await gateway.factory.ledger_manager.create(ledger_id, sunk("q", "elsewhere"))
    sink = StreamSink(sink_options(gateway, "elsewhere", scopeId="7"), 0)
    await asyncio.to_thread(sink.commit, [TaskMessage(Write("q"), "a run", Written(ledger_id, 3))], 0)
    assert await state_of(gateway, ledger_id)


async def test_a_batch_write_that_no_other_driver_can_name_needs_no_complete_listing(gateway: Guarded) -> None:
    drawn, named = (BatchSink(sink_options(gateway, "team-a", **more), 0) for more in ({}, {"writeId": "monday"}))
    for number, sink in ((3, drawn), (4, named)):
        write = sink._write
        await gateway.factory.ledger_manager.create(LedgerId.unscoped(number), sunk(write.query, "team-a"))
        message: Any = TaskMessage(write, sink._start, Written(LedgerId.unscoped(number), 3))
        if sink is drawn:
            await asyncio.to_thread(sink.commit, [message])
        else:
            with pytest.raises(UnauthorizedAccessException, match="complete listing"):
                await asyncio.to_thread(sink.commit, [message])
        assert await state_of(gateway, LedgerId.unscoped(number)) is (sink is drawn)


LINES = StructType([StructField("payload", StringType())])


async def planned(gateway: Guarded, name: str, **more: str) -> Any:
    """What Spark gets when it plans a batch write."""
    return await asyncio.to_thread(BookKeeperDataSource(given(gateway, name, **more)).writer, LINES, False)


async def started(gateway: Guarded, name: str, **more: str) -> Any:
    """What Spark gets when it plans a batch of a stream."""
    return await asyncio.to_thread(BookKeeperDataSource(given(gateway, name, **more)).streamWriter, LINES, False)


async def test_a_write_that_could_not_be_committed_is_refused_before_any_task(gateway: Guarded) -> None:
    for plan, more in ((planned, {"writeId": "monday"}), (started, {})):
        with pytest.raises(UnauthorizedAccessException, match=r"ledger\.list to scope:0: .* narrows it; .*\.read"):
            await plan(gateway, "team-a", **more)
        assert gateway.audit()[-1]["outcome"] == "denied"
    for plan in (planned, started):
        with pytest.raises(UnauthorizedAccessException, match=r"token:elsewhere may not do ledger\.list to scope:0"):
            await plan(gateway, "elsewhere")
    assert await listed(gateway.factory) == [1]


async def test_a_write_that_can_be_committed_is_planned(gateway: Guarded) -> None:
    for name, more in (("admin", {}), ("elsewhere", {"scopeId": "7"})):
        assert isinstance(await planned(gateway, name, writeId="monday", **more), BatchSink)
        assert isinstance(await started(gateway, name, **more), StreamSink)
    assert isinstance(await planned(gateway, "team-a"), BatchSink), "no other driver has the id of this write"


def sunk(query: str, owner: str) -> LedgerMetadata:
    """A ledger of a sink's first batch, as its task has left it."""
    custom = {**attempt_metadata(Write(query), "0.0.0"), OWNER_KEY: f"token:{owner}".encode()}
    return LedgerMetadata.new(["b-1"], 1, 1, custom_metadata=custom).close(2, 30)
