"""The position of a cursor: the first record that is not committed. It never moves back but by a reset.

Invariants. T6: a commit that succeeded is never undone by another commit: each is a compare-and-set on the record that
its consumer has read, and moves the position up or leaves it.

Not its job: storing (`thinclient.streams.cursor`).
"""

from __future__ import annotations

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import CommittedCursor


def after(position: RecordPosition) -> RecordPosition:
    """The position to commit once the record at `position` is processed."""
    return RecordPosition(position.entry_id, position.number + 1)


def committed(cursor: CommittedCursor, position: RecordPosition, now_ms: int) -> CommittedCursor | None:
    """The cursor after a commit; None if it is there already.

    Raises:
        IncorrectParameterException: The position is below the committed one.
    """
    if position < cursor.position:
        raise IncorrectParameterException(
            f"cursor {cursor.name!r} of stream {cursor.stream!r} can't move back from entry {cursor.position.entry_id} "
            f"record {cursor.position.number} to entry {position.entry_id} record {position.number}; `reset` does that"
        )
    return None if position == cursor.position else cursor.moved(position, now_ms)
