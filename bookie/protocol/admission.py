"""Checks of a request before it reaches storage: the bookie accepts writes, ids are in range, body and request agree,
the master key is non-empty.

Apache BookKeeper's bookie stores requests that it can't serve or replay later (negative ids, F6; bodies without a
header). Here they are rejected on arrival, before anything is written. Source:
docs/protocol/wire.md#master-keys-after-a-restart, docs/protocol/wire.md#ill-formed-requests.

Not its job: checks that depend on the ledger (`ledger_state`).
"""

from __future__ import annotations

import struct

from bookgate.bookie.mode.mode import BookieMode
from bookgate.bookie.storage.ledger_state import is_acceptable_key
from bookgate.ledger.entry import decode_lac_header, header_size_of, lac_header_size_of, packet_ids
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.wire.messages import (
    DEFERRED_SYNC,
    LAST_ENTRY,
    AddRequest,
    BatchReadRequest,
    ReadRequest,
    Status,
    WriteLacRequest,
    fences,
)

WRITABLE = BookieMode()
"""The mode of a bookie that accepts all writes."""


def check_add(request: AddRequest, mode: BookieMode = WRITABLE) -> Status:
    """EREADONLY while read-only, except for recovery adds if these are accepted; EBADREQ for a body without a header,
    negative ids, ids that differ from the body's, or fields that contradict the presence or absence of a term; EUA for
    an unset key.
    """
    if mode.read_only and not (request.priority > 0 and mode.takes_high_priority):
        return Status.EREADONLY
    if request.ledger_id < 0 or request.entry_id < 0 or len(request.body) < header_size_of(request.ledger_id):
        return Status.EBADREQ
    if not _has_sound_term(request):
        return Status.EBADREQ
    try:
        if packet_ids(request.body) != (request.ledger_id, request.entry_id):
            return Status.EBADREQ
    except ValueError:
        return Status.EBADREQ
    return Status.EOK if is_acceptable_key(request.master_key) else Status.EUA


def _has_sound_term(request: AddRequest) -> bool:
    """Whether the fields fit the term: only an add with a term has a LAFR or truncates, and its sync is never deferred,
    because its term must be durable first.
    """
    if request.term is None:
        return request.lafr is None and not request.truncate
    lafr = NO_ENTRY if request.lafr is None else request.lafr
    return request.term >= 0 and lafr >= NO_ENTRY and not request.write_flags & DEFERRED_SYNC


def highest_entry_id(last_entry_id: int, max_gap: int, bound: int) -> int:
    """The highest entry id that a ledger accepts after `last_entry_id`; 0 allows any gap, up to `bound`.

    Index files have a slot for each id below the last: one distant entry makes a file that is huge for tools that copy
    it without regard for holes.
    """
    return min(bound, last_entry_id + max_gap) if max_gap else bound


def check_read(request: ReadRequest | BatchReadRequest) -> Status:
    """EBADREQ for ids or a term out of range; EUA for a read without a key that fences or has a term."""
    term = request.term if isinstance(request, ReadRequest) else None
    if request.ledger_id < 0 or request.entry_id < LAST_ENTRY or (term is not None and term < 0):
        return Status.EBADREQ
    if fences(request):
        return Status.EOK if is_acceptable_key(request.master_key or b"") else Status.EUA
    return Status.EOK


def check_write_lac(request: WriteLacRequest, mode: BookieMode = WRITABLE) -> Status:
    """EREADONLY while read-only, whatever the priority; EBADREQ for a packet without ids, of another ledger, or with a
    LAC below -1; EUA for an unset key.
    """
    if mode.read_only:
        return Status.EREADONLY
    if request.ledger_id < 0 or len(request.body) < lac_header_size_of(request.ledger_id):
        return Status.EBADREQ
    try:
        ledger_id, lac = decode_lac_header(request.body)
    except (ValueError, struct.error):
        return Status.EBADREQ
    if ledger_id != request.ledger_id or lac < LAST_ENTRY:
        return Status.EBADREQ
    return Status.EOK if is_acceptable_key(request.master_key) else Status.EUA
