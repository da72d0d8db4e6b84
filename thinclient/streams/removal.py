"""Removes the record of a stream or a cursor, but never one that was made anew in its place.

Its id follows from the name, and a record made anew begins at version 0 again. So the record is read just before it is
removed; and one at version 0 is written once more first, so that a removal that is repeated, because its answer was
lost, or that comes late does not meet a new record at the same version.

Not its job: which record is meant (`directory`, `stream`, `orphans`). Source: docs/protocol/streams.md#removal.
"""

from __future__ import annotations

from collections.abc import Callable

from bookgate.ledger.errors import MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.client import BookKeeper


async def remove_record(bookkeeper: BookKeeper, record_id: LedgerId, is_meant: Callable[[LedgerRecord], bool]) -> bool:
    """Removes the record stored at this id if it is the one that is meant. Returns whether it was. Raises BKException.

    Args:
        bookkeeper: The client.
        record_id: The id of the record.
        is_meant: Tells of what is stored there now whether to remove it.
    """
    while True:
        try:
            record = await bookkeeper.read_record(record_id)
            if not is_meant(record):
                return False
            if record.version == 0:
                record = await bookkeeper.ledger_manager.write(record_id, record.metadata, record.version)
            return await bookkeeper.delete_ledger(record_id, record.version)
        except NoSuchLedgerExistsOnMetadataServerException:
            return False
        except MetadataVersionException:
            continue  # it has changed, or is another one by now
