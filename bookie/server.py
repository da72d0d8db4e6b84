"""A bookie as a whole: storage, the entry protocol, the hosted metadata gateway, HTTP admin and registration.

With a `grpc://` metadata URI the bookie uses the gateways named there and hosts none.

Start: bind the ports (so that a port in use is noticed before anything is changed), connect to the metadata store, lock
the directories, check the cookie, measure the disks, replay the journal, serve, register. Stop: the reverse, the
registration first, so that clients turn elsewhere before responses cease. A failed journal or checkpoint ends the
bookie at once: nothing more is acknowledged, and the process exits with an error. A write that finds no space, also at
the start, makes the bookie read-only until there is space.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.statistics import GcCollector
from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.disks.monitor import DiskMonitor, Usage, measure
from bookgate.bookie.environment import SYSTEM_ENVIRONMENT, Environment, HostedGateway
from bookgate.bookie.gateway_process import GatewayProcess
from bookgate.bookie.http.app import HostedBookie, create_bookie_app
from bookgate.bookie.http.client_routes import OwnClient
from bookgate.bookie.http.console_peers import Peers
from bookgate.bookie.http.state_routes import StateView
from bookgate.bookie.limbo.check import LimboCheck, all_ledgers
from bookgate.bookie.limbo.own_fence import fence
from bookgate.bookie.membership.registration import bookie_id_of, check_cookie, service_info
from bookgate.bookie.metrics.collector import BookieCollector, Sources
from bookgate.bookie.mode.mode import BookieMode
from bookgate.bookie.mode.state_manager import StateManager
from bookgate.bookie.mode.status_files import mark_clean, mark_dirty
from bookgate.bookie.protocol.connection import AcceptedConnection
from bookgate.bookie.protocol.connections import Connections
from bookgate.bookie.protocol.entry_access import EntryAccess
from bookgate.bookie.protocol.guarded_connection import GuardedConnection
from bookgate.bookie.protocol.ledger_owners import LedgerOwners
from bookgate.bookie.protocol.long_polls import LongPolls
from bookgate.bookie.protocol.loop_bridge import LoopBridge
from bookgate.bookie.protocol.read_scheduler import EntryReads
from bookgate.bookie.protocol.request_processor import RequestProcessor
from bookgate.bookie.replication.auto_recovery import AutoRecovery
from bookgate.bookie.replication.statistics import AutoRecoveryCollector
from bookgate.bookie.statistics import BookieStatistics
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.http.server import AdminServer
from bookgate.gateway.metrics import GatewayNumbers
from bookgate.ledger.addresses import address_of
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.ledger.replication_control import is_default
from bookgate.runtime.background import keep_running
from bookgate.runtime.listening import backlog_for
from bookgate.runtime.logs import add_to_every_line, log_event
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.version import own_version

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class BookieFailedException(BKException):
    """The bookie stopped of its own accord: its journal, a checkpoint or its registration failed."""


class BookieServer:
    """One bookie. `start`, then `run_until_stopped`, then `stop` (also after a start that failed)."""

    def __init__(
        self,
        config: BookieConfig,
        usage: Usage | None = None,
        environment: Environment = SYSTEM_ENVIRONMENT,
        *,
        accept_loss: bool = False,
    ) -> None:
        """`usage` measures a directory's disk, by default through `environment`.

        With `accept_loss` it starts although it lost data: what it lacks of the ledgers there are is unknown to it.
        """
        self._accept_loss = accept_loss
        self._config = config
        self._doors = environment
        self._usage = usage or partial(measure, files=environment.files)
        self.statistics = BookieStatistics()
        """What requests are counted in; read only."""
        self._metrics = CollectorRegistry()
        ProcessCollector(registry=self._metrics)
        self._gateway_metrics: GatewayNumbers | None = None
        self._gateway_process: GatewayProcess | None = None
        self.connections = Connections(self.statistics, config.connection_limits())
        """The entry protocol's, the oldest first; read only."""
        self._stack = contextlib.AsyncExitStack()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._dirty = False
        self._connected: Callable[[], bool] = lambda: False
        self._mode = BookieMode(force_read_only=config.force_read_only, read_only_enabled=config.read_only_mode_enabled)
        self._addresses: dict[str, str | None] = {}
        self._control: AccessControl | None = None
        self._entry_access: EntryAccess | None = None
        self.auto_recovery: AutoRecovery | None = None
        """Where this bookie takes part in it."""

    @property
    def addresses(self) -> dict[str, str | None]:
        """`bookie_id`, `metadata_uri`, and `host:port` of `bookie`, `gateway` and `http`; complete after `start`.

        `gateway` is None for a bookie that is itself a client of gateways, `http` where it is not served.
        """
        return self._addresses

    def request_stop(self) -> None:
        """Ends `run_until_stopped`."""
        self._stopping.set()

    async def run_until_stopped(self) -> None:
        """Returns after `request_stop`. Raises BookieFailedException if the bookie can't continue."""
        await self._stopping.wait()
        if self._failure is not None:
            raise BookieFailedException(
                f"the bookie had to stop: {self._failure}{_advice(self._failure)}"
            ) from self._failure

    async def start(self) -> None:
        """Serves when it returns. Raises BKException or OSError with the problem and its remedy."""
        config = self._config
        config.check_exposure()
        self._control = config.access_control()
        self._security = config.security(self._control)
        # Storage's threads need it before anything is served.
        self._loop = asyncio.get_running_loop()
        entry_listener = self._listen("port", config.port)
        http_listener = self._listen("http_port", config.http_port) if self._doors.http else None
        ports = {"bookie": entry_listener.getsockname()[1]}
        if http_listener is not None:
            ports["http"] = http_listener.getsockname()[1]
        bookie_id = bookie_id_of(config, ports["bookie"])
        add_to_every_line(bookie=bookie_id)

        hosted = config.hosted_gateway()
        factory = self._doors.metadata(config.metadata_uri, hosted)
        self._stack.push_async_callback(factory.close)
        await factory.initialize()
        # Before the gateway serves: through it other bookies register, and this one is not one of them.
        factory.registration_manager.reserve(bookie_id)

        self._connected = lambda: factory.connected
        storage = await self._open_storage(bookie_id, factory)
        if gateway := self._hosted_gateway(factory, hosted, bookie_id):
            ports["gateway"] = await gateway.start()
            self._stack.push_async_callback(gateway.stop, hosted.drain_seconds)
            self._metrics.register(gateway.metrics)
            self._gateway_metrics = gateway.metrics

        await self._serve_entries(storage, entry_listener, factory)
        self._collect_garbage(storage, factory)
        self._verify_limbo(storage, factory)
        if http_listener is not None:
            await self._serve_http(storage, http_listener, factory, bookie_id)
        self._stack.push_async_callback(self._state.close)
        self.service_info = service_info(config, bookie_id, ports)
        await self._state.register(self.service_info)
        self._watch_disks()
        if config.auto_recovery or (config.auto_recovery is None and await _recovers_by_default(factory)):
            await self._recover_automatically(factory, bookie_id)

        host = config.advertised_host()
        self._addresses = {
            "bookie_id": bookie_id,
            "metadata_uri": config.metadata_uri,
            "gateway": None,
            "http": None,
            **{kind: address_of(host, port) for kind, port in ports.items()},
        }
        self._mode.start()
        addresses = self._addresses
        log_event(
            _log,
            "bookie",
            state="serving",
            address=addresses["bookie"],
            gateway=addresses["gateway"],
            http=addresses["http"],
            metadata_uri=addresses["metadata_uri"],
        )

    async def stop(self) -> None:
        """Stops everything that was started, with a last checkpoint."""
        self._mode.shut_down()
        await self._stack.aclose()

    def _listen(self, setting: str, port: int) -> socket.socket:
        """Binds and listens. Raises OSError naming the port and the setting."""
        host = self._config.host
        try:
            listener = self._doors.listen(host, port)
        except OSError as error:
            raise OSError(error.errno, _bind_problem(error, host, port, setting)) from error
        return self._stack.enter_context(contextlib.closing(listener))

    def _hosted_gateway(
        self, factory: LedgerManagerFactory, hosted: GatewayConfig, bookie_id: str
    ) -> HostedGateway | None:
        """The gateway to be started, if any."""
        environment = self._doors
        if self._config.metadata_behind_gateway:
            return None
        if self._config.gateway_process and environment.gateway_process is not None:
            self._gateway_process = environment.gateway_process(hosted, bookie_id)
            return self._gateway_process
        if environment.gateway is None:
            return None
        return environment.gateway(factory, hosted, None if self._control is None else self._control.rates)

    async def _open_storage(self, bookie_id: str, factory: LedgerManagerFactory) -> LedgerStorage:
        """Locks the directories, checks the cookie, measures the disks and replays the journal."""
        config = self._config
        self._monitor = DiskMonitor(
            config.disk_thresholds(), config.ledgers, config.indexes or config.ledgers, self._usage, config.journals
        )
        self.bridge = LoopBridge(self.connections, self)
        kept = config.storage()
        self.storage = storage = LedgerStorage(
            replace(kept, open_file_limit=min(kept.open_file_limit, config.descriptor_shares().open_logs)),
            self.bridge,
            self._doors.files,
            self._doors.threads,
            self._monitor,
        )
        self._stack.push_async_callback(self._close_storage, storage)
        storage.lock_directories()
        instance_id = await check_cookie(config, bookie_id, factory, self._doors.files)
        self._membership = Membership(bookie_id, instance_id)
        factory.join(self._membership)
        self._state = StateManager(
            self._mode,
            factory.registration_manager,
            config.ledgers,
            persist=config.persist_bookie_status,
            now_ms=lambda: int(self._doors.threads.wall_clock() * 1000),
            on_fatal=self.fail,
            files=self._doors.files,
        )
        await _in_thread(self._state.restore)
        await _in_thread(self._monitor.check_now)
        self._follow_disks()
        lost = await all_ledgers(factory, self._membership) if self._accept_loss else None
        await _in_thread(lambda: storage.open(lost))
        if await _in_thread(lambda: mark_dirty(self._doors.files, config.ledgers)):
            log_event(
                _log, "journal_replayed", logging.WARNING, reason="the bookie was not stopped cleanly the last time"
            )
        self._dirty = True
        return storage

    async def _close_storage(self, storage: LedgerStorage) -> None:
        await _in_thread(storage.close)
        if self._dirty and self._failure is None and not storage.needs_journal:
            await _in_thread(lambda: mark_clean(self._doors.files, self._config.ledgers))

    async def _serve_entries(
        self, storage: LedgerStorage, listener: socket.socket, factory: LedgerManagerFactory
    ) -> None:
        threads = self._doors.threads
        reader = threads.executor("reader")
        self._stack.callback(reader.shutdown)
        reads = EntryReads(storage, reader, self.statistics, self._config.max_batch_read_size_bytes)
        self._stack.callback(reads.close)
        self.long_polls = LongPolls(storage, reads, reader, threads.monotonic, threads.wall_clock)
        self.long_polls.latency = self.statistics.long_poll_latency
        self._stack.callback(self.long_polls.close)
        self._processor = RequestProcessor(
            storage,
            reads,
            self.long_polls,
            self.statistics,
            self._mode,
            max_entry_gap=self._config.max_entry_gap,
            clock=threads.monotonic,
        )
        if self._control is not None:
            verify = partial(factory.registration_manager.verify, self._membership)
            self.bridge.owners = LedgerOwners(factory.ledger_manager, verify)
            self._entry_access = EntryAccess(self._control, self.bridge.owners, threads.monotonic)
        self.bridge.serve(self._processor, storage.writer, self.long_polls)
        # A crowd at the door is taken in at once, and looked at only then.
        backlog = backlog_for(self._config.connection_limits().connections)
        server = await self._loop.create_server(self._connect, sock=listener, backlog=backlog)
        self._stack.callback(self.connections.close)
        self._stack.callback(server.close)

    def _connect(self) -> AcceptedConnection:
        shared = self._processor, self.connections, self.statistics, self._config.max_frame_size_bytes, self._security
        access = self._entry_access
        return AcceptedConnection(*shared) if access is None else GuardedConnection(*shared, access)

    async def _serve_http(
        self, storage: LedgerStorage, listener: socket.socket, factory: LedgerManagerFactory, bookie_id: str
    ) -> None:
        monitor = self._monitor
        sources = Sources(
            self.statistics,
            storage.statistics,
            lambda: self.status,
            self._server_sanity,
            lambda: self.long_polls.parked,
            lambda: monitor.usages,
            lambda: len(monitor.writable_directories()),
            self._control,
        )
        self._metrics.register(BookieCollector(sources))
        state = StateView(self._mode, self._state.set_by_operator, storage.usage, lambda: self._state.registered)
        client = OwnClient(factory, bookie_id, self._config.own_client)
        self._stack.push_async_callback(client.close)
        peers = Peers(factory, client.config)
        self._stack.push_async_callback(peers.close)
        view = HostedBookie(
            self._config,
            state,
            self.garbage_collector,
            self._metrics,
            storage,
            factory,
            client,
            peers,
            partial(check_cookie, self._config, bookie_id, factory, self._doors.files),
            self.statistics,
            self._gateway_metrics,
            bookie_id,
            self._control,
            self._gateway_process.listings if self._gateway_process is not None else None,
        )
        app, console = create_bookie_app(view)
        console.start()
        self._stack.push_async_callback(console.close)
        limit = self._config.descriptor_shares().http
        admin = AdminServer(app, listener, own_version(), self._config.http_contexts(), max_connections=limit)
        task = keep_running("HTTP server", admin.run_until_stopped)

        async def stop_admin() -> None:
            admin.should_exit = True
            await task

        self._stack.push_async_callback(stop_admin)

    def _collect_garbage(self, storage: LedgerStorage, factory: LedgerManagerFactory) -> None:
        collector = GarbageCollector(
            self._config.garbage_collection(storage.config.entry_log_max_bytes),
            storage,
            factory,
            self._membership,
            files=self._doors.files,
            threads=self._doors.threads,
        )
        self.garbage_collector = collector
        self._metrics.register(GcCollector(collector.statistics))
        collector.start()
        self._monitor.follow(collector.on_disk_event)
        self._stack.push_async_callback(collector.stop)

    def _verify_limbo(self, storage: LedgerStorage, factory: LedgerManagerFactory) -> None:
        check = LimboCheck(
            storage,
            factory,
            self._membership,
            self._config.gc_wait_seconds,
            self._config.gc_metadata_op_rate_limit_per_second,
            self._doors.threads.monotonic,
            _in_thread,
            partial(fence, storage),
        )
        task = keep_running("check of ledgers in limbo", check.run)
        self._stack.callback(task.cancel)

    async def _recover_automatically(self, factory: LedgerManagerFactory, bookie_id: str) -> None:
        options, client = self._config.auto_recovery_options(), self._config.own_client()
        self.auto_recovery = AutoRecovery(
            factory,
            bookie_id,
            options,
            client,
            membership=self._membership,
            gives_way=self._config.auto_recovery is None,
        )
        self._metrics.register(AutoRecoveryCollector(self.auto_recovery))
        await self.auto_recovery.start()
        self._stack.push_async_callback(self.auto_recovery.stop)

    @property
    def status(self) -> int:
        """1: takes reads and writes, 0: reads only, -1: clients do not find it, or it starts or stops."""
        # Not known is not registered: nobody can tell that clients find the bookie.
        if not (self._mode.running and self._state.registered and self._connected()):
            return -1
        return 0 if self._mode.read_only else 1

    def _server_sanity(self) -> int:
        if not self._mode.running:
            return -1
        return 1 if self._failure is None and self.storage.is_sound else 0

    # --- disks ---

    def _watch_disks(self) -> None:
        task = self._loop.create_task(self._monitor.run(self._config.disk_check_interval_seconds, self._follow_disks))
        task.add_done_callback(self._disks_not_watched)
        self._stack.callback(task.cancel)

    def _disks_not_watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _follow_disks(self) -> None:
        """Adjusts the mode to what was measured."""
        if self._monitor.demands_read_only:
            change = self._mode.disks_full(high_priority=self._monitor.room_for_high_priority)
        else:
            change = self._mode.disks_writable()
        self._state.carry_out(change)
        self.space_restored()
        self.storage.retry()

    # --- what storage makes of the bookie, told by `bridge` ---

    def out_of_space(self) -> None:
        """A write found no space: the bookie is read-only until there is some."""
        self._state.carry_out(self._mode.out_of_space())
        self._monitor.hurry()

    def space_restored(self) -> None:
        """Adjusts the mode, according to whether every write has found its space."""
        out_of_space = self.storage.out_of_space
        self._state.carry_out(self._mode.out_of_space() if out_of_space else self._mode.space_returned())

    def fail(self, error: BaseException) -> None:
        """Ends the bookie: nothing more is sent."""
        log_event(_log, "bookie", logging.CRITICAL, state="failed", error=error)
        self.connections.abort()
        self._failure = self._failure or error
        self._stopping.set()


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def _recovers_by_default(factory: LedgerManagerFactory) -> bool:
    """Whether the cluster runs auto-recovery on bookies whose settings do not mention it."""
    try:
        return await is_default(factory.replication_metadata)
    except BKException as error:
        log_event(_log, "auto_recovery", logging.WARNING, state="off", error=error)
        return False


_BROKEN_DISK = {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO}


def _advice(failure: BaseException) -> str:
    """What to do about a failed disk, most often the reason why the kernel made it read-only."""
    if not isinstance(failure, OSError) or failure.errno not in _BROKEN_DISK:
        return ""
    return (
        ". Nothing was acknowledged since; the kernel's log (dmesg) says what became of the disk. Once it can be "
        "written again, start the bookie; where it can't, replace the disk"
    )


def _bind_problem(error: OSError, host: str, port: int, setting: str) -> str:
    option = f"--{setting.replace('_', '-')}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop what listens there, or choose another with {option}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user: choose one above 1023 with {option}"
    return f"can't listen on {host}, port {port}: {error.strerror}; see --host and {option}"
