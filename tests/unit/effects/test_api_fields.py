"""Every field of the API has an effect: a line for each, and no field without one.

A line has two sets of objects that differ in that field alone, and a pure function that answers
differently: what admission says, what the operator decides and writes, what runs on this machine.
What the operator writes takes several values in a few situations. What only agents write, and only
people read, names the test that sees it.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pydantic import BaseModel, ValidationError
from tests.unit.effects.fields import api_fields, leaves_of
from tests.unit.placement.fleets import claim, feed, fleet, node, profile, quota, run, task

from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memquota import MemQuota, TierQuota
from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.memtask_status import MemTaskStatus, Observed, Remeasured
from tierline_api.objects.plan import Plan, Tier
from tierline_api.schema.metadata import ObjectMeta
from tierline_cli.errors import CommandError
from tierline_cli.local.place import Place
from tierline_cli.local.programs import program_of
from tierline_cli.planning import decide
from tierline_operator.cluster.decode import Meta
from tierline_operator.controller.manifests import deployment
from tierline_operator.controller.quotas import quota_status
from tierline_operator.controller.status import status_of
from tierline_operator.placement.books.seats import TaskKey
from tierline_operator.placement.fleet import Fleet
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.from_api import QuestionError
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

ROOT: Final = Path(__file__).parents[3]
NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER: Final = datetime(2026, 11, 21, 13, tzinfo=UTC)
MIB: Final = 1 << 20
_API: Final = {"apiVersion": "tierline.io/v1alpha1"}
Objects = dict[str, dict[str, Any]]
GOOD: Final[Objects] = {
    "MemTask": {
        **_API,
        "kind": "MemTask",
        "metadata": {"name": "a"},
        "spec": {
            "realtime": {"period": "100ms", "deadline": "90ms"},
            "memory": {"budget": "8Gi"},
            "swap": {"tiers": ["dram"]},
            "device": {"kind": "cpu"},
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "app",
                            "image": "a:1",
                            "command": ["python"],
                            "env": [{"name": "A", "value": "1"}],
                        }
                    ]
                }
            },
        },
    },
    "MemProfile": {
        **_API,
        "kind": "MemProfile",
        "metadata": {"name": "a"},
        "spec": {
            "device": {"kind": "cpu", "product": "x"},
            "layers": [{"name": str(n), "bytes": 32 * MIB, "computeTime": "4ms"} for n in range(4)],
            "workspace": "1Mi",
        },
    },
    "MemNode": {
        **_API,
        "kind": "MemNode",
        "metadata": {"name": "here"},
        "status": {
            "devices": [
                {
                    "name": "cpu",
                    "kind": "cpu",
                    "product": "x",
                    "extentBytes": 4 * MIB,
                    "fastBytes": 64 * MIB,
                }
            ],
            "tiers": [
                {"name": "dram", "capacityBytes": 1 << 34},
                {"name": "nvme", "capacityBytes": 1 << 34},
            ],
            "links": [
                {"name": "h2d", "device": "cpu", "bandwidth": 10**10, "overhead": "10us"},
                {"name": "d2h", "device": "cpu", "bandwidth": 10**10, "overhead": "10us"},
                {"name": "nvme-read", "device": "cpu", "bandwidth": 5 * 10**9, "overhead": "10us"},
            ],
        },
    },
    "MemQuota": {**_API, "kind": "MemQuota", "metadata": {"name": "q"}, "spec": {}},
}
_MODELS: Final[dict[str, type[BaseModel]]] = {
    "MemTask": MemTask,
    "MemProfile": MemProfile,
    "MemNode": MemNode,
    "MemQuota": MemQuota,
}


# What answers.


def admitted(objects: Objects) -> str:
    """What `tierline admit` says of the task on the node, its plan in full, or why it does not."""
    try:
        demand, capacity = _asked(objects)
    except (ValidationError, CommandError, QuestionError) as error:
        return str(error)
    return _answered([demand], capacity)


def with_a_twin(objects: Objects) -> str:
    """The same of two tasks with these weights."""
    demand, capacity = _asked(objects)
    return _answered([demand, replace(demand, name="b")], capacity)


def next_to_a_long_job(objects: Objects) -> str:
    """The same next to a task with jobs that take longer than the deadline of this one."""
    demand, capacity = _asked(objects)
    times = [50 * seconds for seconds in demand.compute_s]
    other = replace(demand, name="b", period_s=60.0, deadline_s=60.0, compute_s=times)
    return _answered([demand, other], capacity)


def next_to_one_that_yields(objects: Objects) -> str:
    """The same next to a task with layers that, each five times as long, are short enough."""
    demand, capacity = _asked(objects)
    other = replace(
        demand,
        name="b",
        period_s=60.0,
        deadline_s=60.0,
        compute_s=[5 * seconds for seconds in demand.compute_s],
        longest_s=[5 * seconds for seconds in demand.longest_s],
    )
    return _answered([demand, other], replace(capacity, fast_bytes=1 << 30))


def _asked(objects: Objects) -> tuple[TaskDemand, DeviceCapacity]:
    asked, profile, node, _ = (_MODELS[kind].model_validate(objects[kind]) for kind in _MODELS)
    assert isinstance(asked, MemTask)
    assert isinstance(profile, MemProfile)
    assert isinstance(node, MemNode)
    return decide.question_of(asked, profile, node, None)


def _answered(demands: list[TaskDemand], capacity: DeviceCapacity) -> str:
    answer = planner.plan(demands, capacity)
    memory = decide.memory_sentence(answer, capacity) if isinstance(answer, Admitted) else ""
    return json.dumps(decide.answer_json(answer)) + memory


def decided(objects: Objects) -> str:
    """What the operator says of the task on the cluster."""
    made = {kind: _MODELS[kind].model_validate(one) for kind, one in objects.items()}
    settled = fleet(*made.values())
    asked = made["MemTask"]
    assert isinstance(asked, MemTask)
    return json.dumps(_status(settled, asked).to_api(), sort_keys=True)


def measured(objects: Objects) -> str:
    """The same of a task that has no profile, next to one that has its plan."""
    settled = fleet(
        MemNode.model_validate(objects["MemNode"]), profile("b", mib=8, product="x"), task("b")
    )
    run(settled, "b")
    asked = MemTask.model_validate(objects["MemTask"])
    feed(settled, asked, claim("c", "a", number=1))
    return json.dumps(_status(settled, asked).to_api(), sort_keys=True)


def _status(settled: Fleet, of: MemTask) -> MemTaskStatus:
    verdict = settled.verdict(TaskKey("default", of.name))
    assert verdict is not None
    return status_of(of, verdict, [], [], NOW)


def deployed(objects: Objects) -> str:
    """The Deployment that the operator makes."""
    meta = Meta("default", "a", "u", "1", False, frozenset(), {}, {}, None, frozenset(), "")
    made = MemTask.model_validate(objects["MemTask"])
    return json.dumps(deployment(made, meta), sort_keys=True)


def run_here(objects: Objects) -> str:
    """The program that `tierline run` starts, with its variables, or why it starts none."""
    plan = Plan(extent_bytes=MIB, extent_count=0, workspace_bytes=MIB, predicted_job_time_s=1)
    made = MemTask.model_validate(objects["MemTask"])
    place = Place(made.spec.device.kind.value)
    try:
        program = program_of(made)
    except CommandError as error:
        return str(error)
    return f"{program} {place.environment(made)} {place.memory_environment(made, plan)}"


# Lines.


class Line(NamedTuple):
    """Edits of GOOD that differ in one field, and what answers differently."""

    by: Callable[[Objects], str]
    one: dict[str, Any]
    other: dict[str, Any]


_Row = tuple[str, Callable[[Objects], str], tuple[Any, Any], dict[str, Any]]
"""A field, what answers, two values of it, and what else is not as in GOOD."""


class Seen(NamedTuple):
    """A field that agents write for people: the test that sees it, and by which word."""

    test: str
    word: str


_DEVICE = "MemNode.status.devices.0"
_SECRET = [{"secretRef": {"name": "s"}}]
_WHOLE = {
    "MemTask.spec.swap.policy": "Swap",
    "MemTask.spec.device.kind": "cuda",
}
_OBJECT = {**_WHOLE, "MemTask.spec.swap.objects": [{"name": "#0", "policy": "Resident"}]}
_LAYER = {
    "MemTask.spec.swap.tiers": ["dram", "nvme"],
    "MemTask.spec.swap.objects": [{"name": "0", "policy": "Stream", "tier": "nvme"}],
}
_SOFT = {
    "MemTask.spec.realtime.criticality": "Soft",
    "MemNode.status.devices.0.fastBytes": 256 * MIB,
    **{f"MemProfile.spec.layers.{n}.meanComputeTime": "1ms" for n in (1, 2, 3)},
}
_NO_DEADLINE = {"MemTask.spec.realtime.criticality": "BestEffort"}
_TRAINS = {**_NO_DEADLINE, "MemTask.spec.training": {}}
_STEP = {
    "MemProfile.spec.layers": [{"name": "a step", "bytes": 0, "computeTime": "4ms", "pinned": True}]
}
_STARTS = {"MemProfile.spec.firstSection": "1ms"}
_YIELDS = {"MemNode.status.devices.0.preemption": ["RingKeeping"]}
_SMALL_TIER = {"MemNode.status.tiers.0.capacityBytes": 160 * MIB}


def _line(by: Callable[[Objects], str], field: str, *values: Any, **more: Any) -> Line:
    """Two values of a field (None: absent), the rest as in GOOD and `more`."""
    rest = more.pop("given", {})
    one, other = ({**rest} if v is None else {**rest, field: v} for v in values)
    return Line(by, one, other)


def _lines() -> Iterator[tuple[str, Line]]:
    spec = "MemTask.spec"
    rows: tuple[_Row, ...] = (
        ("realtime.period", admitted, ("100ms", "200ms"), {}),
        ("realtime.deadline", admitted, ("90ms", "10ms"), {}),
        ("realtime.criticality", admitted, ("Hard", "BestEffort"), {}),
        ("realtime.executionTime", admitted, (None, "80ms"), {}),
        ("realtime.measuringLimit", measured, (None, "50ms"), {}),
        ("training.steps", run_here, (5, 6), _NO_DEADLINE),
        ("memory.budget", admitted, ("8Gi", "1Mi"), {}),
        ("memory.reserved", admitted, (None, "4Gi"), {}),
        ("memory.weights", admitted, (None, "16Gi"), {}),
        ("memory.workspace", admitted, (None, "16Mi"), {}),
        ("swap.policy", admitted, ("Stream", "Resident"), {}),
        ("swap.tiers", admitted, (["dram"], ["nvme"]), {}),
        ("swap.workspace", admitted, ("Discard", "Preserve"), {}),
        ("swap.onBudgetExceeded", admitted, ("Fail", "Spill"), {f"{spec}.memory.budget": "1Mi"}),
        ("swap.objects.0.name", run_here, ("#0", "#1"), _OBJECT),
        ("swap.objects.0.policy", run_here, ("Resident", "Stream"), _OBJECT),
        ("swap.objects.0.name", admitted, ("0", "1"), _LAYER),
        ("swap.objects.0.policy", admitted, ("Resident", "Stream"), _LAYER),
        ("swap.objects.0.tier", admitted, ("dram", "nvme"), _LAYER),
        ("device.kind", admitted, ("cpu", "cuda"), {}),
        ("device.model", admitted, (None, "y"), {}),
        ("device.execution", run_here, ("Direct", "CapturedGraph"), _WHOLE),
        ("profile", decided, (None, "b"), {}),
        ("replicas", deployed, (1, 2), {}),
        ("template.metadata", deployed, (None, {"labels": {"a": "b"}}), {}),
        ("template.spec.containers.0.name", deployed, ("app", "b"), {}),
        ("template.spec.containers.0.image", deployed, ("a:1", "a:2"), {}),
        ("template.spec.containers.0.command", run_here, (["python"], ["sh"]), {}),
        ("template.spec.containers.0.args", run_here, (None, ["-u"]), {}),
        ("template.spec.containers.0.env.0.name", run_here, ("A", "B"), {}),
        ("template.spec.containers.0.env.0.value", run_here, ("1", "2"), {}),
        (
            "template.spec.containers.0.envFrom",
            run_here,
            (None, [{"secretRef": {"name": "s"}}]),
            {},
        ),
        ("template.spec.containers.0.workingDir", run_here, (None, "/tmp"), {}),  # noqa: S108
    )
    for name, by, values, given in rows:
        yield f"{spec}.{name}", _line(by, f"{spec}.{name}", *values, given=given)
    others: tuple[_Row, ...] = (
        ("MemProfile.spec.device.kind", admitted, ("cpu", "cuda"), {}),
        ("MemProfile.spec.device.product", admitted, ("x", "y"), {}),
        ("MemProfile.spec.layers.0.name", admitted, ("0", "5"), _LAYER),
        ("MemProfile.spec.layers.0.bytes", admitted, (32 * MIB, 64 * MIB), {}),
        ("MemProfile.spec.layers.0.computeTime", admitted, ("4ms", "5ms"), {}),
        ("MemProfile.spec.layers.0.meanComputeTime", admitted, (None, "1ms"), _SOFT),
        (
            "MemProfile.spec.layers.0.longestComputeTime",
            next_to_one_that_yields,
            (None, "6ms"),
            _YIELDS,
        ),
        ("MemProfile.spec.state", admitted, ("1Mi", "2Mi"), {**_TRAINS, **_STEP}),
        ("MemProfile.spec.digest", with_a_twin, (None, "0" * 64), _SMALL_TIER),
        ("MemProfile.spec.layers.0.pinned", admitted, (False, True), {}),
        ("MemProfile.spec.layers.3.arena", admitted, (0, 1), {}),
        ("MemProfile.spec.workspace", admitted, ("1Mi", "9Mi"), {}),
        ("MemProfile.spec.workspaceKnown", admitted, (True, False), {}),
        ("MemProfile.spec.calls", admitted, (None, [3]), {}),
        ("MemProfile.spec.between", admitted, (None, "3ms"), {"MemProfile.spec.calls": [3]}),
        ("MemProfile.spec.jitter", admitted, (None, "3ms"), {}),
        ("MemProfile.spec.firstSection", admitted, (None, "3ms"), {}),
        ("MemProfile.spec.firstExtra", admitted, (None, "3ms"), _STARTS),
        (f"{_DEVICE}.name", admitted, ("cpu", "other"), {}),
        (f"{_DEVICE}.kind", admitted, ("cpu", "cuda"), {}),
        (f"{_DEVICE}.product", admitted, ("x", "y"), {}),
        (f"{_DEVICE}.fastBytes", admitted, (64 * MIB, 32 * MIB), {}),
        (f"{_DEVICE}.usedBytes", admitted, (0, 32 * MIB), {}),
        (f"{_DEVICE}.extentBytes", admitted, (4 * MIB, 8 * MIB), {}),
        (
            f"{_DEVICE}.memoryBytes",
            admitted,
            (64 * MIB, 65 * MIB),
            {f"{_DEVICE}.contextBytes": MIB},
        ),
        (f"{_DEVICE}.contextBytes", admitted, (None, MIB), {f"{_DEVICE}.memoryBytes": 64 * MIB}),
        (f"{_DEVICE}.workspacesOverlay", admitted, (True, False), {}),
        (f"{_DEVICE}.preemption", next_to_a_long_job, (None, ["LayerPreemptive"]), {}),
        (f"{_DEVICE}.training", decided, (False, True), _TRAINS),
        (f"{_DEVICE}.health", decided, ("Healthy", "Failed"), {}),
        ("MemNode.status.tiers.0.name", admitted, ("dram", "pmem"), {}),
        ("MemNode.status.tiers.0.capacityBytes", admitted, (1 << 34, MIB), {}),
        ("MemNode.status.tiers.0.usedBytes", admitted, (0, 1 << 34), {}),
        ("MemNode.status.tiers.0.health", decided, ("Healthy", "Failed"), {}),
        ("MemNode.status.links.0.name", admitted, ("h2d", "pmem-read"), {}),
        ("MemNode.status.links.0.device", admitted, ("cpu", "gpu-0"), {}),
        ("MemNode.status.links.0.bandwidth", admitted, (10**10, 10**9), {}),
        ("MemNode.status.links.0.overhead", admitted, ("10us", "1ms"), {}),
        ("MemNode.status.links.0.devices", admitted, (1, 2), {}),
        ("MemNode.status.health", decided, ("Healthy", "Failed"), {}),
        ("MemQuota.spec.fastMemory", decided, (None, "1Mi"), {}),
        ("MemQuota.spec.linkPercent", decided, (None, 1), {}),
    )
    for path, by, values, given in others:
        yield path, _line(by, path, *values, given=given)
    quota = {"MemQuota.spec.tiers": [{"tier": "dram", "capacity": "1Mi"}]}
    yield (
        "MemQuota.spec.tiers.tier",
        _line(decided, "MemQuota.spec.tiers.0.tier", "dram", "nvme", given=quota),
    )
    yield (
        "MemQuota.spec.tiers.capacity",
        _line(decided, "MemQuota.spec.tiers.0.capacity", "1Mi", "8Gi", given=quota),
    )


_ALL: Final = tuple((re.sub(r"\.\d+", "", path), line) for path, line in _lines())
"""A field may have several, of tasks of several kinds."""
LINES: Final = frozenset(field for field, _ in _ALL)
_LINKS = "tests/unit/agent/links/test_slow_links.py::"
_TIER = (
    "tests/integration/agent/deaths/test_resized_tier.py"
    "::test_programs_stream_on_from_a_tier_of_another_size"
)
_PULSE = (
    "tests/integration/dra/test_driver.py::test_a_kubelet_that_does_not_register_the_driver_is_told"
)
_GPUS = "tests/integration/agent/deaths/test_gpu_faults.py::test_two_gpus_stream_at_once"
_SCALE: Final = (
    "tests/integration/operator/test_scaling.py::test_a_task_is_scaled_by_hand_and_by_an_autoscaler"
)
SEEN: Final = {
    "MemNode.status.devices.uuid": Seen(_GPUS, '"uuid"'),
    "MemNode.status.tiers.durability": Seen(_TIER, '"durability"'),
    "MemNode.status.links.typicalBandwidth": Seen(
        f"{_LINKS}test_the_typical_rate_is_shown_and_the_worst_is_planned_with", "typical_bandwidth"
    ),
    "MemNode.status.links.health": Seen(
        f"{_LINKS}test_admission_is_asked_again_with_what_a_slow_link_does_now", "Health.DEGRADED"
    ),
    "MemNode.status.agentVersion": Seen(_TIER, '"agentVersion"'),
    "MemNode.status.lastSeen": Seen(_PULSE, '"lastSeen"'),
    "MemNode.status.conditions.type": Seen(_PULSE, 'c["type"]'),
    "MemNode.status.conditions.status": Seen(_PULSE, '"status"'),
    "MemNode.status.conditions.reason": Seen(_PULSE, '"reason"'),
    "MemNode.status.conditions.message": Seen(_PULSE, '"message"'),
    "MemNode.status.conditions.lastTransitionTime": Seen(_PULSE, '"lastTransitionTime"'),
    "MemTask.status.replicas": Seen(_SCALE, '"replicas": 2'),
    "MemTask.status.selector": Seen(_SCALE, '"selector"'),
    "MemTask.status.conditions.type": Seen(
        "tests/unit/operator/test_objects.py"
        "::test_a_status_that_says_nothing_new_equals_the_one_before",
        "one.type",
    ),
}

WITHOUT: Final = {
    "MemNode.status.conditions.observedGeneration": "conditions are one model, and a MemNode has "
    "no spec whose generation they could be about",
}


def edited(edits: dict[str, Any]) -> Objects:
    """GOOD with other values at some paths."""
    made = copy.deepcopy(GOOD)
    for path, value in edits.items():
        at: Any = made
        *way, last = path.split(".")
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        at[int(last) if isinstance(at, list) else last] = copy.deepcopy(value)
    return made


def _leaves(of: Objects) -> Counter[tuple[str, str]]:
    return Counter(
        (path, json.dumps(value)) for kind in of for path, value in leaves_of(of[kind], kind)
    )


@pytest.mark.parametrize(("field", "line"), _ALL, ids=[field for field, _ in _ALL])
def test_the_field_alone_changes_what_is_answered(field: str, line: Line) -> None:
    one, other = edited(line.one), edited(line.other)
    before, after = _leaves(one), _leaves(other)
    differ = {path for path, _ in (before - after) + (after - before)}
    assert differ
    assert all(path == field or path.startswith(f"{field}.") for path in differ)
    assert line.by(one) != line.by(other)


def written() -> dict[str, set[str]]:
    """What is written into each field of statuses, in a few situations: mostly the operator's."""
    values: dict[str, set[str]] = defaultdict(set)
    statuses = [(f"{kind}.status", one) for kind, one in _situations()]
    for before, status in statuses:
        leaves = defaultdict(list)
        for path, value in leaves_of(status, before):
            leaves[path].append(value)
        for path in {path for path in api_fields() if path.startswith(before)}:
            values[path].add(json.dumps(leaves.get(path)))
    return values


def _quota_status(*objects: Any) -> dict[str, Any]:
    ((quota, used),) = fleet(*objects).quotas()
    return quota_status(quota, used).to_api()


def _situations() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "MemTask", _status(fleet(task("m")), task("m")).to_api()
    asked = task("m", period_ms=1000, generation=2)
    often = profile("m", compute_ms=60)
    often = often.model_copy(update={"spec": often.spec.model_copy(update={"calls": (3,)})})
    short = profile("n", mib=8, layers=1, compute_ms=3)
    settled = fleet(node("a", yields=True), often, short, asked, task("n", period_ms=20))
    verdict = settled.verdict(TaskKey("default", "m"))
    assert verdict is not None
    yield "MemTask", status_of(asked, verdict, [], [], NOW).to_api()
    granted = MemTaskSpec.from_api(
        {
            "realtime": {
                "period": "3s",
                "deadline": "2s",
                "criticality": "Soft",
                "executionTime": "1s",
                "measuringLimit": "1s",
            },
            "memory": {"budget": "1Gi", "reserved": "1Mi", "weights": "1Mi", "workspace": "1Mi"},
            "swap": {
                "policy": "Stream",
                "tiers": ["nvme"],
                "workspace": "Preserve",
                "onBudgetExceeded": "Spill",
                "objects": [{"name": "a.*", "policy": "Resident", "tier": "nvme"}],
            },
            "device": {"kind": "cpu"},
        }
    )
    more = replace(
        verdict,
        granted=granted,
        granted_generation=7,
        remeasured=(Remeasured(node="a", profile="u-1", compute_time_s=0.5),),
    )
    seen = Observed(
        jobs=9,
        misses=1,
        response_time_p50_s=0.1,
        response_time_p99_s=0.2,
        response_time_worst_s=0.3,
        overruns=1,
        overrun_job_time_s=0.4,
        streamed_bytes_per_job=5,
        last_updated=NOW,
    )
    yield "MemTask", status_of(asked, more, [], [seen], LATER).to_api()
    trained = Observed(steps=3, response_time_p50_s=0.2, last_updated=NOW)
    yield "MemTask", status_of(asked, more, [], [trained], LATER).to_api()
    tiers = (TierQuota(tier=Tier.DRAM, capacity_bytes=1 << 30),)
    generation = {"metadata": ObjectMeta(name="q", generation=2)}
    limited = quota("q", tiers=tiers, fast_mib=512, link_percent=50).model_copy(update=generation)
    yield "MemQuota", _quota_status(quota("q"))
    yield "MemQuota", _quota_status(node("a", fast_mib=32), profile("m"), task("m"), limited)
    for measured in (profile("m"), profile("m", mib=128, workspace_mib=8, compute_ms=20)):
        yield "MemProfile", measured.shown.to_api()
    empty, two = node("a"), node("b", devices=2, dram_mib=64)
    used = tuple(one.model_copy(update={"used_bytes": MIB}) for one in two.status.devices)
    taken = two.model_copy(update={"status": two.status.model_copy(update={"devices": used})})
    for of_agent in (empty, taken):
        yield "MemNode", {"shown": of_agent.shown.to_api()}


def test_every_field_has_its_line() -> None:
    """Whoever adds a field shows here what it changes."""
    said = written()
    constant = {field for field, values in said.items() if len(values) < 2}
    without = api_fields() - LINES - set(SEEN) - set(WITHOUT) - (set(said) - constant)
    assert not without, "no line shows what these change"
    assert LINES | set(SEEN) | set(WITHOUT) <= api_fields(), "these are no fields any more"


@pytest.mark.parametrize("field", SEEN)
def test_what_agents_write_for_people_is_seen_by_a_test(field: str) -> None:
    path, name = SEEN[field].test.split("::")
    body = (ROOT / path).read_text().partition(f"\ndef {name}(")[2].partition("\ndef ")[0]
    assert SEEN[field].word in body, f"{SEEN[field].test} does not see it"
