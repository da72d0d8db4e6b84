"""Who owns ledgers, as the metadata say, for a policy that asks: learnt once, forgotten when a ledger is deleted.

A bookie hears of a ledger from its writer, perhaps before the store that it reads has the ledger's metadata: what is
not there is looked for again a few times, and not remembered. Nor does it count where the store is not that of the
bookie's cluster: a writer whose new ledger is refused as nobody's deletes it. Only principals whose bindings say
`owned` make it ask.

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
        """For each read under way what was deleted since it began."""
        self.generation = 0
        """Changes when something that was known is not any more."""

    def knows(self, number: int) -> bool:
        return number in self._known

    def owner(self, number: int) -> str | None:
        """Of a ledger that it knows; None: nobody's."""
        return self._known[number]

    async def learn(self, number: int) -> bool:
        """Whether the ledger is known now. Raises BKException where the metadata can't be read."""
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
            return True
        return False

    async def _read(self, number: int) -> bytes | None:
        """The owner, read again where the ledger was deleted meanwhile: what was read may be of the one before."""
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
        """These were deleted: whoever has such an id later is another ledger."""
        numbers = list(numbers)
        for deleted in self._reading.values():
            deleted.update(numbers)
        found = [number for number in numbers if number in self._known]
        for number in found:
            del self._known[number]
        self.generation += bool(found)
