"""What a bookie knows of one ledger besides its entries, and whether it accepts a request for it.

State: the master key (set by the first client, never changed), the fenced bit (set once, never cleared), the explicit
LAC packet (the last one counts) and the known LAC (only grows). Events are the requests of the entry protocol; each
`check_…` returns the status with which the request fails, or EOK.

Invariants: a fenced ledger accepts no normal add (P7), a fence exists also for ledgers that the bookie never saw, and
the key is the stored one, also after a restart (S7). Rules: docs/protocol/wire.md#add_entry,
docs/protocol/wire.md#read_entry.

Not its job: entries, durability (storage), the wire.
"""

from __future__ import annotations

from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.wire.messages import Status


def is_acceptable_key(master_key: bytes) -> bool:
    """Whether a client may present this key: an empty or all-zero one stands for "unset" on disk and is refused."""
    return bool(master_key.strip(b"\0"))


class LedgerState:
    """One ledger's key, fence and LAC. Owned by the event loop; storage reads the fields when it flushes."""

    __slots__ = ("explicit_lac", "fenced", "known_lac", "ledger_id", "master_key")

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
        self.explicit_lac = explicit_lac
        """The explicit LAC packet as the client sent it, or None."""
        self.known_lac = known_lac

    def check_key(self, master_key: bytes) -> Status:
        """EUA unless the key is this ledger's. Used by fence reads and explicit LAC writes."""
        return Status.EOK if master_key == self.master_key else Status.EUA

    def check_add(self, master_key: bytes, *, recovery: bool) -> Status:
        """EUA for a wrong key; EFENCED for a normal add to a fenced ledger. Recovery adds pass the fence."""
        if master_key != self.master_key:
            return Status.EUA
        if self.fenced and not recovery:
            return Status.EFENCED
        return Status.EOK

    def advance_lac(self, lac: int) -> bool:
        """Notes a LAC seen in an entry or an explicit LAC; True if the known LAC grew."""
        if lac <= self.known_lac:
            return False
        self.known_lac = lac
        return True
