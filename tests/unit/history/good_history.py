"""A small history in which everything is right, for tests that break one thing of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.history import events
from tests.history.events import (
    AppendAcknowledged,
    AppendAsked,
    BookieAnswered,
    BookieHolds,
    BookieStarted,
    Event,
    Fault,
    Healed,
    History,
    LedgerCreated,
    MetadataSeen,
    RawLedgerRecord,
    ReadDone,
    Recovered,
    RecoveryAsked,
    WriterLac,
)

BOOKIES = ("b1", "b2", "b3")
SIZES = (3, 3, 2)
CONTENTS = ("w/7/0/10", "w/7/1/10", "w/7/2/10")


def metadata(version: int, state: str, client: str = events.STORE, **changes: Any) -> MetadataSeen:
    """A record of ledger 7 on the three bookies."""
    closed = state == "CLOSED"
    end = (2, 30) if closed else (-1, 0)
    seen = MetadataSeen(0.0, client, "7", version, state, SIZES, ((0, BOOKIES),), *end, "seven")
    return replace(seen, **changes)


def answered(bookie: str, entry_id: int, operation: str = "add", status: str = "EOK", **changes: Any) -> BookieAnswered:
    return replace(BookieAnswered(0.0, bookie, "7", entry_id, operation, status, 0), **changes)


def holds(bookie: str, *, fenced: bool = True, entries: tuple[str, ...] = CONTENTS) -> BookieHolds:
    return BookieHolds(0.0, bookie, (RawLedgerRecord("7", fenced, tuple(enumerate(entries))),))


def good_history() -> History:
    """Ledger 7: three entries, one of which the writer never heard of again; recovered, read; a bookie lost power."""
    history: list[Event] = [LedgerCreated(0.0, "w", "7", SIZES, "seven"), metadata(0, "OPEN")]
    for number, content in enumerate(CONTENTS):
        history.append(AppendAsked(0.0, "w", "7", number, content))
        history += [answered(bookie, number, arrived_after=len(history)) for bookie in BOOKIES]
        if number < 2:
            history += [AppendAcknowledged(0.0, "w", "7", number, number), WriterLac(0.0, "w", "7", number)]
    history += [Fault(0.0, "power-loss", "b1"), BookieStarted(0.0, "b1"), holds("b1", fenced=False)]
    history += [RecoveryAsked(0.0, "r", "7"), metadata(1, "IN_RECOVERY")]
    for bookie in BOOKIES:
        history.append(answered(bookie, -1, "fencing-read", arrived_after=len(history)))
        history.append(answered(bookie, 3, "fencing-read", "ENOENTRY", arrived_after=len(history)))
    history.append(answered("b2", 9, "add", "EFENCED", arrived_after=len(history)))
    history.append(answered("b2", 9, "add", "EUA", arrived_after=len(history), wrong_key=True))
    history += [metadata(2, "CLOSED"), Recovered(0.0, "r", "7", 2, 30), metadata(2, "CLOSED", "r")]
    history += [ReadDone(0.0, "r", "7", 0, CONTENTS, 2), Healed(1.0)]
    history += [Recovered(2.0, "h", "7", 2, 30), ReadDone(2.0, "h", "7", 0, CONTENTS, 2)]
    return history + [holds(bookie) for bookie in BOOKIES]
