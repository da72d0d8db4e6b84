"""The console's pages when answers come late, in another order, or not at all: a test holds them, and gives them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.runtime.security.static_tokens import new_token
from tests.integration.browser import chromium, gateway_console, watched_page
from tests.integration.test_console_ledgers import closed, make

POLICY = """
[roles.keeper]
actions = ["http.read", "ledger.list", "ledger.read", "ledger.delete"]
[[bindings]]
principals = ["token:keeper"]
role = "keeper"
[[bindings]]
principals = ["token:other"]
role = "keeper"
"""

HOLD = """
window.held = [];
const asked = window.fetch;
window.fetch = (url, options = {}) => {
  if (!PATHS.includes(new URL(url, location).pathname.replace("/api/v1/console", ""))) return asked(url, options);
  return new Promise((resolve, reject) => {
    const json = (told, status) => ({ ok: status < 400, status, headers: new Headers(), json: async () => told });
    window.held.push({ url, body: options.body ?? "{}", answer: (told, status) => resolve(json(told, status)) });
    options.signal?.addEventListener("abort", () => reject(options.signal.reason));
  });
};
"""
"""Requests for PATHS wait in `held` until a test answers them."""

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ledger 0 is open."""
    uri = f"sqlite://{tmp_path_factory.mktemp('answers')}/metadata.db"
    make_cluster(uri)
    make(uri, [LedgerMetadata.new(["bookie-1"], 1, 1)])
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
def page(browser: Browser, origin: str) -> Iterator[Page]:
    with watched_page(browser, origin) as (page, _complaints):
        yield page


class Held:
    """What a page asks at some of the console's paths; each question waits for its answer."""

    def __init__(self, page: Page, *paths: str) -> None:
        self._page = page
        page.add_init_script(HOLD.replace("PATHS", json.dumps(paths)))

    def question(self, number: int) -> dict[str, Any]:
        """The query and the body of one of them, by the order in which they were asked, once it is."""
        self._page.wait_for_function("number => held.length > number", arg=number)
        url, body = self._page.evaluate("number => [held[number].url, held[number].body]", number)
        query = {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
        return {**query, **json.loads(body)}

    def answer(self, number: int, told: Any, status: int = 200) -> None:
        """Returns when the page has done with it what it does at once."""
        self.question(number)
        self._page.evaluate(
            "([number, told, status]) => { held[number].answer(told, status); return new Promise(setTimeout); }",
            [number, told, status],
        )

    @property
    def count(self) -> int:
        count: int = self._page.evaluate("held.length")
        return count


def rows(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).locator("tbody tr")


def entry(number: int, payload: str = "x") -> dict[str, Any]:
    encoded = base64.b64encode(payload.encode()).decode()
    return {"id": str(number), "digest": "ok", "size": len(payload), "payload": encoded, "bookies": ["bookie-1"]}


def entries(*numbers: int) -> dict[str, Any]:
    return {"entries": [entry(number) for number in numbers], "lastConfirmed": str(max(numbers)), "next": None}


@pytest.fixture
def entries_page(page: Page) -> Page:
    """What a bookie would be is asked of a gateway: whatever it is asked of entries is held."""

    def with_entries(route: Route) -> None:
        told = route.fetch().json()
        told["server"]["features"].append("entries")
        route.fulfill(json=told)

    page.route("**/api/v1/console/cluster", with_entries)
    return page


def shown_entries(page: Page) -> Locator:
    return rows(page, "Entries").locator("th")


def test_entries_that_are_followed_again_are_shown_once(entries_page: Page, origin: str) -> None:
    page, held = entries_page, Held(entries_page, "/entries")
    page.clock.install()
    page.goto(f"{origin}/#/ledger/0")
    held.answer(0, entries(0, 1, 2))
    expect(shown_entries(page)).to_have_text(["0", "1", "2"])
    page.get_by_role("button", name="Follow").click()
    assert held.question(1)["start_entry_id"] == "3"
    held.answer(1, entries(3, 4))
    expect(shown_entries(page)).to_have_text(["0", "1", "2", "3", "4"])
    page.get_by_role("button", name="Stop following").click()
    page.get_by_role("button", name="Follow").click()
    assert held.question(2)["start_entry_id"] == "5"


def test_following_that_is_stopped_and_begun_again_goes_on_once(entries_page: Page, origin: str) -> None:
    """While an answer to the first is on its way."""
    page, held = entries_page, Held(entries_page, "/entries")
    page.clock.install()
    page.goto(f"{origin}/#/ledger/0")
    held.answer(0, entries(0))
    page.get_by_role("button", name="Follow").click()
    held.question(1)
    page.get_by_role("button", name="Stop following").click()
    page.get_by_role("button", name="Follow").click()
    held.question(2)
    held.answer(1, entries(1))
    held.answer(2, entries(1))
    expect(shown_entries(page)).to_have_text(["0", "1"])
    page.clock.run_for(1000)
    assert held.question(3)["start_entry_id"] == "2"
    assert held.count == 4
    # What ends by itself is offered again.
    held.answer(3, {"error": "this server is starting again"}, 503)
    expect(page.get_by_role("alert")).to_have_text("this server is starting again")
    page.get_by_role("button", name="Follow", exact=True).click()
    assert held.question(4)["start_entry_id"] == "2"


def test_the_entry_that_was_clicked_last_is_open_whichever_is_answered_first(entries_page: Page, origin: str) -> None:
    page, held = entries_page, Held(entries_page, "/entries", "/entry")
    page.goto(f"{origin}/#/ledger/0")
    held.answer(0, entries(0, 1, 2))
    told = {"copies": [], "ledgerLength": 1, "lastAddConfirmed": "0"}
    for number in (0, 1):
        page.get_by_role("button", name=str(number), exact=True).click()
        held.question(1 + number)
    held.answer(2, {**entry(1), **told})
    expect(page.get_by_role("region", name="Entry 1")).to_be_visible()
    held.answer(1, {**entry(0), **told})
    expect(page.get_by_role("heading", level=3)).to_have_text("Entry 1")
    # Closing is a click, too.
    page.get_by_role("button", name="2", exact=True).click()
    held.question(3)
    page.get_by_role("button", name="Close", exact=True).click()
    held.answer(3, {**entry(2), **told})
    expect(page.get_by_role("heading", level=3)).to_have_count(0)


def test_payloads_are_shown_as_the_schema_decodes_them_that_is_chosen(
    entries_page: Page, origin: str, tmp_path: Path
) -> None:
    page, held = entries_page, Held(entries_page, "/entries", "/decode")
    page.goto(f"{origin}/#/ledger/0?show=avro")
    held.answer(0, entries(0))
    payload = rows(page, "Entries").locator("td").last

    def choose(name: str) -> None:
        (tmp_path / f"{name}.avsc").write_text(name)
        page.get_by_label("Schema file").set_input_files(tmp_path / f"{name}.avsc")

    def decoded(by: str) -> dict[str, Any]:
        return {"decoded": [{"value": {"by": by}}], "problem": None}

    choose("former")
    assert held.question(1)["schema"] == "former"
    page.get_by_role("button", name="Protobuf").click()
    held.answer(1, decoded("former"))
    expect(payload).to_have_text("(choose a schema file) x")

    page.get_by_role("button", name="Avro").click()
    held.question(2)
    choose("newer")
    assert held.question(3)["schema"] == "newer"
    held.answer(3, decoded("newer"))
    held.answer(2, decoded("former"))
    expect(payload).to_have_text('{"by":"newer"}')

    choose("broken")
    held.answer(4, {"decoded": [], "problem": "that is no Avro schema"})
    expect(payload).to_have_text("(that is no Avro schema) x")


def test_a_view_that_is_left_while_payloads_are_decoded_changes_no_address(
    entries_page: Page, origin: str, tmp_path: Path
) -> None:
    page, held = entries_page, Held(entries_page, "/entries", "/decode")
    page.goto(f"{origin}/#/ledger/0?show=avro")
    held.answer(0, entries(0))
    (tmp_path / "any.avsc").write_text("any")
    page.get_by_label("Schema file").set_input_files(tmp_path / "any.avsc")
    held.question(1)
    page.get_by_role("link", name="Rates").click()
    expect(page.locator(".rates-head")).to_be_visible()
    held.answer(1, {"decoded": [{"value": 1}], "problem": None})
    expect(page).to_have_url(f"{origin}/#/rates")


def shown_as_json(page: Page, payload: str) -> list[str]:
    shown: list[str] = page.evaluate(
        """async (text) => {
            const { Decoding } = await import("/console/decoding.js");
            const content = new TextEncoder().encode(text);
            const [entry, decoding] = [{ size: content.length }, new Decoding("json")];
            return [decoding.line(entry, content, 1000), decoding.whole(entry, content)];
        }""",
        payload,
    )
    return shown


def test_json_is_laid_out_with_the_numbers_that_stand_there(page: Page, origin: str) -> None:
    page.goto(origin)
    payload = (
        ' {"ledgerId": 9007199254740993,"amount":1e400, "10": -0.10, "2":[ ],"a":{"b" : [1,{}]},"a":"\\u00e4\\"{,"}\n'
    )
    line = '{"ledgerId":9007199254740993,"amount":1e400,"10":-0.10,"2":[],"a":{"b":[1,{}]},"a":"ä\\"{,"}'
    whole = """{
  "ledgerId": 9007199254740993,
  "amount": 1e400,
  "10": -0.10,
  "2": [],
  "a": {
    "b": [
      1,
      {}
    ]
  },
  "a": "ä\\"{,"
}"""
    assert shown_as_json(page, payload) == [line, whole]
    for text in ("null", "true", '"a b"', "12345678901234567890", "[]"):
        assert shown_as_json(page, text) == [text, text]
    for text in ("", "{,}", "[1 2]", "01"):
        assert shown_as_json(page, text)[0] == f"(no JSON) {text}"
    # Deeper than anybody reads it takes no page full of blanks for each bracket.
    deep = shown_as_json(page, "[" * 2000 + "]" * 2000)
    assert (len(deep[0]), len(deep[1]) < 1_000_000) == (4000, True)


def ledger(number: int) -> dict[str, Any]:
    return {
        **{"ledgerId": str(number), "ledgerScopeId": "0", "state": "OPEN", "length": None, "lastEntryId": None},
        **{"ensembleSize": 1, "writeQuorumSize": 1, "ackQuorumSize": 1, "fragmentCount": 1, "created": 1},
        **{"customMetadata": [], "customMetadataCount": 0},
    }


def test_a_search_that_was_stopped_goes_on_once_its_last_answer_has_come(page: Page, origin: str) -> None:
    held = Held(page, "/ledgers")
    page.goto(f"{origin}/#/ledgers?state=OPEN")
    held.answer(0, {"ledgers": [ledger(0)], "examined": 5000, "next": "0"})
    held.question(1)
    page.get_by_role("button", name="Stop").click()
    page.get_by_label("Select ledger 0").check()
    expect(page.get_by_role("button", name="Go on")).to_have_count(0)
    held.answer(1, {"ledgers": [ledger(1)], "examined": 5000, "next": "1"})
    page.get_by_role("button", name="Go on").click()
    assert held.question(2)["start_after"] == "1"
    held.answer(2, {"ledgers": [ledger(2)], "examined": 5000, "next": None})
    expect(rows(page, "Ledgers").locator("th")).to_have_text(["0", "1", "2"])
    assert held.count == 3


def stream(name: str) -> dict[str, Any]:
    retention = {"maxAgeSeconds": None, "maxBytes": None, "deleteConsumed": False, "keepForCursors": True}
    return {"name": name, "ledgerId": "0", "cursors": [], "retention": retention, "created": 1}


def test_streams_behind_many_other_ledgers_are_looked_for(page: Page, origin: str) -> None:
    held = Held(page, "/streams")
    page.clock.install()
    page.goto(f"{origin}/#/streams")
    held.answer(0, {"streams": [], "examined": 5000, "next": "4999"})
    assert held.question(1)["start_after"] == "4999"
    expect(rows(page, "Streams")).to_have_text(["No stream so far."])
    page.get_by_role("button", name="Stop").click()
    held.answer(1, {"streams": [], "examined": 5000, "next": "9999"})
    page.get_by_role("button", name="Go on").click()
    assert held.question(2)["start_after"] == "9999"
    held.answer(2, {"streams": [stream("orders")], "examined": 7, "next": None})
    expect(rows(page, "Streams").locator("th")).to_have_text(["orders"])
    # What took several answers is not asked for again by itself.
    page.clock.run_for(20_000)
    assert held.count == 3


def test_a_search_for_streams_ends_with_its_view(page: Page, origin: str) -> None:
    held = Held(page, "/streams")
    page.clock.install()
    page.goto(f"{origin}/#/streams")
    held.answer(0, {"streams": [], "examined": 5000, "next": "4999"})
    held.question(1)
    page.get_by_role("link", name="Rates").click()
    expect(page.locator(".rates-head")).to_be_visible()
    held.answer(1, {"streams": [], "examined": 5000, "next": "9999"})
    page.clock.run_for(20_000)
    assert held.count == 2


def test_streams_that_one_answer_tells_are_asked_for_again(page: Page, origin: str) -> None:
    held = Held(page, "/streams")
    page.clock.install()
    page.goto(f"{origin}/#/streams")
    held.answer(0, {"streams": [stream("orders")], "examined": 1, "next": None})
    expect(rows(page, "Streams").locator("th")).to_have_text(["orders"])
    page.clock.run_for(4000)
    held.answer(1, {"streams": [], "examined": 0, "next": None})
    expect(rows(page, "Streams")).to_have_text(["No streams here."])


def test_the_lines_of_the_level_that_was_chosen_last_are_shown(page: Page, origin: str) -> None:
    held = Held(page, "/bookie", "/bookie/log")
    page.goto(f"{origin}/#/bookie/bookie-1")
    log = page.get_by_role("region", name="Log")
    log.get_by_text("Show it").click()
    held.question(1)
    log.get_by_role("combobox", name="Level").select_option("errors")
    assert held.question(2)["level"] == "error"
    held.answer(2, {"lines": [{"level": "error", "text": "an error"}]})
    held.answer(1, {"lines": [{"level": "info", "text": "a start"}]})
    expect(log.get_by_label("Lines")).to_have_text("an error\n")


def test_a_chart_that_is_closed_listens_to_nothing(page: Page, origin: str) -> None:
    page.goto(origin)
    left = page.evaluate(
        """async () => {
            const listening = new Set();
            MediaQueryList.prototype.addEventListener = (_, listener) => listening.add(listener);
            MediaQueryList.prototype.removeEventListener = (_, listener) => listening.delete(listener);
            const { Chart } = await import("/console/chart.js");
            const chart = new Chart({ title: "Entries", unit: "ms", series: [{ label: "added" }] });
            const before = listening.size;
            chart.close();
            return [before, listening.size];
        }"""
    )
    assert left == [1, 0]


def test_rates_of_a_bookie_that_is_gone_leave_the_chart_with_time(page: Page, origin: str) -> None:
    page.goto(origin)
    spans = page.evaluate(
        """async () => {
            const { Known } = await import("/console/rates.js");
            const known = new Known();
            const charts = [{ title: "Entries", unit: "count/s", series: [{ name: "adds", label: "added" }] }];
            const points = (from) => Array.from({ length: 30 }, (_, at) => [(from + at * 2) * 1000, 10]);
            const told = (from) => ({ charts, keptSeconds: 600, points: points(from) });
            const span = ([{ times }]) => (times.at(-1) - times[0]) / 1000;
            known.take({ gone: told(0), lives: told(0) });
            const shown = [];
            for (let at = 60; at <= 3600; at += 60) {
                known.take({ gone: null, lives: told(at) });
                shown.push(span(known.charts("cluster")));
            }
            return [Math.max(...shown), known.names(), known.silent(), known.charts("gone")[0].times.length];
        }"""
    )
    assert spans == [600, ["gone", "lives"], ["gone"], 0]


def test_an_address_that_is_no_encoded_text_is_taken_as_it_stands(browser: Browser, origin: str) -> None:
    with watched_page(browser, origin) as (page, complaints):
        complaints.allowed_statuses = {404}
        page.goto(f"{origin}/#/stream/100%")
        expect(page.get_by_role("heading", level=1)).to_have_text("100%")
        expect(page.get_by_role("alert")).to_be_visible()


@pytest.fixture
def guarded(browser: Browser, uri: str, tmp_path: Path) -> Iterator[tuple[Page, dict[str, str]]]:
    """The console of a gateway that asks for a token, and the tokens of two principals."""
    tokens = {name: new_token(name) for name in ("keeper", "other")}
    (tmp_path / "tokens").write_text("".join(f"{line}\n" for _, line in tokens.values()))
    (tmp_path / "policy.toml").write_text(POLICY)
    config = tmp_path / "gateway.toml"
    config.write_text(f'security_tokens = "{tmp_path}/tokens"\nsecurity_policy = "{tmp_path}/policy.toml"\n')
    with gateway_console(uri, f"--config={config}") as origin, watched_page(browser, origin) as (page, complaints):
        complaints.allowed_statuses = {401, 403, 503}
        page.goto(origin)
        yield page, {name: token for name, (token, _) in tokens.items()}


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def log_in_anew(page: Page, token: str) -> None:
    page.bring_to_front()  # a tab behind another one is drawn seldom
    page.get_by_role("button", name="Log out").click()
    log_in(page, token)


def delete_ledger(page: Page, ledger_id: str) -> None:
    page.bring_to_front()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label(f"Type {ledger_id}", exact=True).fill(ledger_id)
    page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()


def test_a_tab_goes_on_in_the_session_that_another_one_has_begun(
    guarded: tuple[Page, dict[str, str]], uri: str
) -> None:
    page, tokens = guarded
    (ledger_id,) = make(uri, [closed(0)])
    log_in(page, tokens["keeper"])
    other_tab = page.context.new_page()
    # It does not look at the server by itself between a log-out and a log-in.
    other_tab.clock.install(time=0)
    other_tab.clock.pause_at(1000)
    other_tab.goto(f"{page.url.partition('#')[0]}#/ledger/{ledger_id}")
    expect(other_tab.get_by_role("button", name="Log out")).to_be_visible()
    log_in_anew(page, tokens["keeper"])
    delete_ledger(other_tab, ledger_id)
    expect(other_tab).to_have_url(re.compile("#/ledgers$"))

    # As somebody else nothing is changed that was asked for as the former one.
    (ledger_id,) = make(uri, [closed(0)])
    other_tab.goto(f"{page.url.partition('#')[0]}#/ledger/{ledger_id}")
    log_in_anew(page, tokens["other"])
    delete_ledger(other_tab, ledger_id)
    dialog = other_tab.get_by_role("dialog", name="That did not work")
    expect(dialog).to_contain_text("logged in as token:other")
    dialog.get_by_role("button", name="Close").click()
    delete_ledger(other_tab, ledger_id)
    expect(other_tab).to_have_url(re.compile("#/ledgers$"))

    log_in_anew(page, tokens["keeper"])
    other_tab.get_by_role("button", name="Log out").click()
    expect(other_tab.get_by_role("heading", level=1)).to_have_text("Log in")
    assert page.context.cookies() == []


def test_a_tab_that_asks_for_a_token_goes_on_once_another_one_has_logged_in(
    guarded: tuple[Page, dict[str, str]],
) -> None:
    page, tokens = guarded
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    other_tab = page.context.new_page()
    other_tab.goto(page.url)
    log_in(other_tab, tokens["keeper"])
    page.bring_to_front()
    page.clock.run_for(4000)
    expect(page.locator("#server .principal")).to_have_text("token:keeper")
    expect(page.get_by_role("region", name="Bookies")).to_be_visible()


def test_a_log_out_that_failed_is_told_and_leaves_the_page_as_it_is(guarded: tuple[Page, dict[str, str]]) -> None:
    page, tokens = guarded

    def refuse(route: Route) -> None:
        if route.request.method == "DELETE":
            route.fulfill(status=503, json={"error": "this server is starting again"})
        else:
            route.continue_()

    log_in(page, tokens["keeper"])
    page.route("**/console/session", refuse)
    page.get_by_role("button", name="Log out").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("this server is starting again")
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("#server .principal")).to_have_text("token:keeper")
    page.unroute("**/console/session")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    assert page.context.cookies() == []
