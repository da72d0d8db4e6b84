"""What metrics show of access: bounded, and there before anything has happened."""

from __future__ import annotations

from collections import Counter

from bookgate.runtime.security.access_counts import access_samples
from bookgate.runtime.security.principal import Kind


def test_all_combinations_are_there_at_zero_and_no_more_come() -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    before = dict(access_samples(counts, ("entry", "http")))
    assert set(before.values()) == {0}
    assert len(before) == 2 * (len(Kind) * 4 + 1)
    counts["http", "token", "denied"] += 3
    counts["entry", "anonymous", "unauthenticated"] += 1
    after = dict(access_samples(counts, ("entry", "http")))
    assert after.keys() == before.keys()
    assert after["http", "token", "denied"] == 3


def test_without_security_nothing_is_counted_and_each_outcome_is_shown() -> None:
    shown = access_samples(None, ("grpc",))
    assert {outcome for (_, principal, outcome), count in shown if principal == "anonymous" and not count} == {
        *("allowed", "denied", "limited", "quota", "unauthenticated"),
    }
    assert len(shown) == 5
