"""The console in a real browser, over a live cluster: every view, by clicking."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from bookgate.bookie.standalone.cluster import StandaloneCluster, make_cluster
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger import replication_control as control
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.errors import LedgerFencedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest
from bookgate.ledger.replication_progress import encode
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.clock import now_ms
from bookgate.thinclient.blocking.client import BookKeeper
from tests.integration.bookie.entry_client import KEY, EntryClient, add
from tests.integration.browser import Complaints, chromium, gateway_console, watched_page
from tests.integration.gateway.conftest import THIRD_STORE
from tests.integration.gateway.recovery_told import GIVEN_UP, told_by_a_worker

TOKEN = "planted-token for the console"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LEDGERS = 120

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Three bookies with 120 ledgers: 0 has entries, 1 has markup, every tenth is open, the others are empty."""
    options = ("--set=entry_log_max_mb=1", "--set=flush_interval_seconds=1")
    with StandaloneCluster(tmp_path_factory.mktemp("console"), bookie_options=options) as cluster:
        with BookKeeper.connect(cluster.gateway_uri) as client:
            fill(client)
        asyncio.run(make_ledgers(cluster.metadata_uri))
        yield cluster


def fill(client: BookKeeper) -> None:
    with client.create_ledger(3, 2, 2, custom_metadata={"application": b"orders", "seal": b"\xff\x00\x7f"}) as handle:
        handle.append_all([f"entry {number}".encode() for number in range(70)])
    with client.create_ledger(3, 3, 2, custom_metadata={"remark": MARKUP.encode(), MARKUP: b"key"}) as handle:
        handle.append_all([MARKUP.encode(), b"line one\nline two", bytes(range(256))])


async def make_ledgers(uri: str) -> None:
    """Metadata alone, put into the store at its back door."""
    factory = create_factory(uri, GatewayConfig.load(None, {"metadata_uri": uri}))
    await factory.initialize()
    try:
        requests = []
        for number in range(2, LEDGERS):
            custom = {"application": b"empty", "number": b"%d" % number}
            metadata = LedgerMetadata.new(["bookie-1"], 1, 1, custom_metadata=custom)
            requests.append(CreateRequest(None, metadata.close(-1, 0) if number % 10 else metadata))
        assert len(await factory.ledger_manager.create_many(requests)) == LEDGERS - 2
    finally:
        await factory.close()


@pytest.fixture(scope="module")
def browser(cluster: StandaloneCluster) -> Iterator[Browser]:
    """After the cluster: while the browser is there, no event loop can run on this thread."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def origin(cluster: StandaloneCluster) -> str:
    return f"http://{cluster.http[0]}"


@pytest.fixture
def page(browser: Browser, origin: str) -> Iterator[Page]:
    with watched_page(browser, origin) as (page, _complaints):
        yield page


def problems(page: Page) -> Locator:
    """What the banner says is wrong, except that this machine's disk is full."""
    return page.locator("#banner li").filter(has_not_text="its disks are")


def rows(page: Page, table: str) -> Any:
    return page.get_by_role("table", name=table, exact=True).locator("tbody tr")


def test_every_view_is_reached_by_its_link_and_its_key(page: Page, origin: str) -> None:
    page.goto(origin)
    expect(page).to_have_title("Cluster · Bookgate")
    expect(rows(page, "Bookies")).to_have_count(3)
    expect(rows(page, "Bookies").first).to_contain_text("this server")
    expect(page.locator("tr[data-bookie=bookie-2]")).to_contain_text(re.compile("writable.*%.*free"))
    expect(page.get_by_label("Ledgers")).to_contain_text(f"{LEDGERS}")
    expect(page.get_by_label("Ledgers")).to_contain_text("11 open")
    expect(page.get_by_label("Ledgers")).to_contain_text("none is marked as lacking copies")
    expect(problems(page)).to_have_count(0)

    page.get_by_role("link", name="Rates").click()
    expect(page.locator("figure.chart")).to_have_count(8)
    expect(page.locator(".plot canvas").first).to_be_attached()
    expect(page.locator("figure", has_text="Journal queue")).to_contain_text("records")

    page.keyboard.press("4")
    expect(page.get_by_role("region", name="Now")).to_contain_text("idle")
    page.keyboard.press("5")
    state = page.get_by_role("region", name="State")
    expect(state).to_contain_text("Auditornone")
    expect(state).to_contain_text("there is no auditor")
    expect(rows(page, "Marked ledgers")).to_have_text(["No ledger is marked here."])
    page.keyboard.press("6")
    expect(rows(page, "Streams")).to_have_text(["No streams here."])
    page.keyboard.press("2")
    expect(rows(page, "Ledgers")).to_have_count(50)
    page.keyboard.press("/")
    expect(page.get_by_label("From id")).to_be_focused()
    page.goto(f"{origin}/#/nowhere")
    expect(page.locator("main")).to_contain_text("There is nothing here")


def test_ledgers_come_in_pages_there_and_back(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers")
    first = rows(page, "Ledgers").first.locator("a")
    expect(first).to_have_text("0")
    page.get_by_role("link", name="Next").click()
    expect(first).to_have_text("50")
    page.get_by_role("link", name="Next").click()
    expect(first).to_have_text("100")
    expect(rows(page, "Ledgers")).to_have_count(LEDGERS - 100)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    page.get_by_role("link", name="Previous").click()
    expect(first).to_have_text("50")
    page.get_by_role("link", name="First").click()
    expect(first).to_have_text("0")
    expect(page.get_by_role("link", name="Previous")).to_have_count(0)


def test_ledgers_are_found_by_id_state_and_custom_metadata(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers")
    page.get_by_label("From id").fill("77")
    page.get_by_label("From id").press("Enter")
    expect(rows(page, "Ledgers").first.locator("a")).to_have_text("77")

    page.get_by_role("link", name="Clear").click()
    page.get_by_label("State").select_option("OPEN")
    page.get_by_role("button", name="Search").click()
    expect(rows(page, "Ledgers")).to_have_count(11)
    expect(page.get_by_role("status").last).to_have_text(f"11 found among {LEDGERS}")
    page.get_by_label("Custom metadata").fill("number=11")
    page.get_by_role("button", name="Search").click()
    expect(rows(page, "Ledgers")).to_have_count(1)
    expect(rows(page, "Ledgers")).to_contain_text("110")

    # What was searched is in the address: somebody else sees the same.
    page.reload()
    expect(rows(page, "Ledgers")).to_have_count(1)
    expect(page.get_by_label("Custom metadata")).to_have_value("number=11")


def test_a_ledger_shows_its_fragments_and_its_entries_as_text_and_in_hex(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers")
    page.get_by_role("link", name="0", exact=True).click()
    expect(page).to_have_url(f"{origin}/#/ledger/0")
    expect(page.get_by_role("region", name="Metadata", exact=True)).to_contain_text("3 / 2 / 2")
    expect(rows(page, "Custom metadata").filter(has_text="seal")).to_contain_text("ff007f")
    expect(rows(page, "Fragments")).to_have_count(1)
    expect(page.locator(".matrix .in")).to_have_count(3)
    entries = rows(page, "Entries")
    expect(entries).to_have_count(50)
    expect(entries.first).to_contain_text("entry 0")
    expect(entries.first.locator(".chip")).to_have_text("ok")

    page.get_by_role("button", name="Hex").click()
    expect(entries.first).to_contain_text("65 6e 74 72 79 20 30")
    page.get_by_role("link", name="Next").click()
    expect(entries).to_have_count(20)
    expect(entries.first).to_contain_text("65 6e 74 72 79 20 35 30")
    page.get_by_label("From entry").fill("69")
    page.get_by_role("button", name="Go").click()
    expect(entries).to_have_count(1)
    expect(page).to_have_url(f"{origin}/#/ledger/0?entry=69&show=hex")

    page.get_by_role("button", name="69", exact=True).click()
    opened = page.get_by_role("region", name="Entry 69")
    expect(opened.locator(".copy")).to_have_count(2)
    expect(opened.locator(".copy .chip")).to_have_text(["ok", "ok"])
    dump = f"00000000  65 6e 74 72 79 20 36 39  {'':23}  entry 69"
    expect(opened.get_by_label("Payload")).to_have_text(dump)
    expect(page.locator(".matrix .holds")).to_have_count(2)
    page.get_by_role("button", name="Text").click()
    expect(opened.get_by_label("Payload")).to_have_text("entry 69")
    opened.get_by_role("button", name="Close").click()
    expect(opened).to_have_count(0)


def test_markup_of_applications_is_shown_as_text(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers?metadata=remark")
    expect(rows(page, "Ledgers")).to_contain_text(MARKUP)
    page.goto(f"{origin}/#/ledger/1")
    expect(rows(page, "Custom metadata")).to_have_count(2)
    expect(rows(page, "Custom metadata").filter(has_text="remark")).to_contain_text(MARKUP)
    expect(rows(page, "Entries").first).to_contain_text(MARKUP)
    page.get_by_role("button", name="0", exact=True).click()
    expect(page.get_by_label("Payload")).to_have_text(MARKUP)
    page.get_by_role("button", name="1", exact=True).click()
    opened = page.get_by_role("region", name="Entry 1")
    expect(opened).to_be_visible()
    assert opened.get_by_label("Payload").text_content() == "line one\nline two"
    assert page.locator("main img, main script").count() == 0


def test_each_copy_of_an_entry_is_looked_at(page: Page, cluster: StandaloneCluster, origin: str) -> None:
    """One copy is good, one has a byte changed, one was never written."""
    digest = digest_for(DigestType.CRC32C, b"planted-secret")
    good = encode_entry(digest, 5000, 0, -1, 7, b"payload")
    metadata = LedgerMetadata.new(["bookie-1", "bookie-2", "bookie-3"], 3, 2, password=b"planted-secret").close(1, 14)
    with BookKeeper.connect(cluster.gateway_uri) as client:
        client.ledger_manager.create(LedgerId(0, 5000), metadata)
    for address, body in ((cluster.bookies[0], good), (cluster.bookies[1], good[:-1] + b"!")):
        with EntryClient(address) as bookie:
            assert bookie.status(add(5000, 0, key=KEY, body=body)) == 0
    page.goto(f"{origin}/#/ledger/5000")
    entries = rows(page, "Entries")
    expect(entries.nth(0)).to_contain_text("payload")
    expect(entries.nth(1)).to_contain_text("unreadable")
    page.get_by_role("button", name="0", exact=True).click()
    expect(page.locator(".copy")).to_have_text(
        [re.compile("bookie-1ok"), re.compile("bookie-2bad digest"), re.compile("bookie-3missing")]
    )
    page.get_by_role("button", name="1", exact=True).click()
    expect(page.get_by_role("region", name="Entry 1")).to_contain_text("No bookie has a good copy")
    with BookKeeper.connect(cluster.gateway_uri) as client:
        client.delete_ledger(5000)


def test_what_the_page_shows_of_numbers_and_bytes(page: Page, origin: str) -> None:
    page.goto(origin)
    shown = page.evaluate(
        """async () => {
            const f = await import("/console/format.js");
            const r = await import("/console/rates.js");
            const told = (points) => ({ keptSeconds: 600, points, charts: [
                { title: "Entries", unit: "count/s", series: [{ name: "adds", label: "added" }] },
                { title: "Latency", unit: "ms", series: [{ name: "p99", label: "add" }] },
            ] });
            const known = new r.Known();
            known.take({ a: told([[2000, 1, 5], [4001, 2, null]]), b: told([[2001, 10, 7]]), c: null });
            return {
                bytes: [0, 1023, 1536, 5 * 2 ** 30].map(f.bytes),
                count: [f.count(1234567), f.count("9223372036854775807")],
                short: [12, 3.44, 4012, 12345, 4.1e6].map(f.short),
                span: [5, 90, 3700, 86400 * 3].map(f.span),
                hex: f.hexDump(new Uint8Array([104, 105, 0, 255])),
                text: [
                    f.asText(new Uint8Array([9, 65, 0, 10, 255])),
                    f.asText(new TextEncoder().encode("é\\n\\u202e"), true),
                ],
                together: known.charts("cluster").map((chart) => [chart.times, chart.columns]),
                silent: known.silent(),
            };
        }"""
    )
    assert shown == {
        "bytes": ["0 B", "1,023 B", "1.5 KiB", "5.0 GiB"],
        "count": ["1,234,567", "9,223,372,036,854,775,807"],
        "short": ["12", "3.4", "4,012", "12.3k", "4.1M"],
        "span": ["5 s", "1 min", "1 h", "3 d"],
        "hex": "00000000  68 69 00 ff" + " " * 39 + "hi..",
        "text": [" A· ·", "é\n·"],
        # Up to where all have told: sums, and of latencies the longest.
        "together": [[[2000], [[11]]], [[2000], [[7]]]],
        "silent": ["c"],
    }


def test_garbage_is_collected_and_compaction_suspended_by_hand(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/collection")
    page.get_by_role("button", name="Run now").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("region", name="Since the start")).to_contain_text("0 runs")
    page.get_by_role("button", name="Run now").click()
    page.get_by_role("dialog").get_by_role("button", name="Run").click()
    expect(page.get_by_role("region", name="Since the start")).to_contain_text(re.compile("1 run,"))
    expect(page.get_by_role("region", name="Now")).to_contain_text("last run ended")
    minor = rows(page, "Compaction").first
    minor.get_by_role("button", name="Suspend").click()
    expect(minor).to_contain_text("suspended")
    minor.get_by_role("button", name="Resume").click()
    expect(minor).to_contain_text("allowed")


def test_an_open_console_follows_a_bookie_that_is_killed_and_comes_back(
    browser: Browser, cluster: StandaloneCluster, origin: str
) -> None:
    with watched_page(browser, origin) as (page, complaints):
        # A bookie that is away is asked for nothing.
        complaints.allowed_statuses = {404}
        follow_a_bookie_that_is_killed(page, cluster, origin)


def follow_a_bookie_that_is_killed(page: Page, cluster: StandaloneCluster, origin: str) -> None:
    page.goto(f"{origin}/#/ledger/1")
    copies = rows(page, "Entries").first.get_by_role("cell").nth(2)
    expect(copies).to_have_text(re.compile("^bookie-., bookie-., bookie-.$"))
    victim = cluster.processes[2]
    victim.kill()
    expect(copies).to_contain_text("2 of 3 up")
    expect(copies.locator(".away")).to_have_text("bookie-3")
    page.goto(f"{origin}/#/ledgers")
    expect(rows(page, "Ledgers")).to_have_count(50)
    expect(page.locator("#banner")).to_contain_text("bookie-3")
    expect(page.locator("#banner")).to_contain_text("only 2 of 3 bookies can be written")
    page.get_by_role("link", name="Cluster").click()
    expect(page.locator("tr[data-bookie=bookie-3] .chip").first).to_have_text(re.compile("no answer|not registered"))
    expect(page.get_by_label("Bookies").first).to_contain_text("1 away")
    # Whoever goes there has to know where it was, and since when it is away.
    away = page.locator("tr[data-bookie=bookie-3]")
    expect(away).to_contain_text(re.compile(r"not registeredfor \d+ s"))
    expect(away).to_contain_text(cluster.http[2])
    away.get_by_role("link", name="bookie-3").click()
    expect(page.get_by_role("region", name="Where it is")).to_contain_text(cluster.http[2])
    victim.start()
    victim.wait_until_serving()
    expect(problems(page)).to_have_count(0)


_CHANGE_WITHOUT_CSRF = "fetch('/api/v1/bookie/gc', {method: 'PUT'}).then((answer) => answer.status)"


@pytest.fixture
def guarded(browser: Browser, tmp_path: Path) -> Iterator[tuple[Page, Complaints]]:
    """The console of one bookie with a token."""
    with StandaloneCluster(tmp_path, bookies=1, bookie_options=(f"--set=http_token={TOKEN}",)) as cluster:
        with BookKeeper.connect(cluster.gateway_uri) as client, client.create_ledger(1, 1, 1) as handle:
            handle.append(b"confidential")
        origin = f"http://{cluster.http[0]}"
        with watched_page(browser, origin, scheme="dark") as (page, complaints):
            page.goto(origin)
            yield page, complaints


def test_entries_and_changes_ask_for_the_token(guarded: tuple[Page, Complaints]) -> None:
    page, complaints = guarded
    complaints.allowed_statuses = {401, 403, 404}
    page.get_by_role("link", name="Ledgers").click()
    page.get_by_role("link", name="0", exact=True).click()
    locked = page.get_by_role("region", name="Entries")
    expect(locked).to_contain_text("with the token only")
    locked.get_by_role("button", name="Log in").click()
    token = page.get_by_role("dialog").get_by_label("Token", exact=True)
    token.fill("wrong")
    token.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("not a token of this server")
    token.fill(TOKEN)
    token.press("Enter")
    expect(rows(page, "Entries")).to_contain_text("confidential")
    # The browser holds a session that no script reads, and it outlives the page, not a logout.
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.reload()
    expect(rows(page, "Entries")).to_contain_text("confidential")
    assert page.evaluate(_CHANGE_WITHOUT_CSRF) == 403
    page.goto(page.url.replace("#/ledger/0", "#/cluster"))
    page.locator("#server").get_by_role("button", name="Log out").click()
    expect(page.locator("#server").get_by_role("button", name="Log in")).to_be_visible()
    bookie_1 = page.locator("tr[data-bookie=bookie-1]")
    bookie_1.get_by_role("button", name="Set read-only").click()
    page.get_by_role("dialog").get_by_role("button", name="Set read-only").click()
    token.fill("wrong")
    token.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("not a token of this server")
    token.fill(TOKEN)
    token.press("Enter")
    expect(page.locator("tr[data-bookie=bookie-1] .chip").first).to_have_text("read-only")
    expect(page.locator("#banner")).to_contain_text("is read-only")
    bookie_1.get_by_role("button", name="Set writable").click()
    page.get_by_role("dialog").get_by_role("button", name="Set writable").click()
    expect(page.locator("tr[data-bookie=bookie-1] .chip").first).to_have_text("writable")

    page.goto(page.url.replace("#/cluster", "#/ledger/0"))
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type 0").fill("1")
    dialog.get_by_role("button", name="Delete for good").click()
    expect(dialog).to_contain_text("That is not 0")
    dialog.get_by_label("Type 0").fill("0")
    dialog.get_by_role("button", name="Delete for good").click()
    expect(rows(page, "Ledgers")).to_have_text(["No ledger here."])
    page.go_back()
    expect(page.locator("main")).to_contain_text("there is no ledger 0")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("#server").get_by_role("button", name="Log in")).to_be_visible()


def test_behind_a_proxy_that_sends_the_token_nobody_is_asked_for_it(guarded: tuple[Page, Complaints]) -> None:
    page, _complaints = guarded
    page.context.set_extra_http_headers({"Authorization": f"Bearer {TOKEN}"})
    page.reload()
    expect(page.locator("#server .principal")).to_have_text("token:http_token")
    expect(page.locator("#server button")).to_have_count(0)
    bookie_1 = page.locator("tr[data-bookie=bookie-1]")
    bookie_1.get_by_role("button", name="Set read-only").click()
    page.get_by_role("dialog").get_by_role("button", name="Set read-only").click()
    expect(bookie_1.locator(".chip").first).to_have_text("read-only")
    page.get_by_role("link", name="Ledgers").click()
    page.get_by_role("link", name="0", exact=True).click()
    expect(rows(page, "Entries")).to_contain_text("confidential")


@contextmanager
def endangered(metadata_uri: str) -> Iterator[None]:
    """Bookie 3 is to be emptied: 60 ledgers are marked, a worker holds the lock of ledger 3; 4 has a corrupt copy."""
    ready, over = threading.Event(), threading.Event()

    async def hold() -> None:
        factory = create_factory(metadata_uri, GatewayConfig.load(None, {"metadata_uri": metadata_uri}))
        await factory.initialize()
        store = factory.replication_metadata
        try:
            await control.begin_draining(factory, "bookie-3", 5000)
            marks = [await store.mark(number, ["bookie-3"] if number > 2 else [], 5000) for number in range(2, 62)]
            assert await store.try_lock(3, "worker of a test") is not None
            corrupt, record = RecordKind.CORRUPT_LEDGER, b'{"copies": {"bookie-2": [[0, 0]]}}'
            version = await store.write_record(corrupt, "4", record, None)
            told = told_by_a_worker(now_ms())
            # So that the ledger that the test has locked is under repair.
            told = replace(told, moving=[replace(each, ledger_id=3) for each in told.moving])
            await store.write_record(RecordKind.PROGRESS, "worker.test", encode(told), None)
            await store.write_record(RecordKind.UNRECOVERABLE_LEDGER, "5", GIVEN_UP, None)
            ready.set()
            await asyncio.to_thread(over.wait)
            await store.remove_record(RecordKind.PROGRESS, "worker.test")
            await store.remove_record(RecordKind.UNRECOVERABLE_LEDGER, "5")
            await store.remove_record(corrupt, "4", version)
            await control.end_draining(store, "bookie-3")
            for mark in marks:
                assert await store.delete_mark(mark.value.ledger_id, mark.version)
        finally:
            await factory.close()

    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(lambda: asyncio.run(hold()))
        try:
            assert ready.wait(20), "nothing was marked"
            yield
        finally:
            over.set()
            holding.result()


def test_marks_come_in_pages_and_say_who_repairs(page: Page, cluster: StandaloneCluster, origin: str) -> None:
    with endangered(cluster.metadata_uri):
        page.goto(f"{origin}/#/autorecovery")
        marked = rows(page, "Marked ledgers")
        expect(marked).to_have_count(50)
        expect(marked.first).to_have_text(re.compile("^2misplaced"))
        expect(marked.nth(1)).to_have_text(re.compile("^3under-replicatedbeing repairedbookie-3"))
        expect(marked.nth(2)).to_have_text(re.compile("^4corrupt copiesbookie-3"))
        expect(page.get_by_role("region", name="State")).to_contain_text("Ledgers with corrupt copies1")
        expect(rows(page, "Being repaired")).to_have_text(["3worker of a test1,000 B, 10 of 20 entries1 min ago"])
        expect(rows(page, "Endangered")).to_have_text(["last copy3403.9 KiB"])
        region = page.get_by_role("region", name="Endangered")
        for text in (
            "To be repaired3 ledgers, 2.9 KiB",
            "Copied10 B/s, 0.25 entries/s",
            "Repaired2 ledgers a minute",
            "Done inabout 5 min",
            "Oldest7, marked 1 h ago",
        ):
            expect(region).to_contain_text(text)
        expect(rows(page, "Bookies whose copies are made again")).to_have_text(["a:11 of 41 min"])
        lost = rows(page, "Unrecoverable ledgers")
        expect(lost).to_have_text([re.compile("^5no copy is left of 3 entries: 4, 5, 6a:1: lost, b:1: lacks 3")])
        expect(rows(page, "Bookies that lose their ledgers")).to_have_text([re.compile("^bookie-3draining.* ago")])
        page.get_by_role("link", name="Next").click()
        expect(marked).to_have_count(10)
        expect(marked.first).to_have_text(re.compile("^52under-replicated"))
        page.get_by_role("link", name="Previous").click()
        expect(marked).to_have_count(50)
        page.goto(f"{origin}/#/ledger/4")
        expect(page.get_by_role("region", name="Repair")).to_contain_text("Corrupt copies atbookie-2")
        page.get_by_role("link", name="Cluster").click()
        expect(page.locator("tr[data-bookie=bookie-3] .chip")).to_have_text(["writable", "draining"])


@pytest.fixture
def repairing(browser: Browser, tmp_path: Path) -> Iterator[tuple[Page, StandaloneCluster]]:
    """Auto-recovery at two bookies, which take changes with a token; ledger 0 is at both, 1 at the second only."""
    options = (f"--set=http_token={TOKEN}", "--set=auto_recovery=true", "--set=lost_bookie_recovery_delay_seconds=3600")
    with StandaloneCluster(tmp_path, bookies=2, bookie_options=options) as cluster:
        with BookKeeper.connect(cluster.gateway_uri) as client:
            with client.create_ledger(2, 2, 2) as handle:
                handle.append(b"both have it")
            digest = digest_for(DigestType.CRC32C, b"")
            metadata = LedgerMetadata.new(["bookie-2"], 1, 1).close(0, 4)
            client.ledger_manager.create(LedgerId(0, 1), metadata)
            with EntryClient(cluster.bookies[1]) as bookie:
                assert bookie.status(add(1, 0, key=KEY, body=encode_entry(digest, 1, 0, -1, 4, b"lost"))) == 0
        origin = f"http://{cluster.http[0]}"
        with watched_page(browser, origin) as (page, complaints):
            # An audit is refused while auto-recovery is disabled.
            complaints.allowed_statuses = {409}
            yield page, cluster


@pytest.mark.long
def test_auto_recovery_is_switched_and_shows_what_a_lost_bookie_endangers(
    repairing: tuple[Page, StandaloneCluster],
) -> None:
    page, cluster = repairing
    origin = f"http://{cluster.http[0]}"
    page.goto(f"{origin}/#/autorecovery")
    state, dialog = page.get_by_role("region", name="State"), page.get_by_role("dialog")
    expect(state).to_contain_text(re.compile("Auditorbookie-[12]"))
    expect(state).to_contain_text("3,600 s")
    expect(state.locator(".chip")).to_have_text("enabled")

    # Each change needs the token, which is asked for once.
    state.get_by_role("button", name="Disable").click()
    dialog.get_by_role("button", name="Disable").click()
    dialog.get_by_label("Token", exact=True).fill(TOKEN)
    dialog.get_by_role("button", name="Use it").click()
    expect(state.locator(".chip")).to_have_text("disabled")
    expect(state).to_contain_text("Nothing is marked or repaired: auto-recovery is disabled")
    state.get_by_role("button", name="Audit now").click()
    dialog.get_by_role("button", name="Audit").click()
    expect(dialog).to_contain_text("auto-recovery is disabled")
    dialog.get_by_role("button", name="Close").click()
    state.get_by_role("button", name="Enable").click()
    dialog.get_by_role("button", name="Enable").click()
    expect(state.locator(".chip")).to_have_text("enabled")

    victim = cluster.processes[1]
    victim.terminate()
    victim.wait()
    away = rows(page, "Bookies that lose their ledgers")
    expect(away).to_have_text([re.compile("bookie-2missed.* ago")])
    expect(rows(page, "Marked ledgers")).to_have_text(["No ledger is marked here."])
    state.get_by_role("button", name="Audit now").click()
    dialog.get_by_role("button", name="Audit").click()
    expect(state).to_contain_text("The auditor was told")
    marked = rows(page, "Marked ledgers")
    expect(marked).to_have_text(
        [re.compile("^0under-replicated.*bookie-2.* ago"), re.compile("^1unrecoverable.*bookie-2.* ago")]
    )
    expect(state).to_contain_text("Marked ledgers2")
    expect(rows(page, "Unrecoverable ledgers")).to_have_text(
        [re.compile("^1no copy is left of 1 entry: 0bookie-2.* ago")]
    )

    rows(page, "Unrecoverable ledgers").get_by_role("link", name="1").click()
    expect(page.locator(".title .chip")).to_have_text(["closed", "unrecoverable"])
    expect(page.get_by_role("region", name="Repair")).to_contain_text("no copy is left of 1 entry: 0")
    page.goto(f"{origin}/#/ledger/0")
    expect(page.locator(".title .chip")).to_have_text(["closed", "under-replicated"])
    page.get_by_role("link", name="Ledgers").click()
    expect(rows(page, "Ledgers").locator(".chip")).to_have_text(
        ["closed", "under-replicated", "closed", "unrecoverable"]
    )
    page.get_by_role("link", name="Cluster").click()
    expect(page.locator("tr[data-bookie=bookie-2] .chip")).to_have_text(["not registered", "missed"])
    expect(page.locator("#banner li.error").last).to_contain_text("2 ledgers lack copies, 1 can't be repaired")
    expect(page.get_by_label("Ledgers")).to_contain_text("2 lack copies, 1 can't be repaired")

    # Back again, the bookie has what was thought lost.
    victim.start()
    victim.wait_until_serving()
    page.get_by_role("link", name="Auto-recovery").first.click()
    expect(away).to_have_text(["None is missed, and none is to be emptied."])
    # A repair that failed waits a while for its next turn.
    expect(rows(page, "Unrecoverable ledgers")).to_have_text(["None."], timeout=60_000)
    expect(marked).to_have_text(["No ledger is marked here."], timeout=60_000)
    expect(page.locator("#banner")).not_to_contain_text("lack copies")


@contextmanager
def gateway_alone(browser: Browser, metadata_uri: str, *more_paths: Path) -> Iterator[tuple[Page, str]]:
    """The console of a gateway process without a bookie, and its address."""
    with (
        gateway_console(metadata_uri, paths=more_paths) as origin,
        watched_page(browser, origin) as (page, _complaints),
    ):
        yield page, origin


def test_a_bookie_has_a_page_and_any_bookie_is_made_read_only_from_it(page: Page, origin: str) -> None:
    page.goto(origin)
    page.locator("tr[data-bookie=bookie-2]").get_by_role("link", name="bookie-2").click()
    expect(page).to_have_title("Bookie bookie-2 · Bookgate")
    expect(page.locator("figure", has_text="Entries")).to_contain_text("added")
    expect(page.get_by_role("region", name="Settings in force")).to_contain_text("entry_log_max_mb")
    log = page.get_by_role("region", name="Log")
    log.get_by_text("Show it").click()
    expect(log).to_contain_text("bookie=bookie-2")
    log.get_by_role("combobox", name="Level").select_option("errors")
    expect(log).to_contain_text("No line of this level")
    page.get_by_role("button", name="Set read-only").click()
    page.get_by_role("dialog").get_by_role("button", name="Set read-only").click()
    expect(page.locator(".title .chip").first).to_have_text("read-only")
    page.get_by_role("button", name="Set writable").click()
    page.get_by_role("dialog").get_by_role("button", name="Set writable").click()
    expect(page.locator(".title .chip").first).to_have_text("writable")
    page.get_by_role("link", name="Its ledgers").click()
    expect(rows(page, "Ledgers")).to_have_count(2)


def test_rates_of_the_cluster_are_gathered_from_all_bookies(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/rates?of=bookies")
    expect(page.locator("figure", has_text="Entries: added")).to_contain_text(
        re.compile("bookie-1.*bookie-2.*bookie-3")
    )
    page.get_by_label("Rates of").select_option("bookie-3")
    expect(page.locator(".rates-head")).to_contain_text("What bookie-3 does")
    page.get_by_label("Rates of").select_option("cluster")
    expect(page.locator(".rates-head")).to_contain_text("All bookies together")
    expect(page.locator("figure", has_text="Clients")).to_contain_text(re.compile(r"connections\s*\d"))


def test_entries_are_searched_shown_as_json_downloaded_and_decoded(
    page: Page, origin: str, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "by", "type": "string"}],
    }
    packed = io.BytesIO()
    fastavro.schemaless_writer(packed, schema, {"id": 7, "by": "Ada"})
    with BookKeeper.connect(cluster.gateway_uri) as client, client.create_ledger() as handle:
        handle.append_all([b'{"order": %d}' % number for number in range(200)])
        handle.append(packed.getvalue())
    ledger_id = handle.ledger_id.low
    page.goto(f"{origin}/#/ledger/{ledger_id}?show=json")
    page.get_by_label("Holding").fill('"order": 17')
    page.get_by_role("button", name="Go").click()
    expect(rows(page, "Entries")).to_have_count(11)  # 17, and 170 to 179
    page.get_by_role("button", name="17", exact=True).click()
    expect(page.get_by_label("Payload", exact=True)).to_have_text('{\n  "order": 17\n}')
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download").click()
    assert downloaded.value.path().read_bytes() == b'{"order": 17}'

    page.goto(f"{origin}/#/ledger/{ledger_id}?show=avro&entry=200")
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    expect(rows(page, "Entries")).to_contain_text("choose a schema file")
    page.get_by_label("Schema file").set_input_files(tmp_path / "order.avsc")
    expect(rows(page, "Entries")).to_contain_text('{"id":7,"by":"Ada"}')


def test_an_open_ledger_is_followed_and_then_recovered(page: Page, origin: str, cluster: StandaloneCluster) -> None:
    with BookKeeper.connect(cluster.gateway_uri) as client:
        writer = client.create_ledger()
        writer.append_all([b"first", b"second"])
        ledger_id = writer.ledger_id.low
        page.goto(f"{origin}/#/ledger/{ledger_id}")
        page.get_by_role("button", name="Follow").click()
        writer.append_all([b"appended while it is looked at"])
        expect(rows(page, "Entries").last).to_contain_text("appended while it is looked at")
        page.get_by_role("button", name="Stop following").click()
        page.get_by_role("button", name="Recover and close").click()
        page.get_by_label(f"Type {ledger_id}").fill(str(ledger_id))
        page.get_by_role("dialog").get_by_role("button", name="Recover and close").click()
        expect(page.locator(".title")).to_contain_text("closed")
        with pytest.raises(LedgerFencedException):
            writer.append(b"too late")


def test_ledgers_are_filtered_by_size_and_age(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers?size=empty&metadata=application%3Dempty")
    expect(page.get_by_role("status").last).to_contain_text("found among")
    expect(rows(page, "Ledgers")).to_have_count(50)
    page.goto(f"{origin}/#/ledgers?age=old")
    expect(rows(page, "Ledgers")).to_have_text(["No ledger here."])


def test_a_phone_shows_every_view_without_scrolling_the_page_sideways(browser: Browser, origin: str) -> None:
    with watched_page(browser, origin) as (page, _complaints):
        page.set_viewport_size({"width": 390, "height": 844})
        for view in ("cluster", "bookie/bookie-1", "ledgers", "ledger/0", "rates", "collection", "autorecovery"):
            page.goto(f"{origin}/#/{view}")
            expect(page.locator("nav a[aria-current=page]")).to_be_visible()
            expect(page.get_by_role("link", name="Auto-recovery").first).to_be_in_viewport()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        page.goto(f"{origin}/#/ledger/0")
        payload = page.locator("td.payload").first
        payload.scroll_into_view_if_needed()
        box = payload.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390


def test_a_gateway_alone_says_what_it_does_not_have(browser: Browser, cluster: StandaloneCluster) -> None:
    with gateway_alone(browser, cluster.metadata_uri) as (page, origin):
        page.goto(origin)
        expect(rows(page, "Bookies")).to_have_count(3)
        expect(rows(page, "Bookies").first).to_contain_text("not on this server")
        page.get_by_role("link", name="Garbage collection").click()
        expect(page.locator("main")).to_contain_text("not on this server")
        expect(page.get_by_role("link", name="bookie-1")).to_have_attribute(
            "href", f"http://{cluster.http[0]}/#/collection"
        )
        page.goto(f"{origin}/#/ledger/0")
        expect(rows(page, "Fragments")).to_have_count(1)
        expect(page.get_by_role("region", name="Entries")).to_contain_text("not on this server")
        page.goto(f"{origin}/#/rates")
        expect(page.locator("figure.chart")).to_have_count(2)


def test_a_store_without_auto_recovery_is_said(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(THIRD_STORE))
    uri = f"tiny://{tmp_path}/tiny"
    make_cluster(uri)
    with gateway_alone(browser, uri, THIRD_STORE) as (page, origin):
        page.goto(f"{origin}/#/autorecovery")
        expect(page.locator("main")).to_contain_text("No auto-recovery in this cluster")
        expect(page.get_by_role("button", name="Enable")).to_have_count(0)


def test_pages_are_guarded_and_told_apart_by_their_content(origin: str) -> None:
    with urllib.request.urlopen(f"{origin}/", timeout=10) as response:
        headers, page = response.headers, response.read().decode()
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "//" not in page.replace("<!doctype html>", "")
    again = urllib.request.Request(f"{origin}/", headers={"If-None-Match": headers["ETag"]})
    with pytest.raises(urllib.error.HTTPError, match="304"):
        urllib.request.urlopen(again, timeout=10)
