"""One metadata gateway: its channel and stubs, its health, and which process responds there.

A gateway that failed is tried last, for a pause that grows, and then only once it has a connection again, which is made
in the background. One that reports the loss of its store is tried last until it has it back. Each response carries the
id of the gateway process (`bookgate-instance`), so that a change can address one process.

Not its job: which gateway a call uses, and what is retried (`channel`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc.aio import AioRpcError, Channel, UnaryUnaryCall

from bookgate.ledger.wire.gateway_headers import INSTANCE
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceStub
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2_grpc import ReplicationServiceStub
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.runtime.logs import log_event
from bookgate.thinclient.gateways.connection_diagnosis import NoConnection, why_no_connection
from bookgate.thinclient.gateways.grpc_channels import OpenChannel, open_channel
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES, RetryPolicy
from bookgate.thinclient.gateways.tokens import AuthorizedChannel, TokenSource
from bookgate.thinclient.gateways.uri import ClientTlsFiles

if TYPE_CHECKING:  # the asynchronous stubs exist for the type checker only
    from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceAsyncStub
    from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceAsyncStub
    from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2_grpc import ReplicationServiceAsyncStub
    from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryAsyncStub

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NAMES_NO_INSTANCE = "none"


class Gateway:
    """One gateway: its stubs, and its channel, opened at first use."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        connector: OpenChannel = open_channel,
        retries: RetryPolicy = DEFAULT_RETRIES,
        *,
        learnt: bool = False,
        tls: ClientTlsFiles | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        self.address = address
        self.tokens = tokens
        """The token source; its token is sent with each call."""
        self.rests_until = 0.0
        """Loop time before which the gateway accepts no call, because this client exceeds a limit there."""
        self.learnt = learnt
        """Known from discovery only, and perhaps unreachable for this client."""
        self.suspended = False
        """The gateway has reported the loss of its metadata store."""
        self.instance: str | None = None
        """Id of the process that responded last; `none` if it sent none, None before the first response."""
        self.credentials = credentials
        self._tls = tls
        self._was_connected = False
        self._connector = connector
        self._retries = retries
        self._channel: Channel | None = None
        self._metadata: LedgerMetadataServiceAsyncStub | None = None
        self._discovery: ServiceDiscoveryAsyncStub | None = None
        self._registration: RegistrationServiceAsyncStub | None = None
        self._replication: ReplicationServiceAsyncStub | None = None
        self._failures = 0
        self._asked_last_until = 0.0

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            self._channel = self._connector(self.address, self.credentials)
        return self._channel

    @property
    def _for_stubs(self) -> Any:
        return self.channel if self.tokens is None else AuthorizedChannel(self.channel, self.tokens)

    @property
    def metadata(self) -> LedgerMetadataServiceAsyncStub:
        if self._metadata is None:
            self._metadata = LedgerMetadataServiceStub(self._for_stubs)
        return self._metadata

    @property
    def discovery(self) -> ServiceDiscoveryAsyncStub:
        if self._discovery is None:
            self._discovery = ServiceDiscoveryStub(self._for_stubs)
        return self._discovery

    @property
    def registration(self) -> RegistrationServiceAsyncStub:
        if self._registration is None:
            self._registration = RegistrationServiceStub(self._for_stubs)
        return self._registration

    @property
    def replication(self) -> ReplicationServiceAsyncStub:
        if self._replication is None:
            self._replication = ReplicationServiceStub(self._for_stubs)
        return self._replication

    @property
    def connected(self) -> bool:
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    @property
    def has_failed(self) -> bool:
        """Whether its last call failed."""
        return self._failures > 0

    def healthy(self, now: float) -> bool:
        """Whether it takes its regular turn. If it lacks only a connection, one is made in the background."""
        untried = self._failures == 0 and not self.learnt
        if not untried and not self.connected:
            self.channel.get_state(try_to_connect=True)
            return False
        return max(self._asked_last_until, self.rests_until) <= now and not self.suspended

    def failed(self, now: float, reason: str) -> None:
        """Makes it the last choice for a while."""
        if not self._failures:
            log_event(_log, "gateway_failed", gateway=self.address, error=reason)
        pause = self._retries.metadata_first_ask_last_seconds * 2 ** min(self._failures, 16)
        self._asked_last_until = now + min(pause, self._retries.metadata_longest_ask_last_seconds)
        self._failures += 1

    def rest(self, seconds: float) -> None:
        """Makes no calls for that time, but no longer than the retry policy allows."""
        pause = min(seconds, self._retries.metadata_longest_retry_after_seconds)
        self.rests_until = max(self.rests_until, asyncio.get_running_loop().time() + pause)

    def answered(self) -> None:
        if self._failures:
            log_event(_log, "gateway_answers", gateway=self.address, failures=self._failures)
        self._failures = 0
        self._asked_last_until = 0.0

    async def connect(self, timeout: float) -> bool:
        """Whether a connection exists; False if it is refused or not established within `timeout` seconds."""
        channel = self.channel
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(timeout):
                while state is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        self._was_connected = True
        return True

    async def why_not_connected(self, timeout: float) -> NoConnection:
        """Why `connect` failed, determined within `timeout` seconds. A gateway that was connected before is only away
        for now.
        """
        if self._was_connected or self._connector is not open_channel:
            return NoConnection("no connection")
        return await why_no_connection(self.address, self._tls, timeout)

    async def answer(self, call: UnaryUnaryCall[Any, T]) -> T:
        """Awaits the call's response and records which process sent it."""
        try:
            answer = await call
        except AioRpcError as error:
            self.instance = instance_in(error.trailing_metadata()) or self.instance
            raise
        self.instance = instance_in(await call.trailing_metadata()) or _NAMES_NO_INSTANCE
        return answer

    async def close(self) -> None:
        """Ends every call of this channel."""
        if self._channel is not None:
            await self._channel.close()


def instance_in(trailing: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The id of the gateway process in its trailing metadata, or None."""
    return next((str(value) for key, value in trailing or () if key == INSTANCE), None)
