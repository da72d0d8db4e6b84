"""Ledger metadata over RPC: the shared `LedgerManager` interface, carried out by the gateways.

Calls that change something and whose answer was lost are resolved here, by what the change means (M6):

* create with a given id: asked again; LEDGER_EXISTS is success when the ledger carries this call's creator token;
* create with a generated id: nobody can tell whether a ledger came into being, so UnknownOutcomeException is raised (an
  empty ledger may be left over);
* write: asked again with the same expected version; BAD_VERSION is success when the stored value is the one written and
  the version is the next, and an unknown outcome when others have changed it further;
* remove: asked again; "not found" then counts as done.

An iteration that breaks off goes on after the last id received; it ends with the gateway's end mark or with an error
(M5). No answer is older than what this client has seen (M4): requests carry the highest revision seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from grpc.aio import AioRpcError

from ledger.errors import (
    BKException,
    IllegalOpException,
    LedgerExistException,
    MetadataVersionException,
    MetaStoreException,
    UnknownOutcomeException,
)
from ledger.id_set import decode_ids
from ledger.ledger_id import LedgerId
from ledger.manager import (
    LedgerManager,
    LedgerManagerFactory,
    LedgerMetadataListener,
    LedgerRecord,
    RegistrationManager,
    ServiceDiscovery,
)
from ledger.metadata import LedgerMetadata
from ledger.metadata_codec import to_format
from protos.bookkeeper.common.v1.status_pb2 import StatusCode
from protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from thinclient.discovery import RpcServiceDiscovery
from thinclient.gateway_channel import Gateway, GatewayChannel, check_transient
from thinclient.messages import code_error, record_of, scoped
from thinclient.watch import MetadataWatch

T = TypeVar("T")
Answer = Awaitable[wire.LedgerMetadataResponse]
Send = Callable[[Gateway, wire.LedgerMetadataRequest, float], Answer]

_MAX_REPEATS = 5
"""How often a change is sent again after its answer was lost; each has the whole timeout."""


def _comparable(metadata: LedgerMetadata) -> LedgerMetadata:
    """What is the same in a value written and read back."""
    return replace(metadata, creator_token=0, ctime_ms=None, format_version=3)


class RpcLedgerManager(LedgerManager):
    """The gateways' LedgerMetadataService behind the shared interface."""

    def __init__(self, gateways: GatewayChannel) -> None:
        self._gateways = gateways
        self._watch = MetadataWatch(gateways)
        self._rng = gateways.rng

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        metadata = replace(metadata, creator_token=metadata.creator_token or self._rng.randrange(1, 1 << 62))
        request = wire.LedgerMetadataRequest(metadata=to_format(metadata), request_token=self._token())
        if ledger_id is None:
            return self._record(await self._change("create a ledger", request, _create), "create a ledger")
        what = f"create ledger {ledger_id}"
        scoped(request, ledger_id)
        response, repeated = await self._change_repeatedly(what, request, _create)
        if response.code == StatusCode.LEDGER_EXISTS and repeated:
            return await self._own_creation(ledger_id, metadata)
        return self._record(response, what)

    async def _own_creation(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerRecord:
        """The ledger exists after an attempt whose answer was lost: is it this client's?"""
        record = await self.read(ledger_id)
        if record.metadata.creator_token == metadata.creator_token:
            return record
        if record.metadata.creator_token == 0 and _comparable(record.metadata) == _comparable(metadata):
            raise UnknownOutcomeException(
                f"ledger {ledger_id} exists as it was to be created, but who created it can't be told"
            )
        raise LedgerExistException(f"ledger {ledger_id} exists already")

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        what = f"read the metadata of ledger {ledger_id}"
        request = scoped(wire.LedgerMetadataRequest(min_revision=self._gateways.revision), ledger_id)
        response = await self._gateways.call(
            what, lambda gateway, timeout: gateway.metadata.Read(request, timeout=timeout)
        )
        return self._record(response, what)

    async def read_many(self, ledger_ids: Iterable[int], scope_id: int = 0) -> dict[int, LedgerRecord | BKException]:
        """Reads many ledgers of a scope in one round trip; a ledger that can't be read has its error as value."""
        wanted = set(ledger_ids)
        results: dict[int, LedgerRecord | BKException] = {}
        attempts = self._gateways.attempts("read the metadata of many ledgers", self._gateways.timeout)
        while missing := sorted(wanted - results.keys())[:10_000]:
            gateway = await attempts.next()
            request = wire.BatchReadRequest(ledger_ids=missing, min_revision=self._gateways.revision)
            if scope_id:
                request.ledger_scope_id = scope_id
            reason = "the stream ended early"
            call = gateway.metadata.BatchRead(request)
            try:
                with self._gateways.outstanding("read the metadata of many ledgers"):
                    async for response in _each_within(aiter(call), attempts.share):
                        if response.ledger_id not in results:
                            attempts.progressed()
                        results[response.ledger_id] = self._record_or_error(response)
            except AioRpcError as error:
                reason = check_transient(gateway, "read the metadata of many ledgers", error)
            except TimeoutError:
                reason = "the stream stood still"
            finally:
                call.cancel()
            if not results.keys() >= set(missing):
                attempts.failed(gateway, reason)
        return results

    def _record_or_error(self, response: wire.LedgerMetadataResponse) -> LedgerRecord | BKException:
        try:
            return self._record(response, f"read the metadata of ledger {response.ledger_id}")
        except BKException as error:
            return error

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        what = f"write the metadata of ledger {ledger_id}"
        request = scoped(
            wire.LedgerMetadataRequest(
                metadata=to_format(metadata), expected_version=expected_version, request_token=self._token()
            ),
            ledger_id,
        )
        response, repeated = await self._change_repeatedly(what, request, _write)
        if response.code == StatusCode.SUCCESS and not response.HasField("metadata"):
            return LedgerRecord(ledger_id, metadata, response.version)
        if response.code == StatusCode.BAD_VERSION and repeated:
            return self._own_write(await self.read(ledger_id), metadata, expected_version)
        return self._record(response, what)

    @staticmethod
    def _own_write(stored: LedgerRecord, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """The version moved after an attempt whose answer was lost: was it this write?"""
        if stored.version == expected_version + 1:
            if _comparable(stored.metadata) == _comparable(metadata):
                return stored
            raise MetadataVersionException(
                f"metadata of ledger {stored.ledger_id} was changed by another client to version {stored.version}"
            )
        raise UnknownOutcomeException(
            f"metadata of ledger {stored.ledger_id} is at version {stored.version} by now; whether this write made "
            f"version {expected_version + 1} can't be told"
        )

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        what = f"delete ledger {ledger_id}"
        request = scoped(wire.LedgerMetadataRequest(), ledger_id)
        if expected_version is not None:
            request.expected_version = expected_version
        response, repeated = await self._change_repeatedly(what, request, _remove)
        if response.code == StatusCode.SUCCESS or (repeated and response.code == StatusCode.LEDGER_NOT_FOUND):
            return
        raise code_error(response.code, response.message, what)

    def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        return self._ranges(scope_id, start_after, end_before)

    async def _ranges(
        self, scope_id: int, start_after: int | None, end_before: int | None
    ) -> AsyncIterator[Sequence[int]]:
        async for response in self._pages(scope_id, start_after, end_before, include_metadata=False):
            yield decode_ids(response.serialized_ranges)

    async def ledger_records(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> AsyncIterator[list[LedgerRecord]]:
        """Like `ledger_ranges`, with the metadata: pages of records in ascending order of id, none empty."""
        async for response in self._pages(scope_id, start_after, end_before, include_metadata=True, limit=page_size):
            yield [self._record(ledger, "read a listed ledger") for ledger in response.ledgers]

    async def _pages(
        self, scope_id: int, after: int | None, before: int | None, *, include_metadata: bool, limit: int = 0
    ) -> AsyncIterator[wire.GetLedgerRangesResponse]:
        """All non-empty pages of an iteration, resumed where it broke off, up to the end mark."""
        # A page may take the whole timeout; when it does not come, another gateway has as long.
        attempts = self._gateways.attempts("list ledgers", 2 * self._gateways.timeout)
        while True:
            gateway = await attempts.next()
            request = wire.GetLedgerRangesRequest(limit_per_response=limit, include_metadata=include_metadata)
            for name, value in (("ledger_scope_id", scope_id or None), ("start_after", after), ("end_before", before)):
                if value is not None:
                    setattr(request, name, value)
            reason = "the listing broke off before its end"
            call = gateway.metadata.Iterate(request)
            try:
                with self._gateways.outstanding("list ledgers"):
                    async for page in _each_within(aiter(call), self._gateways.timeout):
                        if _check_page(page, after):
                            after = page.last_ledger_id
                            yield page
                            # Only now: the time that the consumer took is not the gateways'.
                            attempts.progressed()
                        if page.end:
                            return
            except AioRpcError as error:
                reason = check_transient(gateway, "list ledgers", error)
            except TimeoutError:
                reason = f"the listing stood still for {self._gateways.timeout:g} s"
            finally:
                call.cancel()
            attempts.failed(gateway, reason)

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self._watch.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self._watch.remove(ledger_id, listener)

    async def close(self) -> None:
        """Ends the watch stream."""
        await self._watch.close()

    # Carrying out

    async def _change(self, what: str, request: wire.LedgerMetadataRequest, send: Send) -> wire.LedgerMetadataResponse:
        response = await self._gateways.call(
            what, lambda gateway, timeout: send(gateway, request, timeout), changes=True
        )
        # Before the answer is looked at: a read that follows from it must not be older (M4).
        self._note(response)
        return response

    async def _change_repeatedly(
        self, what: str, request: wire.LedgerMetadataRequest, send: Send
    ) -> tuple[wire.LedgerMetadataResponse, bool]:
        """The answer, and whether an earlier attempt of this very change may have been carried out."""
        for attempt in range(_MAX_REPEATS):
            try:
                return await self._change(what, request, send), attempt > 0
            except UnknownOutcomeException as error:
                lost = error
            except BKException as error:
                # Nothing was done this time, whatever the reason; what an earlier attempt did is still not known.
                if attempt == 0:
                    raise
                raise UnknownOutcomeException(f"{lost}; {error}") from error
        raise lost

    def _record(self, response: wire.LedgerMetadataResponse, what: str) -> LedgerRecord:
        self._note(response)
        if response.code != StatusCode.SUCCESS:
            raise code_error(response.code, response.message, what)
        return record_of(response)

    def _note(self, response: wire.LedgerMetadataResponse) -> None:
        self._gateways.revision = max(self._gateways.revision, response.revision)

    def _token(self) -> bytes:
        return self._rng.randbytes(16)


def _create(gateway: Gateway, request: wire.LedgerMetadataRequest, timeout: float) -> Answer:
    return gateway.metadata.Create(request, timeout=timeout)


def _write(gateway: Gateway, request: wire.LedgerMetadataRequest, timeout: float) -> Answer:
    return gateway.metadata.Write(request, timeout=timeout)


def _remove(gateway: Gateway, request: wire.LedgerMetadataRequest, timeout: float) -> Answer:
    return gateway.metadata.Remove(request, timeout=timeout)


async def _each_within(stream: AsyncIterator[T], timeout: float) -> AsyncIterator[T]:
    """The items of a stream. Raises TimeoutError when the next one takes longer than `timeout` seconds."""
    while True:
        try:
            async with asyncio.timeout(timeout):
                item = await anext(stream)
        except StopAsyncIteration:
            return
        yield item


def _check_page(page: wire.GetLedgerRangesResponse, after: int | None) -> bool:
    """True for a page with ledgers. Raises MetaStoreException for one that breaks the rules of an iteration."""
    if page.code != StatusCode.SUCCESS:
        raise code_error(page.code, page.message, "list ledgers")
    if not page.count:
        return False
    if after is not None and page.last_ledger_id <= after:
        raise MetaStoreException(f"the gateway's listing went back from ledger {after} to {page.last_ledger_id}")
    return True


class RpcLedgerManagerFactory(LedgerManagerFactory):
    """A metadata store reached through gateways: `grpc://host:port,host:port`."""

    def __init__(self, uri: str, timeout: float = 10.0, rng: random.Random | None = None) -> None:
        self.gateways = GatewayChannel(uri, timeout, rng or random.SystemRandom())
        self._discovery = RpcServiceDiscovery(self.gateways)
        self._manager = RpcLedgerManager(self.gateways)
        self._connected = False

    async def initialize(self) -> None:
        """Checks that a gateway answers. Raises MetaStoreException naming every address and its error."""
        await self._discovery.cluster_info()
        self._connected = True

    @property
    def ledger_manager(self) -> RpcLedgerManager:
        return self._manager

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return self._discovery

    @property
    def registration_manager(self) -> RegistrationManager:
        raise IllegalOpException("bookies can't register through a gateway; give the bookie its metadata store's URI")

    @property
    def connected(self) -> bool:
        return self._connected

    async def revision(self) -> int:
        """The highest revision that this client has seen."""
        return self.gateways.revision

    async def close(self) -> None:
        self._connected = False
        await self._manager.close()
        await self._discovery.close()
        await self.gateways.close()
