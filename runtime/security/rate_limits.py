"""Rates and shares of principals. Pure: the clock is an argument.

`TokenBucket`: so many a second, and as many at once as one second brings. A bucket may go below zero by one request
that is larger than it (a listing of a million ids): what follows waits the longer, and no request is impossible.
Who is refused is told when to come again, each a moment of its own, one after the other at the bucket's rate: callers
that heed it don't come back all at once to be refused once more.
`PrincipalLimits`: the buckets of each principal, made at its first request and forgotten when they are full again.
`RefusalPace`: refusals have a rate too. A refusal costs about what an answer costs, so who calls on regardless is
refused late, and can't spend with refused calls what its limit leaves to others. A door may answer a call whose moment
comes while its refusal is held back: callers that wait for their moments take what the bucket gives one by one, where
callers that were all refused would find it filled, and spend that in a burst.
`FairQueue`: whose turn it is among those that wait. Each principal has a queue of its own, and the queues take turns,
so one that floods waits for itself.

Source: docs/protocol/security.md#limits. Not its job: what is told to the caller.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from bookgate.runtime.security.policy import Limits, Policy
from bookgate.runtime.security.principal import Principal

T = TypeVar("T")

_SWEEP = 256
"""Principals are forgotten so many at a time."""

_MOST_PROMISED_SECONDS = 5.0
"""So far apart are the moments at most that those who are refused now are told."""

_REFUSALS_PER_SECOND = 100.0
MOST_HELD_SECONDS = 1.0
"""For so long a refusal is held back at most, about, well below what callers give a call."""

_GOLDEN = 0.618034
"""Multiples of it, less their whole part, are spread evenly however many there are."""


class TokenBucket:
    """See the module. Rate in units a second."""

    __slots__ = ("_at", "_level", "_promised", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._level = self.capacity
        self._at = now
        self._promised = now
        """The last moment that somebody who was refused was told."""

    @property
    def capacity(self) -> float:
        return max(self.rate, 1.0)

    def take(self, now: float, amount: float = 1.0) -> float:
        """Takes, and returns 0; or takes nothing and returns the seconds after which it is worth another try."""
        self._fill(now)
        needed = min(amount, self.capacity)
        if self._level >= needed:
            self._level -= amount
            return 0.0
        return self._promise(now, (needed - self._level) / self.rate, needed / self.rate)

    def change_rate(self, rate: float, now: float) -> None:
        """Goes on at another rate, with what is in it."""
        self._fill(now)
        self.rate = rate
        self._level = min(self.capacity, self._level)

    def charge(self, now: float, amount: float) -> None:
        """Takes what is known afterwards only, such as the length of a listing."""
        self._fill(now)
        self._level -= amount

    def wait(self, now: float) -> float:
        """Seconds until what was charged is paid; 0: it is."""
        self._fill(now)
        return max(-self._level / self.rate, 0.0)

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._level >= self.capacity

    def _promise(self, now: float, wait: float, turn: float) -> float:
        """Seconds, at least `wait`, and a turn after what was told last. Nothing is kept for who does not come."""
        later = max(min(self._promised - now + turn, wait + _MOST_PROMISED_SECONDS), wait)
        self._promised = now + later
        return later

    def _fill(self, now: float) -> None:
        # A clock that went back gives nothing and takes nothing.
        self._level = min(self.capacity, self._level + max(now - self._at, 0.0) * self.rate)
        self._at = now


class _Buckets:
    """Buckets by key, made when they are asked for and forgotten when they are full."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, key: Hashable, rate: float, now: float) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(rate, now)
            self._sweep(now)
        elif bucket.rate != rate:
            # Not a new one, which would be full: tokens of one principal may name other groups, with other rates.
            bucket.change_rate(rate, now)
        return bucket

    def _sweep(self, now: float) -> None:
        """Looks at some: a full bucket says nothing that a new one would not."""
        for _ in range(min(len(self._buckets) - 1, 2) if len(self._buckets) > _SWEEP else 0):
            key, bucket = self._buckets.popitem(last=False)
            if not bucket.is_full(now):
                self._buckets[key] = bucket


class PrincipalLimits:
    """The rates of all principals, as the policy limits them; without limits nothing is kept."""

    def __init__(self) -> None:
        self._buckets = _Buckets()

    def take(self, policy: Policy, principal: Principal, rate: str, now: float, amount: float = 1.0) -> float:
        """Takes from a principal's rate, a name of `Limits`; seconds to wait, 0: it was taken."""
        bucket = self._bucket(policy, principal, rate, now)
        return 0.0 if bucket is None else bucket.take(now, amount)

    def charge(self, policy: Policy, principal: Principal, rate: str, now: float, amount: float) -> float:
        """Takes whatever there is, and returns the seconds until it is paid."""
        bucket = self._bucket(policy, principal, rate, now)
        if bucket is None:
            return 0.0
        bucket.charge(now, amount)
        return bucket.wait(now)

    def _bucket(self, policy: Policy, principal: Principal, name: str, now: float) -> TokenBucket | None:
        if not policy.limits:
            return None
        limits: Limits | None = policy.limits_of(principal)
        rate: float | None = None if limits is None else getattr(limits, name)
        return None if rate is None else self._buckets.get((str(principal), name), rate, now)


class RefusalPace:
    """How late each principal is refused: not at all, until it has been refused too often within a second."""

    def __init__(self) -> None:
        self._buckets = _Buckets()
        self._spread = 0.0

    def hold(self, principal: Principal, now: float) -> float:
        """Seconds for which this refusal is held back. Whoever has shown nothing valid is one principal."""
        bucket = self._buckets.get(str(principal), _REFUSALS_PER_SECOND, now)
        if bucket.wait(now) < MOST_HELD_SECONDS:
            bucket.charge(now, 1.0)
            return bucket.wait(now)
        # Refused at one moment they would all come back at one moment, for ever.
        self._spread = (self._spread + _GOLDEN) % 1.0
        return MOST_HELD_SECONDS * (1 + self._spread) / 2


class FairQueue(Generic[T]):
    """What waits, by principal; `take` gives the next, each principal in turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, principal: Hashable, item: T) -> None:
        self._waiting.setdefault(principal, deque()).append(item)
        self._count += 1

    def take(self) -> T | None:
        """None: nothing waits."""
        if not self._waiting:
            return None
        principal, items = self._waiting.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        if items:
            self._waiting[principal] = items
        return item

    def remove(self, principal: Hashable, item: T) -> None:
        """Takes out what does not wait any more; nothing if it is not there."""
        items = self._waiting.get(principal)
        if items is None or item not in items:
            return
        items.remove(item)
        self._count -= 1
        if not items:
            del self._waiting[principal]
