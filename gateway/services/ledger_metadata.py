"""The LedgerMetadataService: gRPC on top of a `LedgerManager`.

A thin layer: it validates the request, calls the manager, and converts the result or exception into a response. Watch
is in `watch`, batches in `batch`, Iterate in `iterate`. docs/protocol/gateway.md#ledgermetadataservice specifies the
methods.
"""

# The generated base class knows messages only, not encoded ones.
# mypy: disable-error-code="override"

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import replace
from typing import Any

import grpc

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.services.batch import (
    BatchReader,
    create_each,
    error_of_all,
    not_created,
    over_batch,
    withhold_passwords,
)
from bookgate.gateway.services.caller import AccessDeniedException, caller
from bookgate.gateway.services.checked_changes import CheckedChanges, Seen
from bookgate.gateway.services.freshness import RevisionBarrier
from bookgate.gateway.services.instance import Instance
from bookgate.gateway.services.iterate import Listing
from bookgate.gateway.services.ledger_access import owned_custom_metadata, owner_of_metadata, withhold
from bookgate.gateway.services.ledger_quotas import LedgerQuotas
from bookgate.gateway.services.ledger_trail import LedgerChange
from bookgate.gateway.services.messages import (
    failure,
    ledger_id_of,
    metadata_of,
    metadata_to_create,
    required_ledger_id,
    success,
)
from bookgate.gateway.services.metadata_cache import MetadataCache
from bookgate.gateway.services.request_dedup import RequestDeduplicator
from bookgate.gateway.services.status import Context, abort_not_applied, abort_with
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.gateway.services.watch import WatchService
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    TooManyRequestsException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_bounds import faults, require_no_faults, require_no_new_faults
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory, LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    BatchCreateRequest,
    BatchCreateResponse,
    BatchReadRequest,
    GetLedgerRangesRequest,
    GetLedgerRangesResponse,
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    ListScopesRequest,
    ListScopesResponse,
)
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceServicer
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Reach

Response = LedgerMetadataResponse | bytes
"""A message, or one already encoded: the interceptor's serializer accepts both."""

Operation = Callable[[LedgerMetadataRequest], Awaitable[Response]]


class MetadataService(LedgerMetadataServiceServicer):
    """The service; see the module. One per gateway."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        watches: WatchService,
        cache: MetadataCache,
        freshness: RevisionBarrier,
        budget: StoreBudget,
        limits: GatewayLimits,
        instance: Instance,
        quotas: LedgerQuotas | None = None,
    ) -> None:
        """`quotas` is None in a gateway without security."""
        self._factory = factory
        self._watches = watches
        self._cache = cache
        self._freshness = freshness
        self._budget = budget
        self._limits = limits
        self._instance = instance
        self._quotas = quotas
        self._tokens = RequestDeduplicator()
        self._changes = CheckedChanges(factory, cache)
        self._reader = BatchReader(factory, cache, budget)
        self._listing = Listing(factory, budget, limits.listings)

    # The generated base class names the methods as the proto file does.
    # ruff: noqa: N802

    async def Create(self, request: LedgerMetadataRequest, context: Context) -> Response:
        async def create(new: LedgerMetadataRequest) -> LedgerMetadataResponse:
            await self._check_instance([new], context)
            if (who := caller()) is not None:
                who.take("creates_per_second")
            return await self._tokens.run_once(_by_caller("Create"), new, self._create)

        return await self._unary("Create", create, request, context)

    async def Read(self, request: LedgerMetadataRequest, context: Context) -> Response:
        return await self._unary("Read", self._read, request, context)

    async def Write(self, request: LedgerMetadataRequest, context: Context) -> Response:
        return await self._unary(
            "Write", lambda r: self._tokens.run_once(_by_caller("Write"), r, self._write), request, context
        )

    async def Remove(self, request: LedgerMetadataRequest, context: Context) -> Response:
        return await self._unary("Remove", self._remove, request, context)

    async def Watch(
        self, request_iterator: AsyncIterator[LedgerMetadataRequest], context: Context
    ) -> AsyncIterator[Response]:
        async with aclosing(self._watches.serve(request_iterator, context)) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response

    async def BatchCreate(self, request: BatchCreateRequest, context: Context) -> BatchCreateResponse:
        if len(request.requests) > self._limits.batch:
            return BatchCreateResponse(
                code=StatusCode.BAD_REQUEST, message=over_batch(len(request.requests), self._limits.batch)
            )
        try:
            return await self._batch_create(request.requests, context)
        except Exception as error:
            return await abort_with(context, "BatchCreate", error)

    async def BatchRead(self, request: BatchReadRequest, context: Context) -> AsyncIterator[Response]:
        count = len(request.ledger_ids)
        if count > self._limits.batch:
            yield LedgerMetadataResponse(code=StatusCode.BAD_REQUEST, message=over_batch(count, self._limits.batch))
            return
        try:
            await self._freshness.wait_for(request.min_revision)
            async with aclosing(self._reader.read(request)) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
        except Exception as error:
            await abort_with(context, "BatchRead", error)

    async def Iterate(
        self, request: GetLedgerRangesRequest, context: Context
    ) -> AsyncIterator[GetLedgerRangesResponse | bytes]:
        try:
            if (who := caller()) is not None:
                who.take("listed_ids_per_second", 0)
                who.take("metadata_bytes_per_second", 0)
            await self._freshness.wait_for(request.min_revision)
            async with aclosing(self._listing.iterate(request)) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
        except IncorrectParameterException as error:
            yield GetLedgerRangesResponse(code=StatusCode.BAD_REQUEST, message=str(error))
        except Exception as error:
            await abort_with(context, "Iterate", error)

    async def ListScopes(self, request: ListScopesRequest, context: Context) -> ListScopesResponse:
        try:
            if (who := caller()) is not None:
                who.take("listed_ids_per_second", 0)
            await self._freshness.wait_for(request.min_revision)
            return await self._listing.scopes(request)
        except Exception as error:
            return await abort_with(context, "ListScopes", error)

    # --- one ledger ---------------------------------------------------------------------------------------------

    async def _unary(
        self, method: str, operation: Operation, request: LedgerMetadataRequest, context: Context
    ) -> Response:
        """Runs the operation; a domain failure becomes a status code in the response, a store failure a gRPC status."""
        try:
            try:
                await self._freshness.wait_for(request.min_revision)
                if (who := caller()) is None or not who.has_limits:
                    return await operation(request)
                who.take("metadata_bytes_per_second", 0)
                response = await operation(request)
                who.owe("metadata_bytes_per_second", _size(response))
                return response
            except (MetaStoreException, TooManyRequestsException, AccessDeniedException):
                raise
            except BKException as error:
                return await self._failure(request, error)
        except Exception as error:
            return await abort_with(context, method, error)

    async def _failure(self, request: LedgerMetadataRequest, error: BKException) -> LedgerMetadataResponse:
        response = failure(error, None, await self._factory.revision())
        response.ledger_id = request.ledger_id if request.HasField("ledger_id") else 0
        response.ledger_scope_id = request.ledger_scope_id
        return response

    async def _success(self, record: LedgerRecord) -> LedgerMetadataResponse:
        response = success(record, await self._factory.revision())
        who = caller()
        secret = who is None or who.may(
            Action.LEDGER_SECRET, record.ledger_id.scope_id, owner_of_metadata(record.metadata)
        )
        return response if secret else withhold(response)

    async def _read(self, request: LedgerMetadataRequest) -> bytes:
        ledger_id = required_ledger_id(request)
        who = caller()
        reach = None if who is None else who.require_some(Action.LEDGER_READ, ledger_id.scope_id)
        found = self._cache.get(ledger_id)
        if found is None:
            async with self._budget.call("read"):
                found = await self._cache.fetch(ledger_id)
        if who is None:
            return found.ledger.answer(found.revision)
        owner = found.ledger.owner
        if reach is not Reach.ALL:
            who.require_ledger(Action.LEDGER_READ, ledger_id, owner)
        if who.may(Action.LEDGER_SECRET, ledger_id.scope_id, owner):
            return found.ledger.answer(found.revision)
        return found.ledger.without_password().answer(found.revision)

    async def _check_instance(self, requests: Sequence[LedgerMetadataRequest], context: Context) -> None:
        """Aborts a call intended for another gateway process if it would generate new ids here."""
        if self._instance.is_meant(context):
            return
        if any(
            not each.HasField("ledger_id") and not self._tokens.knows(_by_caller("Create"), each) for each in requests
        ):
            await abort_not_applied(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this is another instance of the gateway, {self._instance.id}, than the one that was named: nothing "
                "was done here, and the outcome of an earlier attempt is unknown",
            )

    async def _create(self, requests: Sequence[LedgerMetadataRequest]) -> list[LedgerMetadataResponse]:
        (request,) = requests
        with LedgerChange(Action.LEDGER_CREATE, request) as change:
            record = await self._created(request, self._to_create(request))
            change.ledger_id = record.ledger_id
        return [await self._success(record)]

    async def _created(self, request: LedgerMetadataRequest, wanted: CreateRequest) -> LedgerRecord:
        who = caller()
        if who is not None and self._quotas is not None and wanted.ledger_id is not None:
            before = await self._quotas.created_before(who, wanted)
            if before is not None:
                return before
        with self._room([request.ledger_scope_id]):
            try:
                async with self._budget.call("create"):
                    record = await self._factory.ledger_manager.create(wanted.ledger_id, wanted.metadata)
            except UnknownOutcomeException:
                self._may_be_created(request)
                raise
            self._was_created(record.ledger_id)
            return record

    def _room(self, scopes: Sequence[int]) -> AbstractContextManager[None]:
        """Reserves new ledgers in the quotas, if any. Raises QuotaReachedException, OverLimitException."""
        who = caller()
        return nullcontext() if who is None or self._quotas is None else self._quotas.room(who, scopes)

    def _was_created(self, ledger_id: LedgerId) -> None:
        if self._quotas is not None and (who := caller()) is not None:
            self._quotas.created(ledger_id, str(who.principal) if who.principal.is_authenticated else None)

    def _may_be_created(self, request: LedgerMetadataRequest) -> None:
        if self._quotas is not None and (who := caller()) is not None:
            self._quotas.in_doubt(who, request.ledger_scope_id)

    def _to_create(self, request: LedgerMetadataRequest) -> CreateRequest:
        """Converts a create request. Raises AccessDeniedException, IncorrectParameterException."""
        ledger_id = ledger_id_of(request)
        metadata = metadata_to_create(request, self._limits.metadata_bytes)
        changes: dict[str, Any] = {}
        if (who := caller()) is not None:
            mine, scope_id = str(who.principal), request.ledger_scope_id
            who.require_ledger(Action.LEDGER_CREATE, ledger_id, mine, request.request_token, scope_id)
            changes["custom_metadata"] = owned_custom_metadata(metadata, who)
        if ledger_id is None and not metadata.creator_token:
            # Lets the manager retry by itself when a response of the store is lost.
            changes["creator_token"] = (uuid.uuid4().int >> 65) or 1
        if changes:
            metadata = replace(metadata, **changes)
        require_no_faults(metadata, self._limits.metadata_bytes)
        return CreateRequest(ledger_id, metadata)

    async def _write(self, requests: Sequence[LedgerMetadataRequest]) -> list[LedgerMetadataResponse]:
        (request,) = requests
        ledger_id = required_ledger_id(request)
        if not request.HasField("expected_version"):
            raise IncorrectParameterException("expected_version is missing: a write replaces a known version")
        metadata = metadata_of(request, self._limits.metadata_bytes)
        async with self._budget.call("write"):
            try:
                with LedgerChange(Action.LEDGER_WRITE, request) as change:
                    record = await self._replace(ledger_id, request, metadata, change)
            except MetadataVersionException as error:
                return [await self._conflict(ledger_id, error)]
        return [await self._success(record)]

    async def _replace(
        self, ledger_id: LedgerId, request: LedgerMetadataRequest, metadata: LedgerMetadata, change: LedgerChange
    ) -> LedgerRecord:
        """Raises MetadataVersionException."""
        if (who := caller()) is not None:
            who.require_anywhere_in(ledger_id.scope_id, Action.LEDGER_WRITE, Action.LEDGER_RECOVER)
        seen, charge = await self._changes.seen(ledger_id, request, anew=False), True
        if seen.is_named_by(request):
            try:
                return await self._replace_seen(seen, request, metadata, change, charge=True)
            except NoSuchLedgerExistsOnMetadataServerException:
                # It is gone, or was made anew and this process or its replica of the store has not heard of that.
                charge = False
        seen = await self._changes.seen(ledger_id, request, anew=True)
        return await self._replace_seen(seen, request, metadata, change, charge=charge)

    async def _replace_seen(
        self,
        seen: Seen,
        request: LedgerMetadataRequest,
        metadata: LedgerMetadata,
        change: LedgerChange,
        *,
        charge: bool,
    ) -> LedgerRecord:
        """Writes to the ledger that was seen. Raises MetadataVersionException,
        NoSuchLedgerExistsOnMetadataServerException.
        """
        metadata, change.action = self._changes.to_write(seen, request, metadata, charge=charge)
        most = self._limits.metadata_bytes
        if faults(metadata, most):
            # Another client of the store may have written it so, and it must still be possible to close the ledger.
            require_no_new_faults(metadata, seen.metadata(), most)
        manager, version = self._factory.ledger_manager, request.expected_version
        try:
            if seen.incarnation is None:
                return await manager.write(seen.ledger_id, metadata, version)
            record = LedgerRecord(seen.ledger_id, metadata, version, incarnation=seen.incarnation)
            return await manager.write_to(record, metadata)
        finally:
            self._cache.changed_here(seen.ledger_id)

    async def _conflict(self, ledger_id: LedgerId, error: MetadataVersionException) -> LedgerMetadataResponse:
        """BAD_VERSION with the current state, which saves the caller a read."""
        record = await self._factory.ledger_manager.read(ledger_id)
        response = await self._success(record)
        who = caller()
        if who is not None and not who.may(Action.LEDGER_READ, ledger_id.scope_id, owner_of_metadata(record.metadata)):
            response.ClearField("metadata")
            response.ClearField("password_check")
        response.code = StatusCode.BAD_VERSION
        response.message = str(error)
        return response

    async def _remove(self, request: LedgerMetadataRequest) -> LedgerMetadataResponse:
        ledger_id = required_ledger_id(request)
        version = request.expected_version if request.HasField("expected_version") else None
        async with self._budget.call("remove"):
            with LedgerChange(Action.LEDGER_DELETE, request):
                try:
                    if request.HasField("incarnation"):
                        await self._changes.remove_incarnation(ledger_id, version, request.incarnation)
                    else:
                        await self._changes.remove(ledger_id, version)
                finally:
                    self._cache.changed_here(ledger_id)
        if self._quotas is not None:
            self._quotas.removed(ledger_id)
        return LedgerMetadataResponse(
            code=StatusCode.SUCCESS,
            ledger_id=ledger_id.low,
            ledger_scope_id=ledger_id.scope_id,
            revision=await self._factory.revision(),
        )

    # --- many ledgers -------------------------------------------------------------------------------------------

    async def _batch_create(self, requests: Sequence[LedgerMetadataRequest], context: Context) -> BatchCreateResponse:
        await self._freshness.wait_for(max((request.min_revision for request in requests), default=0))

        await self._check_instance(requests, context)
        if (who := caller()) is not None:
            who.take("creates_per_second", len(requests))
        outcomes = await self._tokens.run_once_each(_by_caller("Create"), requests, self._create_many)
        if (error := error_of_all(outcomes)) is not None:
            raise error
        # Some ledgers were created, and the caller must learn which; the others report an unknown outcome.
        revision = await self._factory.revision()
        responses = [
            not_created(request, outcome, revision) if isinstance(outcome, BKException) else outcome
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        withhold_passwords(responses)
        return BatchCreateResponse(code=StatusCode.SUCCESS, responses=responses)

    async def _create_many(
        self, requests: Sequence[LedgerMetadataRequest]
    ) -> Sequence[LedgerMetadataResponse | BKException]:
        changes = [LedgerChange(Action.LEDGER_CREATE, request) for request in requests]
        try:
            with self._room([request.ledger_scope_id for request in requests]):
                outcomes = await create_each(self._factory, self._budget, requests, self._to_create)
                for request, outcome in zip(requests, outcomes, strict=True):
                    if isinstance(outcome, UnknownOutcomeException):
                        self._may_be_created(request)
                    elif not isinstance(outcome, BKException):
                        self._was_created(LedgerId(outcome.ledger_scope_id, outcome.ledger_id))
        except BaseException as error:
            for change in changes:
                change.ended(error)
            raise
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, BKException):
                change.ended(outcome)
            else:
                change.ledger_id = LedgerId(outcome.ledger_scope_id, outcome.ledger_id)
                change.ended()
        return outcomes


def _size(response: Response) -> int:
    return len(response) if isinstance(response, bytes) else response.ByteSize()


def _by_caller(method: str) -> str:
    """The method with the caller: two requests are the same only if they come from the same caller."""
    who = caller()
    return method if who is None else f"{method} {who.principal}"
