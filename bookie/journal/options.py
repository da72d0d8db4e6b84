"""What a journal may take and how long it waits, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Sizes in bytes. `max_group_wait_seconds` 0: flush as soon as the thread is free. `queue_limit`: see `is_full`.

    `buffered_writes` bytes or `buffered_entries` records (0: any number) end a group wait. Files are allocated ahead
    while at least `ample` bytes are free on the disk beyond that.
    """

    max_size: int
    pre_alloc: int
    alignment: int
    buffered_writes: int
    max_group_wait_seconds: float
    queue_limit: int
    sync_data: bool
    buffered_entries: int = 0
    ample: int = 0
