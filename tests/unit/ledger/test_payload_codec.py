"""Records in entries: what is written is read, and what is damaged is refused within bounds."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger import payload_codec
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import IllegalOpException, IncorrectParameterException, PayloadCodecException
from bookgate.ledger.payload_codec import (
    MAX_DECODED_BYTES,
    Codec,
    Compression,
    codec_for,
    codec_of,
    decode_records,
    encode_records,
    records_of,
)
from bookgate.ledger.varint import encode_varint

BATCHES = [Codec.RECORDS, Codec.RECORDS_LZ4, Codec.RECORDS_ZSTD]


@pytest.mark.parametrize("codec", BATCHES)
@given(records=st.lists(st.binary(max_size=300), min_size=1, max_size=50))
def test_what_is_written_is_read(codec: Codec, records: list[bytes]) -> None:
    assert decode_records(codec, encode_records(codec, records)) == records


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    for codec in BATCHES:
        try:
            records = decode_records(codec, data)
        except PayloadCodecException:
            continue
        assert sum(map(len, records)) <= MAX_DECODED_BYTES


def test_the_bytes_are_those_of_the_page() -> None:
    assert encode_records(Codec.RECORDS, [b"ab", b"", b"c"]) == b"\x00\x03\x02\x00\x01abc"
    lz4 = encode_records(Codec.RECORDS_LZ4, [b"x" * 1000])
    assert lz4[:3] == b"\x01" + encode_varint(1003)
    assert len(lz4) < 50
    assert encode_records(Codec.RECORDS_ZSTD, [b"x" * 1000])[:7] == b"\x02" + encode_varint(1003) + b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize("codec", BATCHES)
def test_a_batch_that_compression_makes_no_smaller_stays_as_it_is(codec: Codec) -> None:
    assert encode_records(codec, [b"short"]) == b"\x00\x01\x05short"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "empty entry"),
        (b"\x07abc", "begins with the byte 7"),
        (b"\x00", "does not end"),
        (b"\x00\x02\x01", "does not end"),
        (b"\x00\x01\x05four", "don't fill"),
        (b"\x00\x01\x03fourth", "don't fill"),
        (b"\x00\xff\xff\xff\xff\x0f", "don't fit"),
        (b"\x00\xff\xff\xff\xff\xff\xff", "does not end"),
        (b"\x01" + encode_varint(MAX_DECODED_BYTES + 1) + b"x", "the most is"),
        (b"\x01\x05garbage", "can't be decompressed"),
        (b"\x02\x05garbage", "can't be decompressed"),
    ],
)
def test_damage_is_told(payload: bytes, words: str) -> None:
    with pytest.raises(PayloadCodecException, match=words):
        decode_records(Codec.RECORDS_ZSTD, payload)


def test_a_body_of_another_length_than_said_is_damaged() -> None:
    whole = encode_records(Codec.RECORDS_ZSTD, [b"x" * 1000])
    with pytest.raises(PayloadCodecException):
        decode_records(Codec.RECORDS_ZSTD, b"\x02" + encode_varint(1004) + whole[3:])
    with pytest.raises(PayloadCodecException):
        decode_records(Codec.RECORDS_ZSTD, b"\x02" + encode_varint(900) + whole[3:])


@pytest.mark.parametrize("states_size", [True, False])
def test_a_frame_that_holds_more_than_the_entry_says_takes_no_more_memory(states_size: bool) -> None:
    frame = zstandard.ZstdCompressor(write_content_size=states_size).compress(b"\0" * (64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadCodecException):
            decode_records(Codec.RECORDS_ZSTD, b"\x02" + encode_varint(100) + frame)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_does_not_state_its_size_is_read() -> None:
    body = b"\x01\xe8\x07" + b"x" * 1000
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    assert decode_records(Codec.RECORDS_ZSTD, b"\x02" + encode_varint(len(body)) + frame) == [b"x" * 1000]


@pytest.mark.parametrize("codec", [Codec.RECORDS_LZ4, Codec.RECORDS_ZSTD])
def test_no_entry_is_made_that_could_not_be_decoded(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_codec, "MAX_DECODED_BYTES", 1000)
    within = [b"x" * 997]
    assert decode_records(codec, encode_records(codec, within)) == within
    with pytest.raises(IncorrectParameterException, match="1001 bytes; at most 1000"):
        encode_records(codec, [b"x" * 998])
    assert decode_records(codec, encode_records(Codec.RECORDS, [b"x" * 998])) == [b"x" * 998]


def test_the_custom_metadata_name_the_codec() -> None:
    assert codec_of({}) is Codec.PLAIN
    assert codec_of({"bookgate.codec": b"records-1+lz4"}) is Codec.RECORDS_LZ4
    with pytest.raises(PayloadCodecException, match="'records-2' is not known here, only records-1, "):
        codec_of({"bookgate.codec": b"records-2"})
    with pytest.raises(IncorrectParameterException, match="compression is a Compression"):
        codec_for("lz4")  # type: ignore[arg-type]


def test_a_plain_ledger_has_a_record_an_entry() -> None:
    assert decode_records(Codec.PLAIN, b"any") == [b"any"]
    assert encode_records(Codec.PLAIN, [b"any"]) == b"any"
    for codec, records in ((Codec.PLAIN, [b"a", b"b"]), (Codec.RECORDS, [])):
        with pytest.raises(IncorrectParameterException):
            encode_records(codec, records)


def test_a_damaged_entry_is_named() -> None:
    with pytest.raises(PayloadCodecException, match="entry 3 of ledger 7: an empty entry"):
        records_of(Codec.RECORDS, [Entry(7, 3, 2, 0, b"")])


@pytest.mark.parametrize(("module", "compression"), [("lz4.block", Compression.LZ4), ("zstandard", Compression.ZSTD)])
def test_a_library_that_is_missing_is_named(
    module: str, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(IllegalOpException, match=r"pip install 'bookgate\[compression\]'"):
        codec_for(compression)
