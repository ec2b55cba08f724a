"""From an order with lifetimes and places to a plan: instances, steps and addresses."""

from collections.abc import Callable
from random import Random

from tierline_steps.placement import Interval, placed
from tierline_steps.plan import Instance, Plan, Step
from tierline_steps.schedule import Schedule


def composed(schedule: Schedule, budget_bytes: int, go_on: Callable[[], bool], rng: Random) -> Plan:
    """A plan of one queue, which waits for nothing; its arena may be larger than the budget has."""
    graph = schedule.problem.graph
    lifetimes = schedule.lifetimes()
    sizes = [value.size_bytes for value in graph.values]
    intervals = [Interval(one.first, one.last, sizes[one.value]) for one in lifetimes]
    for step, operator in enumerate(schedule.order):
        if graph.operators[operator].workspace_bytes:
            size = graph.operators[operator].workspace_bytes
            intervals.append(Interval(step, step, size))
    arena_bytes = budget_bytes - graph.live_in_bytes
    placement = placed(intervals, arena_bytes, go_on, rng)
    fixed = [value for value, about in enumerate(graph.values) if about.role.is_live_in]
    instances = [Instance(value, None) for value in fixed]
    now = {value: index for index, value in enumerate(fixed)}
    made = {(one.value, one.first): number for number, one in enumerate(lifetimes)}
    scratch = iter(placement.offsets[len(lifetimes) :])
    steps = []
    for step, operator in enumerate(schedule.order):
        about = graph.operators[operator]
        reads = tuple(now[value] for value in about.reads)
        for value in about.writes:
            now[value] = len(instances)
            instances.append(Instance(value, placement.offsets[made[value, step]]))
        writes = tuple(now[value] for value in about.writes)
        workspace = next(scratch) if about.workspace_bytes else None
        steps.append(Step(reads, writes, (), operator, workspace))
    return Plan(
        graph.digest,
        budget_bytes,
        placement.top_bytes,
        0,
        tuple(instances),
        (tuple(steps), (), ()),
    )
