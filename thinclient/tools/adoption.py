"""Metadata made anew for a ledger that bookies hold and the store has lost.

What bookies hold of a ledger are its entries, each with the ledger's id, its own and the LAC of its time, and a digest
of the ledger's password. So the ledger is made with all holders as its ensemble, every one of them for every entry, and
then recovered as if its writer had died: that fences it, finds its end, and closes it. A reader that asks a holder for
an entry that another one has gets it from that.

What can't be known again: the password (whoever adopts gives it; the bookies refuse a wrong one), custom metadata, the
time of creation, the quorums and ensembles that it had. The end is that of a recovery with an ack quorum of one: each
holder must say that it has no further entry. An entry that only bookies had that are not among the holders is lost.
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
"""How such a ledger is told from others."""


async def adopt(client: BookKeeper, ledger_id: LedgerId, holders: Sequence[str], password: bytes) -> LedgerRecord:
    """The ledger, closed. Raises LedgerExistException, IllegalOpException, UnauthorizedAccessException for a wrong
    password, BKException of a recovery that failed; then there are no metadata again."""
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
    """Unless somebody else has closed it meanwhile."""
    with suppress(NoSuchLedgerExistsOnMetadataServerException):
        record = await client.read_record(ledger_id)
        if not record.metadata.is_closed:
            await client.ledger_manager.remove(ledger_id, record.version)


async def _digest_of(client: BookKeeper, ledger_id: LedgerId, holders: Sequence[str], password: bytes) -> DigestType:
    """The one with which the first entry can be read. Raises IllegalOpException where there is none."""
    errors: list[str] = []
    for digest_type in (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY):
        metadata = LedgerMetadata.new(holders, len(holders), 1, digest_type, password)
        try:
            async with client.open_record(LedgerRecord(ledger_id, metadata, 0), password) as reader:
                async for _ in reader.read_unconfirmed(0, 0):
                    return digest_type
        except BKException as error:
            errors.append(f"{digest_type.name}: {error}")
    raise IllegalOpException(
        f"entry 0 of ledger {ledger_id} can't be read from any of {', '.join(holders)} with this password, so there is "
        f"no beginning to adopt ({'; '.join(errors)})"
    )
