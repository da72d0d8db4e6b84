"""What is left over of streams, by the metadata of a scope alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import CURSOR_KEY, NAME_KEY, STREAM_KEY, CommittedCursor, encoded_stream
from bookgate.thinclient.core.streams.orphans import candidates, is_as_seen, names

OLD, NOW = 1000, 2000
SCOPE = 5


def made(number: int, custom: Mapping[str, bytes], created_ms: int | None = OLD) -> LedgerRecord:
    metadata = LedgerMetadata.new(["bookie-1"], 1, 1, custom_metadata=custom)
    return LedgerRecord(LedgerId(SCOPE, number), metadata, 3, created_ms)


def ledger(number: int, name: str, created_ms: int | None = OLD) -> LedgerRecord:
    return made(number, {NAME_KEY: name.encode()}, created_ms)


def stream(number: int, name: str, ledger: int) -> LedgerRecord:
    return made(number, {STREAM_KEY: encoded_stream(name, LedgerId(SCOPE, ledger))})


def cursor(number: int, name: str, ledger: int) -> LedgerRecord:
    stored = CommittedCursor(name, LedgerId(SCOPE, ledger).qualified_name, "c", RecordPosition(0, 0), 0)
    return made(number, {CURSOR_KEY: stored.encoded()})


def found(*records: LedgerRecord) -> set[tuple[str, int]]:
    return {(each.kind.value, each.record.ledger_id.low) for each in candidates(records, NOW)}


def test_a_whole_stream_has_no_orphans_in_whatever_order_it_is_listed() -> None:
    whole = [ledger(1, "a"), stream(2, "a", 1), cursor(3, "a", 1)]
    assert found(*whole) == found(*reversed(whole)) == set()


def test_what_no_record_names_is_an_orphan() -> None:
    assert found(ledger(1, "a"), cursor(3, "a", 1)) == {("ledger", 1), ("cursor", 3)}
    # Of an earlier stream of this name; of another name.
    again = [ledger(4, "a"), stream(2, "a", 4)]
    assert found(ledger(1, "a"), cursor(3, "a", 1), *again) == {("ledger", 1), ("cursor", 3)}
    assert found(ledger(1, "a"), stream(2, "b", 1)) == {("ledger", 1)}
    assert found(stream(2, "a", 1)) == {("stream", 2)}


def test_what_is_young_or_of_unknown_age_or_unreadable_is_none() -> None:
    assert found(ledger(1, "a", NOW), ledger(2, "a", None)) == set()
    assert (
        found(made(1, {}), made(2, {NAME_KEY: b"\xff"}), made(3, {CURSOR_KEY: b"{}"}), made(4, {STREAM_KEY: b"x"}))
        == set()
    )
    # A young record still names.
    assert found(ledger(1, "a"), replace(stream(2, "a", 1), created_ms=NOW)) == set()


def test_the_record_read_anew_says_whether_it_is_one() -> None:
    (orphan,) = candidates([ledger(1, "a")], NOW)
    assert not names(None, orphan)
    assert names(stream(2, "a", 1), orphan)
    assert not names(stream(2, "a", 9), orphan)
    assert names(made(2, {STREAM_KEY: b"x"}), orphan), "it may be this one's"


def test_what_was_made_anew_or_changed_is_not_the_orphan_that_was_seen() -> None:
    (left,) = candidates([cursor(3, "a", 1)], NOW)
    assert is_as_seen(cursor(3, "a", 1), left)
    assert not is_as_seen(replace(left.record, version=4), left)
    assert not is_as_seen(cursor(3, "a", 9), left), "of a later stream of this name"
    assert not is_as_seen(made(3, {}), left)
    (record,) = candidates([stream(2, "a", 1)], NOW)
    assert is_as_seen(stream(2, "a", 1), record)
    assert not is_as_seen(stream(2, "a", 9), record)
