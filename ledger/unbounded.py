"""Unbounded ledgers in the metadata: terms, fragments that grow and are trimmed, and their legal transitions.

An unbounded ledger is one stream of entries, written by one client at a time and by any client over its life. Its state
moves OPEN → IN_RECOVERY at the next term (a client takes over), IN_RECOVERY → OPEN at the same term (the client has
taken over), IN_RECOVERY → IN_RECOVERY at the next term (another client takes over meanwhile), OPEN → CLOSED at the same
term (P6). Each transition is a function from metadata to metadata, which raises where it is not legal; the store's
version check decides which value is written.

Invariants. U2: a term has one holder. Two clients that race for a term write different holders, so that a client whose
answer was lost can tell its own write from the other's, and every later change checks term and holder. G4: a new
fragment begins after the last one or in its place. P5 holds but for the first fragment, which begins at the watermark:
entries below are deleted.

Size. Complete fragments that follow each other on the same ensemble are merged; the last one is never merged, so that a
trim can reach everything before it. `metadata_codec` writes each bookie once.

Not its job: serialising (`metadata_codec`), the protocol that leads to a transition (the client's cores). Source:
docs/protocol/unbounded-ledgers.md#metadata.
"""

from __future__ import annotations

from dataclasses import replace

from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    LedgerClosedException,
    TermSupersededException,
)
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.terms import NO_CAPS, FragmentCaps, Terms


def create_unbounded(metadata: LedgerMetadata, caps: FragmentCaps = NO_CAPS) -> LedgerMetadata:
    """The metadata of a ledger to be created, made those of an unbounded one at term 0."""
    return replace(metadata, terms=Terms(caps=caps))


def deleted_before(metadata: LedgerMetadata) -> int:
    """The watermark: entries below are deleted, and this is the first one that may be there."""
    return metadata.fragments[0].first_entry_id


def terms_of(metadata: LedgerMetadata) -> Terms:
    """Raises IncorrectParameterException for a ledger that is not unbounded."""
    if metadata.terms is None:
        raise IncorrectParameterException("the ledger is not unbounded: it has no terms, and is opened with recovery")
    return metadata.terms


def may_show(metadata: LedgerMetadata, entry_id: int, bookie_term: int | None) -> bool:
    """Whether a reader with these metadata may take an entry from a bookie that knows the ledger at this term.

    In the last fragment not from one at a higher term: the metadata are out of date then, and may name the bookie for
    an entry that a later term has written elsewhere, while it still holds what an earlier one has left (U4).
    """
    terms = metadata.terms
    if terms is None or bookie_term is None or bookie_term <= terms.term:
        return True
    return metadata.is_closed or entry_id < metadata.last_fragment.first_entry_id


def is_provisional(metadata: LedgerMetadata, entry_id: int) -> bool:
    """Whether an entry that a reader with these metadata was given counts only if the take-over still goes on then.

    It is one of the last fragment, which is still that before the take-over, and the take-over replaces bookies in
    memory. Once it is over, a bookie that was replaced may join again, truncated only from there on: below it still has
    what an earlier term has left, and its LAC rises beyond (U4). Before, no bookie is told a higher LAC than earlier
    terms have confirmed.
    """
    is_being_taken = metadata.terms is not None and metadata.state is LedgerState.IN_RECOVERY
    return is_being_taken and entry_id >= metadata.last_fragment.first_entry_id


def goes_on(taking: LedgerMetadata, now: LedgerMetadata) -> bool:
    """Whether the take-over that the first metadata tell of was not over by the later ones."""
    return now.state is LedgerState.IN_RECOVERY and terms_of(now).term == terms_of(taking).term


def check_ordinary(record: LedgerRecord) -> None:
    """For whoever reads, recovers or copies ordinary ledgers only. Raises IllegalOpException for an unbounded one."""
    if record.metadata.terms is not None:
        raise IllegalOpException(
            f"ledger {record.ledger_id} is unbounded: it is taken over by its next writer, not recovered or copied",
            ledger_id=record.ledger_id,
        )


def check_holder(metadata: LedgerMetadata, term: int, holder: int) -> None:
    """Raises TermSupersededException unless the term is that client's own, LedgerClosedException if it is over."""
    terms = terms_of(metadata)
    if (terms.term, terms.holder) != (term, holder):
        raise TermSupersededException(
            f"another client has taken the ledger over: its term is {terms.term}, and this writer's was {term}"
        )
    if metadata.is_closed:
        raise LedgerClosedException(f"the ledger was closed at entry {metadata.last_entry_id}")


def begin_term(metadata: LedgerMetadata, holder: int) -> LedgerMetadata:
    """OPEN or IN_RECOVERY → IN_RECOVERY at the next term. Raises LedgerClosedException."""
    terms = terms_of(metadata)
    if metadata.is_closed:
        raise LedgerClosedException(f"the ledger is closed at entry {metadata.last_entry_id}: nobody takes it over")
    changed = replace(terms, term=terms.term + 1, holder=holder)
    return replace(metadata, creator_token=0, terms=changed, state=LedgerState.IN_RECOVERY)


def open_term(metadata: LedgerMetadata) -> LedgerMetadata:
    """IN_RECOVERY → OPEN at the same term, which the caller has checked to be its own."""
    terms_of(metadata)
    _require(metadata, LedgerState.IN_RECOVERY)
    return replace(metadata, creator_token=0, state=LedgerState.OPEN)


def begin_fragment(metadata: LedgerMetadata, fragment: Fragment, length_before: int) -> LedgerMetadata:
    """Appends a fragment, or replaces the last one if that begins at the same entry.

    Args:
        metadata: Not CLOSED.
        fragment: Begins where the last one does, or later.
        length_before: Payload bytes of all entries before it.
    """
    terms = terms_of(metadata)
    _require(metadata, LedgerState.OPEN, LedgerState.IN_RECOVERY)
    last = metadata.fragments[-1].first_entry_id
    if fragment.first_entry_id < last:
        raise IncorrectParameterException(
            f"a fragment can't begin at entry {fragment.first_entry_id}: the last one begins at {last}"
        )
    kept = metadata.fragments[:-1] if fragment.first_entry_id == last else metadata.fragments
    return replace(
        metadata,
        creator_token=0,
        fragments=(*_merged(kept), fragment),
        terms=replace(terms, length_before=length_before),
    )


def close_unbounded(metadata: LedgerMetadata, last_entry_id: int, length: int) -> LedgerMetadata:
    """OPEN → CLOSED, by the holder of the term, with nothing pending (G4)."""
    terms_of(metadata)
    _require(metadata, LedgerState.OPEN)
    closed = LedgerState.CLOSED
    return replace(metadata, creator_token=0, state=closed, last_entry_id=last_entry_id, length=length)


def trim(metadata: LedgerMetadata, before_entry_id: int) -> LedgerMetadata:
    """Moves the watermark up to `before_entry_id`, but never into the last fragment of a ledger that is written.

    Entries of that fragment may not be fully replicated, and its writer alone knows. Fragments that end below the
    watermark are removed; the one that it falls into begins there. A CLOSED ledger keeps its last fragment, if only
    with the id after its last entry. Metadata that need no change are returned as they are.
    """
    terms_of(metadata)
    end = metadata.last_entry_id + 1 if metadata.is_closed else metadata.fragments[-1].first_entry_id
    before = min(before_entry_id, end)
    if before <= deleted_before(metadata):
        return metadata
    first = metadata.fragment_at(before)
    following = tuple(each for each in metadata.fragments if each.first_entry_id > before)
    return replace(metadata, creator_token=0, fragments=(replace(first, first_entry_id=before), *following))


def _merged(fragments: tuple[Fragment, ...]) -> tuple[Fragment, ...]:
    """Complete fragments, without the last one if it goes on where the one before it is: all others are merged."""
    if len(fragments) > 1 and fragments[-2].ensemble == fragments[-1].ensemble:
        return fragments[:-1]
    return fragments


def _require(metadata: LedgerMetadata, *states: LedgerState) -> None:
    if metadata.state not in states:
        wanted = " or ".join(state.name for state in states)
        raise IncorrectParameterException(
            f"an unbounded ledger that is {metadata.state.name} can't change so; it must be {wanted}"
        )
