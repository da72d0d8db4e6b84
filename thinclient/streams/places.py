"""Where a reader of a stream begins: an end of it, a position or a time; also as people write it."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.payload_codec import RecordPosition


class Start(Enum):
    """Where a reader begins."""

    EARLIEST = auto()
    """At the first record that no retention has deleted."""
    LATEST = auto()
    """After the last record that is confirmed."""


From = Start | RecordPosition | datetime


def place_of(text: str) -> From:
    """The place that somebody wrote. Raises IncorrectParameterException, which says what to write."""
    if text in ("earliest", "latest"):
        return Start[text.upper()]
    entry, _, record = text.partition(":")
    if entry.isdecimal() and (record.isdecimal() or text == entry):
        return RecordPosition(int(entry), int(record or 0))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise IncorrectParameterException(
            f"{text!r} is no place in a stream: give earliest, latest, an entry's id, ENTRY:RECORD, or a time with its "
            "zone, such as 2026-01-31T12:00:00Z"
        )
    return found
