"""Names, settings and cursors of streams in the metadata, and the bytes of an entry."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException, PayloadCodecException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import (
    OPENING,
    ProducerSequence,
    StreamEntry,
    decode_stream_entry,
    encode_stream_entry,
    records_of_entry,
)
from bookgate.ledger.streams import (
    CURSOR_KEY,
    CURSORS_KEY,
    DEFAULT_SCOPE,
    SETTINGS_KEY,
    STREAM_KEY,
    CommittedCursor,
    Retention,
    StreamSettings,
    cursor_names_of,
    cursor_record_id,
    encoded_cursor_names,
    encoded_stream,
    stream_of,
    stream_record_id,
)

entries = st.builds(
    StreamEntry,
    st.integers(0, (1 << 63) - 1),
    st.none() | st.integers(0, (1 << 32) - 1),
    st.lists(st.binary(max_size=50), max_size=5).map(tuple),
    st.lists(st.builds(ProducerSequence, st.text(max_size=9), st.integers(0, (1 << 63) - 1)), max_size=4).map(tuple),
)


@given(entries)
def test_an_entry_is_what_was_written(entry: StreamEntry) -> None:
    payload = encode_stream_entry(entry)
    assert payload, "an unbounded ledger has no empty entries but those that end a take-over"
    assert decode_stream_entry(payload) == entry
    assert [each.payload for each in records_of_entry(7, payload, 1)] == list(entry.records[1:])


def test_the_bytes_of_an_entry() -> None:
    """As docs/protocol/streams.md#entries shows them."""
    entry = StreamEntry(1_700_000_000_000, 0, (b"a", b""), (ProducerSequence("p", 3),))
    assert encode_stream_entry(entry).hex() == "088 0d095ffbc3110001a01611a002205 0a01701003".replace(" ", "")
    assert encode_stream_entry(OPENING).hex() == "0800"


@pytest.mark.parametrize("payload", [b"plain text", b"\xff" * 9])
def test_what_is_no_entry_of_a_stream_is_told(payload: bytes) -> None:
    with pytest.raises(PayloadCodecException, match="stream"):
        decode_stream_entry(payload)


def test_ids_follow_from_names() -> None:
    """They are stored in clusters: they never change."""
    assert stream_record_id("x").scope_id == DEFAULT_SCOPE
    assert (
        str(stream_record_id("orders")) == "6b664e3a2557d3b5" + f"{stream_record_id('orders').low & (1 << 64) - 1:016x}"
    )
    seen = {stream_record_id("a"), stream_record_id("b"), cursor_record_id("a", "b"), cursor_record_id("b", "a")}
    assert len(seen) == 4
    with pytest.raises(IncorrectParameterException, match="scope"):
        stream_record_id("a", 0)


@pytest.mark.parametrize("name", ["", "a\nb", "\x8e", "\ud800", "a" * 256, "é" * 128])
def test_a_name_that_no_stream_can_have_is_told(name: str) -> None:
    with pytest.raises(IncorrectParameterException, match="printable"):
        stream_record_id(name)


def test_settings_and_cursors_come_back() -> None:
    settings = StreamSettings(Retention(1.5, 10, True, False), 60.0)
    assert StreamSettings.of({SETTINGS_KEY: settings.encoded()}) == settings
    assert StreamSettings.of({SETTINGS_KEY: b'{"new":1}'}) == StreamSettings()
    assert cursor_names_of({CURSORS_KEY: encoded_cursor_names(("é", "b"))}) == ("é", "b")
    assert cursor_names_of({}) == ()
    assert stream_of({STREAM_KEY: encoded_stream("é", LedgerId(-1, 5))}) == ("é", LedgerId(-1, 5))
    assert stream_of({}) is None
    with pytest.raises(MetadataFormatException, match=STREAM_KEY):
        stream_of({STREAM_KEY: b'{"name":"x","ledger":"7"}'})


def test_cursors_of_clients_that_know_no_tokens_are_read_and_written_as_they_were() -> None:
    stored = b'{"stream":"s","ledger":"l","name":"c","entry":5,"record":2,"committed_ms":7}'
    cursor = CommittedCursor.of({CURSOR_KEY: stored})
    assert (cursor.token, cursor.encoded()) == ("", stored)
    drawn = CommittedCursor("s", "l", "c", RecordPosition(5, 2), 7, "aa")
    assert drawn != cursor
    assert CommittedCursor.of({CURSOR_KEY: drawn.moved(RecordPosition(6, 0), 8).encoded()}).token == "aa"


@pytest.mark.parametrize("stored", [b"", b"{", b"[]", b'{"max_bytes":-1}'])
def test_damaged_metadata_are_told(stored: bytes) -> None:
    with pytest.raises(MetadataFormatException, match=SETTINGS_KEY):
        StreamSettings.of({SETTINGS_KEY: stored})
    with pytest.raises(MetadataFormatException, match=CURSOR_KEY):
        CommittedCursor.of({CURSOR_KEY: stored})


_DEEP = b"[" * 100_000
"""Deeper than Python's reader of JSON goes."""


@pytest.mark.parametrize("stored", [_DEEP, b'{"max_age_seconds":NaN}', b'{"max_age_seconds":1e999}'])
def test_settings_that_are_no_json_are_told_as_such(stored: bytes) -> None:
    with pytest.raises(MetadataFormatException, match="no JSON"):
        StreamSettings.of({SETTINGS_KEY: stored})


@pytest.mark.parametrize(
    "wrong",
    [
        {"entry": None},
        {"record": []},
        {"committed_ms": "soon"},
        {"entry": float("inf")},
        {"name": "\ud800"},
        {"stream": "a\nb"},
    ],
)
def test_a_cursor_that_no_client_has_written_is_told(wrong: dict[str, object]) -> None:
    whole = {"stream": "s", "ledger": "l", "name": "c", "entry": 5, "record": 2, "committed_ms": 7}
    with pytest.raises(MetadataFormatException, match=CURSOR_KEY):
        CommittedCursor.of({CURSOR_KEY: json.dumps({**whole, **wrong}).encode()})


@pytest.mark.parametrize("name", ["", "\ud800", "a\x1b[2J"])
def test_names_that_no_stream_or_cursor_can_have_are_not_read(name: str) -> None:
    stored = {STREAM_KEY: json.dumps({"name": name, "ledger": "0" * 32}).encode()}
    with pytest.raises(MetadataFormatException, match="printable"):
        stream_of(stored)
    with pytest.raises(MetadataFormatException, match="printable"):
        cursor_names_of({CURSORS_KEY: json.dumps({"names": ["c", name]}).encode()})


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_age_seconds": -1}, {"max_bytes": True}])
def test_a_retention_without_sense_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(IncorrectParameterException, match=next(iter(limits))):
        Retention(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1.5, float("inf"), float("nan"), True, "60"])
def test_a_limit_without_sense_is_refused_when_it_is_given_and_when_it_is_read(limit: object) -> None:
    """What is infinite has no JSON: the stream's settings could not be read again."""
    for made in (
        lambda: Retention(max_age_seconds=limit),  # type: ignore[arg-type]
        lambda: StreamSettings(max_fragment_seconds=limit),  # type: ignore[arg-type]
    ):
        with pytest.raises(IncorrectParameterException, match="above 0"):
            made()
    with pytest.raises(MetadataFormatException):
        StreamSettings.of({SETTINGS_KEY: json.dumps({"max_fragment_seconds": limit}).encode()})
