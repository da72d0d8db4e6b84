"""A ledger's state, with the fields that storage keeps for it."""

from __future__ import annotations

from bookgate.bookie.index.terms import Terms
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.wire.messages import Status

DELETED = b"deleted"
"""Marks an entry in the write cache, instead of its packet, as deleted, whatever the index still has.

Compared by identity.
"""


class LedgerDeletedException(Exception):
    """The ledger was deleted after this object was looked up; look it up, or create it, again."""


class LedgerDescriptor(BookieLedgerState):
    """A ledger known to storage. There is at most one object for a ledger at any time.

    Hashed by identity: it is the key of the write cache.
    """

    __slots__ = (
        "__weakref__",
        "deleted",
        "has_header",
        "key_journaled",
        "last_entry_id",
        "limbo",
        "number",
        "stored_lac",
    )

    def __init__(
        self,
        ledger_id: LedgerId,
        master_key: bytes,
        *,
        fenced: bool = False,
        explicit_lac: bytes | None = None,
        known_lac: int = NO_ENTRY,
        last_entry_id: int = NO_ENTRY,
        limbo: bool = False,
    ) -> None:
        super().__init__(ledger_id, master_key, fenced=fenced, explicit_lac=explicit_lac, known_lac=known_lac)
        self.number = ledger_id.number
        self.last_entry_id = last_entry_id
        """Highest entry held in cache or index, -1 if none."""
        self.limbo = limbo
        """Whether the ledger is in limbo: entries that are not held are unknown. It is fenced then."""
        self.deleted = False
        """Set under the write cache's lock once the ledger was deleted: this object accepts nothing more."""
        self.has_header = False
        """Whether this process has made the index file with its header durable since the ledger was loaded."""
        self.key_journaled = False
        """Whether this process has journaled the master key, and the fence if there was one."""
        self.stored_lac: int | None = None if last_entry_id != NO_ENTRY else NO_ENTRY
        """LAC of the last entry on disk when the ledger was loaded; None until it is first needed."""

    def check_key(self, master_key: bytes) -> Status:
        """Like the state's own, but never EUA for a ledger in limbo, because its stored key may be damaged."""
        return self._or_unknown(super().check_key(master_key))

    def check_term(self, term: int) -> Status:
        """Like the state's own; in addition, an ordinary ledger, with entries or a fence but no term, gets none.

        A term would lift the fence of a closed ledger, and hide its last entry.
        """
        if self.term is None and (self.fenced or self.last_entry_id != NO_ENTRY):
            return Status.EBADREQ
        return super().check_term(term)

    def check_add(self, master_key: bytes, *, recovery: bool, term: int | None = None) -> Status:
        """Like the state's own, but a ledger in limbo rejects normal adds: it may have been fenced, and a live writer
        replaces this bookie.

        It also rejects every add with a term, even of a client that takes over, because its term is unknown.
        """
        status = self._or_unknown(super().check_add(master_key, recovery=recovery, term=term))
        if self.limbo and (status is Status.EFENCED or (status is Status.EOK and term is not None)):
            return Status.EUNKNOWNLEDGERSTATE
        return status

    def raise_term(self, term: int, *, takes_over: bool) -> bool:
        """Like the state's own, but no client lifts the fence of a ledger in limbo: a client with a higher term, which
        is lost here, may have taken the ledger over.
        """
        return super().raise_term(term, takes_over=takes_over and not self.limbo)

    def take_terms(self, kept: Terms) -> None:
        """Like the state's own, but a ledger in limbo stays fenced."""
        super().take_terms(kept)
        self.fenced = self.fenced or self.limbo

    def truncate(self, last_entry_id: int) -> range:
        """Deletes every entry above `last_entry_id`; returns the ids that may be held."""
        above = range(last_entry_id + 1, self.last_entry_id + 1)
        self.last_entry_id = min(self.last_entry_id, last_entry_id)
        return above

    def _or_unknown(self, status: Status) -> Status:
        return Status.EUNKNOWNLEDGERSTATE if self.limbo and status is Status.EUA else status


def descriptor_of(ledger: BookieLedgerState) -> LedgerDescriptor:
    """The ledger as storage's own type. Raises TypeError for an object that storage did not create."""
    if not isinstance(ledger, LedgerDescriptor):
        raise TypeError(f"ledger {ledger.ledger_id} was not made by this storage")
    return ledger
