"""When a plan finishes, given how long its operators take and how fast the links copy.

A plan holds no times; with times it has one execution, in which each step starts once it may. If
both directions of the link together reach the sum of what each does alone, that is the longest
path through the steps, by queue and by waits. If they do not, two copies at once slow each other
down in proportion, from when the first bytes move until the first copy ends.
"""

from collections.abc import Sequence

from tierline_steps.graph import Graph
from tierline_steps.plan import Links, Plan, Queue, Step

_NS = 1e9


def finish_ns(
    graph: Graph, plan: Plan, links: Links | None, times: Sequence[int] | None = None
) -> int:
    """Nanoseconds until all steps are over; `times` are the operators', if not the graph's.

    For a plan that `verify` accepts. Raises ValueError if it copies and there are no links, if
    there is not one time for each operator, and if its steps wait in a circle.
    """
    if times is None:
        times = [operator.time_ns for operator in graph.operators]
    if len(times) != len(graph.operators):
        raise ValueError(f"{len(times)} times for {len(graph.operators)} operators")
    now = 0.0
    over = [0, 0, 0]
    until: dict[Queue, float] = {}  # when an operator, or what a copy costs beforehand, is over
    left: dict[Queue, float] = {}  # bytes of the copies that move
    while True:
        for queue in Queue:
            if queue in until or queue in left or over[queue] == len(plan.queues[queue]):
                continue
            step = plan.queues[queue][over[queue]]
            if all(over[other] > last for other, last in step.waits):
                until[queue] = now + _first_ns(step, links, times)
        if not until and not left:
            break
        speeds = _bytes_per_ns(links, left)
        ends = until | {queue: now + left[queue] / speeds[queue] for queue in left}
        queue = min(ends, key=lambda one: ends[one])
        for other in left:
            left[other] -= (ends[queue] - now) * speeds[other]
        now = ends[queue]
        if queue is Queue.COMPUTE or queue in left:
            over[queue] += 1
            left.pop(queue, None)
        else:
            left[queue] = _copied_bytes(graph, plan, queue, over[queue])
        until.pop(queue, None)
    if over != [len(steps) for steps in plan.queues]:
        raise ValueError("the plan's steps wait in a circle")
    return round(now)


def _first_ns(step: Step, links: Links | None, times: Sequence[int]) -> int:
    """An operator's time, or what a copy costs beforehand."""
    if step.operator is not None:
        return times[step.operator]
    if links is None:
        raise ValueError("the plan copies, and there are no links")
    return links.latency_ns


def _bytes_per_ns(links: Links | None, moving: dict[Queue, float]) -> dict[Queue, float]:
    if links is None:
        return {}
    speeds = {Queue.D2H: links.d2h, Queue.H2D: links.h2d}
    share = min(1.0, links.together / sum(speeds.values())) if len(moving) > 1 else 1.0
    return {queue: speeds[queue] * share / _NS for queue in moving}


def _copied_bytes(graph: Graph, plan: Plan, queue: Queue, index: int) -> int:
    step = plan.queues[queue][index]
    return graph.values[plan.instances[(step.reads + step.writes)[0]].value].size_bytes
