"""Iterate: all ledgers of a scope, in responses of bounded size (M5).

The manager lists ids in ascending order; here they are cut into responses, with metadata read on request. The last
response, and only it, has `end`: a listing that can't be finished ends with an error instead. Held at any time: the ids
of one response, and with metadata the response that is being sent and the ledgers being read for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from gateway.messages import failure, ledger_id_from
from gateway.store_budget import StoreBudget
from ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetadataFormatException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from ledger.id_set import encode_ids
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerManagerFactory, StoredLedger
from ledger.metadata_codec import stored_format
from protos.bookkeeper.common.v1.status_pb2 import StatusCode
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    GetLedgerRangesRequest,
    GetLedgerRangesResponse,
    LedgerMetadataResponse,
)

DEFAULT_LEDGERS_A_RESPONSE = 10_000
MAX_LEDGERS_A_RESPONSE = 100_000
MAX_METADATA_A_RESPONSE = 1_000
"""Ledgers with metadata that are read before they are sent."""

_SUCCESS = StatusCode.SUCCESS

MAX_BYTES_A_RESPONSE = 1024 * 1024
"""Where a response with metadata is cut; a single ledger may be larger."""


class Listing:
    """See the module. One a gateway."""

    def __init__(self, factory: LedgerManagerFactory, budget: StoreBudget) -> None:
        self._factory = factory
        self._budget = budget

    async def iterate(self, request: GetLedgerRangesRequest) -> AsyncIterator[GetLedgerRangesResponse]:
        """All responses. Raises IncorrectParameterException for a bad request, MetaStoreException."""
        _check(request)
        held: GetLedgerRangesResponse | None = None
        async with aclosing(self._responses(request)) as responses:  # type: ignore[type-var]
            async for response in responses:
                if held is not None:
                    yield held
                held = response
        held = held or GetLedgerRangesResponse(serialized_ranges=encode_ids([]))
        held.end = True
        held.ledger_scope_id = request.ledger_scope_id
        yield held

    async def _responses(self, request: GetLedgerRangesRequest) -> AsyncIterator[GetLedgerRangesResponse]:
        limit = min(request.limit_per_response or DEFAULT_LEDGERS_A_RESPONSE, MAX_LEDGERS_A_RESPONSE)
        scope_id = request.ledger_scope_id
        ranges = self._factory.ledger_manager.ledger_ranges(
            scope_id,
            request.start_after if request.HasField("start_after") else None,
            request.end_before if request.HasField("end_before") else None,
        )
        if not request.include_metadata:
            async for ids in _regroup(ranges, limit):
                yield _ranges_response(scope_id, ids)
            return
        runs = _regroup(ranges, min(limit, MAX_METADATA_A_RESPONSE))
        async with aclosing(self._read_ahead(scope_id, runs)) as found:  # type: ignore[type-var]
            async for ledgers in found:
                for part in _cut_by_size(ledgers):
                    response = _ranges_response(scope_id, [ledger.ledger_id for ledger in part])
                    response.ledgers.extend(part)
                    yield response

    async def _read_ahead(
        self, scope_id: int, runs: AsyncIterator[Sequence[int]]
    ) -> AsyncIterator[list[LedgerMetadataResponse]]:
        """The ledgers of each run; the next run is being read while one is sent."""
        reading: list[asyncio.Task[list[LedgerMetadataResponse]]] = []
        try:
            async for ids in runs:
                reading.append(asyncio.get_running_loop().create_task(self._read(scope_id, ids)))
                if len(reading) > 1:
                    yield await reading.pop(0)
            while reading:
                yield await reading.pop(0)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, scope_id: int, ids: Sequence[int]) -> list[LedgerMetadataResponse]:
        """Those that (still) exist, in order; a damaged one with the code that says so."""
        async with self._budget.part_of_batch("read_many"):
            outcomes = await self._factory.ledger_manager.read_listed([LedgerId(scope_id, number) for number in ids])
        revision = await self._factory.revision()
        found = []
        for number, outcome in zip(ids, outcomes, strict=True):
            if isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
                continue
            if isinstance(outcome, MetaStoreException):
                raise outcome
            try:
                found.append(_answer(outcome, revision))
            except BKException as error:
                found.append(failure(error, LedgerId(scope_id, number), revision))
        return found


def _answer(outcome: StoredLedger | BKException, revision: int) -> LedgerMetadataResponse:
    """As `messages.success`, with the metadata as they are stored. Raises what was wrong."""
    if isinstance(outcome, BKException):
        raise outcome
    try:
        metadata = stored_format(outcome.data)
    except MetadataFormatException as error:
        raise MetadataFormatException(f"metadata of ledger {outcome.ledger_id}: {error}") from error
    return LedgerMetadataResponse(
        code=_SUCCESS,
        ledger_id=outcome.ledger_id.ledger_id,
        ledger_scope_id=outcome.ledger_id.scope_id,
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
    """The same ids in runs of `limit`; only the last may be shorter."""
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


def _cut_by_size(ledgers: Sequence[LedgerMetadataResponse]) -> list[list[LedgerMetadataResponse]]:
    parts: list[list[LedgerMetadataResponse]] = []
    size = 0
    for ledger in ledgers:
        bytes_needed = ledger.ByteSize()
        if not parts or size + bytes_needed > MAX_BYTES_A_RESPONSE:
            parts.append([])
            size = 0
        parts[-1].append(ledger)
        size += bytes_needed
    return parts


def _ranges_response(scope_id: int, ids: Sequence[int]) -> GetLedgerRangesResponse:
    return GetLedgerRangesResponse(
        code=StatusCode.SUCCESS,
        count=len(ids),
        serialized_ranges=encode_ids(ids),
        ledger_scope_id=scope_id,
        last_ledger_id=ids[-1],
    )
