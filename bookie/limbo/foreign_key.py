"""Judges whether this bookie knows a ledger in limbo by a master key that is not the ledger's.

A bookie that lost a ledger learns of it again from the first fence or copy that arrives, and keeps the key of that
request (S7). If that request came from a stranger, or from an application with a wrong password, the bookie would
reject every later repair. The right key is the one derived from the password in the metadata. Entries that came with
another key are discarded, unless one of them has the digest that the metadata require: that entry is a genuine copy,
and an operator has to look at it.

Without the password the right key is unknown. Not its job: discarding the entries (`check`).
"""

from __future__ import annotations

import enum

from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import decode_entry
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord


class Key(enum.Enum):
    """Whose key this bookie has stored for a ledger."""

    OWN = "the ledger's, as far as can be told"
    FOREIGN = "another one, and nothing that was stored with it is of the ledger"
    DOUBTFUL = "another one, and there are entries of the ledger"


def own_key(metadata: LedgerMetadata) -> bytes | None:
    """The ledger's master key; None if the metadata lack the password."""
    known = metadata.password_check is None and metadata.password is not None
    return ledger_master_key(metadata.password or b"") if known else None


def judge_key(storage: LedgerStorage, record: LedgerRecord) -> Key:
    """Judges the key by what this bookie holds of the ledger. Reads files; any thread. Raises OSError."""
    key, ledger = own_key(record.metadata), storage.ledgers.get(record.ledger_id)
    if key is None or ledger is None or ledger.master_key == key:
        return Key.OWN
    return Key.DOUBTFUL if _has_own_entries(storage, ledger, record.metadata) else Key.FOREIGN


def _has_own_entries(storage: LedgerStorage, ledger: LedgerDescriptor, metadata: LedgerMetadata) -> bool:
    """Whether an entry here is one of the ledger; an entry that can't be read, or has no digest, counts as one."""
    for first, count in storage.reader.entry_ids(ledger):
        for entry_id in range(first, first + count):
            packet = storage.reader.held_entry(ledger, entry_id)
            if packet is None or metadata.digest_type is None:
                return True
            digest = digest_for(metadata.digest_type, metadata.password or b"")
            try:
                decode_entry(digest, packet, ledger.number, entry_id)
            except DigestMatchException:
                continue
            return True
    return False
