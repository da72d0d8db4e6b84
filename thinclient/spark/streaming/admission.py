"""Shares the entries of a trigger between ledgers. Pure.

With a limit, each ledger gets entries in proportion to its backlog, so that large and small ledgers do not keep each
other waiting. Shares are whole entries: the remainder after rounding goes to the ledgers whose share is less than one
entry, those that have waited longest first, then to the rest: so none waits for ever. The limit of
entries is exact. The limit of bytes relies on the mean size of a ledger's entries, since the size of an entry is
unknown before it is read. One entry is admitted whatever its size; otherwise a stream could stop for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bookgate.thinclient.spark.offsets import Backlog


def admit(
    waiting: Mapping[int, Backlog],
    max_entries: int | None,
    max_bytes: int | None,
    passed_over: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """The number of entries that each ledger may deliver now.

    Args:
        waiting: The backlogs by ledger id.
        max_entries: Limit of entries; None: no limit.
        max_bytes: Limit of payload bytes; None: no limit.
        passed_over: By ledger id, how many calls in succession have granted it nothing; see `still_passed_over`.

    Returns:
        Entries by ledger id. Without limits everything that waits; with limits at least one in sum, if any waits.
    """
    grants = {ledger_id: backlog.entries for ledger_id, backlog in waiting.items()}
    if max_entries is not None:
        grants = _share(grants, max_entries, passed_over)
    if max_bytes is not None:
        grants = _within_bytes(grants, waiting, max_bytes, passed_over)
    return grants


def still_passed_over(passed_over: Mapping[int, int], grants: Mapping[int, int]) -> dict[int, int]:
    """`passed_over` after a call that has granted these."""
    return {ledger_id: passed_over.get(ledger_id, 0) + 1 for ledger_id, granted in grants.items() if not granted}


def _share(wanted: Mapping[int, int], limit: int, passed_over: Mapping[int, int]) -> dict[int, int]:
    total = sum(wanted.values())
    if total <= limit:
        return dict(wanted)
    grants = {ledger_id: entries * limit // total for ledger_id, entries in wanted.items()}
    left = limit - sum(grants.values())
    small = [ledger_id for ledger_id, granted in grants.items() if not granted and wanted[ledger_id]]
    small.sort(key=lambda ledger_id: -passed_over.get(ledger_id, 0))
    # A ledger whose share is exact gets no more: the others outnumber the entries left.
    rest = [ledger_id for ledger_id, granted in grants.items() if granted and wanted[ledger_id] * limit % total]
    for ledger_id in (small + rest)[:left]:
        grants[ledger_id] += 1
    assert sum(grants.values()) <= limit, "no more is granted than the limit"
    assert all(granted <= wanted[ledger_id] for ledger_id, granted in grants.items()), "nor more than is wanted"
    return grants


def _within_bytes(
    wanted: Mapping[int, int], waiting: Mapping[int, Backlog], limit: int, passed_over: Mapping[int, int]
) -> dict[int, int]:
    """Scales the wanted entries of each ledger down so that they keep to `limit` bytes together."""
    total = sum(_bytes(waiting[ledger_id], entries) for ledger_id, entries in wanted.items())
    if total <= limit:
        return dict(wanted)
    return _share(wanted, max(1, sum(wanted.values()) * limit // total), passed_over)


def _bytes(backlog: Backlog, entries: int) -> int:
    return backlog.size * entries // backlog.entries
