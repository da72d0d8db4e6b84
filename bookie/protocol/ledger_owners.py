"""The owners of ledgers according to the metadata: read once for a policy that needs them, discarded on deletion.

A bookie may receive a ledger's first request before the metadata appear in the store that it reads: missing metadata
are read again a few times, and their absence is not remembered. Nor is it trusted if the store is not that of the
bookie's cluster, because a writer whose new ledger is rejected for lack of an owner deletes it. Only principals with
bindings that say `owned` cause reads.

Belongs to the event loop. Not its job: the decision (`entry_access`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from bookgate.ledger.errors import NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY
from bookgate.ledger.metadata_store import LedgerManager

_MOST = 100_000
_LOOK_AGAIN_SECONDS = (0.05, 0.2, 0.5, 1.0)


class LedgerOwners:
    """See the module. Ledgers are named by their numbers."""

    def __init__(self, manager: LedgerManager, verify: Callable[[], Awaitable[None]]) -> None:
        """`verify` raises BKException unless the store is that of the bookie's cluster."""
        self._manager = manager
        self._verify = verify
        self._known: OrderedDict[int, str | None] = OrderedDict()
        self._reading: dict[object, set[int]] = {}
        """For each read in progress, the ledgers deleted since it began."""
        self.generation = 0
        """Changes when decisions by owners that were known may be about deleted ledgers."""
        self._pushed_out = False
        """Whether owners made room for others since `generation` changed, so that decisions by unknown ones stand."""

    def knows(self, number: int) -> bool:
        return number in self._known

    def owner(self, number: int) -> str | None:
        """The owner of a known ledger; None if it has no owner."""
        return self._known[number]

    async def learn(self, number: int) -> bool:
        """Reads the owner; returns whether the ledger is known now. Raises BKException if the metadata can't be
        read.
        """
        for pause in (*_LOOK_AGAIN_SECONDS, None):
            try:
                owner = await self._read(number)
            except NoSuchLedgerExistsOnMetadataServerException:
                if pause is None:
                    await self._verify()
                    return False
                await asyncio.sleep(pause)
                continue
            self._known[number] = None if owner is None else owner.decode("utf-8", "replace")
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
                self._pushed_out = True
            return True
        return False

    async def _read(self, number: int) -> bytes | None:
        """Reads the owner, again if the ledger was deleted meanwhile: the result may belong to the deleted ledger."""
        while True:
            reading = object()
            deleted = self._reading[reading] = set()
            try:
                record = await self._manager.read(LedgerId.of_number(number))
            finally:
                del self._reading[reading]
            if number not in deleted:
                return record.metadata.custom_metadata.get(OWNER_KEY)

    def forget(self, numbers: Iterable[int]) -> None:
        """Discards deleted ledgers: a later ledger with such an id is another one."""
        numbers = list(numbers)
        for deleted in self._reading.values():
            deleted.update(numbers)
        found = [number for number in numbers if number in self._known]
        for number in found:
            del self._known[number]
        if found or (numbers and self._pushed_out):
            self.generation += 1
            self._pushed_out = False
