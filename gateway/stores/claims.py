"""Which owner within this process has claimed a bookie id, and what is registered for it here.

To the store a process is one owner, whoever registers through it: the bookie that hosts the gateway, or another bookie
with its lease. This table distinguishes them. A bookie id is free, or claimed by one owner (`same_life`): by the
process itself, at the latest when it registers, or by a lease while it is registered here. Only the owner gives up a
claim.

Not its job: registrations of other processes, which the store decides on.
"""

from __future__ import annotations

from bookgate.ledger.bookie_info import BookieServiceInfo, Lease, same_life
from bookgate.ledger.errors import LedgerExistException

Held = tuple[BookieServiceInfo, bool]
"""The registration, and whether it is read-only."""


class MovedOnException(LedgerExistException):
    """The bookie has registered at another gateway since, so its registration here must not be restored."""


class Claims:
    """Each registration manager has one; `held` is what the manager keeps registered."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self._own: set[str] = set()

    def reserve(self, bookie_id: str) -> None:
        """Claims an id for the process itself."""
        self._own.add(bookie_id)

    def check(self, info: BookieServiceInfo) -> None:
        """Raises LedgerExistException unless the id is free or claimed by the owner of `info`, by no later stream."""
        if not self.may_change(info.bookie_id, info.lease):
            raise held_by_another(info.bookie_id)
        held = self.held.get(info.bookie_id)
        if held is not None and info.superseded_by(held[0].encode()):
            raise LedgerExistException(f"bookie {info.bookie_id} has opened a newer stream since")

    def may_change(self, bookie_id: str, lease: Lease | None) -> bool:
        """Whether the id is free or claimed by the owner `lease`."""
        if bookie_id in self._own:
            return lease is None
        held = self.held.get(bookie_id)
        return held is None or same_life(held[0].lease, lease)

    def drop(self, bookie_id: str, held: Held) -> None:
        """Removes the registration unless it was renewed since."""
        if self.held.get(bookie_id) is held:
            del self.held[bookie_id]


def held_by_another(bookie_id: str) -> LedgerExistException:
    return LedgerExistException(f"another live process holds the bookie id {bookie_id}; stop it or choose another id")


def moved_on(bookie_id: str) -> MovedOnException:
    return MovedOnException(f"bookie {bookie_id} has registered at another gateway since")
