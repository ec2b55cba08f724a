"""How close a streamed job comes to the limit of its compute and its link.

Each example model runs alone with nothing resident but what must be, streamed from each tier in
turn. Its job time (from the lease to the end) is compared with max(compute alone, streamed bytes /
link bandwidth), both measured in the same run: the compute by the observed run of the same program
just before, the bandwidth through the same path (copy and check), as the better of what the agent
measured at its start and what the link did during the jobs.
"""

import argparse
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.machine import describe, keep, print_head

from tierline_api.manifests.files import Manifests, load_manifests
from tierline_api.objects.memnode import READ_LINK
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Tier
from tierline_api.objects.swap import SwapPolicy
from tierline_cli.local.run import LocalRun, RunOptions
from tierline_cli.reporting.verdicts import Verdict
from tierline_operator.planning.answer import Admitted

_EXAMPLE = Path(__file__).parents[2] / "examples" / "1-quickstart" / "tasks.yaml"
_PERIOD_S = 2.0
_TIERS = (Tier.DRAM, Tier.NVME)


@dataclass(frozen=True)
class Row:
    """One model on one tier. Times in seconds."""

    model: str
    tier: str
    weights_bytes: int
    streamed_bytes: int
    ring_bytes: int
    bandwidth_bytes_per_s: float
    compute_s: float
    link_s: float
    jobs: int
    job_median_s: float
    job_p95_s: float
    ratio: float
    identical: bool


def _alone(task: MemTask, tier: Tier) -> MemTask:
    """The task with time to spare, streaming everything from one tier."""
    swap = task.spec.swap.model_copy(update={"tiers": (tier,), "policy": SwapPolicy.STREAM})
    realtime = task.spec.realtime.model_copy(
        update={"period_s": _PERIOD_S, "deadline_s": _PERIOD_S, "execution_time_s": None}
    )
    spec = task.spec.model_copy(update={"swap": swap, "realtime": realtime})
    return task.model_copy(update={"spec": spec})


def measure(task: MemTask, tier: Tier, jobs: int, nvme: Path | None) -> Row:
    """Run one model on one tier."""
    options = RunOptions(
        fast_bytes=512 << 20,
        tier_paths={} if nvme is None else {Tier.NVME: nvme},
        extent_bytes=4 << 20,
        metrics_port=None,
        profile_jobs=jobs,
        margin=None,
    )
    with LocalRun(Manifests(tasks=(_alone(task, tier),)), options) as run:
        run.measured.take(jobs, lambda *_: None, print)
        node = run.start_agent()
        answer = run.admit(node)
        assert isinstance(answer, Admitted), answer.sentence
        run.load(lambda _: None, print)
        execution = run.release(jobs * _PERIOD_S)
        for _ in execution.watch(0.5):
            pass
        snapshot = run.finish()
        run.compare(lambda *_: None, print)
        (result,) = run.results(final=True)
        identical = run.outputs()[task.name].verdict is Verdict.IDENTICAL
        records = execution.log.of(task.name)
    link = next(link for link in snapshot["links"] if link["name"] == READ_LINK[tier].value)
    bandwidth = max(link["bandwidth_bytes_per_s"], link["recent_bytes_per_s"] or 0.0)
    times = sorted((job.end_ns - job.granted_ns) / 1e9 for job in records)
    streamed = result.streamed_bytes_per_job
    limit = max(result.compute_only_s, streamed / bandwidth)
    median = statistics.median(times)
    (plan,) = answer.plans
    return Row(
        model=task.name,
        tier=tier.value,
        weights_bytes=run.measured.weights_bytes,
        streamed_bytes=streamed,
        ring_bytes=plan.ring_extents * plan.extent_bytes,
        bandwidth_bytes_per_s=bandwidth,
        compute_s=result.compute_only_s,
        link_s=streamed / bandwidth,
        jobs=len(times),
        job_median_s=median,
        job_p95_s=times[round(0.95 * (len(times) - 1))],
        ratio=median / limit,
        identical=identical,
    )


def main() -> None:
    """Measure every example model on every tier, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=15, help="jobs of each model on each tier")
    parser.add_argument("--nvme", type=Path, help="file or device for nvme; else a temporary file")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    about = describe()
    print_head(about)
    print(
        f"{'model':<8}{'tier':<6}{'weights':>10}{'streamed':>10}{'ring':>8}{'link':>11}"
        f"{'compute':>10}{'bytes/link':>12}{'job p50':>10}{'job p95':>10}{'ratio':>8}  outputs"
    )
    rows: list[Row] = []
    for task in load_manifests([str(_EXAMPLE)]).tasks:
        for tier in _TIERS:
            row = measure(task, tier, arguments.jobs, arguments.nvme)
            rows.append(row)
            print(
                f"{row.model:<8}{row.tier:<6}{row.weights_bytes / 1e6:>7.0f} MB"
                f"{row.streamed_bytes / 1e6:>7.0f} MB{row.ring_bytes / 2**20:>5.0f} Mi"
                f"{row.bandwidth_bytes_per_s / 1e9:>6.2f} GB/s{row.compute_s * 1e3:>7.0f} ms"
                f"{row.link_s * 1e3:>9.0f} ms{row.job_median_s * 1e3:>7.0f} ms"
                f"{row.job_p95_s * 1e3:>7.0f} ms{row.ratio:>8.3f}"
                f"  {'identical' if row.identical else 'DIFFERENT'}",
                flush=True,
            )
    keep(arguments.json, {**about, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
