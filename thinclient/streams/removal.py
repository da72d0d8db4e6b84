"""Removes the record of a stream or a cursor, but never one that was made anew in its place.

Its id follows from the name, and a record made anew begins at version 0 again. So the record is read just before it is
removed; and one at version 0 is written once more first, so that a removal that is repeated, because its answer was
lost, or that comes late does not meet a new record at the same version. That write itself is never repeated without
another look.

A deletion that consists of several changes begins with such a write, too (A1): whoever may not write is refused while
all is there.

Not its job: which record is meant (`directory`, `stream`, `orphans`). Source: docs/protocol/streams.md#removal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from bookgate.ledger.errors import (
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.client import BookKeeper

IsMeant: TypeAlias = Callable[[LedgerRecord], bool]


async def remove_record(bookkeeper: BookKeeper, record_id: LedgerId, is_meant: IsMeant) -> bool:
    """Removes the record stored at this id if it is the one that is meant. Returns whether it was. Raises BKException.

    Args:
        bookkeeper: The client.
        record_id: The id of the record.
        is_meant: Tells of what is stored there now whether to remove it.
    """
    while True:
        record = await _meant(bookkeeper, record_id, is_meant)
        if record is not None and record.version == 0:
            record = await write_again(bookkeeper, record_id, is_meant)
        if record is None:
            return False
        with suppress(MetadataVersionException):  # it has changed, or is another one by now
            return await bookkeeper.delete_ledger(record_id, record.version)


async def write_again(bookkeeper: BookKeeper, record_id: LedgerId, is_meant: IsMeant) -> LedgerRecord | None:
    """Writes the record stored at this id once more, unchanged, if it is the one that is meant.

    Args:
        bookkeeper: The client.
        record_id: The id of the record.
        is_meant: Tells of what is stored there now whether to write it.

    Returns:
        The record as it is now; None if it was not the one that is meant.

    Raises:
        UnknownOutcomeException: Responses are lost again and again.
        BKException: The metadata could not be read or written.
    """
    unknown = 0
    while (record := await _meant(bookkeeper, record_id, is_meant)) is not None:
        try:
            return await bookkeeper.ledger_manager.write_once(record_id, record.metadata, record.version)
        except UnknownOutcomeException:
            unknown += 1
            # A store that is read and takes no change answers like this each time, and at once.
            if unknown >= bookkeeper.config.retries.metadata_unknown_outcomes:
                raise
        except (MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException):
            pass  # it has changed, or is gone by now
    return None


async def _meant(bookkeeper: BookKeeper, record_id: LedgerId, is_meant: IsMeant) -> LedgerRecord | None:
    try:
        record = await bookkeeper.read_record(record_id)
    except NoSuchLedgerExistsOnMetadataServerException:
        return None
    return record if is_meant(record) else None
