"""Clients that a policy of the gateways holds back: one whose changes it denies (A1), one with a quota (A2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from bookgate.ledger.errors import TooManyRequestsException, UnauthorizedAccessException
from bookgate.ledger.ledger_manager import LedgerRecord
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.policy import parse_policy
from tests.history.check_metadata import INTRUDER
from tests.simulation.access import access_control
from tests.simulation.metadata_actors import MetadataClient

__all__ = ["HOARDER", "INTRUDER", "QUOTA", "Hoarder", "Intruder", "guarded"]

HOARDER = "hoarder"
QUOTA = 4
"""Ledgers that it may have at a time."""
_AT_ONCE = (1, 2, 3, 6)
_POLICY = f"""
[roles.looker]
actions = ["ledger.read", "ledger.list", "ledger.watch", "discovery.read"]
[[bindings]]
principals = ["token:client-*"]
role = "writer"
[[bindings]]
principals = ["token:{INTRUDER}"]
role = "looker"
[[bindings]]
principals = ["token:{INTRUDER}"]
role = "writer"
owned = true
scopes = ["77"]
[[bindings]]
principals = ["token:{HOARDER}"]
role = "writer"
owned = true
[[limits]]
principals = ["token:{HOARDER}"]
ledgers = {QUOTA}
"""


def guarded() -> AccessControl:
    return access_control(parse_policy(_POLICY))


class Intruder(MetadataClient):
    """Tries what all do; that its changes are refused is what it expects."""

    async def _change(
        self, mark: str, kind: str, ledger: int | None, call: Awaitable[LedgerRecord | None]
    ) -> LedgerRecord | None:
        try:
            return await super()._change(mark, kind, ledger, call)
        except UnauthorizedAccessException:
            return None


class Hoarder(MetadataClient):
    """Creates more ledgers at once than it may have, and removes some of its own."""

    async def work(self, until: float, pause: float) -> None:
        while asyncio.get_running_loop().time() < until:
            made = await asyncio.gather(*(self.create(None) for _ in range(self._rng.choice(_AT_ONCE))))
            for ledger in filter(None, made):
                if self._rng.random() < 0.9:
                    await self.remove(ledger)
            await asyncio.sleep(self._rng.uniform(0, 4 * pause))

    async def _change(
        self, mark: str, kind: str, ledger: int | None, call: Awaitable[LedgerRecord | None]
    ) -> LedgerRecord | None:
        try:
            return await super()._change(mark, kind, ledger, call)
        except TooManyRequestsException:
            return None
