"""All bookies that a client uses: their connections and addresses, and the periodic scan for expired requests.

A bookie has one connection in the client's protocol, or several, of which a ledger always uses the same one. On demand
there is one more in v2 for batch reads (`batch_connection`) and, in a client of v2, one in v3.

A connection that has been at rest for `LET_GO_AFTER` seconds is let go: any client can create ledgers on bookies that
do not exist, and nothing is kept of these. It stays the only one for its bookie and channel as long as a handle holds
it, and is kept again once that handle or another one uses it.

A bookie id is looked up in service discovery (its first endpoint of protocol `bookie-rpc`) when a connection is opened.
An id of the form host:port that discovery does not know, or can't be asked about, is used as the address. For bookies
with a seeded address discovery is consulted from the second connection on, since the seeded address of the first may be
outdated.
If the event loop itself was blocked (by the application), frames were not sent and responses not read: that time does
not count, and all deadlines move by it.

Transaction ids come from one counter, so that one encoded frame can go to several bookies. If connections begin in
clear text and switch to TLS, the counter begins at an unpredictable number: a bookie may respond inside TLS to a
request received before it, which an attacker may have injected, and the client recognises a response by its transaction
id.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol, Self
from weakref import WeakValueDictionary

from bookgate.ledger.bookie_info import BOOKIE_RPC, LEDGER_SCOPE, BookieServiceInfo
from bookgate.ledger.errors import BKException, BookieHandleNotAvailableException
from bookgate.ledger.ledger_id import MAX_UNSCOPED
from bookgate.ledger.metadata_store import ServiceDiscovery
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.fast_requests import AddRequestEncoder
from bookgate.ledger.wire.messages import (
    FREE_DISK_SPACE,
    BatchReadRequest,
    GetBookieInfoRequest,
    Operation,
    Request,
    Response,
    Status,
)
from bookgate.ledger.wire.v3 import encode_request
from bookgate.thinclient.bookies.auth import ClientAuthProvider, load_provider
from bookgate.thinclient.bookies.connection import (
    Address,
    BookieConnection,
    ConnectionSettings,
    Connector,
    tcp_connector,
)
from bookgate.thinclient.bookies.connection_v2 import V2AddRequestEncoder, V2Connection
from bookgate.thinclient.bookies.handshake import setup_for
from bookgate.thinclient.config import ClientConfig, TlsMode
from bookgate.thinclient.metrics import ClientMetrics

V2 = "v2"
V3 = "v3"

LET_GO_AFTER = 60.0
"""Seconds without a request and without a transport after which a connection is not kept any more."""

_SCAN_INTERVAL = 0.25
_SECRET_BITS = 62
"""Random bits of the first transaction id; the entry protocol allows 63."""

_Key = tuple[str, str, int, bool]
"""Protocol, bookie id, channel, whether it is for ledgers with a scope."""


class AddEncoder(Protocol):
    """Encodes the fast-path adds of one ledger."""

    def encode(self, txn_id: int, entry_id: int, body: bytes) -> bytes:
        """Encodes the frame of one add."""

    def encode_run(self, txn_ids: Sequence[int], first_entry_id: int, bodies: Sequence[bytes]) -> list[bytes]:
        """Encodes the frames of adds of consecutive entries."""


class BookiePool:
    """Connections by bookie id. Belongs to one event loop."""

    def __init__(
        self,
        discovery: ServiceDiscovery,
        settings: ConnectionSettings,
        connector: Connector = tcp_connector,
        *,
        wire_protocol: str = V3,
        channels: int = 1,
        rng: random.Random | None = None,
        secret_txn_ids: bool = False,
    ) -> None:
        self._discovery = discovery
        self._settings = settings
        self._connector = connector
        self._wire_protocol = wire_protocol
        self._channels = channels
        self._rng = rng or random.SystemRandom()
        self._loop = asyncio.get_running_loop()
        self._connections: dict[_Key, BookieConnection] = {}
        self._let_go: WeakValueDictionary[_Key, BookieConnection] = WeakValueDictionary()
        """Connections at rest that a handle may still hold, and use."""
        self._losses_let_go = 0
        """Losses of the connections that were let go."""
        self._understand_scopes: set[str] = set()
        self._scan_timer: asyncio.TimerHandle | None = None
        self._scan_due = 0.0
        self._closed = False
        self._given: dict[str, Address] = {}
        self._seeded: set[str] = set()
        self.next_txn_id = itertools.count(1 + (self._rng.getrandbits(_SECRET_BITS) if secret_txn_ids else 0)).__next__
        """Unique among all requests of this client."""

    @classmethod
    def of(
        cls,
        config: ClientConfig,
        discovery: ServiceDiscovery,
        connector: Connector,
        rng: random.Random,
        auth_provider: ClientAuthProvider | None = None,
        metrics: ClientMetrics | None = None,
    ) -> Self:
        """The pool that a configuration describes. Raises IncorrectParameterException for an unusable auth_provider."""
        if auth_provider is None and config.auth_provider is not None:
            auth_provider = load_provider(config.auth_provider, *config.token_for_bookies)
        settings = ConnectionSettings(
            config.connect_timeout_seconds,
            config.max_frame_size_bytes,
            config.send_buffer_size_bytes,
            config.backpressure_timeout_seconds,
            setup_for(config.tls_to_bookies, auth_provider),
        )
        if metrics is not None:
            settings = settings._replace(on_counted=metrics.count)
        pool = cls(
            discovery,
            settings,
            connector,
            wire_protocol=config.wire_protocol,
            channels=config.num_channels_per_bookie,
            rng=rng,
            secret_txn_ids=config.tls_to_bookies.mode is TlsMode.START_TLS,
        )
        if metrics is not None:
            kind = "NON_TLS" if config.tls_to_bookies.mode is TlsMode.OFF else "TLS"
            metrics.gauges[f"per_channel_bookie_client_ACTIVE_{kind}_CHANNEL_COUNTER"] = pool.connected_count
        return pool

    def connected_count(self) -> int:
        """Number of open connections."""
        return sum(connection.connected for connection in self._all())

    def losses(self, bookie_id: str) -> int:
        """Grows with each connection to a bookie that is lost. While it is unchanged, the same process responds."""
        # Those of connections that were let go count for every bookie: the number never goes back to an earlier one.
        own = (each.recent_losses for key, each in self._connections.items() if key[1] == bookie_id)
        return self._losses_let_go + sum(own)

    def connection(self, bookie_id: str, ledger_id: int = 0) -> BookieConnection:
        """The connection to a bookie for a ledger's requests; the first request opens it."""
        return self._connection(self._wire_protocol, bookie_id, ledger_id)

    def add_encoder(self, ledger_id: int, master_key: bytes) -> AddEncoder:
        """The encoder of a ledger's adds, in the protocol of `connection`."""
        if self._wire_protocol == V3:
            return AddRequestEncoder(ledger_id, master_key)
        return V2AddRequestEncoder(ledger_id, master_key)

    def batch_connection(self, bookie_id: str, ledger_id: int = 0) -> BookieConnection:
        """The connection for batch reads: one in v2, beside that of `connection` if that one uses v3.

        A request is a frame of `bookgate.ledger.wire.v2.encode_request(BatchReadRequest(txn_id, …))`, sent as operation
        BATCH_READ_ENTRY; its response is a BatchReadResponse. A bookie without batch reads drops the connection: the
        request ends with BookieHandleNotAvailableException, and nothing else is affected.
        """
        return self._connection(V2, bookie_id, ledger_id)

    def _connection(self, protocol: str, bookie_id: str, ledger_id: int) -> BookieConnection:
        # A ledger with a scope must not reach a bookie that may take it for another one, so it has connections of its
        # own.
        key = (protocol, bookie_id, ledger_id % self._channels, ledger_id > MAX_UNSCOPED)
        connection = self._connections.get(key)
        if connection is None:
            held = self._let_go.pop(key, None)
            connection = self._new_connection(protocol, bookie_id, ledger_id) if held is None else held
            self._connections[key] = connection
            if self._closed:
                connection.close()
            elif self._scan_timer is None:
                self._scan_later()
        return connection

    def _all(self) -> list[BookieConnection]:
        return [*self._connections.values(), *self._let_go.values()]

    def _new_connection(self, protocol: str, bookie_id: str, ledger_id: int) -> BookieConnection:
        if protocol == V3:
            find = self._address if ledger_id <= MAX_UNSCOPED else self._address_for_scopes
            return BookieConnection(bookie_id, find, self._settings, self._connector, self._rng)
        beside = partial(self._connection, V3, bookie_id, ledger_id)
        return V2Connection(bookie_id, self._address, self._settings, self._connector, self._rng, v3=beside)

    def seed_addresses(self, bookies: Iterable[BookieServiceInfo]) -> None:
        """Uses these addresses first; service discovery is asked only if a bookie is not at its address."""
        for info in bookies:
            self._learn(info)
            endpoint = info.endpoint(BOOKIE_RPC)
            address = None if endpoint is None else Address(endpoint.host, endpoint.port)
            if address is not None and self._given.get(info.bookie_id) != address:
                self._given[info.bookie_id] = address
                self._seeded.discard(info.bookie_id)

    async def free_bytes(self, bookie_id: str) -> int:
        """Free bytes of the bookie's ledger directories. Raises BKException."""
        request = GetBookieInfoRequest(self.next_txn_id(), FREE_DISK_SPACE)
        timeout = self._settings.connect_timeout
        response = await self.request(bookie_id, Operation.GET_BOOKIE_INFO, request, timeout)
        free = getattr(response, "free_disk_space", None)
        if response.status != Status.EOK or free is None:
            raise BookieHandleNotAvailableException(f"bookie {bookie_id} did not tell its free space")
        return int(free)

    async def request(self, bookie_id: str, operation: Operation, request: Request, timeout: float) -> Response:
        """Sends one request and returns its response, for infrequent operations. Raises the error that ended the
        request.
        """
        answer: asyncio.Future[Response] = self._loop.create_future()

        def sink(_token: object, response: Response | None, error: BKException | None) -> None:
            if answer.done():
                return
            if response is not None:
                answer.set_result(response)
            else:
                answer.set_exception(error or BookieHandleNotAvailableException(f"bookie {bookie_id} gave no answer"))

        ledger_id = getattr(request, "ledger_id", 0)
        if isinstance(request, BatchReadRequest):
            connection, frame = self.batch_connection(bookie_id, ledger_id), v2.encode_request(request)
        else:
            connection, frame = self.connection(bookie_id, ledger_id), encode_request(request)
        deadline = self._loop.time() + timeout
        connection.send(operation, request.txn_id, frame, deadline, sink, None)
        return await answer

    def close(self) -> None:
        """Closes every connection; outstanding requests fail with ClientClosedException."""
        self._closed = True
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        for connection in self._all():
            connection.close()

    async def close_and_wait(self) -> None:
        """Like `close`, and returns once no task and no socket is left."""
        self.close()
        for connection in self._all():
            await connection.wait_closed()

    def _scan_later(self) -> None:
        self._scan_due = self._loop.time() + _SCAN_INTERVAL
        self._scan_timer = self._loop.call_at(self._scan_due, self._scan)

    def _scan(self) -> None:
        now = self._loop.time()
        held_up = now - self._scan_due
        for connection in self._all():
            if held_up > _SCAN_INTERVAL:
                connection.postpone(held_up)
            connection.expire(now)
        self._keep_those_in_use(now)
        if not self._closed:
            self._scan_later()

    def _keep_those_in_use(self, now: float) -> None:
        for key, connection in list(self._let_go.items()):
            if connection.rested(now) < LET_GO_AFTER:
                self._connections[key] = self._let_go.pop(key)
        resting = [key for key, each in self._connections.items() if each.rested(now) >= LET_GO_AFTER]
        for key in resting:
            connection = self._let_go[key] = self._connections.pop(key)
            self._losses_let_go += connection.recent_losses
            connection.begin_anew()

    def _learn(self, info: BookieServiceInfo) -> None:
        if info.understands(LEDGER_SCOPE):
            self._understand_scopes.add(info.bookie_id)
        else:
            self._understand_scopes.discard(info.bookie_id)

    async def _address_for_scopes(self, bookie_id: str) -> Address:
        """The address of a bookie that understands ledgers with a scope."""
        address = await self._address(bookie_id)
        if bookie_id not in self._understand_scopes:
            self._learn((await self._discovery.bookie_service_info(bookie_id)).info)
        if bookie_id not in self._understand_scopes:
            raise BookieHandleNotAvailableException(
                f"bookie {bookie_id} does not understand ledgers with a scope, so nothing of one is sent to it; "
                "upgrade it"
            )
        return address

    async def _address(self, bookie_id: str) -> Address:
        told = self._given.get(bookie_id)
        if told is None:
            return await self._looked_up(bookie_id)
        if bookie_id not in self._seeded:
            self._seeded.add(bookie_id)
            return told
        try:
            return await self._looked_up(bookie_id)
        except BKException:
            return told

    async def _looked_up(self, bookie_id: str) -> Address:
        info, reason = BookieServiceInfo.legacy(bookie_id), "discovery did not answer in time"
        # For an id that is an address, do not wait until discovery fails, which takes as long as a connection attempt.
        literal = info.endpoint(BOOKIE_RPC) is not None
        try:
            async with asyncio.timeout(self._settings.connect_timeout / 4 if literal else None):
                info = (await self._discovery.bookie_service_info(bookie_id)).info
                self._learn(info)
                reason = f"it is registered without an endpoint of protocol {BOOKIE_RPC}"
        except TimeoutError:
            pass
        except BKException as error:
            reason = str(error)
        endpoint = info.endpoint(BOOKIE_RPC)
        if endpoint is None:
            raise BookieHandleNotAvailableException(f"its address is unknown: {reason}")
        return Address(endpoint.host, endpoint.port)
