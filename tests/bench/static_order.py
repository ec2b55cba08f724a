"""What would a fixed order of jobs admit, were all tasks strictly periodic and released together?

    python -m tests.bench.static_order [--sets 40] [--json FILE]

Sets as in tests.bench.preemption, at memory demand 2 x capacity, each with the plans that come
nearest without preemption. The order is that of earliest deadlines, with idle time where starting a
job would make a more urgent one late that is still to come (after Nasri, Fohler, CW-EDF); with
fixed order and worst times it is exact for that order over the common multiple of the periods, and
shorter jobs cannot break it (docs/design/theory.md, 1.4). Counted is what it admits that the
sporadic tests refuse: those hold whenever jobs are released, this one needs the releases.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import describe, print_head
from tests.bench.preemption import LOADS, RATIO, drawn
from tests.simulation.tasksets import device_for

from tierline_operator.admission.demand import cost_ns, instant_ns
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.planner import plan

MOST_JOBS = 20_000


def in_order(periods: Sequence[int], deadlines: Sequence[int], costs: Sequence[int]) -> bool:
    """Whether all jobs of one common multiple of the periods end in time. Nanoseconds."""
    end = math.lcm(*periods)
    if sum(end // period for period in periods) > MOST_JOBS:
        return False
    if sum(cost * (end // period) for cost, period in zip(costs, periods, strict=True)) > end:
        return False
    tasks = range(len(periods))
    release = [0] * len(periods)
    now = 0
    while min(release) < end:
        ready = [i for i in tasks if release[i] <= now]
        if not ready:
            now = min(release)
            continue
        job = min(ready, key=lambda i: release[i] + deadlines[i])
        due = release[job] + deadlines[job]
        ahead = [i for i in tasks if release[i] > now and release[i] + deadlines[i] < due]
        if _too_late(now + costs[job], ahead, release, deadlines, costs):
            now = min(release[i] for i in ahead)
            continue
        now += costs[job]
        if now > due:
            return False
        release[job] += periods[job]
    return True


def _too_late(
    free: int,
    ahead: Sequence[int],
    release: Sequence[int],
    deadlines: Sequence[int],
    costs: Sequence[int],
) -> bool:
    """Whether those that come, one after another from then on, miss a deadline."""
    for index in sorted(ahead, key=lambda i: release[i] + deadlines[i]):
        free = max(free, release[index]) + costs[index]
        if free > release[index] + deadlines[index]:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=40, help="for each utilisation")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    about = describe()
    print_head(about)
    ways = ("non-preemptive", "ring-keeping", "fixed order", "only fixed order")
    found = {load: dict.fromkeys(ways, 0) for load in LOADS}
    for load in LOADS:
        for number in range(options.sets):
            tasks = drawn(number, load)
            where = device_for(tasks, RATIO)
            plain = plan(tasks, where, scheduling=Scheduling.NON_PREEMPTIVE)
            keeping = plain.ok or plan(tasks, where, scheduling=Scheduling.RING_KEEPING).ok
            plans = plain.nearest if isinstance(plain, Infeasible) else ()
            ordered = plain.ok or (
                bool(plans)
                and in_order(
                    [instant_ns(task.period_s) for task in tasks],
                    [instant_ns(task.deadline_s) for task in tasks],
                    [cost_ns(one.job_time_s) for one in plans],
                )
            )
            row = found[load]
            row["non-preemptive"] += plain.ok
            row["ring-keeping"] += keeping
            row["fixed order"] += ordered
            row["only fixed order"] += ordered and not keeping
        print(f"utilisation {load}: {found[load]}", flush=True)
    if options.json:
        rows = {f"{load:g}": row for load, row in found.items()}
        options.json.write_text(
            json.dumps({**about, "sets_each": options.sets, "admitted": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
