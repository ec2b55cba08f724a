"""Preserved workspaces: what moving them costs, and that admission counts it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.unit.planning.shapes import device, task

from tierline_agent.policy.overlay import Overlay
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted, Infeasible
from tierline_operator.planning.from_api import demand_of
from tierline_operator.planning.incremental import settle
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import Backup, DeviceCapacity, Margins, TaskDemand
from tierline_operator.planning.writeback import turns_s
from tierline_operator.simulation.device import simulate
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.releases import Arrivals, Pattern

MB = 10**6
BACKUP = Backup(save=LinkRate(100e6), restore=LinkRate(200e6, 0.001))


def preserving(name: str, megabytes: int, domain: str = "default") -> TaskDemand:
    plain = task(name, 400, 400, 10, workspace_bytes=megabytes * MB, domain=domain)
    return replace(plain, preserved_bytes=megabytes * MB)


def with_backup(where: DeviceCapacity) -> DeviceCapacity:
    return replace(where, backup=BACKUP)


def test_a_turn_is_the_longest_save_of_others_and_ones_own_restore() -> None:
    tasks = [preserving("a", 4), preserving("b", 2), task("c", 400, 400, 10)]
    tasks.append(preserving("elsewhere", 8, "other"))
    turns = turns_s(tasks, with_backup(device(40)))
    # 10 ms a MB out, 5 ms + 1 ms back.
    assert turns == pytest.approx([0.02 + 0.024, 0.04 + 0.012, 0.04, 0.048])
    slower = replace(with_backup(device(40)), margins=Margins(bandwidth=2))
    turns = turns_s(tasks, slower)
    assert turns == pytest.approx([0.04 + 0.048, 0.08 + 0.024, 0.08, 0.096])


def test_no_order_of_jobs_moves_more() -> None:
    """The agent's own rule, over random jobs."""
    rng = np.random.default_rng(5)
    tasks = [preserving("a", 4), preserving("b", 2), task("c", 400, 400, 10, workspace_bytes=MB)]
    turns = turns_s(tasks, with_backup(device(40)))
    assert not isinstance(turns, Infeasible)
    overlay, worst = Overlay(), [0.0] * len(tasks)
    for token, one in enumerate(tasks):
        overlay.join(token, one.workspace_bytes, preserve=one.preserved_bytes > 0)
    for _ in range(400):
        token = int(rng.integers(len(tasks)))
        moves = overlay.moves(token)
        moved_s = moves.save_bytes / 100e6 + moves.restore_bytes / MB * 0.006
        worst[token] = max(worst[token], moved_s)
        assert moved_s <= turns[token] + 1e-12
        if moves.save is not None:
            overlay.saved(moves.save)
        overlay.entered(token)
        overlay.ended(token, tasks[token].preserved_bytes)
    assert worst == pytest.approx(turns)


def test_admission_counts_it() -> None:
    tasks = [preserving("a", 4), replace(preserving("b", 4), deadline_s=0.09)]
    refused = plan(tasks, device(40))
    assert isinstance(refused, Infeasible)
    assert "preserved" in refused.sentence
    where = with_backup(device(40))
    answer = plan(tasks, where)
    assert isinstance(answer, Infeasible)
    assert answer.task == "b"
    answer = plan([tasks[0], replace(tasks[1], deadline_s=0.16)], where)
    assert isinstance(answer, Admitted)
    assert [one.job_time_s for one in answer.plans] == pytest.approx([0.074, 0.074])
    dirty = [tasks[0], replace(tasks[1], deadline_s=0.16, preserved_bytes=0)]
    answer = plan(dirty, where)
    assert isinstance(answer, Admitted)
    assert [one.job_time_s for one in answer.plans] == pytest.approx([0.034, 0.05])


@pytest.mark.parametrize("margin", [1.0, 1.3])
def test_the_simulator_moves_what_admission_counts(margin: float) -> None:
    tasks = [preserving("a", 4), replace(preserving("b", 2), deadline_s=0.3)]
    where = replace(with_backup(device(40)), margins=Margins(bandwidth=margin))
    answer = plan(tasks, where)
    assert isinstance(answer, Admitted)
    seen = simulate(
        models_of(tasks, answer.plans, where),
        machine_of(answer.plans, where, answer.scheduling),
        Arrivals([0.4, 0.4], Pattern([1.0, 1.0], 3.0), Random(1).random),  # noqa: S311
        AgentPolicy(),
        record=True,
    )
    assert seen.misses == [0, 0]
    moves = [(span.what, span.task) for span in seen.spans if span.what in {"save", "restore"}]
    # `b` has the shorter deadline; the first job of each finds nothing that was saved.
    assert moves[:4] == [("save", 1), ("save", 0), ("restore", 1), ("save", 1)]
    # Alone in its turn, a job of `b` takes what it was planned to: 40 ms out, 12 back, 10 computed.
    assert max(seen.responses_s[1]) == pytest.approx(answer.plans[1].job_time_s)
    for plan_, responses in zip(answer.plans, seen.responses_s, strict=True):
        assert plan_.response_s is not None
        assert max(responses) <= plan_.response_s + 1e-9


@pytest.mark.parametrize("scheduling", Scheduling)
def test_such_sets_never_yield(scheduling: Scheduling) -> None:
    tasks = [preserving("a", 4), preserving("b", 4)]
    answer = plan(tasks, with_backup(device(40)), scheduling=scheduling)
    assert isinstance(answer, Admitted)
    assert answer.scheduling is Scheduling.NON_PREEMPTIVE
    assert not any(one.preemptible for one in answer.plans)
    now = settle(tasks, with_backup(device(40)))
    assert not isinstance(now, Infeasible)
    assert now.with_task(task("more", 400, 400, 1)) is None


@pytest.mark.parametrize(
    ("policy", "weights", "preserved"),
    [("Swap", 0, 16 << 20), ("Swap", 1 << 20, 0), ("Auto", 0, 0)],
    ids=["without layers", "with layers", "another policy"],
)
def test_a_program_that_is_swapped_whole_preserves_its_workspace(
    policy: str, weights: int, preserved: int
) -> None:
    profile = MemProfile.from_api(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemProfile",
            "metadata": {"name": "plain"},
            "spec": {
                "device": {"kind": "cuda", "product": "GPU"},
                "layers": [{"name": "all", "bytes": weights, "computeTime": "20ms"}],
                "workspace": "16Mi",
            },
        }
    )
    asking = MemTask.from_api(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemTask",
            "metadata": {"name": "plain"},
            "spec": {
                "realtime": {"period": "1s"},
                "memory": {"budget": "64Mi"},
                "swap": {"policy": policy},
                "device": {"kind": "cuda"},
            },
        }
    )
    assert demand_of(asking, profile, 2 << 20).preserved_bytes == preserved
