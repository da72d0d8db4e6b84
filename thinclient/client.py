"""The client: creates, opens, lists and deletes ledgers.

Metadata goes through gateways (`grpc://…`, `grpcs://…`); entries go directly to and from the bookies. Given the URI of
a metadata store instead, such as `zk+hierarchical://…`, the same client uses that store directly. This is the way back
to clients with ZooKeeper, and requires the store's extra to be installed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self
from uuid import UUID

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.connection_state import ConnectionListener
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IllegalOpException,
    IncorrectParameterException,
    MetadataFormatException,
    MetaStoreException,
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
from bookgate.ledger.payload_codec import CODEC_KEY, Compression, codec_for
from bookgate.ledger.terms import FragmentCaps, check_limit
from bookgate.runtime.shared_tasks import shared_task
from bookgate.runtime.unclosed import made_at, report_unclosed, warn_unclosed
from bookgate.thinclient.bookies.auth import ClientAuthProvider
from bookgate.thinclient.bookies.connection import Connector, tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.unbounded.changes import trimming
from bookgate.thinclient.gateways.tokens import Provider
from bookgate.thinclient.gateways.uri import is_gateway_uri
from bookgate.thinclient.handles import creation, opening
from bookgate.thinclient.handles.advanced_write_handle import AdvancedWriteHandle
from bookgate.thinclient.handles.context import (
    CatchUp,
    ClientContext,
    LedgerSecrets,
    check_terms,
    ledger_id_of,
    never_behind,
    secrets_of,
    unlocked,
)
from bookgate.thinclient.handles.ensemble_changer import EnsembleChanger
from bookgate.thinclient.handles.guaranteed_write_handle import writer_of
from bookgate.thinclient.handles.ledger_options import LedgerOptions, takes_ledger_options
from bookgate.thinclient.handles.ledger_view import LedgerView, known_last_entry
from bookgate.thinclient.handles.metadata_cas import change_custom_metadata, update
from bookgate.thinclient.handles.metadata_changes import LedgerChanges
from bookgate.thinclient.handles.opening_call import opens
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.record_writer import RecordWriter
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from bookgate.thinclient.metadata_source import metadata_factory, metadata_uri
from bookgate.thinclient.metrics import ClientMetrics
from bookgate.thinclient.placement.chooser import Placement, create_policy
from bookgate.thinclient.placement.quarantine import BookieHealth


class BookKeeper:
    """A client of one cluster. It belongs to the event loop it was created on; close it, or use it as a context
    manager.
    """

    def __init__(
        self,
        ledger_manager: LedgerManager,
        service_discovery: ServiceDiscovery,
        config: ClientConfig | None = None,
        rng: random.Random | None = None,
        connector: Connector = tcp_connector,
        auth_provider: ClientAuthProvider | None = None,
        catch_up: CatchUp = never_behind,
    ) -> None:
        """Builds a client from given parts; applications normally use `connect`."""
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
        self._context = ClientContext(ledger_manager, pool, self._config, placement, metrics, health, catch_up)
        metrics.gauges["NUM_PENDING_ADD"] = partial(_pending_adds, self._context)
        self._factory: LedgerManagerFactory | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._uri = ""
        self.made_at = made_at()
        """Which line of the application made it, for the warning that it was not closed."""

    @classmethod
    @opens
    async def connect(
        cls,
        gateways: str | None = None,
        config: ClientConfig | None = None,
        auth_provider: ClientAuthProvider | None = None,
        token_provider: Provider | None = None,
    ) -> Self:
        """Connects to a cluster through its gateways, or directly to its metadata store.

        Args:
            gateways: `grpc://host:port,host:port`, or the URI of a metadata store; None uses the configuration's
                `gateways`.
            config: The client configuration; None uses the defaults.
            auth_provider: Authenticates to bookies, instead of the provider that the configuration names.
            token_provider: Returns the token that shows gateways who this is, instead of the configuration's. It is
                called for each call to a gateway, on the event loop, and must not block.

        Returns:
            The client. Close it after use.

        Raises:
            MetaStoreException: No gateway responds, or the store is unreachable.
            IncorrectParameterException: The address is invalid, or the store's extra is not installed.
        """
        config = config or ClientConfig()
        factory = metadata_factory(gateways, config, token_provider)
        try:
            await factory.initialize()
            client = cls.of_factory(factory, config, auth_provider)
            client._uri = metadata_uri(gateways, config)
            return client
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
        """Creates a client without contacting a gateway yet, for readers that already have ledger records.

        Args:
            gateways: As for `connect`, but gateways only.
            config: As for `connect`.
            auth_provider: As for `connect`.

        Returns:
            The client. Close it after use.

        Raises:
            IncorrectParameterException: The URI is that of a metadata store, which needs `connect`.
        """
        config = config or ClientConfig()
        uri = metadata_uri(gateways, config)
        if not is_gateway_uri(uri):
            raise IncorrectParameterException(f"{uri!r} names no gateways: connect to a metadata store with `connect`")
        return cls.of_factory(metadata_factory(gateways, config, fails_fast=False), config, auth_provider)

    @classmethod
    def of_factory(
        cls, factory: LedgerManagerFactory, config: ClientConfig, auth_provider: ClientAuthProvider | None = None
    ) -> Self:
        """A client that owns `factory` and closes it."""
        client = cls(
            factory.ledger_manager,
            factory.service_discovery,
            config,
            auth_provider=auth_provider,
            catch_up=partial(factory.catch_up, None),
        )
        client._factory = factory
        client.metrics.gauges.update(factory.gauges)
        return client

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<BookKeeper {self._uri or 'of given parts'}, {state}>"

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warn_unclosed(repr(self), self.made_at, self)
            report_unclosed(repr(self), self.made_at, self._loop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections; outstanding calls fail with ClientClosedException. Open ledgers are not closed.

        Repeated calls share the outcome of the first, and a caller that is cancelled does not stop it.
        """
        if self._closing is None:
            self._closed = True
            for end in list(self._context.active_handles):
                end.client_closed(ClientClosedException("the client was closed while the ledger was open"))
            self._closing = shared_task(self._close_connections())
        await asyncio.shield(self._closing)

    async def _close_connections(self) -> None:
        await self._context.placement.close()
        await self._context.pool.close_and_wait()
        if self._factory is not None:
            await self._factory.close()

    @property
    def config(self) -> ClientConfig:
        """The configuration of this client."""
        return self._config

    @property
    def metrics(self) -> ClientMetrics:
        """The client's metrics: `snapshot()`, or `collector()` for a prometheus-client registry."""
        return self._context.metrics

    @property
    def ledger_manager(self) -> LedgerManager:
        """Direct access to ledger metadata, below the level of ledger handles."""
        return self._context.ledger_manager

    @property
    def service_discovery(self) -> ServiceDiscovery:
        """Direct access to the bookie registrations of the cluster."""
        return self._service_discovery

    @opens
    @takes_ledger_options
    async def create_ledger(self, *, options: LedgerOptions) -> WriteHandle:
        """Creates a ledger on bookies that the placement policy chooses.

        Args:
            options: Properties of the ledger; the default is `LedgerOptions()`. Its fields are also accepted as
                arguments, in their order or by name, and take precedence:
                `create_ledger(3, 3, 2, password=b"secret")`, `create_ledger(options=options, ledger_id=7)`.

        Raises:
            IncorrectParameterException: The options contradict each other.
            NotEnoughBookiesException: Fewer writable bookies are available than the ensemble needs.
            LedgerExistException: The given id is in use.
            UnknownOutcomeException: The response was lost, and retries could not establish whether the ledger exists.
            IllegalOpException: Deferred sync or an id with a scope, in a client of protocol v2.
        """
        record, secrets = await self._create(options)
        return writer_of(
            self._context,
            record,
            secrets,
            deferred_sync=options.deferred_sync,
            id_given=options.ledger_id is not None,
        )

    @opens
    @takes_ledger_options
    async def create_advanced_ledger(self, *, options: LedgerOptions) -> AdvancedWriteHandle:
        """Creates a ledger whose entry ids the application chooses, in any order; see `AdvancedWriteHandle`.

        Takes the arguments of `create_ledger`, except a guaranteed write quorum, and raises the same exceptions.
        """
        if options.is_guaranteed:
            raise IncorrectParameterException("a ledger with entry ids of your own has no guaranteed write quorum")
        record, secrets = await self._create(options)
        return AdvancedWriteHandle(
            self._context,
            record,
            secrets,
            deferred_sync=options.deferred_sync,
            id_given=options.ledger_id is not None,
        )

    @opens
    async def create_record_ledger(
        self,
        options: LedgerOptions | None = None,
        *,
        compression: Compression = Compression.NONE,
        linger_seconds: float = 0.005,
        batch_bytes: int = 64 * 1024,
    ) -> RecordWriter:
        """Creates a ledger of small records, which are gathered into entries and compressed.

        Its custom metadata name the codec (`bookgate.codec`), by which `ReadHandle.read_records` and other readers that
        know it take entries apart.

        Args:
            options: Properties of the ledger; the default is `LedgerOptions()`.
            compression: Of each batch: none, LZ4 (quick) or ZSTD (small). Needs the extra `bookgate[compression]`.
            linger_seconds: How long the first record of a batch waits for others, in seconds.
            batch_bytes: Bytes of records that fill a batch.

        Raises:
            IllegalOpException: The library of the compression is not installed.
            IncorrectParameterException: The options contradict each other.
            BKException: As `create_ledger`.
        """
        given = options or LedgerOptions()
        custom = {**(given.custom_metadata or {}), CODEC_KEY: codec_for(compression).value.encode()}
        handle = await self.create_ledger(options=given, custom_metadata=custom)
        return RecordWriter(handle, linger_seconds=linger_seconds, batch_bytes=batch_bytes)

    @opens
    async def create_unbounded_ledger(
        self,
        options: LedgerOptions | None = None,
        *,
        max_fragment_bytes: int | None = None,
        max_fragment_entries: int | None = None,
        max_fragment_seconds: float | None = None,
    ) -> UnboundedWriteHandle:
        """Creates an unbounded ledger: a log without an end, which any client may take over (`take_over`).

        Args:
            options: Properties of the ledger; the default is `LedgerOptions()`.
            max_fragment_bytes: Payload bytes after which a fragment ends, and the next begins on other bookies; None
                for no limit. All writers of the ledger keep it.
            max_fragment_entries: The same in entries.
            max_fragment_seconds: The same in seconds, for this writer only.

        Returns:
            The ledger's writer at term 0.

        Raises:
            NotEnoughBookiesException: Fewer writable bookies that honour terms are available than the ensemble needs.
            IncorrectParameterException: The options contradict each other, or ask for deferred sync.
            IllegalOpException: The client speaks protocol v2, which carries no terms.
            BKException: As `create_ledger`.
        """
        options = options or LedgerOptions()
        if options.deferred_sync:
            raise IncorrectParameterException("an unbounded ledger takes no adds with deferred sync")
        check_limit("max_fragment_seconds", max_fragment_seconds)
        check_terms(self._config)
        caps = FragmentCaps(max_fragment_bytes, max_fragment_entries)
        record, secrets = await self._create(options, caps)
        return UnboundedWriteHandle(self._context, record, secrets, max_fragment_seconds=max_fragment_seconds)

    @opens
    async def take_over(
        self,
        ledger_id: int | LedgerId | UUID,
        password: bytes = b"",
        *,
        scope_id: int = 0,
        max_fragment_seconds: float | None = None,
    ) -> UnboundedWriteHandle:
        """Takes an unbounded ledger over from whoever writes to it, whose appends fail from then on.

        What the last writer left is found and put on all its bookies. An append of it that was acknowledged is in the
        ledger, one that was not may be.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            password: The password given when the ledger was created.
            scope_id: The scope of a ledger given by a number.
            max_fragment_seconds: Seconds after which this writer begins a new fragment; None for no limit.

        Returns:
            The ledger's writer at the next term.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            IncorrectParameterException: The ledger is not unbounded, or the limit is not above 0.
            UnauthorizedAccessException: The password is wrong.
            LedgerClosedException: The ledger is closed, for good.
            TermSupersededException: Another client took it over at the same time, and was faster.
            LedgerRecoveryException: Too few bookies responded. Try again later.
            NotEnoughBookiesException: What the last writer left can't be put on as many bookies as there have to be.
            IllegalOpException: The client speaks protocol v2, which carries no terms.
        """
        self._check_open()
        check_limit("max_fragment_seconds", max_fragment_seconds)
        check_terms(self._config)
        return await opening.take_over(
            self._context, ledger_id_of(ledger_id, scope_id), password, self._rng, max_fragment_seconds
        )

    async def trim_ledger(
        self, ledger_id: int | LedgerId | UUID, before_entry_id: int, *, scope_id: int = 0
    ) -> LedgerRecord:
        """Deletes the first entries of an unbounded ledger, as far as complete fragments reach. A writer goes on beside
        it.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            before_entry_id: The first entry to keep.
            scope_id: The scope of a ledger given by a number.

        Returns:
            The ledger as it is stored then; its first fragment begins at the first entry that can be read.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            IncorrectParameterException: The ledger is not unbounded.
        """
        self._check_open()
        found = await self.ledger_manager.read(ledger_id_of(ledger_id, scope_id))
        return await update(self.ledger_manager, found, trimming(before_entry_id), self._config.retries)

    async def _create(
        self, options: LedgerOptions, unbounded: FragmentCaps | None = None
    ) -> tuple[LedgerRecord, LedgerSecrets]:
        self._check_open()
        record = await creation.create_ledger(self._context, options, unbounded)
        record = replace(record, metadata=record.metadata.with_password(options.password))
        return record, LedgerSecrets.of(record.metadata, options.password, self._config)

    @opens
    async def open_ledger(
        self,
        ledger_id: int | LedgerId | UUID,
        password: bytes = b"",
        recovery: bool = False,
        *,
        scope_id: int = 0,
    ) -> ReadHandle:
        """Opens a ledger for reading.

        A closed ledger opens the same way with and without recovery.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            password: The password given when the ledger was created.
            recovery: True takes an unclosed ledger from its writer: it is fenced, its end is found and made durable,
                and it is closed. False leaves its writer alone; the handle reads up to the last entry known to be
                confirmed, and `ReadHandle.read_last_confirmed` looks further.
            scope_id: The scope of a ledger given by a number.

        Returns:
            A handle to read the ledger.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            UnauthorizedAccessException: The password is wrong (detected before any bookie is contacted).
            LedgerRecoveryException: Too few bookies responded. The ledger can be opened again later.
            IllegalOpException: Recovery of an unbounded ledger, which is taken over instead (`take_over`).
        """
        self._check_open()
        with self.metrics.timed("LEDGER_OPEN"):
            return await opening.open_ledger(self._context, ledger_id_of(ledger_id, scope_id), password, recovery)

    def open_record(self, record: LedgerRecord, password: bytes = b"") -> ReadHandle:
        """Opens a ledger whose record is at hand, without reading metadata.

        Only of an unbounded ledger that was being taken over, the metadata are read to learn whether it still is.

        Args:
            record: The ledger's metadata and version. If it was not closed at that time, the handle knows only the
                entries before its last fragment; `ReadHandle.read_last_confirmed` looks further.
            password: The password given when the ledger was created.

        Returns:
            A handle to read the ledger.

        Raises:
            UnauthorizedAccessException: The password is wrong.
        """
        self._check_open()
        record = unlocked(record, password, self._config)
        secrets = secrets_of(record, password, self._config)
        return ReadHandle(LedgerView(self._context, record, secrets, known_last_entry(record), asks_metadata=False))

    async def last_adds_confirmed(
        self, records: Sequence[LedgerRecord], password: bytes = b""
    ) -> list[int | BKException]:
        """Finds out how far each ledger can be read now.

        The metadata of a closed ledger states its end. For the others it asks the bookies, for many ledgers at once and
        without fencing.

        Args:
            records: The ledgers.
            password: The password of all of them.

        Returns:
            The LAC of each ledger (-1 if nothing can be read), or its exception, in the order of `records`.

        Raises:
            UnauthorizedAccessException: The password is wrong.
        """
        self._check_open()
        return await opening.last_adds_confirmed(self._context, records, password)

    @opens
    async def reopen_empty_ledger(
        self, ledger_id: int | LedgerId | UUID, password: bytes = b"", *, scope_id: int = 0
    ) -> WriteHandle:
        """Resumes writing an OPEN ledger without entries, created by a process that is gone.

        A ledger has one writer. Therefore no bookie may hold an entry of it (checked without fencing), and the new
        writer first marks the custom metadata by compare-and-set, so that of several only one succeeds. The caller must
        be certain that the handle that created the ledger no longer writes.

        Args:
            ledger_id: The ledger: a number in scope 0 or in `scope_id`, or a whole id.
            password: The password given when the ledger was created.
            scope_id: The scope of a ledger given by a number.

        Returns:
            The handle of the ledger's only writer.

        Raises:
            IllegalOpException: The ledger is not OPEN, holds entries, or was resumed by another client.
        """
        self._check_open()
        return await opening.reopen_empty_ledger(self._context, ledger_id_of(ledger_id, scope_id), password, self._rng)

    async def delete_ledger(
        self, ledger_id: int | LedgerId | UUID, expected_version: int | None = None, *, scope_id: int = 0
    ) -> bool:
        """Removes a ledger's metadata; bookies delete its entries later.

        Args:
            ledger_id: The ledger.
            expected_version: Removes it only in this version (`LedgerRecord.version`), so that nothing that was changed
                meanwhile is lost; None removes any.
            scope_id: The scope of a ledger given by a number.

        Returns:
            Whether it was there. Removing a ledger that does not exist succeeds; one whose answer was lost counts as
            removed, though another client may have been faster.

        Raises:
            MetadataVersionException: It has another version than the expected one.
        """
        self._check_open()
        with self.metrics.timed("LEDGER_DELETE"):
            try:
                await self.ledger_manager.remove(ledger_id_of(ledger_id, scope_id), expected_version)
            except NoSuchLedgerExistsOnMetadataServerException:
                return False
        return True

    async def update_custom_metadata(
        self,
        ledger_id: int | LedgerId | UUID,
        changes: Mapping[str, bytes | None],
        expected_version: int | None = None,
        *,
        scope_id: int = 0,
    ) -> LedgerRecord:
        """Sets and removes names of a ledger's custom metadata, in whatever state it is; the others stay.

        It is a compare-and-set, repeated while others change the ledger. A writer goes on beside it.

        Args:
            ledger_id: The ledger.
            changes: New values by name; None removes a name.
            expected_version: Changes it only in this version; None changes any.
            scope_id: The scope of a ledger given by a number.

        Returns:
            The ledger as it is stored then.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
            MetadataVersionException: It has another version than the expected one.
            IncorrectParameterException: A value is no bytes.
        """
        self._check_open()
        changed = ledger_id_of(ledger_id, scope_id)
        return await change_custom_metadata(
            self.ledger_manager, changed, changes, expected_version, self._config.retries
        )

    def add_connection_listener(self, listener: ConnectionListener) -> Callable[[], None]:
        """Has a listener told when the client reaches its gateways, loses all of them, and is closed.

        Args:
            listener: Called on the event loop with a `ConnectionState`, at once with the present one. What it raises is
                logged.

        Returns:
            A function that removes the listener.

        Raises:
            IllegalOpException: The client uses a metadata store directly.
        """
        if self._factory is None:
            raise IllegalOpException("a client of given parts does not know the state of its connection")
        return self._factory.add_connection_listener(listener)

    async def catch_up(self) -> None:
        """Ensures that nothing that this client reads of the metadata from now on is older than this call.

        What one client reads never goes back in time. A new one does not know what others have seen, and a gateway may
        be behind: call it before conclusions are drawn from what another client did.

        Raises:
            MetaStoreException: No gateway responds, the store is unreachable, or the gateway tells no revision.
        """
        self._check_open()
        if self._factory is not None:
            await self._factory.catch_up(None)

    async def read_record(self, ledger_id: int | LedgerId | UUID, *, scope_id: int = 0) -> LedgerRecord:
        """Reads a ledger's metadata and version. `scope_id` is the scope of a ledger given by a number.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
        """
        self._check_open()
        return await self.ledger_manager.read(ledger_id_of(ledger_id, scope_id))

    async def watch_ledger(
        self, ledger_id: int | LedgerId | UUID, *, scope_id: int = 0
    ) -> AsyncGenerator[LedgerRecord, None]:
        """Yields a ledger's current record, then one after each change, until the ledger is deleted.

        A slow consumer receives only the latest record. After an outage of a gateway the watch resumes without missing
        the latest state. `scope_id` is the scope of a ledger given by a number.

        Raises:
            ClientClosedException: The client was closed meanwhile.
            UnauthorizedAccessException: The gateway lets this client not read the ledger.
        """
        self._check_open()
        watched, changes = ledger_id_of(ledger_id, scope_id), LedgerChanges()
        self._context.active_handles[changes] = None
        with suppress(NoSuchLedgerExistsOnMetadataServerException, MetadataFormatException, MetaStoreException):
            # Listeners are not told of a denial. What is suppressed a watch outlives, or tells as it is by then.
            await self.ledger_manager.read(watched)
        self._check_open()
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
        """Seeds the address cache with known bookie addresses.

        Service discovery is consulted only if a bookie can't be reached at its seeded address, or has none.

        Args:
            bookies: Registrations, such as `bookies` returned elsewhere.
        """
        self._context.pool.seed_addresses(bookies)

    async def list_ledgers(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> AsyncGenerator[Sequence[LedgerRecord], None]:
        """Lists all ledgers of a scope with their metadata, in ascending order of id.

        Args:
            scope_id: The scope, bits 64–127 of the ledger ids; BookKeeper's own ledgers are in scope 0.
            start_after: Lists only ids above this one.
            end_before: Lists only ids below this one.
            page_size: Ledgers per page; 0 uses the gateway's page size.

        Yields:
            Pages of ledgers. The iteration ends normally only when all ledgers were listed. A page from a gateway is a
            `LedgerColumns` where its ledgers fit into one, which makes a record when it is accessed.

        Raises:
            BKException: The listing could not be completed.
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
        interval=config.bookie_error_interval_seconds,
        quarantine_time=config.bookie_quarantine_time_seconds,
        on_quarantine=lambda bookie_id: metrics.count("bookie_watcher_BOOKIE_QUARANTINE"),
    )


def _pending_adds(context: ClientContext) -> int:
    """Number of appends that are not acknowledged yet."""
    writers = (EnsembleChanger, UnboundedWriteHandle)
    return sum(end.pending_adds for end in list(context.active_handles) if isinstance(end, writers))
