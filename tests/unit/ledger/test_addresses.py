"""An address and its parts."""

from __future__ import annotations

import pytest

from bookgate.ledger.addresses import address_of, host_and_port


@pytest.mark.parametrize(
    ("host", "address"), [("gw-1", "gw-1:4181"), ("10.0.0.1", "10.0.0.1:4181"), ("fe80::1", "[fe80::1]:4181")]
)
def test_the_parts_of_an_address_are_what_it_was_made_of(host: str, address: str) -> None:
    assert address_of(host, 4181) == address
    assert host_and_port(address) == (host, 4181)
