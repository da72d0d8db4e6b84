"""Ledger metadata in all three serialisations, against BookKeeper's own bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookgate.ledger.errors import MetadataFormatException, MetadataSerializationException
from bookgate.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_codec import decode, encode, from_format, to_format, without_password
from tests.conformance.golden import rows

FRAGMENTS = (Fragment(0, ("a:1",)),)
ROWS = [row for row in rows("metadata.jsonl") if "error" not in row]


def metadata_of(row: dict[str, Any]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=row["ensembleSize"],
        write_quorum_size=row["writeQuorumSize"],
        ack_quorum_size=row["ackQuorumSize"],
        fragments=tuple(Fragment(int(first), tuple(members)) for first, members in row["ensembles"].items()),
        state=LedgerState[row["state"]],
        last_entry_id=row["lastEntryId"],
        length=row["length"],
        digest_type=DigestType[{"MAC": "HMAC"}.get(row["digestType"], row["digestType"])]
        if row["hasPassword"]
        else None,
        password=bytes.fromhex(row["password"]) if row["hasPassword"] else None,
        ctime_ms=row["ctime"] if row["storeCtime"] else None,
        custom_metadata={key: bytes.fromhex(value) for key, value in row["customMetadata"].items()},
        creator_token=row["cToken"],
        format_version=row["version"],
    )


def as_stored(metadata: LedgerMetadata) -> LedgerMetadata:
    """What a reader can know of metadata after it was stored in its format version."""
    if metadata.format_version == 3:
        return metadata
    if metadata.format_version == 2:
        return replace(metadata, creator_token=0)
    return replace(
        metadata,
        ack_quorum_size=metadata.write_quorum_size,
        digest_type=None,
        password=None,
        ctime_ms=None,
        custom_metadata={},
        creator_token=0,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['name']}-v{row['version']}")
def test_metadata_is_written_as_java_writes_it(row: dict[str, Any]) -> None:
    assert encode(metadata_of(row)).hex() == row["hex"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['name']}-v{row['version']}")
def test_metadata_of_java_is_read(row: dict[str, Any]) -> None:
    assert decode(bytes.fromhex(row["hex"])) == as_stored(metadata_of(row))


def test_every_ledger_of_a_java_cluster_is_read() -> None:
    ledgers = [row for row in rows("znodes.jsonl") if "/L0" in row["path"]]
    assert len(ledgers) == 7
    for row in ledgers:
        stored = bytes.fromhex(row["hex"])
        assert encode(decode(stored)) == stored


@pytest.mark.parametrize("row", [row for row in ROWS if row["version"] == 3], ids=lambda row: row["name"])
def test_the_gateway_message_carries_everything(row: dict[str, Any]) -> None:
    metadata = metadata_of(row)
    assert from_format(to_format(metadata)) == metadata


def test_metadata_without_password_needs_an_old_version() -> None:
    bare = LedgerMetadata(1, 1, 1, (Fragment(0, ("a:1",)),), digest_type=None, password=None, format_version=3)
    with pytest.raises(MetadataSerializationException, match="password"):
        encode(bare)


def test_metadata_of_a_client_that_stored_no_password_are_changed() -> None:
    """BookKeeper 4.1 wrote version 2 so. Java reads it, and fails where it would write it."""
    stored = (
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 3\nlength: 0\nlastEntryId: -1\nstate: OPEN\n"
        b'segment {\n  ensembleMember: "a:1"\n  ensembleMember: "b:1"\n  ensembleMember: "c:1"\n  firstEntryId: 0\n}\n'
    )
    metadata = decode(stored)
    assert (metadata.password, metadata.digest_type, metadata.ack_quorum_size) == (None, None, 2)
    assert encode(metadata) == stored + b"ackQuorumSize: 2\n"
    closed = metadata.begin_recovery().with_ensemble(7, ("a:1", "b:1", "d:1")).close(9, 90)
    assert decode(encode(closed)) == closed
    assert b"password" not in encode(closed)
    assert b"digestType" not in encode(closed)


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        (LedgerMetadata(1, 1, 1, FRAGMENTS, digest_type=None, password=None), 1),
        (LedgerMetadata(1, 1, 1, FRAGMENTS, digest_type=None, password=None, custom_metadata={"a": b"b"}), 2),
        (LedgerMetadata(1, 1, 1, FRAGMENTS, digest_type=None, password=None, ctime_ms=5), 2),
        (LedgerMetadata(1, 1, 1, FRAGMENTS), 3),
    ],
)
def test_metadata_without_password_find_a_version_that_holds_them(metadata: LedgerMetadata, version: int) -> None:
    kept = without_password(metadata)
    assert decode(encode(kept)) == kept == replace(metadata, format_version=version)


HEADER = b"BookieMetadataFormatVersion\t"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"", "not ledger metadata"),
        (b"BookieMetadataFormatVersio\t3\n", "not ledger metadata"),
        (HEADER + b"0\n", "unknown format version 0"),
        (HEADER + b"4\n", "unknown format version 4"),
        (HEADER + b"0000000003\n", "no format version"),
        (HEADER + b"x\n", "no format version"),
        (HEADER + b"3\n", "no length"),
        (HEADER + b"3\n\x05\x08", "cut short"),
        (HEADER + b"3\n\x02\x08\x01", "lacks"),
        (HEADER + b"3\n\x02\xff\xff", "can't be read"),
        (HEADER + b"2\nquorumSize: many", "can't be read"),
        (HEADER + b"2\n\xff\xfe", "can't be read"),
        (HEADER + b"1\n3\n3\n", "only"),
        (HEADER + b"1\n3\n3\nx\n0\ta:1\n", "can't be read"),
        (HEADER + b"1\n1\n1\n0\n", "no ensemble"),
    ],
)
def test_damaged_metadata_is_refused(stored: bytes, message: str) -> None:
    with pytest.raises(MetadataFormatException, match=message):
        decode(stored)


def test_a_version_of_nine_digits_and_trailing_bytes_are_read() -> None:
    row = next(row for row in ROWS if row["version"] == 3)
    stored = bytes.fromhex(row["hex"])
    assert decode(stored.replace(b"\t3\n", b"\t000000003\n", 1) + b"trailing") == metadata_of(row)


def test_a_closed_ledger_without_last_entry_is_damaged() -> None:
    """F16: the Java reader takes it for a ledger that ends at entry 0."""
    message = to_format(metadata_of(ROWS[-1]))
    message.state = message.CLOSED
    message.ClearField("lastEntryId")
    with pytest.raises(MetadataFormatException, match="CLOSED without a last entry"):
        from_format(message)


def test_a_password_without_digest_type_is_damaged() -> None:
    message = to_format(metadata_of(ROWS[1]))
    message.ClearField("digestType")
    with pytest.raises(MetadataFormatException, match="without a digest type"):
        from_format(message)


def test_an_absent_ack_quorum_is_the_write_quorum() -> None:
    message = to_format(metadata_of(next(row for row in ROWS if row["version"] == 3)))
    message.ClearField("ackQuorumSize")
    assert from_format(message).ack_quorum_size == from_format(message).write_quorum_size


def test_length_and_last_entry_count_only_when_closed() -> None:
    message = to_format(metadata_of(next(row for row in ROWS if row["version"] == 3)))
    message.length, message.lastEntryId = 77, 7
    opened = from_format(message)
    assert (opened.length, opened.last_entry_id) == (0, -1)
