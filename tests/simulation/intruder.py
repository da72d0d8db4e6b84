"""Clients that a policy of the gateways holds back: one whose changes it denies (A1), one with a quota (A2).

From both passwords are kept, from the second one also what others own (A5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from bookgate.ledger.errors import (
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    TooManyRequestsException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_manager import LedgerRecord
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.policy import parse_policy
from tests.history.check_metadata import INTRUDER
from tests.history.metadata_events import GuestAnswered, LedgerShown
from tests.history.recorder import Recorder
from tests.simulation.access import access_control
from tests.simulation.metadata_actors import MetadataClient

__all__ = ["HOARDER", "INTRUDER", "QUOTA", "Hoarder", "Intruder", "guarded", "password_of", "sent_to_guests"]

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
    """Creates more ledgers at once than it may have, removes some of its own, and looks for those of others."""

    async def work(self, until: float, pause: float) -> None:
        while asyncio.get_running_loop().time() < until:
            made = await asyncio.gather(*(self.create(None) for _ in range(self._rng.choice(_AT_ONCE))))
            own, known = [*filter(None, made)], list(self._ledgers) or [1]
            with suppress(MetaStoreException, UnauthorizedAccessException, NoSuchLedgerExistsOnMetadataServerException):
                await self._look(self._rng.choice(own if own and self._rng.random() < 0.3 else known))
            for ledger in own:
                if self._rng.random() < 0.9:
                    await self.remove(ledger)
            await asyncio.sleep(self._rng.uniform(0, 4 * pause))

    async def _look(self, ledger: int) -> None:
        how = self._rng.choice(("listing", "records", "read", "batch", "watch"))
        match how:
            case "listing":
                async for run in self._manager.ledger_ranges():
                    for number in run:
                        self._shown(number, how)
            case "records":
                async for records in self._manager.ledger_records():
                    for record in records:
                        self._shown(record.ledger_id.low, how)
            case "read":
                await self._manager.read(LedgerId.unscoped(ledger))
                self._shown(ledger, how)
            case "batch":
                numbers = list(self._ledgers)[-10:]
                found = await self._manager.read_many([LedgerId.unscoped(number) for number in numbers])
                for number, outcome in zip(numbers, found, strict=True):
                    if isinstance(outcome, LedgerRecord):
                        self._shown(number, how)
            case "watch":
                await self._watch_for_a_while(ledger)

    async def _watch_for_a_while(self, ledger: int) -> None:
        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            if record is not None:
                self._shown(ledger, "watch")

        await self._manager.register_listener(LedgerId.unscoped(ledger), listener)
        await asyncio.sleep(self._rng.random())
        await self._manager.unregister_listener(LedgerId.unscoped(ledger), listener)

    def _shown(self, ledger: int, how: str) -> None:
        self._recorder.add(LedgerShown(self._recorder.now, self.name, str(ledger), how))

    async def _change(
        self, mark: str, kind: str, ledger: int | None, call: Awaitable[LedgerRecord | None]
    ) -> LedgerRecord | None:
        try:
            return await super()._change(mark, kind, ledger, call)
        except TooManyRequestsException:
            return None


def password_of(client: str) -> bytes:
    """Of the ledgers that it creates."""
    return f"password of {client}".encode()


_KEPT = {INTRUDER: b"password of ", HOARDER: b"password of client"}
"""What no message to them has: passwords of whatever ledger, and those of others' ledgers."""


def sent_to_guests(recorder: Recorder, gateway: str, method: str, stream: str, sent: bool, message: bytes) -> None:
    """An observer of gateways (`SimulatedStore.observers`)."""
    client = stream.split(":")[1]
    if sent and client in _KEPT:
        name, tells = method.rpartition("/")[2], _KEPT[client] in message
        recorder.add(GuestAnswered(recorder.now, gateway, client, name, tells))
