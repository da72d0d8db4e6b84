"""Streams over the HTTP of a live bookie: created, trimmed, kept, deleted; cursors that move by compare-and-set."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from bookgate import BookKeeper, LedgerOptions, UnauthorizedAccessException
from bookgate.bookie.server import BookieServer
from bookgate.ledger.metadata import OWNER_KEY
from bookgate.streams import RecordPosition, Retention, Stream, Streams
from bookgate.thinclient.config import ClientConfig
from tests.access_policy import POLICY, policy_settings
from tests.integration.bookie.in_process import running_bookie
from tests.tokens import token_of

pytestmark = pytest.mark.asyncio

STREAM = "/api/v1/stream"
SMALL = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
PASSWORD = "planted-sesame"
TEAM = 7


class Api:
    """The HTTP of one bookie: what it answers to a request for a stream."""

    def __init__(self, bookie: BookieServer, who: str | None = None, **query: Any) -> None:
        headers = {} if who is None else {"Authorization": f"Bearer {token_of(who)}"}
        self._http = httpx.AsyncClient(base_url=f"http://{bookie.addresses['http']}", headers=headers, timeout=60)
        self._query = query

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, verb: str, what: str, name: str, body: Any = None, **query: Any) -> httpx.Response:
        params = {"name": name, **self._query, **query}
        return await self._http.request(verb, f"{STREAM}/{what}", params=params, json=body)

    async def done(self, verb: str, what: str, name: str, body: Any = None, **query: Any) -> Any:
        answer = await self.ask(verb, what, name, body, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, status: int, verb: str, what: str, name: str, body: Any = None, **query: Any) -> str:
        answer = await self.ask(verb, what, name, body, **query)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return str(answer.json()["error"])


@asynccontextmanager
async def streams_of(bookie: BookieServer, **config: Any) -> AsyncIterator[Streams]:
    settings = ClientConfig(gateways=f"grpc://{bookie.addresses['gateway']}", **config)
    async with BookKeeper.connect(config=settings) as client:
        yield Streams(client)


async def seen(look: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Returns once the gateway, which remembers metadata, has heard of a change over HTTP. Raises TimeoutError."""
    async with asyncio.timeout(20):
        while True:
            if await look() == expected:
                return
            await asyncio.sleep(0.005)


async def names_of(streams: Streams) -> list[str]:
    return [name async for page in streams.names() for name in page]


async def written(streams: Streams, name: str, password: bytes = b"") -> Stream:
    """Twenty records, each in an entry of its own, in fragments of five entries."""
    options = LedgerOptions(1, 1, 1, password=password)
    stream = await streams.create(name, options, max_fragment_entries=5)
    async with stream.writer(batch_bytes=1) as writer:
        await writer.append_all(b"record %d" % number for number in range(20))
    return stream


async def test_a_stream_from_its_creation_to_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_bookie(tmp_path) as bookie, Api(bookie) as api, streams_of(bookie) as streams:
        made = await api.done("POST", "create", "orders", {**SMALL, "max_age_seconds": 60, "password": PASSWORD})
        stream = await streams.open("orders", PASSWORD.encode())
        assert made == {"stream": "orders", "ledger_id": str(stream.ledger_id)}
        assert stream.retention == Retention(max_age_seconds=60)
        async with stream.writer() as writer:
            assert await writer.append(b"first") is not None
        assert "already" in await api.refused(409, "POST", "create", "orders", SMALL)

        kept = {"max_age_seconds": None, "max_bytes": 1000, "delete_consumed": True, "keep_for_cursors": False}
        assert await api.done(
            "PUT", "retention", "orders", {"max_bytes": 1000, "delete_consumed": True, "keep_for_cursors": False}
        ) == {"stream": "orders", **kept}

        async def retention() -> Retention:
            return (await streams.open("orders")).retention

        await seen(retention, Retention(None, 1000, True, False))

        assert await api.done("DELETE", "delete", "orders") == {"stream": "orders", "deleted": True}
        await seen(lambda: names_of(streams), [])
        for verb, what in (("DELETE", "delete"), ("PUT", "trim")):
            assert "no stream 'orders'" in await api.refused(404, verb, what, "orders", {} if verb == "PUT" else None)
        told = [record.getMessage() for record in caplog.records if "http_change" in record.getMessage()]
        assert any("/api/v1/stream/create stream:orders" in line and "status=200" in line for line in told), told
        assert PASSWORD not in caplog.text


async def test_a_trim_goes_to_an_entry_a_time_or_as_far_as_the_retention_goes(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie, Api(bookie) as api, streams_of(bookie) as streams:
        # Whoever may read its entries need not know its password.
        stream = await written(streams, "trimmed", b"planted-password")

        async def first_entry() -> int:
            return (await stream.state()).first_entry_id

        assert await first_entry() == 0
        first = (await api.done("PUT", "trim", "trimmed", {"before": "7"}))["first_entry_id"]
        assert 0 < first <= 7
        await seen(first_entry, first)
        # The snapshot of producers stays, which the next writer needs.
        assert (await api.done("PUT", "trim", "trimmed"))["first_entry_id"] == first
        yesterday = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
        assert (await api.done("PUT", "trim", "trimmed", {"before": yesterday}))["first_entry_id"] == first
        assert "no place" in await api.refused(400, "PUT", "trim", "trimmed", {"before": "2026-01-31T12:00:00"})


async def test_cursors_are_created_moved_by_compare_and_set_and_deleted(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie, Api(bookie) as api, streams_of(bookie) as streams:
        stream = await written(streams, "moved", b"planted-password")

        async def cursor(verb: str, body: Any = None) -> Any:
            return await api.done(verb, "cursor", "moved", body, cursor="billing")

        async def cursors() -> list[str]:
            return [each.name for each in await stream.cursors()]

        def place(answer: Any) -> tuple[int, int]:
            return answer["entry_id"], answer["record"]

        assert "no cursor 'billing'" in await api.refused(404, "GET", "cursor", "moved", cursor="billing")
        made = await cursor("PUT")
        assert place(made) == (0, 0)
        await seen(cursors, ["billing"])
        assert await cursor("PUT") == await cursor("GET") == made
        assert place(await cursor("PUT", {"to": "7:0"})) == (7, 0)
        assert place(await cursor("PUT", {"to": "latest", "expected": "7:0"}))[0] > 20
        # A consumer that went on meanwhile is not set back.
        told = await api.refused(409, "PUT", "cursor", "moved", {"to": "3", "expected": "7:0"}, cursor="billing")
        assert "and not at 7:0" in told
        assert place(await cursor("GET"))[0] > 20
        gone = {"to": "3", "expected": "7:0"}
        assert "no cursor" in await api.refused(404, "PUT", "cursor", "moved", gone, cursor="nobody's")
        await api.refused(404, "GET", "cursor", "moved", cursor="nobody's")
        for wrong in ({"expected": "7:0"}, {"to": "3", "expected": "latest"}, {"to": "yesterday"}, {"from": "3"}):
            await api.refused(400, "PUT", "cursor", "moved", wrong, cursor="billing")
        assert await cursor("DELETE") == {"stream": "moved", "cursor": "billing", "deleted": True}
        await seen(cursors, [])
        await api.refused(404, "DELETE", "cursor", "moved", cursor="billing")
        assert (await stream.cursor("later", RecordPosition(4, 0))).position == (4, 0)


async def test_wrong_requests_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie, Api(bookie) as api, streams_of(bookie) as streams:
        wrong: list[Any] = [
            {"max_age_seconds": 0},
            {"max_bytes": -1},
            {"max_bytes": "10"},
            {"ensemble_size": 0},
            {"ensemble_size": 1, "write_quorum_size": 2},
            {"colour": "red"},
        ]
        for body in wrong:
            await api.refused(400, "POST", "create", "wrong", body)
        for name in ("x\ny", "é" * 200):
            assert "printable" in await api.refused(409, "POST", "create", name, SMALL)
            assert "printable" in await api.refused(404, "DELETE", "delete", name)
            assert "printable" in await api.refused(404, "GET", "cursor", "wrong", cursor=name)
        await api.refused(409, "POST", "create", "wrong", SMALL, ledger_scope_id=0)
        await api.refused(400, "PUT", "retention", "wrong")
        await api.refused(409, "POST", "create", "wrong", {"ensemble_size": 2, "write_quorum_size": 2})
        assert await names_of(streams) == []


STRANGER_READS = """
[[bindings]]
principals = ["token:stranger"]
role = "reader"
"""


@pytest.mark.parametrize("stranger_reads", [False, True])
async def test_a_stream_is_its_creators_and_others_change_nothing(tmp_path: Path, stranger_reads: bool) -> None:
    security = policy_settings(tmp_path, POLICY + (STRANGER_READS if stranger_reads else ""))
    own_client = {"auth_provider": "bookgate-token", "auth_token": token_of("bookie")}
    async with running_bookie(tmp_path, **security, client=own_client) as bookie:
        async with Api(bookie, "owner") as owner, Api(bookie, "stranger") as stranger:
            made = await owner.done("POST", "create", "mine", SMALL)
            await owner.done("PUT", "cursor", "mine", cursor="c")
            assert made["stream"] == "mine"
            before = await _custom_metadata(bookie, "mine")
            assert before[OWNER_KEY] == b"token:owner"
            requests: tuple[tuple[str, str, Any, dict[str, str]], ...] = (
                ("DELETE", "delete", None, {}),
                ("PUT", "trim", {"before": "latest"}, {}),
                ("PUT", "trim", {}, {}),
                ("PUT", "retention", {"max_bytes": 1}, {}),
                ("PUT", "cursor", {"to": "5:0"}, {"cursor": "c"}),
                ("PUT", "cursor", {}, {"cursor": "new"}),
                ("DELETE", "cursor", None, {"cursor": "c"}),
            )
            for verb, what, body, query in requests:
                await stranger.refused(403, verb, what, "mine", body, **query)
            seen = (await stranger.ask("GET", "cursor", "mine", cursor="c")).status_code
            assert seen == (200 if stranger_reads else 403)
            for who in ("operator", "reader", "scraper", "nobody"):
                async with Api(bookie, who) as other:
                    for verb, what, body, query in requests:
                        await other.refused(403, verb, what, "mine", body, **query)
                    await other.refused(403, "POST", "create", f"of {who}", SMALL)
            assert await _custom_metadata(bookie, "mine") == before
            assert (await owner.ask("GET", "cursor", "mine", cursor="new")).status_code == 404, "half of it was done"
            assert (await owner.done("GET", "cursor", "mine", cursor="c"))["entry_id"] == 0
            await stranger.done("POST", "create", "stranger's", SMALL)
            if stranger_reads:
                await _own_cursor(bookie, "stranger", "mine")
                await stranger.refused(403, "DELETE", "delete", "mine")
                assert (await stranger.done("GET", "cursor", "mine", cursor="stranger's"))["entry_id"] == 3
            await owner.refused(403, "DELETE", "delete", "stranger's")
            await owner.done("PUT", "trim", "mine", {"before": "latest"})
            if stranger_reads:
                # Another's cursor is the other's to delete, or an administrator's.
                await owner.refused(403, "DELETE", "delete", "mine")
            async with Api(bookie, "admin" if stranger_reads else "owner") as whoever_may:
                await whoever_may.done("DELETE", "delete", "mine")
        async with Api(bookie, "scoped") as scoped:
            await scoped.refused(403, "POST", "create", "elsewhere", SMALL)
            await scoped.done("POST", "create", "ours", SMALL, ledger_scope_id=TEAM)
            await scoped.done("PUT", "cursor", "ours", cursor="c", ledger_scope_id=TEAM)
            await scoped.done("DELETE", "delete", "ours", ledger_scope_id=TEAM)


JANITOR = """
[roles.janitor]
actions = ["ledger.read", "ledger.list", "ledger.delete", "discovery.read", "http.read", "http.change"]
[[bindings]]
principals = ["token:scraper"]
role = "janitor"
"""


@pytest.mark.parametrize("by", ["http", "grpc"])
async def test_who_may_delete_and_not_write_deletes_nothing_of_a_stream(tmp_path: Path, by: str) -> None:
    """A deletion is several calls; the first one that is denied comes before anything is gone (A1)."""
    security = policy_settings(tmp_path, POLICY + JANITOR)
    own_client = {"auth_provider": "bookgate-token", "auth_token": token_of("bookie")}
    config = {"token": token_of("scraper"), "auth_provider": "bookgate-token"}
    async with (
        running_bookie(tmp_path, **security, client=own_client) as bookie,
        streams_of(bookie, **config) as streams,
        Api(bookie, "owner") as owner,
        Api(bookie, "scraper") as janitor,
    ):
        for name in ("fresh", "used"):
            await owner.done("POST", "create", name, SMALL)
        for cursor in ("moved", "unmoved"):
            await owner.done("PUT", "cursor", "used", cursor=cursor)
        await owner.done("PUT", "cursor", "used", {"to": "5:0"}, cursor="moved")
        for name in ("fresh", "used"):
            if by == "http":
                await janitor.refused(403, "DELETE", "delete", name)
            else:
                with pytest.raises(UnauthorizedAccessException):
                    await streams.delete(name)
        if by == "grpc":
            with pytest.raises(UnauthorizedAccessException):
                await (await streams.open("used")).delete_cursor("moved")
        for cursor in ("moved", "unmoved"):
            await owner.done("GET", "cursor", "used", cursor=cursor)
        for name in ("fresh", "used"):
            await owner.done("PUT", "trim", name, {"before": "earliest"})
            await owner.done("DELETE", "delete", name)


async def _own_cursor(bookie: BookieServer, who: str, name: str) -> None:
    """A cursor of this principal's at somebody else's stream, whose owner names it."""
    for each in (who, "admin"):
        config = {"token": token_of(each), "auth_provider": "bookgate-token"}
        async with streams_of(bookie, **config) as streams:
            stream = await streams.open(name)
            with suppress(UnauthorizedAccessException):
                await stream.cursor(f"{who}'s", RecordPosition(3, 0))


async def _custom_metadata(bookie: BookieServer, name: str) -> dict[str, bytes]:
    config = {"token": token_of("admin"), "auth_provider": "bookgate-token"}
    async with streams_of(bookie, **config) as streams:
        return dict((await streams.open(name))._record.metadata.custom_metadata)


QUOTA = """
[[quotas]]
scopes = ["7"]
ledgers = 100
[[limits]]
principals = ["token:owner"]
creates_per_second = 0.001
changes_per_second = 0.001
"""


async def test_what_a_quota_bounds_is_left_to_gateways_and_rates_count(tmp_path: Path) -> None:
    security = policy_settings(tmp_path, POLICY + QUOTA)
    async with (
        running_bookie(tmp_path, **security) as bookie,
        Api(bookie, "scoped") as scoped,
        Api(bookie, "owner") as owner,
    ):
        told = await scoped.refused(409, "POST", "create", "counted", SMALL, ledger_scope_id=TEAM)
        assert "quota" in told
        await owner.done("POST", "create", "one", SMALL)
        await owner.refused(429, "POST", "create", "two", SMALL)
        await owner.done("PUT", "retention", "one", {})
        for verb, what in (("PUT", "trim"), ("PUT", "retention"), ("DELETE", "delete")):
            await owner.refused(429, verb, what, "one", {} if verb == "PUT" else None)


async def test_without_a_token_another_sites_page_changes_nothing(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, http_token="planted-token") as bookie, streams_of(bookie) as streams:
        await streams.create("safe", LedgerOptions(1, 1, 1))
        async with httpx.AsyncClient(base_url=f"http://{bookie.addresses['http']}") as http:
            paths = (await http.get("/openapi.json")).json()["paths"]
            changes = [
                (verb, path)
                for path, verbs in paths.items()
                for verb in verbs
                if path.startswith(STREAM) and verb != "get"
            ]
            assert len(changes) == 6
            for verb, path in changes:
                query, body = {"name": "safe", "cursor": "c"}, json.dumps({})
                if not path.endswith("cursor"):
                    del query["cursor"]
                answer = await http.request(verb, path, params=query, content=body)
                assert answer.status_code == 401, path
                responses = paths[path][verb]["responses"]
                assert {"400", "401", "403", "429", "503"} <= responses.keys(), path
        assert await names_of(streams) == ["safe"]
