"""A gateway with tokens and a policy, and calls of every RPC by its descriptor, for tests of access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.services.registration import DEFAULT_LEASE_SECONDS
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import (
    ledger_metadata_service_pb2,
    registration_service_pb2,
    replication_service_pb2,
    service_discovery_pb2,
)
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.static_tokens import new_token
from tests.stores import made
from tests.tokens import jwt_settings

POLICY = """
[roles.recoverer]
actions = ["ledger.read", "ledger.recover"]
[[bindings]]
principals = ["token:admin", "jwt:admin"]
role = "admin"
[[bindings]]
principals = ["token:reader", "group:readers"]
role = "reader"
[[bindings]]
principals = ["token:elsewhere"]
role = "writer"
scopes = ["7"]
[[bindings]]
principals = ["token:team-a", "token:team-b"]
role = "writer"
owned = true
[[bindings]]
principals = ["token:bookie-1", "token:bookie-2"]
role = "bookie"
bookies = ["{name}"]
[[bindings]]
principals = ["token:recoverer"]
role = "recoverer"
[[bindings]]
principals = ["token:operator"]
role = "operator"
"""
NAMES = (
    *("admin", "reader", "elsewhere", "team-a", "team-b", "bookie-1", "bookie-2", "recoverer", "operator", "stranger"),
)

_WRITE_FAILED = "Internal error from Core"
"""What gRPC's client says by itself where the server ends a stream while the client writes: not the server's answer."""


class Guarded:
    """One gateway with security."""

    def __init__(
        self,
        directory: Path,
        factory: LedgerManagerFactory,
        policy: str,
        *,
        tokens: Mapping[str, tuple[str, str]] | None = None,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
    ) -> None:
        """`tokens`: those of another gateway, which this one takes too."""
        self.factory = factory
        self.tokens = tokens or {name: new_token(name) for name in NAMES}
        self.policy_file = directory / "policy.toml"
        self.policy_file.write_text(policy)
        self.token_file = directory / "tokens"
        self.token_file.write_text("\n".join(line for _, line in self.tokens.values()))
        values = {
            "metadata_uri": "sqlite:///unused",
            "security_policy": self.policy_file,
            "security_tokens": self.token_file,
            **jwt_settings(directory),
            "audit_file": directory / "audit.log",
        }
        settings = GatewayConfig.load(None, values)
        access = settings.access()
        assert access is not None
        self.access: AccessControl = access
        self.audit_file = directory / "audit.log"
        self.server = GatewayServer(factory, access=access, bookmark_seconds=0.2, lease_seconds=lease_seconds)
        self.port = 0

    def token(self, name: str) -> str:
        return self.tokens[name][0]

    def bearer(self, name: str | None) -> tuple[tuple[str, str], ...]:
        """The metadata of a caller; None: nobody's."""
        return () if name is None else (("authorization", f"Bearer {self.token(name)}"),)

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options) as channel:
            yield channel


@asynccontextmanager
async def guarded_gateway(
    directory: Path, policy: str = POLICY, *, lease_seconds: float = DEFAULT_LEASE_SECONDS
) -> AsyncIterator[Guarded]:
    """One on a store of its own."""
    async with guarded_gateways(directory, policy, 1, lease_seconds=lease_seconds) as (guarded,):
        yield guarded


@asynccontextmanager
async def guarded_gateways(
    directory: Path, policy: str = POLICY, count: int = 2, *, lease_seconds: float = DEFAULT_LEASE_SECONDS
) -> AsyncIterator[list[Guarded]]:
    """Several on one store, with the same tokens and policies."""
    path = f"{directory}/metadata.db"
    made(f"sqlite://{path}")
    gateways: list[Guarded] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            factory = SqliteLedgerManagerFactory(path, lease_seconds=lease_seconds)
            stack.push_async_callback(factory.close)
            await factory.initialize()
            home = directory / f"gateway-{number}"
            home.mkdir()
            tokens = gateways[0].tokens if gateways else None
            guarded = Guarded(home, factory, policy, tokens=tokens, lease_seconds=lease_seconds)
            stack.callback(guarded.access.close)
            stack.push_async_callback(guarded.server.stop, 0)
            guarded.port = await guarded.server.start()
            gateways.append(guarded)
        yield gateways


_FILES = (
    ledger_metadata_service_pb2.DESCRIPTOR,
    service_discovery_pb2.DESCRIPTOR,
    registration_service_pb2.DESCRIPTOR,
    replication_service_pb2.DESCRIPTOR,
)


def methods() -> Iterator[Any]:
    """The descriptors of all RPCs of a gateway."""
    for file in _FILES:
        for service in file.services_by_name.values():
            yield from service.methods


def path_of(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


async def call(
    channel: grpc.aio.Channel, method: Any, request: Message, metadata: Sequence[tuple[str, str]] = ()
) -> Any:
    """The first answer of an RPC. Raises AioRpcError."""
    answers = GetMessageClass(method.output_type)
    form = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
    make = getattr(channel, form)
    rpc = make(path_of(method), type(request).SerializeToString, answers.FromString)
    if not method.server_streaming:
        return await rpc(request, metadata=tuple(metadata), timeout=30)
    stream = rpc(_once(request) if method.client_streaming else request, metadata=tuple(metadata), timeout=30)
    try:
        async for answer in stream:
            return answer
        return answers()
    finally:
        stream.cancel()


async def _once(request: Message) -> AsyncIterator[Message]:
    """Then the stream stays open until its caller ends it."""
    yield request
    await asyncio.Event().wait()


async def outcome(
    channel: grpc.aio.Channel, method: Any, request: Message, metadata: Sequence[tuple[str, str]] = ()
) -> str:
    """The name of the gRPC status, or of the answer's code."""
    try:
        answer = await call(channel, method, request, metadata)
    except grpc.aio.AioRpcError as error:
        if method.client_streaming and error.details() == _WRITE_FAILED:
            return await outcome(channel, method, request, metadata)
        return error.code().name
    inner = getattr(answer, "responses", None)
    return StatusCode.Name((inner[0] if inner else answer).code)
