"""The traps of the realtime theory: each test fails if the guard against its trap is taken out.

Where a trap can be shown, the set is planned twice: with the guard replaced by the naive rule, and
then the simulator shows jobs that are late; and as it is, and then it is refused or holds under the
same attack. T1, T2, T9, T10 and T12 stand in test_soundness.py, T16 in the tests of
`tierline.periodic`: a release that comes late keeps its deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.device import Releases, SimTask
from tests.simulation.device import simulate as simulate_whole_jobs
from tests.simulation.preemptive import Attacked, attack, play
from tests.unit.api import api_objects
from tests.unit.planning.shapes import LINK, device, layout_of, task

from tierline_agent.policy.leases import Claim, yields
from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.swap import SwapPolicy
from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.demand import SporadicTask, np_edf
from tierline_operator.admission.preemption import PlannedJob, Scheduling
from tierline_operator.planning.answer import Admitted, HomesBy, Infeasible
from tierline_operator.planning.from_api import capacity_of
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand, TierCapacity
from tierline_operator.planning.search import options
from tierline_operator.planning.search.options import Option, Task
from tierline_operator.simulation.device import Machine, Waiting
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Pattern

MB = 10**6
KEEPING = Scheduling.RING_KEEPING


def shaped(
    name: str,
    period_ms: float,
    deadline_ms: float,
    sizes_mb: Sequence[float],
    times_ms: Sequence[float],
    policy: SwapPolicy = SwapPolicy.AUTO,
) -> TaskDemand:
    """A task of layers of these sizes and times."""
    layers = [LayerShape(int(size * MB)) for size in sizes_mb]
    return replace(
        task(name, period_ms, deadline_ms, 1, policy=policy),
        layout=lay_out(layers, MB),
        compute_s=tuple(time / 1e3 for time in times_ms),
    )


def admitted(proven: ProvenSet | Infeasible) -> ProvenSet:
    assert isinstance(proven, ProvenSet)
    return proven


def planned(
    demands: Sequence[TaskDemand],
    on: DeviceCapacity,
    scheduling: Scheduling = Scheduling.NON_PREEMPTIVE,
) -> Admitted | Infeasible:
    return plan(demands, on, give_spare=False, scheduling=scheduling)


def attacked(
    answer: Admitted | Infeasible, demands: list[TaskDemand], on: DeviceCapacity
) -> Attacked:
    assert isinstance(answer, Admitted), answer.sentence
    rng = np.random.default_rng(1)
    windows = [answer.critical_time_s]
    return attack(demands, answer.plans, on, answer.scheduling, windows, rng, random_runs=4)


def preempted_at_a_full_ring(short: TaskDemand) -> list[TaskDemand]:
    """A job with a full ring before a fast, copy-heavy end; losing it costs 110 ms."""
    sizes, times = [11] + [1] * 20, [5] + [30] * 8 + [0.05] * 12
    return [shaped("long", 1000, 900, sizes, times, SwapPolicy.SWAP), short]


@pytest.mark.slow
def test_t3_a_lost_ring_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = preempted_at_a_full_ring(shaped("short", 60, 60, [1], [5], SwapPolicy.SWAP))
    on = device(40)
    assert not planned(demands, on, KEEPING).ok
    monkeypatch.setattr(options, "restart_penalty_s", lambda *_: 0.0)
    seen = attacked(planned(demands, on, KEEPING), demands, on)
    assert seen.rings_lost > 0
    assert seen.missed_runs > 0


def test_t3e_a_partially_resident_preemptor_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(shaped("short", 60, 60, [1, 1], [2, 3], SwapPolicy.SWAP), reserved_bytes=MB)
    demands = preempted_at_a_full_ring(short)
    on = device(40)
    assert not planned(demands, on, KEEPING).ok
    as_it_is = Task.planned

    def naive(self: Task, option: Option, *, preemptible: bool, hard: bool) -> PlannedJob:
        partly = option.point.resident_extents > 0
        job = as_it_is(self, option, preemptible=preemptible, hard=hard)
        return replace(job, streams=job.streams and not partly)

    monkeypatch.setattr(Task, "planned", naive)
    answer = planned(demands, on, KEEPING)
    assert attacked(answer, demands, on).missed_runs > 0
    assert isinstance(answer, Admitted)
    assert answer.plans[1].streamed_bytes == MB


def test_a_fully_resident_preemptor_is_free_and_holds() -> None:
    short = shaped("short", 60, 60, [1], [5], SwapPolicy.RESIDENT)
    demands = preempted_at_a_full_ring(short)
    on = device(40)
    seen = attacked(planned(demands, on, KEEPING), demands, on)
    assert seen.preemptions > 0
    assert seen.rings_lost == 0
    assert seen.missed_runs == 0
    assert not planned(demands, on, Scheduling.LAYER_PREEMPTIVE).ok


class ForcedNext(AgentPolicy):
    """RT-Swap's rule 8: the next job is fixed when one is dispatched."""

    def __init__(self) -> None:
        self.committed: int | None = None

    def first(self, waiting: Iterable[Waiting]) -> int:
        jobs = {job.key: job for job in waiting}
        key = self.committed if self.committed in jobs else super().first(jobs.values())
        assert key is not None
        del jobs[key]
        self.committed = super().first(jobs.values()) if jobs else None
        return key


def whole(name: str, period_s: float, deadline_s: float, seconds: float) -> TaskModel:
    """Jobs of one layer that streams nothing."""
    return TaskModel(name, period_s, deadline_s, layout_of([]), (seconds,), frozenset(), 0, ())


def test_t4_the_next_job_is_not_committed() -> None:
    tasks = [whole("a", 100, 9.5, 5), whole("b", 100, 50, 4), whole("c", 100, 60, 4)]
    as_sporadic = [SporadicTask(t.name, t.period_s, t.deadline_s, sum(t.compute_s)) for t in tasks]
    assert np_edf(as_sporadic).ok
    machine, pattern = Machine([LINK], MB), Pattern([1.0 + 1e-6, 1.0, 1.0], 2.0)
    assert sum(play(tasks, machine, pattern, policy=ForcedNext()).misses) == 1
    assert sum(play(tasks, machine, pattern).misses) == 0


def test_t5_t14_an_extent_under_way_is_charged_at_its_size() -> None:
    demands = [shaped("only", 200, 35, [1, 1], [10, 10], SwapPolicy.SWAP)]
    with_it, without = device(9), device(9, blocked_extents=0)
    assert not planned(demands, with_it).ok
    naive = planned(demands, without)
    assert isinstance(naive, Admitted)
    rng = np.random.default_rng(1)
    seen = attack(demands, naive.plans, with_it, naive.scheduling, [0.035], rng)
    assert seen.missed_runs > 0
    held = [replace(demands[0], deadline_s=0.04)]
    assert attacked(planned(held, with_it), held, with_it).missed_runs == 0
    coarse = [replace(held[0], layout=lay_out([LayerShape(MB)] * 2, 4 * MB))]
    assert Task(coarse[0], ["dram"], with_it).worst.start_delay_s == 4 * LINK.copy_s(MB)


def test_t5_an_extent_copied_ahead_from_a_slower_tier_is_charged_where_nobody_yields() -> None:
    slow = LinkRate(LINK.bandwidth_bytes_per_s / 5)
    tiers = {"dram": TierCapacity(10**9, LINK), "nvme": TierCapacity(10**9, slow)}
    where = device(2, tiers=tiers)  # a ring, and nothing resident
    urgent = task("urgent", 2000, 1500, 20, policy=SwapPolicy.SWAP)
    slower = task("slower", 2000, 2000, 20, policy=SwapPolicy.SWAP, tiers=("nvme",))
    (alone,) = admitted(settle([urgent], where)).plans
    second, _ = admitted(settle([urgent, slower], where)).plans
    later_s = slow.flight_s(MB) - LINK.flight_s(MB)
    assert second.job_time_s == pytest.approx(alone.job_time_s + later_s)
    # It is part of the proof, not of the figures alone: a deadline that needs it does not hold.
    assert second.response_s is not None
    short = replace(urgent, deadline_s=second.response_s - later_s / 2)
    assert not planned([short, slower], where).ok
    assert planned([replace(short, deadline_s=second.response_s)], where).ok
    # Growing a set charges it, too, whichever task was there first.
    grown = admitted(admit(admitted(settle([urgent], where)), slower)).plans
    assert grown[0].job_time_s == second.job_time_s
    grown = admitted(admit(admitted(settle([slower], where)), urgent)).plans
    assert grown[1].job_time_s == second.job_time_s


def test_t6_a_simulation_of_one_hyperperiod_is_no_test() -> None:
    sims = [
        SimTask(0.1, 0.02, 0.005, (0.0039,)),
        SimTask(0.1, 0.003, 0.002),
        SimTask(0.1, 0.0205, 0.006),
    ]
    releases = Releases([1.0, 1.005, 1.004])
    assert simulate_whole_jobs(sims, releases, until_s=1.09).misses == 0
    assert simulate_whole_jobs(sims, releases, until_s=1.09, shorten=True).misses == 1
    tasks = [SporadicTask(str(i), s.period_s, s.deadline_s, s.full_s) for i, s in enumerate(sims)]
    assert not np_edf(tasks).ok


def test_t7_every_window_is_looked_at() -> None:
    # Quick convergence on h + B as if it were monotone ends at the first deadline and accepts.
    tasks = [
        SporadicTask("a", 0.040, 0.007, 0.002),
        SporadicTask("b", 0.020, 0.007, 0.002),
        SporadicTask("soft", 0.010, 0.009, 0.001, section_s=0.009),
    ]
    verdict = np_edf(tasks)
    assert not verdict.ok
    assert verdict.critical_time_s == 0.007
    assert verdict.blocker == 2


def test_t8_plans_are_made_with_the_worst_bandwidth_and_hold_within_the_margin() -> None:
    node = MemNode.from_api(
        api_objects.node(
            status={
                "devices": [
                    {
                        "name": "cpu",
                        "kind": "cpu",
                        "product": "x",
                        "fastBytes": 65536,
                        "extentBytes": 65536,
                    }
                ],
                "tiers": [{"name": "dram", "capacityBytes": 1}],
                "links": [
                    {
                        "name": "h2d",
                        "device": "cpu",
                        "bandwidth": 45,
                        "typicalBandwidth": 55,
                        "overhead": "1us",
                    }
                ],
            }
        )
    )
    offered = capacity_of(node, node.status.devices[0], Margins(), dispatch_s=0, gate_s=0)
    assert offered.tiers["dram"].link.bandwidth_bytes_per_s == 45
    # 20 extents of 10 ms each, barely in time; then the link does four fifths of what was planned
    careless, careful = device(9), device(9, margins=Margins(bandwidth=1.25))
    demands = [task("only", 1000, 230, 20, megabytes=20, layers=20, policy=SwapPolicy.SWAP)]
    slower = device(
        9, tiers={"dram": TierCapacity(10**9, replace(LINK, bandwidth_bytes_per_s=80e6))}
    )
    naive = planned(demands, careless)
    assert isinstance(naive, Admitted)
    rng = np.random.default_rng(1)
    assert attack(demands, naive.plans, slower, naive.scheduling, [0.2], rng).missed_runs > 0
    assert not planned(demands, careful).ok
    held = [replace(demands[0], deadline_s=0.3)]
    answer = planned(held, careful)
    assert isinstance(answer, Admitted)
    assert attack(held, answer.plans, slower, answer.scheduling, [0.3], rng).missed_runs == 0


def late_long_layer() -> list[TaskDemand]:
    """A job with a long last layer, and another that cannot wait for that."""
    return [
        shaped("long", 300, 300, [1] * 11, [4] * 10 + [20], SwapPolicy.RESIDENT),
        shaped("short", 60, 15, [1], [3], SwapPolicy.RESIDENT),
    ]


def test_t11_a_long_layer_blocks_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    demands, on = late_long_layer(), device(40)
    assert not planned(demands, on, KEEPING).ok
    prepare = Task.__init__

    def naive(
        self: Task,
        demand: TaskDemand,
        homes: Sequence[str],
        on: DeviceCapacity,
        *late_s: float,
        homes_by: HomesBy,
    ) -> None:
        prepare(self, demand, homes, on, *late_s, homes_by=homes_by)
        self.layer_ns = round(self.worst.compute_s[0] * 1e9)  # "the long one is 40 ms away"

    monkeypatch.setattr(Task, "__init__", naive)
    assert attacked(planned(demands, on, KEEPING), demands, on).missed_runs > 0


def test_t13_parked_activations_are_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = [
        replace(shaped("long", 300, 300, [1] * 10, [4] * 10), workspace_bytes=4 * MB),
        replace(shaped("short", 60, 15, [1], [3]), workspace_bytes=4 * MB),
    ]
    # 11 MB of weights, 4 MB of workspace, and 4 MB for what the long job leaves when it yields
    with_room, without = device(19), device(15)
    answer = planned(demands, with_room, KEEPING)
    assert isinstance(answer, Admitted)
    assert [granted.parked_bytes for granted in answer.plans] == [4 * MB, 0]
    assert answer.fast_bytes_used <= with_room.fast_bytes
    exact = [replace(d, activation_bytes=MB, policy=SwapPolicy.RESIDENT) for d in demands]
    assert planned(exact, device(16), KEEPING).ok
    assert not planned(exact, without, KEEPING).ok
    prepare = Task.__init__

    def naive(
        self: Task,
        demand: TaskDemand,
        homes: Sequence[str],
        on: DeviceCapacity,
        *late_s: float,
        homes_by: HomesBy,
    ) -> None:
        prepare(self, demand, homes, on, *late_s, homes_by=homes_by)
        self.parked_extents = 0

    monkeypatch.setattr(Task, "__init__", naive)
    assert planned(exact, without, KEEPING).ok


def test_t15_no_one_runs_in_the_stalls_of_the_most_urgent() -> None:
    holder = Claim(1, deadline_ns=10, arrival=1)
    assert not yields(holder, [Claim(2, deadline_ns=10, arrival=0), Claim(3, 11, 2)], now_ns=0)
    assert yields(holder, [Claim(3, 11, 2), Claim(4, 9, 3)], now_ns=0)

    class Backfill(AgentPolicy):
        """Gives the device to any job that can compute while the most urgent job waits for data."""

        def yields(self, holder: Waiting, waiting: Iterable[Waiting]) -> bool:
            return any(job.deadline_ns > holder.deadline_ns for job in waiting)

        def first(self, waiting: Iterable[Waiting]) -> int:
            return max(waiting, key=lambda job: job.deadline_ns).key

    stream = layout_of([100] * 3, 100)
    urgent = TaskModel(
        "urgent", 9.0, 0.7, stream, [0.1] * 3, frozenset(), 4, [0] * 3, preemptible=True
    )
    tasks = [urgent, whole("later", 9.0, 5.0, 0.5)]
    machine = Machine([replace(LINK, bandwidth_bytes_per_s=1000.0)], 100, KEEPING)
    pattern = Pattern([0.0, 0.05], 1.0)
    assert sum(play(tasks, machine, pattern).misses) == 0
    assert sum(play(tasks, machine, pattern, policy=Backfill()).misses) == 1
