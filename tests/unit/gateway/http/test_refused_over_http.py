"""What HTTP refuses by limits, by versions and by itself, and what the audit trail and the counts tell of it."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request

from bookgate.bookie.http.client_routes import OwnClient
from bookgate.bookie.http.storage_routes import storage_routes
from bookgate.gateway.console.ledger_export import ledger_export_route
from bookgate.gateway.console.ledger_routes import STEP, console_ledger_routes
from bookgate.gateway.console.pages import console_routes
from bookgate.gateway.http.access import CSRF_HEADER, Access, Asked, Need
from bookgate.gateway.http.api import AnyQuery, Call, NoBody, change, create_app, get
from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.errors import HttpError, OverLimit
from bookgate.gateway.http.openapi import document
from bookgate.gateway.http.routes.ledgers import LedgerQuery, ledger_routes
from bookgate.gateway.http.routes.session import SESSION, session_routes
from bookgate.gateway.stores import listed_ledgers
from bookgate.ledger import errors
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata, LedgerState
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import HTTP_ACTIONS, Action
from bookgate.runtime.security.audit_trail import AuditTrail
from bookgate.runtime.security.authenticators import Authenticators, NotAuthenticatedException
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import ANONYMOUS, Kind, Principal
from bookgate.runtime.security.static_tokens import StaticTokens
from bookgate.thinclient.config import ClientConfig
from tests.unit.thinclient.fakes import InMemoryLedgerManager

POLICY = """
[[bindings]]
principals = ["token:team-*"]
role = "admin"
owned = true
[[bindings]]
principals = ["token:operator", "token:slow", "token:few-ids", "token:few-bytes", "token:few-changes"]
role = "admin"
[[limits]]
principals = ["token:slow"]
calls_per_second = 0.1
[[limits]]
principals = ["token:few-ids"]
listed_ids_per_second = 0.1
[[limits]]
principals = ["token:few-bytes"]
metadata_bytes_per_second = 0.1
[[limits]]
principals = ["token:few-changes"]
changes_per_second = 0.1
"""
OWNED = """
[[bindings]]
principals = ["token:few-bytes"]
role = "admin"
owned = true
"""
LISTING = "/api/v1/ledger/list"
EXPORT = "/api/v1/console/ledgers_export?format=csv"
HELD = "/api/v1/bookie/ledgers"
METADATA = "/api/v1/ledger/metadata?ledger_id=0"
DELETE = "/api/v1/ledger/delete?ledger_id=0"
LEDGER = LedgerId.unscoped(0)


class _Names(StaticTokens):
    """Each token is its principal's name."""

    def __init__(self) -> None:
        pass

    def principal(self, token: str) -> Principal:
        if token == "wrong":
            raise NotAuthenticatedException("no such token")
        return Principal(Kind.TOKEN, token)


def metadata_of(owner: str) -> LedgerMetadata:
    made = LedgerMetadata.new(["bookie-1"], 1, 1, password=b"")
    return replace(made, custom_metadata={OWNER_KEY: owner.encode()})


class Store:
    """As much of a metadata store as the routes ask."""

    def __init__(self) -> None:
        self.ledger_manager = InMemoryLedgerManager()
        self.caught_up = 0

    @property
    def replication_metadata(self) -> None:
        raise errors.IllegalOpException("it has no auto-recovery")

    async def catch_up(self, revision: int | None) -> None:
        assert revision is None
        self.caught_up += 1


@dataclass
class Server:
    """The application, its store, and what it wrote down."""

    control: AccessControl
    store: Store = field(default_factory=Store)
    now: float = 1000.0

    def __post_init__(self) -> None:
        access = Access(None, loopback=True, names=["gateway-1"], control=self.control)
        factory = cast(Any, self.store)
        rows = [*ledger_routes(factory), *console_ledger_routes(factory), *session_routes(access)]
        rows.append(ledger_export_route(factory.ledger_manager))
        held = SimpleNamespace(config=None, ledger_ids=lambda: array("q", range(5)))
        rows += storage_routes(cast(Any, held), cast(Any, None), may_expand=False)
        self.document = document("Tested", rows, access)
        self.app = create_app(rows, access, self.document, console_routes())

    async def ask(self, path: str, token: str | None = None, verb: str = "GET", **headers: str) -> httpx.Response:
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await http.request(verb, path, headers={**shown, **named})

    async def create(self, count: int, owner: str = "token:operator") -> None:
        for _ in range(count):
            await self.store.ledger_manager.create(None, metadata_of(owner))

    def count(self, outcome: str, kind: str = Kind.TOKEN) -> int:
        return self.control.counts["http", kind, outcome]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the audit trail: who, what, to what, outcome, rule."""
    caplog.set_level(logging.INFO, "tests.audit")

    def lines() -> list[str]:
        found = [cast(Any, record.msg).fields for record in caplog.records if record.name == "tests.audit"]
        return [
            " ".join(str(each.get(key, "")) for key in ("principal", "action", "resource", "outcome", "rule")).strip()
            for each in found
        ]

    return lines


@pytest.fixture
def server() -> Server:
    trail = AuditTrail(logger=logging.getLogger("tests.audit"), clock=lambda: made.now)
    made = Server(AccessControl(Authenticators(_Names()), parse_policy(POLICY), trail))
    return made


# --- changes ---


def changes_in(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """What the log itself tells of changes."""
    found = [cast(Any, record.msg) for record in caplog.records if record.name == "bookgate.gateway.http.api"]
    return [dict(event.fields) for event in found if event.name == "http_change"]


@pytest.mark.asyncio
async def test_without_a_policy_the_log_tells_of_each_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bookgate")
    store = Store()
    await store.ledger_manager.create(None, metadata_of("nobody"))
    access = Access("letters", loopback=True)
    app = create_app([*ledger_routes(cast(Any, store)), *session_routes(access)], access, {})
    transport = httpx.ASGITransport(app, client=("192.0.2.7", 1234))
    token = {"Authorization": "Bearer letters"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        # Neither what was refused, nor what only reads or logs in.
        assert (await http.delete(DELETE)).status_code == 401
        assert (await http.get(LISTING)).status_code == 200
        assert (await http.post(SESSION, json={"token": "letters"})).status_code == 200
        assert changes_in(caplog) == []
        assert (await http.delete(DELETE, headers=token)).status_code == 200
        assert (await http.delete(DELETE, headers=token)).status_code == 404
    change = {"verb": "DELETE", "path": "/api/v1/ledger/delete ledger:0", "peer": "192.0.2.7"}
    assert changes_in(caplog) == [change | {"status": 200}, change | {"status": 404}]


@pytest.mark.asyncio
async def test_a_change_that_failed_unexpectedly_is_told_of_too(
    server: Server, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_call: Call[AnyQuery, NoBody]) -> Any:
        raise RuntimeError("inside")

    caplog.set_level(logging.INFO, "bookgate")
    row = change("DELETE", "/api/v1/ledger/delete", "Fails", fail, query=AnyQuery)
    for access in (Access(None, loopback=True), Access(None, loopback=True, control=server.control)):
        app = create_app([row], access, {})
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.7", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            answer = await http.delete(DELETE, headers={"Authorization": "Bearer operator"})
            assert answer.status_code == 500
    path = "/api/v1/ledger/delete ledger:0"
    assert changes_in(caplog) == [{"verb": "DELETE", "path": path, "peer": "192.0.2.7", "status": 500}]
    assert [line for line in told() if path in line] != []


@pytest.mark.asyncio
async def test_under_another_name_a_token_that_counts_is_served_and_no_other(
    server: Server, told: Callable[[], list[str]]
) -> None:
    await server.create(1)
    for path in (LISTING, METADATA, SESSION):
        for token, status in ((None, 403), ("wrong", 401), ("operator", 200)):
            answer = await server.ask(path, token, Host="evil.example", Origin="http://evil.example")
            assert answer.status_code == status
    assert [line for line in told() if "authenticate" in line] != []


@pytest.mark.asyncio
async def test_a_proxy_says_by_a_token_with_each_request_who_asks(server: Server) -> None:
    """The page then needs no session, and has no CSRF token."""
    shown = await server.ask(SESSION, "operator")
    assert shown.json() == {"principal": "token:operator", "csrf": None}
    assert (await server.ask(SESSION, "wrong")).json() == {"principal": None, "csrf": None}
    assert (await server.ask(SESSION)).json() == {"principal": None, "csrf": None}


@pytest.mark.asyncio
async def test_with_a_policy_the_audit_trail_alone_tells_of_a_change(
    server: Server, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bookgate")
    await server.create(1)
    assert (await server.ask(DELETE, "operator", "DELETE")).status_code == 200
    assert len(told()) == 1
    assert changes_in(caplog) == []


# --- limits ---


@pytest.mark.asyncio
async def test_who_calls_too_often_is_told_when_to_try_again(server: Server, told: Callable[[], list[str]]) -> None:
    assert (await server.ask(LISTING, "slow")).status_code == 200
    # Each refused call is told a later moment, by five seconds at most.
    for seconds in (10, 15, 15):
        refused = await server.ask(LISTING, "slow")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, str(seconds))
        told_why = f"token:slow is over its limit of calls_per_second; try again in {seconds} s"
        assert refused.json() == {"error": told_why}
    assert server.count("limited") == 3
    assert told() == ["token:slow call - limited over calls_per_second"]
    # What needs no action is answered, and others are not held up.
    assert (await server.ask(SESSION, "slow")).status_code == 200
    assert (await server.ask(LISTING, "operator")).status_code == 200
    server.now += 60
    assert (await server.ask(LISTING, "slow")).status_code == 429
    assert len(told()) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "ids"),
    [
        (f"{LISTING}?limit=3", 3),
        (f"{LISTING}?limit=2&page=2", 4),
        (f"{LISTING}?limit=9&page=9", 5),
        (f"{LISTING}?print_metadata=true", 5),
        ("/api/v1/console/ledgers?limit=4", 4),
        ("/api/v1/console/ledgers?state=CLOSED", 5),
        (f"{EXPORT}&state=CLOSED", 5),
        (f"{HELD}?limit=3", 3),
    ],
)
async def test_ids_that_were_listed_are_paid_before_the_next_listing(server: Server, path: str, ids: int) -> None:
    await server.create(5)
    assert (await server.ask(path, "few-ids")).status_code == 200
    for listing in (LISTING, "/api/v1/console/ledgers", EXPORT, HELD):
        refused = await server.ask(listing, "few-ids")
        # One was there at the beginning, and one comes every ten seconds.
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, str((ids - 1) * 10))
        assert "listed_ids_per_second" in refused.json()["error"]
    assert (await server.ask(METADATA, "few-ids")).status_code == 200


def test_the_document_says_of_which_paths_there_may_be_too_much(server: Server) -> None:
    for path, verbs in server.document["paths"].items():
        for verb, row in verbs.items():
            limited = HTTP_ACTIONS[verb.upper(), path] is not None or (verb, path) == ("post", SESSION)
            assert ("429" in row["responses"]) == limited, (verb, path)


@pytest.mark.asyncio
async def test_what_shows_nothing_of_the_cluster_is_everybodys(server: Server) -> None:
    for path in ("/", "/console/app.js", "/openapi.json"):
        assert (await server.ask(path)).status_code == 200
    assert (await server.ask("/console/nothing.js")).status_code == 404


@pytest.mark.asyncio
@pytest.mark.parametrize("path", [METADATA, "/api/v1/console/ledgers?limit=1", EXPORT])
async def test_metadata_that_were_shown_are_paid_before_the_next(server: Server, path: str) -> None:
    await server.create(2)
    assert (await server.ask(path, "few-bytes")).status_code == 200
    for asked in (METADATA, "/api/v1/console/ledger?ledger_id=0", LISTING, EXPORT):
        refused = await server.ask(asked, "few-bytes")
        assert refused.status_code == 429
        assert "metadata_bytes_per_second" in refused.json()["error"]
        assert int(refused.headers["Retry-After"]) > 1000


async def test_a_listing_goes_on_when_it_is_paid(server: Server, virtual_time: object) -> None:
    await server.create(5)
    began = _now()
    listed = await server.ask(LISTING, "few-ids")
    assert list(listed.json()) == ["0", "1", "2", "3", "4"]
    assert _now() - began == pytest.approx(40)
    began = _now()
    assert len((await server.ask(f"{LISTING}?print_metadata=true", "few-bytes")).json()) == 5
    assert _now() - began > 1000


@pytest.mark.parametrize("path", [f"{LISTING}?print_metadata=true&limit=500", EXPORT])
@pytest.mark.parametrize(("becomes", "status"), [("", 403), (OWNED, 503)], ids=["nothing", "its own"])
async def test_a_listing_breaks_off_when_its_caller_may_see_less(
    server: Server, virtual_time: object, monkeypatch: pytest.MonkeyPatch, path: str, becomes: str, status: int
) -> None:
    monkeypatch.setattr(listed_ledgers, "_MOST_A_PAGE", 100)
    await server.create(3 * STEP)
    caller = "few-bytes"

    async def revoke() -> None:
        await asyncio.sleep(1)
        policy = parse_policy(POLICY.replace(f', "token:{caller}"', "", 1) + becomes)
        monkeypatch.setattr(AccessControl, "policy", policy)

    revocation = asyncio.create_task(revoke())
    with pytest.raises(HttpError) as broken:
        await server.ask(path, caller)
    assert broken.value.status == status
    await revocation


@pytest.mark.asyncio
async def test_metadata_are_told_by_the_policy_by_which_their_ids_were_listed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.create(3)
    ranges = server.store.ledger_manager.ledger_ranges

    async def then_narrowed(*wanted: Any) -> AsyncIterator[Sequence[int]]:
        async for ids in ranges(*wanted):
            yield ids
        policy = parse_policy(POLICY.replace(', "token:few-ids"', "", 1) + OWNED.replace("bytes", "ids"))
        monkeypatch.setattr(AccessControl, "policy", policy)

    monkeypatch.setattr(server.store.ledger_manager, "ledger_ranges", then_narrowed)
    refused = await server.ask(f"{LISTING}?print_metadata=true", "few-ids")
    assert (refused.status_code, "list anew" in refused.text) == (503, True)


async def test_an_export_goes_on_when_it_is_paid(server: Server, virtual_time: object) -> None:
    await server.create(STEP + 1)
    began = _now()
    assert (await server.ask(EXPORT, "few-ids")).text.count("\n") == STEP + 2
    assert _now() - began == pytest.approx((STEP - 1) * 10)


@pytest.mark.asyncio
async def test_who_deletes_too_often_deletes_nothing(server: Server, told: Callable[[], list[str]]) -> None:
    await server.create(2)
    assert (await server.ask(DELETE, "few-changes", "DELETE")).status_code == 200
    refused = await server.ask(DELETE.replace("=0", "=1"), "few-changes", "DELETE")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
    assert list(server.store.ledger_manager.records) == [LedgerId.unscoped(1)]
    done, limited = told()
    assert done.startswith("token:few-changes ledger.delete /api/v1/ledger/delete ledger:0 200")
    assert limited == "token:few-changes call - limited over changes_per_second"


def _now() -> float:
    return asyncio.get_running_loop().time()


# --- versions ---


class Interposed:
    """Changes a ledger right behind each read of it, so often."""

    def __init__(self, ledgers: InMemoryLedgerManager, times: int, **changes: Any) -> None:
        self._read = ledgers.read
        self._ledgers = ledgers
        self._left = times
        self._changes = changes
        ledgers.read = self.read  # type: ignore[method-assign]

    async def read(self, ledger_id: LedgerId) -> Any:
        found = await self._read(ledger_id)
        if self._left:
            self._left -= 1
            self._ledgers.change(ledger_id, **self._changes)
        return found


ANOTHERS = {"custom_metadata": {OWNER_KEY: b"token:team-b"}}


@pytest.mark.asyncio
async def test_a_ledger_that_has_become_anothers_is_not_deleted(server: Server) -> None:
    await server.create(1, "token:team-a")
    # Between the check and the removal.
    Interposed(server.store.ledger_manager, 1, **ANOTHERS)
    assert (await server.ask(DELETE, "team-a", "DELETE")).status_code == 403
    assert LEDGER in server.store.ledger_manager.records
    assert server.store.caught_up == 1


@pytest.mark.asyncio
async def test_a_ledger_that_has_changed_is_looked_at_again_and_deleted(server: Server) -> None:
    await server.create(1, "token:team-a")
    Interposed(server.store.ledger_manager, 3, state=LedgerState.IN_RECOVERY)
    assert (await server.ask(DELETE, "team-a", "DELETE")).status_code == 200
    assert server.store.ledger_manager.records == {}


@pytest.mark.asyncio
async def test_a_ledger_that_never_stands_still_is_not_deleted(server: Server) -> None:
    await server.create(1)
    Interposed(server.store.ledger_manager, 1000)
    refused = await server.ask(DELETE, "operator", "DELETE")
    assert (refused.status_code, "changes all the time" in refused.json()["error"]) == (409, True)
    assert LEDGER in server.store.ledger_manager.records


@pytest.mark.asyncio
async def test_a_ledger_that_has_become_anothers_is_not_recovered(server: Server) -> None:
    await server.create(1, "token:team-a")
    Interposed(server.store.ledger_manager, 2, **ANOTHERS)
    parts = {"service_discovery": None, "catch_up": lambda revision: None}
    factory = cast(Any, SimpleNamespace(ledger_manager=server.store.ledger_manager, **parts))
    own = OwnClient(factory, "bookie-1", ClientConfig)
    query = LedgerQuery(ledger_id=0, ledger_scope_id=0)
    with pytest.raises(HttpError, match=r"token:team-a may not do this: it needs ledger\.recover") as refused:
        await own.recover(query, Caller(Principal(Kind.TOKEN, "team-a"), server.control))
    assert refused.value.status == 403
    assert server.store.ledger_manager.records[LEDGER].metadata.state is LedgerState.OPEN


@pytest.mark.asyncio
async def test_recovering_is_a_change(server: Server) -> None:
    own = OwnClient(cast(Any, server.store), "bookie-1", ClientConfig)
    caller = Caller(Principal(Kind.TOKEN, "few-changes"), server.control)
    caller.take("changes_per_second")
    with pytest.raises(OverLimit, match="changes_per_second"):
        await own.recover(LedgerQuery(ledger_id=0, ledger_scope_id=0), caller)


# --- statuses ---


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (errors.UnauthorizedAccessException("the bookie may not"), 403, None),
        (errors.TooManyRequestsException("the bookie asks too often"), 429, "1"),
        (errors.MetaStoreException("away"), 503, None),
    ],
)
async def test_what_others_refuse_this_server(
    error: errors.BKException, status: int, headers: str | None, told: Callable[[], list[str]], server: Server
) -> None:
    async def fail(_call: Call[AnyQuery, NoBody]) -> Any:
        raise error

    row = get("/fail", "Fails", fail, need=Need.WRITE)
    app = create_app([row], Access(None, loopback=True, control=server.control), {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        answer = await http.get("/fail", headers={"Authorization": "Bearer operator"})
    assert (answer.status_code, answer.json()) == (status, {"error": str(error)})
    assert answer.headers.get("Retry-After") == headers
    # The caller was let through, and this is how it ended.
    assert told() == [f"token:operator http.change /fail {status}"]


# --- what HTTP refuses by itself ---


@pytest.mark.asyncio
async def test_a_name_that_is_not_the_servers_is_written_down(server: Server, told: Callable[[], list[str]]) -> None:
    for _ in range(3):
        assert (await server.ask(LISTING, Host=f"{'evil' * 100}.example")).status_code == 403
    line = f"anonymous ledger.list {LISTING} at {'evil' * 25} denied this server is not known by that name: use"
    assert [each[: len(line)] for each in told()] == [line]
    assert server.count("denied", ANONYMOUS.kind) == 3


@pytest.mark.asyncio
async def test_pages_of_other_origins_are_written_down(server: Server, told: Callable[[], list[str]]) -> None:
    transport = httpx.ASGITransport(server.app, client=("192.0.2.7", 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        elsewhere = {"Origin": "http://evil.example"}
        login = await http.post(SESSION, json={"token": "operator"})
        session, flags = login.json(), {each.strip().lower() for each in login.headers["set-cookie"].split(";")}
        assert {"httponly", "samesite=strict", "path=/"} <= flags
        assert (await http.get(LISTING)).status_code == 200
        assert (await http.get(LISTING, headers=elsewhere)).status_code == 403
        assert (await http.post(SESSION, json={"token": "operator"}, headers=elsewhere)).status_code == 403
        assert (await http.delete(DELETE)).status_code == 403
        assert (await http.delete(SESSION)).status_code == 403
        assert (await http.delete(SESSION, headers={CSRF_HEADER: session["csrf"]})).status_code == 200
    other = "denied a page of another origin gets nothing by this session"
    csrf = f"denied a change by a session needs the header {CSRF_HEADER}, which the console sends"
    assert told() == [
        f"token:operator ledger.list {LISTING} {other}",
        # The session is in the way of another login.
        f"token:operator - {SESSION} {other}",
        f"token:operator ledger.delete /api/v1/ledger/delete {csrf}",
        f"token:operator - {SESSION} {csrf}",
    ]
    assert server.count("denied") == 4


@pytest.mark.asyncio
async def test_a_page_of_another_origin_changes_nothing_by_a_proxys_token(
    server: Server, told: Callable[[], list[str]]
) -> None:
    """The proxy adds the token to whatever a browser sends it; by its headers the browser says for which page."""
    await server.create(1)
    for headers in (
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
    ):
        refused = await server.ask(DELETE, "operator", "DELETE", **headers)
        assert refused.status_code == 403, headers
        assert "another origin" in refused.text
        assert (await server.ask(LISTING, "operator", **headers)).status_code == 200, "no page sees the answer"
    rule = "denied a page of another origin changes nothing, not by a token either"
    assert told() == [f"token:operator ledger.delete /api/v1/ledger/delete {rule}"]
    assert server.count("denied") == 3
    assert [number async for run in server.store.ledger_manager.ledger_ranges() for number in run], "it is still there"
    # The console's own page, a browser without such headers, and a program.
    own: dict[str, str]
    for own in ({"Sec_Fetch_Site": "same-origin", "Origin": "http://127.0.0.1"}, {"Origin": "http://127.0.0.1"}, {}):
        answered = await server.ask(DELETE, "operator", "DELETE", **own)
        assert "another origin" not in answered.text, own


@pytest.mark.asyncio
async def test_logins_are_written_down(server: Server, told: Callable[[], list[str]]) -> None:
    transport = httpx.ASGITransport(server.app, client=("192.0.2.7", 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        refused = await http.post(SESSION, json={"token": "operator"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert refused.status_code == 403
        for _ in range(10):
            assert (await http.post(SESSION, json={"token": "wrong"})).status_code == 401
        for _ in range(3):
            assert (await http.post(SESSION, json={"token": "operator"})).status_code == 429
    assert told()[0] == f"anonymous log-in {SESSION} denied a page of another origin can't log in here"
    assert told()[11:] == ["anonymous log-in - limited too many wrong tokens came from this address"]
    assert server.count("limited", ANONYMOUS.kind) == 3


@pytest.mark.asyncio
async def test_what_a_proxy_of_this_machine_passes_on_is_not_local() -> None:
    policy = parse_policy('[[bindings]]\nprincipals = ["local"]\nrole = "admin"\n')
    access = Access(None, loopback=True, control=AccessControl(Authenticators(), policy, AuditTrail()))
    app = create_app([get("/thing", "Shows", _shown, query=AnyQuery)], access, {})
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get("/thing")).status_code == 200
        assert (await http.get("/thing", headers={"X-Forwarded-For": "192.0.2.7"})).status_code == 401


async def _shown(_call: Call[AnyQuery, NoBody]) -> Any:
    return {}


@pytest.mark.asyncio
async def test_a_gateways_process_writes_down_who_is_not_its_bookie(
    server: Server, told: Callable[[], list[str]]
) -> None:
    access = Access("secret", loopback=True, control=server.control, passed_on=True)
    scope = {"type": "http", "method": "GET", "path": LISTING, "query_string": b"", "client": ("127.0.0.1", 1)}
    request = Request({**scope, "headers": [(b"authorization", b"Bearer guessed")]})
    with pytest.raises(HttpError) as refused:
        access.caller(Asked(Action.LEDGER_LIST, Need.CONTENT), request)
    assert refused.value.status == 401
    assert told() == [f"anonymous ledger.list {LISTING} denied only this bookie asks here"]
