"""Where waits for data cannot be broken off, they are part of what others are blocked by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.bench.preemption import drawn
from tests.simulation.preemptive import play, shortened
from tests.simulation.tasksets import device_for
from tests.unit.api import api_objects
from tests.unit.planning.jobs.recursion import layer_times
from tests.unit.planning.shapes import LINK, device, random_layout, task

from tierline_api.layout import ArenaLayout, LayerShape, lay_out
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.swap import SwapPolicy
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.from_api import capacity_of
from tierline_operator.planning.grants import task_plan
from tierline_operator.planning.jobs.pipeline import LinkRate, Pipeline, RingTooSmall
from tierline_operator.planning.jobs.waits import yields_within_s
from tierline_operator.planning.planner import plan
from tierline_operator.planning.request import DeviceCapacity, Margins, TaskDemand, TierCapacity
from tierline_operator.planning.search import options
from tierline_operator.planning.search.options import Task
from tierline_operator.simulation.from_plans import machine_of, models_of
from tierline_operator.simulation.releases import Pattern

MB = 10**6
KEEPING = Scheduling.RING_KEEPING
SLOW = TierCapacity(10**9, LinkRate(LINK.bandwidth_bytes_per_s / 5))


def on(demand: TaskDemand, where: DeviceCapacity) -> Task:
    return Task(demand, ["dram"] * demand.layout.extent_count, where)


def waits_for_data(where: DeviceCapacity) -> DeviceCapacity:
    return replace(where, yields_while_waiting=False)


def test_a_streamed_job_stands_later_where_its_stream_waits_for_data_first() -> None:
    demand = task("a", 1000, 1000, 50, megabytes=10, layers=5)  # of two extents, 20 ms a layer
    anywhere = on(demand, device(4))
    gpu = on(demand, waits_for_data(device(4)))
    streamed = gpu.options(3)[0]
    assert streamed.point.streamed_extents
    assert anywhere.yields_within_ns(streamed) == pytest.approx(10e6, rel=1e-6)
    # After one extent that the link had begun and two of its own; then one more while the layer
    # runs, and one when that gave back its slots.
    assert gpu.yields_within_ns(streamed) == pytest.approx((10 + 20 + 10 + 10) * 1e6, rel=1e-6)
    assert gpu.yields_within_ns(gpu.resident()) == anywhere.yields_within_ns(gpu.resident())
    assert gpu.planned(streamed, preemptible=True).layer_ns == gpu.yields_within_ns(streamed)


@pytest.mark.parametrize(("kind", "yields"), [("cpu", True), ("cuda", False)])
def test_a_gpu_is_planned_and_played_as_one(kind: str, yields: bool) -> None:
    known = {"name": "d0", "kind": kind, "product": "x", "fastBytes": 65536, "extentBytes": 65536}
    node = MemNode.from_api(api_objects.node(status={"devices": [known]}))
    offered = capacity_of(node, node.status.devices[0], Margins(), dispatch_s=0, gate_s=0)
    assert offered.yields_while_waiting is yields
    assert machine_of((), offered, KEEPING).yields_while_waiting is yields


@pytest.mark.parametrize(
    ("resident", "ring", "within_s"),
    [
        ((), 4, 2.5 + 4.0),  # what the next layer reads is there before the last one's end
        ((), 3, 2.5 + 4.0),
        ((), 2, 2.5 + 3.0 + 2.0),
        ((2, 3, 4, 5), 2, 2.5 + 4.0),
        ((0, 1, 5, 6, 7), 2, 2.5 + 2.0 + 1.0),  # a slot, but only after the second layer's
        ((0, 1, 5, 6, 7), 3, 1.5 + 3.0),
        (range(8), 2, 4.0),
    ],
)
def test_what_is_resident_or_copied_meanwhile_is_not_waited_for(
    resident: Iterable[int], ring: int, within_s: float
) -> None:
    layout = lay_out([LayerShape(200)] * 4, 100)
    pipeline = Pipeline(layout, [1.0, 2.0, 3.0, 4.0], [0] * 8, [LinkRate(100.0)], 0.5)
    assert yields_within_s(pipeline, frozenset(resident), ring) == within_s


def test_the_next_arena_has_a_stream_of_its_own() -> None:
    layout = lay_out([LayerShape(200, arena=0), LayerShape(200, arena=1)], 100)
    pipeline = Pipeline(layout, [3.0, 1.0], [0] * 4, [LinkRate(100.0)], 0.5)
    assert yields_within_s(pipeline, frozenset(), 9) == 2.5 + 3.0 + 2.5


def stands(
    pipeline: Pipeline, resident: Set[int], ring: int, restart: int
) -> Iterator[tuple[float, float]]:
    """When a job that goes on at `restart` at 0 passes gates, and stands at the next, by P1."""
    times = list(layer_times(pipeline, resident, ring, restart))
    gates_s = [0.0, *(start_s for start_s, _ in times[1:]), times[-1][1]]
    yield from pairwise(gates_s)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_job_stands_as_soon_wherever_it_went_on(in_flight: int) -> None:
    rng = np.random.default_rng(7)
    looked_at = reached = 0
    for _ in range(300):
        layout = random_layout(rng, pinned=False)
        links = [LinkRate(100e6, in_flight=in_flight), LinkRate(30e6, in_flight=in_flight)]
        where = [int(rng.integers(2)) for _ in range(layout.extent_count)]
        compute_s = rng.random(layout.layer_count) ** 4 * 4e-6
        pipeline = Pipeline(layout, [float(s) for s in compute_s], where, links, 5e-7)
        resident = frozenset(e for e in range(layout.extent_count) if rng.random() < 0.3)
        ring = int(rng.integers(2, 7))
        try:
            pipeline.call_s(resident, ring)
        except RingTooSmall:
            continue
        looked_at += 1
        most_s = yields_within_s(pipeline, resident, ring)
        took_s = [
            stood_s - passed_s
            for restart in range(layout.layer_count)
            for passed_s, stood_s in stands(pipeline, resident, ring, restart)
        ]
        assert max(took_s) <= most_s + 1e-15
        reached += max(took_s) >= most_s - 1e-15
    assert reached == looked_at > 100


@pytest.mark.parametrize("way", [Scheduling.LAYER_PREEMPTIVE, KEEPING])
def test_an_urgent_job_waits_no_longer_than_the_others_take_to_yield(way: Scheduling) -> None:
    """Whatever they stream, wherever they were preempted, and whatever the links had begun."""
    rng = np.random.default_rng(list(Scheduling).index(way))
    beyond_a_layer = 0
    for _ in range(150):
        tiers = {"dram": TierCapacity(10**9, LINK), "nvme": SLOW}
        where = waits_for_data(device(9, tiers=tiers, dispatch_s=0.0005))
        demands = [
            streamed("far", 20_000, random_layout(rng), rng),
            streamed("near", 5_000, random_layout(rng, arenas=2), rng),
            task("urgent", 900, 1, 0.1, megabytes=1, layers=1, policy=SwapPolicy.RESIDENT),
        ]
        tasks = [
            Task(demand, [home] * demand.layout.extent_count, where, displaced_s=0.05)
            for demand, home in zip(demands, ("dram", "nvme", "dram"), strict=True)
        ]
        ring = max(task.span for task in tasks) + 1
        choices = [task.options(ring)[-1 if index == 2 else 0] for index, task in enumerate(tasks)]
        plans = [
            replace(task_plan(task, option, ring, None), preemptible=task is not tasks[2])
            for task, option in zip(tasks, choices, strict=True)
        ]
        machine = machine_of(plans, where, way)
        pattern = Pattern([0.0, 0.03, 0.3 * float(rng.random())], 40.0, 0.5, adaptive=True)
        noise = shortened(rng) if rng.random() < 0.5 else None
        seen = play(models_of(demands, plans, where), machine, pattern, noise=noise, draw=rng)
        within = [
            task.yields_within_ns(option) for task, option in zip(tasks, choices, strict=True)
        ]
        own_s = choices[2].job_time_s
        assert max(seen.responses_s[2]) <= max(within[:2]) / 1e9 + own_s + 2e-9
        beyond_a_layer += max(seen.responses_s[2]) > tasks[0].layer_ns / 1e9 + own_s
    assert beyond_a_layer > 100


def streamed(
    name: str, period_ms: float, layout: ArenaLayout, rng: np.random.Generator
) -> TaskDemand:
    """A task of that layout, in extents of 1 MB; a layer takes up to 4 ms."""
    sizes = tuple(MB for _ in layout.extent_sizes)
    times = rng.random(layout.layer_count) * 4e-3
    return replace(
        task(name, period_ms, period_ms, 1, policy=SwapPolicy.SWAP),
        layout=replace(layout, extent_bytes=MB, extent_sizes=sizes),
        compute_s=tuple(float(seconds) for seconds in times),
    )


def cold() -> list[TaskDemand]:
    """A job that streams four extents a layer, and others: urgent and resident, or streamed."""
    return [
        task("long", 2000, 2000, 5, megabytes=20, layers=5, policy=SwapPolicy.SWAP),
        task("short", 1000, 80, 5, megabytes=1, layers=1, policy=SwapPolicy.RESIDENT),
        task("third", 1000, 300, 1, megabytes=1, layers=1, policy=SwapPolicy.SWAP),
    ]


def in_a_hurry() -> list[TaskDemand]:
    """The first two, the second with no time for anything that streams."""
    long, short, _ = cold()
    return [long, replace(short, deadline_s=0.03)]


def from_nvme() -> list[TaskDemand]:
    """Small layers, but a link elsewhere is busy for long when the first job begins."""
    _, short, third = cold()
    small = task("long", 2000, 2000, 20, megabytes=20, layers=20, policy=SwapPolicy.SWAP)
    third = replace(third, tiers=("nvme",), policy=SwapPolicy.RESIDENT)
    return [small, replace(short, deadline_s=0.055), third]


def test_choices_shorten_a_job_or_the_time_until_it_yields() -> None:
    demands = drawn(188, 0.4)
    where = device_for(demands, 2.0)
    more = 0
    for demand in demands:
        gpu, cpu = on(demand, waits_for_data(where)), on(demand, where)
        ring = gpu.span + 2
        found = gpu.options(ring, to_yield=True)
        for at, option in enumerate(found[1:], start=1):
            assert option.extents > found[at - 1].extents
            assert all(
                option.job_time_s < before.job_time_s
                or gpu.yields_within_ns(option) < gpu.yields_within_ns(before)
                for before in found[:at]
            )
        assert found[-1].point.streamed_extents == 0
        assert gpu.options(ring) == cpu.options(ring)  # jobs that keep the device have no gates
        more += len(found) - len(cpu.options(ring, to_yield=True))
    assert more > 0


def test_a_set_is_admitted_with_shorter_waits_in_the_same_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demands = drawn(188, 0.4)
    where = waits_for_data(device_for(demands, 2.0))
    assert plan(demands, where, scheduling=KEEPING).ok
    monkeypatch.setattr(Task, "_and_sooner", lambda _self, options, _ring: options)
    assert not plan(demands, where, scheduling=KEEPING).ok


def no_waits(pipeline: Pipeline, _resident: Set[int], _ring: int) -> float:
    return max(pipeline.compute_s)


def one_wait(pipeline: Pipeline, resident: Set[int], ring: int) -> float:
    """Forgets that a job goes on after the gate at which it stood, and gets its data again."""
    after_s = pipeline.start_delay_s + 4 * pipeline.copy_s[0]
    return max(0.0, yields_within_s(pipeline, resident, ring) - after_s)


@pytest.mark.parametrize(
    ("demands", "naive", "first_ms"),
    [
        (in_a_hurry(), no_waits, (0.0, 0.001)),
        (cold(), one_wait, (0.0, 72.0, 30.0)),
    ],
    ids=["as on cpu", "the wait after the gate forgotten"],
)
def test_a_wait_that_is_not_charged_makes_a_job_late(
    monkeypatch: pytest.MonkeyPatch,
    demands: list[TaskDemand],
    naive: object,
    first_ms: tuple[float, ...],
) -> None:
    where = waits_for_data(device(9))
    assert not plan(demands, where, scheduling=KEEPING).ok
    monkeypatch.setattr(options, "yields_within_s", naive)
    assert misses(demands, where, first_ms) > 0
    assert misses(demands, device(9), first_ms) == 0  # where waits are broken off it holds


def test_what_a_first_wait_is_after_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    demands, first_ms = from_nvme(), (0.0, 0.001, 900.0)
    where = waits_for_data(device(9, tiers={"dram": TierCapacity(10**9, LINK), "nvme": SLOW}))
    assert not plan(demands, where, scheduling=KEEPING).ok
    as_it_is = Task.yields_within_ns

    def naive(self: Task, option: options.Option) -> int:
        return as_it_is(self, option) - self.later_ns(option)

    monkeypatch.setattr(Task, "yields_within_ns", naive)
    assert misses(demands, where, first_ms) > 0


def misses(demands: list[TaskDemand], where: DeviceCapacity, first_ms: tuple[float, ...]) -> int:
    answer = plan(demands, where, give_spare=False, scheduling=KEEPING)
    assert isinstance(answer, Admitted), answer.sentence
    first_s = [1 + at / 1e3 for at in first_ms]
    machine = machine_of(answer.plans, where, KEEPING)
    models = models_of(demands, answer.plans, where)
    return sum(play(models, machine, Pattern(first_s, 2.0)).misses)
