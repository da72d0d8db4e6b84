"""What a journal may take and how long it waits, as plain values, and how storage's limits come to them."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.storage_config import StorageConfig


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Sizes in bytes. `max_group_wait_ms` 0: flush as soon as the thread is free. `queue_limit`: see `is_full`.

    `buffered_writes` bytes or `buffered_entries` records (0: any number) end a group wait. Files are allocated ahead
    while at least `ample` bytes are free on the disk beyond that.
    """

    max_size: int
    pre_alloc: int
    alignment: int
    buffered_writes: int
    max_group_wait_ms: int
    queue_limit: int
    sync_data: bool
    buffered_entries: int = 0
    ample: int = 0


def journal_options(config: StorageConfig) -> JournalOptions:
    """The same for each of its journals: their queues together hold half of what the write cache does."""
    return JournalOptions(
        max_size=config.journal_max_size_bytes,
        pre_alloc=max(config.journal_alignment, config.journal_pre_alloc_bytes),
        alignment=config.journal_alignment,
        buffered_writes=config.journal_buffered_writes_bytes,
        max_group_wait_ms=config.journal_max_group_wait_ms,
        queue_limit=max(1, config.write_cache_bytes // 2 // len(config.journal_directories)),
        sync_data=config.sync_data,
        buffered_entries=config.journal_buffered_entries,
        ample=config.write_cache_bytes + 4 * config.journal_pre_alloc_bytes,
    )
