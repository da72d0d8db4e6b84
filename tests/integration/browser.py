"""A real browser for the console: headless Chromium, and a watch over what it must never do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, ViewportSize, sync_playwright

_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_VIEWPORT: ViewportSize = {"width": 1280, "height": 800}


def _executable() -> str:
    names = [os.environ["CHROMIUM"]] if "CHROMIUM" in os.environ else ["chromium", "chromium-browser", "google-chrome"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise RuntimeError("there is no Chromium; deploy/setup/ensure-chromium.sh installs it")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """With a user data directory of its own, which goes with it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_executable(), args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Complaints:
    """What a page did that it must not: errors, requests to other servers, dialogs of scripts that got in."""

    found: list[str] = field(default_factory=list)
    allowed_statuses: set[int] = field(default_factory=set)
    """The browser writes an error for each refused request; those with these statuses are part of the test."""

    def take(self, message: ConsoleMessage) -> None:
        refused = any(f"status of {status} " in message.text for status in self.allowed_statuses)
        if message.type in ("error", "warning") and not refused:
            self.found.append(f"{message.type}: {message.text} ({message.location['url']})")


@contextmanager
def watched_page(browser: Browser, *origins: str, scheme: str = "light") -> Iterator[tuple[Page, Complaints]]:
    """A page that may speak to these origins only. Fails at the end with all that went wrong."""
    complaints = Complaints()
    context = browser.new_context(viewport=_VIEWPORT, color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    page.set_default_timeout(20_000)

    def requested(request: Request) -> None:
        if not request.url.startswith(origins):
            complaints.found.append(f"external request: {request.url}")

    def dialog(shown: Dialog) -> None:
        complaints.found.append(f"a script ran: {shown.message}")
        shown.dismiss()

    page.on("console", complaints.take)
    page.on("pageerror", lambda error: complaints.found.append(f"uncaught: {error}"))
    page.on("request", requested)
    page.on("dialog", dialog)
    try:
        yield page, complaints
    finally:
        context.close()
    assert complaints.found == [], complaints.found


@contextmanager
def gateway_console(metadata_uri: str, *options: str, paths: Sequence[Path] = ()) -> Iterator[str]:
    """Where the console of a gateway process without a bookie is."""
    command = [sys.executable, "-m", "bookgate", "gateway", "--json", "--port=0", "--http-port=0", *options]
    found = os.pathsep.join(map(str, (*paths, Path(__file__).parents[2])))
    with subprocess.Popen(
        [*command, f"--metadata-uri={metadata_uri}"], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": found}
    ) as process:
        try:
            assert process.stdout is not None
            yield "http://" + json.loads(process.stdout.readline())["http"][0]
        finally:
            process.terminate()
