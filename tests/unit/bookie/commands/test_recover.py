"""`bookgate bookie recover` and `replace`, where ledgers come to name the bookie while they are at work."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.commands import recover
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory
from tests.stores import made
from tests.unit.bookie.commands.members import command, cookie_of, registered, write_cookies

OLD, NEW = "old", "new"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Of a cluster with two bookies, of which one is lost."""
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    asyncio.run(write_cookies(uri, OLD, NEW))
    return uri


def creates_meanwhile(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A client that takes the bookie for registered creates ledgers there when what was planned is done."""
    carried_out = recover._carried_out

    async def carrying_out(factory: LedgerManagerFactory, *arguments: Any) -> Any:
        done = await carried_out(factory, *arguments)
        metadata = LedgerMetadata.new((OLD, NEW, "third"), 2, 2)
        await factory.ledger_manager.create_many(
            [CreateRequest(LedgerId.unscoped(number), metadata) for number in range(count)]
        )
        return done

    monkeypatch.setattr(recover, "_carried_out", carrying_out)


@pytest.mark.parametrize("arguments", [("recover", OLD), ("replace", OLD, NEW)])
def test_a_bookie_that_ledgers_have_come_to_name_is_not_told_to_be_empty(
    uri: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    creates_meanwhile(monkeypatch, 7)
    with registered(uri, NEW):
        result = command("bookie", *arguments, "--metadata-uri", uri)
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["named_meanwhile"] == [*range(7)]
    assert f"have come to name {OLD} (7): 0, 1, 2, 3, 4, …; run it again" in result.stderr
    assert asyncio.run(cookie_of(uri, OLD)) is not None


def test_where_not_all_ledgers_were_to_be_moved_nobody_looks_for_more(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    creates_meanwhile(monkeypatch, 1)
    with registered(uri, NEW):
        result = command("bookie", "recover", OLD, "--skip-open-ledgers", "--metadata-uri", uri)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["named_meanwhile"] == []


def test_a_bookie_that_is_empty_and_registered_keeps_its_cookie_without_a_failure(uri: str) -> None:
    with registered(uri, NEW), registered(uri, OLD):
        result = command("bookie", "replace", OLD, NEW, "--metadata-uri", uri)
    assert result.exit_code == 0, result.output
    assert f"bookie {OLD} is empty; stop it" in result.stderr
    with registered(uri, NEW):
        assert json.loads(command("bookie", "replace", OLD, NEW, "--metadata-uri", uri).stdout)["cookie_removed"]
    assert asyncio.run(cookie_of(uri, OLD)) is None
