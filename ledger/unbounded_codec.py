"""Serialisation of what only unbounded ledgers have: field 1000 of the metadata message.

Those who do not know the field must not be able to harm the ledger: a recovery without a term, or a rewrite that leaves
the field out, would lose it. They see a CLOSED ledger without entries and without bookies: nobody recovers, repairs,
audits or reads that, and all may delete it. Digest type, password, creation time, custom metadata and token stay in the
ordinary fields. Source: docs/protocol/unbounded-ledgers.md#metadata.

Not its job: everything else of the message (`metadata_codec`).
"""

from __future__ import annotations

from itertools import pairwise

from bookgate.ledger.errors import MetadataFormatException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.terms import FragmentCaps, Terms
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat, UnboundedLedgerFormat


def disguised(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    """Field 1000 of an unbounded ledger, among fields that show nothing to those who do not know it."""
    message = LedgerMetadataFormat(
        quorumSize=0, ensembleSize=0, ackQuorumSize=0, length=0, lastEntryId=NO_ENTRY, state="CLOSED"
    )
    message.segment.add(firstEntryId=0)
    message.unbounded.CopyFrom(_to_format(metadata))
    return message


def _to_format(metadata: LedgerMetadata) -> UnboundedLedgerFormat:
    terms = metadata.terms
    assert terms is not None, "the ledger is unbounded"
    bookies = list(dict.fromkeys(member for fragment in metadata.fragments for member in fragment.ensemble))
    places = {bookie: place for place, bookie in enumerate(bookies)}
    message = UnboundedLedgerFormat(
        ensembleSize=metadata.ensemble_size,
        writeQuorumSize=metadata.write_quorum_size,
        ackQuorumSize=metadata.ack_quorum_size,
        state=metadata.state.name,
        term=terms.term,
        holder=terms.holder,
        lengthBefore=terms.length_before,
        bookie=bookies,
        maxFragmentBytes=terms.caps.max_bytes,
        maxFragmentEntries=terms.caps.max_entries,
    )
    firsts = [0, *(fragment.first_entry_id for fragment in metadata.fragments)]
    for fragment, (before, first) in zip(metadata.fragments, pairwise(firsts), strict=True):
        message.fragment.add(after=first - before, member=[places[member] for member in fragment.ensemble])
    if metadata.is_closed:
        message.lastEntryId = metadata.last_entry_id
        message.length = metadata.length
    return message


def undisguised(message: UnboundedLedgerFormat) -> LedgerMetadata:
    """The metadata in field 1000; what the ordinary fields hold is left for the caller.

    Raises MetadataFormatException, which names the fault; IncorrectParameterException for values that break a rule.
    """
    closed = message.state == LedgerMetadataFormat.CLOSED
    if closed and not (message.HasField("lastEntryId") and message.HasField("length")):
        raise MetadataFormatException("ledger metadata are damaged: CLOSED without a last entry id or length")
    caps = FragmentCaps(
        message.maxFragmentBytes if message.HasField("maxFragmentBytes") else None,
        message.maxFragmentEntries if message.HasField("maxFragmentEntries") else None,
    )
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.writeQuorumSize,
        ack_quorum_size=message.ackQuorumSize,
        fragments=_fragments(message),
        state=LedgerState(message.state),
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        length=message.length if closed else 0,
        terms=Terms(message.term, message.holder, message.lengthBefore, caps),
    )


def _fragments(message: UnboundedLedgerFormat) -> tuple[Fragment, ...]:
    bookies, first, fragments = message.bookie, 0, []
    for each in message.fragment:
        if any(place >= len(bookies) for place in each.member):
            raise MetadataFormatException("ledger metadata are damaged: a fragment names a bookie that is not listed")
        first += each.after
        fragments.append(Fragment(first, tuple(bookies[place] for place in each.member)))
    return tuple(fragments)
