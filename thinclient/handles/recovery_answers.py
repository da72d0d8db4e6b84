"""What responses to the reads of recoveries and take-overs contain: their packets become entries.

Not its job: what a response means for the recovery (`core.recovery_reads`).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.ledger.entry import Entry, decode_entries, decode_entry
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.wire.messages import LAST_ENTRY, MOST_FOLLOWING_BYTES, ReadResponse, Response, Status
from bookgate.ledger.wire.records import read_records
from bookgate.ledger.wire.v3 import ProtocolError
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.recovery_reads import Unreadable
from bookgate.thinclient.handles.context import LedgerSecrets

MISSING_STATUSES = (Status.ENOENTRY, Status.ENOLEDGER)
"""Statuses of a bookie that surely has no such entry."""


def takes_runs(config: ClientConfig) -> bool:
    """Whether a response with a run of entries fits the frames that the client takes."""
    return config.max_frame_size_bytes >= 2 * MOST_FOLLOWING_BYTES


def entry_of(
    secrets: LedgerSecrets, number: int, entry_id: int, bookie_id: str, response: Response
) -> Entry | Unreadable:
    """The entry that was asked for, `LAST_ENTRY` for any, of the ledger with this number."""
    body = getattr(response, "body", None) or b""
    try:
        return decode_entry(secrets.digest, body, number, None if entry_id == LAST_ENTRY else entry_id)
    except DigestMatchException as error:
        return Unreadable(DigestMatchException(f"bookie {bookie_id}: {error}"))


def entries_behind(secrets: LedgerSecrets, number: int, entry_id: int, response: Response | None) -> Sequence[Entry]:
    """The entries that a response has behind the one that was asked for, up to a bad one: that is read again."""
    if not isinstance(response, ReadResponse) or not response.following:
        return ()
    try:
        packets = read_records(memoryview(response.following))
    except ProtocolError:
        return ()
    return decode_entries(secrets.digest, packets, number, entry_id + 1)[0]
