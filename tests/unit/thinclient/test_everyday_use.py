"""What programs and notebooks meet every day: opening without await, what is shown, forgotten and changed."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookgate import (
    BookKeeper,
    ClientConfig,
    IllegalOpException,
    IncorrectParameterException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.connection_state import ConnectionListeners, ConnectionState
from bookgate.runtime.unclosed import report_unclosed
from bookgate.streams import Streams
from tests.unit.thinclient.fakes import fake_cluster


@asynccontextmanager
async def a_client() -> AsyncIterator[BookKeeper]:
    async with fake_cluster() as cluster:
        yield cluster.client()


@pytest.mark.asyncio
async def test_what_opens_is_awaited_or_entered() -> None:
    async with a_client() as client:
        async with client.create_ledger(password=b"planted-p") as ledger:
            await ledger.append(b"one")
        async with await client.open_ledger(ledger.ledger_id, b"planted-p") as reader:
            assert reader.last_add_confirmed == 0
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        task = asyncio.create_task(client.open_ledger(ledger.ledger_id, b"planted-p"))
        assert (await task).last_add_confirmed == 0
        with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
            async with client.open_ledger(4711):
                pass
        with pytest.raises(ValueError, match="the body's own"):
            async with client.create_ledger() as failed:
                raise ValueError("the body's own")
        assert failed.metadata.is_closed


@pytest.mark.asyncio
async def test_handles_say_what_they_are() -> None:
    async with a_client() as client:
        assert repr(client) == "<BookKeeper of given parts, open>"
        async with client.create_ledger(ensemble_size=2) as ledger:
            await ledger.append(b"four")
            number = ledger.ledger_id
            assert repr(ledger) == f"<WriteHandle of ledger {number}, open, 2/2/2, last add confirmed 0, 4 bytes>"
        assert ", closed, " in repr(ledger)
        reader = await client.open_ledger(number)
        assert repr(reader) == f"<ReadHandle of ledger {number}, closed, last add confirmed 0, 4 bytes>"


def _of_ledgers(told: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    """Without what the collector finds of other tests, transports say."""
    return [each for each in told if "ledger" in str(each.message)]


@pytest.mark.asyncio
async def test_what_was_not_closed_is_told_with_the_line_that_made_it() -> None:
    async with a_client() as client:

        async def forget() -> None:
            ledger = await client.create_ledger()
            await ledger.append(b"one")

        async def remember() -> None:
            async with client.create_ledger() as ledger:
                await ledger.append(b"one")

        # What other tests left behind in this process, worlds that were cut off above all, is collected before.
        gc.collect()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            await remember()
            gc.collect()
            assert _of_ledgers(told) == []
            await forget()
            await client.close()
            gc.collect()
        [only] = _of_ledgers(told)
        assert "stays open for readers, was not closed; it was made at" in str(only.message)
        assert __file__ in str(only.message)


@pytest.mark.asyncio
async def test_what_a_client_gives_is_shown_with_its_gateways() -> None:
    async with BookKeeper.connect_lazily("grpc://127.0.0.1:1,127.0.0.1:2") as client:
        channel = "<GatewayChannel to 127.0.0.1:1, 127.0.0.1:2>"
        assert repr(client.ledger_manager) == f"<RpcLedgerManager by {channel}>"
        assert repr(client.service_discovery) == f"<RpcServiceDiscovery by {channel}>"
        assert repr(Streams(client, scope_id=7)) == f"<Streams in scope 7 of {client!r}>"


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_client_that_was_not_closed_is_reported_to_its_loop() -> None:
    told: list[str] = []
    gc.collect()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["message"]))
    client = BookKeeper.connect_lazily("grpc://127.0.0.1:1")
    line = client.made_at
    del client
    gc.collect()
    assert [each for each in told if "BookKeeper" in each] == [
        f"unclosed <BookKeeper of given parts, open>, made at {line}"
    ]
    assert __file__ in line
    told.clear()
    async with BookKeeper.connect_lazily("grpc://127.0.0.1:1"):
        pass
    gc.collect()
    assert told == []


def test_nothing_is_reported_to_a_loop_that_has_ended() -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: pytest.fail("it was reported"))
    loop.close()
    report_unclosed("client", "here", loop)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ledger_id": 0, "password": "secret"}, "password is bytes, not str"),
        ({"ledger_id": "seven"}, "ledger_id is a number, a LedgerId or a UUID, not 'seven'"),
        ({"ledger_id": True}, "ledger_id is a number,"),
        ({"ledger_id": -1}, "-1"),
    ],
)
async def test_a_wrong_argument_is_named(wrong: dict[str, Any], words: str) -> None:
    async with a_client() as client:
        await (await client.create_ledger(ledger_id=0)).close()
        with pytest.raises(IncorrectParameterException, match=words):
            await client.open_ledger(**wrong)


def test_a_wrong_setting_is_named_and_the_nearest_one_told() -> None:
    with pytest.raises(IncorrectParameterException) as caught:
        ClientConfig(add_timout=3)  # type: ignore[call-arg]
    assert "did you mean add_timeout" in str(caught.value)
    assert "pydantic" not in str(caught.value)
    with pytest.raises(IncorrectParameterException, match="read_timeout_seconds"):
        ClientConfig(read_timeout_seconds=-1)


@pytest.mark.asyncio
async def test_a_ledger_is_deleted_in_the_version_that_was_seen() -> None:
    async with a_client() as client:
        await (await client.create_ledger(ledger_id=7)).close()
        seen = await client.read_record(7)
        await client.update_custom_metadata(7, {"app": b"orders"})
        with pytest.raises(MetadataVersionException):
            await client.delete_ledger(7, seen.version)
        assert await client.delete_ledger(7, seen.version + 1) is True
        assert await client.delete_ledger(7) is False


@pytest.mark.asyncio
async def test_custom_metadata_is_changed_beside_the_writer() -> None:
    async with a_client() as client, client.create_ledger(custom_metadata={"a": b"1", "b": b"2"}) as ledger:
        await ledger.append(b"one")
        changed = await client.update_custom_metadata(ledger.ledger_id, {"a": None, "c": b"3"})
        assert changed.metadata.custom_metadata == {"b": b"2", "c": b"3"}
        with pytest.raises(MetadataVersionException, match="and not 0"):
            await client.update_custom_metadata(ledger.ledger_id, {"d": b"4"}, expected_version=0)
        again = await client.update_custom_metadata(ledger.ledger_id, {"c": b"3"}, expected_version=changed.version)
        assert again.version == changed.version
        with pytest.raises(IncorrectParameterException, match="values that are bytes or None, not 'a': 'text'"):
            await client.update_custom_metadata(ledger.ledger_id, {"a": "text"})  # type: ignore[dict-item]
        await ledger.append(b"two")
    closed = (await client.ledger_manager.read(ledger.ledger_id)).metadata
    assert closed.is_closed
    assert (closed.last_entry_id, closed.custom_metadata) == (1, {"b": b"2", "c": b"3"})


@pytest.mark.asyncio
async def test_a_client_of_parts_knows_of_no_connection() -> None:
    async with a_client() as client:
        with pytest.raises(IllegalOpException):
            client.add_connection_listener(print)


def test_listeners_are_told_changes_once_until_they_go() -> None:
    errors: list[Exception] = []
    listeners = ConnectionListeners(errors.append)
    first: list[ConnectionState] = []
    remove = listeners.add(first.append)
    listeners.become(ConnectionState.CONNECTED)
    listeners.become(ConnectionState.CONNECTED)
    late: list[ConnectionState] = []
    listeners.add(late.append)

    def fails(state: ConnectionState) -> None:
        raise ValueError(state)

    listeners.add(fails)
    listeners.become(ConnectionState.SUSPENDED)
    remove()
    remove()
    listeners.become(ConnectionState.CLOSED)
    listeners.become(ConnectionState.CONNECTED)
    assert first == [ConnectionState.CONNECTED, ConnectionState.SUSPENDED]
    assert late == [ConnectionState.CONNECTED, ConnectionState.SUSPENDED, ConnectionState.CLOSED]
    assert len(errors) == 3


def test_the_blocking_client_has_it_too() -> None:
    for name in ("update_custom_metadata", "add_connection_listener"):
        assert hasattr(BookKeeper, name)
