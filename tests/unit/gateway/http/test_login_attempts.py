"""Logins are few at a time: wrong tokens by address, sessions by principal."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest

from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import create_app
from bookgate.gateway.http.login_attempts import AT_ONCE, SECONDS_EACH, LoginAttempts, of_address
from bookgate.gateway.http.routes.session import SESSION, session_routes


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access("right", loopback=False, attempts=LoginAttempts(clock))


async def log_in(access: Access, token: str, address: str = "192.0.2.7") -> httpx.Response:
    app = create_app(session_routes(access), access, {})
    transport = httpx.ASGITransport(app, client=(address, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asked:
        return await asked.post(SESSION, json={"token": token})


@pytest.mark.asyncio
async def test_after_too_many_wrong_tokens_an_address_waits(access: Access, clock: Clock) -> None:
    for _ in range(AT_ONCE):
        assert (await log_in(access, "wrong")).status_code == 401
    for token in ("wrong", "right"):
        refused = await log_in(access, token)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "6"
        assert refused.json() == {"error": "too many wrong tokens came from this address; try again in 6 s"}
    assert (await log_in(access, "right", "192.0.2.8")).status_code == 200
    clock.now += SECONDS_EACH
    assert (await log_in(access, "wrong")).status_code == 401
    assert (await log_in(access, "right")).status_code == 429
    clock.now += SECONDS_EACH
    assert (await log_in(access, "right")).status_code == 200


@pytest.mark.asyncio
async def test_one_principal_does_not_push_out_the_sessions_of_others(access: Access, clock: Clock) -> None:
    for number in range(AT_ONCE):
        assert (await log_in(access, "right", f"192.0.2.{number}")).status_code == 200
    refused = await log_in(access, "right", "192.0.2.99")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "6")
    assert "token:http_token has logged in too often" in refused.json()["error"]
    clock.now += 3600
    assert (await log_in(access, "right")).status_code == 200


def test_an_address_of_ipv6_is_its_network() -> None:
    assert of_address("2001:db8::1") == of_address("2001:db8::ffff:2") != of_address("2001:db8:0:1::1")
    assert of_address("::ffff:192.0.2.1") == of_address("192.0.2.1") != of_address("192.0.2.2")
    assert of_address("fe80::1%eth0") == of_address("fe80::2%eth0")
    assert of_address("testclient")


def test_of_too_many_the_one_that_was_seen_the_longest_ago_is_forgotten(clock: Clock) -> None:
    attempts = LoginAttempts(clock)
    for _ in range(AT_ONCE):
        attempts.spend("first")
    assert attempts.seconds_to_wait("first") == 6
    for number in range(10_000):
        attempts.spend(str(number))
    assert attempts.seconds_to_wait("first") == 0
