"""Plans under the memory limit, policies, criticalities, and refusals that can be acted on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.simulation.tasksets import device_for, random_set
from tests.unit.planning.shapes import LINK, device, layout_of, task

from tierline_api.devices.fast_memory import Contexts
from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.realtime import Criticality
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.jobs.pipeline import LinkRate, Pipeline
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import (
    DeviceCapacity,
    Margins,
    TaskDemand,
    TierCapacity,
)

MB = 10**6


def admitted(tasks: list[TaskDemand], on: DeviceCapacity, *, give_spare: bool = True) -> Admitted:
    answer = plan(tasks, on, give_spare=give_spare)
    assert isinstance(answer, Admitted), answer.sentence
    return answer


def refused(tasks: list[TaskDemand], on: DeviceCapacity) -> Infeasible:
    answer = plan(tasks, on)
    assert isinstance(answer, Infeasible)
    return answer


def one_more(tasks: list[TaskDemand], on: DeviceCapacity) -> ProvenSet | Infeasible:
    """The last one in addition to the others, with their plans."""
    before = settle(tasks[:-1], on)
    assert isinstance(before, ProvenSet)
    return admit(before, tasks[-1])


def test_weights_that_fit_stay() -> None:
    answer = admitted([task("a", 100, 100, 10), task("b", 100, 100, 20)], device(20))
    assert [len(p.resident_extents) for p in answer.plans] == [10, 10]
    assert [p.ring_extents for p in answer.plans] == [0, 0]
    assert [p.job_time_s for p in answer.plans] == pytest.approx([0.01, 0.02])
    assert answer.fast_bytes_used == 20 * MB


def test_what_does_not_fit_streams_within_the_limit() -> None:
    tasks = [task("a", 1000, 1000, 10), task("b", 1000, 1000, 20, workspace_bytes=3 * MB)]
    on = device(12)
    answer = admitted(tasks, on)
    resident = sum(len(p.resident_extents) for p in answer.plans) * MB
    ring = max(p.ring_extents for p in answer.plans) * MB
    assert resident + ring + 3 * MB == answer.fast_bytes_used <= on.fast_bytes
    for demand, got in zip(tasks, answer.plans, strict=True):
        pipeline = Pipeline(demand.layout, demand.compute_s, [0] * 10, [LINK], LINK.copy_s(MB))
        time_s = pipeline.total_s(set(got.resident_extents), got.ring_extents)
        assert got.job_time_s == pytest.approx(time_s)
        assert got.response_s is not None
        assert got.job_time_s <= got.response_s <= demand.deadline_s
        assert got.streamed_bytes == (10 - len(got.resident_extents)) * MB


def test_the_same_question_gets_the_same_answer() -> None:
    rng = np.random.default_rng(2)
    tasks = random_set(rng, 0.2)
    assert plan(tasks, device_for(tasks, 2.0)) == plan(tasks, device_for(tasks, 2.0))


def test_memory_goes_where_the_deadline_is() -> None:
    tasks = [task("slow", 2000, 2000, 10), task("urgent", 100, 100, 10)]
    answer = admitted([replace(tasks[0], criticality=Criticality.SOFT), tasks[1]], device(18))
    slow, urgent = answer.plans
    assert urgent.job_time_s + slow.job_time_s <= 0.1
    alone = admitted([tasks[1]], device(9), give_spare=False).plans[0]
    assert 0 < len(alone.resident_extents) < 9


def test_spare_memory_is_used_or_left_as_asked() -> None:
    tasks = [task("a", 1000, 1000, 10), task("b", 1000, 1000, 10)]
    lean = admitted(tasks, device(15), give_spare=False)
    full = admitted(tasks, device(15))
    assert lean.fast_bytes_used < full.fast_bytes_used <= 15 * MB
    assert full.utilisation < lean.utilisation


def test_rings_are_shared_in_a_domain_and_not_across() -> None:
    def pair(other: str) -> list[TaskDemand]:
        kwargs = {"policy": SwapPolicy.STREAM}
        return [
            task("a", 1000, 1000, 10, policy=kwargs["policy"]),
            task("b", 1000, 1000, 10, policy=kwargs["policy"], domain=other),
        ]

    together = admitted(pair("default"), device(12))
    apart = admitted(pair("other"), device(12))
    ring = together.plans[0].ring_extents
    assert together.fast_bytes_used == ring * MB
    assert apart.fast_bytes_used == 2 * ring * MB


def test_policies() -> None:
    fixed = task("fixed", 1000, 1000, 10, policy=SwapPolicy.RESIDENT)
    stream = task("stream", 1000, 1000, 10, policy=SwapPolicy.STREAM)
    swap = task("swap", 1000, 1000, 10, policy=SwapPolicy.SWAP)
    auto = task("auto", 1000, 1000, 10)
    answer = admitted([fixed, stream, swap, auto], device(22))
    held = {p.name: len(p.resident_extents) for p in answer.plans}
    assert held["fixed"] == 10
    assert held["stream"] == held["swap"] == 0
    assert held["auto"] > 0


def test_a_deadline_gives_a_streaming_task_memory_but_never_a_swapping_one() -> None:
    stream = task("t", 200, 80, 10, policy=SwapPolicy.STREAM)
    assert len(admitted([stream], device(9)).plans[0].resident_extents) > 0
    answer = refused([replace(stream, policy=SwapPolicy.SWAP)], device(9))
    assert answer.kind == "deadline"
    assert answer.missing_bytes is None


def test_a_streaming_task_keeps_only_what_its_deadline_needs() -> None:
    stream = task("t", 200, 80, 10, policy=SwapPolicy.STREAM)
    answer = admitted([stream], device(20))
    (got,) = answer.plans
    assert 0 < len(got.resident_extents) < 10
    assert answer.remarks == ()
    kept = set(got.resident_extents)
    less = Pipeline(stream.layout, stream.compute_s, [0] * 10, [LINK], LINK.copy_s(MB))
    assert got.job_time_s == less.total_s(kept, got.ring_extents) <= 0.08
    assert less.total_s(kept - {max(kept)}, got.ring_extents) > 0.08


def test_a_streaming_task_that_must_stay_resident_is_explained() -> None:
    stream = task("t", 200, 12, 10, policy=SwapPolicy.STREAM)
    answer = admitted([stream], device(20))
    assert answer.plans[0].streamed_bytes == 0
    (remark,) = answer.remarks
    assert remark.startswith("t is to stream, but all of its weights stay resident: with ")
    assert "read from dram" in remark
    pinned = lay_out([LayerShape(MB, pinned=True)] * 10, MB)
    answer = admitted([replace(stream, layout=pinned, compute_s=(0.01,))], device(20))
    assert answer.remarks[0].endswith("none of them may be streamed (pinned or reserved)")


def test_nothing_is_said_of_the_weights_of_a_program_without_any() -> None:
    for policy in (SwapPolicy.STREAM, SwapPolicy.SWAP):
        none = replace(
            task("t", 200, 12, 10, policy=policy),
            layout=lay_out([LayerShape(0)], MB),
            compute_s=(0.01,),
        )
        assert admitted([none], device(20)).remarks == ()


def test_reserved_memory_is_kept() -> None:
    keen = task("keen", 1000, 1000, 10, reserved_bytes=5 * MB, policy=SwapPolicy.STREAM)
    (got,) = admitted([keen], device(9)).plans
    assert len(got.resident_extents) >= 5


def test_pinned_weights_are_always_resident() -> None:
    layers = [LayerShape(2 * MB, pinned=True), *[LayerShape(MB)] * 8]
    demand = replace(task("p", 1000, 1000, 8), layout=lay_out(layers, MB), compute_s=(0.001,) * 8)
    (got,) = admitted([demand], device(6), give_spare=False).plans
    assert {0, 1} <= set(got.resident_extents)


def test_margins_and_overheads_are_part_of_the_promise() -> None:
    tasks = [task("a", 1000, 1000, 100, policy=SwapPolicy.STREAM)]
    plain = admitted(tasks, device(6)).plans[0].job_time_s
    careful = device(6, margins=Margins(1.2, 1.5), dispatch_s=0.002, gate_s=0.001)
    got = admitted(tasks, careful).plans[0]
    assert got.compute_s == pytest.approx(0.1 * 1.2 + 10 * 0.001 + 0.002)
    assert got.job_time_s > plain * 1.2
    with pytest.raises(ValueError, match="at least 1"):
        Margins(compute=0.9)


def test_soft_tasks_are_admitted_by_their_means_where_nothing_is_hard() -> None:
    spiky = task("spiky", 100, 100, 85)
    soft = replace(spiky, criticality=Criticality.SOFT, mean_compute_s=(0.003,) * 10)
    other = replace(soft, name="other")
    answer = admitted([other, soft], device(30))
    assert answer.utilisation == pytest.approx(0.6)
    assert [plan.job_time_s for plan in answer.plans] == pytest.approx([0.085, 0.085])
    assert [plan.response_s for plan in answer.plans] == [None, None]
    # Nobody could hold its jobs to the mean, so next to a hard deadline the worst counts.
    hard = task("hard", 100, 100, 20)
    assert refused([hard, soft], device(30)).kind == "deadline"


def test_a_soft_task_that_yields_is_held_to_its_mean() -> None:
    on = replace(device(40), supports=frozenset(Scheduling))
    hard = task("hard", 100, 60, 20)
    spiky = task("spiky", 100, 100, 85)
    assert refused([hard, spiky], on).kind == "deadline"
    soft = replace(spiky, criticality=Criticality.SOFT, mean_compute_s=(0.003,) * 10)
    answer = admitted([hard, soft], on)
    # 30 ms with its rank, and 8.5 ms to the gate after them.
    assert answer.utilisation == pytest.approx(0.2 + 0.385)
    assert answer.plans[1].job_time_s == pytest.approx(0.03)
    assert [plan.preemptible for plan in answer.plans] == [False, True]
    assert answer.plans[1].response_s is None
    # Without its rank a job may be in a layer whichever job comes, even one of a later deadline.
    first = replace(soft, deadline_s=0.065)
    bound = admitted([replace(hard, deadline_s=0.09), first], on).plans[0].response_s
    assert bound == pytest.approx(0.02 + 0.0385 + 0.0085)
    assert not plan([replace(hard, deadline_s=0.0665), first], on).ok


def test_best_effort_only_blocks() -> None:
    hard = task("hard", 100, 60, 20)
    batch = task("batch", 100, 100, 35, criticality=Criticality.BEST_EFFORT)
    answer = admitted([hard, batch], device(30))
    assert answer.plans[1].response_s is None
    assert answer.utilisation == pytest.approx(0.2)
    assert answer.blocker == "batch"
    assert (
        refused(
            [hard, task("batch", 100, 100, 45, criticality=Criticality.BEST_EFFORT)], device(30)
        ).blocker
        == "batch"
    )


def test_only_best_effort_is_admitted_if_it_fits() -> None:
    batch = task("batch", 1, 1, 35, criticality=Criticality.BEST_EFFORT)
    assert admitted([batch], device(5)).utilisation == 0.0


def test_faster_homes_make_faster_jobs() -> None:
    tiers = {"nvme": TierCapacity(10**9, LinkRate(20e6)), "dram": TierCapacity(10**9, LINK)}
    on = device(5, tiers=tiers)
    slow = admitted([task("a", 2000, 2000, 10, tiers=("nvme",))], on).plans[0]
    fast = admitted([task("a", 2000, 2000, 10, tiers=("dram",))], on).plans[0]
    assert slow.job_time_s > 3 * fast.job_time_s


def test_nothing_asked_is_nothing_planned() -> None:
    assert admitted([], device(1)).plans == ()


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([task("a", 10, 10, 1), task("a", 10, 10, 1)], "names must differ"),
        (
            [task("a", 10, 10, 1), replace(task("b", 10, 10, 1), layout=layout_of([9] * 10))],
            "differ in size",
        ),
    ],
)
def test_questions_without_meaning_are_errors(tasks: list[TaskDemand], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(tasks, device(5))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"deadline_s": 2.0}, "deadline <= period"),
        ({"deadline_s": 0.0}, "deadline <= period"),
        ({"compute_s": (0.1,)}, "1 compute times for 10 layers"),
        ({"compute_s": (float("nan"),) * 10}, "not finite"),
    ],
)
def test_tasks_without_meaning_are_errors(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(task("a", 100, 100, 1), **change)  # type: ignore[arg-type]


class TestRefusals:
    def test_memory(self) -> None:
        tasks = [
            task("big", 1000, 1000, 10, policy=SwapPolicy.RESIDENT),
            task("wide", 1000, 1000, 10, workspace_bytes=4 * MB, policy=SwapPolicy.RESIDENT),
        ]
        answer = refused(tasks, device(21))
        assert (answer.kind, answer.reason) == ("memory", "FastMemoryExceeded")
        assert answer.missing_bytes == 3 * MB
        assert "2.9 MiB are missing" in answer.sentence
        assert plan(tasks, device(24)).ok

    def test_the_largest_part_is_named(self) -> None:
        for workspace_mb, part in ((1, "9.6 MiB of weights"), (30, "28.7 MiB of workspace")):
            kept = SwapPolicy.RESIDENT
            only = task("a", 1000, 1000, 10, policy=kept, workspace_bytes=workspace_mb * MB)
            assert f"the largest part is {part}" in refused([only], device(5)).sentence

    def test_workspaces_that_programs_keep(self) -> None:
        """On a GPU each process keeps what its jobs have used: the sum is charged, in every way."""
        tasks = [
            task("a", 1000, 1000, 10, workspace_bytes=4 * MB, policy=SwapPolicy.RESIDENT),
            task("b", 1000, 1000, 10, workspace_bytes=3 * MB, policy=SwapPolicy.RESIDENT),
        ]
        assert plan(tasks, device(24)).ok
        answer = refused(tasks, device(24, workspaces_overlay=False))
        assert answer.reason == "FastMemoryExceeded"
        assert answer.missing_bytes == 3 * MB
        assert "6.7 MiB are workspaces, which programs on this device keep" in answer.sentence
        enough = device(27, workspaces_overlay=False)
        held = admitted(tasks, enough)
        assert (held.workspace_bytes, held.fast_bytes_used) == (7 * MB, 27 * MB)
        grown = one_more(tasks, enough)
        assert isinstance(grown, ProvenSet)
        assert grown.fast_bytes_used == enough.fast_bytes
        assert isinstance(one_more(tasks, device(26, workspaces_overlay=False)), Infeasible)

    def test_nothing_is_parked_next_to_a_workspace_that_programs_keep(self) -> None:
        layers = {"megabytes": 10, "layers": 10, "policy": SwapPolicy.RESIDENT}
        tasks = [
            task("long", 300, 300, 40, workspace_bytes=4 * MB, **layers),  # type: ignore[arg-type]
            task("short", 60, 15, 3, workspace_bytes=4 * MB, **layers),  # type: ignore[arg-type]
        ]
        for overlay, parked in ((True, 4 * MB), (False, 0)):
            on = device(28, workspaces_overlay=overlay)
            answer = plan(tasks, on, scheduling=Scheduling.RING_KEEPING)
            assert isinstance(answer, Admitted)
            assert [(p.preemptible, p.parked_bytes) for p in answer.plans] == [
                (True, parked),
                (False, 0),
            ]
            assert answer.fast_bytes_used == 28 * MB

    def test_contexts(self) -> None:
        tasks = [task(name, 1000, 1000, 10, policy=SwapPolicy.RESIDENT) for name in "ab"]
        on = device(50, contexts=Contexts(each_bytes=2 * MB, outside_bytes=5 * MB))
        answer = refused(tasks, on)
        assert (answer.kind, answer.missing_bytes) == ("memory", MB)
        assert "the CUDA contexts of 2 tasks and the agent" in answer.sentence
        assert isinstance(one_more(tasks, on), Infeasible)

    def test_ring(self) -> None:
        tasks = [task("wide", 1000, 1000, 10, layers=1)]
        answer = refused(tasks, device(6))
        assert (answer.kind, answer.reason, answer.task) == ("ring", "LayerTooLarge", "wide")
        assert answer.missing_bytes == 4 * MB
        assert "layer 0 of wide" in answer.sentence
        assert plan(tasks, device(10)).ok

    def test_a_ring_just_as_large_as_the_widest_layer_is_enough(self) -> None:
        tasks = [task("wide", 1000, 1000, 10, megabytes=8, layers=2)]
        answer = admitted(tasks, device(4))
        assert answer.plans[0].ring_extents == 4
        assert answer.fast_bytes_used == 4 * MB
        assert refused(tasks, device(3)).missing_bytes == MB

    def test_what_only_the_leanest_ring_leaves_room_for_is_admitted(self) -> None:
        # With 4 MB kept anyhow, a ring of 3 takes no more: of each layer two extents stay.
        tasks = [task("kept", 1000, 1000, 10, layers=2, reserved_bytes=4 * MB)]
        answer = admitted(tasks, device(7))
        assert answer.plans[0].ring_extents == 3
        assert len(answer.plans[0].resident_extents) == 4
        assert refused(tasks, device(6)).missing_bytes == MB

    def test_tier(self) -> None:
        on = device(20, tiers={"dram": TierCapacity(5 * MB, LINK)})
        assert refused([task("a", 100, 100, 1)], on).kind == "tier"

    def test_a_deadline_that_memory_would_save(self) -> None:
        tasks = [task("a", 300, 200, 50), task("b", 300, 300, 50)]
        answer = refused(tasks, device(4))
        assert (answer.kind, answer.reason) == ("deadline", "DeadlineMissed")
        assert answer.shortfall_s is not None
        assert answer.shortfall_s > 0
        assert answer.missing_bytes is not None
        assert "more fast memory would be enough" in answer.sentence
        assert len(answer.nearest) == 2
        assert plan(tasks, device(4 + answer.missing_bytes / MB)).ok

    def test_a_deadline_that_only_time_would_save(self) -> None:
        tasks = [task("control", 100, 30, 10), task("model", 200, 200, 60)]
        answer = refused(tasks, device(100))
        assert (answer.task, answer.blocker) == ("control", "model")
        assert answer.critical_time_s == pytest.approx(0.03)
        assert answer.shortfall_s == pytest.approx(0.04)
        assert answer.missing_bytes is None
        assert answer.sentence == (
            "control cannot keep its deadline of 30 ms: in a window of 30 ms the jobs that are due"
            " take 10 ms and model may hold the device for 60 ms before them, 40 ms too long;"
            " a deadline of 70 ms for control would be enough"
        )
        assert plan([replace(tasks[0], deadline_s=0.07), tasks[1]], device(100)).ok

    def test_overload_names_a_period_that_would_do(self) -> None:
        tasks = [
            task("a", 20, 20, 11),
            task("b", 40, 40, 9),
            task("c", 40, 40, 8.5),
            task("d", 40, 40, 1.5),
        ]
        answer = refused(tasks, device(100))
        assert (answer.reason, answer.shortfall_s) == ("Overload", float("inf"))
        assert answer.sentence == (
            "the tasks need 102.5 % of the device's time; a period of 21 ms for a would be enough"
        )
        assert plan([replace(tasks[0], period_s=0.021), *tasks[1:]], device(100)).ok

    def test_a_task_that_must_go_is_named(self) -> None:
        tasks = [task("control", 10, 10, 2), task("model", 1000, 1000, 60)]
        answer = refused(tasks, device(100))
        assert answer.sentence.endswith("the others would hold without model")
        assert plan(tasks[:1], device(100)).ok

    def test_memory_for_the_smallest_plans_is_said_to_be_enough_only_if_it_is(self) -> None:
        rng = np.random.default_rng(11)
        told = {True: 0, False: 0}
        while min(told.values()) < 3:
            tasks = random_set(rng, 0.25, most=5)
            on = device_for(tasks, float(rng.choice([20, 60])))
            answer = plan(tasks, on)
            if not isinstance(answer, Infeasible) or answer.kind not in {"memory", "ring"}:
                continue
            enough = "would be enough" in answer.sentence
            assert enough or "at least" in answer.sentence
            more = replace(on, fast_bytes=on.fast_bytes + (answer.missing_bytes or 0))
            assert plan(tasks, more).ok == enough, answer.sentence
            told[enough] += 1

    @pytest.mark.slow
    def test_missing_memory_is_always_enough(self) -> None:
        rng = np.random.default_rng(8)
        seen = 0
        while seen < 4:
            tasks = random_set(rng, 0.25, most=6)
            on = device_for(tasks, 3.0)
            answer = plan(tasks, on)
            if isinstance(answer, Infeasible) and answer.missing_bytes is not None:
                seen += 1
                assert plan(tasks, replace(on, fast_bytes=on.fast_bytes + answer.missing_bytes)).ok


@pytest.mark.slow
def test_more_memory_never_turns_a_yes_into_a_no() -> None:
    rng = np.random.default_rng(9)
    for _ in range(5):
        tasks = random_set(rng, 0.2, most=6)
        answers = [plan(tasks, device_for(tasks, ratio)).ok for ratio in (6.0, 4.0, 2.5, 1.5, 1.0)]
        assert all(b or not a for a, b in pairwise(answers))
