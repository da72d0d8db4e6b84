"""Plans that once found a bug of the product, or a planted one that few seeds find, by a name for what happens.

They are run with every test run. A plan is made anew from its seed, so a change of how plans are drawn turns such a
seed into an ordinary one; then what mattered of its plan is written out here in full.
"""

from __future__ import annotations

from tests.simulation.plan import STORE_FAULTS, FaultPlan, Plan, RatePlan, VisitPlan, WriterPlan

REGRESSIONS: dict[str, Plan] = {
    "mode-that-changes-back-while-gateways-are-away": Plan(
        seed=149,
        bookies=3,
        duration=20.0,
        writers=(WriterPlan("w1", 3.555803648280619, (3, 2, 2), (4,), 100, 0.7058823529411765, "close"),),
        visits=(),
        faults=(FaultPlan("f3", 10.807552742963395, "full-disk", 1, 4.0),),
        rates=(RatePlan("r-slow-packets", "slow-packets", 0.2), RatePlan("r-store", STORE_FAULTS, 1.0)),
        gateways=2,
    ),
    "recovery-that-loses-to-the-writer-s-close": Plan(
        seed=922020,
        bookies=6,
        duration=20.0,
        writers=(
            WriterPlan(
                name="w0",
                at=0.9416724170995665,
                sizes=(3, 3, 2),
                bursts=(5, 4, 12, 9, 11),
                payload=100,
                pause=0.01,
                end="close",
                advanced=False,
                deferred_sync=True,
            ),
        ),
        visits=(
            VisitPlan(name="v3", at=1.05894267393941, what="read", writer="w0"),
            VisitPlan(name="v4", at=1.0490948434139564, what="tail-polling", writer="w0"),
            VisitPlan(name="v8", at=1.1261865515446043, what="read", writer="w0"),
            VisitPlan(name="v9", at=13.85526564205892, what="intrude", writer="w0"),
            VisitPlan(name="v10", at=2.575020511154989, what="recover", writer="w0"),
            VisitPlan(name="v11", at=1.0296448016921214, what="recover", writer="w0"),
            VisitPlan(name="v13", at=1.149252641106209, what="recover", writer="w0"),
        ),
        faults=(
            FaultPlan(name="f3", at=1.0314117542986594, kind="isolate", target=3, lasts=4.0, client=0),
            FaultPlan(name="f0", at=2.0464332825016314, kind="power-loss-of-all", target=0, lasts=1.0, client=0),
        ),
        rates=(RatePlan(name="r-slow-disk", kind="slow-disk", rate=30.0),),
        gateways=0,
    ),
    "entry-that-no-bookie-can-take-before-others": Plan(
        seed=923816,
        bookies=4,
        duration=20.0,
        writers=(
            WriterPlan(
                name="w0",
                at=3.428782588059643,
                sizes=(3, 3, 3),
                bursts=(2, 2, 1, 2, 2, 3, 1, 3, 1, 2, 2, 2, 3, 1, 3, 3, 1, 1, 2, 1),
                payload=100,
                pause=0.01,
                end="leave",
                advanced=False,
                deferred_sync=False,
            ),
            WriterPlan(
                name="w1",
                at=1.854411140980164,
                sizes=(3, 3, 2),
                bursts=(195, 156, 125, 108, 42, 170, 16, 141, 186, 111, 2, 106, 161, 184, 19, 180, 55),
                payload=20,
                pause=0.7058823529411765,
                end="close",
                advanced=False,
                deferred_sync=False,
            ),
            WriterPlan(
                name="w2",
                at=2.2556052953713834,
                sizes=(3, 2, 2),
                bursts=(34, 1, 44, 16, 31, 30, 32, 42, 45, 37),
                payload=1000,
                pause=0.0,
                end="leave",
                advanced=False,
                deferred_sync=False,
            ),
            WriterPlan(
                name="w3",
                at=3.2072619978200363,
                sizes=(3, 2, 1),
                bursts=(46, 34, 20, 85, 29, 180, 12, 27, 85, 60, 112, 73),
                payload=5000,
                pause=0.5,
                end="close",
                advanced=True,
                deferred_sync=False,
            ),
        ),
        visits=(
            VisitPlan(name="v1", at=4.130987240596713, what="look", writer="w3"),
            VisitPlan(name="v2", at=3.4691720021046755, what="intrude", writer="w0"),
        ),
        faults=(FaultPlan(name="f2", at=4.715036037542731, kind="isolate", target=3, lasts=4.0, client=0),),
        rates=(
            RatePlan(name="r-failing-reads", kind="failing-reads", rate=0.01),
            RatePlan(name="r-failing-syncs", kind="failing-syncs", rate=0.003),
            RatePlan(name="r-slow-packets", kind="slow-packets", rate=0.010000000000000002),
            RatePlan(name="r-store", kind=STORE_FAULTS, rate=1.0),
        ),
        gateways=2,
    ),
    "fence-of-a-recovery-that-a-bookie-does-not-hear": Plan(
        seed=128,
        bookies=3,
        duration=8.0,
        writers=(WriterPlan("w0", 0.12615443967956638, (3, 2, 2), (2,), 5000, 0.0, "leave"),),
        visits=(VisitPlan("v0", 0.20561630193216185, "recover", "w0"),),
        faults=(FaultPlan("f-parts", 0.1290749115160115, "link-loses", 2, 0.1, client=1),),
        rates=(),
    ),
    "reader-between-two-recoveries-of-a-ledger": Plan(
        seed=4,
        bookies=3,
        duration=8.0,
        writers=(
            WriterPlan(
                name="w0",
                at=0.1463333466144398,
                sizes=(3, 3, 2),
                bursts=(8, 37, 59, 3, 37, 57, 5, 12, 1, 60, 8, 39, 5, 18, 40, 38),
                payload=1000,
                pause=0.05486193223403438,
                end="leave",
                deferred_sync=True,
            ),
        ),
        visits=(
            VisitPlan("v0", 0.8992099207652167, "recover", "w0"),
            VisitPlan("v1", 0.9126740974025557, "recover", "w0"),
            VisitPlan("v2", 0.9256232977005323, "tail-polling", "w0"),
        ),
        faults=(
            FaultPlan("f-silent", 0.8992099207652167, "link-from-stalls", 2, 1.0),
            FaultPlan("f-lost", 0.9418567205877938, "link-resets", 2, 0.2),
        ),
        rates=(),
    ),
}
