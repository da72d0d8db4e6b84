"""A bookie's state of one ledger besides its entries, and the rules that decide whether it accepts a request.

State: the master key (set by the first client, never changed), the fenced bit (cleared by a higher term only), the
explicit LAC packet (the last one), the known LAC (only grows), and in an unbounded ledger its term and LAFR
(both only grow). Events are the requests of the entry protocol; each `check_…` returns the status with which the
request fails, or EOK.

Invariants: a fenced ledger accepts no normal add (P7), a fence exists also for ledgers that the bookie never saw, the
key is the stored one, also after a restart (S7), and a term never decreases (U1). Rules:
docs/protocol/wire.md#add_entry, docs/protocol/wire.md#read_entry, docs/protocol/unbounded-ledgers.md#bookie.

Not its job: entries, durability (storage), the wire.
"""

from __future__ import annotations

from bookgate.bookie.index.terms import Terms
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.wire.messages import Status


def is_acceptable_key(master_key: bytes) -> bool:
    """Whether a client may present this key: an empty or all-zero one means "unset" on disk and is rejected."""
    return bool(master_key.strip(b"\0"))


class BookieLedgerState:
    """One ledger's key, fence, term and LAC. Owned by the event loop; storage reads the fields when it flushes."""

    __slots__ = (
        "durable_term",
        "explicit_lac",
        "fence_is_durable",
        "fenced",
        "known_lac",
        "lafr",
        "ledger_id",
        "master_key",
        "term",
    )

    def __init__(
        self,
        ledger_id: LedgerId,
        master_key: bytes,
        *,
        fenced: bool = False,
        explicit_lac: bytes | None = None,
        known_lac: int = NO_ENTRY,
    ) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = fenced
        self.fence_is_durable = False
        """Whether this process knows that the fence is durable, which nothing lifts as long as there is no term."""
        self.explicit_lac = explicit_lac
        """The explicit LAC packet as the client sent it, or None."""
        self.known_lac = known_lac
        self.term: int | None = None
        """The highest term of a served request; None for a ledger without terms."""
        self.durable_term: int | None = None
        """The term that this process has made durable, if any."""
        self.lafr = NO_ENTRY
        """The highest last add fully replicated in any writer's request."""

    def check_key(self, master_key: bytes) -> Status:
        """EUA unless the key is this ledger's. Used by fence reads and explicit LAC writes."""
        return Status.EOK if master_key == self.master_key else Status.EUA

    def check_term(self, term: int) -> Status:
        """EINVALIDTERM for a term below the ledger's."""
        return Status.EINVALIDTERM if self.term is not None and term < self.term else Status.EOK

    def check_add(self, master_key: bytes, *, recovery: bool, term: int | None = None) -> Status:
        """EUA for a wrong key; EINVALIDTERM for an old term; EFENCED for a normal add to a fenced ledger, or without
        term to a ledger that has one. Recovery adds pass the fence.
        """
        if master_key != self.master_key:
            return Status.EUA
        if term is not None and (status := self.check_term(term)) is not Status.EOK:
            return status
        if not recovery and (self.fenced or (term is None and self.term is not None)):
            return Status.EFENCED
        return Status.EOK

    def check_truncate(self, entry_id: int) -> Status:
        """EBADREQ for a truncation that would delete confirmed entries: it is wrong, or a late duplicate of an earlier
        one.
        """
        return Status.EBADREQ if entry_id <= self.known_lac else Status.EOK

    @property
    def terms(self) -> Terms | None:
        """The terms to be stored for an unbounded ledger; None for other ledgers."""
        return None if self.term is None else Terms(self.term, self.fenced, self.known_lac, self.lafr)

    def take_terms(self, kept: Terms) -> None:
        """Applies stored terms, unless a higher term is known: of an older state only LAC and LAFR apply."""
        if self.term is None or kept.term >= self.term:
            self.term, self.fenced = kept.term, kept.fenced
        self.advance_lac(kept.known_lac)
        self.lafr = max(self.lafr, kept.lafr)

    def raise_term(self, term: int, *, takes_over: bool) -> bool:
        """Records the term of a served request; True if it is higher than the ledger's.

        A fence applies to the terms known when it was set: a client that takes over with a higher term lifts it.
        """
        if self.term is not None and term <= self.term:
            return False
        self.term = term
        if takes_over:
            self.fenced = False
        return True

    def shows(self, entry_id: int, reader_lac: int | None) -> bool:
        """Whether a reader may see the entry: in an unbounded ledger only what this bookie, or the reader, knows to be
        confirmed.
        """
        return self.term is None or entry_id <= max(self.known_lac, NO_ENTRY if reader_lac is None else reader_lac)

    def advance_lac(self, lac: int) -> bool:
        """Records a LAC from an entry or an explicit LAC; True if the known LAC grew."""
        if lac <= self.known_lac:
            return False
        self.known_lac = lac
        return True
