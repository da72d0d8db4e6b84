"""A storage on a disk in memory, what was asked of it and what it acknowledged, and the check that nothing is lost.

Everything asked gets a number, which is also its token. What storage must hold after a crash follows from two sets: the
numbers asked and those acknowledged before the crash. An acknowledged entry is there with its bytes or with those of a
later copy that was under way; an acknowledged fence holds; the explicit LAC is the last acknowledged or a later one;
the key is the ledger's. What was asked and not acknowledged may be there or not, an entry also with blocks that never
arrived: the journal's records have no checksum, the entry's digest says it to readers. Nothing else is there.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.storage import LedgerStorage, StorageConfig
from bookgate.bookie.system.files import FileSystem, StorageStoppedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import Status
from tests.faults.memory_disk import MemoryDisk
from tests.unit.bookie.storage.storage_support import (
    Acknowledgements,
    Disks,
    TokenWriter,
    changed,
    lac_packet,
    packet,
    small_config,
)

ENTRY, FENCE, LAC, DELETE = "entry", "fence", "lac", "delete"


def key_of(number: int) -> bytes:
    return bytes([number & 0xFF, 7] * 10)


class Asked(NamedTuple):
    """One request: an entry (with its id and packet), a fence, an explicit LAC packet, or the ledger's deletion."""

    kind: str
    ledger: int
    entry_id: int = -1
    content: bytes = b""


class Moment(NamedTuple):
    """What had been asked and acknowledged at some time."""

    asked: tuple[Asked, ...]
    acknowledged: frozenset[int]


class StorageRun:
    """One life of a storage. `history` is what earlier lives were asked and acknowledged."""

    def __init__(self, root: Path, files: FileSystem, history: Moment | None = None, /, **changes: object) -> None:
        self.config: StorageConfig = changed(small_config(root), changes)
        self.acks = Acknowledgements()
        self._asked = list(history.asked) if history else []
        self._before = history.acknowledged if history else frozenset()
        self.disks = Disks(self.config)
        self.storage = LedgerStorage(self.config, self.acks, files, disks=self.disks)

    @property
    def writer(self) -> TokenWriter:
        return TokenWriter(self.storage.writer)

    def moment(self) -> Moment:
        tokens = list(self.acks.tokens)
        acknowledged = self._before.union(token for token in tokens if isinstance(token, int))
        return Moment(tuple(self._asked), acknowledged)

    def open(self) -> None:
        self.storage.open()

    # Each returns its token, without waiting.

    def add(self, number: int, entry_id: int, size: int = 50, fill: int | None = None) -> int:
        data = packet(number, entry_id, size, fill=fill)
        token = self._ask(Asked(ENTRY, number, entry_id, data))
        self.writer.add_entry(self.ledger(number), entry_id, data, token)
        return token

    def fence(self, number: int) -> int:
        token = self._ask(Asked(FENCE, number))
        self.writer.fence(self.ledger(number), token)
        return token

    def write_lac(self, number: int, lac: int) -> int:
        data = lac_packet(number, lac)
        token = self._ask(Asked(LAC, number, content=data))
        self.writer.write_explicit_lac(self.ledger(number), data, token)
        return token

    def delete(self, *numbers: int) -> None:
        """As collection does; durable on return."""
        for number in numbers:
            self._ask(Asked(DELETE, number))
        self.storage.delete_ledgers(numbers)

    def force(self) -> str:
        """Its token is no request's: nothing has to be there because of it."""
        token = f"force {len(self._asked)}"
        self.writer.force(LedgerId.unscoped(1), token)
        return token

    def wait(self, *tokens: object) -> None:
        """Returns once all are acknowledged. Raises StorageStoppedException when storage failed before."""
        wanted = set(tokens)

        def settled() -> bool:
            return bool(self.acks.failures) or wanted <= set(self.acks.tokens)

        self.acks.wait_until(settled, f"tokens {tokens}")
        if not wanted <= set(self.acks.tokens):
            raise StorageStoppedException(f"storage failed before it acknowledged {tokens}")

    def ledger(self, number: int) -> LedgerDescriptor:
        ledger_id = LedgerId.of_number(number)
        return self.storage.ledgers.get(ledger_id) or self.storage.writer.create_ledger(ledger_id, key_of(number))

    def abandon(self) -> None:
        """Frees the threads and locks of a storage whose disk has failed; whatever it still wants to do fails."""
        try:
            self.storage.close()
        except OSError:
            return

    def _ask(self, asked: Asked) -> int:
        self._asked.append(asked)
        return len(self._asked) - 1


def check(storage: LedgerStorage, moment: Moment, what: str) -> None:
    """Everything acknowledged at that moment is in the storage, and nothing that was not asked."""
    by_ledger: dict[int, list[tuple[int, Asked]]] = defaultdict(list)
    for token, asked in enumerate(moment.asked):
        if asked.kind == DELETE:
            # The journal may bring it back, until collection takes it again.
            by_ledger[asked.ledger] = [(-1, old) for _, old in by_ledger[asked.ledger]]
        else:
            by_ledger[asked.ledger].append((token, asked))
    for number, requests in by_ledger.items():
        _check_ledger(storage, number, requests, moment.acknowledged, what)


def _check_ledger(
    storage: LedgerStorage, number: int, requests: list[tuple[int, Asked]], acknowledged: frozenset[int], what: str
) -> None:
    ledger = storage.ledgers.get(LedgerId.unscoped(number))
    if ledger is None:
        assert not any(token in acknowledged for token, _ in requests), f"{what}: ledger {number} is lost"
        return
    assert ledger.master_key == key_of(number), what
    fences = [token in acknowledged for token, asked in requests if asked.kind == FENCE]
    if any(fences):
        assert ledger.check_add(key_of(number), recovery=False) is Status.EFENCED, f"{what}: ledger {number} not fenced"
        assert ledger.check_add(key_of(number), recovery=True) is Status.EOK, what
    assert ledger.fenced <= bool(fences), f"{what}: nobody fenced ledger {number}"

    lacs, required = _candidates([item for item in requests if item[1].kind == LAC], acknowledged)
    assert ledger.explicit_lac in lacs or (ledger.explicit_lac is None and not required), f"{what}: LAC of {number}"

    entries: dict[int, list[tuple[int, Asked]]] = defaultdict(list)
    for token, asked in requests:
        if asked.kind == ENTRY:
            entries[asked.entry_id].append((token, asked))
    held = [first + index for first, count in storage.reader.entry_ids(ledger) for index in range(count)]
    assert set(held) <= set(entries), f"{what}: ledger {number} has entries that nobody added"
    assert storage.reader.last_entry_id(ledger) == max(held, default=-1), what
    for entry_id, adds in entries.items():
        copies, required = _candidates(adds, acknowledged)
        if entry_id not in held:
            assert not required, f"{what}: entry {entry_id} of ledger {number} is lost"
        elif required:
            assert storage.reader.read_entry(ledger, entry_id) in copies, (
                f"{what}: entry {entry_id} of {number} differs"
            )


def _candidates(requests: list[tuple[int, Asked]], acknowledged: frozenset[int]) -> tuple[list[bytes], bool]:
    """What may be there: the last that was acknowledged or a later one; and whether one of them must be."""
    last = max((index for index, (token, _) in enumerate(requests) if token in acknowledged), default=-1)
    return [asked.content for _, asked in requests[max(0, last) :]], last >= 0


def check_disk(disk: MemoryDisk, root: Path, moment: Moment, what: str, *, opens: int = 2, **changes: object) -> None:
    """Opens a storage on what a crash left, `opens` times (replaying twice equals once), and checks it each time."""
    for _ in range(opens):
        run = StorageRun(root, disk, moment, **changes)
        run.open()
        try:
            check(run.storage, moment, what)
            assert not run.storage.limbo(), f"{what}: nothing was lost"
        finally:
            run.storage.close()
        assert not disk.open_paths, what
        assert not run.acks.failures, what
