"""Registrations of bookies, against BookKeeper's own bytes."""

from __future__ import annotations

import pytest

from bookgate.ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo, Endpoint, check_bookie_id
from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from tests.conformance.golden import rows

ROWS = {row["name"]: row for row in rows("misc.jsonl", "bookieServiceInfo")}


def test_a_registration_with_one_endpoint() -> None:
    info = BookieServiceInfo("127.0.0.1:3181", (Endpoint("bookie", "127.0.0.1", 3181, BOOKIE_RPC),))
    stored = bytes.fromhex(ROWS["bookie-only"]["hex"])
    assert info.encode() == stored
    assert BookieServiceInfo.decode("127.0.0.1:3181", stored) == info


def test_a_registration_with_everything() -> None:
    row = ROWS["two-endpoints-props"]
    endpoints = tuple(
        Endpoint(e["id"], e["host"], e["port"], e["protocol"], tuple(e.get("auth", ())), tuple(e.get("extensions", ())))
        for e in row["endpoints"]
    )
    info = BookieServiceInfo("b-1", endpoints, row["properties"])
    assert info.encode() == bytes.fromhex(row["hex"])
    assert BookieServiceInfo.decode("b-1", bytes.fromhex(row["hex"])) == info
    assert info.endpoint("http") == endpoints[1]
    assert info.endpoint("bookgate-grpc") is None


def test_a_legacy_registration_is_its_address() -> None:
    info = BookieServiceInfo.decode("bookie-7.example.com:3181", b"")
    endpoint = info.endpoint(BOOKIE_RPC)
    assert endpoint is not None
    assert endpoint.address == "bookie-7.example.com:3181"


def test_a_legacy_registration_that_is_no_address_has_no_endpoint() -> None:
    assert BookieServiceInfo.decode("bookie-7", b"").endpoints == ()


def test_a_damaged_registration_names_the_bookie() -> None:
    with pytest.raises(MetadataFormatException, match="b-1"):
        BookieServiceInfo.decode("b-1", b"\xff\xff")


@pytest.mark.parametrize("bookie_id", ["", "readonly", "READONLY", "a b", "a/b", "a;b"])
def test_ids_that_bookkeeper_would_not_take_are_refused(bookie_id: str) -> None:
    with pytest.raises(IncorrectParameterException):
        check_bookie_id(bookie_id)


def test_an_ipv6_endpoint_is_bracketed() -> None:
    assert Endpoint("bookie", "::1", 3181, BOOKIE_RPC).address == "[::1]:3181"
