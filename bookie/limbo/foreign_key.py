"""Whether a ledger in limbo was made known to this bookie by a request with another master key than its own.

A bookie that has lost a ledger knows it again by the first fence or copy that comes, and keeps the key of that request
(S7). If a stranger was first, or an application with a wrong password, whoever repairs the ledger would be refused for
good. The key that counts is the one that the password in the metadata makes. What came with another one is given up,
unless an entry has the digest that the metadata tell: then it is a copy, and people have to look.

Not its job: giving it up (`check`). Without the password nothing is known of the key.
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
    """What the key is by which a ledger is known here."""

    OWN = "the ledger's, as far as can be told"
    FOREIGN = "another one, and nothing that was stored with it is of the ledger"
    DOUBTFUL = "another one, and there are entries of the ledger"


def own_key(metadata: LedgerMetadata) -> bytes | None:
    """The ledger's master key, if the metadata tell it."""
    known = metadata.password_check is None and metadata.password is not None
    return ledger_master_key(metadata.password or b"") if known else None


def judge_key(storage: LedgerStorage, record: LedgerRecord) -> Key:
    """Looks at what is here of the ledger. Reads files; any thread. Raises OSError."""
    key, ledger = own_key(record.metadata), storage.ledgers.get(record.ledger_id)
    if key is None or ledger is None or ledger.master_key == key:
        return Key.OWN
    return Key.DOUBTFUL if _has_own_entries(storage, ledger, record.metadata) else Key.FOREIGN


def _has_own_entries(storage: LedgerStorage, ledger: LedgerDescriptor, metadata: LedgerMetadata) -> bool:
    """What can't be read, or has no digest, may be one."""
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
