"""What is shown over HTTP to somebody who may read its own ledgers only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from bookgate.gateway.console.ledger_routes import Conditions, read_ledgers
from bookgate.gateway.console.stream_routes import StreamQuery, console_stream_routes
from bookgate.gateway.http.api import Call, NoBody
from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.routes.ledgers import ListQuery, ledger_routes
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger import streams
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.unbounded import create_unbounded
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from tests.stores import made

pytestmark = pytest.mark.asyncio

OWN = parse_policy('[[bindings]]\nprincipals = ["token:a", "token:b"]\nrole = "writer"\nowned = true\n')
A, B = (Caller(Principal(Kind.TOKEN, name), AccessControl(Authenticators(), OWN), "peer") for name in "ab")
NUMBERS = (1, 2, 3)


def of(who: Caller, **custom: bytes) -> LedgerMetadata:
    return LedgerMetadata.new(["b1:3181"], 1, 1, custom_metadata={OWNER_KEY: str(who.principal).encode(), **custom})


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[LedgerManagerFactory]:
    store = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await store.initialize()
    yield store
    await store.close()


async def asked(store: LedgerManagerFactory, who: Caller, query: Any, path: str) -> Any:
    routes = [*ledger_routes(store), *console_stream_routes(store)]
    (route,) = (each for each in routes if each.path.endswith(path))
    request: Any = SimpleNamespace(query_params={}, url=SimpleNamespace(path=path))
    answer = await route.handle(Call(query, NoBody(), request, who))
    parts = (
        [part async for part in answer.body_iterator] if hasattr(answer, "body_iterator") else [answer.body.decode()]
    )
    return json.loads("".join(parts))


@pytest.mark.parametrize("by", ["listing", "console"])
async def test_a_ledger_that_is_anothers_by_the_time_it_is_read_is_not_shown(
    by: str, store: LedgerManagerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = store.ledger_manager
    for number in NUMBERS:
        await manager.create(LedgerId.unscoped(number), of(A))
    read: Any = manager.read_listed

    async def then_one_is_anothers(*arguments: Any) -> Any:
        outcomes = await read(*arguments)
        monkeypatch.setattr(manager, "read_listed", read)
        await manager.remove(LedgerId.unscoped(2))
        await manager.create(LedgerId.unscoped(2), of(B))
        return outcomes

    monkeypatch.setattr(manager, "read_listed", then_one_is_anothers)
    if by == "listing":
        shown = list(await asked(store, A, ListQuery.model_validate({"print_metadata": True}), "/ledger/list"))
    else:
        shown = [str(number) async for number, _ in read_ledgers(manager, A, Conditions.model_validate({}))]
    assert shown == ["1", "3"]


async def test_the_cursors_of_a_stream_are_those_that_the_caller_may_read(store: LedgerManagerFactory) -> None:
    manager, ledger = store.ledger_manager, LedgerId(streams.DEFAULT_SCOPE, 77)
    await manager.create(ledger, create_unbounded(of(A)))
    record = {
        streams.STREAM_KEY: streams.encoded_stream("orders", ledger),
        streams.SETTINGS_KEY: streams.StreamSettings().encoded(),
        streams.CURSORS_KEY: streams.encoded_cursor_names(("billing", "mine")),
    }
    await manager.create(streams.stream_record_id("orders"), of(A, **record))
    for name, owner in (("billing", B), ("mine", A)):
        cursor = streams.CommittedCursor("orders", ledger.qualified_name, name, RecordPosition(4, 3), 1)
        cursor_id = streams.cursor_record_id("orders", name)
        await manager.create(cursor_id, of(owner, **{streams.CURSOR_KEY: cursor.encoded()}))
    told = await asked(store, A, StreamQuery.model_validate({"name": "orders"}), "/console/stream")
    assert [each["name"] for each in told["cursors"]] == ["mine"]


async def test_a_cursor_whose_record_is_damaged_is_shown_as_such_beside_the_others(store: LedgerManagerFactory) -> None:
    manager, ledger = store.ledger_manager, LedgerId(streams.DEFAULT_SCOPE, 77)
    await manager.create(ledger, create_unbounded(of(A)))
    record = {
        streams.STREAM_KEY: streams.encoded_stream("orders", ledger),
        streams.SETTINGS_KEY: streams.StreamSettings().encoded(),
        streams.CURSORS_KEY: streams.encoded_cursor_names(("damaged", "sound")),
    }
    await manager.create(streams.stream_record_id("orders"), of(A, **record))
    sound = streams.CommittedCursor("orders", ledger.qualified_name, "sound", RecordPosition(4, 3), 1).encoded()
    for name, content in (("damaged", b"\xff\xfe"), ("sound", sound)):
        await manager.create(streams.cursor_record_id("orders", name), of(A, **{streams.CURSOR_KEY: content}))
    told = await asked(store, A, StreamQuery.model_validate({"name": "orders"}), "/console/stream")
    assert [(each["name"], each["entryId"], "problem" in each) for each in told["cursors"]] == [
        ("damaged", None, True),
        ("sound", "4", False),
    ]
    assert told["cursors"][0]["may"] == {"move": False, "delete": False}
