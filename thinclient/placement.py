"""Which bookies a new ledger goes to. Any distinct writable bookies are compatible; these are drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ledger.errors import NotEnoughBookiesException
from ledger.manager import BookieSet, ServiceDiscovery


class RandomPlacement:
    """Draws ensembles from the writable bookies that discovery lists."""

    def __init__(self, discovery: ServiceDiscovery, rng: random.Random) -> None:
        self._discovery = discovery
        self._rng = rng

    async def new_ensemble(self, size: int) -> Sequence[str]:
        """`size` distinct writable bookies. Raises NotEnoughBookiesException that lists what is there."""
        bookies = [b.bookie_id for b in await self._discovery.bookies(BookieSet.WRITABLE) if b.writable]
        if len(bookies) < size:
            raise NotEnoughBookiesException(
                f"an ensemble of {size} needs as many writable bookies; there are {len(bookies)}"
                f"{': ' + ', '.join(bookies) if bookies else ''}. Start more bookies or ask for a smaller ensemble"
            )
        return self._rng.sample(bookies, size)
