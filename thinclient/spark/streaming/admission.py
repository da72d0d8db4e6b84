"""How the entries of a trigger are shared between ledgers. Pure.

With a limit each ledger gets entries in proportion to what waits in it, so that a large ledger does not keep small ones
waiting nor the other way round. Shares are whole entries: what rounding leaves goes first to the ledgers whose share is
less than one entry, beginning with another one at each turn, then to the rest. The limit of entries is exact. That of
bytes is kept by the mean size of a ledger's entries, since nothing knows the size of an entry before it is read. One
entry is admitted whatever its size, or a stream would stand still for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookgate.thinclient.spark.offsets import Backlog


def admit(
    waiting: Mapping[int, Backlog], max_entries: int | None, max_bytes: int | None, turn: int = 0
) -> dict[int, int]:
    """How many entries each ledger may give now. Without limits all that waits; else at least one in sum, if any.

    `turn` counts the calls.
    """
    grants = {ledger_id: backlog.entries for ledger_id, backlog in waiting.items()}
    if max_entries is not None:
        grants = _share(grants, max_entries, turn)
    if max_bytes is not None:
        grants = _within_bytes(grants, waiting, max_bytes, turn)
    return grants


def _share(wanted: Mapping[int, int], limit: int, turn: int) -> dict[int, int]:
    total = sum(wanted.values())
    if total <= limit:
        return dict(wanted)
    grants = {ledger_id: entries * limit // total for ledger_id, entries in wanted.items()}
    left = limit - sum(grants.values())
    small = [ledger_id for ledger_id, granted in grants.items() if not granted and wanted[ledger_id]]
    begin = turn * max(1, limit) % len(small) if small else 0
    # What has its share exactly gets no more: of the others there are more than entries left.
    rest = [ledger_id for ledger_id, granted in grants.items() if granted and wanted[ledger_id] * limit % total]
    for ledger_id in (small[begin:] + small[:begin] + rest)[:left]:
        grants[ledger_id] += 1
    assert sum(grants.values()) <= limit, "no more is granted than the limit"
    assert all(granted <= wanted[ledger_id] for ledger_id, granted in grants.items()), "nor more than is wanted"
    return grants


def _within_bytes(wanted: Mapping[int, int], waiting: Mapping[int, Backlog], limit: int, turn: int) -> dict[int, int]:
    """Of each ledger the part by which all together come to the limit."""
    total = sum(_bytes(waiting[ledger_id], entries) for ledger_id, entries in wanted.items())
    if total <= limit:
        return dict(wanted)
    return _share(wanted, max(1, sum(wanted.values()) * limit // total), turn)


def _bytes(backlog: Backlog, entries: int) -> int:
    return backlog.size * entries // backlog.entries
