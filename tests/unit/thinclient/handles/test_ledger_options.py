"""Options of new ledgers: one definition for four calls, their rules, and how calls take them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from bookgate import BookKeeper, LedgerOptions, blocking
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.thinclient.handles.ledger_options import ledger_options
from tests.unit.thinclient.fakes import fake_cluster


def test_calls_take_what_there_is_an_option_for() -> None:
    parameters = list(inspect.signature(ledger_options).parameters)
    assert parameters == [*(field.name for field in fields(LedgerOptions)), "options"]
    for client in (BookKeeper, blocking.BookKeeper):
        for create in (client.create_ledger, client.create_advanced_ledger):
            assert list(inspect.signature(create).parameters) == ["self", *parameters]
            assert inspect.iscoroutinefunction(inspect.unwrap(create)) == (client is BookKeeper)


def test_what_a_call_names_wins_over_its_options() -> None:
    assert ledger_options() == LedgerOptions()
    assert ledger_options(4, 3, 2, DigestType.HMAC, b"p", {"a": b"b"}, 7) == LedgerOptions(
        4, 3, 2, DigestType.HMAC, b"p", {"a": b"b"}, 7
    )
    orders = LedgerOptions(write_quorum_size=2, password=b"secret", ledger_id=7, deferred_sync=True)
    assert ledger_options(options=orders) == orders
    changed = ledger_options(password=b"", ledger_id=8, deferred_sync=False, options=orders)
    assert changed == LedgerOptions(write_quorum_size=2, ledger_id=8)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (3, 3, 2)),
        ({"ensemble_size": 5}, (5, 3, 2)),
        ({"ensemble_size": 2}, (2, 2, 2)),
        ({"ensemble_size": 1}, (1, 1, 1)),
        ({"write_quorum_size": 1}, (3, 1, 1)),
        ({"ensemble_size": 2, "ack_quorum_size": 1}, (2, 2, 1)),
    ],
)
def test_quorums_that_are_not_named_follow_the_ensemble(given: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    for options in (LedgerOptions(**given), ledger_options(**given)):
        assert (options.ensemble_size, options.write_quorum_size, options.ack_quorum_size) == sizes


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"ensemble_size": 2, "write_quorum_size": 3}, "ensemble size 2, write quorum 3"),
        ({"write_quorum_size": 1, "ack_quorum_size": 2}, "write quorum 1 and ack quorum 2"),
        ({"ensemble_size": "2"}, "ensemble_size is a number of bookies, not '2'"),
        ({"write_quorum_size": 0}, "each must be at least the next"),
        ({"ack_quorum_size": 0}, "the last at least 1"),
        ({"password": "secret"}, "password is bytes"),
        ({"digest_type": "CRC32C"}, "digest_type is a DigestType"),
        ({"custom_metadata": {"app": "orders"}}, "'app': 'orders'"),
        ({"ledger_id": -1}, "-1"),
    ],
)
def test_options_that_are_wrong_are_refused_where_they_are_made(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(IncorrectParameterException, match=wrong):
        LedgerOptions(**given)
    with pytest.raises(IncorrectParameterException, match=wrong):
        ledger_options(**given)


def test_a_password_is_not_shown_and_options_are_values() -> None:
    options = LedgerOptions(password=b"secret", custom_metadata={"a": b"b"}, ledger_id=7)
    assert "secret" not in repr(options)
    assert len({options, LedgerOptions(password=b"secret", custom_metadata={"a": b"b"}, ledger_id=7)}) == 1
    assert options.given_id == LedgerId.unscoped(7)


@pytest.mark.asyncio
@pytest.mark.usefixtures("virtual_time")
async def test_a_ledger_is_what_its_options_say() -> None:
    options = LedgerOptions(2, 2, 1, DigestType.CRC32, b"p", {"app": b"orders"}, 7)
    async with fake_cluster() as cluster:
        client = cluster.client()
        plain = await client.create_ledger(options=options)
        advanced = await client.create_advanced_ledger(options=options, ledger_id=8)
        for handle, number in ((plain, 7), (advanced, 8)):
            metadata = handle.metadata
            assert handle.ledger_id == LedgerId.unscoped(number)
            assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (2, 2, 1)
            assert (metadata.digest_type, metadata.password) == (DigestType.CRC32, b"p")
            assert metadata.custom_metadata == {"app": b"orders"}
