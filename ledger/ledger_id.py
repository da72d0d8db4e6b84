"""Ledger ids have 128 bits; all ledgers that BookKeeper releases create use the lower 64 only.

`scope_id` is bits 64–127, `ledger_id` bits 0–63 (docs/protocol/entry-format.md#ledger-ids). Scope 0 is BookKeeper's own
id space: 0 ≤ ledger_id < 2**63. In any other scope both halves are arbitrary 64-bit patterns, carried signed.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_ENTRY = -1
"""The entry id that means "no entry": the LAC and last entry id of an empty ledger."""

_MIN_INT64 = -(1 << 63)
_MAX_INT64 = (1 << 63) - 1
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class LedgerId:
    """A ledger's id, ordered by scope, then id. Raises ValueError if a value is out of range."""

    scope_id: int
    ledger_id: int

    def __post_init__(self) -> None:
        for half in (self.scope_id, self.ledger_id):
            if not _MIN_INT64 <= half <= _MAX_INT64:
                raise ValueError(f"ledger id half {half} does not fit 64 bits")
        if self.scope_id == 0 and self.ledger_id < 0:
            raise ValueError(f"ledger id {self.ledger_id} is negative; an id without a scope is 0 or more")

    @classmethod
    def unscoped(cls, ledger_id: int) -> LedgerId:
        """The id of a ledger in scope 0, the only scope that BookKeeper's releases support."""
        return cls(0, ledger_id)

    @property
    def qualified_name(self) -> str:
        """32 lower-case hex digits, scope first."""
        return f"{self.scope_id & _MASK_64:016x}{self.ledger_id & _MASK_64:016x}"

    def __str__(self) -> str:
        return str(self.ledger_id) if self.scope_id == 0 else self.qualified_name
