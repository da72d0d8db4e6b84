"""What the console is told: pages and searches over many ledgers, counts, rates, and what is wrong with a cluster."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.console.auto_recovery import RecoveryPanel, auto_recovery_route
from bookgate.gateway.console.cluster_routes import ClusterView, Server, cluster_routes
from bookgate.gateway.console.ledger_census import LedgerStateCounts
from bookgate.gateway.console.ledger_routes import console_ledger_routes
from bookgate.gateway.console.problems import ConsoleProblem, Severity, Spaces, bookie_problems
from bookgate.gateway.console.rates import Chart, Rates, gauge, p99_of, rate_of
from bookgate.gateway.console.stale_while_refresh import Recent
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import create_app
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import VERSION_PROPERTY, BookieServiceInfo
from bookgate.ledger.errors import BKException, MetaStoreException
from bookgate.ledger.ledger_id import LedgerId, ledger_name
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory, LedgerRecord, RegisteredBookie
from bookgate.ledger.replication_control import begin_draining
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.latency import LatencyHistogram
from tests.stores import made

T = TypeVar("T")
PATH = "/api/v1/console"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def until(condition: Callable[[], T]) -> T:
    """What the condition gives once that is something. Raises TimeoutError."""
    async with asyncio.timeout(20):
        while True:
            if found := condition():
                return found
            await asyncio.sleep(0)


@asynccontextmanager
async def store(directory: Path) -> AsyncIterator[LedgerManagerFactory]:
    uri = made(f"sqlite://{directory}/metadata.db")
    factory = create_factory(uri, GatewayConfig.load(None, {"metadata_uri": uri}))
    await factory.initialize()
    try:
        yield factory
    finally:
        await factory.close()


@asynccontextmanager
async def asked(factory: LedgerManagerFactory) -> AsyncIterator[httpx.AsyncClient]:
    recovery = RecoveryPanel(factory, Clock())
    rows = [*console_ledger_routes(factory), auto_recovery_route(recovery)]
    app = create_app(rows, Access(None, loopback=True), {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http
    await recovery.close()


def metadata(**custom: bytes) -> LedgerMetadata:
    return LedgerMetadata.new(["b1", "b2", "b3"], 2, 2, custom_metadata=custom)


async def pages(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    found = []
    after = None
    while True:
        more: dict[str, Any] = {} if after is None else {"start_after": after}
        page = (await http.get(f"{PATH}/ledgers", params={**query, **more})).raise_for_status().json()
        found.append(page)
        after = page["next"]
        if after is None:
            return found


@pytest.mark.asyncio
async def test_a_listing_is_cut_into_pages_without_a_gap_or_a_repetition(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        assert await pages(http) == [{"ledgers": [], "examined": 0, "next": None}]
        await factory.ledger_manager.create_many([CreateRequest(None, metadata()) for _ in range(100)])
        found = await pages(http, limit=50)
        assert [len(page["ledgers"]) for page in found] == [50, 50]
        assert [each["ledgerId"] for page in found for each in page["ledgers"]] == [
            str(number) for number in range(100)
        ]
        assert [len(page["ledgers"]) for page in await pages(http, limit=99)] == [99, 1]
        assert found[0]["ledgers"][0]["created"] > 1_600_000_000_000


@pytest.mark.asyncio
async def test_a_search_looks_at_a_bounded_number_of_ledgers_an_answer(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        manager = factory.ledger_manager
        rare = {10: metadata(key=b"needle"), 10_999: metadata(key=b"needle").close(0, 3)}
        requests = [CreateRequest(None, rare.get(number, metadata(key=b"hay"))) for number in range(11_000)]
        await manager.create_many(requests)
        found = await pages(http, metadata="needle")
        assert [(len(page["ledgers"]), page["examined"], page["next"]) for page in found] == [
            (1, 5000, "4999"),
            (0, 5000, "9999"),
            (1, 1000, None),
        ]
        assert (await pages(http, metadata="key=needle", limit=1))[0]["next"] == "10"
        assert (await pages(http, metadata="other=needle"))[-1]["ledgers"] == []
        wrong = (await http.get(f"{PATH}/ledgers", params={"state": "closed"})).json()["error"]
        assert wrong.startswith("parameter state: it should be 'OPEN', 'IN_RECOVERY' or 'CLOSED'")
        closed = [each for page in await pages(http, state="CLOSED") for each in page["ledgers"]]
        assert [(each["ledgerId"], each["length"], each["lastEntryId"]) for each in closed] == [("10999", 3, "0")]


@pytest.mark.asyncio
async def test_one_ledger_comes_with_its_fragments_and_write_sets_and_never_with_its_password(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        long = "é".encode() * 150
        made = LedgerMetadata.new(
            ["b1", "b2", "b3"],
            2,
            2,
            password=b"planted-sesame",
            custom_metadata={"long": long, "raw": b"\xff", "text": b"a"},
        )
        made = made.with_ensemble(5, ["b1", "b4", "b3"])
        await factory.ledger_manager.create(LedgerId(0, 2**62 + 1), made)
        shown = (await http.get(f"{PATH}/ledger", params={"ledger_id": 2**62 + 1})).json()
        assert shown["ledgerId"] == "4611686018427387905"
        assert shown["writeSets"] == [[0, 1], [1, 2], [2, 0]]
        assert shown["fragments"] == [
            {"firstEntryId": "0", "lastEntryId": "4", "ensemble": ["b1", "b2", "b3"]},
            {"firstEntryId": "5", "lastEntryId": None, "ensemble": ["b1", "b4", "b3"]},
        ]
        assert [(each["key"], each["value"], each["encoding"]) for each in shown["customMetadata"]] == [
            ("long", "é" * 150, "text"),
            ("raw", "ff", "hex"),
            ("text", "a", "text"),
        ]
        assert "sesame" not in str(shown)
        # Cut in the middle of a character, it is still text.
        listed = (await http.get(f"{PATH}/ledgers")).json()["ledgers"][0]["customMetadata"][0]
        assert (listed["value"], listed["encoding"], listed["size"]) == ("é" * 100, "text", 300)
        assert (await http.get(f"{PATH}/ledger", params={"ledger_id": 1})).status_code == 404


@pytest.mark.asyncio
async def test_a_store_of_the_first_version_gets_creation_times_from_now_on(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        await factory.ledger_manager.create(None, metadata())
    with sqlite3.connect(tmp_path / "metadata.db") as connection:
        connection.execute("ALTER TABLE ledgers DROP COLUMN created_ms")
    connection.close()
    async with store(tmp_path) as factory:
        await factory.ledger_manager.create(None, metadata())
        times = [(await factory.ledger_manager.read(LedgerId(0, number))).created_ms for number in range(2)]
        assert times[0] is None
        assert times[1] is not None


@pytest.mark.asyncio
async def test_ledgers_are_counted_once_in_a_while_and_only_while_somebody_asks(tmp_path: Path) -> None:
    clock = Clock()
    async with store(tmp_path) as factory:
        manager = factory.ledger_manager
        requests = [CreateRequest(None, metadata().close(0, 1) if n % 3 else metadata()) for n in range(300)]
        await manager.create_many(requests)
        counts = LedgerStateCounts(manager, clock, clock.sleep)
        assert counts.ask() == {
            "complete": False,
            "total": 0,
            "states": {"OPEN": 0, "IN_RECOVERY": 0, "CLOSED": 0, "DAMAGED": 0},
            "ageSeconds": None,
            "error": None,
        }
        counted = await until(lambda: counts.ask() if counts.ask()["complete"] else None)
        assert counted is not None
        assert (counted["total"], counted["states"]["OPEN"], counted["states"]["CLOSED"]) == (300, 100, 200)
        await manager.create(None, metadata())
        clock.now += 59
        assert counts.ask()["total"] == 300
        clock.now += 2
        counts.ask()
        await until(lambda: counts.ask()["total"] == 301)
        await counts.close()

        class Impatient(Clock):
            """Somebody looks once and goes."""

            async def sleep(self, seconds: float) -> None:
                await super().sleep(seconds + 31)

        clock = Impatient()
        counts = LedgerStateCounts(manager, clock, clock.sleep)
        before = asyncio.all_tasks()
        counts.ask()
        (task,) = asyncio.all_tasks() - before
        await asyncio.wait_for(task, 20)
        left = counts.ask()
        assert (left["complete"], left["total"]) == (False, 100)
        await counts.close()


def test_rates_tell_of_what_happened_since_the_last_look() -> None:
    clock = Clock()
    histogram = LatencyHistogram()
    for _ in range(1000):
        histogram.record(5.0)
    total = 100.0
    series = (rate_of("r", "r", lambda: total), gauge("g", "g", lambda: 7), p99_of("p", "p", histogram))
    rates = Rates([Chart("t", "count", series)], clock, clock)
    rates.look()
    clock.now += 2
    total += 50
    for _ in range(100):
        histogram.record(0.001)
    rates.look()
    clock.now += 2
    total = 0
    rates.look()
    points = rates.shown(0)["points"]
    assert [point[1:3] for point in points] == [[None, 7], [25.0, 7], [0.0, 7]]
    assert points[1][3] == pytest.approx(1, rel=0.05)
    assert (points[0][3], points[2][3]) == (None, None)
    assert rates.shown(points[1][0])["points"] == points[2:]
    for _ in range(400):
        clock.now += 2
        rates.look()
    assert len(rates.shown(0)["points"]) == 300


@pytest.mark.asyncio
async def test_what_takes_long_is_not_waited_for_and_a_failure_leaves_what_was_known() -> None:
    clock = Clock()
    answers: list[asyncio.Future[int]] = []

    def find() -> asyncio.Future[int]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    recent = Recent(find, clock, fresh_seconds=3, wait_seconds=0)
    assert await recent.get() is None
    assert await recent.get() is None
    await asyncio.sleep(0)
    answers[0].set_result(1)
    await asyncio.sleep(0)
    assert await recent.get() == 1
    assert len(answers) == 1
    clock.now += 4
    assert await recent.get() == 1
    await asyncio.sleep(0)
    answers[1].set_exception(MetaStoreException("away"))
    assert await recent.get() == 1
    await recent.close()


@pytest.mark.asyncio
async def test_what_took_long_is_not_found_out_again_soon() -> None:
    clock = Clock()
    found = 0

    async def find() -> int:
        nonlocal found
        found += 1
        clock.now += 20
        return found

    recent = Recent(find, clock, fresh_seconds=3, rest=10)
    assert await recent.get() == 1
    clock.now += 199
    assert await recent.get() == 1
    clock.now += 2
    assert await recent.get() == 2


@pytest.mark.asyncio
async def test_marks_are_shown_a_page_at_a_time_and_counted_altogether(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        recovery = factory.replication_metadata
        for number in range(103):
            await recovery.mark(number, ["b1:1", "b2:1"] if number else [], 5000 + number)
        await recovery.write_record(
            RecordKind.UNRECOVERABLE_LEDGER,
            "101",
            b'{"entries": 3, "first_entries": [4, 5, 6], "lost_bookies": ["b1:1"], "time_ms": 7000, '
            b'"answers": {"b1:1": "lost"}}',
            None,
        )
        await recovery.write_record(RecordKind.CORRUPT_LEDGER, "3", b'{"copies": {"b3:1": [[1, 2]]}}', None)
        assert await recovery.try_lock(2, "here") is not None
        first = (await http.get(f"{PATH}/autorecovery", params={"limit": 100})).raise_for_status().json()
        assert [each["ledgerId"] for each in first["marks"]] == [str(number) for number in range(100)]
        assert first["marks"][0] == {
            "ledgerId": "0",
            "missing": [],
            "since": 5000,
            "holder": None,
            "unrecoverable": False,
            "damaged": False,
            "corruptAt": [],
        }
        assert first["marks"][3]["corruptAt"] == ["b3:1"]
        assert (first["marks"][2]["missing"], first["marks"][2]["holder"]) == (["b1:1", "b2:1"], "here")
        assert (first["next"], first["repairs"]) == ("99", [{"ledgerId": "2", "holder": "here"}])
        assert first["counts"] == {
            "marked": 103,
            "lacking": 102,
            "oldestMark": 5001,
            "unrecoverable": 1,
            "corrupt": 1,
            "ageSeconds": 0.0,
        }
        rest = (await http.get(f"{PATH}/autorecovery", params={"limit": 3, "start_after": 99})).json()
        assert [(each["ledgerId"], each["unrecoverable"]) for each in rest["marks"]] == [
            ("100", False),
            ("101", True),
            ("102", False),
        ]
        assert rest["next"] is None
        assert rest["losses"] == [
            {
                "ledgerId": "101",
                "entries": 3,
                "firstEntries": ["4", "5", "6"],
                "endIsLost": False,
                "lostBookies": ["b1:1"],
                "givenUpWith": [],
                "answers": [{"bookie": "b1:1", "answer": "lost"}],
                "since": 7000,
            }
        ]
        scoped = LedgerId(-1, 5).number
        await recovery.mark(scoped, ["b1:1"])
        behind = (await http.get(f"{PATH}/autorecovery", params={"start_after": scoped - 1})).json()
        assert [each["ledgerId"] for each in behind["marks"]] == [ledger_name(scoped)]
        assert len(str(scoped)) == 39
        for wrong in ({"limit": 101}, {"limit": 0}, {"start_after": -1}, {"start_after": 2**128}):
            assert (await http.get(f"{PATH}/autorecovery", params=wrong)).status_code == 400


@pytest.mark.asyncio
async def test_a_ledger_says_whether_it_needs_repair(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        recovery = factory.replication_metadata
        for number in range(3):
            await factory.ledger_manager.create(LedgerId(0, number), metadata())
        await factory.ledger_manager.create(LedgerId(5, 1), metadata())

        async def repair(**query: int) -> Any:
            return (await http.get(f"{PATH}/ledger", params=query)).raise_for_status().json()["repair"]

        await recovery.mark(1, ["b1"], 5000)
        await recovery.mark(2, ["b2"])
        await recovery.write_record(RecordKind.UNRECOVERABLE_LEDGER, "2", b"{}", None)
        assert await repair(ledger_id=0) is None
        shown = {"missing": ["b1"], "damaged": False, "corruptAt": [], "since": 5000, "loss": None}
        assert await repair(ledger_id=1) == shown
        await recovery.write_record(RecordKind.CORRUPT_LEDGER, "1", b'{"copies": {"b3": [[1, 2]]}}', None)
        assert await repair(ledger_id=1) == shown | {"corruptAt": ["b3"]}
        assert (await repair(ledger_id=2))["loss"]["ledgerId"] == "2"
        assert await repair(ledger_id=1, ledger_scope_id=5) is None


@pytest.mark.asyncio
async def test_a_damaged_mark_is_named_and_hides_nothing_else(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        await factory.ledger_manager.create(LedgerId(0, 1), metadata())
        await factory.replication_metadata.mark(1, ["b1"])
        await factory.replication_metadata.mark(2, ["b1"])
        with sqlite3.connect(tmp_path / "metadata.db") as connection:
            connection.execute("UPDATE replication_marks SET content = x'ff' WHERE ledger_id = 1")
        connection.close()
        shown = (await http.get(f"{PATH}/autorecovery")).raise_for_status().json()
        damaged = [(mark["ledgerId"], mark["missing"], mark["damaged"]) for mark in shown["marks"]]
        assert damaged == [("1", [], True), ("2", ["b1"], False)]
        ledger = (await http.get(f"{PATH}/ledger", params={"ledger_id": 1})).raise_for_status().json()
        assert ledger["repair"]["damaged"]


def bookie(name: str, *, writable: bool = True, read_only: bool = False, version: str = "1") -> RegisteredBookie:
    return RegisteredBookie(BookieServiceInfo(name, (), {VERSION_PROPERTY: version}), writable, read_only)


ALL_WELL = [bookie("a"), bookie("b"), bookie("c")]


@pytest.mark.parametrize(
    ("bookies", "spaces", "subjects"),
    [
        (ALL_WELL, {}, []),
        (ALL_WELL, {"a": (50, 100), "b": (50, 100), "c": (50, 100)}, []),
        (ALL_WELL, {"a": None}, ["error a", "error cluster"]),
        (ALL_WELL, {"a": (7, 100)}, ["warning a"]),
        (ALL_WELL, {"a": (1, 100)}, ["error a"]),
        ([*ALL_WELL, bookie("d", writable=False)], {}, ["error d"]),
        ([*ALL_WELL, bookie("d", writable=False, read_only=True)], {}, ["warning d"]),
        ([*ALL_WELL, bookie("d", version="2")], {}, ["warning cluster"]),
        ([bookie("a")], {}, []),
        ([], {}, ["error cluster"]),
    ],
)
def test_what_is_wrong_with_bookies(bookies: Sequence[RegisteredBookie], spaces: Spaces, subjects: list[str]) -> None:
    found: list[ConsoleProblem] = bookie_problems(bookies, spaces)
    assert [f"{problem.severity.value} {problem.subject}" for problem in found] == subjects
    assert all(problem.text and problem.advice for problem in found)
    assert found == sorted(found, key=lambda problem: problem.severity is Severity.WARNING)


@pytest.mark.asyncio
async def test_a_store_out_of_reach_is_said_beside_what_was_known(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        await factory.registration_manager.register_bookie(BookieServiceInfo("b1"), read_only=False)
        server = Server("gateway", "gateway", "bookgate/1", "zk://user:secret@host/ledgers", lambda: False, None)
        recovery = RecoveryPanel(factory, Clock())
        view = ClusterView(server, factory, Access("token", loopback=False), recovery, None, Clock())
        app = create_app(cluster_routes(view), Access(None, loopback=True), {})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            before = (await http.get(f"{PATH}/cluster")).json()
            assert (before["stale"], before["problems"], before["server"]["changes"]) == (False, [], "token")
            assert before["recovery"] == {"lacking": 0, "unrecoverable": 0}
            shown = before["bookies"][0]
            assert (shown["missedSince"], shown["isDraining"]) == (None, False)
            await begin_draining(factory, "b1", 5000)
            await factory.replication_metadata.missed_since("b1", 6000)
            shown = (await http.get(f"{PATH}/cluster")).json()["bookies"][0]
            assert (shown["missedSince"], shown["isDraining"]) == (6000, True)
            assert "secret" not in str(before)
            await factory.close()
            after = (await http.get(f"{PATH}/cluster")).json()
        assert (after["stale"], after["store"]["connected"]) == (True, False)
        assert [problem["subject"] for problem in after["problems"]] == ["metadata store"]
        assert [each["id"] for each in after["bookies"]] == ["b1"]
        await view.close()
        await recovery.close()


@pytest.mark.asyncio
async def test_ledgers_that_lack_copies_are_a_problem_of_the_cluster(tmp_path: Path) -> None:
    async with store(tmp_path) as factory:
        await factory.registration_manager.register_bookie(BookieServiceInfo("b1"), read_only=False)
        await begin_draining(factory, "b1", 5000)
        marks = factory.replication_metadata
        for number, missing in enumerate((["b2"], ["b1", "b2"], [], ["b1"])):
            # The last two are only misplaced, and only leave a bookie that is to be emptied.
            await marks.mark(number, missing, 5000)
        server = Server("gateway", "gateway", "bookgate/1", "sqlite://", lambda: False, None)
        clock = Clock()
        recovery = RecoveryPanel(factory, clock)
        view = ClusterView(server, factory, Access(None, loopback=True), recovery, None, clock)
        shown = await view.shown()
        assert shown["recovery"] == {"lacking": 2, "unrecoverable": 0}
        problems = [(each["severity"], each["text"]) for each in shown["problems"]]
        assert problems == [("warning", "2 ledgers lack copies")]
        await marks.write_record(RecordKind.UNRECOVERABLE_LEDGER, "1", b"{}", None)
        clock.now += 60
        shown = await view.shown()
        problems = [(each["severity"], each["text"]) for each in shown["problems"]]
        assert problems == [("error", "2 ledgers lack copies, 1 can't be repaired")]
        await view.close()
        await recovery.close()


@pytest.mark.asyncio
async def test_a_page_of_ledgers_says_which_of_them_need_repair(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        await factory.ledger_manager.create_many([CreateRequest(None, metadata()) for _ in range(60)])
        marks = factory.replication_metadata
        for number in (0, 7, 49, 50, 58, 70):
            await marks.mark(number, [] if number == 7 else ["b1"])
        await marks.write_record(RecordKind.UNRECOVERABLE_LEDGER, "49", b"{}", None)
        await marks.write_record(RecordKind.CORRUPT_LEDGER, "58", b'{"copies": {"b3": [[1, 2]]}}', None)
        first, second = await pages(http, limit=50)
        repairs = {each["ledgerId"]: each["repair"] for each in first["ledgers"] if each["repair"] is not None}
        fine = {"missing": ["b1"], "unrecoverable": False, "damaged": False, "corruptAt": []}
        assert repairs == {"0": fine, "7": fine | {"missing": []}, "49": fine | {"unrecoverable": True}}
        repairs = {each["ledgerId"]: each["repair"] for each in second["ledgers"] if each["repair"] is not None}
        assert repairs == {"50": fine, "58": fine | {"corruptAt": ["b3"]}}
        assert [each["repair"] for each in (await pages(http, ledger_scope_id=3))[0]["ledgers"]] == []


@pytest.mark.asyncio
async def test_damaged_metadata_is_listed_as_such(tmp_path: Path) -> None:
    async with store(tmp_path) as factory, asked(factory) as http:
        await factory.ledger_manager.create_many([CreateRequest(None, metadata()) for _ in range(3)])
        with sqlite3.connect(tmp_path / "metadata.db") as connection:
            connection.execute("UPDATE ledgers SET metadata = x'00' WHERE key = (SELECT max(key) FROM ledgers)")
        connection.close()
        outcome = (await factory.ledger_manager.read_many([LedgerId(0, 2)]))[0]
        assert isinstance(outcome, BKException)
        assert not isinstance(outcome, LedgerRecord)
        listed = (await http.get(f"{PATH}/ledgers")).json()["ledgers"]
        assert [each["state"] for each in listed] == ["OPEN", "OPEN", "DAMAGED"]
        assert "ledger 2" in listed[2]["problem"]
