"""The checkers of M1 to M7 accept a history in which all is right, and refuse one in which their own is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.events import Event, Fault, History
from tests.history.metadata_events import (
    GONE,
    BookieChanged,
    BookiesAsked,
    BookiesTold,
    ChangeAsked,
    ChangeEnded,
    GatewayShowed,
    GatewayWatches,
    ListingAsked,
    ListingEnded,
    ListingPage,
    Quiet,
    RecordAsked,
    RecordGot,
    StoreChanged,
    StreamAsked,
    StreamTold,
    WatchBegun,
    WatchEnded,
    WatchTold,
)
from tests.history.recorder import load, save
from tests.history.verdict import CHECKERS, check_history

BEGIN: History = [
    ChangeAsked(0.0, "a", "m1", "create", "7"),
    StoreChanged(0.1, "7", 0, 11, "m1"),
    ChangeEnded(0.2, "a", "m1", "create", "done", "7", 0),
    WatchBegun(0.3, "b", "7", 1),
    StreamAsked(0.3, "g1", 1, "7"),
    StreamTold(0.3, "g1", 1, "7", 0),
    WatchTold(0.3, "b", "7", 1, 0),
    ListingAsked(0.4, "a", 1),
    ChangeAsked(0.4, "a", "m2", "write", "7"),
    StoreChanged(0.5, "7", 1, 12, "m2"),
    ChangeEnded(0.6, "a", "m2", "write", "done", "7", 1),
    StreamTold(0.6, "g1", 1, "7", 1),
    WatchTold(0.6, "b", "7", 1, 1),
    ListingPage(0.6, "a", 1, (7,)),
    ListingEnded(0.6, "a", 1),
]
LATER: History = [
    Fault(0.7, "gateway-crash", "g1"),
    ChangeAsked(0.8, "c", "m3", "create", "9"),
    StoreChanged(0.8, "9", 0, 13, "m3"),
    ChangeEnded(0.8, "c", "m3", "create", "unknown", "9", 0),
    RecordAsked(0.8, "a", "7", 1),
    RecordGot(0.9, "a", "7", 1, 1),
    WatchBegun(0.9, "c", "7", 2),
    WatchTold(0.9, "c", "7", 2, 1),
    StreamAsked(0.9, "g2", 1, "7"),
    StreamTold(0.9, "g2", 1, "7", 1),
]
QUIET: History = [
    GatewayWatches(1.0, "g2", ("7",), ("7",)),
    Quiet(1.0),
]
GOOD = BEGIN + LATER + QUIET

TWICE = StreamTold(0.9, "g2", 1, "7", 1)
OLD_READ: History = [RecordAsked(0.95, "a", "7", 2), RecordGot(0.95, "a", "7", 2, 0)]
BLIND_READ: History = [RecordAsked(0.95, "a", "7", 2), RecordGot(0.95, "a", "7", 2, GONE)]
BEHIND: History = [
    StoreChanged(0.91, "7", 2, 14, "m4"),
    StoreChanged(0.92, "9", 1, 15, "m5"),
    WatchBegun(0.93, "d", "9", 3),
    WatchTold(0.93, "d", "9", 3, 1),
    RecordAsked(0.94, "d", "7", 3),
    RecordGot(0.94, "d", "7", 3, 1),
]
REMOVED: History = [StoreChanged(0.95, "7", GONE, 14, ""), WatchTold(0.96, "c", "7", 2, GONE)]

BOOKIES: History = [BookieChanged(0.1, "b", "1", 11), BookieChanged(0.2, "b", "", 12), BookieChanged(0.2, "c", "2", 13)]
SEEN_TWICE: History = [
    BookiesAsked(0.3, "g1", 1),
    BookiesTold(0.4, "g1", 1, (("c", "2"),)),
    BookiesAsked(0.5, "g1", 2),
    BookiesTold(0.6, "g1", 2, (("b", "1"), ("c", "2"))),
]
AGAIN: History = [BookieChanged(0.1, "b", "1", 11), BookieChanged(0.2, "b", "", 12), BookieChanged(0.3, "b", "1", 13)]
"""A bookie whose session ends: it registers again with the same label."""
TOLD_THEN_GONE: History = [
    BookiesAsked(0.4, "g1", 1),
    BookiesTold(0.5, "g1", 1, (("b", "1"),)),
    BookiesAsked(0.6, "g1", 2),
    BookiesTold(0.7, "g1", 2, ()),
]

BROKEN: dict[str, tuple[str, History]] = {
    "a gateway says it twice": ("M1", [*BEGIN, *LATER, TWICE, *QUIET]),
    "a client is told an older one": ("M1", [*GOOD, WatchTold(1.1, "b", "7", 1, 0)]),
    "a change is not told": ("M2", [*BEGIN[:-4], *BEGIN[-2:], Quiet(1.0)]),
    "a removal is told twice": ("M2", [*BEGIN, *LATER, *REMOVED, WatchTold(0.97, "c", "7", 2, GONE)]),
    "a change is not told after a crash": ("M3", [*GOOD[:-1], StoreChanged(0.9, "7", 2, 14, "m4"), Quiet(1.0)]),
    "a removal is not told after a crash": ("M3", [*BEGIN, *LATER, REMOVED[0], *QUIET]),
    "an older version is read": ("M4", [*BEGIN, *LATER, *OLD_READ, *QUIET]),
    "a ledger that was seen is not found": ("M4", [*BEGIN, *LATER, *BLIND_READ, *QUIET]),
    "another ledger is read as it was before": ("M4", [*BEGIN, *LATER, *BEHIND]),
    "a watch begins with an older version": (
        "M4",
        [*BEGIN, WatchBegun(0.9, "a", "7", 5), WatchTold(0.9, "a", "7", 5, 0)],
    ),
    "a bookie is told as it was before an answer of the gateway": (
        "M4",
        [*BOOKIES, GatewayShowed(0.3, "g1", 12), BookiesAsked(0.4, "g1", 1), BookiesTold(0.5, "g1", 1, (("b", "1"),))],
    ),
    "a bookie is told that was told to be gone": ("M4", [*BOOKIES, *SEEN_TWICE]),
    "a bookie that was told to be there again is told to be gone": (
        "M4",
        [*AGAIN, GatewayShowed(0.3, "g1", 12), *TOLD_THEN_GONE],
    ),
    "a ledger is listed twice": ("M5", [*BEGIN[:-1], ListingPage(0.6, "a", 1, (7,)), BEGIN[-1]]),
    "a ledger is not listed": ("M5", [*BEGIN[:-2], BEGIN[-1]]),
    "a ledger that never was is listed": ("M5", [*BEGIN[:-1], ListingPage(0.6, "a", 1, (8,)), BEGIN[-1]]),
    "a write happens twice": ("M6", [*BEGIN, StoreChanged(0.7, "7", 2, 13, "m2")]),
    "a refused write has happened": (
        "M6",
        [*BEGIN, StoreChanged(0.7, "7", 2, 13, "m4"), ChangeEnded(0.8, "a", "m4", "write", "refused", "7", 0)],
    ),
    "a refused write happens later": (
        "M6",
        [*BEGIN, ChangeEnded(0.7, "a", "m4", "write", "refused", "7", 0), StoreChanged(0.8, "7", 2, 13, "m4")],
    ),
    "a write that did not happen is done": ("M6", [*BEGIN, ChangeEnded(0.7, "a", "m4", "write", "done", "7", 2)]),
    "two wrote one version": ("M6", [*BEGIN, ChangeEnded(0.7, "z", "m2", "write", "done", "7", 1)]),
    "a removed ledger is there": ("M6", [*BEGIN, ChangeEnded(0.7, "a", "m4", "remove", "done", "7", GONE)]),
    "a store watch is left": ("M7", [*BEGIN, GatewayWatches(1.0, "g1", ("7",), ())]),
    "a store watch is missing": ("M7", [*BEGIN, GatewayWatches(1.0, "g1", (), ("7",))]),
}
FINE: dict[str, list[Event]] = {
    "another gateway tells a bookie as it was": [
        *BOOKIES,
        GatewayShowed(0.3, "g1", 12),
        BookiesAsked(0.4, "g2", 1),
        BookiesTold(0.5, "g2", 1, (("b", "1"),)),
    ],
    "a bookie is told as it was when it was asked for": [
        *BOOKIES,
        BookiesAsked(0.3, "g1", 1),
        GatewayShowed(0.4, "g1", 12),
        BookiesTold(0.5, "g1", 1, (("b", "1"),)),
    ],
    "a bookie that is there again is told as it was, and then as gone": [*AGAIN, *TOLD_THEN_GONE],
    "a removal is told": [*BEGIN, *LATER, *REMOVED, WatchTold(0.97, "b", "7", 1, GONE), Quiet(1.0)],
    "who has left is told nothing": [*BEGIN, WatchEnded(0.9, "b", "7", 1), REMOVED[0], Quiet(1.0)],
    "a subscription begins anew": [*BEGIN, StreamAsked(0.7, "g1", 1, "7"), StreamTold(0.7, "g1", 1, "7", 1)],
    "a ledger is removed while it is listed": [*BEGIN[:-2], REMOVED[0], BEGIN[-1]],
    "a removed ledger is not found": [*BEGIN, REMOVED[0], *BLIND_READ],
    "what was never there is removed": [
        ChangeAsked(0.0, "a", "m9", "remove", "5"),
        ChangeEnded(0.1, "a", "m9", "remove", "done", "5", GONE),
    ],
    "a read that began before a newer state was seen": [
        RecordAsked(0.0, "a", "7", 2),
        *BEGIN,
        RecordGot(0.95, "a", "7", 2, 0),
    ],
}


def test_a_good_history_is_accepted() -> None:
    verdict = check_history(GOOD)
    assert not verdict.violations, verdict
    assert all(verdict.looked[invariant] for invariant in CHECKERS if invariant.startswith("M"))


@pytest.mark.parametrize("name", FINE)
def test_what_looks_odd_but_is_fine(name: str) -> None:
    verdict = check_history(FINE[name])
    assert not verdict.violations, verdict


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_found(name: str) -> None:
    invariant, history = BROKEN[name]
    assert invariant in check_history(history).broken


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    assert {invariant for invariant, _ in BROKEN.values()} == {name for name in CHECKERS if name.startswith("M")}


def test_events_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "history"
    save(GOOD, path)
    assert load(path) == GOOD
