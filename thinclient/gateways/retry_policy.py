"""What a client repeats by itself, how often and with which pauses: one value, built from the settings in
`ClientConfig`.

Each setting is defined here once: the field has its default, `ClientConfig` its meaning and limits. For nested repeats,
docs/client.md ("What is repeated") has the products.

Not its job: what may be repeated at all (`failures`, `ledger_manager`), how long a call may take
(`metadata_timeout_seconds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """See `ClientConfig` for each field; values are seconds or counts."""

    metadata_first_pause_seconds: float = 0.05
    metadata_longest_pause_seconds: float = 1.0
    metadata_connect_seconds: float = 2.5
    metadata_connect_patience_seconds: float = 0.4
    metadata_hedge_seconds: float = 0.4
    metadata_first_ask_last_seconds: float = 1.0
    metadata_longest_ask_last_seconds: float = 10.0
    metadata_longest_retry_after_seconds: float = 30.0
    metadata_change_attempts: int = 5
    pinned_create_repeats: int = 3
    metadata_conflict_attempts: int = 100
    metadata_unknown_outcomes: int = 3
    ensemble_change_first_pause_seconds: float = 0.1
    ensemble_change_longest_pause_seconds: float = 2.0


DEFAULT_RETRIES = RetryPolicy()


def doubling(first: float, longest: float) -> Iterator[float]:
    """Endless pauses: each twice the previous one, up to `longest` seconds."""
    pause = first
    while True:
        yield min(pause, longest)
        pause = min(pause * 2, longest)
