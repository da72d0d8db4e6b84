"""Quotas of ledgers: how many an owner has, and how many a scope has, as the policy bounds them.

A gateway counts the ledgers of the store where the policy has quotas, at the start and every minute; between two counts
it takes in what is created and deleted through it. At one gateway no quota is exceeded; where several create for the
same principal at once, it may be exceeded by what the others create between two counts. A ledger's owner never changes,
so a count reads the metadata of ledgers that the last one did not see, and those only where owners have quotas.

A creation reserves its place before it goes to the store (`room`), so that creations under way together do not exceed
what is left; one whose outcome is unknown keeps it until a count has looked (`in_doubt`). Until the first count is done
a creation under a quota is refused, with the time after which it is worth another try.

Invariant: A2. Source: docs/protocol/security.md#quotas. Not its job: rates (`runtime.security.rate_limits`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
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
"""Between two counts; a count that takes long is made less often."""
_REST = 10
"""Times as long as a count took."""
_RETRY_SECONDS = 1.0
_READ_AT_ONCE = 1000
_SLICE = 32
_NO_QUOTAS = (None, None)
"""Of an owner and of a scope."""

_MASK_64 = (1 << 64) - 1


class OwnedLedgers:
    """The ledgers of one scope, and whose they are as far as anybody asked."""

    def __init__(self) -> None:
        self.present = BitMap64()
        self.looked_at = BitMap64()
        """Those whose owner is known, or known to be nobody."""
        self.owners: dict[str, BitMap64] = {}

    def add(self, number: int, owner: str | None) -> None:
        self.present.add(number)
        self.looked_at.add(number)
        if owner is not None:
            self.owners.setdefault(owner, BitMap64()).add(number)

    def discard(self, number: int) -> str | None:
        """Returns whose it was, as far as that is known."""
        self.present.discard(number)
        self.looked_at.discard(number)
        owner = next((owner for owner, owned in self.owners.items() if number in owned), None)
        if owner is not None:
            self.owners[owner].discard(number)
        return owner

    def keep(self, present: BitMap64) -> None:
        """Takes in a listing."""
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
        """Since the present count began: ledger, owner, whether it is there now."""
        self._doubts: list[tuple[str, int]] = []
        """Owner and scope of what may have been created; each has its place."""
        self._counting = False
        self._has_counted = self._has_owners = False
        self._wanted = asyncio.Event()

    # --- creations and deletions ---

    def room(self, who: Caller, scopes: Sequence[int]) -> AbstractContextManager[None]:
        """Reserves places for ledgers that are about to be created in these scopes; where there is no quota, none.

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
        """Takes in a creation whose outcome is unknown: it has its place until the next count is done."""
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
        """The ledger, where a quota is reached by what this very creation has made: it was sent to another gateway
        before, and its answer was lost.

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
        """The scope in which there is no room, and why. Raises OverLimitException."""
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
        """Ledgers that a principal has or is about to create, as far as they are counted."""
        return self._owned[owner] + self._under_way_of[owner]

    def in_scope(self, scope_id: int) -> int:
        """The same of a scope."""
        ledgers = self._scopes.get(scope_id)
        return (0 if ledgers is None else len(ledgers.present)) + self._under_way_in[scope_id]

    def created(self, ledger_id: LedgerId, owner: str | None) -> None:
        """Takes in a ledger that was created through this gateway."""
        self._changed(ledger_id, owner, there=True)

    def removed(self, ledger_id: LedgerId) -> None:
        """Takes in a ledger that was deleted through this gateway."""
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
        """Counts again and again, while there are quotas."""
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
        """Counts all ledgers; without quotas nothing. Raises BKException."""
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
            self._settle(doubts)
        finally:
            self._counting, self._changes = False, []

    def _settle(self, count: int) -> None:
        """What was in doubt when the count began is counted, if it is there."""
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
        before, present = self._scopes.get(scope_id), BitMap64()
        async with aclosing(self._factory.ledger_manager.ledger_ranges(scope_id)) as runs:  # type: ignore[type-var]
            async for ids in runs:
                async with giving_way():
                    present.update(number & _MASK_64 for number in ids)
        ledgers = OwnedLedgers()
        if before is not None:
            ledgers.looked_at, ledgers.owners = before.looked_at.copy(), dict(before.owners)
        ledgers.keep(present)
        if owners:
            new = list(present - ledgers.looked_at)
            for start in range(0, len(new), _READ_AT_ONCE):
                await self._read_owners(scope_id, new[start : start + _READ_AT_ONCE], ledgers)
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
                        for number, outcome in page[first : first + _SLICE]:
                            if isinstance(outcome, RawLedgerRecord):
                                ledgers.add(number & _MASK_64, _owner(outcome))


def _owner(stored: RawLedgerRecord) -> str | None:
    try:
        return owner_of_metadata(stored.record().metadata)
    except BKException:  # nobody's, as far as anybody can read
        return None
