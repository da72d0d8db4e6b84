"""The client: creates, opens, lists and deletes ledgers.

Metadata goes through gateways (`grpc://…`, `grpcs://…`), entries go straight to and from the bookies. With the URI of a
metadata store in their place, `zk+hierarchical://…` for one, the same client speaks to that store itself: the way back
to clients with ZooKeeper, for which its extra has to be installed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IncorrectParameterException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import (
    BookieSet,
    LedgerManager,
    LedgerManagerFactory,
    LedgerRecord,
    RegisteredBookie,
    ServiceDiscovery,
)
from bookgate.thinclient.bookies.auth import ClientAuthProvider
from bookgate.thinclient.bookies.connection import Connector, tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.gateways.uri import is_gateway_uri
from bookgate.thinclient.handles import creation, opening
from bookgate.thinclient.handles.advanced_write_handle import AdvancedWriteHandle
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, ledger_id_of, secrets_of
from bookgate.thinclient.handles.ensemble_changer import EnsembleChanger
from bookgate.thinclient.handles.ledger_options import LedgerOptions, takes_ledger_options
from bookgate.thinclient.handles.ledger_view import LedgerView, known_last_entry
from bookgate.thinclient.handles.metadata_changes import LedgerChanges
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from bookgate.thinclient.metadata_source import metadata_factory, metadata_uri
from bookgate.thinclient.metrics import ClientMetrics
from bookgate.thinclient.placement.chooser import Placement, create_policy
from bookgate.thinclient.placement.quarantine import BookieHealth


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
        uri = metadata_uri(gateways, config)
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
        client.metrics.gauges.update(factory.gauges)
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
        for end in list(self._context.active_handles):
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

    @takes_ledger_options
    async def create_ledger(self, *, options: LedgerOptions) -> WriteHandle:
        """Creates a ledger on bookies that the placement policy chooses.

        Args:
            options: What the ledger is to be like, `LedgerOptions()` unless given. Its fields are arguments as well, in
                their order or by name, and win over it:
                `create_ledger(3, 3, 2, password=b"secret")`, `create_ledger(options=options, ledger_id=7)`.

        Raises:
            IncorrectParameterException: The options don't fit each other.
            NotEnoughBookiesException: Fewer bookies take entries than the ensemble has.
            LedgerExistException: The given id is in use.
            UnknownOutcomeException: The answer was lost, and no asking again has told what came of it.
            IllegalOpException: Deferred sync in a client of protocol v2, or an id with a scope.
        """
        record, secrets = await self._create(options)
        return WriteHandle(
            self._context,
            record,
            secrets,
            deferred_sync=options.deferred_sync,
            id_given=options.ledger_id is not None,
        )

    @takes_ledger_options
    async def create_advanced_ledger(self, *, options: LedgerOptions) -> AdvancedWriteHandle:
        """The same for a ledger whose entry ids the application chooses, in any order; see `AdvancedWriteHandle`."""
        record, secrets = await self._create(options)
        return AdvancedWriteHandle(
            self._context,
            record,
            secrets,
            deferred_sync=options.deferred_sync,
            id_given=options.ledger_id is not None,
        )

    async def _create(self, options: LedgerOptions) -> tuple[LedgerRecord, LedgerSecrets]:
        self._check_open()
        record = await creation.create_ledger(self._context, options)
        return record, LedgerSecrets.of(record.metadata, options.password, self._config)

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
            return await opening.open_ledger(self._context, ledger_id_of(ledger_id), password, recovery)

    def open_record(self, record: LedgerRecord, password: bytes = b"") -> ReadHandle:
        """A reader of a ledger whose record is at hand, without asking for metadata.

        A ledger that was not closed when the record was read is known up to its last fragment's first entry only; use
        `ReadHandle.read_last_confirmed`. Raises UnauthorizedAccessException.
        """
        self._check_open()
        secrets = secrets_of(record, password, self._config)
        return ReadHandle(LedgerView(self._context, record, secrets, known_last_entry(record), asks_metadata=False))

    async def last_adds_confirmed(
        self, records: Sequence[LedgerRecord], password: bytes = b""
    ) -> list[int | BKException]:
        """How far each ledger may be read now (-1: not at all), in the records' order; a failure as its exception.

        Closed ledgers end where their metadata say; of the others the bookies are asked, many ledgers at once and
        without fencing. Raises UnauthorizedAccessException.
        """
        self._check_open()
        return await opening.last_adds_confirmed(self._context, records, password)

    async def reopen_empty_ledger(self, ledger_id: int | LedgerId, password: bytes = b"") -> WriteHandle:
        """Takes up writing an OPEN ledger that holds no entry: one created by a process that is gone.

        A ledger has one writer. So no bookie may hold an entry (asked without fencing), and whoever takes the ledger up
        says so in its custom metadata first, by compare-and-set: of several, one gets it. That the handle which created
        it no longer writes is for the caller to know. Raises IllegalOpException for a ledger that can't be taken up.
        """
        self._check_open()
        return await opening.reopen_empty_ledger(self._context, ledger_id_of(ledger_id), password, self._rng)

    async def delete_ledger(self, ledger_id: int | LedgerId) -> None:
        """Removes a ledger's metadata; bookies drop its entries later. One that does not exist counts as removed."""
        self._check_open()
        with self.metrics.timed("LEDGER_DELETE"), suppress(NoSuchLedgerExistsOnMetadataServerException):
            await self.ledger_manager.remove(ledger_id_of(ledger_id))

    async def read_record(self, ledger_id: int | LedgerId) -> LedgerRecord:
        """A ledger's metadata and version."""
        self._check_open()
        return await self.ledger_manager.read(ledger_id_of(ledger_id))

    async def watch_ledger(self, ledger_id: int | LedgerId) -> AsyncGenerator[LedgerRecord, None]:
        """A ledger's record now, then after each change; ends when the ledger is deleted.

        A reader of these that is slow gets the newest record only. Outages of gateways are bridged: nothing is missed.
        Raises ClientClosedException when the client is closed meanwhile.
        """
        self._check_open()
        watched, changes = ledger_id_of(ledger_id), LedgerChanges()
        self._context.active_handles[changes] = None
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

    def seed_addresses(self, bookies: Iterable[BookieServiceInfo]) -> None:
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
        async for page in self.ledger_manager.ledger_records(scope_id, start_after, end_before, page_size):
            yield page

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
    return sum(end.pending_adds for end in list(context.active_handles) if isinstance(end, EnsembleChanger))
