"""What interrupted creations and deletions of streams have left in a scope: pure, metadata in, a judgement out.

| kind | is |
|---|---|
| `ledger` | a ledger with a stream's mark that no record names |
| `cursor` | a cursor whose stream is not there, or has another ledger |
| `stream` | a record whose ledger is gone |

A listing is no snapshot: it may have passed a place before something was made there. What it shows as an orphan is
therefore a candidate, and `names` says of its stream's record, read anew, whether it is one. Not its job: reading and
deleting (`thinclient.streams.orphans`). Source: docs/protocol/streams.md#orphans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import CURSOR_KEY, NAME_KEY, CommittedCursor, check_name, stream_of


class Kind(StrEnum):
    """See the module."""

    LEDGER = "ledger"
    CURSOR = "cursor"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something left over, as it was seen.

    Attributes:
        kind: What it is.
        stream: The name of the stream that it was for.
        cursor: The name of the cursor; empty for other kinds.
        ledger: The stream's ledger, as a qualified name.
        record: The ledger or record that is left over; it is deleted in this version, or not at all.
    """

    kind: Kind
    stream: str
    cursor: str
    ledger: str
    record: LedgerRecord


def candidates(records: Iterable[LedgerRecord], before_ms: int) -> list[Orphan]:
    """What looks like an orphan in a complete listing of a scope, and was created before a time: nothing of unknown
    age, and nothing whose marks can't be read.
    """
    found: list[Orphan] = []
    listed: set[str] = set()
    named: set[tuple[str, str]] = set()
    for record in records:
        listed.add(record.ledger_id.qualified_name)
        orphan = _part_of_a_stream(record)
        if orphan is None:
            continue
        if orphan.kind is Kind.STREAM:
            named.add((orphan.stream, orphan.ledger))
        if record.creation_ms is not None and record.creation_ms < before_ms:
            found.append(orphan)
    return [
        each
        for each in found
        if (each.ledger not in listed if each.kind is Kind.STREAM else (each.stream, each.ledger) not in named)
    ]


def names(record: LedgerRecord | None, orphan: Orphan) -> bool:
    """Whether the record of the orphan's stream, None for none, has its ledger: then it is no orphan. A record that
    can't be read may have it.
    """
    if record is None:
        return False
    try:
        found = stream_of(record.metadata.custom_metadata)
    except MetadataFormatException:
        return True
    return found is not None and (found[0], found[1].qualified_name) == (orphan.stream, orphan.ledger)


def is_as_seen(record: LedgerRecord, orphan: Orphan) -> bool:
    """Whether what is stored at the orphan's id now is the orphan, unchanged. The version does not tell: what was made
    anew there begins at version 0 again.
    """
    found = _part_of_a_stream(record)
    return (
        found is not None and record.version == orphan.record.version and replace(found, record=orphan.record) == orphan
    )


def _part_of_a_stream(record: LedgerRecord) -> Orphan | None:
    """What part of which stream a ledger says that it is; None: of none, as far as anybody can read."""
    custom, own = record.metadata.custom_metadata, record.ledger_id.qualified_name
    try:
        if (found := stream_of(custom)) is not None:
            return Orphan(Kind.STREAM, found[0], "", found[1].qualified_name, record)
        if CURSOR_KEY in custom:
            cursor = CommittedCursor.of(custom)
            return Orphan(Kind.CURSOR, cursor.stream, cursor.name, cursor.ledger, record)
        if NAME_KEY in custom:
            return Orphan(Kind.LEDGER, check_name("stream", custom[NAME_KEY].decode()), "", own, record)
    except (MetadataFormatException, IncorrectParameterException, UnicodeDecodeError):
        return None
    return None


def ledger_of(orphan: Orphan) -> LedgerId:
    """The ledger that the record of a stream names."""
    return LedgerId.parse(orphan.ledger)
