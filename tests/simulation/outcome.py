"""What became of one seed, whichever kind of world it ran in."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.history.events import History
from tests.history.verdict import Verdict
from tests.history.violations import InvariantViolated
from tests.simulation.plan import Plan


@dataclass
class Outcome:
    """`plan` is None in worlds that are made without one."""

    seed: int
    plan: Plan | None = None
    problem: str | None = None
    """The broken invariant or the error, in words; None when all is well."""
    invariant: str | None = None
    """Its id; "error" for what is none."""
    history: History = field(default_factory=list)
    transcript: str = ""
    looked: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.problem is not None

    def conclude(self, run: Callable[[], Verdict]) -> None:
        """Runs, and puts down the first thing that is wrong. What a run finds is never raised."""
        began = time.process_time()
        try:
            verdict = run()
            self.looked.update(verdict.looked)
            for violation in verdict.violations[:1]:
                raise violation
        except InvariantViolated as violation:
            self.invariant, self.problem = violation.id, str(violation)
        except Exception as error:
            self.invariant, self.problem = "error", "".join(traceback.format_exception(error))
        self.core_seconds = time.process_time() - began
