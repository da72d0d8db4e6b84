"""Entries that are encoded together have the bytes that they have one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entries, encode_entry
from bookgate.ledger.metadata import DigestType


@pytest.mark.parametrize("kind", DigestType)
@given(
    ledger_id=st.integers(0, 2**63 - 1) | st.integers(2**64, 2**128 - 1),
    first=st.integers(0, 2**62),
    last_add_confirmed=st.integers(-1, 2**62),
    payloads=st.lists(st.binary(max_size=100)),
)
def test_together_or_one_by_one(
    kind: DigestType, ledger_id: int, first: int, last_add_confirmed: int, payloads: list[bytes]
) -> None:
    digest, lengths = digest_for(kind, b"secret"), range(5, 5 + len(payloads))
    expected = [
        encode_entry(digest, ledger_id, first + i, last_add_confirmed, lengths[i], payload)
        for i, payload in enumerate(payloads)
    ]
    assert encode_entries(digest, ledger_id, first, last_add_confirmed, lengths, payloads) == expected
