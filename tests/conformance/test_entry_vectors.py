"""Entry packets, explicit LAC packets and keys, against BookKeeper's own bytes."""

from __future__ import annotations

from typing import Any

import pytest

from bookgate.ledger.digest import Digest, digest_for, ledger_master_key, mac_key
from bookgate.ledger.entry import decode_entry, decode_header, decode_lac, encode_entry, encode_lac
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.metadata import DigestType
from tests.conformance.golden import payload, rows


def digest_of(row: dict[str, Any]) -> Digest:
    name = {"MAC": "HMAC"}.get(row["digest"], row["digest"])
    return digest_for(DigestType[name], row["password"].encode())


def test_entry_packets_are_javas() -> None:
    checked = 0
    for row in rows("digest.jsonl", "entry"):
        ids = (row["ledgerId"], row["entryId"], row["lac"], row["length"])
        packet = encode_entry(digest_of(row), *ids, payload(row))
        assert packet.hex() == row["v3_body"]
        assert packet.hex().startswith(row["header_and_digest"])
        if row["ledgerId"] >= 0:  # Java encodes others, which no ledger has; in a bookie's files they begin format V2
            assert decode_header(packet) == ids
        assert decode_entry(digest_of(row), packet, row["ledgerId"], row["entryId"]) == (*ids, payload(row))
        checked += 1
    assert checked == 160


def test_lac_packets_are_javas() -> None:
    checked = 0
    for row in rows("digest.jsonl", "lac"):
        packet = encode_lac(digest_of(row), row["ledgerId"], row["lac"])
        assert packet.hex() == row["body"]
        assert decode_lac(digest_of(row), packet, row["ledgerId"]) == row["lac"]
        checked += 1
    assert checked == 130


def test_keys_are_javas() -> None:
    for row in rows("masterkey.jsonl"):
        password = bytes.fromhex(row["password_hex"])
        assert ledger_master_key(password).hex() == row["ledger_master_key"]
        assert mac_key(password).hex() == row["mac_key"]


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_one_changed_bit_anywhere_is_found(digest_type: DigestType) -> None:
    digest = digest_for(digest_type, b"secret")
    packet = encode_entry(digest, 7, 3, 2, 20, b"hello")
    for position in range(len(packet)):
        damaged = bytearray(packet)
        damaged[position] ^= 1
        with pytest.raises(DigestMatchException):
            decode_entry(digest, bytes(damaged), 7, 3)


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_a_packet_of_another_entry_or_ledger_is_refused(digest_type: DigestType) -> None:
    digest = digest_for(digest_type, b"")
    packet = encode_entry(digest, 7, 3, 2, 20, b"hello")
    with pytest.raises(DigestMatchException, match="is entry 3 of ledger 7"):
        decode_entry(digest, packet, 7, 4)
    with pytest.raises(DigestMatchException, match="is entry 3 of ledger 7"):
        decode_entry(digest, packet, 8, 3)
    assert decode_entry(digest, packet, 7, None).entry_id == 3


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_a_packet_cut_short_is_refused(digest_type: DigestType) -> None:
    digest = digest_for(digest_type, b"")
    for size in range(32 + digest.length):
        with pytest.raises(DigestMatchException):
            decode_entry(digest, encode_entry(digest, 7, 3, 2, 0, b"")[:size], 7, 3)
    with pytest.raises(DigestMatchException, match="too few"):
        decode_lac(digest, b"\0" * (15 + digest.length), 0)
    with pytest.raises(DigestMatchException, match="no header"):
        decode_header(b"\0" * 31)


def test_the_wrong_password_is_found_by_hmac() -> None:
    packet = encode_entry(digest_for(DigestType.HMAC, b"right"), 7, 3, 2, 20, b"hello")
    with pytest.raises(DigestMatchException, match="does not match"):
        decode_entry(digest_for(DigestType.HMAC, b"wrong"), packet, 7, 3)


def test_a_lac_packet_of_another_ledger_or_damaged_is_refused() -> None:
    digest = digest_for(DigestType.CRC32C, b"")
    with pytest.raises(DigestMatchException, match="of ledger 7"):
        decode_lac(digest, encode_lac(digest, 7, 5), 8)
    with pytest.raises(DigestMatchException, match="does not match"):
        decode_lac(digest, encode_lac(digest, 7, 5)[:-1] + b"\0", 7)
