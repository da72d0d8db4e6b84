"""The console's list of ledgers and the numbers of its gateway, in a real browser: a gateway without a bookie."""

from __future__ import annotations

import asyncio
import csv
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import CreateRequest, LedgerRecord
from bookgate.runtime.security.static_tokens import new_token
from tests.integration.browser import Complaints, chromium, gateway_console, watched_page

LEDGERS = 60
MANY = 10_100
"""In a scope of their own: more than two answers look at."""
POLICY = """
[roles.looker]
actions = ["http.read", "ledger.list", "ledger.read"]
[[bindings]]
principals = ["token:cleaner"]
role = "looker"
[[bindings]]
principals = ["token:cleaner"]
role = "writer"
owned = true
[[limits]]
principals = ["token:cleaner"]
changes_per_second = 1
"""

expect.set_options(timeout=20_000)


def closed(length: int, **custom: bytes) -> LedgerMetadata:
    made = LedgerMetadata.new(["bookie-1"], 1, 1, custom_metadata=custom)
    return made.close(0 if length else -1, length)


def make(uri: str, ledgers: Sequence[LedgerMetadata], scope_id: int = 0) -> list[str]:
    """Puts ledgers into the store at its back door. Returns their ids."""

    async def made() -> list[str]:
        factory = create_factory(uri, GatewayConfig.load(None, {"metadata_uri": uri}))
        await factory.initialize()
        try:
            names: list[LedgerId | None] = [LedgerId(scope_id, n) if scope_id else None for n in range(len(ledgers))]
            requests = [CreateRequest(name, each) for name, each in zip(names, ledgers, strict=True)]
            created = await factory.ledger_manager.create_many(requests)
            ids = [str(each.ledger_id.low) for each in created if isinstance(each, LedgerRecord)]
            assert len(ids) == len(ledgers), created[:3]
            return ids
        finally:
            await factory.close()

    with ThreadPoolExecutor(1) as thread:  # the browser has an event loop on this one
        return thread.submit(lambda: asyncio.run(made())).result()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 ledgers, of which every tenth is open and the others have 0 to 370 bytes; many in scope 3."""
    uri = f"sqlite://{tmp_path_factory.mktemp('ledgers')}/metadata.db"
    make_cluster(uri)
    ledgers = [closed(number * 37 % 380, number=b"%d" % number) for number in range(LEDGERS)]
    ledgers[::10] = [LedgerMetadata.new(["bookie-1"], 1, 1)] * len(ledgers[::10])
    make(uri, ledgers)
    make(uri, [closed(0)] * MANY, scope_id=3)
    return uri


@pytest.fixture(scope="module")
def origin(uri: str) -> Iterator[str]:
    with gateway_console(uri) as origin:
        yield origin


@pytest.fixture(scope="module")
def browser(origin: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def watched(browser: Browser, origin: str) -> Iterator[tuple[Page, Complaints]]:
    with watched_page(browser, origin) as watched:
        yield watched


@pytest.fixture
def page(watched: tuple[Page, Complaints]) -> Page:
    return watched[0]


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Ledgers", exact=True).locator("tbody tr")


def column(page: Page, number: int) -> list[str]:
    return [text.strip() for text in rows(page).locator(f":nth-child({number})").all_text_contents()]


def test_what_is_shown_is_sorted_and_said_not_to_be_all(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers")
    expect(rows(page)).to_have_count(50)
    expect(page.locator("th[aria-sort]")).to_have_text(re.compile("Ledger"))
    assert page.locator(".sorted").count() == 0
    by_size = page.get_by_role("button", name="Size")
    by_size.click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text(re.compile("Size"))
    expect(page.locator(".sorted")).to_contain_text("the 50 ledgers shown, not those of other pages")
    sizes = [-1 if text == "–" else int(text.removesuffix(" B")) for text in column(page, 4)]
    # What is not known comes last, whichever way.
    assert (sizes[:-5], sizes[-5:]) == (sorted(sizes[:-5]), [-1] * 5)
    by_size.click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Size"))
    assert column(page, 4)[-5:] == ["–"] * 5
    assert column(page, 4)[0] == f"{max(sizes)} B"

    # It stays on the way through the pages, and in the address.
    page.get_by_role("link", name="Next").click()
    expect(rows(page)).to_have_count(LEDGERS - 50)
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Size"))
    page.get_by_role("button", name="Size").click()
    page.get_by_role("link", name="Previous").click()
    expect(rows(page)).to_have_count(50)
    page.reload()
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Size"))
    page.get_by_label("Rows").select_option("200")
    page.get_by_role("button", name="Search").click()
    expect(rows(page)).to_have_count(LEDGERS)
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Size"))
    assert page.locator(".sorted").count() == 0


def test_the_total_stands_beside_the_page(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers")
    expect(page.locator(".total")).to_have_text(re.compile(rf"^{LEDGERS} in all, counted \d+ s ago$"))
    page.goto(f"{origin}/#/ledgers?scope=3")
    expect(rows(page)).to_have_count(50)
    expect(page.locator(".total")).to_have_text("")


def test_the_address_of_a_ledger_names_its_scope(page: Page, origin: str) -> None:
    """Ledger 0 is open in scope 0 and closed in scope 3."""
    for query, name, state in (("", "0", "open"), ("?scope=3", f"{3:016x}{0:016x}", "closed")):
        page.goto(f"{origin}/#/ledgers{query}")
        rows(page).first.get_by_role("link").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Ledger {name}")
        expect(page.locator("main")).to_contain_text(re.compile(state, re.IGNORECASE))
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Ledger {name}")


def test_a_list_of_a_scope_from_id_0_on_is_all_of_it(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers?scope=3")
    page.get_by_label("From id").fill("0")
    page.get_by_label("From id").press("Enter")
    expect(page).to_have_url(re.compile("from=0"))
    expect(rows(page)).to_have_count(50)
    expect(rows(page).first.get_by_role("link")).to_have_text("0")
    expect(page.get_by_role("link", name="JSON")).not_to_have_attribute("href", re.compile("start_after"))


def test_a_search_that_was_stopped_goes_on(page: Page, origin: str) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "start_after=4999" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/v1/console/ledgers?*", hold)
    page.goto(f"{origin}/#/ledgers?scope=3&state=OPEN")
    status = page.get_by_role("status").last
    expect(status).to_contain_text("0 found among 5,000 so far")
    page.get_by_role("button", name="Stop").click()
    held[0].continue_()
    expect(status).to_have_text(re.compile("0 found among 10,000 so far Go on"))
    page.get_by_role("button", name="Go on").click()
    expect(status).to_have_text(re.compile("^0 found among 10,100 $"))


def test_leftovers_are_deleted_together_after_one_question(
    watched: tuple[Page, Complaints], origin: str, uri: str
) -> None:
    page, complaints = watched
    complaints.allowed_statuses = {404}
    ids = make(uri, [closed(0, kind=b"leftover") for _ in range(40)])
    page.goto(f"{origin}/#/ledgers?size=empty&metadata=kind%3Dleftover")
    expect(rows(page)).to_have_count(40)
    expect(page.get_by_role("button", name="Delete selected…")).to_be_disabled()
    page.get_by_label("Select all shown").check()
    page.get_by_label(f"Select ledger {ids[0]}", exact=True).uncheck()
    page.get_by_role("button", name="Delete 39 selected…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_label("Select all shown").check()
    # Somebody else deletes one of them meanwhile.
    assert page.request.delete(f"{origin}/api/v1/ledger/delete?ledger_id={ids[7]}").ok
    page.get_by_role("button", name="Delete 40 selected…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{', '.join(ids[:8])}, … {ids[-1]}")
    dialog.get_by_label("Type 40").fill("4")
    dialog.get_by_role("button", name="Delete for good").click()
    expect(dialog).to_contain_text("That is not 40")
    dialog.get_by_label("Type 40").fill("40")
    dialog.get_by_role("button", name="Delete for good").click()
    expect(dialog.get_by_role("status")).to_have_text("39 ledgers deleted, 1 had gone before.")
    assert dialog.get_by_label("Deleted", exact=True).evaluate("bar => bar.value / bar.max") == 1
    dialog.get_by_role("button", name="Close").click()
    expect(rows(page)).to_have_text(["No ledger here."])
    expect(page.get_by_role("status").last).to_contain_text("40 deleted since")
    listed = page.request.get(f"{origin}/api/v1/ledger/list").json()
    assert not set(ids) & set(listed)
    assert len(listed) == LEDGERS


def test_a_deletion_keeps_to_limits_and_ends_with_the_first_refusal(browser: Browser, uri: str, tmp_path: Path) -> None:
    """Two of the own ledgers at once, or one a second; then another's."""
    token, line = new_token("cleaner")
    (tmp_path / "tokens").write_text(line + "\n")
    (tmp_path / "policy.toml").write_text(POLICY)
    config = tmp_path / "gateway.toml"
    config.write_text(f'security_tokens = "{tmp_path}/tokens"\nsecurity_policy = "{tmp_path}/policy.toml"\n')
    owners = [b"token:cleaner", b"token:cleaner", b"token:cleaner", b"token:other", b"token:cleaner"]
    ids = make(uri, [closed(0, kind=b"owned", **{OWNER_KEY: owner}) for owner in owners])
    with gateway_console(uri, f"--config={config}") as guarded, watched_page(browser, guarded) as (page, complaints):
        complaints.allowed_statuses = {401, 403, 429}
        counted: list[str] = []
        page.on("request", lambda request: counted.extend(re.findall("ledger_counts", request.url)))
        page.goto(f"{guarded}/#/ledgers?metadata=kind%3Downed")
        page.get_by_label("Token", exact=True).fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(rows(page)).to_have_count(5)
        # Who may list ledgers need not be told how many there are.
        expect(page.locator(".total")).to_have_text("")
        waits = page.evaluate_handle(
            """() => { const told = new Set(); new MutationObserver(() => told.add(
                document.querySelector("dialog [role=status]")?.textContent)).observe(
                document.body, { subtree: true, childList: true, characterData: true }); return told; }"""
        )
        page.get_by_label("Select all shown").check()
        page.get_by_role("button", name="Delete 5 selected…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Type 5").fill("5")
        dialog.get_by_role("button", name="Delete for good").click()
        expect(dialog.get_by_role("status")).to_have_text(
            re.compile(
                rf"^3 ledgers deleted\. Ledger {ids[3]} was refused: .*ledger\.delete.*\. "
                r"2 ledgers are left, and still selected\.$"
            )
        )
        assert any("over a limit of the server, which takes more in 1 s" in (text or "") for text in told(waits))
        # Read or not, the account is given once.
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(rows(page)).to_have_count(2)
        expect(page.get_by_role("button", name="Delete 2 selected…")).to_be_enabled()
        assert len(counted) == 1


def told(handle: Any) -> list[str | None]:
    texts: list[str | None] = handle.evaluate("told => [...told]")
    return texts


def test_all_that_match_are_saved_as_csv_and_as_json(page: Page, origin: str) -> None:
    """Also those that are on other pages."""
    page.goto(f"{origin}/#/ledgers")
    with page.expect_download() as downloaded:
        page.get_by_role("link", name="CSV").click()
    assert downloaded.value.suggested_filename == "ledgers.csv"
    with downloaded.value.path().open(newline="") as file:
        saved = list(csv.DictReader(file))
    assert [each["ledgerId"] for each in saved][:LEDGERS] == [str(number) for number in range(LEDGERS)]
    assert (saved[1]["length"], saved[1]["customMetadata"]) == ("37", '{"number": "1"}')
    page.goto(f"{origin}/#/ledgers?state=OPEN&from=10")
    with page.expect_download() as downloaded:
        page.get_by_role("link", name="JSON").click()
    assert downloaded.value.suggested_filename == "ledgers.json"
    saved = json.loads(downloaded.value.path().read_text())
    assert [each["ledgerId"] for each in saved] == ["10", "20", "30", "40", "50"]
    # The page is still there.
    expect(rows(page)).to_have_count(5)


def test_an_address_with_a_wrong_id_is_told_so_in_the_page(page: Page, origin: str) -> None:
    page.goto(f"{origin}/#/ledgers?from=x")
    alert = page.get_by_role("alert")
    expect(alert).to_have_text('From id: "x" is no ledger\'s id, which is a whole number')
    assert alert.evaluate("element => getComputedStyle(element).paddingLeft") == "16px"


def test_the_numbers_of_a_gateway_stand_in_groups_and_are_explained(page: Page, origin: str) -> None:
    page.goto(origin)
    gateway = page.get_by_role("region", name="This gateway")
    expect(gateway.get_by_role("heading", level=3)).to_have_text(
        ["Calls", "Watches", "Registrations", "Metadata store", "Metadata cache"]
    )
    ratio = gateway.get_by_text("Hit ratio")
    expect(ratio).to_have_attribute("title", "part of all reads since the start that the cache answered")
    meaning = gateway.get_by_text("part of all reads")
    expect(meaning).to_be_hidden()
    gateway.get_by_role("button", name="Explain").click()
    expect(meaning).to_be_visible()


def test_a_number_that_the_page_does_not_know_is_shown_in_the_servers_words(page: Page, origin: str) -> None:
    page.goto(origin)
    text = page.evaluate(
        """async () => {
            const { readingsPanel } = await import("/console/readings.js");
            const gateway = [{ name: "cache_ledgers", text: "ledgers in the cache", value: 4012 },
                             { name: "new_bytes", text: "what is new", value: 2048 }];
            return readingsPanel({ gateway, server: { kind: "bookie", name: "b" } }).textContent;
        }"""
    )
    assert text.endswith("Metadata cacheLedgersledgers in the cache4,012Otherswhat is new2.0 KiB")
