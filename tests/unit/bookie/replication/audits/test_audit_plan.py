"""When bookies are audited again."""

from __future__ import annotations

from bookgate.bookie.replication.audits.audit_plan import AuditPlan


def test_a_lost_bookie_is_audited_again_after_twice_as_long_each_time() -> None:
    plan, now = AuditPlan(60.0, 200.0), 1000.0
    for pause in (60.0, 120.0, 200.0, 200.0):
        assert plan.due(["a"], now) == ["a"]
        plan.audited(["a"], now, 1.0)
        assert plan.pauses(now) == [pause]
        assert plan.due(["a"], now + pause - 0.1) == []
        now += pause


def test_after_a_long_audit_the_next_one_waits_for_repairs_but_not_for_ever() -> None:
    for took, pauses in ((1.5, [75.0, 150.0]), (600.0, [900.0, 1800.0])):
        plan, now = AuditPlan(60.0, 86_400.0), 0.0
        for pause in pauses:
            plan.audited(["a"], now, took)
            assert plan.pauses(now) == [pause]
            now += pause
        assert plan.settled == {"a"}


def test_a_bookie_is_settled_with_its_second_audit() -> None:
    plan = AuditPlan(60.0, 86_400.0)
    plan.audited(["a"], 0.0, 100.0)
    assert plan.settled == set()
    plan.audited(["a"], 60.0, 1.0)
    assert plan.settled == {"a"}
    plan.clear()
    assert (plan.settled, plan.due(["a"], 61.0)) == (set(), ["a"])


def test_audits_of_a_bookie_that_is_emptied_while_it_serves_settle_no_loss() -> None:
    plan = AuditPlan(60.0, 86_400.0)
    for _ in range(3):
        plan.audited(["a"], 0.0, 1.0, draining=["a"])
    assert plan.settled == set()
    plan.audited(["a"], 0.0, 1.0)
    assert plan.settled == set()
    plan.audited(["a"], 0.0, 1.0)
    assert plan.settled == {"a"}


def test_who_is_not_wanted_any_more_begins_anew() -> None:
    plan = AuditPlan(60.0, 86_400.0)
    plan.audited(["a", "b"], 0.0, 1.0)
    assert plan.due(["b"], 1.0) == []
    assert plan.due(["a", "b"], 1.0) == ["a"]


def test_bookies_to_be_emptied_are_audited_as_often_as_that_is_cheap() -> None:
    plan = AuditPlan(60.0, 86_400.0)
    for took, pause in ((0.1, 60.0), (10.0, 500.0), (0.1, 60.0)):
        plan.audited(["a"], 0.0, took, draining=["a"])
        assert plan.pauses(0.0) == [pause]
