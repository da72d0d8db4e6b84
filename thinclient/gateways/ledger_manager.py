"""Ledger metadata over RPC: the shared `LedgerManager` interface, implemented by the gateways.

If the response to a change is lost, this module determines the outcome from the meaning of the change (M6):

* create with a given id: sent again. LEDGER_EXISTS is success if the ledger has this call's creator token, and an
  unknown outcome if it was updated since, which removes the token;
* create with a generated id: sent again to the same gateway process, which recognises the request by its token
  (`pinned_create`). If that process is gone or not known, nobody can tell whether a ledger was created:
  UnknownOutcomeException (an empty ledger may remain);
* write: sent again with the same expected version. BAD_VERSION is success if the stored value is the one written and
  the version is the next one, and an unknown outcome if others have updated it further;
* remove: sent again; "not found" then counts as success.

No response is older than what this client has seen (M4): requests carry the highest revision seen. `streams` handles
streamed results: reads of many ledgers, and listings.

Not its job: the factory that makes it (`factory`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from grpc.aio import AioRpcError

from bookgate.ledger.creator import Creator, creator_of, is_as_written
from bookgate.ledger.errors import (
    BKException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
    UnknownOutcomeException,
)
from bookgate.ledger.id_set import decode_ids
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_store import (
    CreateRequest,
    LedgerManager,
    LedgerMetadataListener,
    LedgerRecord,
    require_same,
)
from bookgate.ledger.metadata_templates import MetadataTemplates
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import NO_GATEWAY
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.messages import MetadataOf, code_error, columns_of, record_of, scoped
from bookgate.thinclient.gateways.parallel_listing import (
    DEFAULT_SIZES,
    IdRange,
    ListingSizes,
    in_parallel,
    ranges_of,
)
from bookgate.thinclient.gateways.pinned_create import create_pinned
from bookgate.thinclient.gateways.streams import MAX_BATCH, pages_of, read_ledgers
from bookgate.thinclient.gateways.watch import MetadataWatch

T = TypeVar("T")
Answer = Awaitable[wire.LedgerMetadataResponse]
Send = Callable[[Gateway, wire.LedgerMetadataRequest, float], Answer]

_Listed = tuple[int, Sequence[LedgerRecord]]
"""The last id that a response lists, and its ledgers."""

_SUCCESS = StatusCode.SUCCESS

_MAX_BATCH_BYTES = 3 * 1024 * 1024
"""Maximum bytes of one batch of creates; a gateway accepts requests of 4 MiB."""


class RpcLedgerManager(LedgerManager):
    """The shared interface on top of the gateways' LedgerMetadataService."""

    def __init__(self, gateways: GatewayChannel, sizes: ListingSizes = DEFAULT_SIZES) -> None:
        self._gateways = gateways
        self._sizes = sizes
        self._watch = MetadataWatch(gateways)
        self._rng = gateways.rng
        self._complete = False
        """Whether listings are demanded complete."""

    def __repr__(self) -> str:
        return f"<RpcLedgerManager by {self._gateways!r}>"

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        request = self._creation(CreateRequest(ledger_id, metadata))
        if ledger_id is None:
            return await self._create_generated(request)
        return await self._create_given(ledger_id, request)

    def _creation(self, wanted: CreateRequest) -> wire.LedgerMetadataRequest:
        token = wanted.metadata.creator_token or self._rng.randrange(1, 1 << 62)
        message = to_format(replace(wanted.metadata, creator_token=token))
        request = wire.LedgerMetadataRequest(metadata=message, request_token=self._token())
        return request if wanted.ledger_id is None else scoped(request, wanted.ledger_id)

    async def _create_generated(self, request: wire.LedgerMetadataRequest) -> LedgerRecord:
        response, _ = await create_pinned(
            self._gateways,
            "create a ledger",
            lambda gateway, timeout, metadata: gateway.answer(
                gateway.metadata.Create(request, timeout=timeout, metadata=metadata)
            ),
        )
        return self._record(response, "create a ledger")

    async def _create_given(
        self, ledger_id: LedgerId, request: wire.LedgerMetadataRequest, *, repeated: bool = False
    ) -> LedgerRecord:
        what = f"create ledger {ledger_id}"
        response, again = await self._change_repeatedly(what, request, _create)
        if response.code == StatusCode.LEDGER_EXISTS and (again or repeated):
            return await self._own_creation(ledger_id, from_format(request.metadata))
        return self._record(response, what)

    async def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        """Creates many ledgers, thousands per round trip. See `LedgerManager.create_many`."""
        results: list[LedgerRecord | BKException] = []
        for batch in _batches([self._creation(each) for each in requests]):
            results += await self._create_batch(batch)
        return results

    async def _create_batch(self, requests: Sequence[wire.LedgerMetadataRequest]) -> list[LedgerRecord | BKException]:
        what = f"create {len(requests)} ledgers"
        batch = wire.BatchCreateRequest(requests=requests)
        try:
            response, again = await create_pinned(
                self._gateways,
                what,
                lambda gateway, timeout, metadata: gateway.answer(
                    gateway.metadata.BatchCreate(batch, timeout=timeout, metadata=metadata)
                ),
            )
        except UnknownOutcomeException as error:
            return [await self._resolve_creation(request, error) for request in requests]
        except BKException as error:
            return [error] * len(requests)
        if response.code != StatusCode.SUCCESS or len(response.responses) != len(requests):
            return [code_error(response.code, response.message, what)] * len(requests)
        return [await self._created(*each, again) for each in zip(requests, response.responses, strict=True)]

    async def _created(
        self, request: wire.LedgerMetadataRequest, response: wire.LedgerMetadataResponse, again: bool
    ) -> LedgerRecord | BKException:
        """The result for one ledger of a batch. UNEXPECTED: the gateway lost the store's response."""
        if response.code == StatusCode.UNEXPECTED or (again and response.code == StatusCode.LEDGER_EXISTS):
            return await self._resolve_creation(request, UnknownOutcomeException(response.message))
        return self._record_or_error(response, "create a ledger")

    async def _resolve_creation(
        self, request: wire.LedgerMetadataRequest, lost: UnknownOutcomeException
    ) -> LedgerRecord | BKException:
        if not request.HasField("ledger_id"):
            return lost
        try:
            ledger_id = LedgerId(request.ledger_scope_id, request.ledger_id)
            return await self._create_given(ledger_id, request, repeated=True)
        except BKException as error:
            return error

    async def _own_creation(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerRecord:
        """Decides whether a ledger that exists after a lost response was created by this client."""
        record = await self._read_to_resolve(ledger_id, f"create ledger {ledger_id}")
        creator = creator_of(record, metadata)
        if creator is Creator.SELF:
            return record
        if creator is Creator.ANOTHER:
            raise LedgerExistException(f"ledger {ledger_id} exists already")
        raise UnknownOutcomeException(
            f"ledger {ledger_id} exists and may be the one that was to be created, but who created it can't be told"
        )

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        what = f"read the metadata of ledger {ledger_id}"
        request = scoped(wire.LedgerMetadataRequest(min_revision=self._gateways.revision), ledger_id)
        response = await self._gateways.call(
            what, lambda gateway, timeout: gateway.answer(gateway.metadata.Read(request, timeout=timeout))
        )
        return self._record(response, what)

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        """Reads many ledgers, thousands of a scope per round trip. See `LedgerManager.read_many`."""
        found = await read_ledgers(self._gateways, ledger_ids, self._record_or_error)
        return [found[ledger_id] for ledger_id in ledger_ids]

    def _record_or_error(self, response: wire.LedgerMetadataResponse, what: str) -> LedgerRecord | BKException:
        try:
            return self._record(response, what)
        except BKException as error:
            return error

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        return await self._replace(LedgerRecord(ledger_id, metadata, expected_version), metadata)

    async def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        """See the interface. The gateway compares the incarnations; an older one does not."""
        written = await self._replace(record, metadata)
        require_same(record, written)
        return replace(written, incarnation=record.incarnation) if written.incarnation is None else written

    async def _replace(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        """Writes at the record's version, and to its incarnation if that is known."""
        ledger_id = record.ledger_id
        what = _writing(ledger_id)
        request = self._replacement(ledger_id, metadata, record.version)
        if record.incarnation is not None:
            request.incarnation = record.incarnation
        response, repeated = await self._change_repeatedly(what, request, _write)
        if repeated and response.code == StatusCode.LEDGER_NOT_FOUND:
            raise UnknownOutcomeException(f"could not {what}: its answer was lost, and the ledger is gone by now")
        if repeated and response.code == StatusCode.BAD_VERSION:
            stored = await self._read_to_resolve(ledger_id, what)
            if stored.is_another(record):
                raise UnknownOutcomeException(f"could not {what}: its answer was lost, and another has its id by now")
            return self._own_write(stored, metadata, record.version)
        return self._written(response, ledger_id, metadata)

    async def write_once(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        request = self._replacement(ledger_id, metadata, expected_version)
        response = await self._gateways.call(
            _writing(ledger_id), lambda gateway, timeout: _write(gateway, request, timeout), changes=True
        )
        self._note(response)
        return self._written(response, ledger_id, metadata)

    def _replacement(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int
    ) -> wire.LedgerMetadataRequest:
        return scoped(
            wire.LedgerMetadataRequest(
                metadata=to_format(metadata),
                expected_version=expected_version,
                request_token=self._token(),
                password_withheld=metadata.password_check is not None,
            ),
            ledger_id,
        )

    def _written(
        self, response: wire.LedgerMetadataResponse, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> LedgerRecord:
        if response.code == StatusCode.SUCCESS and not response.HasField("metadata"):
            return LedgerRecord(ledger_id, metadata, response.version)
        return self._record(response, _writing(ledger_id))

    async def _read_to_resolve(self, ledger_id: LedgerId, what: str) -> LedgerRecord:
        """The record after an attempt whose response was lost. If it can't be read, the outcome stays unknown."""
        try:
            return await self.read(ledger_id)
        except BKException as error:
            raise UnknownOutcomeException(f"could not {what}: its answer was lost, and now {error}") from error

    @staticmethod
    def _own_write(stored: LedgerRecord, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Decides whether a version that changed during a lost response was written by this call."""
        if stored.version == expected_version + 1:
            if is_as_written(stored.metadata, metadata):
                return stored
            raise MetadataVersionException(
                f"metadata of ledger {stored.ledger_id} was changed by another client to version {stored.version}"
            )
        raise UnknownOutcomeException(
            f"metadata of ledger {stored.ledger_id} is at version {stored.version} by now; whether this write made "
            f"version {expected_version + 1} can't be told"
        )

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        request = wire.LedgerMetadataRequest()
        if expected_version is not None:
            request.expected_version = expected_version
        await self._remove(ledger_id, request)

    async def remove_record(self, record: LedgerRecord) -> None:
        """See the interface. The gateway compares the incarnations; an older one does not."""
        request = wire.LedgerMetadataRequest(expected_version=record.version, incarnation=record.incarnation)
        await self._remove(record.ledger_id, request)

    async def _remove(self, ledger_id: LedgerId, request: wire.LedgerMetadataRequest) -> None:
        what = f"delete ledger {ledger_id}"
        request = scoped(request, ledger_id)
        response, repeated = await self._change_repeatedly(what, request, _remove)
        if response.code == StatusCode.SUCCESS or (repeated and response.code == StatusCode.LEDGER_NOT_FOUND):
            return
        raise code_error(response.code, response.message, what)

    def demand_complete_listings(self, demanded: bool = True) -> None:
        self._complete = demanded

    def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        return self._ranges(scope_id, start_after, end_before)

    async def _ranges(
        self, scope_id: int, start_after: int | None, end_before: int | None
    ) -> AsyncIterator[Sequence[int]]:
        async for response in pages_of(
            self._gateways, scope_id, start_after, end_before, include_metadata=False, complete=self._complete
        ):
            yield decode_ids(response.serialized_ranges)

    async def ledger_records(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> AsyncIterator[Sequence[LedgerRecord]]:
        """See the interface; 0 is the page size of the gateway, which lists ids and metadata together.

        Where the listing is long and several gateways are there, they share it.
        """
        templates, listed = MetadataTemplates(), 0
        whole = IdRange(start_after, end_before)
        async with aclosing(self._pages(scope_id, whole, page_size, templates)) as pages:
            async for last, page in pages:
                yield page
                listed += len(page)
                if listed >= self._sizes.alone and self._gateways.ready > 1:
                    rest = IdRange(last, end_before)
                    break
            else:
                return
        async with aclosing(self._shared(scope_id, rest, page_size, templates)) as shared:
            async for _, page in shared:
                yield page

    def _shared(
        self, scope_id: int, rest: IdRange, page_size: int, templates: MetadataTemplates
    ) -> AsyncGenerator[_Listed, None]:
        """What is left of a listing, by all gateways."""
        ids = self._ranges(scope_id, *rest)
        # All may have failed meanwhile: a range then waits for one, and the listing fails with it.
        helpers = max(1, min(self._gateways.ready, self._sizes.most_gateways))
        return in_parallel(
            ranges_of(ids, rest, scope_id, self._sizes.a_range),
            lambda part: self._pages(scope_id, part, page_size, templates),
            helpers * self._sizes.ranges_a_gateway,
        )

    async def _pages(
        self, scope_id: int, part: IdRange, page_size: int, templates: MetadataTemplates
    ) -> AsyncGenerator[_Listed, None]:
        """One listing."""
        async for response in pages_of(
            self._gateways, scope_id, *part, include_metadata=True, complete=self._complete, limit=page_size
        ):
            if response.HasField("columns"):
                self._note(response.columns)
                yield response.last_ledger_id, columns_of(response, templates)
            else:
                records = [
                    self._record(each, "read a listed ledger", templates.metadata_of) for each in response.ledgers
                ]
                yield response.last_ledger_id, records

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        request = wire.ListScopesRequest(
            start_after=start_after, min_revision=self._gateways.revision, require_complete=self._complete
        )
        while True:
            response = await self._page_of_scopes(request)
            if response.scope_ids:
                yield list(response.scope_ids)
            if response.end:
                return
            request.start_after = response.last_scope_id

    async def _page_of_scopes(self, request: wire.ListScopesRequest) -> wire.ListScopesResponse:
        what, without = "list scopes", set[str]()

        async def ask(gateway: Gateway, timeout: float) -> wire.ListScopesResponse:
            try:
                return await gateway.answer(gateway.metadata.ListScopes(request, timeout=timeout))
            except AioRpcError as error:
                if error.code() is NO_GATEWAY:
                    without.add(gateway.address)
                raise

        try:
            response = await self._gateways.call(what, ask)
        except MetaStoreException as error:
            if without:
                raise MetaStoreException(
                    f"{error}; {', '.join(sorted(without))} can't tell which scopes there are, as gateways of an "
                    "older version can't: upgrade them"
                ) from error
            raise
        if response.code != StatusCode.SUCCESS:
            raise code_error(response.code, response.message, what)
        return response

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self._watch.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self._watch.remove(ledger_id, listener)

    async def close(self) -> None:
        """Ends the watch stream."""
        await self._watch.close()

    # Calls

    async def _change_repeatedly(
        self, what: str, request: wire.LedgerMetadataRequest, send: Send
    ) -> tuple[wire.LedgerMetadataResponse, bool]:
        """The response, and whether an earlier attempt of the same change may have been carried out."""
        response, again = await self._gateways.change_repeatedly(
            what, lambda gateway, timeout: send(gateway, request, timeout)
        )
        # Before the response is evaluated: a read that follows from it must not be older (M4).
        self._note(response)
        return response, again

    def _record(
        self, response: wire.LedgerMetadataResponse, what: str, metadata_of: MetadataOf = from_format
    ) -> LedgerRecord:
        self._note(response)
        if response.code != _SUCCESS:
            raise code_error(response.code, response.message, what)
        return record_of(response, metadata_of)

    def _note(self, response: wire.LedgerMetadataResponse | wire.LedgerColumns) -> None:
        self._gateways.revision = max(self._gateways.revision, response.revision)

    def _token(self) -> bytes:
        return self._rng.randbytes(16)


def _writing(ledger_id: LedgerId) -> str:
    return f"write the metadata of ledger {ledger_id}"


def _create(gateway: Gateway, request: wire.LedgerMetadataRequest, timeout: float) -> Answer:
    return gateway.answer(gateway.metadata.Create(request, timeout=timeout))


def _write(gateway: Gateway, request: wire.LedgerMetadataRequest, timeout: float) -> Answer:
    return gateway.answer(gateway.metadata.Write(request, timeout=timeout))


def _remove(gateway: Gateway, request: wire.LedgerMetadataRequest, timeout: float) -> Answer:
    return gateway.metadata.Remove(request, timeout=timeout)


def _batches(requests: Sequence[wire.LedgerMetadataRequest]) -> Iterator[list[wire.LedgerMetadataRequest]]:
    """The requests in batches of a size that a gateway accepts."""
    batch: list[wire.LedgerMetadataRequest] = []
    size = 0
    for request in requests:
        length = request.ByteSize() + 8
        if batch and (len(batch) == MAX_BATCH or size + length > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += length
    if batch:
        yield batch
