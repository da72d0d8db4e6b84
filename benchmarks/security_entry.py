"""What a policy costs an add: CPU of the bookie's event loop an add, without security and with, in pairs.

Requests are given to a connection as a socket would; measured is the work from the bytes to the journal's queue, which
is where a policy is asked. What follows (syncing, answering) is the same for both, and not counted: the share of a
whole add is smaller.

    python -m benchmarks.security_entry [--pairs N]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.protocol.connection import BookieConnection
from bookgate.bookie.server import BookieServer
from bookgate.gateway.stores.drivers import ensure_cluster
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire.messages import AddRequest, AuthRequest
from bookgate.ledger.wire.v3 import encode_request

_ADDS = 2_000
"""Of a slice: so short that what disturbs one does not disturb its pair."""
_BATCH = 50
_POLICY = '[[bindings]]\nprincipals = ["token:writer"]\nrole = "writer"\n' + "".join(
    f'[[bindings]]\nprincipals = ["token:other-{number}"]\nrole = "reader"\n' for number in range(1000)
)
_KEY = ledger_master_key(b"")
_DIGEST = digest_for(DigestType.CRC32C, b"")


class _Transport(asyncio.Transport):
    """Takes answers and forgets them."""

    def write(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Bookie:
    """A bookie, with or without a policy, and one connection that adds to it."""

    def __init__(self, root: Path, guarded: bool) -> None:
        root.mkdir()
        self.uri = f"sqlite://{root}/metadata.db"
        values: dict[str, Any] = {"metadata_uri": self.uri, "data_dir": root, "host": "127.0.0.1", "bookie_id": "b"}
        if guarded:
            (root / "tokens").write_text(f"writer:{hashlib.sha256(b'secret').hexdigest()}\n")
            (root / "policy.toml").write_text(_POLICY)
            values |= {"security_tokens": root / "tokens", "security_policy": root / "policy.toml"}
        config = load_config(**values, port=0, gateway_port=0, http_port=0, journal_sync_data=False)
        self._server = BookieServer(config)
        self._guarded = guarded
        self._ledger_ids = itertools.count(1)

    async def start(self) -> None:
        await ensure_cluster(self.uri)
        await self._server.start()
        self._connection: BookieConnection = self._server._connect()
        self._connection.connection_made(_Transport())
        if self._guarded:
            self._feed(encode_request(AuthRequest(1, "bookgate-token", b"secret")))

    async def stop(self) -> None:
        self._connection.connection_lost(None)
        await self._server.stop()

    def _feed(self, data: bytes) -> None:
        view = self._connection.get_buffer(len(data))
        while data:
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self._connection.buffer_updated(count)
            data, view = data[count:], self._connection.get_buffer(-1)

    async def seconds_an_add(self) -> float:
        """CPU of this thread, the loop's, while adds are taken in."""
        ledger_id = next(self._ledger_ids)
        frames = [
            encode_request(
                AddRequest(
                    entry, ledger_id, entry, _KEY, encode_entry(_DIGEST, ledger_id, entry, entry - 1, 100, b"x" * 100)
                )
            )
            for entry in range(_ADDS)
        ]
        batches = [b"".join(frames[start : start + _BATCH]) for start in range(0, _ADDS, _BATCH)]
        before, taken = self._server.statistics.adds, 0.0
        for batch in batches:
            began = time.thread_time()
            self._feed(batch)
            taken += time.thread_time() - began
            await asyncio.sleep(0)
        while self._server.statistics.adds - before < _ADDS:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        return taken / _ADDS


async def _measure(root: Path, pairs: int) -> None:
    plain, guarded = _Bookie(root / "plain", False), _Bookie(root / "guarded", True)
    await plain.start()
    await guarded.start()
    ratios: list[float] = []
    each: dict[_Bookie, list[float]] = {plain: [], guarded: []}
    for number in range(pairs):
        # Whoever is first has the colder caches.
        order = (plain, guarded) if number % 2 else (guarded, plain)
        taken = {bookie: await bookie.seconds_an_add() for bookie in order}
        ratios.append(taken[guarded] / taken[plain])
        each[plain].append(taken[plain])
        each[guarded].append(taken[guarded])
    low, middle, high = (value - 1 for value in statistics.quantiles(ratios, n=4))
    print(f"{pairs} pairs: {middle:+.1%} (quartiles {low:+.1%} to {high:+.1%}), median of the pairs' ratios")
    for name, bookie in (("without security", plain), ("with a policy", guarded)):
        taken_by = [seconds * 1e6 for seconds in each[bookie]]
        print(f"  {name}: {min(taken_by):.2f} µs an add at best, {statistics.median(taken_by):.2f} in the middle")
    await plain.stop()
    await guarded.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(_measure(Path(root), arguments.pairs))


if __name__ == "__main__":
    main()
