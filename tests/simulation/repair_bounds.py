"""Watches within which bounds repairs stay: the placement policy (R14) and the budget (R15).

Placement: after a write under a lock no fragment that it changed lacks more racks than before, by the racks that
bookies are in. The worker that chose the bookie, and had no other, has counted it; its choice is kept, so another
worker may have made the copies.

Budget: what a process has read and stored, since it first asked its budget, is no more than its rates grant for that
time. Each copy is told when it is sent; it has been read, and is stored, and costs both times what docs/protocol says
of small entries. The first copy that is sent is not always the first that asked: a last copy may wait for less. The
bound of one bookie, which workers share, is not looked at: shares are settled within seconds, and worlds last no
longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import WorkerBudget
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.ledger.entry import Entry
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.handles.context import LedgerSecrets
from tests.history.violations import CopiesBeyondTheBudget, PlacementWorse
from tests.simulation.loop import CURRENT, Process
from tests.simulation.plan import AutoRecoveryPlan
from tests.simulation.world import World

_WANTED_RACKS = 2
_SMALL_ENTRY_BYTES = 4096
_BURST_SECONDS = 0.05
_MIB = 1024 * 1024
Hear = Callable[[Process, Sequence[Entry]], None]


class RepairBounds:
    """Of one world."""

    def __init__(self, world: World, plan: AutoRecoveryPlan) -> None:
        self._world = world
        self._plan = plan
        self._worse = self._counted = 0
        """Fragments that were left with fewer racks, and bookies that workers have counted as such."""
        self._moved: Counter[Process] = Counter()
        """Bytes that processes have read and stored."""
        self._since: dict[Process, float] = {}
        """When they first asked their budgets."""
        self.looked: Counter[str] = Counter()

    def repaired(self, before: LedgerMetadata, after: LedgerMetadata, number: int) -> None:
        """R14, when a process names other bookies."""
        if not self._plan.racks:
            return
        for old, new in zip(before.fragments, after.fragments, strict=False):
            if old.ensemble == new.ensemble:
                continue
            self.looked["R14"] += 1
            lacked, lacks = (self._lacking(each.ensemble, after.write_quorum_size) for each in (old, new))
            if lacks <= lacked:
                continue
            self._worse += 1
            if self._worse > self._counted:
                where = f"ledger {number} from entry {new.first_entry_id} on"
                seen = f"{where} lacks {lacks} racks at {new.ensemble}, and lacked {lacked} at {old.ensemble}"
                self._world.fail(PlacementWorse(f"{seen}; workers have counted {self._counted} of these"))

    def compromised(self) -> None:
        """R14, when a worker has counted a bookie that it had to choose."""
        self._counted += 1

    def mends(self, before: LedgerMetadata, after: LedgerMetadata, first_entry_id: int) -> bool:
        """Whether a fragment lacks fewer racks after a write: a check of placement may move what is misplaced."""
        if not self._plan.racks:
            return False
        lacked, lacks = (
            self._lacking(each.ensemble, metadata.write_quorum_size)
            for metadata in (before, after)
            for each in metadata.fragments
            if each.first_entry_id == first_entry_id
        )
        return lacks < lacked

    def _lacking(self, ensemble: Sequence[str], window: int) -> int:
        """How many racks too few all write sets have together."""
        racks = [int(bookie_id.rpartition(":")[0].rpartition("-")[2]) % self._plan.racks for bookie_id in ensemble]
        ring = racks * 2
        sets = (ring[start : start + window] for start in range(len(racks)))
        return sum(max(0, min(window, _WANTED_RACKS) - len({*each})) for each in sets)

    def asked(self, process: Process) -> None:
        """R15, when a process asks its budget."""
        self._since.setdefault(process, self._world.now)

    def copies(self, process: Process, entries: Sequence[Entry]) -> None:
        """R15, when a process is about to send copies."""
        if not self._plan.budget:
            return
        rate = (self._plan.budget + self._plan.last_copies) * _MIB
        moved = 2 * sum(max(len(entry.payload), _SMALL_ENTRY_BYTES) for entry in entries)
        self._moved[process] += moved
        since = self._since[process]
        granted = rate * (self._world.now - since + _BURST_SECONDS)
        self.looked["R15"] += 1
        if self._moved[process] > granted + 1:
            seen = f"{process.name} has read and stored {self._moved[process]} bytes since {since:.2f} s"
            self._world.fail(CopiesBeyondTheBudget(f"{seen}; its budget grants {granted:.0f}"))


@contextmanager
def copies_told(hear: Hear) -> Iterator[None]:
    """Whoever sends copies to a bookie is told before, with the process that does."""
    send = Bookies.add_copies

    async def told(
        self: Bookies, bookie_id: str, ledger_id: int, entries: Sequence[Entry], secrets: LedgerSecrets
    ) -> int:
        hear(CURRENT.get(), entries)
        return await send(self, bookie_id, ledger_id, entries, secrets)

    with _replaced(Bookies, "add_copies", told):
        yield


@contextmanager
def budgets_told(hear: Callable[[Process], None]) -> Iterator[None]:
    """Who asks its budget for a copy is told before."""
    take = WorkerBudget.take

    def told(self: WorkerBudget, sizes: Mapping[str, float], now: float, *, last_copies: bool = False) -> float:
        hear(CURRENT.get())
        return take(self, sizes, now, last_copies=last_copies)

    with _replaced(WorkerBudget, "take", told):
        yield


@contextmanager
def compromises_told(hear: Callable[[], None]) -> Iterator[None]:
    """Each bookie that a worker counts as chosen against the policy is told."""
    count = WorkerTools._not_adhering

    def told(self: WorkerTools, metric: str) -> None:
        before = self.compromises
        count(self, metric)
        for _ in range(self.compromises - before):
            hear()

    with _replaced(WorkerTools, "_not_adhering", told):
        yield


@contextmanager
def _replaced(owner: type, name: str, method: Callable[..., object]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, before)
