"""The known ledgers: those in memory, and those with an index header on disk.

Memory holds an LRU of bounded size. A ledger that is still in use (by the write cache, the list of dirty headers or a
request in flight) stays the only object for its id even after it left the LRU (`_held`), so that no two users ever see
different fences or keys.

Not its job: creating index files (`index.file_index`), rules on keys and fences (`ledger_state`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from weakref import WeakValueDictionary

from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.index.ledger_index import LedgerIndex
from bookgate.bookie.storage.deleted_ids import DeletedIds
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_store import LedgerStore, store_of
from bookgate.bookie.storage.limbo import Limbo
from bookgate.bookie.system.data_loss import ACCEPT_LOSS
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.bookie.system.threads import REAL_THREADS, Threads
from bookgate.ledger.entry import decode_lac_header
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId


class LedgerTable:
    """See the module. `limit` is the maximum number of unused ledgers kept in memory."""

    def __init__(
        self,
        stores: Sequence[LedgerStore],
        limit: int,
        threads: Threads = REAL_THREADS,
        limbo: Limbo | None = None,
        closed_before: Container[int] = (),
        deleted: DeletedIds | None = None,
    ) -> None:
        """Ledgers whose index has lost entries are added to `limbo`; those in `closed_before` are fenced (R9).
        `deleted` has those that were deleted, without a record in the journal that another one with the id began.
        """
        self._stores = stores
        self._limbo = limbo
        self._closed_before = closed_before
        self._deleted = DeletedIds() if deleted is None else deleted
        self._limit = limit
        self._lock = threads.lock()
        self._recent: OrderedDict[int, LedgerDescriptor] = OrderedDict()
        self._newest: LedgerDescriptor | None = None
        """The last result of `recent`: consecutive adds often belong to one ledger."""
        self._deleting: set[int] = set()
        self._held: WeakValueDictionary[int, LedgerDescriptor] = WeakValueDictionary()

    def get(self, ledger_id: LedgerId, *, headerless_is_unknown: bool = False) -> LedgerDescriptor | None:
        """The ledger, loaded from its index file if necessary; None if there is none.

        A crash may leave an index file without a header. Raises StorageCorruptException for it, unless
        `headerless_is_unknown`, and for a header that can't be read.
        """
        with self._lock:
            ledger = self._known(ledger_id)
            if ledger is None:
                ledger = self._load(ledger_id, headerless_is_unknown)
                if ledger is not None:
                    self._keep(ledger)
        return ledger

    def has_lost_header(self, ledger_id: LedgerId) -> bool:
        """Whether the index has entries of the ledger but no header, which no crash before the first flush leaves."""
        with self._lock:
            found = self._stored(ledger_id)
        return found is not None and found[0] is None and found[1] != NO_ENTRY

    def recent(self, number: int) -> LedgerDescriptor | None:
        """The ledger with this number if it is in the LRU cache."""
        ledger = self._newest
        if ledger is not None and ledger.number == number:
            return ledger
        with self._lock:
            ledger = self._recent.get(number)
            if ledger is not None:
                self._recent.move_to_end(number)
            self._newest = ledger
        return ledger

    def get_or_create(self, ledger_id: LedgerId, master_key: bytes) -> LedgerDescriptor:
        """The result of `get`, or else a new ledger with this key. Raises as `get` does."""
        with self._lock:
            ledger = self._known(ledger_id) or self._stored_or_new(ledger_id, master_key)
            self._keep(ledger)
        return ledger

    def create(self, ledger_id: LedgerId, master_key: bytes) -> LedgerDescriptor:
        """Creates a ledger that `get` does not know, or whose header was never written. It includes entries in its
        index file.
        """
        with self._lock:
            found = self._stored(ledger_id)
            last_entry_id = found[1] if found else -1
            ledger = self._new(ledger_id, master_key, last_entry_id)
            self._keep(ledger)
        return ledger

    def delete(
        self,
        ledger_id: LedgerId,
        discard: Callable[[LedgerDescriptor | None], bool],
        on_deleted: Callable[[int, bool, bool], None],
    ) -> bool:
        """Deletes the ledger from its index, and calls `discard` for the object in memory (None if there is none).

        If `discard` returns False the ledger stays, and so does this method. `on_deleted` gets its number, whether it
        was fenced, and whether it held an entry, before the deletion is visible. From now on look-ups do not find the
        ledger in the index; call `deleted` when the index itself shows the deletion.
        """
        key = ledger_id.number
        with self._lock:
            ledger = self._recent.get(key) or self._held.get(key)
            # First what may fail: a ledger that stays keeps what is not flushed.
            fenced, held_entries = self._fenced_on_disk(ledger_id) if ledger is None else (False, False)
            self._index(ledger_id).prepare_deletion()
            if not discard(ledger):
                return False
            self._recent.pop(key, None)
            self._held.pop(key, None)
            self._newest = None
            if ledger is not None:
                fenced = ledger.fenced or ledger.term is not None
                held_entries = ledger.limbo or ledger.last_entry_id != NO_ENTRY
            on_deleted(key, fenced, held_entries)
            self._deleting.add(key)
            self._index(ledger_id).delete(ledger_id)
            # Not before: a ledger that stays is not made anew.
            self._deleted.add(key)
            return True

    def drop(
        self,
        ledger_id: LedgerId,
        discard: Callable[[LedgerDescriptor], None],
        attempt: Callable[[Callable[[], object]], None],
    ) -> None:
        """Deletes the ledger at once, for a replay that finds its deletion. Raises OSError.

        `attempt` calls its argument. Where that finds no space, the next sync of the index makes the deletion durable.
        """

        def discard_known(ledger: LedgerDescriptor | None) -> bool:
            if ledger is not None:
                discard(ledger)
            return True

        self.delete(ledger_id, discard_known, lambda number, fenced, held_entries: None)
        attempt(self._index(ledger_id).sync)
        self.deleted(durably=False)
        self._deleted.discard(ledger_id.number)  # the journal already says so

    def deleted(self, *, durably: bool) -> None:
        """Must be called after the whole index was synced (`durably`), or could not be: from then on the index itself
        shows deletions.
        """
        with self._lock:
            if durably:
                self._deleted.durable()
            self._deleting.clear()

    def deleted_before(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Must be called with ledgers of which a replay found records but no key: an earlier process deleted those that
        are still unknown. If this one gets such an id, the ledger is made anew.
        """
        for ledger_id in ledger_ids:
            if self.get(ledger_id, headerless_is_unknown=True) is None and not self.has_lost_header(ledger_id):
                self._deleted.add(ledger_id.number)
        self._deleted.durable()

    def is_made_anew(self, ledger_id: LedgerId) -> bool:
        """Whether the journal may have records of a deleted ledger with this id, and none that another one began."""
        return ledger_id.number in self._deleted

    def made_anew(self, ledger: LedgerDescriptor) -> None:
        """Must be called once the journal has accepted the record that the ledger was made anew, and its key."""
        with self._lock:
            if not ledger.deleted:  # otherwise the next one is made anew, too
                self._deleted.discard(ledger.number)

    def enter_limbo(self, numbers: Iterable[int]) -> None:
        """Updates the objects in memory of ledgers that entered limbo."""
        with self._lock:
            for number in numbers:
                ledger = self._recent.get(number) or self._held.get(number)
                if ledger is not None:
                    ledger.limbo = ledger.fenced = True
                    # The replay has written the header as it was before, and the fence must outlive limbo.
                    ledger.has_header = False

    def leave_limbo(self, numbers: Iterable[int]) -> None:
        """Updates the objects in memory of ledgers that left limbo."""
        with self._lock:
            for number in numbers:
                ledger = self._recent.get(number) or self._held.get(number)
                if ledger is not None:
                    ledger.limbo = False

    def _stored(self, ledger_id: LedgerId) -> tuple[IndexHeader | None, int] | None:
        if self._deleting and ledger_id.number in self._deleting:
            return None
        return self._index(ledger_id).read_header(ledger_id)

    def _fenced_on_disk(self, ledger_id: LedgerId) -> tuple[bool, bool]:
        """Whether the ledger is fenced, and whether it held an entry; one in limbo may have held one."""
        try:
            found = self._index(ledger_id).read_header(ledger_id)
        except StorageCorruptException:
            return False, False
        header, last_entry_id = found or (None, NO_ENTRY)
        if header is None:
            return False, False
        fenced = header.fenced or header.terms is not None
        return fenced, header.limbo or last_entry_id != NO_ENTRY

    def _index(self, ledger_id: LedgerId) -> LedgerIndex:
        return store_of(self._stores, ledger_id.number).index

    def _known(self, ledger_id: LedgerId) -> LedgerDescriptor | None:
        key = ledger_id.number
        ledger = self._recent.get(key)
        if ledger is not None:
            self._recent.move_to_end(key)
            return ledger
        ledger = self._held.get(key)
        if ledger is not None:
            self._keep(ledger)
        return ledger

    def _load(self, ledger_id: LedgerId, headerless_is_unknown: bool) -> LedgerDescriptor | None:
        found = self._stored(ledger_id)
        return None if found is None else self._loaded(ledger_id, found, headerless_is_unknown)

    def _stored_or_new(self, ledger_id: LedgerId, master_key: bytes) -> LedgerDescriptor:
        found = self._stored(ledger_id)
        ledger = None if found is None else self._loaded(ledger_id, found, False)
        return ledger or self._new(ledger_id, master_key, NO_ENTRY)

    def _new(self, ledger_id: LedgerId, master_key: bytes, last_entry_id: int) -> LedgerDescriptor:
        limbo = self._in_limbo(ledger_id)
        fenced = limbo or ledger_id.number in self._closed_before
        return LedgerDescriptor(ledger_id, master_key, fenced=fenced, last_entry_id=last_entry_id, limbo=limbo)

    def _in_limbo(self, ledger_id: LedgerId) -> bool:
        return self._limbo is not None and ledger_id.number in self._limbo

    def _keep(self, ledger: LedgerDescriptor) -> None:
        self._recent[ledger.number] = ledger
        self._held[ledger.number] = ledger
        if len(self._recent) > self._limit:
            self._recent.popitem(last=False)

    def _loaded(
        self, ledger_id: LedgerId, found: tuple[IndexHeader | None, int], headerless_is_unknown: bool
    ) -> LedgerDescriptor | None:
        """The ledger in an index. Raises StorageCorruptException without a header, unless `headerless_is_unknown`."""
        header, last_entry_id = found
        if header is None and headerless_is_unknown:
            return None
        if header is None:
            raise StorageCorruptException(
                f"the index file of ledger {ledger_id} has no header; restore it, or stop the bookie, remove the file "
                f"and start the bookie once with {ACCEPT_LOSS}"
            )
        if header.lost and self._limbo is not None:
            # Recorded at once and durably: later adds must not hide the loss.
            self._limbo.add_lost([ledger_id.number])
        limbo = header.limbo or header.lost or self._in_limbo(ledger_id)
        fenced = header.fenced or limbo or ledger_id.number in self._closed_before
        ledger = LedgerDescriptor(
            ledger_id,
            header.master_key,
            # BookKeeper's bookie fences ledgers that it marks; limbo alone also stops normal adds.
            fenced=fenced,
            explicit_lac=header.explicit_lac,
            last_entry_id=last_entry_id,
            limbo=limbo,
        )
        if header.terms is not None:
            ledger.take_terms(header.terms)
            ledger.fenced = ledger.fenced or fenced
        if header.explicit_lac is not None:
            ledger.advance_lac(decode_lac_header(header.explicit_lac)[1])
        return ledger
