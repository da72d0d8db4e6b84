"""The spread of copies: hosts and racks in the windows of an ensemble, and the search for a good spread. Pure.

An ensemble is a ring; each window of write-quorum-size neighbours is the write set of some entries. Copies on one host
are lost together, like those in one rack, so hosts come first: every window spans as many hosts as possible, then as
many racks as wanted. A host is in one rack: bookies with the same host name in different racks, which a mapping may
produce, count as different hosts.

Bookies at one place are interchangeable, and so are places of a rack with equally many bookies of which none is used
yet. The searches try only one of several interchangeable places, which keeps them short whatever the number of bookies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

_Member = TypeVar("_Member", bound=Hashable)

_SEARCH_LIMIT = 20_000
"""Search steps after which a spread is considered unattainable."""


class Place(NamedTuple):
    """The rack and host of a bookie."""

    rack: str
    host: str


NOWHERE: Final = Place("", "")
"""A rack and a host in which no bookie is."""


class UnknownPlace(Place):
    """The place of a bookie of which nobody has said where it is; its rack and host are a guess."""

    __slots__ = ()


class Lack(NamedTuple):
    """The number of hosts and of racks that all windows of an ensemble lack in total. Fewer is better, hosts first."""

    hosts: int
    racks: int


def lack_of(places: Sequence[Place], window: int, wanted_racks: int) -> Lack:
    """The hosts and racks that the windows of an ensemble lack in total."""
    return Lack(missing(places, window, window), missing_racks(places, window, wanted_racks))


def missing(members: Sequence[Hashable], window: int, wanted: int, index: int | None = None) -> int:
    """The number of distinct members that all windows of the ring lack in total; 0 if each spans as many as wanted."""
    return sum(max(0, wanted - count) for count in kinds_in_windows(members, window, index))


def missing_racks(places: Sequence[Place], window: int, wanted: int, index: int | None = None) -> int:
    """The number of racks that all windows lack in total. A member of unknown place is in no rack of its own."""
    racks = [None if isinstance(place, UnknownPlace) else place.rack for place in places]
    known = (max(1, len(kinds - {None})) for kinds in _windows(racks, window, index))
    return sum(max(0, wanted - count) for count in known)


def spans_racks(places: Sequence[Place], window: int, wanted: int, index: int) -> bool:
    """Whether the windows that contain position `index` each span as many racks as wanted.

    A member of unknown place counts as no further rack. Where therefore no bookie would do at `index`, one in a rack of
    its own does: who is gone for good could otherwise keep others from being replaced for ever.
    """
    at_best = [at if isinstance(place, UnknownPlace) else place.rack for at, place in enumerate(places)]
    if missing(at_best, window, wanted, index):
        return False
    least = missing_racks([*places[:index], NOWHERE, *places[index + 1 :]], window, wanted, index)
    return missing_racks(places, window, wanted, index) <= least


def kinds_in_windows(members: Sequence[Hashable], window: int, index: int | None = None) -> list[int]:
    """The number of distinct members in each window of the ring, or only in the windows that contain position
    `index`.
    """
    return [len(kinds) for kinds in _windows(members, window, index)]


def _windows(members: Sequence[_Member], window: int, index: int | None) -> Iterator[set[_Member]]:
    size = len(members)
    starts = range(size) if index is None else {(index - offset) % size for offset in range(window)}
    return ({members[(start + offset) % size] for offset in range(window)} for start in starts)


def find_ensemble(order: Sequence[Place], size: int, window: int, hosts: int, racks: int) -> list[int] | None:
    """Positions in `order` that form an ensemble whose windows all span this many hosts and racks; None if none is
    found.

    Earlier positions are preferred.
    """
    if len({*order}) < hosts or len({place.rack for place in order}) < racks:
        return None
    return _Search(order, size, window, hosts, racks).run()


class _Search:
    """Depth-first search; hosts and racks that are not yet among the neighbours are tried first."""

    def __init__(self, order: Sequence[Place], size: int, window: int, hosts: int, racks: int) -> None:
        self._size = size
        self._window = window
        self._hosts = hosts
        self._racks = racks
        self._at: dict[Place, list[int]] = {}
        for position, place in enumerate(order):
            self._at.setdefault(place, []).append(position)
        self._used: dict[Place, int] = {}
        self._chosen: list[int] = []
        self._places: list[Place] = []
        self._steps = 0

    def run(self) -> list[int] | None:
        return self._chosen if self._extend() else None

    def _extend(self) -> bool:
        if len(self._chosen) == self._size:
            return True
        for position, place in self._options():
            self._steps += 1
            if self._steps > _SEARCH_LIMIT:
                return False
            self._chosen.append(position)
            self._places.append(place)
            self._used[place] = self._used.get(place, 0) + 1
            if self._fits() and self._extend():
                return True
            self._used[place] -= 1
            self._places.pop()
            self._chosen.pop()
        return False

    def _options(self) -> list[tuple[int, Place]]:
        free = {place: len(positions) - self._used.get(place, 0) for place, positions in self._at.items()}
        used = {place for place, count in self._used.items() if count}
        found = [(self._at[place][self._used.get(place, 0)], place) for place in different(free, used)]
        neighbours = {*self._places[max(0, len(self._places) - self._window + 1) :]}
        racks = {place.rack for place in neighbours}
        return sorted(found, key=lambda option: (option[1] in neighbours, option[1].rack in racks, option[0]))

    def _fits(self) -> bool:
        """Whether the windows completed by the last choice span enough hosts and racks."""
        if len(self._places) == self._size:
            return self._suffice(self._places)
        last = self._places[-self._window :]
        return len(last) < self._window or self._suffice(last, 0)

    def _suffice(self, places: Sequence[Place], index: int | None = None) -> bool:
        hosts = kinds_in_windows(places, self._window, index)
        racks = kinds_in_windows([place.rack for place in places], self._window, index)
        return min(hosts) >= self._hosts and min(racks) >= self._racks


def different(free: Mapping[Place, int], used: set[Place]) -> Iterator[Place]:
    """The places with a free bookie, only one of several interchangeable ones; see the module."""
    seen = set[tuple[str, int]]()
    for place, count in free.items():
        if not count:
            continue
        if place not in used:
            if (place.rack, count) in seen:
                continue
            seen.add((place.rack, count))
        yield place


def improve(
    places: Sequence[Place], window: int, wanted_racks: int, free: Mapping[Place, int]
) -> list[Place | None] | None:
    """Finds the fewest moves of members after which the windows lack as little as possible.

    `free` is the number of bookies that may be chosen at each place.

    Returns:
        For each position its new place, or None if the bookie stays; None if no move improves the ensemble.
    """
    return _Improvement(places, window, wanted_racks, free).run()


class _Improvement:
    """Tries moves of one position first, then of two, and so on, until only the unavoidable is lacking or the search
    limit is reached.
    """

    def __init__(self, places: Sequence[Place], window: int, wanted_racks: int, free: Mapping[Place, int]) -> None:
        self._places = list(places)
        self._window = window
        self._wanted = wanted_racks
        self._free = dict(free)
        self._least = lack_of(places, window, wanted_racks)
        self._unavoidable = _unavoidable({*places, *free}, len(places), window, wanted_racks)
        self._chosen: list[Place | None] = [None] * len(places)
        self._best: list[Place | None] | None = None
        self._steps = 0

    def run(self) -> list[Place | None] | None:
        for changes in range(1, len(self._places) + 1):
            if self._is_over:
                break
            self._change(changes, 0)
        return self._best

    @property
    def _is_over(self) -> bool:
        return self._least == self._unavoidable or self._steps > _SEARCH_LIMIT

    def _change(self, changes: int, start: int) -> None:
        for index in range(start, len(self._places) - changes + 1):
            before = self._places[index]
            for place in list(different(self._free, {*self._places})):
                if place == before or self._is_over:
                    continue
                self._steps += 1
                self._places[index] = self._chosen[index] = place
                self._free[place] -= 1
                if changes > 1:
                    self._change(changes - 1, index + 1)
                else:
                    self._judge()
                self._free[place] += 1
                self._places[index], self._chosen[index] = before, None

    def _judge(self) -> None:
        lack = lack_of(self._places, self._window, self._wanted)
        if lack < self._least:
            self._least, self._best = lack, list(self._chosen)


def _unavoidable(places: set[Place], size: int, window: int, wanted_racks: int) -> Lack:
    """The hosts and racks that any choice among these places lacks."""
    racks = len({place.rack for place in places})
    return Lack(size * max(0, window - len(places)), size * max(0, wanted_racks - racks))
