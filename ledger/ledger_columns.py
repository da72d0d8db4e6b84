"""Ledgers of a listing, stored column-wise: for whoever looks at a million of them and needs no object for each.

The columns also behave as a sequence of records; a record is created when an element is accessed. As in
docs/protocol/gateway.md#columns, a ledger's metadata are a template and a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId, ids_in_scope
from bookgate.ledger.ledger_manager import LedgerRecord
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_templates import ledger_of

NOT_KNOWN = -1
"""As creation time: the store knows none."""


@dataclass(frozen=True, slots=True, eq=False)
class LedgerColumns(Sequence[LedgerRecord]):
    """Ledgers of one scope, each column with one value for each. Callers must not modify the columns.

    Raises ValueError if columns do not fit each other, or a value is out of its range.
    """

    scope_id: int
    templates: Sequence[LedgerMetadata]
    template_of: Sequence[int]
    """Indexes of `templates`."""
    ledger_ids: Sequence[int]
    """Bits 0–63."""
    versions: Sequence[int]
    last_entry_ids: Sequence[int]
    lengths: Sequence[int]
    ctimes_ms: Sequence[int]
    """Count where the template has a creation time."""
    creator_tokens: Sequence[int]
    created_ms: Sequence[int]
    """The store's own creation times, or NOT_KNOWN."""

    def __post_init__(self) -> None:
        sizes = {len(column) for column in (self.template_of, self.ledger_ids, *self._numbers())}
        if len(sizes) != 1:
            raise ValueError(f"columns of ledgers have different lengths: {sorted(sizes)}")
        if self.scope_id == 0 and min(self.ledger_ids, default=0) < 0:
            raise ValueError("an id without a scope is negative")
        if max(self.template_of, default=-1) >= len(self.templates) or min(self.template_of, default=0) < 0:
            raise ValueError(f"a ledger has a template that is none of {len(self.templates)}")
        if min(self.last_entry_ids, default=0) < NO_ENTRY or min(self.lengths, default=0) < 0:
            raise ValueError("the last entry or the length of a ledger is out of range")

    def _numbers(self) -> tuple[Sequence[int], ...]:
        return (
            self.versions,
            self.last_entry_ids,
            self.lengths,
            self.ctimes_ms,
            self.creator_tokens,
            self.created_ms,
        )

    def __len__(self) -> int:
        return len(self.ledger_ids)

    @overload
    def __getitem__(self, index: int) -> LedgerRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LedgerRecord]: ...

    def __getitem__(self, index: int | slice) -> LedgerRecord | Sequence[LedgerRecord]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        ledger_id, template = LedgerId(self.scope_id, self.ledger_ids[index]), self.templates[self.template_of[index]]
        return _record(ledger_id, template, *(column[index] for column in self._numbers()))

    def __iter__(self) -> Iterator[LedgerRecord]:
        templates = [self.templates[each] for each in self.template_of]
        ledger_ids = ids_in_scope(self.scope_id, self.ledger_ids)
        return map(_record, ledger_ids, templates, *self._numbers())


def _record(
    ledger_id: LedgerId,
    template: LedgerMetadata,
    version: int,
    last_entry_id: int,
    length: int,
    ctime_ms: int,
    creator_token: int,
    created_ms: int,
) -> LedgerRecord:
    metadata = ledger_of(template, last_entry_id, length, ctime_ms, creator_token)
    return LedgerRecord(ledger_id, metadata, version, None if created_ms == NOT_KNOWN else created_ms)
