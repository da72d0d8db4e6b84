"""How often somebody may log in: wrong tokens by address, sessions by principal. Pure but for the clock it is given.

Each address has a number of wrong tokens at once, and gets one back every few seconds; none left, no login from there,
with whatever token, so that guessing gets nothing. Addresses of IPv6 count by their network of 64 bits, which one
machine has for itself. A principal's logins are bounded in the same way: the sessions of a process are bounded, and one
principal is not to push out everybody else's.

Source: docs/admin.md#sessions. Not its job: the answer (`access`).
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from bookgate.runtime.clock import monotonic

AT_ONCE = 10
SECONDS_EACH = 6.0
"""After which one more is allowed."""

_MOST = 10_000
"""Addresses and principals that are remembered; of too many the one that was seen the longest ago is forgotten."""


@dataclass(slots=True)
class _Left:
    count: float
    at: float


class LoginAttempts:
    """See the module. One per process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, _Left] = OrderedDict()

    def seconds_to_wait(self, who: str) -> int:
        """Until `who`, of `of_address` or a principal, has an attempt; 0: now."""
        left = self._left.get(who)
        if left is None:
            return 0
        self._refill(left)
        return 0 if left.count >= 1 else math.ceil((1 - left.count) * SECONDS_EACH)

    def spend(self, who: str) -> None:
        """Takes one attempt."""
        left = self._left.pop(who, None) or _Left(AT_ONCE, self._clock())
        self._refill(left)
        left.count = max(left.count - 1, 0.0)
        self._left[who] = left
        if len(self._left) > _MOST:
            self._left.popitem(last=False)

    def _refill(self, left: _Left) -> None:
        now = self._clock()
        left.count = min(left.count + max(now - left.at, 0.0) / SECONDS_EACH, AT_ONCE)
        left.at = now


def of_address(host: str) -> str:
    """What an address counts as."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return f"address {host}"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return f"address {ipaddress.ip_network((int(address) >> 64 << 64, 64))}"
    return f"address {getattr(address, 'ipv4_mapped', None) or address}"
