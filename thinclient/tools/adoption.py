"""Creates metadata for a ledger that bookies hold and the store has lost.

Bookies hold a ledger's entries, each with the ledger's id, its own id and the LAC of its time, and a digest of the
ledger's password. So the ledger is created with all holders as its ensemble, each of them for every entry, and then
recovered as if its writer had died: recovery fences it, finds its end, and closes it. A reader that requests an entry
from a holder without it gets it from another one.

Lost are: the password (the caller provides it; the bookies reject a wrong one), custom metadata, the creation time, and
the former quorums and ensembles. The end is that of a recovery with an ack quorum of one: each holder must say that it
has no further entry. Entries that only bookies outside the holders had are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from bookgate.ledger.errors import BKException, IllegalOpException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.client import BookKeeper

_CUSTOM = {"bookgate.adopted": b"1"}
"""Marks a ledger that was adopted."""


async def adopt(client: BookKeeper, ledger_id: LedgerId, holders: Sequence[str], password: bytes) -> LedgerRecord:
    """Creates the metadata of a ledger and closes it.

    Args:
        client: The client.
        ledger_id: The ledger.
        holders: Ids of the bookies that hold it.
        password: The ledger's password.

    Returns:
        The record of the closed ledger.

    Raises:
        LedgerExistException: The store has the ledger.
        IllegalOpException: No holder has a readable first entry.
        UnauthorizedAccessException: The password is wrong.
        BKException: Recovery failed; the metadata were removed again.
    """
    digest_type = await _digest_of(client, ledger_id, holders, password)
    metadata = LedgerMetadata.new(holders, len(holders), 1, digest_type, password, _CUSTOM)
    await client.ledger_manager.create(ledger_id, metadata)
    try:
        reader = await client.open_ledger(ledger_id, password, recovery=True)
        await reader.close()
    except BaseException:
        await _take_back(client, ledger_id)
        raise
    return await client.read_record(ledger_id)


async def _take_back(client: BookKeeper, ledger_id: LedgerId) -> None:
    """Removes the metadata, unless another client has closed the ledger meanwhile."""
    with suppress(NoSuchLedgerExistsOnMetadataServerException):
        record = await client.read_record(ledger_id)
        if not record.metadata.is_closed:
            await client.ledger_manager.remove_record(record)


async def _digest_of(client: BookKeeper, ledger_id: LedgerId, holders: Sequence[str], password: bytes) -> DigestType:
    """The digest type with which the first entry can be read. Raises IllegalOpException if there is none."""
    errors: list[str] = []
    for digest_type in (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY):
        metadata = LedgerMetadata.new(holders, len(holders), 1, digest_type, password)
        try:
            async with client.open_record(LedgerRecord(ledger_id, metadata, 0), password) as reader:
                async for entry in reader.read_unconfirmed(0, 0):
                    if digest_type is not DigestType.DUMMY or entry.ledger_length == len(entry.payload):
                        return digest_type
                    # DUMMY checks nothing: with another type's digest before the payload the length is wrong.
                    errors.append(f"{digest_type.name}: entry 0 has not the length that it tells")
        except BKException as error:
            errors.append(f"{digest_type.name}: {error}")
    raise IllegalOpException(
        f"entry 0 of ledger {ledger_id} can't be read from any of {', '.join(holders)} with this password, so there is "
        f"no beginning to adopt ({'; '.join(errors)})"
    )
