"""The simulator: what the engines do, which job gets the device, and what a preemption costs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.simulation import engines
from tests.simulation.preemptive import play
from tests.unit.planning.shapes import layout_of, random_layout

from tierline_cli.planning.agent_policy import AgentPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.simulation.device import (
    DeadlockError,
    Machine,
    Noise,
    Seen,
    Waiting,
    simulate,
)
from tierline_operator.simulation.job import TaskModel
from tierline_operator.simulation.releases import Arrivals, Pattern

LINK = LinkRate(100.0)


def model(
    name: str,
    period_s: float,
    deadline_s: float | None,
    sizes: list[int],
    layer_s: float,
    *,
    resident: bool = False,
    ring_extents: int = 4,
    preemptible: bool = False,
    domain: str = "default",
) -> TaskModel:
    """Equal layers in extents of 100 bytes; one takes a second over the link."""
    layout = layout_of(sizes)
    held = frozenset(range(layout.extent_count)) if resident else frozenset()
    return TaskModel(
        name,
        period_s,
        deadline_s,
        layout,
        [layer_s] * len(sizes),
        held,
        ring_extents,
        [0] * layout.extent_count,
        domain,
        preemptible,
    )


def run(
    tasks: list[TaskModel],
    first_s: list[float],
    scheduling: Scheduling = Scheduling.NON_PREEMPTIVE,
    *,
    dispatch_s: float = 0.0,
    blocked_extents: int = 0,
    until_s: float = 5.0,
    yields_while_waiting: bool = True,
) -> Seen:
    machine = Machine([LINK], 100, scheduling, dispatch_s, blocked_extents, yields_while_waiting)
    periods = [task.period_s for task in tasks]
    arrivals = Arrivals(periods, Pattern(first_s, until_s))
    return simulate(tasks, machine, arrivals, AgentPolicy(), record=True)


def test_a_job_alone_takes_what_the_engines_take() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        layout = random_layout(rng, arenas=int(rng.integers(1, 3)))
        links = [LinkRate(100.0, 0.05), LinkRate(float(rng.choice([40.0, 300.0])))]
        one = engines.Machine(
            layout=layout,
            compute_s=[float(x) for x in rng.random(layout.layer_count) * 2],
            resident=layout.pinned_extents
            | {x for x in range(layout.extent_count) if rng.random() < 0.3},
            ring_extents=int(rng.integers(1, 6)),
            link_of_extent=[int(rng.integers(2)) for _ in range(layout.extent_count)],
            links=links,
        )
        task = TaskModel(
            "one",
            1e6,
            1e6,
            layout,
            one.compute_s,
            frozenset(one.resident),
            one.ring_extents,
            one.link_of_extent,
        )
        machine = Machine(links, 100, blocked_extents=0)
        try:
            expected = engines.run_job(one)
        except engines.DeadlockError:
            with pytest.raises(DeadlockError):
                simulate([task], machine, Arrivals([1e6], Pattern([0.0], 1.0)), AgentPolicy())
            continue
        seen = simulate([task], machine, Arrivals([1e6], Pattern([0.0], 1.0)), AgentPolicy())
        assert seen.responses_s[0][0] == pytest.approx(expected, rel=1e-12)


def test_jobs_run_by_deadline_and_keep_the_device() -> None:
    tasks = [model("long", 100, 100, [0] * 4, 1.0), model("short", 100, 10, [0] * 4, 1.0)]
    seen = run(tasks, [0.0, 0.5])
    assert seen.responses_s == [[4.0], [7.5]]
    assert run(tasks, [0.5, 0.5]).responses_s == [[8.0], [4.0]]


def test_a_preemptible_job_yields_where_its_layer_ends() -> None:
    tasks = [
        model("long", 100, 100, [0] * 4, 1.0, preemptible=True),
        model("short", 100, 10, [0] * 4, 1.0),
    ]
    seen = run(tasks, [0.0, 0.5], Scheduling.RING_KEEPING)
    assert seen.preemptions == 1
    assert seen.responses_s == [[8.0], [4.5]]
    assert run(tasks, [0.0, 0.5]).preemptions == 0


def test_a_job_that_waits_for_data_yields_at_once() -> None:
    tasks = [
        model("long", 100, 100, [200, 200], 1.0, preemptible=True),
        model("short", 100, 10, [0], 1.0),
    ]
    seen = run(tasks, [0.0, 0.25], Scheduling.RING_KEEPING)
    assert seen.responses_s[1] == [1.0]
    assert seen.responses_s[0] == [5.0]  # its copies went on: at 4 s all are there
    assert seen.rings_lost == 0


def test_on_a_gpu_it_gets_the_data_first() -> None:
    tasks = [
        model("long", 100, 100, [200, 200], 1.0, preemptible=True),
        model("short", 100, 10, [0], 1.0),
    ]
    seen = run(tasks, [0.0, 0.25], Scheduling.RING_KEEPING, yields_while_waiting=False)
    assert seen.preemptions == 1
    assert seen.responses_s[1] == [2.75]  # at 2 s the first layer's are there
    assert seen.responses_s[0] == [5.0]


def test_on_a_gpu_it_does_not_stand_again_where_it_went_on() -> None:
    tasks = [
        model("long", 100, 100, [200, 200], 1.0, preemptible=True),
        model("next", 100, 50, [100], 1.0),
        model("short", 100, 10, [0], 1.0),
    ]
    gpu = run(tasks, [0.0, 1.0, 4.5], Scheduling.RING_KEEPING, yields_while_waiting=False)
    # At 2 s it stands and loses its ring, which it has again 2 s after the other's end at 4 s. It
    # was asked once more meanwhile, and stands when it has run that layer, copies and all.
    assert gpu.rings_lost == 1
    assert gpu.responses_s == [[10.0], [3.0], [4.5]]
    cpu = run(tasks, [0.0, 1.0, 4.5], Scheduling.RING_KEEPING)
    assert cpu.responses_s[2] == [1.0]


@pytest.mark.parametrize(
    ("scheduling", "resident", "lost"),
    [
        (Scheduling.RING_KEEPING, True, 0),
        (Scheduling.RING_KEEPING, False, 1),
        (Scheduling.LAYER_PREEMPTIVE, True, 1),
    ],
    ids=["resident leaves the ring", "streaming takes it", "the other rule takes it always"],
)
def test_who_takes_the_ring(scheduling: Scheduling, resident: bool, lost: int) -> None:
    tasks = [
        model("long", 100, 100, [100] * 6, 2.0, preemptible=True),
        model("short", 100, 20, [100], 1.0, resident=resident),
    ]
    seen = run(tasks, [0.0, 4.0], scheduling)
    assert seen.preemptions == 1
    assert seen.rings_lost == lost
    assert sum(seen.misses) == 0
    # alone it takes 13 s; a lost ring is loaded again before its next layer
    assert seen.responses_s[0] == [
        13.0 + 1.0 + (0 if resident and not lost else 1.0 + (not resident))
    ]


def test_rings_of_other_domains_are_left_alone() -> None:
    tasks = [
        model("long", 100, 100, [100] * 6, 2.0, preemptible=True),
        model("short", 100, 20, [100], 1.0, domain="other"),
    ]
    assert run(tasks, [0.0, 4.0], Scheduling.RING_KEEPING).rings_lost == 0


def test_a_busy_link_delays_a_streaming_job_and_no_other() -> None:
    stream, resident = [100] * 3, model("r", 100, 100, [100] * 3, 1.0, resident=True)
    assert run([model("s", 100, 100, stream, 1.0)], [0.0]).responses_s == [[4.0]]
    assert run([model("s", 100, 100, stream, 1.0)], [0.0], blocked_extents=1).responses_s == [[5.0]]
    assert run([resident], [0.0], blocked_extents=1).responses_s == [[3.0]]


def test_dispatch_takes_time_also_on_the_way_back() -> None:
    tasks = [
        model("long", 100, 100, [0] * 4, 1.0, preemptible=True),
        model("short", 100, 10, [0] * 4, 1.0),
    ]
    seen = run(tasks, [0.0, 0.5], Scheduling.RING_KEEPING, dispatch_s=0.25)
    assert seen.responses_s == [[8.75], [5.0]]


def test_best_effort_runs_in_what_is_left() -> None:
    tasks = [
        model("idle", 100, None, [0] * 4, 1.0, preemptible=True),
        model("due", 100, 50, [0] * 4, 1.0),
    ]
    assert run(tasks, [0.0, 0.0]).responses_s == [[8.0], [4.0]]
    assert run(tasks, [0.0, 0.5], Scheduling.RING_KEEPING).responses_s == [[8.0], [4.5]]


def test_engines_do_one_thing_at_a_time() -> None:
    rng = np.random.default_rng(4)
    tasks = [
        model("a", 7.0, 7.0, [100] * 4, 0.4, preemptible=True),
        model("b", 23.0, 20.0, [150] * 5, 0.7, preemptible=True),
        model("c", 11.0, 5.0, [100], 0.3, resident=True),
    ]
    machine = Machine([LINK], 100, Scheduling.RING_KEEPING)
    arrivals = Arrivals([t.period_s for t in tasks], Pattern([0, 0, 1.0], 200.0, 0.5), rng.random)
    noise = Noise(lambda: float(rng.uniform(0.5, 1)), lambda: float(rng.uniform(0.5, 1)))
    seen = simulate(tasks, machine, arrivals, AgentPolicy(), noise, record=True)
    assert seen.preemptions > 5
    for link in (-1, 0):
        spans = sorted((s.start_s, s.end_s) for s in seen.spans if s.link == link)
        assert len(spans) > 100
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))


class NextWhoCame:
    """A policy that the agent does not have: first come, first served."""

    def first(self, waiting: Iterable[Waiting]) -> int:
        return min(waiting, key=lambda job: job.arrival).key

    def yields(self, holder: Waiting, waiting: Iterable[Waiting]) -> bool:
        return any(job.arrival < holder.arrival for job in waiting)


def test_the_policy_decides() -> None:
    tasks = [
        model("a", 100, 50, [0], 1.0),
        model("b", 100, 5, [0], 1.0),
        model("c", 9, 9, [0], 4.0),
    ]
    machine = Machine([LINK], 100)
    pattern = Pattern([0.5, 0.6, 0.0], 1.0)
    assert play(tasks, machine, pattern).responses_s[1] == pytest.approx([4.4])
    seen = play(tasks, machine, pattern, policy=NextWhoCame())
    assert seen.responses_s[1] == pytest.approx([5.4])


@pytest.mark.parametrize("resident", [True, False])
def test_twice_as_many_jobs_of_a_release_take_twice_as_long(resident: bool) -> None:
    """Counted in calls of Python functions."""

    def work(calls: int) -> int:
        asked = model("a", 1e6, 1e6, [100] * 2, 1.0, resident=resident)
        task = replace(asked, calls=(calls,), between_s=float(calls))
        count = 0

        def seen(*_: object) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            played = run([task], [0.0])
        finally:
            sys.setprofile(before)
        assert played.jobs == 1
        return count

    few = work(100)
    assert work(800) < 8.5 * few
