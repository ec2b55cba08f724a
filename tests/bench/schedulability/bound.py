"""What no policy can beat: a necessary condition for any scheduling and any use of fast memory.

Theorem. Let a device with H bytes of fast memory and a link of bandwidth b run sporadic tasks; job
times are compute times, preemption is free, the future is known. If all deadlines hold, then

1. h(t) <= t for every t (processor demand without blocking; Baruah, Rosier, Howell 1990): the
   synchronous release is among the patterns that must hold.
2. for every t: sum of W_i over D_i <= t  <=  H + b t. Released together, each of those tasks reads
   all its weights by t, and what was not in fast memory at the release came over the link.
3. the long-run rate of bytes that must come over the link, when H bytes are used in the best way,
   is at most b. In a strictly periodic pattern W_i bytes can serve two jobs in a row only if they
   stay over the gap between them. Jobs may lie at the ends of their windows in turn, so at best
   every other gap lasts T_i - D_i and the others T_i + D_i: keeping all of W_i over the shorter
   gaps takes W_i (T_i - D_i) / 2 T_i bytes on average and saves W_i / 2 T_i bytes a second, over
   the longer ones W_i (T_i + D_i) / 2 T_i for the same. The best use is the fractional knapsack.

Source: docs/design/theory.md, 3 ("G"). Workspaces left out can only weaken the condition.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierline_operator.admission.demand import DemandTest, cost_ns
from tierline_operator.planning.request import TaskDemand


def possible(
    tasks: Sequence[TaskDemand], test: DemandTest, fast_bytes: int, bandwidth_bytes_per_s: float
) -> bool:
    """False only where no policy at all could keep every deadline; `test` is that of `tasks`."""
    costs = [cost_ns(sum(task.compute_s)) for task in tasks]
    if test.worst(costs, [0] * len(costs))[0] in {"late", "overload"}:
        return False
    for last in tasks:
        due = [task for task in tasks if task.deadline_s <= last.deadline_s]
        copied = sum(task.layout.weight_bytes for task in due) - fast_bytes
        if copied > bandwidth_bytes_per_s * last.deadline_s:
            return False
    return _rate(tasks, fast_bytes) <= bandwidth_bytes_per_s


def _rate(tasks: Sequence[TaskDemand], fast_bytes: int) -> float:
    """Bytes a second that must come over the link at best."""
    gaps = [
        (gap_s, weights / (2 * task.period_s), gap_s * weights / (2 * task.period_s))
        for task in tasks
        for weights in (task.layout.weight_bytes,)
        for gap_s in (task.period_s - task.deadline_s, task.period_s + task.deadline_s)
    ]
    rate = sum(task.layout.weight_bytes / task.period_s for task in tasks)
    left = float(fast_bytes)
    for _, saved, taken in sorted(gaps):
        share = 1.0 if taken <= left else left / taken
        rate -= share * saved
        left -= share * taken
    return rate
