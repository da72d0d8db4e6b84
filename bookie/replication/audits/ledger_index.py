"""An index of the ledgers that name each bookie, in the memory of an auditor in office. Pure.

An index belongs to one life of the store's feed: it is created when the feed has begun, and dropped when the feed is
lost. It is *growing* while all ledgers are listed and read in order, and *complete* afterwards. From the beginning,
ledgers reported by the feed are *due* to be read again; what is read replaces everything known of a ledger. So whatever
the order, once nothing is due, the index equals the store as of the last time that the feed was asked to catch up.
Source: docs/protocol/auto-recovery.md#index.

Each ledger has a *slot*, a small number that is reused when the ledger is gone, and each bookie a bitmap of slots. A
ledger of three copies thus takes some 150 bytes, whatever its id; bitmaps of ids would take five hundred for distant
ids. A ledger whose metadata can't be read names no known bookie; it is kept separately, with the reason.

Not its job: reading the store, and when (`index_keeper`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyroaring import BitMap

from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.number_array import NumberArray


class BookieLedgerIndex:
    """See the module. Ledgers are named by their numbers."""

    def __init__(self) -> None:
        self.complete = False
        """Whether all ledgers were read once."""
        self.read_up_to = -1
        """The last id that the first reading has listed."""
        self._named: dict[str, BitMap] = {}
        """Slots of ledgers by bookie."""
        self._slots: dict[int, int] = {}
        self._ids = NumberArray()
        """Ledger numbers by slot; a free slot keeps the last number."""
        self._free = BitMap()
        self._due = LedgerNumbers()
        self._unreadable: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def touch(self, ledger_ids: Iterable[int]) -> None:
        """Makes these ledgers due, since they may have changed."""
        self._due.update(ledger_ids)

    @property
    def due(self) -> LedgerNumbers:
        """A copy of the ids that must be read again."""
        return self._due.copy()

    def take_due(self, wanted: Iterable[int]) -> list[int]:
        """Returns the wanted ids that are due, and makes them no longer due: the caller must read them now."""
        return self._due.take(wanted)

    def put(self, asked: Iterable[int], records: Iterable[LedgerRecord], unreadable: Mapping[int, str]) -> None:
        """Stores the result of a reading.

        Args:
            asked: The ledgers that were read; those without a result below do not exist.
            records: The records found.
            unreadable: Ledgers with damaged metadata, with the error.
        """
        self._forget(asked)
        for number, why in unreadable.items():
            self._take_slot(number)
            self._unreadable[number] = why
        for record in records:
            slot = self._take_slot(record.ledger_id.number)
            for bookie_id in record.metadata.bookies:
                ledgers = self._named.get(bookie_id)
                if ledgers is None:
                    ledgers = self._named[bookie_id] = BitMap()
                ledgers.add(slot)

    def _take_slot(self, number: int) -> int:
        if self._free:
            slot = self._free.pop()
            self._ids[slot] = number
        else:
            slot = len(self._ids)
            self._ids.append(number)
        self._slots[number] = slot
        return slot

    def _forget(self, asked: Iterable[int]) -> None:
        gone = BitMap()
        for number in asked:
            slot = self._slots.pop(number, None)
            if slot is not None:
                gone.add(slot)
                self._unreadable.pop(number, None)
        if not gone:
            return
        self._free |= gone
        for bookie_id, ledgers in list(self._named.items()):
            ledgers -= gone
            if not ledgers:
                del self._named[bookie_id]

    def naming(self, bookie_ids: Iterable[str]) -> Mapping[int, Sequence[str]]:
        """The ledgers with an ensemble that names any of these bookies, ascending, each with the named ones, sorted."""
        found: dict[int, list[str]] = {}
        for bookie_id in sorted(set(bookie_ids)):
            for slot in self._named.get(bookie_id, ()):
                found.setdefault(self._ids[slot], []).append(bookie_id)
        return dict(sorted(found.items()))

    @property
    def named(self) -> Collection[str]:
        """Bookies that any ledger read so far names."""
        return self._named.keys()

    @property
    def bookies(self) -> Collection[str]:
        """Bookies that any ledger names that is not due."""
        due = BitMap(self._slots[number] for number in self._due if number in self._slots)
        return [bookie_id for bookie_id, ledgers in self._named.items() if not ledgers.issubset(due)]

    @property
    def unreadable(self) -> Mapping[int, str]:
        """Ledgers with damaged metadata, with the error."""
        return dict(self._unreadable)

    @property
    def known(self) -> Sequence[int]:
        """The numbers of all ledgers found, ascending."""
        return NumberArray(sorted(self._slots))

    def differing(self, asked: Iterable[int], other: BookieLedgerIndex) -> Sequence[int]:
        """The ids in `asked` that are not due and for which `other`, an index of only these, differs."""
        mine = {number for number in asked if number in self._slots}
        slots = BitMap(self._slots[number] for number in mine)
        wrong = mine ^ other._slots.keys()
        for bookie_id in {*self._named, *other._named}:
            wrong |= self._among(bookie_id, slots) ^ other._among(bookie_id, other._all)
        return [number for number in sorted(wrong) if number not in self._due]

    def _among(self, bookie_id: str, slots: BitMap) -> set[int]:
        return {self._ids[slot] for slot in self._named.get(bookie_id, BitMap()) & slots}

    @property
    def _all(self) -> BitMap:
        return BitMap(self._slots.values())
