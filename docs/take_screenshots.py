"""Takes the pictures of the console in docs/images: a cluster of its own, some work, a real browser.

    python -m docs.take_screenshots [--seconds 60]

`PICTURES` says which views are shown in which colours. Needs Chromium (deploy/setup/ensure-chromium.sh) and the extra
`dev`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.metadata import DigestType
from bookgate.thinclient.blocking.client import BookKeeper, WriteHandle
from tests.integration.browser import chromium, watched_page

IMAGES = Path(__file__).parent / "images"
PICTURES = {
    ("cluster", "light"),
    ("problem", "dark"),
    ("ledgers", "light"),
    ("ledger", "light"),
    ("entry", "dark"),
    ("rates", "dark"),
    ("collection", "light"),
    ("recovery", "light"),
}
APPLICATIONS = (b"orders", b"payments", b"clickstream", b"audit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long work goes on before the pictures")
    seconds = parser.parse_args().seconds
    IMAGES.mkdir(exist_ok=True)
    options = (
        "--set=entry_log_max_mb=1",
        "--set=compaction_rate_entries_per_second=0",
        "--set=flush_interval_seconds=2",
        "--set=auto_recovery=true",
        "--set=replication_rate_mb_per_second=0.01",  # or all is repaired before the picture is taken
        "--set=replication_last_copies_rate_mb_per_second=0",
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        StandaloneCluster(Path(directory), bookies=5, bookie_options=options) as cluster,
    ):
        interesting = work(cluster, seconds)
        with chromium() as browser:
            for scheme in ("light", "dark"):
                with watched_page(browser, f"http://{cluster.http[0]}", scheme=scheme) as (page, _complaints):
                    take(page, cluster, interesting, scheme)


def work(cluster: StandaloneCluster, seconds: float) -> int:
    """Ledgers of several applications, some deleted, and load to the end. Returns one that is worth a look."""
    rng = random.Random(11)
    with BookKeeper.connect(cluster.gateway_uri) as client:
        made = [write(client, rng, number).ledger_id for number in range(120)]
        interesting = with_changed_ensemble(client, cluster, rng)
        for ledger_id in made[::3]:
            client.delete_ledger(ledger_id)
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            handle = write(client, rng, number, entries=rng.randrange(50, 400), size=800)
            with client.open_ledger(handle.ledger_id) as reader:
                if reader.last_add_confirmed >= 0:
                    for _ in reader.read(0, reader.last_add_confirmed):
                        pass
            if number % 4 == 0:
                client.delete_ledger(handle.ledger_id)
        time.sleep(3)  # for a checkpoint, so that there are entry logs to look at
        for address in cluster.http:
            change(f"http://{address}/api/v1/bookie/gc", {"forceMajor": False, "forceMinor": False})
    return interesting


def change(url: str, body: dict[str, bool] | None = None) -> None:
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


def with_changed_ensemble(client: BookKeeper, cluster: StandaloneCluster, rng: random.Random) -> int:
    """A ledger whose bookies stop and come back while it is written."""
    custom = {
        "application": b"orders",
        "schema": b'{"order": "long", "customer": "long", "books": "int"}',
        "remark": b"<img src=x onerror=alert(1)>",
        "signature": bytes(range(160, 192)),
    }
    handle = client.create_ledger(3, 2, 2, DigestType.CRC32C, custom_metadata=custom)
    for process in cluster.processes[1:3]:
        for entry in range(40):
            handle.append(payload(rng, entry))
        process.terminate()
        process.wait()
        for entry in range(20):
            handle.append(payload(rng, entry))
        process.start()
        process.wait_until_serving()
    handle.close()
    return handle.ledger_id.low


def write(
    client: BookKeeper, rng: random.Random, number: int, *, entries: int | None = None, size: int | None = None
) -> WriteHandle:
    """A ledger with payloads like those of applications; most are closed."""
    application = rng.choice(APPLICATIONS)
    custom = {"application": application, "topic": b"persistent://shop/" + application + b"-%d" % rng.randrange(8)}
    digest = DigestType.CRC32C if number % 5 else DigestType.HMAC
    handle = client.create_ledger(3, 3 if number % 3 else 2, 2, digest, custom_metadata=custom)
    waiting = [
        handle.append_future(payload(rng, entry) if size is None else rng.randbytes(size))
        for entry in range(entries or rng.randrange(5, 200))
    ]
    for future in waiting:
        future.result()
    if number % 9:
        handle.close()
    return handle


def payload(rng: random.Random, entry: int) -> bytes:
    if entry % 6 == 5:
        return rng.randbytes(rng.randrange(20, 300))
    order = {"order": 100_000 + entry, "customer": rng.randrange(10**5), "books": rng.randrange(1, 9), "paid": True}
    return json.dumps(order).encode()


def take(page: Page, cluster: StandaloneCluster, ledger_id: int, scheme: str) -> None:
    """All views in one colour scheme; the last has a bookie that was killed, which comes back for the next scheme."""
    base = f"http://{cluster.http[0]}"
    views = {
        "cluster": ("#/cluster", ".states:has-text('ago')"),
        "ledgers": ("#/ledgers", ".pager"),
        "bookie": ("#/bookie/bookie-2", ".plot canvas"),
        "ledger": (f"#/ledger/{ledger_id}", ".payload"),
        "rates": ("#/rates", ".plot canvas"),
        "collection": ("#/collection", ".histogram"),
    }
    for name, (where, ready) in views.items():
        page.goto(f"{base}/{where}")
        page.wait_for_selector(ready, timeout=60_000)
        shoot(page, name, scheme)
    page.goto(f"{base}/#/ledger/{ledger_id}?show=hex")
    page.get_by_role("button", name="5", exact=True).click()
    page.wait_for_selector(".detail")
    shoot(page, "entry", scheme)
    victim = cluster.processes[-1]
    victim.kill()
    page.goto(f"{base}/#/cluster")
    page.wait_for_selector(".banner.error")
    shoot(page, "problem", scheme)
    page.goto(f"{base}/#/autorecovery")
    page.wait_for_selector(".stacked .chip:has-text('missed')", timeout=60_000)
    change(f"{base}/api/v1/autorecovery/trigger_audit")
    page.wait_for_selector("td.space:has-text(' KiB')", timeout=60_000)  # a repair that has copied something
    shoot(page, "recovery", scheme)
    victim.start()
    victim.wait_until_serving()
    page.wait_for_selector(".banner.error", state="detached", timeout=60_000)


def shoot(page: Page, name: str, scheme: str) -> None:
    page.wait_for_timeout(300)
    page.mouse.move(0, 0)
    if (name, scheme) in PICTURES:
        page.screenshot(path=IMAGES / f"console-{name}-{scheme}.png")


if __name__ == "__main__":
    main()
