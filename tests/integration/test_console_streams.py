"""The console's pages of streams in a real browser, over a cluster whose streams a client has made."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from bookgate.blocking import BookKeeper, Streams
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.ledger_id import LedgerId
from bookgate.streams import RecordPosition, Retention
from tests.integration.browser import chromium, watched_page

STRANGE = "<img src=x onerror=alert(1)>"
"""A name that must stay text."""


@pytest.fixture(scope="module")
def made(standalone_cluster: StandaloneCluster) -> str:
    """The origin of a bookie's console, once streams are there."""
    with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client)
        orders = streams.create("console-orders", retention=Retention(max_age_seconds=3600), max_fragment_entries=5)
        with orders.writer(batch_bytes=10) as writer:
            writer.append_all(b"record %d" % number for number in range(40))
        orders.cursor("billing")
        streams.create(STRANGE)
    return "http://" + standalone_cluster.http[0]


def test_streams_are_listed_and_one_is_shown(made: str) -> None:
    with chromium() as browser, watched_page(browser, made) as (page, _):
        page.goto(f"{made}/#/streams")
        table = page.get_by_role("table", name="Streams")
        expect(table.get_by_role("row", name=re.compile("console-orders"))).to_contain_text("waits for cursors")
        expect(table).to_contain_text(STRANGE)
        table.get_by_role("link", name="console-orders").click()
        expect(page.get_by_role("table", name="Cursors")).to_contain_text("billing")
        expect(page.get_by_role("region", name="Stream")).to_contain_text("Writers so far (term)1")
        assert page.get_by_role("table", name="Fragments").locator("tbody tr").count() > 3
        page.get_by_role("region", name="Stream").get_by_role("link").first.click()
        expect(page).to_have_url(re.compile("#/ledger/"))
        rows = page.get_by_role("table", name="Entries").locator("tbody tr")
        expect(rows.first).to_contain_text("truncate entry")
        expect(rows.nth(1)).not_to_contain_text("truncate")
        page.goto(f"{made}/#/stream/{quote(STRANGE, safe='')}")
        expect(page.get_by_role("heading", level=1)).to_have_text(STRANGE)
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{made}/#/streams")
        expect(table).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_cursor_that_can_not_be_read_is_shown_with_what_is_wrong(made: str) -> None:
    """The answer of the server is changed on its way: clients write no such cursor."""
    problem = "custom metadata 'bookgate.cursor' are no object"

    def damaged(route: Route) -> None:
        answer = route.fetch().json()
        for cursor in answer["cursors"]:
            nothing = {"entryId": None, "record": None, "committed": None, "problem": problem}
            cursor.update({**nothing, "may": {"move": False, "delete": False}})
        route.fulfill(json=answer)

    with chromium() as browser, watched_page(browser, made) as (page, _):
        page.route("**/api/v1/console/stream?*", damaged)
        page.goto(f"{made}/#/stream/console-orders")
        expect(page.get_by_role("table", name="Cursors").get_by_role("row", name="billing")).to_contain_text(problem)


def row_names(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).locator("tbody tr th")


def until(condition: Callable[[], bool]) -> bool:
    """Whether it holds soon: the client's gateway, which remembers metadata, hears of a change a moment later."""
    deadline = time.monotonic() + 20
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def answer(page: Page, title: str, button: str, label: str = "", text: str = "") -> None:
    """A dialog's question."""
    dialog = page.get_by_role("dialog", name=title)
    if label:
        dialog.get_by_label(label).fill(text)
    dialog.get_by_role("button", name=button, exact=True).click()


def test_an_operator_moves_and_deletes_cursors_trims_and_deletes(
    made: str, standalone_cluster: StandaloneCluster
) -> None:
    with BookKeeper.connect(standalone_cluster.gateway_uri) as client:
        streams = Streams(client)
        stream = streams.create("console-changed", max_fragment_entries=5)
        with stream.writer(batch_bytes=10) as writer:
            writer.append_all(b"record %d" % number for number in range(40))
        cursor = stream.cursor("slow")
        stream.cursor("unused")
        with chromium() as browser, watched_page(browser, made) as (page, complaints):
            page.goto(f"{made}/#/stream/console-changed")
            page.get_by_role("button", name="Move cursor slow").click()
            answer(page, "Move cursor slow", "Cancel")
            page.get_by_role("button", name="Move cursor slow").click()
            answer(page, "Move cursor slow", "Move", "Where to", "7:0")
            slow = page.get_by_role("table", name="Cursors", exact=True).get_by_role("row", name=re.compile("slow"))
            expect(slow).to_contain_text("slow70")
            assert until(lambda: cursor.refresh() == (7, 0))

            # A consumer commits between the look and the answer.
            complaints.allowed_statuses.add(409)
            page.get_by_role("button", name="Move cursor slow").click()
            cursor.commit(RecordPosition(9, 0))
            answer(page, "Move cursor slow", "Move", "Where to", "earliest")
            refused = page.get_by_role("dialog", name="That did not work")
            expect(refused).to_contain_text("and not at 7:0")
            refused.get_by_role("button", name="Close").click()
            assert cursor.refresh() == (9, 0)

            page.get_by_role("button", name="Delete cursor unused").click()
            answer(page, "Delete cursor unused", "Delete")
            expect(row_names(page, "Cursors")).to_have_text(["slow"])
            assert until(lambda: [each.name for each in stream.cursors()] == ["slow"])

            page.get_by_role("button", name="Trim", exact=True).click()
            answer(page, "Trim stream console-changed", "Delete the records before it", "First record to keep", "12")
            facts = page.get_by_role("region", name="Stream")
            expect(facts).not_to_contain_text("First entry0")
            assert until(lambda: 0 < stream.state().first_entry_id <= 12)

            page.get_by_role("button", name="Delete", exact=True).click()
            delete = "Delete stream console-changed"
            answer(page, delete, "Delete for good", "Type console-changed", "console")
            expect(page.get_by_role("dialog", name=delete)).to_contain_text("That is not console-changed")
            assert [name for found in streams.names() for name in found].count("console-changed") == 1
            # The page may ask once more before it goes to the list.
            complaints.allowed_statuses.add(404)
            answer(page, delete, "Delete for good", "Type console-changed", "console-changed")
            expect(page).to_have_url(re.compile("#/streams"))
            assert until(lambda: "console-changed" not in [name for found in streams.names() for name in found])


def test_what_somebody_may_not_change_is_not_offered(made: str) -> None:
    """As the server tells for a principal that only reads."""
    nothing = {
        "stream": dict.fromkeys(("trim", "retention", "delete"), False),
        "cursor": dict.fromkeys(("move", "delete"), False),
    }

    def reader(route: Route) -> None:
        seen = route.fetch().json()
        cursors = [{**cursor, "may": nothing["cursor"]} for cursor in seen["cursors"]]
        route.fulfill(json={**seen, "may": nothing["stream"], "cursors": cursors})

    with chromium() as browser, watched_page(browser, made) as (page, _):
        page.goto(f"{made}/#/stream/console-orders")
        expect(page.get_by_role("button", name=re.compile("Trim|Move|Delete"))).to_have_count(4)
        page.route("**/api/v1/console/stream?*", reader)
        page.reload()
        expect(row_names(page, "Cursors")).to_have_text(["billing"])
        expect(page.get_by_role("button", name=re.compile("Trim|Move|Delete"))).to_have_count(0)


def told(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_what_the_routes_tell(made: str) -> None:
    api = f"{made}/api/v1/console"
    listed = told(f"{api}/streams?limit=1")
    names = [stream["name"] for stream in listed["streams"]]
    while listed["next"] is not None:
        listed = told(f"{api}/streams?limit=1&start_after={listed['next']}")
        names += [stream["name"] for stream in listed["streams"]]
    assert names.count("console-orders") == 1
    one = told(f"{api}/stream?name=console-orders")
    assert one["retention"] == {
        "maxAgeSeconds": 3600,
        "maxBytes": None,
        "deleteConsumed": False,
        "keepForCursors": True,
    }
    assert [(each["name"], each["entryId"]) for each in one["cursors"]] == [("billing", "0")]
    assert (one["term"], one["firstEntryId"], one["state"]) == (1, "0", "OPEN")
    ledger = LedgerId.parse(one["ledgerId"])
    first = f"ledger_id={ledger.low}&ledger_scope_id={ledger.scope_id}&entry_id=0"
    assert told(f"{api}/entry?{first}")["size"] == 0
    with urllib.request.urlopen(f"{api}/entry_payload?{first}", timeout=30) as answer:
        assert answer.read() == b""
    for query, status in (("name=nobody's", 404), ("name=x%0Ay", 404), ("name=a&ledger_scope_id=0", 404), ("", 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            told(f"{api}/stream?{query.replace(chr(39), '%27')}")
        assert refused.value.code == status, query
