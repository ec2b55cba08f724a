"""The models: defaults, units, both faces, and plans that are consistent in themselves."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.api.api_objects import node, plan, profile, task

from tierline_api.devices.device import DeviceKind, DeviceSelector
from tierline_api.objects.conditions import ConditionStatus, ConditionType, Reason, find, updated
from tierline_api.objects.memnode import Device, Link, LinkName, MemNode
from tierline_api.objects.memprofile import Layer, MemProfile
from tierline_api.objects.memquota import MemQuota
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.plan import Home, Plan, Tier
from tierline_api.objects.realtime import Criticality, Realtime
from tierline_api.objects.swap import Memory, OverBudget, Swap, SwapPolicy, WorkspacePolicy
from tierline_api.pods.values import VALUES
from tierline_api.schema.base import ApiModel
from tierline_api.schema.metadata import ObjectMeta

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def test_the_least_task_has_the_documented_defaults() -> None:
    least = {
        "metadata": {"name": "a"},
        "spec": {
            "realtime": {"period": "50ms"},
            "memory": {"budget": "2Gi"},
            "device": {"kind": "cuda"},
        },
    }
    read = MemTask.from_api(least)

    assert read.domain == "default"
    assert read.spec.realtime.deadline_s == read.spec.realtime.period_s == 0.05
    assert read.spec.realtime.criticality is Criticality.HARD
    assert read.spec.memory.budget_bytes == 2 * 2**30
    assert read.spec.memory.reserved_bytes == 0
    assert read.spec.swap == Swap(
        policy=SwapPolicy.AUTO,
        tiers=(Tier.DRAM,),
        workspace=WorkspacePolicy.DISCARD,
        on_budget_exceeded=OverBudget.FAIL,
    )
    assert read.spec.replicas == 1
    assert read.spec.template is None


QUOTA = {
    "apiVersion": "tierline.io/v1alpha1",
    "kind": "MemQuota",
    "metadata": {"name": "all", "namespace": "perception"},
    "spec": {
        "fastMemory": "8Gi",
        "tiers": [{"tier": "dram", "capacity": "64Gi"}],
        "linkPercent": 50,
    },
}


@pytest.mark.parametrize(
    ("model", "written"),
    [
        pytest.param(MemTask, task(), id="task"),
        pytest.param(MemTask, task(status__plan=plan(), status__phase="Running"), id="status"),
        pytest.param(MemProfile, profile(), id="profile"),
        pytest.param(MemNode, node(), id="node"),
        pytest.param(Plan, plan(), id="plan"),
        pytest.param(MemQuota, QUOTA, id="quota"),
    ],
)
def test_what_is_written_is_read_back(model: type[ApiModel], written: dict[str, object]) -> None:
    read = model.from_api(written)
    again = read.to_api()

    assert model.from_api(again) == read
    assert contained(written, again)


def contained(part: object, whole: object) -> bool:
    """Say whether `whole` has all of `part`, and defaults in addition."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contained(v, whole.get(k)) for k, v in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and all(map(contained, part, whole))
    return part == whole


def test_python_builds_with_numbers_and_names_with_units() -> None:
    built = MemTask(
        metadata=ObjectMeta(name="a"),
        spec=MemTaskSpec(
            realtime=Realtime(period_s=0.1, deadline_s=0.05),
            memory=Memory(budget_bytes=2**20, weights_bytes=2**19),
            device=DeviceSelector(kind=DeviceKind.CPU),
        ),
    )
    assert built.to_api()["spec"]["realtime"] == {
        "period": "100ms",
        "deadline": "50ms",
        "criticality": "Hard",
    }
    assert built.to_api()["spec"]["memory"] == {
        "budget": "1Mi",
        "reserved": "0",
        "weights": "512Ki",
    }


def test_a_template_passes_through_untouched() -> None:
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {"name": "sidecar", "image": "s"},
                {
                    "name": "app",
                    "command": ["x"],
                    "workingDir": "/srv",
                    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "b"}}}],
                    "securityContext": {"runAsNonRoot": True},
                },
            ],
        },
    }
    read = MemTask.from_api(task(spec__template=template))

    assert read.to_api()["spec"]["template"] == template
    assert read.spec.template is not None
    (program,) = read.spec.template.programs
    assert program.name == "app"
    assert program.working_dir == "/srv"


def test_null_is_absent_as_in_the_cluster() -> None:
    read = MemTask.from_api(task(spec__profile=None, spec__swap=None, spec__memory__reserved=None))
    assert read.spec.swap == Swap()
    assert read.spec.memory.reserved_bytes == 0


@pytest.mark.parametrize(
    "text", ["5000m", "+5000m", "5000.m", "1000000000000000000000m", "3000000u"]
)
def test_whole_bytes_in_fractions_of_them_are_a_slip(text: str) -> None:
    """As to the API server, wherever they are written."""
    with pytest.raises(ValidationError, match=r"counts fractions of a byte; write [1-5]0*M or"):
        Memory.from_api({"budget": text})
    assert not VALUES["tierline.io/budget"].right(text)
    assert not VALUES["tierline.io/reserved"].right(text)


def test_models_do_not_change() -> None:
    read = MemTask.from_api(task())
    with pytest.raises(ValidationError, match="frozen"):
        read.spec.realtime.period_s = 1.0


def test_a_budget_may_be_exceeded_by_what_spills() -> None:
    spill = task(spec__memory__weights="2Gi", spec__swap__onBudgetExceeded="Spill")
    assert MemTask.from_api(spill).spec.memory.weights_bytes == 2 * 2**30


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(-1, 1))
@example(600_000, 600_000, 0)
def test_parts_fit_in_their_sum_however_they_are_rounded(
    weights: int, workspace: int, more: int
) -> None:
    texts = [f"{part / 10**6:.6f}Gi" for part in (weights, workspace, weights + workspace + more)]
    assume(weights + workspace + more > 0)
    memory = dict(zip(("weights", "workspace", "budget"), texts, strict=True))
    with nullcontext() if more >= 0 else pytest.raises(ValidationError, match="write a budget of"):
        MemTask.from_api(task(spec__memory=memory))


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        pytest.param({"kind": "cuda"}, True, id="any of the kind"),
        pytest.param({"kind": "cuda", "model": "h200"}, True, id="a part of the name"),
        pytest.param({"kind": "cuda", "model": "H100"}, False, id="another model"),
        pytest.param({"kind": "cpu"}, False, id="another kind"),
    ],
)
def test_a_selector_chooses_devices(selector: dict[str, str], fits: bool) -> None:
    assert DeviceSelector.from_api(selector).matches(DeviceKind.CUDA, "NVIDIA H200") is fits


def test_a_plan_answers_in_bytes_and_extents() -> None:
    read = Plan.from_api(plan())
    assert read.resident_bytes == 2 * 4194304
    assert read.streamed_extents == [1, 3, 4]
    assert read.home_of_extent == [Tier.DRAM] * 3 + [Tier.NVME] * 2
    assert read.predicted_job_time_s == 0.0415


@settings(deadline=None)
@given(st.sets(st.integers(0, 63)), st.integers(1, 64))
def test_a_plan_of_any_residency_survives_the_api(resident: set[int], ring: int) -> None:
    built = Plan(
        extent_bytes=65536,
        extent_count=64,
        resident_extents=tuple(sorted(resident)),
        ring_extents=ring,
        homes=(Home(tier=Tier.DRAM, extents=64),),
        predicted_job_time_s=0.1,
        predicted_response_time_s=0.2,
    )
    read = Plan.from_api(built.to_api())
    assert read == built
    assert sorted([*read.streamed_extents, *read.resident_extents]) == list(range(64))


_CLOSE_S = st.tuples(
    st.integers(1000, 86_399 * 10**9), st.lists(st.floats(0, 3), min_size=3, max_size=3)
).map(lambda drawn: sorted((drawn[0] + part_ns) / 10**9 for part_ns in drawn[1]))
"""Three times that are next to each other, as measurements give them: not in whole nanoseconds."""


@settings(deadline=None)
@given(_CLOSE_S, st.lists(st.integers(65536, 2**60), min_size=3, max_size=3).map(sorted))
def test_numbers_in_order_are_in_order_as_they_are_written(
    times_s: list[float], sizes: list[int]
) -> None:
    short_s, middle_s, long_s = times_s
    small, medium, large = sizes
    measured: tuple[ApiModel, ...] = (
        Realtime(
            period_s=long_s,
            deadline_s=middle_s,
            execution_time_s=short_s,
            measuring_limit_s=middle_s,
        ),
        Layer(
            name="a",
            bytes=small,
            mean_compute_time_s=short_s,
            compute_time_s=middle_s,
            longest_compute_time_s=long_s,
        ),
        Memory(budget_bytes=medium, reserved_bytes=small),
        Device(
            name="d",
            kind=DeviceKind.CUDA,
            product="x",
            memory_bytes=large,
            context_bytes=small,
            fast_bytes=medium,
            extent_bytes=65536,
        ),
        Link(
            name=LinkName.H2D,
            device="d",
            bandwidth=small,
            typical_bandwidth=medium,
            overhead_s=short_s,
        ),
    )
    for one in measured:
        text = one.to_api()
        assert type(one).from_api(text).to_api() == text


def test_a_plan_with_everything_resident_needs_no_ring() -> None:
    whole = plan(residentExtents=[0, 1, 2, 3, 4], ringExtents=0)
    assert Plan.from_api(whole).streamed_extents == []


def test_a_profile_sums_its_layers() -> None:
    read = MemProfile.from_api(profile()).spec
    assert (read.weight_bytes, read.compute_s) == (5120, 0.0035)
    assert read.workspace_bytes == 12 * 2**20


def test_a_node_finds_its_parts() -> None:
    read = MemNode.from_api(node())
    link = read.read_link(Tier.DRAM, "cpu")
    assert link is not None
    assert (link.bandwidth, link.overhead_s) == (3_000_000_000, 40e-6)
    assert read.read_link(Tier.NVME, "cpu") is None
    assert read.device("cpu") is not None
    assert read.tier(Tier.DRAM) is not None
    assert read.tier(Tier.PMEM) is None


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    admitted, later = ConditionType.ADMITTED, NOW + timedelta(minutes=5)
    first = updated((), admitted, ConditionStatus.TRUE, Reason.ADMITTED, "fits", now=NOW)
    same = updated(
        first,
        admitted,
        ConditionStatus.TRUE,
        Reason.ADMITTED,
        "still",
        now=later,
        observed_generation=2,
    )
    changed = updated(
        same, admitted, ConditionStatus.FALSE, Reason.NO_LONGER_HOLDS, "link is slow", now=later
    )

    kept, gone = find(same, admitted), find(changed, admitted)
    assert kept is not None
    assert (kept.last_transition_time, kept.message, kept.observed_generation) == (NOW, "still", 2)
    assert gone is not None
    assert gone.last_transition_time == later
    assert find(changed, ConditionType.READY) is None


def test_conditions_of_other_types_stay() -> None:
    both = updated((), ConditionType.READY, ConditionStatus.TRUE, Reason.RUNNING, "", now=NOW)
    both = updated(both, ConditionType.ADMITTED, ConditionStatus.TRUE, Reason.ADMITTED, "", now=NOW)
    both = updated(both, ConditionType.READY, ConditionStatus.FALSE, Reason.STARTING, "", now=NOW)
    assert [(c.type, c.status) for c in both] == [("Ready", "False"), ("Admitted", "True")]
    assert both[0].to_api()["lastTransitionTime"] == "2026-11-21T10:00:00Z"


def test_a_quota_names_each_tier_once() -> None:
    twice = {**QUOTA, "spec": {"tiers": [{"tier": "dram", "capacity": "1Gi"}] * 2}}

    with pytest.raises(ValidationError, match="the tier dram is named twice"):
        MemQuota.from_api(twice)
