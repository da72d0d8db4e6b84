"""Iterate: all ledgers of a scope, in responses of bounded size (M5); and the list of scopes.

Each response carries the cluster's id, and the last one is sent only after the store has confirmed that id again,
because readers may delete what a listing lacks. For the same reason a listing ends with an error
as soon as a changed policy shows its caller another part of the scope than at the beginning. The manager lists ids in
ascending order; this module groups them into responses and reads metadata on request. Only the last response has `end`
set; a listing that can't be completed ends with an error instead. Held in memory at any time: the ids of one response,
and with metadata the response being sent and the page being read for the next one, both bounded in bytes. Responses
with metadata are built in slices, between which other tasks on the event loop run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass

from bookgate.gateway.services.caller import Caller, caller
from bookgate.gateway.services.encoded_responses import listed_item
from bookgate.gateway.services.ledger_access import ScopeView, owner_of, withhold
from bookgate.gateway.services.listed_columns import ColumnsBuilder, NotInColumnsError
from bookgate.gateway.services.messages import failure, ledger_id_from
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.gateway.stores.listed_ledgers import Listed, read_pages
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetadataFormatException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    StoreUnreachableException,
    TooManyRequestsException,
)
from bookgate.ledger.id_set import encode_ids
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import stored_format
from bookgate.ledger.metadata_store import LedgerManagerFactory, RawLedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    GetLedgerRangesRequest,
    GetLedgerRangesResponse,
    LedgerMetadataResponse,
    ListScopesRequest,
    ListScopesResponse,
)
from bookgate.runtime.cooperative_yield import giving_way, quick_thread_switches
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Reach

_SCOPES = 10_000
"""Approximate number of scopes in a page of ListScopes."""
_PAGE_SECONDS = 2.0
"""A page of ListScopes that has taken so long ends with what it has: a store may need a read for each scope, and the
client waits for a page no longer than for any call.
"""

DEFAULT_LEDGERS_A_RESPONSE = 10_000
MAX_LEDGERS_A_RESPONSE = 100_000
MAX_METADATA_A_RESPONSE = 1_000
"""Maximum number of ledgers with metadata in one response, however small they are."""

_SEEN_BY = (Action.LEDGER_LIST, Action.LEDGER_READ)

_SUCCESS = StatusCode.SUCCESS

_LEDGERS_A_SLICE = 32
_COLUMNS_A_SLICE = 64
"""Ledgers that become columns: each takes a third of the time."""
_BYTES_A_SLICE = 64 * 1024

_Gone = NoSuchLedgerExistsOnMetadataServerException


@dataclass(slots=True)
class _Response:
    """One response: its own fields, and its ledgers, already encoded, unless they are columns among the fields."""

    fields: GetLedgerRangesResponse
    ledgers: list[bytes]

    def of(self, cluster: str | None) -> _Response:
        """Adds the cluster's id, if known."""
        if cluster is not None:
            self.fields.cluster_instance_id = cluster
        return self

    def encode(self) -> bytes:
        return b"".join((self.fields.SerializeToString(), *self.ledgers))

    @property
    def metadata_bytes(self) -> int:
        columns = self.fields.columns.ByteSize() if self.fields.HasField("columns") else 0
        return columns + sum(map(len, self.ledgers))


class _Seen(ScopeView):
    """What the caller may see of one listing, and how many ledgers were left out of it."""

    def __init__(self, who: Caller, request: GetLedgerRangesRequest) -> None:
        """Raises AccessDeniedException if the caller may see nothing."""
        # Read first: if the policy changes in between, it is checked again.
        self._policy = who.policy
        super().__init__(who, request.ledger_scope_id, *_SEEN_BY)
        self.administers = who.may_administer()
        self.left_out = 0

    def require_still(self, who: Caller, request: GetLedgerRangesRequest) -> None:
        """Checks again if the policy has changed.

        Raises AccessDeniedException if the caller may no longer see anything, MetaStoreException if it may now see
        another part.
        """
        if who.policy is self._policy:
            return
        now = _Seen(who, request)
        if not now.is_same(self) or now.administers != self.administers:
            raise MetaStoreException("what the caller may see was changed during the listing; list anew")
        self._policy = now._policy

    def take(self, answer: LedgerMetadataResponse) -> bool:
        """Whether the caller may see this ledger; removes a password that it may not read."""
        owner = owner_of(answer.metadata)
        if not self.shows(owner):
            self.left_out += 1
            return False
        if not self.shows_password(owner):
            withhold(answer)
        return True


def sees_all(view: _Seen | None) -> bool:
    return view is None or view.whole


class Listing:
    """Serves Iterate; see the module. One per gateway."""

    def __init__(self, factory: LedgerManagerFactory, budget: StoreBudget, most_with_metadata: int) -> None:
        self._factory = factory
        self._budget = budget
        self._most_with_metadata = most_with_metadata
        self._with_metadata = 0

    async def iterate(self, request: GetLedgerRangesRequest) -> AsyncIterator[bytes]:
        """Yields all responses, encoded.

        Raises IncorrectParameterException for an invalid request, AccessDeniedException (also if the caller demands a
        complete listing and the policy would leave ledgers out), TooManyRequestsException, MetaStoreException.
        """
        _check(request)
        who = caller()
        if who is not None and request.require_complete:
            who.require_all(_SEEN_BY, request.ledger_scope_id)
        view = None if who is None else _Seen(who, request)
        with self._counted() if request.include_metadata or not sees_all(view) else nullcontext():
            async with aclosing(self._all(request, view)) as responses:
                async for response in responses:
                    # Some time may have passed since the response was built, for the rate to cover the one before.
                    if who is not None and view is not None:
                        view.require_still(who, request)
                    yield response.encode()
                    if who is not None:
                        await who.pay("listed_ids_per_second", response.fields.count)
                        await who.pay("metadata_bytes_per_second", response.metadata_bytes)

    async def scopes(self, request: ListScopesRequest) -> ListScopesResponse:
        """One page: the scopes that the caller may list among the next _SCOPES or more, or among fewer where the store
        is slow, or all that are left.

        Scopes that the caller may not list count against its rate too, because the store has read them. Raises
        AccessDeniedException.
        """
        who = caller()
        if who is not None and request.require_complete:
            who.require_all((Action.LEDGER_LIST,))
        response = ListScopesResponse(end=True)
        loop = asyncio.get_running_loop()
        looked_at, until = 0, loop.time() + _PAGE_SECONDS
        async with aclosing(self._factory.ledger_manager.scopes(request.start_after)) as runs:  # type: ignore[type-var]
            async for run in runs:
                if looked_at >= _SCOPES or (looked_at and loop.time() >= until):
                    response.end = False
                    break
                looked_at += len(run)
                response.last_scope_id = run[-1]
                response.scope_ids.extend(
                    each for each in run if who is None or who.reach(Action.LEDGER_LIST, each) is not Reach.NONE
                )
        if who is not None:
            who.owe("listed_ids_per_second", looked_at)
        return response

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._with_metadata >= self._most_with_metadata:
            raise TooManyRequestsException(
                f"{self._with_metadata} listings with metadata are under way at this gateway, its limit; try again"
            )
        self._with_metadata += 1
        try:
            with quick_thread_switches():
                yield
        finally:
            self._with_metadata -= 1

    async def _all(self, request: GetLedgerRangesRequest, view: _Seen | None) -> AsyncGenerator[_Response, None]:
        """Yields responses, holding each back until it is known whether it is the last."""
        cluster = await self._cluster()
        held: _Response | None = None
        async with aclosing(self._responses(request, view)) as responses:
            async for response in responses:
                if held is not None:
                    yield held.of(cluster)
                held = response
        held = held or _Response(GetLedgerRangesResponse(serialized_ranges=encode_ids([])), [])
        held.fields.end = True
        if view is not None and view.administers:
            held.fields.left_out = view.left_out
        held.fields.ledger_scope_id = request.ledger_scope_id
        if await self._cluster() != cluster:
            raise MetaStoreException("the cluster in the metadata store was replaced by another during the listing")
        yield held.of(cluster)

    async def _cluster(self) -> str | None:
        """The cluster's instance id, or None if it has none, which Apache BookKeeper allows."""
        try:
            return await self._factory.registration_manager.cluster_instance_id()
        except StoreUnreachableException:
            raise
        except MetaStoreException:
            return None

    async def _responses(self, request: GetLedgerRangesRequest, view: _Seen | None) -> AsyncGenerator[_Response, None]:
        limit = min(request.limit_per_response or DEFAULT_LEDGERS_A_RESPONSE, MAX_LEDGERS_A_RESPONSE)
        scope_id = request.ledger_scope_id
        ranges = self._factory.ledger_manager.ledger_ranges(
            scope_id,
            request.start_after if request.HasField("start_after") else None,
            request.end_before if request.HasField("end_before") else None,
        )
        if not request.include_metadata and sees_all(view):
            async for ids in _regroup(ranges, limit):
                async with giving_way():
                    fields = _fields(scope_id, ids)
                yield _Response(fields, [])
            return
        runs = _regroup(ranges, min(limit, MAX_METADATA_A_RESPONSE))
        async with aclosing(_one_ahead(self._pages(scope_id, runs))) as pages:
            async for page in pages:
                response = await self._response(request, page, view)
                if response is not None:
                    yield response

    async def _pages(self, scope_id: int, runs: AsyncIterator[Sequence[int]]) -> AsyncGenerator[list[Listed], None]:
        manager = self._factory.ledger_manager
        async for ids in runs:
            async with aclosing(read_pages(manager, scope_id, ids)) as pages:
                while True:
                    async with self._budget.part_of_batch("read_many"):
                        page = await anext(pages, None)
                    if page is None:
                        break
                    yield page

    async def _response(
        self, request: GetLedgerRangesRequest, page: Sequence[Listed], view: _Seen | None
    ) -> _Response | None:
        """The ledgers of a page that still exist, in order. None if none exists that the caller may see."""
        existing = [each for each in page if not isinstance(each.outcome, _Gone)]
        revision = await self._factory.revision()
        build = _in_columns if request.columns or not request.include_metadata else _one_by_one
        try:
            response = await build(request.ledger_scope_id, existing, revision, view)
        except NotInColumnsError:
            response = await _one_by_one(request.ledger_scope_id, existing, revision, view)
        if response is not None and not request.include_metadata:
            response.fields.ClearField("columns")
            response.ledgers.clear()
        return response


async def _in_columns(scope_id: int, page: Sequence[Listed], revision: int, view: _Seen | None) -> _Response | None:
    """Raises NotInColumnsError."""
    columns = ColumnsBuilder(view)
    for part in _slices(page, _COLUMNS_A_SLICE):
        async with giving_way():
            columns.take(part)
    if view is not None:
        view.left_out += columns.left_out
    if not columns.ledger_ids:
        return None
    fields = _fields(scope_id, columns.ledger_ids)
    columns.fill(fields.columns, revision)
    return _Response(fields, [])


async def _one_by_one(scope_id: int, page: Sequence[Listed], revision: int, view: _Seen | None) -> _Response | None:
    """A damaged ledger comes with its status code."""
    ids: list[int] = []
    ledgers: list[bytes] = []
    for part in _slices(page, _LEDGERS_A_SLICE):
        async with giving_way():
            for number, outcome in part:
                answer = stored_answer(LedgerId(scope_id, number), outcome, revision)
                if view is None or view.take(answer):
                    ids.append(number)
                    ledgers.append(listed_item(answer.SerializeToString()))
    return _Response(_fields(scope_id, ids), ledgers) if ids else None


def _slices(page: Sequence[Listed], most: int) -> Iterator[Sequence[Listed]]:
    """Consecutive parts, each of which is encoded within a millisecond."""
    start = size = 0
    for index, (_, outcome) in enumerate(page):
        size += len(outcome.data) if isinstance(outcome, RawLedgerRecord) else 0
        if index + 1 - start == most or size >= _BYTES_A_SLICE:
            yield page[start : index + 1]
            start, size = index + 1, 0
    if start < len(page):
        yield page[start:]


async def _one_ahead(pages: AsyncGenerator[list[Listed], None]) -> AsyncGenerator[list[Listed], None]:
    """Yields the same pages, and reads the next one while the caller processes the current one."""
    loop = asyncio.get_running_loop()
    coming = loop.create_task(_next(pages))
    try:
        while (page := await coming) is not None:
            coming = loop.create_task(_next(pages))
            yield page
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await pages.aclose()


async def _next(pages: AsyncGenerator[list[Listed], None]) -> list[Listed] | None:
    return await anext(pages, None)


def stored_answer(ledger_id: LedgerId, outcome: RawLedgerRecord | BKException, revision: int) -> LedgerMetadataResponse:
    """Like `messages.success`, with the metadata as stored, or with the status code of what is wrong with it."""
    if isinstance(outcome, BKException):
        return failure(outcome, ledger_id, revision)
    try:
        metadata = stored_format(outcome.data)
    except MetadataFormatException as error:
        damaged = MetadataFormatException(f"metadata of ledger {ledger_id}: {error}")
        return failure(damaged, ledger_id, revision)
    return LedgerMetadataResponse(
        code=_SUCCESS,
        ledger_id=ledger_id.low,
        ledger_scope_id=ledger_id.scope_id,
        version=outcome.version,
        metadata=metadata,
        revision=revision,
        created_ms=outcome.created_ms,
    )


def _check(request: GetLedgerRangesRequest) -> None:
    if request.limit_per_response < 0:
        raise IncorrectParameterException(
            f"limit_per_response is {request.limit_per_response}; it must be 0 (the default) or more"
        )
    ledger_id_from(request.ledger_scope_id, 0)


async def _regroup(ranges: AsyncIterator[Sequence[int]], limit: int) -> AsyncIterator[list[int]]:
    """The same ids in runs of `limit`; only the last run may be shorter."""
    pending: list[int] = []
    async for ids in ranges:
        start = 0
        while len(pending) + len(ids) - start >= limit:
            taken = limit - len(pending)
            yield [*pending, *ids[start : start + taken]]
            pending, start = [], start + taken
        pending.extend(ids[start:])
    if pending:
        yield pending


def _fields(scope_id: int, ids: Sequence[int]) -> GetLedgerRangesResponse:
    return GetLedgerRangesResponse(
        code=StatusCode.SUCCESS,
        count=len(ids),
        serialized_ranges=encode_ids(ids),
        ledger_scope_id=scope_id,
        last_ledger_id=ids[-1],
    )
