"""Finds and removes what interrupted creations and deletions of streams have left in a scope.

One listing of the scope, which must be complete: where a policy left out the record, its stream's ledger would look
left over. What looks like an orphan and is old enough is judged once more by the record of its stream, read anew. A
deletion reads that record again, and deletes the orphan only as it was seen: a ledger that somebody has taken over
since stays, and so does a record that was made anew under its id. What this client may not delete does not keep the
others. Anybody who may create a ledger in the scope writes its marks: they may name a ledger that this client may not
read, and then it is no orphan as far as this client can tell.

A creation that is under way is told by its age alone, so the age must be above the time that any takes. One that goes
on after all ends with a record whose ledger is gone: no append to it was ever acknowledged, and it is an orphan itself.

Not its job: the judgement (`core.streams.orphans`); ledgers that bookies hold and the metadata do not know.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.ledger.errors import (
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import DEFAULT_SCOPE, stream_record_id
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.core.streams.orphans import Kind, Orphan, candidates, is_as_seen, ledger_of, names
from bookgate.thinclient.core.undeletable import Kept, require_all
from bookgate.thinclient.streams.removal import remove_record


async def find_orphans(bookkeeper: BookKeeper, before_ms: int, scope_id: int = DEFAULT_SCOPE) -> list[Orphan]:
    """The orphans of a scope. From now on the client's listings fail where a policy would leave ledgers out.

    Args:
        bookkeeper: The client to read with.
        before_ms: Milliseconds since 1970. Only what was created before is an orphan.
        scope_id: The scope that holds the streams.

    Raises:
        UnauthorizedAccessException: The policy leaves ledgers of the scope out of this client's listings.
        BKException: The listing could not be completed.
    """
    bookkeeper.ledger_manager.demand_complete_listings()
    listed = [record async for page in bookkeeper.list_ledgers(scope_id) for record in page]
    return [each for each in candidates(listed, before_ms) if await _is_known_orphan(bookkeeper, each, scope_id)]


async def delete_orphans(
    bookkeeper: BookKeeper, found: Sequence[Orphan], scope_id: int = DEFAULT_SCOPE
) -> list[Orphan]:
    """Deletes those that are orphans still, and have not changed since. Returns them.

    Raises:
        NotAllDeletedException: This client may not delete some; the others are deleted.
        BKException: The metadata can't be read or changed.
    """
    deleted: list[Orphan] = []
    kept: Kept = {}
    for each in found:
        try:
            if await _is_orphan(bookkeeper, each, scope_id) and await _delete(bookkeeper, each):
                deleted.append(each)
        except UnauthorizedAccessException as error:
            kept[each.record.ledger_id] = error
    require_all(len(deleted), kept)
    return deleted


async def _delete(bookkeeper: BookKeeper, orphan: Orphan) -> bool:
    """Whether it was there, as it was seen."""
    record = orphan.record
    if orphan.kind is not Kind.LEDGER:
        return await remove_record(bookkeeper, record.ledger_id, lambda found: is_as_seen(found, orphan))
    try:
        return await bookkeeper.delete_ledger(record.ledger_id, record.version)
    except MetadataVersionException:
        return False  # somebody uses it


async def _is_known_orphan(bookkeeper: BookKeeper, orphan: Orphan, scope_id: int) -> bool:
    """Not one whose marks name what this client may not read."""
    try:
        return await _is_orphan(bookkeeper, orphan, scope_id)
    except UnauthorizedAccessException:
        return False


async def _is_orphan(bookkeeper: BookKeeper, orphan: Orphan, scope_id: int) -> bool:
    if orphan.kind is Kind.STREAM:
        return await _stored(bookkeeper, ledger_of(orphan)) is None
    return not names(await _stored(bookkeeper, stream_record_id(orphan.stream, scope_id)), orphan)


async def _stored(bookkeeper: BookKeeper, ledger_id: LedgerId) -> LedgerRecord | None:
    try:
        return await bookkeeper.read_record(ledger_id)
    except NoSuchLedgerExistsOnMetadataServerException:
        return None
