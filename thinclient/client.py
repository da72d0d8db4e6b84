"""The client: creates, opens, lists and deletes ledgers.

Metadata goes through gateways (`grpc://…`, `grpcs://…`), entries go straight to and from the bookies. With the URI of a
metadata store in their place, `zk+hierarchical://…` for one, the same client speaks to that store itself: the way back
to clients with ZooKeeper, for which its extra has to be installed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from ledger.bookie_info import BookieServiceInfo
from ledger.drivers import load_driver
from ledger.errors import (
    BKException,
    ClientClosedException,
    IllegalOpException,
    IncorrectParameterException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotEnoughBookiesException,
    UnauthorizedAccessException,
)
from ledger.ledger_id import LedgerId
from ledger.manager import (
    BookieSet,
    LedgerManager,
    LedgerManagerFactory,
    LedgerRecord,
    RegisteredBookie,
    ServiceDiscovery,
)
from ledger.metadata import DigestType, LedgerMetadata, LedgerState
from reporting.logs import log_event
from thinclient.advanced_write_handle import AdvancedWriteHandle
from thinclient.auth import ClientAuthProvider
from thinclient.bookie_connection import Connector, tcp_connector
from thinclient.bookie_pool import V3, BookiePool
from thinclient.config import ClientConfig
from thinclient.context import ClientContext, LedgerSecrets
from thinclient.core.placement import EnsembleRequest
from thinclient.ensemble_changer import EnsembleChanger
from thinclient.gateway_uri import is_gateway_uri
from thinclient.ledger_changes import LedgerChanges
from thinclient.ledger_view import LedgerView, known_last_entry
from thinclient.metadata import RpcLedgerManager, RpcLedgerManagerFactory
from thinclient.metrics import ClientMetrics
from thinclient.placement import Placement, create_policy
from thinclient.quarantine import BookieHealth
from thinclient.read_handle import ReadHandle
from thinclient.recovery_driver import read_last_confirmed, recover
from thinclient.write_handle import WriteHandle

_log = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 256
"""Whose bookies are asked side by side for the last add confirmed."""

_WRITER_KEY = "bookgate.writer"
"""Custom metadata of a ledger that was taken up by a second handle: a random name of that handle."""


class BookKeeper:
    """A client of one cluster. Belongs to the event loop it was made on; close it, or use it as a context manager."""

    def __init__(
        self,
        ledger_manager: LedgerManager,
        service_discovery: ServiceDiscovery,
        config: ClientConfig | None = None,
        rng: random.Random | None = None,
        connector: Connector = tcp_connector,
        auth_provider: ClientAuthProvider | None = None,
    ) -> None:
        """Builds a client on given parts; `connect` is the usual way."""
        self._config = config or ClientConfig()
        self._service_discovery = service_discovery
        self._rng = rng or random.SystemRandom()
        metrics = ClientMetrics()
        pool = BookiePool.of(self._config, service_discovery, connector, self._rng, auth_provider, metrics)
        policy = create_policy(self._config, self._rng)
        health = _health(self._config, metrics)
        placement = Placement(
            service_discovery,
            policy,
            self._config,
            quarantined=health.quarantined,
            free_bytes=pool.free_bytes,
            on_counted=metrics.count,
        )
        self._context = ClientContext(ledger_manager, pool, self._config, placement, metrics, health)
        metrics.gauges["NUM_PENDING_ADD"] = partial(_pending_adds, self._context)
        self._factory: LedgerManagerFactory | None = None
        self._closed = False

    @classmethod
    async def connect(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
    ) -> Self:
        """A client of the cluster behind `grpc://host:port,host:port` (default: the configuration's `gateways`).

        `auth_provider` authenticates to bookies, instead of the one that the configuration names.
        Raises MetaStoreException when no gateway (or the store) answers, IncorrectParameterException for an address
        that is none, or a store whose extra is not installed.
        """
        config = config or ClientConfig()
        factory = metadata_factory(gateways, config)
        try:
            await factory.initialize()
            return cls.of_factory(factory, config, auth_provider)
        except BaseException:
            await factory.close()
            raise

    @classmethod
    def connect_lazily(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
    ) -> Self:
        """The same without asking a gateway now: for readers of records they already have.

        Raises IncorrectParameterException for the URI of a store: stores want to be connected to first.
        """
        config = config or ClientConfig()
        uri = _metadata_uri(gateways, config)
        if not is_gateway_uri(uri):
            raise IncorrectParameterException(f"{uri!r} names no gateways: connect to a metadata store with `connect`")
        return cls.of_factory(metadata_factory(gateways, config), config, auth_provider)

    @classmethod
    def of_factory(
        cls, factory: LedgerManagerFactory, config: ClientConfig, auth_provider: ClientAuthProvider | None = None
    ) -> Self:
        """A client that owns `factory` and closes it."""
        client = cls(factory.ledger_manager, factory.service_discovery, config, auth_provider=auth_provider)
        client._factory = factory
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection; what is outstanding fails with ClientClosedException. Ledgers are not closed."""
        if self._closed:
            return
        self._closed = True
        for end in list(self._context.open_ends):
            end.client_closed(ClientClosedException("the client was closed while the ledger was open"))
        await self._context.placement.close()
        await self._context.pool.close_and_wait()
        if self._factory is not None:
            await self._factory.close()

    @property
    def config(self) -> ClientConfig:
        return self._config

    @property
    def metrics(self) -> ClientMetrics:
        """What this client counts: `snapshot()`, or `collector()` for a registry of prometheus-client."""
        return self._context.metrics

    @property
    def ledger_manager(self) -> LedgerManager:
        return self._context.ledger_manager

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return self._service_discovery

    async def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | LedgerId | None = None,
        *,
        deferred_sync: bool = False,
    ) -> WriteHandle:
        """Creates a ledger on bookies that the placement policy chooses; the cluster gives the id unless one is given.

        With `deferred_sync` appends are acknowledged before they are durable; `WriteHandle.force` makes them so, and
        only then do they count: see there.

        Raises IncorrectParameterException for sizes that don't fit each other, NotEnoughBookiesException,
        LedgerExistException for a given id in use, UnknownOutcomeException when the answer was lost,
        IllegalOpException for deferred sync in a client of protocol v2.
        """
        self._check_sync(deferred_sync)
        record = await self._create(
            (ensemble_size, write_quorum_size, ack_quorum_size), digest_type, password, custom_metadata, ledger_id
        )
        secrets = LedgerSecrets.of(record.metadata, password)
        return WriteHandle(self._context, record, secrets, deferred_sync=deferred_sync)

    async def create_advanced_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | LedgerId | None = None,
        *,
        deferred_sync: bool = False,
    ) -> AdvancedWriteHandle:
        """The same for a ledger whose entry ids the application chooses, in any order; see `AdvancedWriteHandle`."""
        self._check_sync(deferred_sync)
        record = await self._create(
            (ensemble_size, write_quorum_size, ack_quorum_size), digest_type, password, custom_metadata, ledger_id
        )
        secrets = LedgerSecrets.of(record.metadata, password)
        return AdvancedWriteHandle(self._context, record, secrets, deferred_sync=deferred_sync)

    async def _create(
        self,
        sizes: tuple[int, int, int],
        digest_type: DigestType,
        password: bytes,
        custom_metadata: Mapping[str, bytes] | None,
        ledger_id: int | LedgerId | None,
    ) -> LedgerRecord:
        self._check_open()
        ensemble_size, write_quorum_size, ack_quorum_size = sizes
        if not ensemble_size >= write_quorum_size >= ack_quorum_size >= 1:
            raise IncorrectParameterException(
                f"ensemble size {ensemble_size}, write quorum {write_quorum_size} and ack quorum {ack_quorum_size} "
                "don't fit: each must be at least the next, and the last at least 1"
            )
        given = None if ledger_id is None else _unscoped(_ledger_id(ledger_id))
        request = EnsembleRequest(ensemble_size, write_quorum_size, ack_quorum_size, custom_metadata or {})
        with self.metrics.timed("LEDGER_CREATE"):
            with self.metrics.timed("bookie_watcher_NEW_ENSEMBLE_TIME"):
                ensemble = await self._new_ensemble(request)
            metadata = LedgerMetadata.new(
                ensemble, write_quorum_size, ack_quorum_size, digest_type, password, custom_metadata
            )
            record = await self.ledger_manager.create(given, metadata)
        log_event(_log, "ledger_created", ledger=record.ledger_id, ensemble=",".join(ensemble))
        return record

    async def _new_ensemble(self, request: EnsembleRequest) -> list[str]:
        """With opportunistic striping a smaller ensemble will do, if it holds a write quorum."""
        while True:
            try:
                return await self._context.placement.new_ensemble(request)
            except NotEnoughBookiesException:
                if not self._config.opportunistic_striping or request.ensemble_size <= request.write_quorum_size:
                    raise
                request = replace(request, ensemble_size=request.ensemble_size - 1)

    async def open_ledger(self, ledger_id: int | LedgerId, password: bytes = b"", recovery: bool = False) -> ReadHandle:
        """Opens a ledger to read it.

        With `recovery` a ledger that is not closed is taken from its writer: fenced, its end found and made durable,
        closed. Without, a ledger that is still written is left alone and read up to the last entry known to be
        confirmed; `ReadHandle.read_last_confirmed` looks further. Closed ledgers open the same way either way.

        Raises NoSuchLedgerExistsOnMetadataServerException, UnauthorizedAccessException for a wrong password (no bookie
        is asked then), LedgerRecoveryException when too few bookies answer (the ledger can be opened again later).
        """
        self._check_open()
        with self.metrics.timed("LEDGER_OPEN"):
            return await self._open_ledger(_ledger_id(ledger_id), password, recovery)

    async def _open_ledger(self, ledger_id: LedgerId, password: bytes, recovery: bool) -> ReadHandle:
        record = await self.ledger_manager.read(ledger_id)
        secrets = self._secrets(record, password)
        if recovery and not record.metadata.is_closed:
            record = await self._recover(record, secrets)
        if record.metadata.is_closed:
            return ReadHandle(LedgerView(self._context, record, secrets, record.metadata.last_entry_id))
        read = await read_last_confirmed(self._context, record, secrets)
        view = LedgerView(self._context, record, secrets, read.result)
        await view.listen()
        return ReadHandle(view)

    async def _recover(self, record: LedgerRecord, secrets: LedgerSecrets) -> LedgerRecord:
        log_event(_log, "recovery_began", ledger=record.ledger_id, state=record.metadata.state.name)
        try:
            with self.metrics.timed("LEDGER_RECOVER"):
                record = await recover(self._context, record, secrets)
        except BKException as error:
            log_event(_log, "recovery_failed", logging.WARNING, ledger=record.ledger_id, error=error)
            raise
        last, length = record.metadata.last_entry_id, record.metadata.length
        log_event(_log, "ledger_recovered", ledger=record.ledger_id, last_entry=last, length=length)
        return record

    def open_record(self, record: LedgerRecord, password: bytes = b"") -> ReadHandle:
        """A reader of a ledger whose record is at hand, without asking for metadata.

        A ledger that was not closed when the record was read is known up to its last fragment's first entry only; use
        `ReadHandle.read_last_confirmed`. Raises UnauthorizedAccessException.
        """
        self._check_open()
        secrets = self._secrets(record, password)
        return ReadHandle(LedgerView(self._context, record, secrets, known_last_entry(record), asks_metadata=False))

    async def last_adds_confirmed(
        self, records: Sequence[LedgerRecord], password: bytes = b""
    ) -> list[int | BKException]:
        """How far each ledger may be read now (-1: not at all), in the records' order; a failure as its exception.

        Closed ledgers end where their metadata say; of the others the bookies are asked, many ledgers at once and
        without fencing. Raises UnauthorizedAccessException.
        """
        self._check_open()
        all_secrets = [self._secrets(record, password) for record in records]
        room = asyncio.Semaphore(_LEDGERS_AT_ONCE)

        async def ask(record: LedgerRecord, secrets: LedgerSecrets) -> int | BKException:
            if record.metadata.is_closed:
                return record.metadata.last_entry_id
            async with room:
                try:
                    return (await read_last_confirmed(self._context, record, secrets)).result
                except BKException as error:
                    return error

        return await asyncio.gather(*map(ask, records, all_secrets))

    async def reopen_empty_ledger(self, ledger_id: int | LedgerId, password: bytes = b"") -> WriteHandle:
        """Takes up writing an OPEN ledger that holds no entry: one created by a process that is gone.

        A ledger has one writer. So no bookie may hold an entry (asked without fencing), and whoever takes the ledger up
        says so in its custom metadata first, by compare-and-set: of several, one gets it. That the handle which created
        it no longer writes is for the caller to know. Raises IllegalOpException for a ledger that can't be taken up.
        """
        self._check_open()
        record = await self.ledger_manager.read(_ledger_id(ledger_id))
        secrets = self._secrets(record, password)
        await _check_never_written(self._context, record, secrets)
        claimed = {**record.metadata.custom_metadata, _WRITER_KEY: self._rng.randbytes(8).hex().encode()}
        changed = replace(record.metadata, custom_metadata=claimed)
        record = await self.ledger_manager.write(record.ledger_id, changed, record.version)
        return WriteHandle(self._context, record, secrets)

    async def delete_ledger(self, ledger_id: int | LedgerId) -> None:
        """Removes a ledger's metadata; bookies drop its entries later. One that does not exist counts as removed."""
        self._check_open()
        with self.metrics.timed("LEDGER_DELETE"), suppress(NoSuchLedgerExistsOnMetadataServerException):
            await self.ledger_manager.remove(_ledger_id(ledger_id))

    async def read_record(self, ledger_id: int | LedgerId) -> LedgerRecord:
        """A ledger's metadata and version."""
        self._check_open()
        return await self.ledger_manager.read(_ledger_id(ledger_id))

    async def watch_ledger(self, ledger_id: int | LedgerId) -> AsyncGenerator[LedgerRecord, None]:
        """A ledger's record now, then after each change; ends when the ledger is deleted.

        A reader of these that is slow gets the newest record only. Outages of gateways are bridged: nothing is missed.
        Raises ClientClosedException when the client is closed meanwhile.
        """
        self._check_open()
        watched, changes = _ledger_id(ledger_id), LedgerChanges()
        self._context.open_ends[changes] = None
        await self.ledger_manager.register_listener(watched, changes.on_metadata)
        try:
            while (record := await changes.next()) is not None:
                yield record
        finally:
            await self.ledger_manager.unregister_listener(watched, changes.on_metadata)

    async def bookies(self, bookie_set: BookieSet = BookieSet.ALL) -> Sequence[RegisteredBookie]:
        """The bookies of the cluster, ordered by id."""
        self._check_open()
        return await self._service_discovery.bookies(bookie_set)

    def tell_bookies(self, bookies: Iterable[BookieServiceInfo]) -> None:
        """Where bookies are, from one who has asked already: reading from them needs no service discovery then.

        It is asked all the same once a bookie is not, or no longer, where this says.
        """
        self._context.pool.tell(bookies)

    async def list_ledgers(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> AsyncGenerator[list[LedgerRecord], None]:
        """All ledgers of a scope with their metadata, in ascending order of id, in pages (0: the gateway's size).

        Ends when everything was listed, or raises.
        """
        self._check_open()
        manager = self.ledger_manager
        if isinstance(manager, RpcLedgerManager):
            async for page in manager.ledger_records(scope_id, start_after, end_before, page_size):
                yield page
            return
        async for ids in manager.ledger_ranges(scope_id, start_after, end_before):
            yield _existing(await manager.read_many([LedgerId(scope_id, ledger_id) for ledger_id in ids]))

    def _secrets(self, record: LedgerRecord, password: bytes) -> LedgerSecrets:
        _unscoped(record.ledger_id)
        stored = record.metadata.password
        if stored is not None and stored != password:
            raise UnauthorizedAccessException(f"the password of ledger {record.ledger_id} is not the one given")
        return LedgerSecrets.of(record.metadata, password)

    def _check_sync(self, deferred_sync: bool) -> None:
        if deferred_sync and self._config.wire_protocol != V3:
            raise IllegalOpException("deferred sync is not part of protocol v2; create the ledger by a client of v3")

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedException("the client is closed")


def _health(config: ClientConfig, metrics: ClientMetrics) -> BookieHealth:
    return BookieHealth(
        asyncio.get_running_loop().time,
        enabled=config.bookie_health_check,
        threshold=config.bookie_error_threshold,
        interval=config.bookie_error_interval,
        quarantine_time=config.bookie_quarantine_time,
        on_quarantine=lambda bookie_id: metrics.count("bookie_watcher_BOOKIE_QUARANTINE"),
    )


def _pending_adds(context: ClientContext) -> int:
    """Appends not yet acknowledged."""
    return sum(end.pending_adds for end in list(context.open_ends) if isinstance(end, EnsembleChanger))


async def _check_never_written(context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> None:
    """Raises IllegalOpException unless the ledger is OPEN and none of enough bookies holds an entry of it."""
    what = f"ledger {record.ledger_id} can't be written"
    rule = "A ledger is written once, by one writer; create another one"
    metadata = record.metadata
    if metadata.state is not LedgerState.OPEN:
        raise IllegalOpException(f"{what}: it is {metadata.state.name}. {rule}")
    if _WRITER_KEY in metadata.custom_metadata:
        raise IllegalOpException(f"{what}: another writer has taken it up. {rule}")
    read = await read_last_confirmed(context, record, secrets)
    if read.bookies_with_entries or read.result >= 0 or len(metadata.fragments) > 1:
        raise IllegalOpException(f"{what}: it has entries already. {rule}")


def _ledger_id(ledger_id: int | LedgerId) -> LedgerId:
    if isinstance(ledger_id, LedgerId):
        return ledger_id
    try:
        return LedgerId.unscoped(ledger_id)
    except ValueError as error:
        raise IncorrectParameterException(str(error)) from error


def _existing(outcomes: Sequence[LedgerRecord | BKException]) -> list[LedgerRecord]:
    """The records; ledgers that were deleted since they were listed are none. Raises other errors."""
    records = []
    for outcome in outcomes:
        if isinstance(outcome, LedgerRecord):
            records.append(outcome)
        elif not isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
            raise outcome
    return records


def _unscoped(ledger_id: LedgerId) -> LedgerId:
    """Requests to bookies carry 64-bit ids: entries of a scoped ledger would become those of another one (D1)."""
    if ledger_id.scope_id:
        raise IllegalOpException(
            f"ledger {ledger_id} has a scope; entries of scoped ledgers can't be written or read, their metadata can"
        )
    return ledger_id


def _metadata_uri(gateways: str | None, config: ClientConfig) -> str:
    uri = gateways or config.gateways
    if not uri:
        raise IncorrectParameterException(
            "no metadata gateway is named; pass grpc://host:port or set BOOKGATE_GATEWAYS"
        )
    return uri


def metadata_factory(gateways: str | None, config: ClientConfig) -> LedgerManagerFactory:
    """What reaches the metadata of a configuration; `initialize` it first. Raises IncorrectParameterException."""
    uri = _metadata_uri(gateways, config)
    if is_gateway_uri(uri):
        return RpcLedgerManagerFactory(uri, config.metadata_timeout, tls=config.tls)
    return load_driver(uri)(uri)
