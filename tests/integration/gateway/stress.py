"""What the stress tests share: their size, gateways as processes that can be killed, and the judge of watch answers.

The size is that of a normal test run; `BOOKGATE_STRESS=1` (`make test-stress`) makes it the full one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import to_format as to_format
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as pb
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import some_metadata

FULL = os.environ.get("BOOKGATE_STRESS") == "1"
LONG_WAIT = 60.0
"""Seconds after which a test that waits for something says what is missing."""


def size(normal: int, full: int) -> int:
    return full if FULL else normal


def numbered(number: int) -> LedgerMetadata:
    """Metadata that tells which write it is."""
    return replace(some_metadata(), custom_metadata={"n": str(number).encode()})


def number_of(metadata: LedgerMetadata) -> int:
    return int(metadata.custom_metadata["n"])


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def until(condition: Callable[[], bool | Awaitable[bool]], what: Callable[[], object]) -> None:
    """Looks again and again; fails with what `what` says when it takes too long."""
    deadline = asyncio.get_running_loop().time() + LONG_WAIT
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert asyncio.get_running_loop().time() < deadline, f"waited {LONG_WAIT:g} s in vain: {what()}"
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def gateway_here(uri: str, **timeouts: Any) -> AsyncIterator[tuple[ZooKeeperLedgerManagerFactory, GatewayServer]]:
    """A gateway in this process, whose session can be expired."""
    factory = ZooKeeperLedgerManagerFactory(parse_zookeeper(uri), **timeouts)
    await factory.initialize()
    server = GatewayServer(factory, bookmark_seconds=1.0)
    await server.start()
    try:
        yield factory, server
    finally:
        await server.stop(0)
        await factory.close()


class GatewayProcess:
    """`bookgate gateway` as a process, killed and started again on the same port. Blocking."""

    def __init__(self, metadata_uri: str, port: int = 0) -> None:
        self._metadata_uri = metadata_uri
        self.address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> GatewayProcess:
        port = self.address.rpartition(":")[2]
        command = [
            sys.executable,
            "-m",
            "bookgate",
            "gateway",
            "--metadata-uri",
            self._metadata_uri,
            "--port",
            port,
            "--json",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the gateway has ended early, with code {self._process.wait()}"
        self.address = json.loads(line)["gateway"]
        return self

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """The exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            code = process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        return code

    @property
    def rss_bytes(self) -> int:
        assert self._process is not None
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no resident memory")


@contextlib.contextmanager
def gateway_processes(metadata_uri: str, count: int) -> Any:
    gateways = [GatewayProcess(metadata_uri) for _ in range(count)]
    try:
        for gateway in gateways:
            gateway.start()
        yield gateways
    finally:
        for gateway in gateways:
            gateway.end(signal.SIGKILL)


def client_uri(gateways: Sequence[GatewayProcess]) -> str:
    return "grpc://" + ",".join(gateway.address for gateway in gateways)


def server_figure(server: LocalZooKeeper, name: str) -> int:
    """A figure of ZooKeeper's own monitoring."""
    lines = dict(line.partition("\t")[::2] for line in server.command("mntr", 30).splitlines())
    return int(float(lines[name]))


class WatchStream:
    """One client's Watch stream, read as it comes over the wire, and judged: M1 and the removal half of M2."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub: Any = LedgerMetadataServiceStub(channel)
        self._call = stub.Watch()
        self.versions: dict[int, int] = {}
        """Newest version by ledger; removed ones are not here."""
        self.removed: set[int] = set()
        self.events: list[int] = []
        self.faults: list[str] = []
        self._task = asyncio.ensure_future(self._read())

    async def subscribe(self, ledger_id: int, version: int | None = None) -> None:
        request = pb.LedgerMetadataRequest(ledger_id=ledger_id)
        if version is not None:
            request.expected_version = version
            self.versions[ledger_id] = version
        await self._call.write(request)

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for response in self._call:
                if response.event in (pb.WatchEvent.STATE, pb.WatchEvent.REMOVED):
                    self._judge(response)
                else:
                    self.events.append(response.event)

    def _judge(self, response: Any) -> None:
        ledger_id = response.ledger_id
        if ledger_id in self.removed:
            self.faults.append(f"ledger {ledger_id}: told of something after its removal")
        elif response.code == StatusCode.LEDGER_NOT_FOUND:
            self.removed.add(ledger_id)
            self.versions.pop(ledger_id, None)
        elif response.code != StatusCode.SUCCESS:
            self.faults.append(f"ledger {ledger_id}: code {response.code}, {response.message}")
        elif response.version <= self.versions.get(ledger_id, -1):
            self.faults.append(f"ledger {ledger_id}: version {response.version} after {self.versions[ledger_id]}")
        else:
            self.versions[ledger_id] = response.version
