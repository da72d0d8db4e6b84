"""How fast a worker may copy: buckets of bytes that fill at a rate, and that overload empties.

A worker has a bucket of its own and one for each bookie that it reads from or copies to; each read and each copy costs
its bytes in both, those of a small entry more (`cost_of`). A limit that holds for a bookie or for the whole cluster,
whoever works, is divided among the workers by what they work on: each has the share of it that its locks are of all
locks. The rate is halved when a bookie that is read from or stored to says that it has too many requests, does not
answer in time, or is slow: very slow once, or several times in a row much slower than it can be (`answer_times`). It
grows back by a tenth a second. Entries with one copy left have a bucket besides, which is neither shared nor halved.

Pure: times come from the caller, in seconds of one clock. Source: docs/protocol/auto-recovery.md#budget (R15).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bookgate.bookie.replication.copies.answer_times import AnswerTimes, Asked
from bookgate.ledger.errors import BKException, TimeoutException, TooManyRequestsException

LEAST_ENTRY_BYTES = 4096
"""What a copy costs at least, however small the entry: to read, check and store it costs the processors as much as some
4 KiB of a large one do (some 17 µs an entry and 3.7 µs a KiB, as measured in a worker). By their bytes alone small
entries would be copied at a rate that leaves the bookies no time for anybody else."""
SLOW_ANSWER_SECONDS = 0.5
"""A bookie that takes longer to read, or to store a group of copies, has too much to do."""
_LEAST_SHARE, _LEAST_SHARE_OF_SLOW = 1 / 64, 1 / 8
"""What is left of a rate at least: when bookies refuse or can't be heard of, and when they are only slower than they
can be, which they may be for months: ledgers must not go without their copies for that."""
_GROWTH_A_SECOND = 0.1
_BURST_SECONDS = 0.02
_HALVED_AGAIN_SECONDS = 0.25
"""What was sent before a rate was halved says nothing of the new rate."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes a second that are read and stored; 0 for no bound."""

    worker: float = 0.0
    """By one worker."""
    bookie: float = 0.0
    """At one bookie, by all workers."""
    last_copies: float = 0.0
    """By one worker of entries that have one copy left, whatever the others are and overload makes of them; 0 for
    nothing beyond these."""


def cost_of(sizes: Iterable[int]) -> int:
    """Bytes that copies of entries with payloads of these sizes cost; see `LEAST_ENTRY_BYTES`."""
    return sum(max(size, LEAST_ENTRY_BYTES) for size in sizes)


class ByteBudget:
    """One bucket. `bytes_a_second` is the full rate; 0 for no bound."""

    def __init__(self, bytes_a_second: float, now: float) -> None:
        self._full_rate = bytes_a_second
        self._rate = bytes_a_second
        self._free_at = now
        self._grown_at = now
        self._halved_at = now - _HALVED_AGAIN_SECONDS

    @property
    def rate(self) -> float:
        """Bytes a second that are granted now."""
        return self._rate

    def refill_at(self, bytes_a_second: float) -> None:
        """Sets the full rate; a rate that overload has lowered stays as low."""
        if bytes_a_second == self._full_rate:
            return
        unbounded = self._full_rate <= 0 or bytes_a_second <= 0
        self._rate = bytes_a_second if unbounded else bytes_a_second * self._rate / self._full_rate
        self._full_rate = bytes_a_second

    def take(self, size: float, now: float) -> float:
        """Takes `size` bytes out; returns for how many seconds the caller has to wait before it uses them."""
        seconds = self.wait(size, now)
        if self._full_rate > 0:
            self._free_at = self._free_after(size, now)
        return seconds

    def wait(self, size: float, now: float) -> float:
        """For how many seconds whoever takes `size` bytes out now has to wait; takes nothing."""
        if self._full_rate <= 0:
            return 0.0
        self._grow(now)
        return max(0.0, self._free_after(size, now) - now)

    def _free_after(self, size: float, now: float) -> float:
        return max(self._free_at, now - _BURST_SECONDS) + size / self._rate

    def overloaded(self, now: float, *, only_slow: bool = False) -> None:
        """A bookie has too much to do, or is `only_slow`."""
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

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._cluster = 0.0
        self._share = 1.0
        self._own = ByteBudget(0.0, now)
        self._last_copies = ByteBudget(limits.last_copies, now)
        """Never lowered."""
        self._bookies: dict[str, ByteBudget] = {}
        self._times = AnswerTimes()
        self._refill()

    @property
    def rate(self) -> float:
        """Bytes a second that are granted to the worker now; 0: without bound."""
        return self._own.rate

    def share(self, part: float, cluster: float) -> None:
        """Sets what the worker may take of the common limits.

        Args:
            part: Its locks, of all locks; above 0 and up to 1.
            cluster: Bytes a second of all workers together, 0 for no bound.
        """
        self._share, self._cluster = part, cluster
        self._refill()

    def take(self, sizes: Mapping[str, float], now: float, *, last_copies: bool = False) -> float:
        """Takes bytes out, by bookie; returns for how many seconds the caller has to wait before it uses them.

        Entries that have one copy left (`last_copies`) have a bucket besides, and take from the one that has them wait
        for less time.
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

    def answered(self, bookie_id: str, asked: Asked, size: int, seconds: float, now: float) -> None:
        """A bookie has read or stored so many bytes, in so many seconds."""
        rising = self._times.is_rising(bookie_id, asked, size, seconds, now)
        if rising or seconds > SLOW_ANSWER_SECONDS:
            self.overloaded(bookie_id, now, only_slow=seconds <= SLOW_ANSWER_SECONDS)

    def heard(self, bookie_id: str, size: int, seconds: float, error: BKException | None, now: float) -> None:
        """Of an answer to a read: so many bytes in so many seconds, or an error."""
        if error is None:
            self.answered(bookie_id, Asked.READ, size, seconds, now)
        else:
            self.failed(bookie_id, error, now)

    def failed(self, bookie_id: str, error: BKException, now: float) -> None:
        """A bookie has not read or stored what it was asked to."""
        if isinstance(error, TooManyRequestsException | TimeoutException):
            self.overloaded(bookie_id, now)

    def overloaded(self, bookie_id: str, now: float, *, only_slow: bool = False) -> None:
        """The bookie has too much to do, or is `only_slow`."""
        self._own.overloaded(now, only_slow=only_slow)
        if self._limits.bookie > 0:
            self._bucket(bookie_id, now).overloaded(now, only_slow=only_slow)

    def _bucket(self, bookie_id: str, now: float) -> ByteBudget:
        bucket = self._bookies.get(bookie_id)
        if bucket is None:
            bucket = self._bookies[bookie_id] = ByteBudget(self._limits.bookie * self._share, now)
        return bucket

    def _refill(self) -> None:
        bounds = [each for each in (self._limits.worker, self._cluster * self._share) if each > 0]
        self._own.refill_at(min(bounds, default=0.0))
        for bucket in self._bookies.values():
            bucket.refill_at(self._limits.bookie * self._share)
