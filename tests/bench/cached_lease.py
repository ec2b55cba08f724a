"""What begin and end of a resident job take, with the lease left open to it and without.

One client on a simulated GPU, alone, whose jobs last a millisecond: first as a task that asks the
agent for each job (its jobs are limited, which the agent must see to), then as one that does not.
"""

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.machine import describe, keep, print_head
from tests.cuda.test_gpu_open import Program, register
from tests.integration.agent.gpu_agent import gpu_agent
from tests.native_builds import simulated_machine

_WARM_UP = 100
_WAYS = {"asking": {"job_limit_ns": 10**12}, "open": {}}


def main() -> None:
    """Time both, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    about = describe()
    print_head(about)
    figures = {}
    heads = ("begin", "p99", "end", "p99", "both", "p99", "took it")
    print(f"{'':<8}" + "".join(f"{head:>9}" for head in heads) + "   us")
    with (
        TemporaryDirectory() as folder,
        simulated_machine() as machine,
        gpu_agent(Path(folder), machine) as agent,
    ):
        for way, terms in _WAYS.items():
            register(agent, way, **terms)
            said = Program(agent, way, "timed").held().splitlines()[_WARM_UP:-1]
            begins, ends = zip(*(map(int, line.split()) for line in said), strict=True)
            row = []
            for times in (begins, ends, list(map(sum, zip(begins, ends, strict=True)))):
                row += [
                    statistics.median(times) / 1e3,
                    statistics.quantiles(times, n=100)[98] / 1e3,
                ]
            task = agent.task(way)
            print(
                f"{way:<8}"
                + "".join(f"{value:>9.1f}" for value in row)
                + f"{task['uncontended']:>9} of {task['jobs']}"
            )
            names = ("begin_us", "begin_p99_us", "end_us", "end_p99_us", "both_us", "both_p99_us")
            figures[way] = {
                **dict(zip(names, row, strict=True)),
                "jobs": task["jobs"],
                "uncontended": task["uncontended"],
            }
            agent.call("remove", name=way)
    keep(arguments.json, {**about, **figures})


if __name__ == "__main__":
    main()
