"""What may not be deleted of many ledgers: a rule of deletions that go over a scope. Pure.

A ledger of another principal can carry the marks by which such a deletion finds its own. It must not keep the others:
a refusal is noted, the others are deleted, and the caller is told at the end.
"""

from __future__ import annotations

from bookgate.ledger.errors import UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId

Kept = dict[LedgerId, UnauthorizedAccessException | None]
"""Ledgers that this client may not delete, with the refusals; None: it stays since such a one has to go first."""

_NAMED_AT_MOST = 10


class NotAllDeletedException(UnauthorizedAccessException):
    """This client may not delete some of the ledgers; the others that were to go are deleted.

    Attributes:
        deleted: The number of ledgers that are deleted.
    """

    def __init__(self, message: str, deleted: int) -> None:
        super().__init__(message)
        self.deleted = deleted


def require_all(deleted: int, kept: Kept) -> None:
    """Ends a deletion of which so many ledgers were deleted. Raises NotAllDeletedException if others were kept."""
    refusals = [each for each in kept.values() if each is not None]
    if refusals:
        more = f" and {len(kept) - _NAMED_AT_MOST} more" if len(kept) > _NAMED_AT_MOST else ""
        named = ", ".join(map(str, list(kept)[:_NAMED_AT_MOST]))
        raise NotAllDeletedException(
            f"deleted {deleted} ledgers; left are {named}{more}, of which this client may not delete {len(refusals)} "
            f"({refusals[0]})",
            deleted,
        )
