"""The write path of storage: write cache, then journal.

An entry, a fence or an explicit LAC goes into the write cache (or its ledger onto the list of dirty headers) and is
then queued for the journal of its ledger, journal `ledgerId mod n`, which returns its completion.

Invariants: everything journaled is in the write cache or on the list of dirty headers before it is queued, so that a
checkpoint that takes its mark after the record includes it (S1, S6). The ledger's key, and fence and term it was loaded
with, are journaled before anything else of it by this process, so that no fence and no explicit LAC of a ledger without
entries is lost (F3). If a ledger with the same id was deleted, the journal also records that the ledger was created
again. A request whose ledger was deleted after its look-up creates the ledger again.

The event loop calls everything here. Not its job: whether a request is allowed (`ledger_state`, `protocol.admission`),
when checkpoints are made and what disk errors mean (`storage`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bookgate.bookie.index import file_format
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.journal.journal import Journal
from bookgate.bookie.storage.checkpoint import Checkpointer
from bookgate.bookie.storage.ledger_descriptor import LedgerDeletedException, LedgerDescriptor, descriptor_of
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage.ledger_table import LedgerTable
from bookgate.bookie.storage.write_cache import WriteCache
from bookgate.bookie.storage_events import Completion, StorageEvents
from bookgate.ledger.entry import decode_lac_header, header_size_of, lac_header_size_of, packet_ids, packet_lac
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId, ledger_name
from bookgate.ledger.wire.messages import AddRequest

MOST_TRUNCATED = 1 << 20
"""Maximum number of ids that one truncation deletes: more than any writer has in flight. Each takes memory until the
next checkpoint."""


class EntryWriter:
    """Methods raise StorageStoppedException, or OSError for lack of space, while nothing is accepted."""

    def __init__(
        self,
        cache: WriteCache,
        journals: Sequence[Journal],
        ledgers: LedgerTable,
        checkpointer: Checkpointer,
        events: StorageEvents,
        *,
        journal_entries: bool,
    ) -> None:
        """Without `journal_entries` an entry is `stored` at once; all other records are still journaled."""
        self._cache = cache
        self._journals = journals
        self._journal = journals[0] if len(journals) == 1 else None
        """The only journal, if there is one: saves every add the choice."""
        self._ledgers = ledgers
        self._checkpointer = checkpointer
        self._events = events
        self._journals_entries = journal_entries

    @property
    def accepts_adds(self) -> bool:
        """False while the write cache or a journal's queue is full: adds must then wait for capacity."""
        if self._journal is not None:
            return not (self._journal.is_full or self._cache.is_full)
        return not (self._cache.is_full or any(journal.is_full for journal in self._journals))

    def create_ledger(self, ledger_id: LedgerId, master_key: bytes) -> LedgerDescriptor:
        """Creates a ledger that the table does not know. It becomes durable with its first record.

        Raises IncorrectParameterException for a key that is too long.
        """
        if not file_format.fits_header(master_key, b""):
            raise IncorrectParameterException(
                f"ledger {ledger_id}: a master key of {len(master_key)} bytes is too long"
            )
        return self._ledgers.get_or_create(ledger_id, master_key)

    def create_fenced_ledger(self, ledger_id: LedgerId, master_key: bytes) -> LedgerDescriptor:
        """Like `create_ledger`, for a ledger that accepts no writer's add from its first record on."""
        ledger = self.create_ledger(ledger_id, master_key)
        # The fence is journaled with the key, before the first record.
        ledger.fenced = True
        return ledger

    def add_entry(
        self,
        ledger: BookieLedgerState,
        entry_id: int,
        packet: bytes,
        completion: Completion | None,
        *,
        sync: bool = True,
    ) -> None:
        """Stores an entry packet, or replaces it; `completion` (unless None) is `stored` once it is durable.

        Without `sync` that is once the entry is written; a later `force` of the ledger makes it durable.

        Raises IncorrectParameterException if the packet does not belong to this entry.
        """
        stored = descriptor_of(ledger)
        self._check_packet(stored, entry_id, packet)
        self.add_checked_entry(stored, entry_id, packet, completion, sync)

    def add_checked_entry(
        self, stored: LedgerDescriptor, entry_id: int, packet: bytes, completion: Completion | None, sync: bool = True
    ) -> None:
        """Like `add_entry`, for a packet whose ids were checked and whose LAC the ledger already knows."""
        # Into the cache before the journal: a checkpoint whose mark is after the record must find the entry.
        try:
            is_due = self._cache.put(stored, entry_id, packet)
            if not stored.key_journaled:
                self._journal_key(stored)
        except LedgerDeletedException:
            self.add_checked_entry(self._recreate(stored), entry_id, packet, completion, sync)
            return
        if is_due:
            self._checkpointer.request()
        journal = self._journal or self._journal_of(stored.number)
        if self._journals_entries:
            journal.append(packet, completion, not sync)
        elif completion is not None:
            self._events.stored((completion,))
        if entry_id > stored.last_entry_id:
            stored.last_entry_id = entry_id

    def add_checked_run(
        self, stored: LedgerDescriptor, entry_ids: Sequence[int], packets: Sequence[bytes], completion: Completion
    ) -> None:
        """Like `add_checked_entry`, for entries with ascending ids; `completion` is `stored` once all are durable."""
        try:
            is_due = self._cache.put_run(stored, entry_ids, packets)
            if not stored.key_journaled:
                self._journal_key(stored)
        except LedgerDeletedException:
            self.add_checked_run(self._recreate(stored), entry_ids, packets, completion)
            return
        if is_due:
            self._checkpointer.request()
        if self._journals_entries:
            (self._journal or self._journal_of(stored.number)).append_run(packets, completion)
        else:
            self._events.stored((completion,))
        stored.last_entry_id = max(stored.last_entry_id, entry_ids[-1])

    def add_at_known_term(
        self, ledger: BookieLedgerState, entry_id: int, packet: bytes, completion: Completion
    ) -> None:
        """Stores an entry of an unbounded ledger at the term that is in the ledger's journal already.

        Raises LedgerDeletedException if the ledger was deleted after it was looked up; nothing is then stored.
        """
        stored = descriptor_of(ledger)
        if self._cache.put(stored, entry_id, packet):
            self._checkpointer.request()
        if self._journals_entries:
            (self._journal or self._journal_of(stored.number)).append(packet, completion)
        else:
            self._events.stored((completion,))
        if entry_id > stored.last_entry_id:
            stored.last_entry_id = entry_id

    def add_at_term(self, ledger: BookieLedgerState, request: AddRequest, completion: Completion) -> None:
        """Stores an entry of an unbounded ledger, and deletes all entries above it if the request truncates.

        `completion` is `stored` once entry, term and deletion are durable.

        Raises IncorrectParameterException if the packet does not belong to this entry, the ledger's header has no space
        for the term, or the truncation would delete too many entries; nothing is then stored.
        """
        stored = descriptor_of(ledger)
        self._check_room_for_term(stored)
        above = stored.last_entry_id - request.entry_id
        if request.truncate and above > MOST_TRUNCATED:
            raise IncorrectParameterException(
                f"ledger {stored.ledger_id} has entries up to {above} above entry {request.entry_id}; "
                f"at most {MOST_TRUNCATED} are deleted at once"
            )
        self._check_packet(stored, request.entry_id, request.body)
        try:
            self._add_at_term(stored, request, completion)
        except LedgerDeletedException:
            self._add_at_term(self._recreate(stored), request, completion)

    def _add_at_term(self, ledger: LedgerDescriptor, request: AddRequest, completion: Completion) -> None:
        assert request.term is not None, "an add of an ordinary ledger goes another way"
        self._raise_term(ledger, request.term, takes_over=request.recovery)
        if request.lafr is not None:
            ledger.lafr = max(ledger.lafr, request.lafr)
        is_due = self._cache.put(ledger, request.entry_id, request.body)
        if request.truncate:
            is_due |= self._cache.delete(ledger, ledger.truncate(request.entry_id))
        if is_due:
            self._checkpointer.request()
        ledger.last_entry_id = max(ledger.last_entry_id, request.entry_id)
        self._journal_at_term(ledger, request, completion)

    def _journal_at_term(self, ledger: LedgerDescriptor, request: AddRequest, completion: Completion) -> None:
        """Journals an entry, after its term and the other state of the ledger were journaled."""
        journal = self._journal_of(ledger.number)
        if self._journals_entries:
            journal.append(request.body, None)
        if request.truncate:
            journal.append(journal_format.encode_truncate(ledger.number, request.entry_id), None)
        journal.force(completion)

    def fence_at_term(self, ledger: BookieLedgerState, term: int, completion: Completion) -> None:
        """Fences lower terms, whose adds are rejected from now on; `completion` is `stored` once that is durable.

        Raises IncorrectParameterException if the ledger's header has no space for the term.
        """
        stored = descriptor_of(ledger)
        self._check_room_for_term(stored)
        try:
            self._raise_term(stored, term, takes_over=True)
        except LedgerDeletedException:
            stored = self._recreate(stored)
            self._raise_term(stored, term, takes_over=True)
        self._journal_of(stored.number).force(completion)

    def _check_room_for_term(self, ledger: LedgerDescriptor) -> None:
        if ledger.term is None and not _fits(ledger, ledger.explicit_lac or b"", with_term=True):
            raise IncorrectParameterException(
                f"ledger {ledger.ledger_id}: master key and explicit LAC leave no room for a term in the index header"
            )

    def _raise_term(self, ledger: LedgerDescriptor, term: int, *, takes_over: bool) -> None:
        if not ledger.key_journaled:
            self._journal_key(ledger)
        before = ledger.term, ledger.fenced
        if not ledger.raise_term(term, takes_over=takes_over):
            return
        try:
            self._write_state(ledger, _term_record(ledger), None)
        except BaseException:
            # Otherwise the next request would treat this term as durable.
            ledger.term, ledger.fenced = before
            raise

    def fence(self, ledger: BookieLedgerState, completion: Completion) -> None:
        """Fences the ledger for good; `completion` is `stored` once that is durable, also if it was fenced before."""
        stored = descriptor_of(ledger)
        try:
            self._fence(stored, completion)
        except LedgerDeletedException:
            self._fence(self._recreate(stored), completion)

    def _fence(self, ledger: LedgerDescriptor, completion: Completion) -> None:
        if not ledger.key_journaled:
            self._journal_key(ledger)
        if ledger.fenced:
            self._journal_of(ledger.number).force(completion)
            return
        ledger.fenced = True
        try:
            self._write_state(ledger, journal_format.encode_fence(ledger.number), completion)
        except BaseException:
            # Otherwise the next fence would treat this one as durable.
            ledger.fenced = False
            raise

    def write_explicit_lac(self, ledger: BookieLedgerState, packet: bytes, completion: Completion) -> None:
        """Replaces the ledger's explicit LAC packet; `completion` is `stored` once it is durable.

        Raises IncorrectParameterException if the packet does not belong to this ledger.
        """
        stored = descriptor_of(ledger)
        if len(packet) < lac_header_size_of(stored.number) or not _fits(
            stored, packet, with_term=stored.term is not None
        ):
            raise IncorrectParameterException(
                f"ledger {stored.ledger_id}: an explicit LAC packet of {len(packet)} bytes is out of range"
            )
        number, lac = _lac_of(stored, packet)
        if number != stored.number:
            raise IncorrectParameterException(
                f"ledger {stored.ledger_id}: the LAC packet is of ledger {ledger_name(number)}"
            )
        record = journal_format.encode_explicit_lac(number, packet)
        try:
            self._set_explicit_lac(stored, packet, lac, record, completion)
        except LedgerDeletedException:
            self._set_explicit_lac(self._recreate(stored), packet, lac, record, completion)

    def _set_explicit_lac(
        self, ledger: LedgerDescriptor, packet: bytes, lac: int, record: bytes, completion: Completion
    ) -> None:
        ledger.explicit_lac = packet
        ledger.advance_lac(lac)
        self._write_state(ledger, record, completion)

    def force(self, ledger_id: LedgerId, completion: Completion) -> None:
        """Reports `completion` as `stored` once every earlier record is durable. The ledger need not exist."""
        self._journal_of(ledger_id.number).force(completion)

    def _check_packet(self, ledger: LedgerDescriptor, entry_id: int, packet: bytes) -> None:
        """Checks the properties that replay relies on, and records the packet's LAC."""
        if len(packet) < header_size_of(ledger.number) or not 0 <= entry_id <= file_format.MAX_ENTRY_ID:
            raise IncorrectParameterException(
                f"ledger {ledger.ledger_id}: entry id {entry_id} or packet size {len(packet)} is out of range"
            )
        try:
            number, packet_entry_id = packet_ids(packet)
        except ValueError as error:
            raise IncorrectParameterException(f"entry {entry_id} of ledger {ledger.ledger_id}: {error}") from error
        if number != ledger.number or packet_entry_id != entry_id:
            raise IncorrectParameterException(
                f"entry {entry_id} of ledger {ledger.ledger_id}: the packet says entry {packet_entry_id} of "
                f"{ledger_name(number)}"
            )
        lac = packet_lac(packet) or 0
        if not (number or entry_id or lac):
            raise IncorrectParameterException("entry 0 of ledger 0 can't carry LAC 0: an entry's LAC is below its id")
        ledger.advance_lac(lac)

    def _write_state(self, ledger: LedgerDescriptor, record: bytes, completion: Completion | None) -> None:
        if self._cache.mark_header(ledger):
            self._checkpointer.request()
        if not ledger.key_journaled:
            self._journal_key(ledger)
        self._journal_of(ledger.number).append(record, completion)

    def _journal_key(self, ledger: LedgerDescriptor) -> None:
        """Journals the state with which the ledger was loaded: a killed process may not have synced it."""
        if not ledger.has_header:
            self._cache.mark_header(ledger)
        journal = self._journal_of(ledger.number)
        is_made_anew = self._ledgers.is_made_anew(ledger.ledger_id)
        if is_made_anew:
            journal.append(journal_format.encode_made_anew(ledger.number), None)
        journal.append(journal_format.encode_key(ledger.number, ledger.master_key), None)
        if ledger.fenced:
            journal.append(journal_format.encode_fence(ledger.number), None)
        if ledger.term is not None:
            journal.append(_term_record(ledger), None)
        if is_made_anew:
            # Not before: a refused request comes again, and finds the ledger made anew.
            self._ledgers.made_anew(ledger)
        ledger.key_journaled = True

    def _journal_of(self, number: int) -> Journal:
        return self._journals[number % len(self._journals)]

    def _recreate(self, gone: LedgerDescriptor) -> LedgerDescriptor:
        """Creates again a ledger that was deleted after the request looked it up."""
        return self._ledgers.get_or_create(gone.ledger_id, gone.master_key)


def _fits(ledger: LedgerDescriptor, explicit_lac: bytes, *, with_term: bool) -> bool:
    return file_format.fits_header(ledger.master_key, explicit_lac, with_term=with_term)


def _term_record(ledger: LedgerDescriptor) -> bytes:
    assert ledger.terms is not None, "the ledger has a term"
    return journal_format.encode_term(ledger.number, ledger.terms)


def _lac_of(ledger: LedgerDescriptor, packet: bytes) -> tuple[int, int]:
    """(ledger number, LAC) of an explicit LAC packet. Raises IncorrectParameterException if it is too short."""
    try:
        return decode_lac_header(packet)
    except (ValueError, struct.error) as error:
        raise IncorrectParameterException(f"ledger {ledger.ledger_id}: {error}") from error
