"""Columns of entries are the entries: the same values, the same checks, the same slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.digest import Digest, digest_for
from bookgate.ledger.entry import Entry, decode_entries, encode_entry
from bookgate.ledger.entry_columns import EntryColumns, decode_columns
from bookgate.ledger.metadata import DigestType

DIGESTS = [digest_for(kind, b"password") for kind in DigestType]
LEDGER = 2**40 + 3

payload_lists = st.lists(st.binary(max_size=40), max_size=8)


def packets_of(digest: Digest, payloads: list[bytes], first: int) -> list[bytes]:
    length, packets = 0, []
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        packets.append(encode_entry(digest, LEDGER, entry_id, entry_id - 1, length, payload))
    return packets


@given(st.sampled_from(DIGESTS), payload_lists, st.integers(0, 2**62))
def test_columns_hold_what_lists_hold(digest: Digest, payloads: list[bytes], first: int) -> None:
    packets = packets_of(digest, payloads, first)
    columns, error = decode_columns(digest, [memoryview(packet) for packet in packets], LEDGER, first)
    entries, _ = decode_entries(digest, packets, LEDGER, first)
    assert error is None
    assert list(columns) == entries
    assert [entry.payload for entry in entries] == payloads


@given(st.sampled_from(DIGESTS), payload_lists.filter(bool), st.data())
def test_the_good_ones_before_a_bad_one_are_kept(digest: Digest, payloads: list[bytes], data: st.DataObject) -> None:
    packets = packets_of(digest, payloads, 10)
    bad = data.draw(st.integers(0, len(packets) - 1))
    at = data.draw(st.integers(0, len(packets[bad]) - 1))
    damaged = bytearray(packets[bad])
    damaged[at] ^= data.draw(st.integers(1, 255))
    packets[bad] = bytes(damaged)
    columns, error = decode_columns(digest, packets, LEDGER, 10)
    entries, expected = decode_entries(digest, packets, LEDGER, 10)
    assert list(columns) == entries
    assert str(error) == str(expected)


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_good_packet_in_a_strange_place_is_refused(digest: Digest) -> None:
    packets = packets_of(digest, [b"a", b"b", b"c"], 0)
    for swapped in ([packets[0], packets[2]], [packets[0], packets[0]]):
        columns, error = decode_columns(digest, swapped, LEDGER, 0)
        assert [entry.payload for entry in columns] == [b"a"]
        assert error is not None
    columns, error = decode_columns(digest, packets, LEDGER + 1, 0)
    assert not columns
    assert error is not None


@given(payload_lists, st.integers(0, 9), st.integers(0, 9))
def test_slices_are_those_of_lists(payloads: list[bytes], start: int, stop: int) -> None:
    entries = [Entry(LEDGER, 5 + i, i, 10 * i, payload) for i, payload in enumerate(payloads)]
    columns = EntryColumns.of(LEDGER, 5, entries)
    assert list(columns[start:stop]) == entries[start:stop]
    assert list(columns[:stop][start:]) == entries[:stop][start:]
    assert [columns[-i] for i in range(1, len(columns) + 1)] == entries[::-1]
    with pytest.raises(IndexError):
        columns[len(entries)]
    with pytest.raises(ValueError, match="no gaps"):
        columns[::2]
