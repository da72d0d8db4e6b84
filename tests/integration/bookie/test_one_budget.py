"""A principal has one budget at a bookie and the gateway in its process, whichever door it comes to."""

from __future__ import annotations

from pathlib import Path

import grpc
import httpx
import pytest

from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import ListBookiesRequest
from bookgate.runtime.security.static_tokens import new_token
from tests.integration.bookie.in_process import running_bookie
from tests.integration.gateway.guarded import methods, outcome

POLICY = """
[[bindings]]
principals = ["token:*"]
role = "admin"
[[limits]]
principals = ["token:*"]
calls_per_second = 0.001
"""


@pytest.mark.asyncio
async def test_calls_over_grpc_and_over_http_are_of_one_budget(tmp_path: Path) -> None:
    tokens = {name: new_token(name) for name in ("first", "second")}
    (tmp_path / "tokens").write_text("\n".join(line for _, line in tokens.values()))
    (tmp_path / "policy.toml").write_text(POLICY)
    files = {"security_tokens": tmp_path / "tokens", "security_policy": tmp_path / "policy.toml"}
    [listing] = [method for method in methods() if method.name == "ListBookies"]

    async with (
        running_bookie(tmp_path, **files) as bookie,
        httpx.AsyncClient(base_url=f"http://{bookie.addresses['http']}") as http,
        grpc.aio.insecure_channel(f"{bookie.addresses['gateway']}") as channel,
    ):

        async def over_http(name: str) -> int:
            bearer = {"Authorization": f"Bearer {tokens[name][0]}"}
            return (await http.get("/api/v1/bookie/list_bookies", headers=bearer)).status_code

        async def over_grpc(name: str) -> str:
            bearer = (("authorization", f"Bearer {tokens[name][0]}"),)
            return await outcome(channel, listing, ListBookiesRequest(), bearer)

        assert (await over_grpc("first"), await over_http("first")) == ("SUCCESS", 429)
        assert (await over_http("second"), await over_grpc("second")) == (200, "RESOURCE_EXHAUSTED")
