"""How far a stream may be trimmed.

Invariants. T4: what a cursor has not committed stays, where the stream keeps records for its cursors. T5: the last
snapshot of producers and all after it stay, so that the next writer knows which records are duplicates.

Not its job: finding the entries (`search`), and the trim, which keeps the last fragment (`ledger.unbounded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import Retention


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """Entries that the limits of a stream name: the first that is young enough, the first that is within the size.

    None where the stream has no such limit.
    """

    by_age: int | None = None
    by_size: int | None = None


def first_to_keep(
    retention: Retention, limits: RetentionBounds, cursors: Sequence[RecordPosition], last_snapshot: int
) -> int:
    """The first entry that stays; -1 if nothing is to be deleted."""
    wanted = [limit for limit in (limits.by_age, limits.by_size) if limit is not None]
    slowest = min(cursors).entry_id if cursors else None
    if retention.delete_consumed and slowest is not None:
        wanted.append(slowest)
    before = max(wanted, default=-1)
    if retention.keep_for_cursors and slowest is not None:
        before = min(before, slowest)
    return min(before, last_snapshot)
