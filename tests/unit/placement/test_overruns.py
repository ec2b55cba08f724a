"""Jobs that over-ran are planned with what they took, on their node, as far as that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.placement.fleets import (
    EXACT,
    claim,
    feed,
    fleet,
    node,
    plan_of_pod,
    profile,
    run,
    said,
    task,
)

from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask_status import MemTaskStatus
from tierline_api.objects.optin import Standing
from tierline_operator.placement.books.seats import Claim, DeviceKey, TaskKey
from tierline_operator.placement.books.verdict import Verdict
from tierline_operator.placement.fleet import Fleet

NODE_A, NODE_B = DeviceKey("node-a", "cpu0"), DeviceKey("node-b", "cpu0")


def written(made: MemProfile, generation: int = 1) -> MemProfile:
    """The profile as the API server has it."""
    metadata = made.metadata.model_copy(update={"uid": "u", "generation": generation})
    return made.model_copy(update={"metadata": metadata})


def over_ran(of: Fleet, known: Claim, took_ms: float) -> Claim:
    """The agent reports what jobs of a pod took."""
    known = replace(known, overran_s=took_ms / 1e3)
    feed(of, known)
    return known


def verdict(of: Fleet, name: str) -> Verdict:
    found = of.verdict(TaskKey("default", name))
    assert found is not None
    return found


def learned(of: Fleet, name: str) -> dict[str, float]:
    """By node, for how many milliseconds its jobs compute."""
    return {one.node: one.compute_time_s * 1e3 for one in verdict(of, name).remeasured}


def two(compute_ms: float = 10) -> tuple[Fleet, Claim, Claim]:
    """Two tasks of 100 ms with a running pod each, on one device."""
    made = fleet(node("node-a"), written(profile("m", compute_ms=compute_ms)))
    feed(made, task("a", of="m", number=0), task("b", of="m", number=1))
    return made, run(made, "a"), run(made, "b", number=1)


def test_what_still_holds_is_proven_again_with_the_longer_times() -> None:
    here, a, b = two()
    before = plan_of_pod(here, b)
    held = here.seat_of(b.key)
    assert held is not None
    memory = held.held

    over_ran(here, a, 30)
    assert plan_of_pod(here, a).job_time_s == pytest.approx(0.03, rel=2e-3)
    assert plan_of_pod(here, b).job_time_s == before.job_time_s
    assert held.held == memory
    assert learned(here, "a") == {"node-a": pytest.approx(30, rel=2e-3)}
    assert learned(here, "b") == {}
    assert not verdict(here, "a").unproven
    assert said(here, "a")[:2] == ("True", "Admitted")

    # It only rises, and by steps: what would hardly change a plan makes none.
    longer = plan_of_pod(here, a).job_time_s
    over_ran(here, a, 25)
    assert plan_of_pod(here, a).job_time_s == longer
    over_ran(here, a, 30.5)
    assert plan_of_pod(here, a).job_time_s == pytest.approx(1.05 * longer, rel=1e-3)


def test_what_does_not_hold_goes_on_as_it_was_and_says_so() -> None:
    here, a, b = two()
    plans = plan_of_pod(here, a), plan_of_pod(here, b)

    over_ran(here, a, 95)
    # It misses its own deadline next to the other, which holds whatever becomes of it.
    for pod in (a, b):
        seat = here.seat_of(pod.key)
        assert seat is not None
        assert seat.standing is Standing.PLANNED
    assert (plan_of_pod(here, a).job_time_s, plan_of_pod(here, b).job_time_s) == (
        plans[0].job_time_s,
        plans[1].job_time_s,
    )
    why = "with the times that jobs of default/a took of node-a/cpu0"
    assert why in verdict(here, "a").unproven
    assert said(here, "a")[:2] == ("True", "Admitted")

    # Nothing can be promised to anybody else there, but elsewhere.
    feed(here, task("c", of="m", number=2))
    assert said(here, "c")[:2] == ("False", "Pending")
    assert "not proven to hold by what runs there" in said(here, "c")[2]
    feed(here, node("node-b"))
    assert said(here, "c")[:2] == ("True", "Admitted")

    # When the other one goes, it holds.
    here.drop_task(TaskKey("default", "b"))
    here.drop_claim(b.key)
    feed(here, a)
    assert not verdict(here, "a").unproven
    assert plan_of_pod(here, a).job_time_s == pytest.approx(0.095, rel=2e-3)


def test_others_are_told_where_they_do_not_hold_either() -> None:
    here, a, _ = two()
    over_ran(here, a, 300)
    assert verdict(here, "a").unproven
    assert verdict(here, "b").unproven


def test_a_longer_deadline_makes_it_hold() -> None:
    here = fleet(node("node-a"), written(profile("m")))
    feed(here, task("a", of="m", deadline_ms=40), task("b", of="m"))
    a, _ = run(here, "a"), run(here, "b", number=1)
    over_ran(here, a, 50)
    assert verdict(here, "a").unproven
    assert not verdict(here, "b").unproven
    feed(here, task("a", of="m", deadline_ms=80, generation=2))
    assert not verdict(here, "a").unproven
    assert plan_of_pod(here, a).job_time_s == pytest.approx(0.05, rel=2e-3)


def test_the_next_pod_of_the_task_is_admitted_with_what_was_measured() -> None:
    here, a, _ = two()
    over_ran(here, a, 30)
    here.drop_claim(a.key)
    feed(here, claim("c-next", "a", number=5))
    next_ = here.seat_of(claim("c-next", "a").key)
    assert next_ is not None
    assert next_.plan is not None
    assert next_.plan.job_time_s == pytest.approx(0.03, rel=2e-3)


def test_what_one_node_says_counts_on_no_other() -> None:
    here = fleet(node("node-a"), node("node-b"), written(profile("m")))
    feed(here, task("a", of="m", replicas=2))
    one = claim("c-1", "a", place=NODE_A)
    other = claim("c-2", "a", place=NODE_B)
    feed(here, one, other)
    over_ran(here, one, 1e9)
    assert list(learned(here, "a")) == ["node-a"]
    there = here.seat_of(other.key)
    assert there is not None
    assert there.plan is not None
    assert there.plan.job_time_s < 0.02
    assert not there.unproven


def test_an_agent_that_reports_ever_more_is_heard_a_bounded_number_of_times() -> None:
    here, a, _ = two()
    heard = 0
    before: dict[str, float] = {}
    for number in range(2000):
        over_ran(here, a, 20 * 1.01**number)
        heard += learned(here, "a") != before
        before = learned(here, "a")
    assert 0 < heard < 300


def test_it_outlives_the_operator_and_the_pod_but_not_the_profile() -> None:
    here, a, b = two()
    over_ran(here, a, 30)
    status = MemTaskStatus(remeasured=verdict(here, "a").remeasured)
    longer = plan_of_pod(here, a)

    again = fleet(node("node-a"), written(profile("m")), rules=EXACT)
    feed(again, task("a", of="m", number=0, status=status), task("b", of="m", number=1), a, b)
    assert plan_of_pod(again, a).job_time_s == pytest.approx(longer.job_time_s)

    feed(again, written(profile("m", compute_ms=12), generation=2))
    assert learned(again, "a") == {}
    assert plan_of_pod(again, a).job_time_s < 0.02
    over_ran(again, a, 40)
    assert learned(again, "a") == {"node-a": pytest.approx(40, rel=2e-3)}


def test_a_stated_execution_time_is_corrected_too_until_it_says_more() -> None:
    here = fleet(node("node-a"), written(profile("m")))
    asked = task("a", of="m")

    def stating(ms: float, generation: int) -> None:
        realtime = asked.spec.realtime.model_copy(update={"execution_time_s": ms / 1e3})
        metadata = asked.metadata.model_copy(update={"generation": generation})
        spec = asked.spec.model_copy(update={"realtime": realtime})
        feed(here, asked.model_copy(update={"spec": spec, "metadata": metadata}))

    stating(20, 1)
    a = run(here, "a")
    over_ran(here, a, 50)
    assert plan_of_pod(here, a).job_time_s == pytest.approx(0.05, rel=2e-3)
    stating(60, 2)
    assert plan_of_pod(here, a).job_time_s == pytest.approx(0.06, rel=2e-3)
