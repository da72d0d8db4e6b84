"""TLS and a policy at the entry port and at HTTP: principals of certificates, and everything replaced under load."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bookgate.bookie.server import BookieServer
from bookgate.ledger.wire.messages import Status
from tests.integration.bookie.certificates import Files, authority, client_context, stranger
from tests.integration.bookie.entry_client import EntryClient, add, read
from tests.integration.bookie.in_process import entry_address, running_bookie

pytestmark = pytest.mark.asyncio

RULES = ["subject:CN=([^,]+),.* => \\1"]
POLICY = """
[[bindings]]
principals = ["tls:etl"]
role = "{role}"
[roles.watcher]
actions = ["http.read"]
[[bindings]]
principals = ["tls:etl"]
role = "watcher"
"""
LEDGER = 9


class TlsEntryClient(EntryClient):
    """A connection over TLS from its first byte on."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        super().__init__(address)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")


def shown(name: str) -> ssl.SSLContext:
    """A context with a client's certificate of this common name."""
    return client_context(identity=authority.issue_cert("client.example", common_name=name))


@asynccontextmanager
async def secured(root: Path) -> AsyncIterator[tuple[BookieServer, Files]]:
    files = Files(root)
    (root / "policy.toml").write_text(POLICY.format(role="writer"))
    settings: dict[str, Any] = {
        **files.tls,
        "tls_client_ca": files.authority,
        "tls_required": True,
        "http_tls": True,
        "security_policy": root / "policy.toml",
        "security_principal_rules": RULES,
    }
    async with running_bookie(root, **settings) as server:
        yield server, files


def http(server: BookieServer, context: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"https://{server.addresses['http']}", verify=context, timeout=30)


async def test_a_certificate_is_who_it_names_at_both_ports(tmp_path: Path) -> None:
    async with secured(tmp_path) as (server, _files):

        def told(context: ssl.SSLContext) -> int:
            with TlsEntryClient(entry_address(server), context) as client:
                return client.status(add(LEDGER, 0))

        outcomes = {}
        for who, context in (("etl", shown("etl")), ("other", shown("other")), ("nobody", client_context())):
            async with http(server, context) as asked:
                status = (await asked.get("/metrics")).status_code
                change = (await asked.put("/api/v1/bookie/gc")).status_code
            outcomes[who] = (Status(await asyncio.to_thread(told, context)).name, status, change)
        assert outcomes == {"etl": ("EOK", 200, 403), "other": ("EUA", 403, 403), "nobody": ("EUA", 401, 401)}
        # One of an authority that nobody here trusts gets no connection.
        foreign = client_context(identity=stranger.issue_cert("client.example", common_name="etl"))
        async with http(server, foreign) as asked:
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                await asked.get("/metrics")


async def test_certificates_and_policy_are_replaced_under_load_without_a_failed_request(tmp_path: Path) -> None:
    async with secured(tmp_path) as (server, files):
        address, context = entry_address(server), shown("etl")
        outcomes: list[object] = []
        more = asyncio.Semaphore(0)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def load(once: Callable[[int], Any]) -> None:
            number = 0
            while not stop.is_set():
                outcomes.append(await once(number))
                number += 1
                more.release()

        def connected(number: int) -> int:
            with TlsEntryClient(address, context) as client:
                assert client.status(add(LEDGER, number)) == Status.EOK
                return client.status(read(LEDGER, number))

        async def fresh_entry(number: int) -> int:
            return await loop.run_in_executor(None, connected, number)

        with await asyncio.to_thread(TlsEntryClient, address, context) as standing:

            async def standing_entry(number: int) -> int:
                return await loop.run_in_executor(None, standing.status, add(LEDGER + 1, number))

            async def fresh_http(_number: int) -> int:
                async with http(server, context) as asked:
                    # As the entry port's: 0 is well.
                    return (await asked.get("/heartbeat")).status_code + (await asked.get("/metrics")).status_code - 400

            loads = [asyncio.ensure_future(load(each)) for each in (fresh_entry, standing_entry, fresh_http)]
            serials = set()
            try:
                for role in ("admin", "broken", "writer"):
                    files.issue(authority)
                    (tmp_path / "policy.toml").write_text("[[" if role == "broken" else POLICY.format(role=role))
                    async with asyncio.timeout(60):
                        for _ in range(25):
                            await more.acquire()
                    serials.add(await asyncio.to_thread(_serial, address, context))
            finally:
                stop.set()
                await asyncio.gather(*loads)
        assert set(outcomes) == {Status.EOK}
        assert len(serials) == 3, "each certificate was shown by the bookie in its turn"


def _serial(address: str, context: ssl.SSLContext) -> str:
    with TlsEntryClient(address, context) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        found = client.socket.getpeercert()
    assert found is not None
    return str(found["serialNumber"])
