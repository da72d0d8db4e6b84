"""A worker's rate limit: token buckets of bytes, whose rates fall under overload.

A worker has one bucket for itself and one for each bookie that it reads from or copies to; each read and each copy
takes its bytes from both, for small entries more than that (`cost_of`). A limit for a bookie or for the whole cluster
is divided among all workers: each has a share in proportion to its locks. The rate is halved when a bookie says that it
has too many requests, does not respond in time, or is slow: very slow once, or several times in a row much slower than
it can be (`answer_times`). It grows back by a tenth per second. Entries with one copy left have an additional bucket,
which is neither shared nor halved.

Pure: times come from the caller, in seconds of one clock. Source: docs/protocol/auto-recovery.md#budget (R15).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bookgate.bookie.replication.copies.answer_times import AnswerTimes, Asked
from bookgate.ledger.errors import BKException, TimeoutException, TooManyRequestsException

LEAST_ENTRY_BYTES = 4096
"""Minimum cost of a copy in bytes, however small the entry: reading, checking and storing it takes as much CPU as about
4 KiB of a large one (17 µs per entry and 3.7 µs per KiB, measured in a worker). Counted by their bytes only, small
entries would be copied at a rate that leaves the bookies no time for clients."""
SLOW_ANSWER_SECONDS = 0.5
"""A bookie that takes longer to read, or to store a group of copies, is overloaded."""
_LEAST_SHARE, _LEAST_SHARE_OF_SLOW = 1 / 64, 1 / 8
"""Minimum share of a rate: when bookies reject requests or do not respond, and when they are only slower than they can
be. The latter may last for months, and must not prevent repairs."""
_GROWTH_A_SECOND = 0.1
_BURST_SECONDS = 0.02
_HALVED_AGAIN_SECONDS = 0.25
"""Seconds after a halving in which slow responses do not halve the rate again: their requests preceded it."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """CopyLimits of bytes read and stored per second; 0 for no limit."""

    worker: float = 0.0
    """Limit of one worker."""
    bookie: float = 0.0
    """Limit at one bookie, for all workers together."""
    last_copies: float = 0.0
    """Additional limit of one worker for entries with one copy left, independent of the others and of overload; 0 for
    none."""


def cost_of(sizes: Iterable[int]) -> int:
    """Bytes that copies of entries with payloads of these sizes cost; see `LEAST_ENTRY_BYTES`."""
    return sum(max(size, LEAST_ENTRY_BYTES) for size in sizes)


class ByteBudget:
    """One bucket. `bytes_a_second` is the full rate; 0 for no limit."""

    def __init__(self, bytes_a_second: float, now: float) -> None:
        self._full_rate = bytes_a_second
        self._rate = bytes_a_second
        self._free_at = now
        self._grown_at = now
        self._halved_at = now - _HALVED_AGAIN_SECONDS

    @property
    def rate(self) -> float:
        """The current rate in bytes per second."""
        return self._rate

    def refill_at(self, bytes_a_second: float, now: float) -> None:
        """Sets the full rate; a rate lowered by overload stays low. What was taken already is waited for at the new
        rate.
        """
        if bytes_a_second == self._full_rate:
            return
        unbounded = self._full_rate <= 0 or bytes_a_second <= 0
        rate = bytes_a_second if unbounded else bytes_a_second * self._rate / self._full_rate
        if self._free_at > now:
            self._free_at = now + (0.0 if unbounded else (self._free_at - now) * self._rate / rate)
        self._full_rate, self._rate = bytes_a_second, rate

    def take(self, size: float, now: float) -> float:
        """Takes `size` bytes; returns the seconds for which the caller must wait before it uses them."""
        seconds = self.wait(size, now)
        if self._full_rate > 0:
            self._free_at = self._free_after(size, now)
        return seconds

    def wait(self, size: float, now: float) -> float:
        """The seconds for which a caller that takes `size` bytes now must wait; takes nothing."""
        if self._full_rate <= 0:
            return 0.0
        self._grow(now)
        return max(0.0, self._free_after(size, now) - now)

    def _free_after(self, size: float, now: float) -> float:
        return max(self._free_at, now - _BURST_SECONDS) + size / self._rate

    def overloaded(self, now: float, *, only_slow: bool = False) -> None:
        """Lowers the rate, because a bookie is overloaded or `only_slow`."""
        self._grow(now)
        if now - self._halved_at < _HALVED_AGAIN_SECONDS:
            return
        self._halved_at = now
        least = self._full_rate * (_LEAST_SHARE_OF_SLOW if only_slow else _LEAST_SHARE)
        self._rate = min(self._rate, max(least, self._rate / 2))

    def _grow(self, now: float) -> None:
        seconds, self._grown_at = max(0.0, now - self._grown_at), now
        self._rate = min(self._full_rate, self._rate + self._full_rate * _GROWTH_A_SECOND * seconds)


class WorkerBudget:
    """The buckets of one worker."""

    def __init__(self, limits: CopyLimits, now: float) -> None:
        self._limits = limits
        self._cluster = 0.0
        self._share = 1.0
        self._own = ByteBudget(0.0, now)
        self._last_copies = ByteBudget(limits.last_copies, now)
        """The bucket for last copies; its rate is never lowered."""
        self._bookies: dict[str, ByteBudget] = {}
        self._times = AnswerTimes()
        self._refill(now)

    @property
    def rate(self) -> float:
        """The worker's current rate in bytes per second; 0 for no limit."""
        return self._own.rate

    def share(self, part: float, cluster: float, now: float) -> None:
        """Sets the worker's share of the common limits.

        Args:
            part: The worker's share of all locks; above 0 and up to 1.
            cluster: Limit of all workers together in bytes per second, 0 for no limit.
            now: The current time.
        """
        self._share, self._cluster = part, cluster
        self._refill(now)

    def take(self, sizes: Mapping[str, float], now: float, *, last_copies: bool = False) -> float:
        """Takes bytes, by bookie; returns the seconds for which the caller must wait before it uses them.

        Entries with one copy left (`last_copies`) have an additional bucket, and use the one with the shorter wait.
        """
        total = sum(sizes.values())
        buckets = [(self._own, total)]
        if self._limits.bookie > 0:
            buckets += [(self._bucket(bookie_id, now), size) for bookie_id, size in sizes.items()]
        if last_copies and self._limits.last_copies > 0:
            wait = max(bucket.wait(size, now) for bucket, size in buckets)
            if self._last_copies.wait(total, now) < wait:
                return self._last_copies.take(total, now)
        return max(bucket.take(size, now) for bucket, size in buckets)

    def backlog(self, bookie_ids: Iterable[str], now: float) -> float:
        """The seconds until all bytes taken so far, at these bookies, may be used.

        Whoever has taken some need not wait longer, whatever `take` said: the rate may have been raised since.
        """
        buckets = [self._own, self._last_copies]
        if self._limits.bookie > 0:
            buckets += [self._bucket(bookie_id, now) for bookie_id in bookie_ids]
        return max(bucket.wait(0.0, now) for bucket in buckets)

    def answered(self, bookie_id: str, asked: Asked, size: int, seconds: float, now: float) -> None:
        """Records that a bookie has read or stored `size` bytes in `seconds`."""
        rising = self._times.is_rising(bookie_id, asked, size, seconds, now)
        if rising or seconds > SLOW_ANSWER_SECONDS:
            self.overloaded(bookie_id, now, only_slow=seconds <= SLOW_ANSWER_SECONDS)

    def heard(self, bookie_id: str, size: int, seconds: float, error: BKException | None, now: float) -> None:
        """Records the response to a read: `size` bytes in `seconds`, or an error."""
        if error is None:
            self.answered(bookie_id, Asked.READ, size, seconds, now)
        else:
            self.failed(bookie_id, error, now)

    def failed(self, bookie_id: str, error: BKException, now: float) -> None:
        """Records that a bookie has failed to read or store."""
        if isinstance(error, TooManyRequestsException | TimeoutException):
            self.overloaded(bookie_id, now)

    def overloaded(self, bookie_id: str, now: float, *, only_slow: bool = False) -> None:
        """Lowers the rates, because the bookie is overloaded or `only_slow`."""
        self._own.overloaded(now, only_slow=only_slow)
        if self._limits.bookie > 0:
            self._bucket(bookie_id, now).overloaded(now, only_slow=only_slow)

    def _bucket(self, bookie_id: str, now: float) -> ByteBudget:
        bucket = self._bookies.get(bookie_id)
        if bucket is None:
            bucket = self._bookies[bookie_id] = ByteBudget(self._limits.bookie * self._share, now)
        return bucket

    def _refill(self, now: float) -> None:
        bounds = [each for each in (self._limits.worker, self._cluster * self._share) if each > 0]
        self._own.refill_at(min(bounds, default=0.0), now)
        for bucket in self._bookies.values():
            bucket.refill_at(self._limits.bookie * self._share, now)
