"""Checkers of what gateways promise: M1 to M7. Each looks at a whole history and returns how many things it saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tests.history.events import Event, Fault
from tests.history.history_index import HistoryIndex
from tests.history.metadata_events import (
    GONE,
    ChangeAsked,
    ChangeEnded,
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
from tests.history.violations import (
    BadListing,
    DeniedCallChanged,
    LostOutcomeMisjudged,
    NewestNotDelivered,
    ReadBackwards,
    ResumedWatchMissed,
    StoreWatchesLeft,
    WatchWentBack,
)

INTRUDER = "intruder"
"""Name of the client whose changes the policy denies, in worlds that have one."""


def denied_calls_change_nothing(story: HistoryIndex) -> int:
    """A1: nothing that the intruder has asked for was done, as the store and the intruder itself saw it."""
    looked = 0
    for event in story.of_metadata:
        if isinstance(event, StoreChanged) and event.mark.startswith(INTRUDER):
            raise DeniedCallChanged(f"ledger {event.ledger} has a change of {event.mark}", event)
        if isinstance(event, ChangeEnded) and event.client == INTRUDER:
            looked += 1
            if event.outcome == "done":
                raise DeniedCallChanged(f"{event.kind} of ledger {event.ledger} was done for {INTRUDER}", event)
    return looked


def watch_answers_grow(story: HistoryIndex) -> int:
    """M1, and that a removal is the last word (M2). Each subscription that a gateway reads may be answered anew."""
    looked = 0
    last: dict[tuple[object, ...], StreamTold | WatchTold] = {}
    asked: Counter[tuple[object, ...]] = Counter()
    for event in story.of_metadata:
        if isinstance(event, StreamAsked):
            asked[event.gateway, event.stream, event.ledger] += 1
            continue
        if isinstance(event, StreamTold):
            key: tuple[object, ...] = (event.gateway, event.stream, event.ledger)
        elif isinstance(event, WatchTold):
            key = (event.client, event.watch)
        else:
            continue
        looked += 1
        before = last.get(key)
        last[key] = event
        if before is not None and (before.version == GONE or GONE != event.version <= before.version):
            if not asked[key]:
                _goes_back(before, event)
            asked[key] -= 1
        elif before is None and asked[key]:
            asked[key] -= 1
    return looked


def _goes_back(before: StreamTold | WatchTold, event: StreamTold | WatchTold) -> NoReturn:
    if before.version == GONE:
        raise NewestNotDelivered(f"ledger {event.ledger}: an answer after its removal was told", before, event)
    raise WatchWentBack(f"ledger {event.ledger}: {event.version} after {before.version}", before, event)


@dataclass
class _Watch:
    begun: WatchBegun
    told: list[WatchTold] = field(default_factory=list)
    over: bool = False
    troubled: bool = False
    """A fault fell into its life."""


def newest_is_delivered(story: HistoryIndex) -> int:
    """M2: of watches in whose life nothing went wrong."""
    return _all_are_told(story, troubled=False)


def resumed_watches_miss_nothing(story: HistoryIndex) -> int:
    """M3: of the others."""
    return _all_are_told(story, troubled=True)


def _all_are_told(story: HistoryIndex, troubled: bool) -> int:
    looked = 0
    newest: dict[str, StoreChanged] = {}
    watches: dict[tuple[str, int], _Watch] = {}
    for event in story.of_metadata:
        match event:
            case StoreChanged():
                newest[event.ledger] = event
            case WatchBegun():
                watches[event.client, event.watch] = _Watch(event)
            case WatchTold():
                watch = watches[event.client, event.watch]
                watch.told.append(event)
                # Nothing is promised after that; whether it was right to say is M4's.
                watch.over = watch.over or event.version == GONE
            case WatchEnded():
                watches[event.client, event.watch].over = True
            case Fault():
                for each in watches.values():
                    each.troubled = True
            case Quiet():
                for each in watches.values():
                    if each.troubled is troubled and not each.over:
                        looked += 1
                        _is_told(each, newest.get(each.begun.ledger), event)
            case _:
                pass
    return looked


def _is_told(watch: _Watch, newest: StoreChanged | None, quiet: Quiet) -> None:
    version = GONE if newest is None else newest.version
    told = watch.told[-1].version if watch.told else None
    if told == version:
        return
    kind = ResumedWatchMissed if watch.troubled else NewestNotDelivered
    shown: list[Event] = [watch.begun, *watch.told[-3:], *([newest] if newest else []), quiet]
    raise kind(
        f"{watch.begun.client} was told version {told} of ledger {watch.begun.ledger} last, not {version}", *shown
    )


def clients_never_read_backwards(story: HistoryIndex) -> int:
    """M4: what is asked for once a state was seen is not older than the store was then, on whichever ledger."""
    looked = 0
    store = _Store()
    seen: dict[str, StoreChanged] = {}
    asked: dict[tuple[str, object, int], StoreChanged | None] = {}
    for event in story.of_metadata:
        match event:
            case StoreChanged():
                store.add(event)
                continue
            case RecordAsked():
                asked[event.client, "call", event.call] = seen.get(event.client)
                continue
            case WatchBegun():
                asked[event.client, "watch", event.watch] = seen.get(event.client)
                continue
            case RecordGot():
                frontier = asked.pop((event.client, "call", event.call), None)
            case WatchTold():
                frontier = asked.get((event.client, "watch", event.watch))
            case ChangeEnded(outcome="done") if event.kind != "remove":
                frontier = None
            case _:
                continue
        looked += 1
        state = store.state(event.ledger, event.version)
        if frontier is not None:
            newer = store.newer_at(event.ledger, frontier.order, state)
            if newer is not None:
                what = "nothing" if event.version == GONE else f"version {event.version}"
                sight = f"{event.client} was given {what} of ledger {event.ledger} though it had seen a later state"
                raise ReadBackwards(sight, newer, frontier, event)
        if state is not None and (event.client not in seen or seen[event.client].order < state.order):
            seen[event.client] = state
    return looked


class _Store:
    """What the store has committed so far."""

    def __init__(self) -> None:
        self._changes: dict[str, list[StoreChanged]] = defaultdict(list)

    def add(self, change: StoreChanged) -> None:
        self._changes[change.ledger].append(change)

    def state(self, ledger: str, version: int) -> StoreChanged | None:
        """The newest change that made this version, or removed the ledger; None: it was never there."""
        return next((each for each in reversed(self._changes[ledger]) if each.version == version), None)

    def newer_at(self, ledger: str, order: int, state: StoreChanged | None) -> StoreChanged | None:
        """A change that was in the store at `order` and is newer than the state."""
        known = [each for each in self._changes[ledger] if each.order <= order]
        if known and (state is None or state.order < known[-1].order) and known[-1].version != GONE:
            return known[-1]
        return known[-1] if known and state is not None and state.order < known[-1].order else None

    def existed(self, ledger: str) -> bool:
        return bool(self._changes[ledger])

    def living(self) -> set[str]:
        return {ledger for ledger, changes in self._changes.items() if changes and changes[-1].version != GONE}


@dataclass
class _Listing:
    asked: ListingAsked
    throughout: set[str]
    """What existed when it was asked for, and still does."""
    pages: list[ListingPage] = field(default_factory=list)


def listings_are_whole(story: HistoryIndex) -> int:
    """M5."""
    looked = 0
    store = _Store()
    under_way: dict[tuple[str, int], _Listing] = {}
    for event in story.of_metadata:
        match event:
            case StoreChanged():
                store.add(event)
                if event.version == GONE:
                    for listing in under_way.values():
                        listing.throughout.discard(event.ledger)
            case ListingAsked():
                under_way[event.client, event.listing] = _Listing(event, store.living())
            case ListingPage():
                looked += 1
                listing = under_way[event.client, event.listing]
                _page_is_right(listing, event, store)
                listing.pages.append(event)
            case ListingEnded():
                looked += 1
                _has_all(under_way.pop((event.client, event.listing)), event)
            case _:
                pass
    return looked


def _page_is_right(listing: _Listing, page: ListingPage, store: _Store) -> None:
    before: Sequence[int] = listing.pages[-1].ids if listing.pages else ()
    previous = before[-1] if before else -1
    for number in page.ids:
        if number <= previous:
            raise BadListing(f"{number} came after {previous}", listing.asked, *listing.pages[-1:], page)
        if not store.existed(str(number)):
            raise BadListing(f"there never was a ledger {number}", listing.asked, page)
        previous = number


def _has_all(listing: _Listing, end: ListingEnded) -> None:
    listed = {str(number) for page in listing.pages for number in page.ids}
    missing = sorted(listing.throughout - listed)
    if missing:
        raise BadListing(f"ledger {missing[0]} existed throughout and is missing", listing.asked, *listing.pages, end)


def lost_outcomes_are_resolved(story: HistoryIndex) -> int:
    """M6."""
    looked = 0
    by_mark: dict[str, list[StoreChanged]] = defaultdict(list)
    removed: set[str] = set()
    there: dict[str, bool] = {}
    """By the mark of a removal: whether the ledger was there when it was asked for."""
    created: set[str] = set()
    refused: dict[str, ChangeEnded] = {}
    winners: dict[tuple[str, int], ChangeEnded] = {}
    for event in story.of_metadata:
        if isinstance(event, StoreChanged):
            if event.version == GONE:
                removed.add(event.ledger)
                continue
            created.add(event.ledger)
            if not event.mark:
                continue  # nobody's who asks whether it happened
            by_mark[event.mark].append(event)
            if len(by_mark[event.mark]) > 1:
                raise LostOutcomeMisjudged(f"{event.mark} happened twice", *by_mark[event.mark])
            if event.mark in refused:
                raise LostOutcomeMisjudged(f"{event.mark} happened after it was refused", refused[event.mark], event)
        if isinstance(event, ChangeAsked):
            there[event.mark] = event.ledger in created
        if not isinstance(event, ChangeEnded):
            continue
        looked += 1
        if event.outcome == "refused":
            refused[event.mark] = event
            if by_mark[event.mark]:
                raise LostOutcomeMisjudged(f"{event.mark} was refused but happened", by_mark[event.mark][0], event)
        elif event.outcome == "done" and event.kind == "remove":
            if there.get(event.mark, True) and event.ledger not in removed:
                raise LostOutcomeMisjudged(f"ledger {event.ledger} is still there", event)
        elif event.outcome == "done":
            for problem in _winner_problems(event, by_mark[event.mark], winners):
                raise LostOutcomeMisjudged(problem, *by_mark[event.mark], event)
            winners[event.ledger, event.version] = event
    return looked


def _winner_problems(
    done: ChangeEnded, changes: list[StoreChanged], winners: dict[tuple[str, int], ChangeEnded]
) -> Iterator[str]:
    if not changes:
        yield f"{done.mark} is said to be done but did not happen"
    elif (changes[0].ledger, changes[0].version) != (done.ledger, done.version):
        yield f"{done.mark} is said to have made version {done.version} of ledger {done.ledger}; it made another"
    if (done.ledger, done.version) in winners:
        yield f"version {done.version} of ledger {done.ledger} has two makers"


def store_watches_are_few(story: HistoryIndex) -> int:
    """M7."""
    looked = 0
    for event in story.of_metadata:
        if isinstance(event, GatewayWatches):
            looked += 1
            if event.watched != event.wanted:
                raise StoreWatchesLeft(f"watched: {event.watched}; wanted: {event.wanted}", event)
    return looked
