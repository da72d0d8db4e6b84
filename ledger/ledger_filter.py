"""Which ledgers of a listing are wanted: a rule that the command line and others who list ledgers share.

Sizes and last entries are known of closed ledgers only, so a bound on the size leaves out those that are not closed. A
bound on the age leaves out a ledger whose creation time nobody has recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerRecord


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """What a ledger must be like; what is None or empty says nothing.

    Attributes:
        state: The state it is in.
        bookie: A bookie that one of its ensembles names.
        created_from_ms: Not created before this time, in milliseconds since 1970.
        created_before_ms: Created before this time.
        min_bytes: At least so many payload bytes.
        max_bytes: At most so many payload bytes.
        custom_metadata: Keys that its custom metadata has, each with this value, or with any where it is None.
    """

    state: LedgerState | None = None
    bookie: str | None = None
    created_from_ms: int | None = None
    created_before_ms: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    custom_metadata: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def takes_all(self) -> bool:
        """Whether it leaves no ledger out."""
        return self == LedgerFilter()

    def matches(self, record: LedgerRecord) -> bool:
        """Whether a ledger is wanted."""
        metadata = record.metadata
        return (
            self.state in (None, metadata.state)
            and (self.bookie is None or metadata.names(self.bookie))
            and _within(record.creation_ms, self.created_from_ms, _last(self.created_before_ms))
            and _within(metadata.length if metadata.is_closed else None, self.min_bytes, self.max_bytes)
            and all(_has(metadata.custom_metadata, key, value) for key, value in self.custom_metadata.items())
        )

    def of(self, records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """The wanted ones, in their order."""
        return [record for record in records if self.matches(record)]


def _last(before: int | None) -> int | None:
    return None if before is None else before - 1


def _within(value: int | None, least: int | None, most: int | None) -> bool:
    if least is None and most is None:
        return True
    return value is not None and (least is None or value >= least) and (most is None or value <= most)


def _has(custom: Mapping[str, bytes], key: str, value: bytes | None) -> bool:
    return key in custom and value in (None, custom[key])
