"""A storage against a dictionary: adds, re-adds, deletions, checkpoints, restarts and compactions in any order."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.collection.collection_support import Collection
from tests.unit.bookie.storage.storage_support import OpenStorage, opened, packet

LEDGERS = range(4)
ADDS, DELETE, CHECKPOINT, RESTART, COMPACT = "adds", "delete", "checkpoint", "restart", "compact"

steps = st.one_of(
    st.tuples(st.just(ADDS), st.sampled_from(LEDGERS), st.integers(0, 20), st.integers(1, 15)),
    st.tuples(st.just(DELETE), st.sampled_from(LEDGERS)),
    st.tuples(st.just(CHECKPOINT)),
    st.tuples(st.just(RESTART)),
    st.tuples(st.just(COMPACT), st.sampled_from([0.2, 0.8, 1.0])),
)


class Modelled:
    """A storage and what it must hold."""

    def __init__(self, root: Path, kind: str) -> None:
        self._root = root
        self._kind = kind
        self._stack = ExitStack()
        self._adds = 0
        self.entries: dict[int, dict[int, bytes]] = {}
        self._open()

    def _open(self) -> None:
        storage = opened(self._root, storage=self._kind, entry_log_max_bytes=1500)
        self.bookie: OpenStorage = self._stack.enter_context(storage)
        self.collection = Collection(self.bookie.storage)

    def adds(self, number: int, first: int, count: int) -> None:
        ledger = self.bookie.ledger(number)
        for entry_id in range(first, first + count):
            self._adds += 1
            data = packet(number, entry_id, fill=self._adds)
            self.bookie.writer.add_entry(ledger, entry_id, data, self._adds)
            self.entries.setdefault(number, {})[entry_id] = data
        self.bookie.acks.wait_for(self._adds)

    def delete(self, number: int) -> None:
        self.bookie.storage.delete_ledgers([number])
        self.entries.pop(number, None)

    def checkpoint(self) -> None:
        self.bookie.storage.checkpoint()

    def restart(self) -> None:
        self.close()
        self._open()

    def compact(self, threshold: float) -> None:
        self.collection.run(threshold)
        assert self.collection.statistics.failed_deletions == 0

    def check(self) -> None:
        for number in LEDGERS:
            held = self.entries.get(number, {})
            ledger = self.bookie.storage.ledgers.get(LedgerId.unscoped(number))
            if ledger is None:
                assert not held
                continue
            runs = self.bookie.storage.reader.entry_ids(ledger)
            assert {first + index for first, count in runs for index in range(count)} == set(held)
            for entry_id, data in held.items():
                assert self.bookie.storage.reader.read_entry(ledger, entry_id) == data

    def close(self) -> None:
        self._stack.close()


@pytest.mark.parametrize("kind", ["sorted", "db"])
@settings(max_examples=10, deadline=None)
@given(script=st.lists(steps, min_size=5, max_size=25))
def test_a_storage_holds_what_the_model_holds(kind: str, script: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        modelled = Modelled(Path(root), kind)
        try:
            for name, *arguments in script:
                getattr(modelled, str(name))(*arguments)
                modelled.check()
            modelled.restart()
            modelled.compact(1.0)
            modelled.check()
            for number in LEDGERS:
                modelled.delete(number)
            modelled.compact(1.0)
            modelled.check()
        finally:
            modelled.close()
