"""Runs each set so many times, and says what held: `python -m tests.crowd.faults --runs 20`.

Ends with 4 if anything was late, longer than proven, or not as the programs' own logs have it. A
run that is refused, as on a busy machine, is told and is no fault. `--load` adds processes that
want a processor all the time, from when the programs begin: they were measured without.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.crowd.faults.running import Run, run
from tests.crowd.faults.sets import SETS


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}; all if none is named")
    parser.add_argument("--runs", type=int, default=20, help="of each set")
    parser.add_argument("--duration", type=float, default=30.0, help="of a run, seconds")
    parser.add_argument("--load", type=int, default=0, help="processes that are busy meanwhile")
    parser.add_argument("--margin", type=float, help="instead of what the machine asks for")
    arguments = parser.parse_args()
    print(
        f"{'set':<7}{'run':>4}{'load':>6} {'task':<5}{'jobs':>6}{'misses':>8}{'worst':>11}"
        f"{'proven':>11}{'over-runs':>11}",
        flush=True,
    )
    failed = False
    for name in arguments.sets or SETS:
        for number in range(1, arguments.runs + 1):
            done = run(name, arguments.duration, arguments.margin, arguments.load)
            failed |= _tell(name, number, done)
    return 4 if failed else 0


def _tell(name: str, number: int, done: Run) -> bool:
    """A line for each task; whether something did not hold."""
    tasks = done.report.get("tasks")
    if tasks is None:
        why = " ".join(done.said.split()).partition("not admitted")[2]
        sys.stdout.write(f"{name:<7}{number:>4}{os.getloadavg()[0]:>6.1f} not admitted{why}\n")
        sys.stdout.flush()
        return False
    for task in tasks:
        sys.stdout.write(
            f"{name:<7}{number:>4}{os.getloadavg()[0]:>6.1f} {task['name']:<5}{task['jobs']:>6}"
            f"{done.late(task['name']):>8}{done.worst_s(task['name']) * 1e3:>8.1f} ms"
            f"{task['predicted_worst_s'] * 1e3:>8.1f} ms{task['overruns']:>11}\n"
        )
    found = [*done.broken(), *done.wrong()]
    sys.stdout.writelines(f"    {line}\n" for line in found)
    sys.stdout.flush()
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
