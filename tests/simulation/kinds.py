"""The kinds of worlds that seeds are run in; a seed names another run in each of them.

`large` and `small` have clients, bookies, disks and (some) gateways, and a plan that can be shrunk. `metadata` has
ZooKeeper servers, gateways and clients that change, read, watch and list ledger records; in those of `access` the
gateways have a policy, and two more clients ask for what it denies, and for more than it gives. `repair` are small
worlds in which bookies are lost or to be emptied, and the others repair what they held. In those of `peers` they do so
over gateways and ZooKeeper, where a process of BookKeeper's marks and locks ledgers too. In those of `unbounded`
clients fight for one unbounded ledger; in those of `streams` they write a stream in turn, read it with cursors and trim
it, and bookies collect.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from tests.history.verdict import CHECKERS, DATA_INVARIANTS, ENTRY_INVARIANTS, PEER_INVARIANTS
from tests.simulation.metadata_run import run_metadata_seed
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Limits, Plan, make_plan
from tests.simulation.run import LIMITS, PEERS_LIMITS, REPAIR_LIMITS, SMALL_LIMITS, run_seed
from tests.simulation.streams_run import INVARIANTS as STREAMS_INVARIANTS
from tests.simulation.streams_run import run_streams_seed
from tests.simulation.unbounded_run import INVARIANTS as UNBOUNDED_INVARIANTS
from tests.simulation.unbounded_run import run_unbounded_seed


class WorldKind(StrEnum):
    """As the option `--world` has them."""

    LARGE = "large"
    SMALL = "small"
    METADATA = "metadata"
    ACCESS = "access"
    REPAIR = "repair"
    PEERS = "peers"
    UNBOUNDED = "unbounded"
    STREAMS = "streams"

    @property
    def invariants(self) -> tuple[str, ...]:
        """Those that runs of this kind are put to."""
        if self is WorldKind.METADATA:
            return "P6", *(each for each in CHECKERS if each.startswith("M"))
        if self is WorldKind.ACCESS:
            return "P6", *(each for each in CHECKERS if each.startswith("M")), "A1", "A2", "A5"
        if self is WorldKind.UNBOUNDED:
            return UNBOUNDED_INVARIANTS
        if self is WorldKind.STREAMS:
            return STREAMS_INVARIANTS
        return (*DATA_INVARIANTS, *(PEER_INVARIANTS if self is WorldKind.PEERS else ENTRY_INVARIANTS))


_LIMITS: dict[WorldKind, Limits] = {
    WorldKind.LARGE: LIMITS,
    WorldKind.SMALL: SMALL_LIMITS,
    WorldKind.REPAIR: REPAIR_LIMITS,
    WorldKind.PEERS: PEERS_LIMITS,
}


def plan_of(kind: WorldKind, seed: int) -> Plan | None:
    """None for worlds without plans."""
    return make_plan(seed, _LIMITS[kind]) if kind in _LIMITS else None


def run_one(
    kind: WorldKind,
    seed: int,
    plan: Plan | None = None,
    *,
    transcript: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Outcome:
    """A seed of a kind, with its plan or a smaller one."""
    if kind in (WorldKind.METADATA, WorldKind.ACCESS):
        intruder = kind is WorldKind.ACCESS
        return run_metadata_seed(seed, intruder=intruder, transcript=transcript, on_line=on_line)
    if kind is WorldKind.UNBOUNDED:
        return run_unbounded_seed(seed, transcript=transcript, on_line=on_line)
    if kind is WorldKind.STREAMS:
        return run_streams_seed(seed, transcript=transcript, on_line=on_line)
    return run_seed(seed, plan, limits=_LIMITS[kind], transcript=transcript, on_line=on_line)
