"""All bookies that a client speaks to: one connection each, their addresses, and the scan that ends late requests.

A bookie id is looked up in service discovery (its first endpoint of protocol `bookie-rpc`) when a connection is made;
an id of the form host:port that discovery does not know, or that it can't be asked about, is taken literally.
When the event loop itself was held up (by what the application does on it), frames were not sent and answers not read:
that time does not count, and all deadlines move by it.

Transaction ids come from one counter, so that one encoded frame can go to several bookies.
"""

from __future__ import annotations

import asyncio
import itertools

from ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo
from ledger.errors import BKException, BookieHandleNotAvailableException
from ledger.manager import ServiceDiscovery
from ledger.protocol_v3 import encode_request
from ledger.requests import FREE_DISK_SPACE, GetBookieInfoRequest, Operation, Request, Response, Status
from thinclient.bookie_connection import (
    Address,
    BookieConnection,
    ConnectionSettings,
    Connector,
    tcp_connector,
)

_SCAN_INTERVAL = 0.25


class BookiePool:
    """Connections by bookie id. Belongs to one event loop."""

    def __init__(
        self, discovery: ServiceDiscovery, settings: ConnectionSettings, connector: Connector = tcp_connector
    ) -> None:
        self._discovery = discovery
        self._settings = settings
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._connections: dict[str, BookieConnection] = {}
        self._scan_timer: asyncio.TimerHandle | None = None
        self._scan_due = 0.0
        self._closed = False
        self.next_txn_id = itertools.count(1).__next__
        """Unique among all requests of this client."""

    def connection(self, bookie_id: str) -> BookieConnection:
        """The connection to a bookie; it is opened by the first request."""
        connection = self._connections.get(bookie_id)
        if connection is None:
            connection = BookieConnection(bookie_id, self._address, self._settings, self._connector)
            self._connections[bookie_id] = connection
            if self._closed:
                connection.close()
            elif self._scan_timer is None:
                self._scan_later()
        return connection

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
        """One request and its answer, for what is not done by the thousand. Raises what ended the request."""
        answer: asyncio.Future[Response] = self._loop.create_future()

        def sink(_token: object, response: Response | None, error: BKException | None) -> None:
            if answer.done():
                return
            if response is not None:
                answer.set_result(response)
            else:
                answer.set_exception(error or BookieHandleNotAvailableException(f"bookie {bookie_id} gave no answer"))

        frame = encode_request(request)
        deadline = self._loop.time() + timeout
        self.connection(bookie_id).send(operation, request.txn_id, frame, deadline, sink, None)
        return await answer

    def close(self) -> None:
        """Closes every connection; what is outstanding fails with ClientClosedException."""
        self._closed = True
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        for connection in self._connections.values():
            connection.close()

    def _scan_later(self) -> None:
        self._scan_due = self._loop.time() + _SCAN_INTERVAL
        self._scan_timer = self._loop.call_at(self._scan_due, self._scan)

    def _scan(self) -> None:
        now = self._loop.time()
        held_up = now - self._scan_due
        for connection in list(self._connections.values()):
            if held_up > _SCAN_INTERVAL:
                connection.postpone(held_up)
            connection.expire(now)
        if not self._closed:
            self._scan_later()

    async def _address(self, bookie_id: str) -> Address:
        info, reason = BookieServiceInfo.legacy(bookie_id), "discovery did not answer in time"
        # What can be taken literally need not wait until discovery gives up: that takes as long as a whole connect.
        literal = info.endpoint(BOOKIE_RPC) is not None
        try:
            async with asyncio.timeout(self._settings.connect_timeout / 4 if literal else None):
                info = (await self._discovery.bookie_service_info(bookie_id)).info
                reason = f"it is registered without an endpoint of protocol {BOOKIE_RPC}"
        except TimeoutError:
            pass
        except BKException as error:
            reason = str(error)
        endpoint = info.endpoint(BOOKIE_RPC)
        if endpoint is None:
            raise BookieHandleNotAvailableException(f"its address is unknown: {reason}")
        return Address(endpoint.host, endpoint.port)
