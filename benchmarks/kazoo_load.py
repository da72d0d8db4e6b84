"""Thick clients under measurement: kazoo sessions that speak to ZooKeeper themselves, doing what BookKeeper's own
client does. Arguments: ZooKeeper's address, the ledgers root.

A create is an ephemeral sequential node for the id, its removal in the background, and the ledger's node. A close
writes that node at the version that the client knows. A listing reads the tree's levels one after the other. A watch is
kept by reading the node with a watch again at each event.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kazoo.client import KazooClient

from benchmarks.load_process import rss_bytes, serve
from benchmarks.metadata_sample import LAST_ENTRY_ID, LENGTH, SAMPLE
from bookgate.gateway.stores.zookeeper.ledger_paths import CompositePaths
from bookgate.ledger.metadata_codec import decode, encode

_OUTSTANDING = 500


class KazooLoad:
    """The operations; times in seconds."""

    def __init__(self, address: str, root: str) -> None:
        self._address = address
        self._root = root
        self._paths = CompositePaths(root)
        self._clients: list[Any] = []
        self._made: list[str] = []
        self._data = encode(SAMPLE)
        self._heard: dict[int, int] = defaultdict(int)
        self._more = threading.Condition()

    def open(self, clients: int) -> int:
        while len(self._clients) < clients:
            wanted = min(50, clients - len(self._clients))
            fresh = [KazooClient(self._address, timeout=10) for _ in range(wanted)]
            for event in [client.start_async() for client in fresh]:
                event.wait(30)
            self._clients += fresh
        return len(self._clients)

    def close(self) -> None:
        for client in self._clients:
            client.stop()
            client.close()
        self._clients.clear()

    def create(self, clients: int, seconds: float) -> float:
        """All clients, a thread each, create one ledger after the other; how many a second, together."""
        self.open(clients)
        began = time.monotonic()

        def run(client: Any) -> int:
            created = 0
            while time.monotonic() - began < seconds:
                self._create_one(client)
                created += 1
            return created

        with ThreadPoolExecutor(clients) as pool:
            count = sum(pool.map(run, self._clients[:clients]))
        return count / (time.monotonic() - began)

    def _create_one(self, client: Any) -> None:
        counter = client.create(f"{self._root}/idgen/ID-", b"", ephemeral=True, sequence=True, makepath=True)
        client.delete_async(counter)
        client.create(self._paths.path(int(counter[-10:])), self._data, makepath=True)

    def create_bulk(self, clients: int, seconds: float, batch: int) -> float:
        """The same by clients that keep `batch` creates under way, by kazoo's asynchronous calls."""
        self.open(clients)
        began = time.monotonic()

        def run(client: Any) -> int:
            created = 0
            while time.monotonic() - began < seconds:
                created += len(self._create_batch(client, batch))
            return created

        with ThreadPoolExecutor(clients) as pool:
            count = sum(pool.map(run, self._clients[:clients]))
        return count / (time.monotonic() - began)

    def _create_batch(self, client: Any, batch: int) -> list[str]:
        prefix = f"{self._root}/idgen/ID-"
        counters = [
            client.create_async(prefix, b"", ephemeral=True, sequence=True, makepath=True) for _ in range(batch)
        ]
        paths = [counter.get() for counter in counters]
        for path in paths:
            client.delete_async(path)
        created = [client.create_async(self._paths.path(int(path[-10:])), self._data, makepath=True) for path in paths]
        return [result.get() for result in created]

    def make_open(self, count: int) -> None:
        """Creates ledgers for `close_open`."""
        self.open(1)
        self._made = self._create_batch(self._clients[0], count)

    def close_open(self, clients: int) -> dict[str, float]:
        """All clients, a thread each, close one of the open ledgers after the other: elapsed time, and CPU."""
        self.open(clients)
        began, cpu = time.monotonic(), time.process_time()

        def run(client: Any, own: list[str]) -> None:
            for path in own:
                client.set(path, encode(SAMPLE.close(LAST_ENTRY_ID, LENGTH)), version=0)

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(run, self._clients[:clients], [self._made[first::clients] for first in range(clients)]))
        return {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}

    def read_bulk(self, ids: list[int], seconds: float, batch: int, clients: int) -> float:
        """Clients read batches of the ids, pipelined, round and round; ledgers a second."""
        return self._read_bulk(ids, seconds, batch, clients, lambda data: decode(data) is not None)

    def read_bulk_undecoded(self, ids: list[int], seconds: float, batch: int, clients: int) -> float:
        """The same without a look at the content."""
        return self._read_bulk(ids, seconds, batch, clients, bool)

    def _read_bulk(
        self, ids: list[int], seconds: float, batch: int, clients: int, take: Callable[[bytes], bool]
    ) -> float:
        self.open(clients)
        began = time.monotonic()

        def run(client: Any, position: int) -> int:
            read = 0
            while time.monotonic() - began < seconds:
                results = [client.get_async(self._paths.path(i)) for i in ids[position : position + batch]]
                read += sum(take(result.get()[0]) for result in results)
                position = (position + batch) % len(ids)
            return read

        starts = [(index * len(ids) // clients) // batch * batch for index in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            count = sum(pool.map(run, self._clients[:clients], starts))
        return count / (time.monotonic() - began)

    def read_single(self, ids: list[int], seconds: float, clients: int) -> list[float]:
        """Clients read one ledger after the other; seconds each read took."""
        self.open(clients)
        end = time.monotonic() + seconds
        took: list[float] = []

        def run(client: Any, position: int) -> None:
            while (began := time.monotonic()) < end:
                decode(client.get(self._paths.path(ids[position % len(ids)]))[0])
                took.append(time.monotonic() - began)
                position += 1

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(run, self._clients[:clients], [37 * i for i in range(clients)]))
        return took

    def walk(self, with_metadata: bool = False, before: int | None = None) -> dict[str, float]:
        """Lists all ledgers of the tree of ids below 2**31."""
        self.open(1)
        client = self._clients[0]
        began, count, first = time.monotonic(), 0, 0.0
        client.sync(self._root)
        for top in _digit_names(client.get_children(self._root), 2):
            for middle in _digit_names(client.get_children(f"{self._root}/{top}"), 4):
                path = f"{self._root}/{top}/{middle}"
                names = client.get_children(path)
                run = sorted(int(f"{top}{middle}{name[1:]}") for name in names if name[0] == "L")
                run = [ledger_id for ledger_id in run if before is None or ledger_id < before]
                if with_metadata:
                    self._read_pipelined(client, run)
                count += len(run)
                first = first or time.monotonic() - began
                if before is not None and len(run) < len(names):
                    break
        return {"seconds": time.monotonic() - began, "count": count, "first": first, "rss": rss_bytes("self")}

    def _read_pipelined(self, client: Any, run: list[int]) -> None:
        waiting: deque[Any] = deque()
        for ledger_id in run:
            waiting.append(client.get_async(self._paths.path(ledger_id)))
            if len(waiting) >= _OUTSTANDING:
                decode(waiting.popleft().get()[0])
        for result in waiting:
            decode(result.get()[0])

    def subscribe(self, ids: list[int], streams: int, each: int) -> float:
        """`streams` clients that watch `each` ledgers, spread over the ids; seconds until all are watched."""
        self.open(streams)
        self._heard.clear()
        began = time.monotonic()
        for index, client in enumerate(self._clients[:streams]):
            numbers = [ids[(index * each + number) % len(ids)] for number in range(each)]
            for reading in [self._read_and_watch(client, number) for number in numbers]:
                reading.get()
        self._until(0, streams * each)
        return time.monotonic() - began

    def _read_and_watch(self, client: Any, ledger_id: int) -> Any:
        path = self._paths.path(ledger_id)
        reading = client.get_async(path, watch=lambda event: self._read_and_watch(client, ledger_id))
        reading.rawlink(self._hear)
        return reading

    def _hear(self, result: Any) -> None:
        if result.exception is None:
            decode(result.value[0])
            with self._more:
                self._heard[result.value[1].version] += 1
                self._more.notify_all()

    def hear(self, version: int, count: int) -> float:
        """Waits until `count` watchers have heard of a version; the moment at which the last one had."""
        self._until(version, count)
        return time.time()

    def _until(self, version: int, count: int) -> None:
        with self._more:
            if not self._more.wait_for(lambda: self._heard[version] >= count, 120):
                raise RuntimeError(f"only {self._heard[version]} of {count} watchers heard of version {version}")


def _digit_names(names: list[str], width: int) -> list[str]:
    return sorted(name for name in names if len(name) == width and name.isdigit())


if __name__ == "__main__":
    serve(KazooLoad(sys.argv[1], sys.argv[2]))
