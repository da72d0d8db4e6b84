"""A bookie as a whole, in this process: what goes wrong while it starts or stops."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bookgate import BookKeeper
from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.server import BookieFailedException, BookieServer
from tests.stores import made

pytestmark = pytest.mark.asyncio


def new_bookie(root: Path, kind: type[BookieServer] = BookieServer, host: str = "127.0.0.1") -> BookieServer:
    ports: dict[str, Any] = {"port": 0, "gateway_port": 0, "http_port": 0}
    return kind(load_config(metadata_uri=made(f"sqlite://{root}/metadata.db"), data_dir=root, host=host, **ports))


class FailsEarly(BookieServer):
    """Its journal fails as soon as it is open."""

    async def _serve_entries(self, *arguments: Any) -> None:
        thread = threading.Thread(target=self.bridge.failed, args=(OSError("disk on fire"),))
        thread.start()
        thread.join()
        await super()._serve_entries(*arguments)


async def test_storage_that_fails_before_anything_is_served_ends_the_bookie(tmp_path: Path) -> None:
    bookie = new_bookie(tmp_path, FailsEarly)
    await bookie.start()
    with pytest.raises(BookieFailedException, match="disk on fire"):
        await asyncio.wait_for(bookie.run_until_stopped(), 30)
    await bookie.stop()


@contextmanager
def stuck_http_client(address: str) -> Iterator[None]:
    """Asks for more than fits the buffers, and takes nothing."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as client:
        client.settimeout(0.5)
        try:
            for _ in range(20_000):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        except TimeoutError:
            yield


async def test_http_client_that_takes_no_answers_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    bookie = new_bookie(tmp_path)
    await bookie.start()
    client = stuck_http_client(bookie.addresses["http"] or "")
    await asyncio.to_thread(client.__enter__)
    await asyncio.wait_for(bookie.stop(), 15)
    client.__exit__(None, None, None)


async def test_addresses_of_a_bookie_on_ipv6_can_be_connected_to(tmp_path: Path) -> None:
    bookie = new_bookie(tmp_path, host="::1")
    await bookie.start()
    try:
        addresses = {kind: address or "" for kind, address in bookie.addresses.items()}
        assert {addresses[kind].rpartition(":")[0] for kind in ("bookie", "gateway", "http")} == {"[::1]"}
        async with BookKeeper.connect(f"grpc://{addresses['gateway']}") as bookkeeper:
            (found,) = await bookkeeper.bookies()
        # An id has no brackets; one that changed would be another bookie's.
        assert found.bookie_id == addresses["bookie_id"] == addresses["bookie"].replace("[::1]", "::1")
    finally:
        await bookie.stop()
