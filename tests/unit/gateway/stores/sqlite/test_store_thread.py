"""What keeps a lease goes first on the store's thread; all else in the order in which it came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from bookgate.gateway.stores.sqlite.store_thread import StoreThread


@pytest.fixture
def thread() -> Iterator[StoreThread]:
    thread = StoreThread("store")
    yield thread
    thread.shutdown()


def test_what_keeps_a_lease_goes_before_all_that_waits(thread: StoreThread) -> None:
    done: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go_on.wait(30)
        done.append("first")

    thread.submit(first)
    assert begun.wait(30)
    for name in ("a", "b"):
        thread.submit(partial(done.append, name))
    for name in ("lease 1", "lease 2"):
        thread.submit(partial(done.append, name), keeps_lease=True)
    last = thread.submit(partial(done.append, "c"))
    go_on.set()
    last.result(30)
    assert done == ["first", "lease 1", "lease 2", "a", "b", "c"]


def test_what_is_cancelled_while_it_waits_does_not_run_and_a_failure_is_its_own(thread: StoreThread) -> None:
    done: list[str] = []
    go_on = threading.Event()
    thread.submit(partial(go_on.wait, 30))
    cancelled = thread.submit(partial(done.append, "cancelled"))
    failing = thread.submit(partial(done.remove, "absent"))
    last = thread.submit(lambda: threading.current_thread().name)
    assert cancelled.cancel()
    go_on.set()
    assert last.result(30).startswith("store")
    assert done == []
    with pytest.raises(ValueError, match="not in list"):
        failing.result(30)
    # The thread has nothing to do now, and takes up what comes.
    assert thread.submit(lambda: 7).result(30) == 7


def test_what_finds_no_thread_is_not_run_later_and_the_next_operation_is(
    thread: StoreThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", no_thread)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                thread.submit(partial(done.append, "refused"))
    thread.submit(partial(done.append, "a"))
    thread.submit(partial(done.append, "b")).result(30)
    assert done == ["a", "b"]


def no_thread(_: threading.Thread) -> None:
    """As Python refuses where the system has no thread left for this user."""
    raise RuntimeError("can't start new thread")
