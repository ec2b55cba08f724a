"""How long a lease grant and a message take: one client, one agent, a quiet machine.

A *grant* is JOB_BEGIN to GRANT on a free device; a *round trip* is STATS to STATISTICS, the
smallest request that the agent answers from what it has at hand. Both go through libtierline, the
Unix socket, the agent's event loop and back.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.machine import describe, keep, print_head

from tierline_api.objects.plan import Plan
from tierline_cli.local.agent import LocalAgent, TierSpec
from tierline_client import Client

_WARM_UP = 200


def _register(agent: LocalAgent) -> None:
    admin = agent.start()
    plan = Plan(
        extent_bytes=agent.extent_bytes,
        extent_count=0,
        predicted_job_time_s=0.001,
        predicted_response_time_s=0.001,
    )
    admin.call(
        "register",
        name="bench",
        domain="bench",
        period_ns=10**9,
        deadline_ns=10**9,
        plan=plan.to_api(),
    )
    admin.close()


def _times_us(count: int, step: Callable[[], int]) -> list[float]:
    """Microseconds of `count` steps after a warm-up; a step returns its own nanoseconds."""
    for _ in range(_WARM_UP):
        step()
    return sorted(step() / 1e3 for _ in range(count))


def main() -> None:
    """Time both, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="messages of each kind")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    about = describe()
    print_head(about)
    with TemporaryDirectory() as folder:
        store = TierSpec("nvme", Path(folder) / "store", 64 << 20, temporary=True)
        agent = LocalAgent(fast_bytes=64 << 20, extent_bytes=4 << 20, tiers=[store])
        try:
            _register(agent)
            with Client(str(agent.task_socket("bench")), "bench") as client:

                def grant() -> int:
                    start_ns = time.monotonic_ns()
                    job = client.job_begin(None, start_ns, start_ns + 10**9)
                    end_ns = time.monotonic_ns()
                    client.job_end(job)
                    return end_ns - start_ns

                def round_trip() -> int:
                    start_ns = time.monotonic_ns()
                    client.statistics()
                    return time.monotonic_ns() - start_ns

                rows = {
                    "lease grant": _times_us(arguments.count, grant),
                    "message round trip": _times_us(arguments.count, round_trip),
                }
        finally:
            agent.stop()
    print(f"{'':<20}{'median':>10}{'p90':>10}{'p99':>10}{'worst':>10}   us, n={arguments.count}")
    figures = {}
    for name, times in rows.items():
        quantiles = statistics.quantiles(times, n=100)
        figures[name] = {
            "median_us": statistics.median(times),
            "p90_us": quantiles[89],
            "p99_us": quantiles[98],
            "worst_us": times[-1],
        }
        print(f"{name:<20}" + "".join(f"{value:>10.1f}" for value in figures[name].values()))
    keep(arguments.json, {**about, **figures})


if __name__ == "__main__":
    main()
