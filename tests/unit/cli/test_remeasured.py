"""What jobs took at worst flows back into profiles, by the recursion that plans are made with."""

from __future__ import annotations

from typing import Any

import pytest

from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.planning import decide
from tierline_cli.reporting.remeasured import JobTimes, remeasured
from tierline_operator.planning.answer import Admitted, TaskPlan

_ABOUT = {"apiVersion": "tierline.io/v1alpha1", "metadata": {"name": "vit", "namespace": "n"}}
_PROFILE = MemProfile.from_api(
    {
        **_ABOUT,
        "kind": "MemProfile",
        "spec": {
            "device": {"kind": "cpu", "product": "x"},
            "layers": [
                {
                    "name": str(n),
                    "bytes": 64 << 20,
                    "computeTime": "2ms",
                    "meanComputeTime": "1ms",
                    "longestComputeTime": "2.1ms",
                }
                for n in range(16)
            ],
            "workspace": "16Mi",
        },
    }
)


def asked(**realtime: str) -> MemTask:
    spec: dict[str, Any] = {
        "realtime": {"period": "200ms", **realtime},
        "memory": {"budget": "8Gi"},
        "device": {"kind": "cpu"},
    }
    return MemTask.from_api({**_ABOUT, "kind": "MemTask", "spec": spec})


def node(fast_bytes: int) -> MemNode:
    """With a link of 20 GB/s: to read a layer takes 3.4 ms."""
    device = {"name": "cpu", "kind": "cpu", "product": "x", "extentBytes": 32 << 20}
    link = {"name": "h2d", "device": "cpu", "bandwidth": 20 * 10**9, "overhead": "10us"}
    status = {
        "devices": [{**device, "fastBytes": fast_bytes}],
        "tiers": [{"name": "dram", "capacityBytes": 2**34}],
        "links": [link],
    }
    about = {"apiVersion": "tierline.io/v1alpha1", "metadata": {"name": "here"}}
    return MemNode.from_api({**about, "kind": "MemNode", "status": status})


def seen(worst_s: float, *, planned_s: float = 0.0, peak_bytes: int = 0) -> JobTimes:
    return JobTimes(
        jobs=40,
        overruns=int(worst_s > planned_s),
        worst_s=worst_s,
        planned_s=planned_s,
        memory_overruns=int(peak_bytes > 16 << 20),
        workspace_peak_bytes=peak_bytes,
        workspace_planned_bytes=16 << 20,
    )


def planned(task: MemTask, profile: MemProfile, where: MemNode) -> TaskPlan | None:
    answer = decide.decide([task], {task.name: profile}, where, None)
    return answer.plans[0] if isinstance(answer, Admitted) else None


@pytest.mark.parametrize("fast_bytes", [2 << 30, 300 << 20], ids=["resident", "streamed"])
def test_a_profile_with_the_worst_of_a_run_plans_no_less_than_that(fast_bytes: int) -> None:
    task, where = asked(), node(fast_bytes)
    plan = planned(task, _PROFILE, where)
    assert plan is not None
    assert bool(plan.streamed_bytes) == (fast_bytes < 1 << 30)
    worst_s = 1.4 * plan.job_time_s
    longer = remeasured(task, _PROFILE, where, plan, seen(worst_s))
    again = planned(task, longer, where)
    assert again is not None
    # With the margin above what was seen, and means as they were.
    assert worst_s < again.job_time_s
    assert longer.spec.layers[3].compute_time_s > _PROFILE.spec.layers[3].compute_time_s
    assert longer.spec.layers[3].mean_compute_time_s == 0.001
    assert MemProfile.from_api(longer.to_api()).spec.layers[3].longest_compute_time_s is not None
    # What is in the profile now is not lengthened once more.
    assert remeasured(task, longer, where, plan, seen(worst_s)) is longer


def test_a_task_whose_jobs_took_too_long_is_not_admitted_again() -> None:
    task, where = asked(deadline="60ms"), node(2 << 30)
    plan = planned(task, _PROFILE, where)
    assert plan is not None
    assert planned(task, remeasured(task, _PROFILE, where, plan, seen(0.055)), where) is None


@pytest.mark.parametrize(
    ("realtime", "worst_s"),
    [
        pytest.param({}, 0.03, id="shorter than measured"),
        pytest.param({"executionTime": "50ms"}, 0.1, id="planned by what its spec states"),
    ],
)
def test_a_profile_stays_where_it_says_enough(realtime: dict[str, str], worst_s: float) -> None:
    task, where = asked(**realtime), node(2 << 30)
    plan = planned(task, _PROFILE, where)
    assert plan is not None
    assert remeasured(task, _PROFILE, where, plan, seen(worst_s)) is _PROFILE


def test_memory_beyond_the_plan_flows_back_and_admission_refuses_what_does_not_fit() -> None:
    task, where = asked(), node(300 << 20)
    plan = planned(task, _PROFILE, where)
    assert plan is not None
    took = seen(0.0, planned_s=1.0, peak_bytes=290 << 20)
    larger = remeasured(task, _PROFILE, where, plan, took)
    assert larger.spec.workspace_bytes == 290 << 20
    assert larger.spec.layers == _PROFILE.spec.layers
    assert planned(task, larger, where) is None
    said = took.memory_sentence(task)
    assert "1 of 40 jobs took more memory besides the weights than the 16.0 MiB" in said
    assert "290.0 MiB at most" in said


def test_a_job_is_held_against_what_was_planned_for_one_and_not_for_a_release() -> None:
    three = _PROFILE.model_copy(update={"spec": _PROFILE.spec.model_copy(update={"calls": (3,)})})
    plan = planned(asked(), three, node(2 << 30))
    assert plan is not None
    assert plan.call_s * 2 < plan.job_time_s
    counted = {
        "jobs": 120,
        "overruns": 1,
        "job_time_worst_ns": round(plan.call_s * 1.5e9),
        "memory_overruns": 0,
        "workspace_peak_bytes": 0,
    }
    took = JobTimes.of(plan, counted)
    assert took.planned_s == plan.call_s < took.worst_s < plan.job_time_s
    assert f"than the {plan.call_s * 1e3:.1f} ms that were planned for one" in took.sentence(
        asked()
    )


def test_a_person_is_told_what_to_do() -> None:
    seen = JobTimes(jobs=40, overruns=2, worst_s=0.048, planned_s=0.0312)
    said = seen.sentence(asked())
    assert "vit: 2 of 40 jobs had the device for longer than the 31.2 ms" in said
    assert "48.0 ms at worst" in said
    assert "--profiles-file" in said
    assert "executionTime" in seen.sentence(asked(executionTime="20ms"))
