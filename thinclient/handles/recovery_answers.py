"""What responses to the reads of recoveries and take-overs contain: their packets become entries.

Not its job: what a response means for the recovery (`core.recovery_reads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from bookgate.ledger.entry import Entry, decode_entries, decode_entry
from bookgate.ledger.errors import DigestMatchException, UnexpectedConditionException
from bookgate.ledger.wire.messages import LAST_ENTRY, MOST_FOLLOWING_BYTES, ReadResponse, Response, Status
from bookgate.ledger.wire.records import read_records
from bookgate.ledger.wire.v3 import ProtocolError
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.recovery_reads import Unreadable
from bookgate.thinclient.handles.context import LedgerSecrets

MISSING_STATUSES = (Status.ENOENTRY, Status.ENOLEDGER)
"""Statuses of a bookie that surely has no such entry."""

_IMPOSSIBLE_LENGTH = 1 << 62
"""Bytes; the packet's field has 63 bits, and whoever goes on with the ledger adds to the length."""


def takes_runs(config: ClientConfig) -> bool:
    """Whether a response with a run of entries fits the frames that the client takes."""
    return config.max_frame_size_bytes >= 2 * MOST_FOLLOWING_BYTES


def entry_of(
    secrets: LedgerSecrets, number: int, entry_id: int, bookie_id: str, response: Response
) -> Entry | Unreadable:
    """The entry that was asked for, `LAST_ENTRY` for any, of the ledger with this number."""
    body = getattr(response, "body", None) or b""
    try:
        entry = decode_entry(secrets.digest, body, number, None if entry_id == LAST_ENTRY else entry_id)
    except DigestMatchException as error:
        return Unreadable(DigestMatchException(f"bookie {bookie_id}: {error}"))
    if not _is_possible(entry):
        what = f"ledger length {entry.ledger_length} in entry {entry.entry_id}, of {len(entry.payload)} bytes"
        return Unreadable(UnexpectedConditionException(f"bookie {bookie_id}: {what}: no writer makes it so"))
    return entry


def _is_possible(entry: Entry) -> bool:
    """Whether a writer can have made the header: whoever knows the password can put a digest on any."""
    return entry.entry_id >= 0 and len(entry.payload) <= entry.ledger_length < _IMPOSSIBLE_LENGTH


def entries_behind(secrets: LedgerSecrets, number: int, entry_id: int, response: Response | None) -> Sequence[Entry]:
    """The entries that a response has behind the one that was asked for, up to a bad one: that is asked for by name."""
    if not isinstance(response, ReadResponse) or not response.following:
        return ()
    try:
        packets = read_records(memoryview(response.following))
    except ProtocolError:
        return ()
    return list(takewhile(_is_possible, decode_entries(secrets.digest, packets, number, entry_id + 1)[0]))
