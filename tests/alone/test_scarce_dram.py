"""Two tasks, and dram for one of them: real programs, by real rates, read from real tiers.

What the rule gains is what the slow tier costs in addition to computing. On a busy machine
computing is measured longer, and there may be nothing to gain; or a job takes longer than planned,
and what is proven is not proven of it. Then all is measured again, and planned with more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tierline_api.manifests.files import load_manifests
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Tier
from tierline_cli.local import run as local_run
from tierline_cli.local.run import LocalRun, RunOptions
from tierline_cli.local.tiers import tiers_for
from tierline_cli.planning import decide
from tierline_operator.planning import planner
from tierline_operator.planning.answer import Admitted, HomesBy, Infeasible
from tierline_operator.planning.homes.placing import placements
from tierline_operator.planning.request import DeviceCapacity, TaskDemand

_ROOT = Path(__file__).parents[2]
_TASK = """
apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata: {{name: {name}, namespace: scarce}}
spec:
  realtime: {{period: {period}}}
  memory: {{budget: 256Mi}}
  swap: {{tiers: [dram, nvme], policy: Stream}}
  device: {{kind: cpu}}
  template:
    spec:
      containers:
        - name: task
          command: [python, -m, tests.integration.cli.tiny_task, "{seed}", "1024"]
          workingDir: {root}
"""
_WEIGHTS_BYTES = 12 * 4 * 1024 * 1025
_EXTENT_BYTES = 256 << 10
_LIMIT_S = 2.0
_MARGINS = (None, 4.0, 8.0, 8.0, 8.0)
"""Until there is something to gain, and no job takes longer than planned.

Both deadlines grow with the margin, and with 8 they are still within the period.
"""


def _in_order(tasks: list[TaskDemand], device: DeviceCapacity) -> Infeasible | tuple[object, ...]:
    """Placements as they were before there was a rule."""
    found = placements(tasks, device)
    if isinstance(found, Infeasible):
        return found
    return tuple(one for one in found if one.by is HomesBy.ORDER)


def _least_deadline_s(demands: list[TaskDemand], device: DeviceCapacity) -> float:
    """Of the last task, with which the set is admitted."""
    *others, last = demands
    low, high = 0.001, _LIMIT_S
    while high > low * 1.02:
        middle = (low * high) ** 0.5
        held = planner.plan([*others, replace(last, deadline_s=middle)], device).ok
        low, high = (low, middle) if held else (middle, high)
    return high


def _due(task: MemTask, deadline_s: float) -> MemTask:
    realtime = task.spec.realtime.model_copy(update={"deadline_s": deadline_s})
    realtime.model_fields_set.add("deadline_s")
    return task.model_copy(update={"spec": task.spec.model_copy(update={"realtime": realtime})})


@pytest.fixture
def new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], LocalRun]:
    """Makes runs whose dram has room for one task, and whose first task can wait, by the margin."""
    tasks = tmp_path / "tasks.yaml"
    named = (("patient", "6s", 1), ("urgent", "2s", 2))
    tasks.write_text(
        "\n---\n".join(_TASK.format(name=n, period=p, seed=s, root=_ROOT) for n, p, s in named)
    )

    def small_dram(*asked: object) -> list[object]:
        tiers = tiers_for(*asked)  # type: ignore[arg-type]
        room = {Tier.DRAM.value: _WEIGHTS_BYTES * 5 // 4}
        return [replace(one, size_bytes=room.get(one.name, one.size_bytes)) for one in tiers]

    monkeypatch.setattr(local_run, "tiers_for", small_dram)

    def new(margin: float | None) -> LocalRun:
        options = RunOptions(8 << 20, {}, _EXTENT_BYTES, None, 4, margin)
        return LocalRun(load_manifests([str(tasks)]), options)

    return new


def test_a_scarce_tier_keeps_deadlines_that_filling_in_order_cannot(
    new_run: Callable[[float | None], LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for margin in _MARGINS:
        with new_run(margin) as run:
            least_s, in_order_s, node = _measured(run, monkeypatch)
            seen.append((margin, least_s, in_order_s))
            if in_order_s > 1.1 * least_s and _keeps(run, monkeypatch, node, least_s, in_order_s):
                return
    pytest.fail(f"nothing gained, or over-runs: least deadlines with and without the rule {seen}")


def _measured(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, MemNode]:
    """The least deadlines with the rule and without it, on the node of that run."""
    run.measured.take(run.options.profile_jobs, lambda *_: None, print)
    node = run.start_agent()
    demands, device = decide.question_of_all(run.tasks, run.measured.profiles, node, run.margin)
    least_s = _least_deadline_s(demands, device)
    with monkeypatch.context() as before:
        before.setattr(planner, "placements", _in_order)
        least_in_order_s = _least_deadline_s(demands, device)
    return least_s, least_in_order_s, node


def _keeps(
    run: LocalRun,
    monkeypatch: pytest.MonkeyPatch,
    node: MemNode,
    least_s: float,
    least_in_order_s: float,
) -> bool:
    """A deadline between them is refused without the rule, and kept with it.

    False: jobs took longer than planned. Outputs are right all the same.
    """
    patient, urgent = run.tasks
    run.tasks = (patient, _due(urgent, (least_s * least_in_order_s) ** 0.5))

    with monkeypatch.context() as before:
        before.setattr(planner, "placements", _in_order)
        refused = decide.decide(run.tasks, run.measured.profiles, node, run.margin)
        assert isinstance(refused, Infeasible)
        assert refused.kind == "deadline"
    admitted = run.admit(node)
    assert isinstance(admitted, Admitted)
    assert {plan.homes_by for plan in admitted.plans} == {HomesBy.GAIN}
    run.load(lambda _: None, print)
    for _ in run.release(12.0).watch(0.5):
        pass
    snapshot = run.finish()
    run.compare(lambda *_: None, print)
    reports = list(run.reports(snapshot))
    for report in reports:
        print(report.task.name, least_s, least_in_order_s, report.times)
        assert report.times.jobs >= 2
        assert report.outputs.verdict.value == "identical"
    if any(report.times.overruns for report in reports):
        return False
    for report in reports:
        assert report.result.misses == 0
        assert report.times.worst_s <= report.times.planned_s
    return True
