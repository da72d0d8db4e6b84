"""What writers and recoverers share: which adds are under way at which member, by handles that snapshots can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from bookgate.ledger.entry import Entry
from bookgate.thinclient.core.writing import LedgerWriter, Member, PendingAdd
from tests.explore.letters import Add, Handle, Move
from tests.explore.servers import LEDGER

BOOKIES = "b0", "b1", "b2", "b3"


def payload_of(entry_id: int) -> bytes:
    """What every entry of that id has to hold, on whichever bookie."""
    return b"." * (entry_id % 3)


def length_at(entry_id: int) -> int:
    """The length of a ledger that ends at that entry."""
    return sum(len(payload_of(each)) for each in range(entry_id + 1))


class AddsUnderWay:
    """The adds of one `LedgerWriter` that bookies have yet to answer.

    A handle names the entry, the index and the generation of the member there: how often it was replaced before.
    """

    def __init__(self, bookies: Mapping[str, int], *, recovery: bool) -> None:
        self._bookies = bookies
        self._recovery = recovery
        self._adds: dict[int, PendingAdd] = {}
        self._members: dict[tuple[int, int], Member] = {}
        """By index and generation; also those replaced, as long as answers of theirs may come."""
        self._generations: list[int] = []

    def see(self, members: Sequence[Member]) -> None:
        """The members as they are now."""
        if not self._generations:
            self._generations = [0] * len(members)
        for index, member in enumerate(members):
            known = self._members.get((index, self._generations[index]))
            self._generations[index] += known is not None and known is not member
            self._members[index, self._generations[index]] = member

    def send(self, add: PendingAdd, payload: bytes, members: Iterable[Member]) -> list[tuple[int, Handle, object]]:
        """The requests for these members."""
        self._adds[add.entry_id] = add
        entry = Entry(LEDGER.number, add.entry_id, add.last_add_confirmed, add.length, payload)
        return [
            (self._bookies[member.bookie_id], self._handle(add, member), Add(entry, self._recovery))
            for member in members
        ]

    def _handle(self, add: PendingAdd, member: Member) -> Handle:
        return ("add", add.entry_id, member.index, self._generations[member.index])

    def of(self, handle: Handle) -> tuple[PendingAdd, Member]:
        """The add and the member of an answer."""
        return self._adds[handle[1]], self._members[handle[2], handle[3]]

    def settle(self, outstanding: set[Handle], writer: LedgerWriter) -> set[Handle]:
        """Forgets what no answer can change any more; returns the handles that are left."""
        if writer.error is not None and not writer.pending_count:
            self._adds.clear()
        left = {handle for handle in outstanding if handle[0] != "add" or handle[1] in self._adds}
        awaited = [handle for handle in left if handle[0] == "add"]
        entries, members = {handle[1] for handle in awaited}, {(handle[2], handle[3]) for handle in awaited}
        self._adds = {entry_id: add for entry_id, add in self._adds.items() if entry_id in entries}
        members |= set(enumerate(self._generations))
        self._members = {place: member for place, member in self._members.items() if place in members}
        for add in self._adds.values():
            if add.entry_id <= writer.last_add_confirmed:
                # Confirmed: nobody counts its acknowledgements again, whichever they are.
                add.acked, add.acks, add.failures = 0, len(self._generations), 0
        return left


def replacements(failed: Mapping[int, str], ensemble: Sequence[str], bookies: Iterable[str]) -> list[Move]:
    """Each way in which placement may replace the failed bookies; by nobody where there is nobody."""
    free = [name for name in bookies if name not in ensemble and name not in failed.values()]
    indexes = sorted(failed)
    if not indexes or not free:
        return [("replace", ())]
    ways = [
        names for names in product([*free, None], repeat=len(indexes)) if len(_named(names)) == len(set(_named(names)))
    ]
    most = max(len(_named(names)) for names in ways)
    return [
        ("replace", tuple((index, name) for index, name in zip(indexes, names, strict=True) if name))
        for names in ways
        if len(_named(names)) == most
    ]


def _named(names: Iterable[str | None]) -> list[str]:
    return [name for name in names if name]
