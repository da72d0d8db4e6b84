"""The caller of an HTTP request and its permissions, under the same policy as all other listeners.

Without security every caller may do everything that `access` allows. A handler of ledgers asks for each ledger
(`check_ledger`), or lists only the visible ones (`visible_ranges`). The limits of a principal are those that it has at
the gateway's gRPC services, and what it has used of them counts for both: what is over one is 429, a listing goes on
when it is paid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from bookgate.gateway.http.errors import HttpError, OverLimit
from bookgate.gateway.stores.listed_ledgers import Listed, read_pages
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord, RawLedgerRecord
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import CLUSTER, Decision, Reach, Resource
from bookgate.runtime.security.policy import Policy
from bookgate.runtime.security.principal import LOCAL, Principal

DOOR = "http"

_READ_AT_ONCE = 200


def owner_of(metadata: LedgerMetadata) -> str | None:
    """The principal that created the ledger; None: nobody is known."""
    owner = metadata.custom_metadata.get(OWNER_KEY)
    return None if owner is None else owner.decode("utf-8", "replace")


def resource_of(record: LedgerRecord) -> Resource:
    """The ledger, as a policy sees it."""
    scope = record.ledger_id.scope_id
    return Resource(scope, owner_of(record.metadata), name=f"ledger:{record.ledger_id}")


@dataclass(frozen=True)
class Caller:
    """`control` None: nobody is asked."""

    principal: Principal = LOCAL
    control: AccessControl | None = None
    peer: str = ""

    def check(self, action: Action, resource: Resource = CLUSTER) -> None:
        """Raises HttpError: 401 for somebody who could say who they are, else 403."""
        if self.control is None:
            return
        decision = self.control.decide(self.principal, action, resource)
        if not decision:
            raise self._refused(action, resource, decision)

    def check_ledger(self, action: Action, record: LedgerRecord) -> None:
        """The same for a ledger."""
        if self.control is not None:
            self.check(action, resource_of(record))

    def may(self, action: Action, record: LedgerRecord) -> bool:
        """Whether the caller may do it to a ledger; nobody is refused, and nothing written down."""
        return self.control is None or bool(self.control.decide(self.principal, action, resource_of(record)))

    @property
    def owner(self) -> str | None:
        """The owner of the ledgers that the caller creates; None: nobody is known."""
        return str(self.principal) if self.control is not None and self.principal.is_authenticated else None

    def check_creation(self, scope_id: int, name: str) -> None:
        """For a ledger that the caller creates. Raises HttpError, also where a quota bounds the caller's ledgers or
        the scope's: gateways count, and nobody else.
        """
        if self.control is None:
            return
        self.check(Action.LEDGER_CREATE, Resource(scope_id, self.owner, name=name))
        limits = self.control.rights(self.principal).limits if self.principal.is_authenticated else None
        quotas = (limits, self.control.policy.quota_of(scope_id))
        if any(each is not None and each.ledgers is not None for each in quotas):
            raise HttpError(
                409, f"a quota bounds the ledgers of {self.principal} in scope {scope_id}: create it through a gateway"
            )

    def reach(self, action: Action, scope_id: int) -> Reach:
        """For which ledgers of a scope the caller may do it. Raises HttpError where that is none."""
        if self.control is None:
            return Reach.ALL
        found = self.control.reach(self.principal, action, scope_id)
        if found is Reach.NONE:
            raise self._refused(action, Resource(scope_id), Decision(False, "no binding allows it"))
        return found

    def listing(self, scope_id: int) -> ScopeListing:
        """What the caller may list and read of a scope. Raises HttpError where that is nothing."""
        return ScopeListing(self, scope_id)

    def changed(self, action: Action, resource: str, status: int, seconds: float) -> None:
        """Records what was allowed and how it ended."""
        if self.control is not None:
            self.control.done(
                self.principal,
                action,
                resource,
                str(status),
                door=DOOR,
                peer=self.peer,
                seconds=seconds,
                counted=False,
            )

    # --- limits ---

    def take(self, rate: str, amount: float = 1.0) -> None:
        """Takes from one of the caller's rates, a name of a policy's `Limits`. Raises OverLimit."""
        if self.control is None:
            return
        wait = self.control.take(self.principal, rate, _now(), amount, door=DOOR, peer=self.peer)
        if wait > 0:
            raise OverLimit(f"{self.principal} is over its limit of {rate}", wait)

    def owe(self, rate: str, amount: float) -> None:
        """Takes what an answer has: the caller's next `take` waits for it."""
        if self.control is not None:
            self.control.owe(self.principal, rate, _now(), amount)

    async def pay(self, rate: str, amount: float) -> None:
        """Takes what was sent of an answer, and waits until it is paid."""
        if self.control is None:
            return
        wait = self.control.charge(self.principal, rate, _now(), amount, door=DOOR)
        if wait > 0:
            await asyncio.sleep(wait)

    def begin_listing(self) -> None:
        """Raises OverLimit while ids or metadata that the caller got are not paid."""
        self.take("listed_ids_per_second", 0)
        self.take("metadata_bytes_per_second", 0)

    def metadata_answer(self, told: Any, ids: int = 0) -> Response:
        """The answer, JSON, with metadata, for which so many `ids` were listed: the caller owes both."""
        response = JSONResponse(told)
        self.owe("listed_ids_per_second", ids)
        self.owe("metadata_bytes_per_second", len(response.body))
        return response

    def _refused(self, action: Action, resource: Resource, decision: Decision) -> HttpError:
        assert self.control is not None, "nobody is refused otherwise"
        self.control.denied(self.principal, action, resource, decision, door=DOOR, peer=self.peer)
        if not self.principal.is_authenticated:
            return HttpError(
                401, "this needs a token: send it as 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
            )
        return HttpError(403, f"{self.principal} may not do this: it needs {action} for {resource}")


class ScopeListing:
    """What a caller may see of one scope, from the beginning of a listing to its end."""

    def __init__(self, caller: Caller, scope_id: int) -> None:
        """Raises HttpError where that is nothing."""
        self._caller = caller
        self.scope_id = scope_id
        self.owned_only = self._look()

    def _look(self) -> bool:
        # Taken first: one that changes in between is looked at once more.
        self._policy = _policy_of(self._caller)
        reaches = [self._caller.reach(action, self.scope_id) for action in (Action.LEDGER_LIST, Action.LEDGER_READ)]
        return Reach.OWNED in reaches

    @property
    def owner(self) -> str:
        """Whose ledgers are seen, where it is only those."""
        return str(self._caller.principal)

    def shows(self, listed: Listed) -> bool:
        """Whether the caller sees the ledger as it was read now: since it was listed, another owner's may have taken
        its id.
        """
        stored = listed.outcome
        if not self.owned_only or not isinstance(stored, RawLedgerRecord):
            return True
        return _owner(stored) == self.owner

    def require_still(self) -> None:
        """Asks once more where the policy has changed, before more is told. Raises HttpError where the caller may see
        nothing any more, or another part: the answer breaks off then.
        """
        if _policy_of(self._caller) is not self._policy and self._look() is not self.owned_only:
            raise HttpError(503, "what you may see was changed during the listing; list anew")


def _policy_of(caller: Caller) -> Policy | None:
    return None if caller.control is None else caller.control.policy


ANYBODY = Caller()
"""Where nobody is asked."""


def _now() -> float:
    # The clock of the gRPC services, which take from the same rates.
    return asyncio.get_running_loop().time()


async def visible_ranges(
    manager: LedgerManager, listing: ScopeListing, start_after: int | None
) -> AsyncIterator[Sequence[int]]:
    """The ids of a scope's ledgers that the caller may list and read, in runs. Raises HttpError, MetaStoreException."""
    async with aclosing(manager.ledger_ranges(listing.scope_id, start_after)) as runs:  # type: ignore[type-var]
        async for ids in runs:
            listing.require_still()
            if not listing.owned_only:
                yield ids
                continue
            for start in range(0, len(ids), _READ_AT_ONCE):
                own = await _owned(manager, listing, ids[start : start + _READ_AT_ONCE])
                listing.require_still()
                if own:
                    yield own


async def _owned(manager: LedgerManager, listing: ScopeListing, ids: Sequence[int]) -> list[int]:
    owner = listing.owner
    found: list[int] = []
    async with aclosing(read_pages(manager, listing.scope_id, ids)) as pages:
        async for page in pages:
            found += [
                listed.number
                for listed in page
                if isinstance(listed.outcome, RawLedgerRecord) and _owner(listed.outcome) == owner
            ]
    return found


def _owner(stored: RawLedgerRecord) -> str | None:
    try:
        return owner_of(stored.record().metadata)
    except BKException:  # nobody's, as far as anybody can read
        return None
