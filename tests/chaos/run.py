"""Rounds of chaos on one cluster of processes: each has a plan of its own, a history, and a verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.cluster import ChaosBookie, ChaosCluster
from tests.history import events
from tests.history.recorder import Recorder, save
from tests.history.recording_client import RecordingClient
from tests.history.verdict import Verdict, check_history
from tests.history.violations import InvariantViolated, NoProgress
from tests.simulation.plan import FaultPlan, Limits, Plan, make_plan
from tests.simulation.workload import Workload

BOOKIES = 5
_PATIENCE_SECONDS = 60.0
_KINDS = ("kill", "stop", "cut", "zookeeper-kill", "zookeeper-stop")
_OPERATIONS = (events.AppendAsked, events.ReadDone, events.RecoveryAsked)


@dataclass
class ChaosOutcome:
    """Of all rounds."""

    rounds: int = 0
    operations: int = 0
    acknowledged: int = 0
    cuts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    looked: Counter[str] = field(default_factory=Counter)
    violations: list[InvariantViolated] = field(default_factory=list)
    kept: Path | None = None
    """The history of the round that failed."""


def limits(duration: float, *, disk_full: bool) -> Limits:
    kinds = (*_KINDS, "disk-full") if disk_full else _KINDS
    return Limits(
        duration, (BOOKIES, BOOKIES), writers=(3, 6), visits=(4, 12), faults=(2, 6), bursts=(4, 30), fault_kinds=kinds
    )


class ChaosRound:
    """One plan on a cluster that runs already."""

    def __init__(self, cluster: ChaosCluster, plan: Plan) -> None:
        self._cluster = cluster
        self._plan = plan
        began = time.monotonic()
        self.recorder = Recorder(lambda: time.monotonic() - began)
        self.faults: Counter[str] = Counter()
        self._zookeeper_fault = asyncio.Lock()

    async def run(self) -> Verdict:
        """Raises what is no violation: a bookie that does not start, an error of the client that is no outcome."""
        recorder, name = self.recorder, f"{self._plan.seed}"
        rng = random.Random(f"workload {self._plan.seed}")

        async def connect(client: str) -> RecordingClient:
            return RecordingClient(f"{client}.{name}", await self._cluster.client(), recorder)

        workload = Workload(self._plan, connect, _crash, recorder, rng, _PATIENCE_SECONDS)
        violations = []
        try:
            faults = [asyncio.create_task(self._befall(fault)) for fault in self._plan.faults]
            await workload.endanger()
            await asyncio.gather(*faults)
            await self._cluster.heal()
            await workload.prove_progress()
        except InvariantViolated as violation:
            violations.append(violation)
        except TimeoutError:
            violations.append(NoProgress("the cluster is not whole again though nothing ails it"))
        finally:
            await workload.close()
        verdict = check_history(recorder.history)
        verdict.violations += violations
        return verdict

    async def _befall(self, fault: FaultPlan) -> None:
        await asyncio.sleep(fault.at)
        bookie = self._cluster.bookies[fault.target]
        if fault.kind in ("kill", "stop", "disk-full") and not bookie.running:
            return
        target = bookie.name if fault.kind in ("kill", "stop", "disk-full") else "all"
        self.recorder.add(events.Fault(self.recorder.now, fault.kind, target, f"{fault.lasts:.2f} s"))
        self.faults[fault.kind] += 1
        await self._do(fault)

    async def _do(self, fault: FaultPlan) -> None:
        cluster = self._cluster
        bookie = cluster.bookies[fault.target]
        match fault.kind:
            case "kill":
                await asyncio.to_thread(bookie.kill)
                await asyncio.sleep(fault.lasts)
                await self._try_to_revive(bookie)
            case "stop":
                bookie.suspend()
                await asyncio.sleep(fault.lasts)
                bookie.resume()
            case "cut":
                cluster.cut(True)
                await asyncio.sleep(fault.lasts)
                cluster.cut(False)
            case "disk-full":
                await asyncio.to_thread(bookie.fill)
                await asyncio.sleep(fault.lasts)
                bookie.empty()
            case _:
                async with self._zookeeper_fault:
                    await self._zookeeper(fault)

    async def _zookeeper(self, fault: FaultPlan) -> None:
        zookeeper = self._cluster.zookeeper
        if fault.kind == "zookeeper-stop":
            zookeeper.suspend()
            await asyncio.sleep(fault.lasts)
            zookeeper.resume()
        else:
            await asyncio.to_thread(zookeeper.kill)
            await asyncio.sleep(fault.lasts)
            await asyncio.to_thread(zookeeper.start)

    async def _try_to_revive(self, bookie: ChaosBookie) -> None:
        """While other faults last it may not come up; healing tries again."""
        try:
            await self._cluster.revive(bookie)
        except AssertionError as error:
            self.recorder.add(events.Fault(self.recorder.now, "not-started", bookie.name, str(error)[-200:]))


async def _crash(client: RecordingClient) -> None:
    """Its connections are gone; nothing is closed in the metadata."""
    await client.client.close()


async def run_rounds(
    root: Path, seed: int, seconds: float, round_seconds: float, report: Callable[[ChaosOutcome], None]
) -> ChaosOutcome:
    """Rounds until the time is over or a round fails; at least one. The seed of each round is the next number."""
    outcome = ChaosOutcome()
    ends = time.monotonic() + seconds
    async with ChaosCluster(root, BOOKIES, seed) as cluster:
        plan_limits = limits(round_seconds, disk_full=all(bookie.own_disk for bookie in cluster.bookies))
        while not outcome.violations and (not outcome.rounds or time.monotonic() < ends):
            chaos = ChaosRound(cluster, make_plan(seed + outcome.rounds, plan_limits))
            try:
                verdict = await chaos.run()
            except BaseException:
                outcome.kept = _keep(chaos, root)
                raise
            _count(outcome, chaos, verdict)
            outcome.cuts = cluster.cuts
            if verdict.violations:
                outcome.kept = _keep(chaos, root)
            report(outcome)
    return outcome


def _keep(chaos: ChaosRound, root: Path) -> Path:
    path = root / "history.jsonl"
    save(chaos.recorder.history, path)
    return path


def _count(outcome: ChaosOutcome, chaos: ChaosRound, verdict: Verdict) -> None:
    history = chaos.recorder.history
    outcome.rounds += 1
    outcome.operations += sum(isinstance(event, _OPERATIONS) for event in history)
    outcome.acknowledged += sum(isinstance(event, events.AppendAcknowledged) for event in history)
    outcome.faults.update(chaos.faults)
    outcome.looked.update(verdict.looked)
    outcome.violations += verdict.violations
