"""The blocking client's life: what is under way when it ends, and what comes after."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from bookgate.ledger.errors import ClientClosedException
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.blocking.loop_thread import LoopThread, iterate, result_of

NOWHERE = "grpc://127.0.0.1:9"
"""Nothing connects before the first call."""


@pytest.fixture(autouse=True)
def own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process where nobody else has a client open."""
    monkeypatch.setattr(LoopThread, "_current", None)


async def never() -> None:
    await asyncio.Event().wait()


def loop_of_the_clients() -> LoopThread:
    """That of those which are open now; it is theirs to keep."""
    thread = LoopThread.acquire()
    thread.release()
    return thread


def test_what_is_under_way_ends_with_the_last_client() -> None:
    threads = set(threading.enumerate())
    with BookKeeper.connect_lazily(NOWHERE):
        client = BookKeeper.connect_lazily(NOWHERE)
        under_way = loop_of_the_clients().start(never())
        assert not set(threading.enumerate()) <= threads
        client.close()
        assert not under_way.done()
    with pytest.raises(ClientClosedException, match="under way"):
        result_of(under_way)
    assert set(threading.enumerate()) <= threads


def test_a_closed_client_says_so_whatever_is_asked_of_it() -> None:
    client = BookKeeper.connect_lazily(NOWHERE)
    discovery, ledgers = client.service_discovery, client.ledger_manager
    client.close()
    client.close()
    for call in (client.bookies, discovery.bookies, lambda: list(ledgers.ledger_ranges())):
        with pytest.raises(ClientClosedException):
            call()


def test_an_iterator_outlives_its_client_only_up_to_the_page_at_hand() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(100):
            yield number

    client = BookKeeper.connect_lazily(NOWHERE)
    pages: Iterator[int] = iterate(loop_of_the_clients(), numbers())
    assert next(pages) == 0
    client.close()
    with pytest.raises(ClientClosedException):
        list(pages)
