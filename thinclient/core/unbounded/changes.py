"""The changes that a client of an unbounded ledger makes in its metadata, as transforms for a compare-and-set.

A transform gets the current metadata and returns the new value; or None if they already contain its change, by which a
client recognises its own write after a lost response; or raises if another client has taken over
(TermSupersededException) or closed the ledger. A rejected change is not tried again in that term.

Invariants. U2: only the holder of the term makes changes other than a take-over and a trim. P6, G4: `unbounded` has the
legal transitions.

Not its job: reading and writing metadata (the caller), when a change is due (`writing`, `taking_over`). Source:
docs/protocol/unbounded-ledgers.md#metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bookgate.ledger.errors import LedgerClosedException, TermSupersededException
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.unbounded import (
    begin_fragment,
    begin_term,
    check_holder,
    close_unbounded,
    open_term,
    terms_of,
    trim,
)

Transform = Callable[[LedgerMetadata], LedgerMetadata | None]


class NewFragment(NamedTuple):
    """A fragment that a writer or a take-over begins."""

    fragment: Fragment
    length_before: int
    """Payload bytes of all entries before it."""


class Holder(NamedTuple):
    """A client with its term."""

    term: int
    number: int
    """A random number of 63 bits, never 0, which no other client of the term has."""


def taking(before: LedgerMetadata, number: int) -> Transform:
    """OPEN or IN_RECOVERY → IN_RECOVERY with the term after that of `before`, for the client with this number.

    A client that finds a higher term than that of `before` gives up: otherwise two clients could take the ledger from
    each other for ever.
    """
    term = terms_of(before).term

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        terms = terms_of(metadata)
        if (terms.term, terms.holder) == (term + 1, number):
            return None
        if terms.term != term:
            raise TermSupersededException(
                f"another client has taken the ledger over meanwhile: its term is {terms.term}"
            )
        return begin_term(metadata, number)

    return transform


def taken(holder: Holder, before: LedgerMetadata, fragments: Sequence[NewFragment]) -> Transform:
    """IN_RECOVERY → OPEN at the same term, with the fragments of the take-over, which began with `before`."""

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        check_holder(metadata, *holder)
        if metadata.state is LedgerState.OPEN:
            return None
        assert metadata.last_fragment == before.last_fragment, "nobody else changes the last fragment (U2)"
        for fragment, length_before in fragments:
            metadata = begin_fragment(metadata, fragment, length_before)
        return open_term(metadata)

    return transform


def storing(holder: Holder, new: NewFragment) -> Transform:
    """OPEN: the writer's ensemble change, or its next fragment."""

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        check_holder(metadata, *holder)
        if metadata.last_fragment == new.fragment:
            return None
        return begin_fragment(metadata, *new)

    return transform


def closing(holder: Holder, last_entry_id: int, length: int) -> Transform:
    """OPEN → CLOSED, with nothing pending (G4)."""

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        try:
            check_holder(metadata, *holder)
        except LedgerClosedException:
            if (metadata.last_entry_id, metadata.length) == (last_entry_id, length):
                return None
            raise
        return close_unbounded(metadata, last_entry_id, length)

    return transform


def trimming(before_entry_id: int) -> Transform:
    """Any state: raises the watermark up to `before_entry_id`, as far as permitted."""

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        trimmed = trim(metadata, before_entry_id)
        return None if trimmed is metadata else trimmed

    return transform
