"""The limits and waiting times of a journal, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The limits of each journal of a bookie."""

    max_size_bytes: int = 512 * _MIB
    """Size at which the next file is begun."""
    pre_alloc_bytes: int = 16 * _MIB
    alignment_bytes: int = 512
    """Multiple to which each flush is padded."""
    max_group_wait_seconds: float = 0.0
    """How long a flush waits for more requests; 0: it begins whenever the journal thread is free."""
    buffered_writes_bytes: int = 512 * 1024
    """Queued bytes that end that wait."""
    buffered_entries: int = 0
    """Queued records that end that wait; 0: no limit."""
    queue_limit_bytes: int = 64 * _MIB
    """Queued bytes at which the journal is full."""
    ample_bytes: int = 0
    """Files are allocated ahead only if the disk keeps this many bytes free."""
    sync_data: bool = True
    """False: adds are acknowledged before the journal is synced, so a loss of power may lose acknowledged adds."""
