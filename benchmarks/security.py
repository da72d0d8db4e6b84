"""What security costs a gateway and a bookie, and what one principal that floods costs another. `make bench-security`

CPU a call is the gateway process's, from /proc, in pairs: a gateway with a policy and static tokens beside one without
any security, the same calls to both in turn. The calm principal's calls come one after the other, a hundred a second;
its p99 beside a flood is compared with its p99 alone, at the same gateway, and with its p99 while the same flood is at
another gateway of the machine: that takes CPU as well, but waits in no queue of this gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

from benchmarks.harness import PAIRS, QUICK, Row, compare, figures, measured, report
from benchmarks.process_cpu import cpu_microseconds
from benchmarks.security_entry import entry_rows
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import to_format
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource, decide
from bookgate.runtime.security.policy import Policy, parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.static_tokens import new_token

_CALLS = 320 if QUICK else 4800
_DECISIONS = 100_000
_TOKEN = "FLOOD_TOKEN"
"""In the environment of the process that floods: arguments are seen by everybody."""
_CALM_CALLS = 200 if QUICK else 1000
_CALM_PAUSE_SECONDS = 0.01
_FLOODING_CALLS = 200
_METADATA = to_format(LedgerMetadata.new(["127.0.0.1:3181"], 1, 1))

_POLICY = """
[[bindings]]
principals = ["token:calm", "token:flood", "token:greedy"]
role = "writer"
[[limits]]
principals = ["token:flood"]
calls_per_second = 500
"""


class _Gateway:
    """`bookgate gateway` on a store of its own, with security or without."""

    def __init__(self, directory: Path, *, secured: bool) -> None:
        directory.mkdir()
        uri = f"sqlite://{directory}/metadata.db"
        init = [sys.executable, "-m", "bookgate", "cluster", "init", "--metadata-uri", uri]
        subprocess.run(init, check=True, capture_output=True)
        self.tokens = {name: new_token(name) for name in ("calm", "flood", "greedy")}
        environment = dict(os.environ)
        if secured:
            (directory / "tokens").write_text("\n".join(line for _, line in self.tokens.values()))
            (directory / "policy.toml").write_text(_POLICY)
            environment["BOOKGATE_GATEWAY_SECURITY_TOKENS"] = str(directory / "tokens")
            environment["BOOKGATE_GATEWAY_SECURITY_POLICY"] = str(directory / "policy.toml")
            environment["BOOKGATE_GATEWAY_LOG_LEVEL"] = "warning"
        command = [sys.executable, "-m", "bookgate", "gateway", "--metadata-uri", uri, "--port", "0", "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.address: str = json.loads(self._process.stdout.readline())["gateway"]
        self.pid = self._process.pid

    def bearer(self, name: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[name][0]}"),)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


async def _cpu_of(gateway: _Gateway, call: Callable[[Any, Any], Awaitable[Any]]) -> float:
    """CPU microseconds of the gateway for a call, sixteen clients' calls under way."""
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub, bearer = LedgerMetadataServiceStub(channel), gateway.bearer("calm")
        await call(stub, bearer)
        before = cpu_microseconds(gateway.pid)

        async def run() -> None:
            for _ in range(_CALLS // 16):
                await call(stub, bearer)

        await asyncio.gather(*(run() for _ in range(16)))
        return (cpu_microseconds(gateway.pid) - before) / (_CALLS // 16 * 16)


async def _read(stub: Any, bearer: Any) -> None:
    await stub.Read(lm.LedgerMetadataRequest(ledger_id=0), metadata=bearer)


async def _create(stub: Any, bearer: Any) -> None:
    await stub.Create(lm.LedgerMetadataRequest(metadata=_METADATA), metadata=bearer)


def _unary_calls(secured: _Gateway, plain: _Gateway) -> Iterator[Row]:
    for name, call in (("create", _create), ("read, cached", _read)):
        yield compare(
            f"gateway's CPU a call: {name}",
            "µs",
            lambda call=call: asyncio.run(_cpu_of(secured, call)),  # type: ignore[misc]
            lambda call=call: asyncio.run(_cpu_of(plain, call)),  # type: ignore[misc]
            "without security",
            higher_is_better=False,
        )


def _decisions() -> Row:
    def policy(bindings: int) -> Policy:
        lines = (
            f'[[bindings]]\nprincipals = ["token:t{number % 100}"]\nrole = "writer"\nscopes = ["{number}"]'
            for number in range(bindings)
        )
        return parse_policy("\n".join(lines))

    def microseconds(policy: Policy, scope: int) -> float:
        who, to = Principal(Kind.TOKEN, "t7"), Resource(scope)
        began = time.process_time()
        for _ in range(_DECISIONS):
            decide(policy, who, Action.ENTRY_ADD, to)
        return (time.process_time() - began) / _DECISIONS * 1e6

    large, small = policy(10_000), policy(10)
    return compare(
        "a decision, 10,000 bindings",
        "µs",
        lambda: microseconds(large, 9907),
        lambda: microseconds(small, 7),
        "10 bindings",
        higher_is_better=False,
    )


async def _calm_p99(gateway: _Gateway) -> float:
    """Milliseconds; calls one after the other, with pauses."""
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub, bearer = LedgerMetadataServiceStub(channel), gateway.bearer("calm")
        took = []
        for _ in range(_CALM_CALLS):
            began = time.perf_counter()
            await _read(stub, bearer)
            took.append(time.perf_counter() - began)
            await asyncio.sleep(_CALM_PAUSE_SECONDS)
        return sorted(took)[int(len(took) * 0.99)] * 1000


async def _flood(address: str, token: str, mode: str) -> None:
    """`rude`: calls without end, whatever the answers are; `polite`: a refused one waits as long as it is told."""
    bearer = (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = LedgerMetadataServiceStub(channel)

        async def run() -> None:
            while True:
                try:
                    await _read(stub, bearer)
                except grpc.aio.AioRpcError as error:
                    told = dict(error.trailing_metadata() or ()).get("retry-after-ms")
                    if mode == "polite" and told is not None:
                        await asyncio.sleep(int(told) / 1000)

        await asyncio.gather(*(run() for _ in range(_FLOODING_CALLS)))


@contextmanager
def _flooded(gateway: _Gateway, mode: str, name: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.security", mode, gateway.address]
    process = subprocess.Popen(command, env={**os.environ, _TOKEN: gateway.tokens[name][0]})
    time.sleep(2)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _make_ledger(gateway: _Gateway) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        await _create(LedgerMetadataServiceStub(channel), gateway.bearer("calm"))


def _floods(gateway: _Gateway, other: _Gateway) -> Iterator[Row]:
    for each in (gateway, other):
        # What the calm principal and the flood read has to be there.
        asyncio.run(_make_ledger(each))
    for what, mode, name in (
        ("polite flood", "polite", "flood"),
        ("rude flood", "rude", "flood"),
        ("flood without a limit", "polite", "greedy"),
    ):
        alone, elsewhere, beside = [], [], []
        for _ in range(PAIRS):
            alone.append(asyncio.run(_calm_p99(gateway)))
            with _flooded(other, mode, name):
                elsewhere.append(asyncio.run(_calm_p99(gateway)))
            with _flooded(gateway, mode, name):
                beside.append(asyncio.run(_calm_p99(gateway)))
        at_another = f"{what} at another gateway"
        yield measured(figures(f"p99 of a calm principal, {at_another}", "ms", elsewhere, alone, "alone", up=False))
        yield measured(figures(f"p99 of a calm principal beside a {what}", "ms", beside, alone, "alone", up=False))
        yield measured(figures(f"the same beside a {what}", "ms", beside, elsewhere, at_another, up=False))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:

        def gateway(name: str, *, secured: bool = True) -> _Gateway:
            started = _Gateway(Path(scratch, name), secured=secured)
            stack.callback(started.stop)
            return started

        secured, plain = gateway("secured"), gateway("plain", secured=False)
        rows = [*_unary_calls(secured, plain), *entry_rows(Path(scratch)), _decisions()]
        rows += _floods(secured, gateway("another"))
    report("security", rows)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_flood(sys.argv[2], os.environ[_TOKEN], sys.argv[1]))
    else:
        main()
