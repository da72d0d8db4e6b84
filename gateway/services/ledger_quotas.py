"""Quotas of ledgers: limits of the policy on the number of ledgers of an owner and of a scope.

If the policy has quotas, a gateway counts the ledgers of the store at start-up and every minute; between two counts it
adds ledgers created, and subtracts ledgers deleted, through itself. A single gateway never exceeds a quota; if several
create ledgers for the same principal, the quota may be exceeded by the ledgers that the others create between two
counts. A ledger's owner never changes, so a count reads the metadata of new ledgers only, and only if owners have
quotas. But another gateway may delete a ledger and create one with its id for another owner, and listings have ids
only: each count therefore also reads the owners of a fixed part of the ledgers again, so that `_PARTS` counts have read
all of them.

A creation reserves its place before it is sent to the store (`room`), so that concurrent creations do not exceed the
quota together; one with an unknown outcome keeps the place until the next count (`in_doubt`). Before the first count is
complete, a creation under a quota is rejected, with the time after which the caller may try again.

Invariant: A2. Source: docs/protocol/security.md#quotas. Not its job: rates (`runtime.security.rate_limits`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext

from pyroaring import BitMap64

from bookgate.gateway.services.caller import Caller, OverLimitException
from bookgate.gateway.services.ledger_access import owner_of_metadata
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.gateway.stores.listed_ledgers import read_pages
from bookgate.ledger.creator import Creator, creator_of
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory, LedgerRecord, RawLedgerRecord
from bookgate.runtime.cooperative_yield import giving_way
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.access_control import AccessControl

_LOG = logging.getLogger(__name__)

_COUNT_SECONDS = 60.0
"""Seconds between two counts; long counts are made less often."""
_REST = 10
"""Minimum pause after a count, as a multiple of its duration."""
_RETRY_SECONDS = 1.0
_PARTS = 60
"""Counts in which the owners of all ledgers are read again: an hour, unless counts are made less often."""
_READ_AT_ONCE = 1000
_SLICE = 32
_NO_QUOTAS = (None, None)
"""No quota of the owner and none of the scope."""

_MASK_64 = (1 << 64) - 1


class OwnedLedgers:
    """The ledgers of one scope, and their owners as far as they were read."""

    def __init__(self) -> None:
        self.present = BitMap64()
        self.looked_at = BitMap64()
        """Ledgers whose owner was read, also if they have none."""
        self.owners: dict[str, BitMap64] = {}

    def add(self, number: int, owner: str | None) -> None:
        self.present.add(number)
        self.looked_at.add(number)
        if owner is not None:
            self.owners.setdefault(owner, BitMap64()).add(number)

    def read(self, owners: Mapping[int, str | None]) -> None:
        """Takes in the owners of ledgers as the store has them now, whatever was known of these ledgers."""
        numbers = BitMap64(owners)
        if not numbers.isdisjoint(self.looked_at):
            for owned in self.owners.values():
                owned.difference_update(numbers)
        for number, owner in owners.items():
            self.add(number, owner)

    def discard(self, number: int) -> str | None:
        """Removes a ledger; returns its owner, if known."""
        self.present.discard(number)
        self.looked_at.discard(number)
        owner = next((owner for owner, owned in self.owners.items() if number in owned), None)
        if owner is not None:
            self.owners[owner].discard(number)
        return owner

    def keep(self, present: BitMap64) -> None:
        """Drops all ledgers that a listing lacks."""
        self.present = present
        self.looked_at &= present
        self.owners = {owner: left for owner, owned in self.owners.items() if (left := owned & present)}


class LedgerQuotas:
    """See the module. One per gateway, on one event loop."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        budget: StoreBudget,
        access: AccessControl,
        count_seconds: float = _COUNT_SECONDS,
    ) -> None:
        self._factory = factory
        self._budget = budget
        self._access = access
        self._count_seconds = count_seconds
        self._scopes: dict[int, OwnedLedgers] = {}
        self._owned: Counter[str] = Counter()
        self._under_way_of: Counter[str] = Counter()
        self._under_way_in: Counter[int] = Counter()
        self._changes: list[tuple[LedgerId, str | None, bool]] = []
        """Changes since the current count began: ledger, owner, whether it exists now."""
        self._doubts: list[tuple[str, int]] = []
        """Owner and scope of ledgers that may have been created; each occupies a place."""
        self._counting = False
        self._counts = 0
        self._has_counted = self._has_owners = False
        self._wanted = asyncio.Event()

    # --- creations and deletions ---

    def room(self, who: Caller, scopes: Sequence[int]) -> AbstractContextManager[None]:
        """Reserves places for ledgers that are about to be created in these scopes; without a quota it does nothing.

        Raises QuotaReachedException, OverLimitException while the ledgers are being counted.
        """
        for scope_id in scopes:
            if who.quotas(scope_id) != _NO_QUOTAS:
                return self._reserved(who, Counter(scopes))
        return nullcontext()

    @contextmanager
    def _reserved(self, who: Caller, wanted: Counter[int]) -> Iterator[None]:
        owner = str(who.principal)
        self._check(who, wanted)
        for scope_id, count in wanted.items():
            self._reserve(owner, scope_id, count)
        try:
            yield
        finally:
            for scope_id, count in wanted.items():
                self._reserve(owner, scope_id, -count)

    def in_doubt(self, who: Caller, scope_id: int) -> None:
        """Records a creation with an unknown outcome: it occupies a place until the next count is complete."""
        self._doubts.append((str(who.principal), scope_id))
        self._reserve(str(who.principal), scope_id, 1)
        self._wanted.set()

    def _reserve(self, owner: str, scope_id: int, count: int) -> None:
        for reserved, key in ((self._under_way_of, owner), (self._under_way_in, scope_id)):
            left = reserved[key] + count  # type: ignore[index]
            if left:
                reserved[key] = left  # type: ignore[index]
            else:
                del reserved[key]

    async def created_before(self, who: Caller, wanted: CreateRequest) -> LedgerRecord | None:
        """The existing ledger, if this very creation has reached the quota: it was sent to another gateway before, and
        its response was lost.

        Raises OverLimitException, MetaStoreException.
        """
        ledger_id = wanted.ledger_id
        if ledger_id is None or self._full(who, Counter([ledger_id.scope_id])) is None:
            return None
        try:
            async with self._budget.call("read"):
                record = await self._factory.ledger_manager.read(ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            return None
        is_its = creator_of(record, wanted.metadata) is Creator.SELF
        return record if is_its and owner_of_metadata(record.metadata) == owner_of_metadata(wanted.metadata) else None

    def _check(self, who: Caller, wanted: Counter[int]) -> None:
        full = self._full(who, wanted)
        if full is not None:
            who.quota_reached(*full, self._count_seconds)

    def _full(self, who: Caller, wanted: Counter[int]) -> tuple[int, str] | None:
        """The scope whose quota is reached, and the reason; None if there is capacity. Raises OverLimitException."""
        owner = str(who.principal)
        for scope_id, count in wanted.items():
            of_owner, of_scope = who.quotas(scope_id)
            if (of_owner, of_scope) == _NO_QUOTAS:
                continue
            if not self._has_counted or (of_owner is not None and not self._has_owners):
                self._wanted.set()
                raise OverLimitException("the ledgers are being counted for their quotas; try again", _RETRY_SECONDS)
            if of_owner is not None and self.owned_by(owner) + wanted.total() > of_owner:
                return scope_id, f"{owner} has {self.owned_by(owner)} ledgers, and its quota is {of_owner}"
            if of_scope is not None and self.in_scope(scope_id) + count > of_scope:
                return scope_id, f"scope {scope_id} has {self.in_scope(scope_id)} ledgers, and its quota is {of_scope}"
        return None

    def owned_by(self, owner: str) -> int:
        """Number of ledgers that a principal has or is creating, as far as they are counted."""
        return self._owned[owner] + self._under_way_of[owner]

    def in_scope(self, scope_id: int) -> int:
        """Number of ledgers that a scope has or that are being created in it, as far as they are counted."""
        ledgers = self._scopes.get(scope_id)
        return (0 if ledgers is None else len(ledgers.present)) + self._under_way_in[scope_id]

    def created(self, ledger_id: LedgerId, owner: str | None) -> None:
        """Records a ledger that was created through this gateway."""
        self._changed(ledger_id, owner, there=True)

    def removed(self, ledger_id: LedgerId) -> None:
        """Records a ledger that was deleted through this gateway."""
        self._changed(ledger_id, None, there=False)

    def _changed(self, ledger_id: LedgerId, owner: str | None, *, there: bool) -> None:
        if not self._has_counted and not self._counting:
            return
        if self._counting:
            self._changes.append((ledger_id, owner, there))
        self._apply(ledger_id, owner, there=there)

    def _apply(self, ledger_id: LedgerId, owner: str | None, *, there: bool) -> None:
        ledgers = self._scopes.setdefault(ledger_id.scope_id, OwnedLedgers())
        number = ledger_id.low & _MASK_64
        if number in ledgers.present and (former := ledgers.discard(number)) is not None:
            self._owned[former] -= 1
        if there:
            ledgers.add(number, owner)
            if owner is not None:
                self._owned[owner] += 1

    # --- counts ---

    async def run(self) -> None:
        """Counts periodically, while the policy has quotas."""
        loop = asyncio.get_running_loop()
        while True:
            began, wait = loop.time(), self._count_seconds
            try:
                await self.count()
                wait = max(wait, _REST * (loop.time() - began))
            except BKException as error:
                log_event(_LOG, "quota_count_failed", logging.WARNING, error=error)
                wait = min(wait, 5.0)
            self._wanted.clear()
            try:
                async with asyncio.timeout(wait if self._bounds_anything else None):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    @property
    def _bounds_anything(self) -> bool:
        policy = self._access.policy
        return bool(policy.quotas) or policy.bounds_owners

    async def count(self) -> None:
        """Counts all ledgers; without quotas it does nothing. Raises BKException."""
        if not self._bounds_anything:
            self._forget()
            return
        owners = self._access.policy.bounds_owners
        doubts = len(self._doubts)
        self._counting, self._changes = True, []
        try:
            found = {scope_id: await self._count_scope(scope_id, owners) async for scope_id in self._listed_scopes()}
            self._scopes, self._owned = found, Counter()
            for ledgers in found.values():
                self._owned.update({owner: len(owned) for owner, owned in ledgers.owners.items()})
            for ledger_id, owner, there in self._changes:
                self._apply(ledger_id, owner, there=there)
            self._has_counted, self._has_owners = True, owners
            self._counts += 1
            self._settle(doubts)
        finally:
            self._counting, self._changes = False, []

    def _settle(self, count: int) -> None:
        """Releases the places of unknown outcomes from before the count: the count includes those that exist."""
        for owner, scope_id in self._doubts[:count]:
            self._reserve(owner, scope_id, -1)
        del self._doubts[:count]

    def _forget(self) -> None:
        self._settle(len(self._doubts))
        self._scopes, self._owned = {}, Counter()
        self._has_counted = self._has_owners = False

    async def _listed_scopes(self) -> AsyncGenerator[int, None]:
        yield 0
        async with aclosing(self._factory.ledger_manager.scopes()) as runs:  # type: ignore[type-var]
            async for run in runs:
                for scope_id in run:
                    if scope_id != 0:
                        yield scope_id

    async def _count_scope(self, scope_id: int, owners: bool) -> OwnedLedgers:
        before, present, again = self._scopes.get(scope_id), BitMap64(), BitMap64()
        # Not the same part in each scope: there may be very many of a few ledgers.
        part = (self._counts + scope_id) % _PARTS
        async with aclosing(self._factory.ledger_manager.ledger_ranges(scope_id)) as runs:  # type: ignore[type-var]
            async for ids in runs:
                async with giving_way():
                    present.update(number & _MASK_64 for number in ids)
                    again.update(number & _MASK_64 for number in ids if owners and number % _PARTS == part)
        ledgers = OwnedLedgers()
        if before is not None:
            ledgers.looked_at, ledgers.owners = before.looked_at.copy(), dict(before.owners)
        ledgers.keep(present)
        if owners:
            wanted = list(present - ledgers.looked_at | again)
            for start in range(0, len(wanted), _READ_AT_ONCE):
                await self._read_owners(scope_id, wanted[start : start + _READ_AT_ONCE], ledgers)
        return ledgers

    async def _read_owners(self, scope_id: int, numbers: Sequence[int], ledgers: OwnedLedgers) -> None:
        signed = [number - (1 << 64) if number >> 63 else number for number in numbers]
        async with aclosing(read_pages(self._factory.ledger_manager, scope_id, signed)) as pages:
            while True:
                async with self._budget.part_of_batch("read_many"):
                    page = await anext(pages, None)
                if page is None:
                    return
                for first in range(0, len(page), _SLICE):
                    async with giving_way():
                        part = page[first : first + _SLICE]
                        # One that can't be read now keeps the owner that is known.
                        ledgers.read(
                            {n & _MASK_64: _owner(each) for n, each in part if isinstance(each, RawLedgerRecord)}
                        )


def _owner(stored: RawLedgerRecord) -> str | None:
    try:
        return owner_of_metadata(stored.record().metadata)
    except BKException:  # its metadata can't be read, so it has no owner
        return None
