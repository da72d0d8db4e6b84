"""HTTP admin over TLS, of a bookie and of a gateway alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from bookgate.bookie.tools.doctor.probe import look
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.http import HttpServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import HTTP, TLS_EXTENSION
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.config import ClientConfig
from tests.integration.bookie.certificates import Files, authority, client_context, stranger
from tests.integration.bookie.in_process import running_bookie
from tests.stores import made

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_http_speaks_tls_with_the_same_certificate_and_follows_its_renewal(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with running_bookie(tmp_path, **files.tls, http_tls=True) as bookie:
        address = bookie.addresses["http"]
        endpoint = bookie.service_info.endpoint(HTTP)
        assert endpoint is not None
        assert endpoint.extensions == (TLS_EXTENSION,)
        async with httpx.AsyncClient(base_url=f"https://{address}", verify=client_context()) as http:
            assert (await http.get("/heartbeat")).text == "OK\n"
            cluster = (await http.get("/api/v1/console/cluster")).json()
        assert cluster["bookies"][0]["console"] == f"https://{address}/"
        async with httpx.AsyncClient() as clear:
            with pytest.raises(httpx.HTTPError):
                await clear.get(f"http://{address}/heartbeat")

        files.issue(stranger)
        async with httpx.AsyncClient(base_url=f"https://{address}", verify=client_context(stranger)) as http:
            assert (await http.get("/heartbeat")).status_code == 200

        files.issue(authority)
        stranger_to_it = ClientConfig(gateways=f"grpc://{bookie.addresses['gateway']}")
        seen = (await look(stranger_to_it, 10.0)).bookies[0]
        assert "certificate verify failed" in (seen.http_error or "")
        seen = (await look(stranger_to_it.model_copy(update={"bookie_tls_ca": files.authority}), 10.0)).bookies[0]
        assert (seen.http_error, seen.http is not None) == (None, True)
        command = (sys.executable, "-m", "bookgate", "bookie", "state", bookie.addresses["bookie_id"], "--json")
        environment = {
            **os.environ,
            "BOOKGATE_GATEWAYS": f"grpc://{bookie.addresses['gateway']}",
            "BOOKGATE_BOOKIE_TLS_CA": str(files.authority),
        }
        asked = await asyncio.create_subprocess_exec(
            *map(str, command), env=environment, stdout=asyncio.subprocess.PIPE
        )
        assert json.loads((await asked.communicate())[0])["running"] is True


async def test_http_over_tls_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(IncorrectParameterException, match="http_tls needs a certificate"):
        async with running_bookie(tmp_path, http_tls=True):
            pass
    with pytest.raises(IncorrectParameterException, match="http_tls needs a certificate"):
        GatewayConfig.load(None, {"metadata_uri": "sqlite:///x", "http_tls": True})


async def test_a_gateway_alone_speaks_tls_over_http(tmp_path: Path) -> None:
    files = Files(tmp_path)
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    given = {"tls_cert": str(files.certificate), "tls_key": str(files.key), "http_tls": True}
    settings = GatewayConfig.load(None, {"metadata_uri": uri, **given})
    factory = create_factory(uri, settings)
    await factory.initialize()
    server = HttpServer(settings, factory, CollectorRegistry(), asyncio.Event())
    try:
        port = await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(verify=client_context()) as http:
            assert (await http.get(f"https://127.0.0.1:{port}/ready")).text == "OK\n"
            assert "<!doctype html>" in (await http.get(f"https://127.0.0.1:{port}/")).text
    finally:
        await server.stop()
        await factory.close()
