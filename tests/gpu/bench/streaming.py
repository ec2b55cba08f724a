"""How close a streamed job on a GPU comes to the limit of its compute and its link.

    python -m tests.gpu.bench.streaming [--model NAME...] [--share F...] [--jobs N] [--breakdown]
        [--json FILE]

Each model runs as a process of its own under one agent, eager and as a captured graph, with the
smallest ring that its largest layer allows and 0 %, 25 %, 50 % or all of its extents resident,
spread. Its job time (as the program sees it, from the call to the end of the GPU's work) is held
against max(compute alone, streamed bytes / bare pinned copy), both measured in the same run: the
compute by the same program without Tierline just before, the copy before and after each model. The
row in which all is resident shows what Tierline costs a program that needs nothing streamed. With
`--breakdown` each row is followed by what the steps of its jobs took
(tests/gpu/bench/breakdown.py): in the median, and of the slowest hundredth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from tests.bench.machine import describe, keep, print_head
from tests.gpu.bench.breakdown import WordWatch, break_down
from tests.gpu.models import kind
from tests.gpu.paced import TaskProcess
from tests.spans import largest_span

from tierline_api.layout import LayerShape, lay_out
from tierline_api.objects.plan import Home, Plan, Tier
from tierline_cli.local.agent import LocalAgent, TierSpec
from tierline_cli.local.place import Place
from tierline_client.library import library_path

_COPY_BYTES = 1 << 30
_GIB = 1 << 30
_OBSERVED_JOBS = 6
_LONG_NS = 10**11
_OBSERVATIONS = tempfile.TemporaryDirectory(prefix="tierline-observed-")
_PATIENCE_S = 120.0
_JOB_PATIENCE_S = 1.0
_SLOWEST = 5


@dataclass(frozen=True)
class Row:
    """One model with one share of it resident. Times in seconds."""

    model: str
    mode: str
    extent_bytes: int
    weight_bytes: int
    resident: float
    fast_bytes: int
    """Fast memory for weights: resident extents and ring."""
    streamed_bytes: int
    copy_bytes_per_s: float
    compute_s: float
    compute_worst_s: float
    jobs: int
    job_median_s: float
    job_p99_s: float
    job_worst_s: float
    slowest: list[tuple[int, float]]
    """The five jobs that took longest: number, and time."""
    ratio: float
    fetched_bytes: int
    """What launches read out of turn, in all jobs."""
    identical: bool
    stolen_s: float
    """What the machine's processors were kept from by its host meanwhile, all of them together."""
    steps_us: dict[str, float] | None
    """What the steps of a job took, if that was asked for."""
    slow_steps_us: dict[str, float] | None
    """The same of the hundredth of the jobs that took longest."""
    bare_steps_us: dict[str, float] | None
    """The same of the program without Tierline."""


def copy_rate(piece_bytes: int) -> float:
    """Bytes per second of a bare copy from pinned memory, in pieces; the best of five."""
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    pieces = list(zip(there.split(piece_bytes), host.split(piece_bytes), strict=True))
    best = 0.0
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for target, source in pieces:
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        best = max(best, _COPY_BYTES / (begin.elapsed_time(end) / 1e3))
    return best


class Program(TaskProcess):
    """One that imports what takes long and waits to `run`; not told to, it ends with this process.

    Without an environment of Tierline's it is what the program is without Tierline.
    """

    def __init__(
        self,
        model: str,
        mode: str,
        jobs: int,
        environment: dict[str, str] | None = None,
        *options: str,
    ) -> None:
        tierline = {} if environment is None else {"LD_PRELOAD": str(library_path()), **environment}
        environment = {**tierline, "PYTHONFAULTHANDLER": "1"}
        super().__init__(model, mode, jobs, environment, *options, prepared=True)

    def run(self) -> dict[str, Any]:
        """Let it run once it is prepared; what it reports."""
        self.prepared()
        try:
            printed, _ = self.process.communicate(
                "run\n", timeout=_PATIENCE_S + _JOB_PATIENCE_S * self.jobs
            )
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # it says where it stands
            printed, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise SystemExit(f"{self.model} ({self.mode}) ended with {self.process.returncode}")
        report: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return report


def observer(model: str, mode: str, jobs: int) -> Program:
    """A program that is observed without an agent."""
    return Program(model, mode, jobs, observing(model, mode, jobs))


def observed(program: Program) -> tuple[dict[str, Any], list[LayerShape]]:
    """A run of an observed program: what it reports, its `profile` among it, and its layers."""
    report = program.run()
    profile = observation(program.model, program.mode)
    shapes = [LayerShape(one["bytes"], one["pinned"], one["arena"]) for one in profile["layers"]]
    report["workspace_bytes"] = profile["workspace_bytes"]
    report["profile"] = profile
    return report, shapes


def observing(model: str, mode: str, jobs: int) -> dict[str, str]:
    """What the environment of a program says that is observed without an agent."""
    return {
        "TIERLINE_OBSERVE": str(_observation(model, mode)),
        "TIERLINE_OBSERVE_JOBS": str(jobs),
        "TIERLINE_DEVICE": kind(),
    }


def observation(model: str, mode: str) -> dict[str, Any]:
    """The profile of a program that was observed. Raises SystemExit if it wrote none."""
    path = _observation(model, mode)
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for record in records:
        if "profile" in record:
            profile: dict[str, Any] = record["profile"]
            return profile
    raise SystemExit(f"the observed {model} ({mode}) wrote no profile")


def learned(model: str, mode: str) -> dict[str, str]:
    """Lets a program choose the order that the observed one chose, for which the plan was made."""
    return {"TIERLINE_LEARNED": str(_observation(model, mode))}


def _observation(model: str, mode: str) -> Path:
    return Path(_OBSERVATIONS.name) / f"{model}-{mode}.jsonl"


def plan_for(
    layers: list[LayerShape], extent_bytes: int, share: float, workspace: int, spare: int = 1
) -> Plan:
    """`share` of the extents resident, spread; a ring with `spare` slots beyond the largest layer.

    Without one it would be the smallest, and nothing is copied while that layer computes.
    """
    layout = lay_out(layers, extent_bytes)
    count = layout.extent_count
    pinned = layout.pinned_extents
    free = [extent for extent in range(count) if extent not in pinned]
    wanted = max(0, round(share * count) - len(pinned))
    chosen = {free[i * len(free) // wanted] for i in range(min(wanted, len(free)))}
    resident = tuple(sorted(pinned | chosen))
    ring = 0 if len(resident) == count else min(count, max(2, largest_span(layout) + spare))
    return Plan(
        extent_bytes=extent_bytes,
        extent_count=count,
        resident_extents=resident,
        ring_extents=ring,
        workspace_bytes=workspace,
        homes=(Home(tier=Tier.DRAM, extents=count),),
        predicted_job_time_s=10.0,
        predicted_response_time_s=10.0,
    )


class Progress:
    """Says on standard error what is being done, and when."""

    def __init__(self, of: str = "") -> None:
        self._of = of
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say it."""
        passed_s = time.monotonic() - self._began
        print(f"[{passed_s:6.1f} s] {self._of}{text}", file=sys.stderr, flush=True)


@contextmanager
def agent(extent_bytes: int, fast_bytes: int, host_bytes: int) -> Iterator[Any]:
    """An agent of the first GPU with so much pinned memory; its administrator's connection."""
    place = Path(tempfile.mkdtemp(prefix="tierline-", dir="/dev/shm"))
    tier = TierSpec("dram", place / "dram", host_bytes, temporary=True)
    local = LocalAgent(
        fast_bytes=fast_bytes, extent_bytes=extent_bytes, tiers=[tier], place=Place(kind())
    )
    try:
        with local.start() as admin:
            yield local, admin
    finally:
        sys.stderr.write(local.log_path.read_text(errors="replace")[-4000:])
        local.stop()
        place.rmdir()


def under_agent(socket: Path) -> dict[str, str]:
    """What the environment of a task's program says of the agent that serves this socket."""
    return {
        "LD_PRELOAD": str(library_path()),
        "TIERLINE_SOCKET": str(socket),
        "TIERLINE_REQUIRED": "1",
        "TIERLINE_DEVICE": kind(),
    }


@contextmanager
def registered(
    local: LocalAgent,
    admin: Any,
    name: str,
    plan: Plan,
    *,
    deadline_s: float = _LONG_NS / 1e9,
    period_s: float = _LONG_NS / 1e9,
    preemption: dict[str, Any] | None = None,
) -> Iterator[dict[str, str]]:
    """A task that the agent knows for as long as this lasts; its program's environment."""
    admin.call(
        "register",
        name=name,
        domain="bench",
        period_ns=int(period_s * 1e9),
        deadline_ns=int(deadline_s * 1e9),
        plan=plan.to_api(),
        preemption=preemption,
    )
    try:
        yield under_agent(local.task_socket(name))
    finally:
        admin.call("remove", name=name)


def task_of(
    local: LocalAgent, name: str, model: str, mode: str, jobs: int, *options: str
) -> Program:
    """The program of a task that is yet to be registered."""
    environment = under_agent(local.task_socket(name)) | learned(model, mode)
    return Program(model, mode, jobs, environment, *options)


def managed(
    local: LocalAgent, admin: Any, name: str, plan: Plan, program: Program
) -> dict[str, Any]:
    """A run under the agent with this plan: what it reports, and what the agent says of it."""
    with registered(local, admin, name, plan):
        report = program.run()
        tasks = admin.call("snapshot")["snapshot"]["tasks"]
        (report["snapshot"],) = (one for one in tasks if one["name"] == name)
        return report


def rows(
    local: LocalAgent,
    admin: Any,
    model: str,
    mode: str,
    plans: Sequence[tuple[float, int]],
    jobs: int,
    *,
    breakdown: bool = False,
) -> Iterator[Row]:
    """One model without Tierline, then under the agent with each share and ring (`plan_for`)."""
    tell = Progress(f"{model}, {mode}: ")
    tell("imports")
    extent_bytes, name = local.extent_bytes, f"{model}-{mode}"
    options = ["--stamps"] if breakdown else []
    bare_program = Program(model, mode, jobs, None, *options)
    observed_program = observer(model, mode, _OBSERVED_JOBS)
    tasks = [task_of(local, name, model, mode, jobs, *options) for _ in plans]
    for program in (bare_program, observed_program, *tasks):
        program.prepared()
    tell("alone")
    bare = bare_program.run()
    compute_s = statistics.median(bare["times_s"])
    bare_steps = break_down(bare["stamps"], (), (), 0.0) if breakdown else None
    tell("profiled")
    alone, layers = observed(observed_program)
    sizes = lay_out(layers, extent_bytes).extent_sizes
    for (share, spare), program in zip(plans, tasks, strict=True):
        tell(f"{share:.0%} resident")
        rate = copy_rate(extent_bytes)
        plan = plan_for(layers, extent_bytes, share, alone["workspace_bytes"], spare)
        stolen_s = psutil.cpu_times().steal
        with WordWatch(local.pid) if breakdown else nullcontext() as watch:
            report = managed(local, admin, name, plan, program)
        stolen_s = psutil.cpu_times().steal - stolen_s
        rate = max(rate, copy_rate(extent_bytes))
        lengths = [sizes[extent] for extent in plan.streamed_extents]
        streamed = sum(lengths)
        if streamed and not report["snapshot"]["streamed_bytes"]:
            said = [one["text"] for one in report["snapshot"]["notices"]]
            raise SystemExit("\n".join([f"{name} did not stream:", *said]))
        times_s = report["times_s"]
        median = statistics.median(times_s)
        slowest = sorted(range(len(times_s)), key=times_s.__getitem__, reverse=True)
        stamps = report["stamps"]
        slow = [stamps[job] for job in slowest[: max(_SLOWEST, len(times_s) // 100)] if stamps]
        yield Row(
            model=model,
            mode=mode,
            extent_bytes=extent_bytes,
            weight_bytes=report["weight_bytes"],
            resident=share,
            fast_bytes=plan.resident_bytes + plan.ring_extents * extent_bytes,
            streamed_bytes=streamed,
            copy_bytes_per_s=rate,
            compute_s=compute_s,
            compute_worst_s=max(bare["times_s"]),
            jobs=len(times_s),
            job_median_s=median,
            job_p99_s=statistics.quantiles(times_s, n=100, method="inclusive")[-1],
            job_worst_s=max(times_s),
            slowest=[(job, times_s[job]) for job in slowest[:_SLOWEST]],
            ratio=median / max(compute_s, streamed / rate),
            fetched_bytes=report["snapshot"]["fetched_bytes"],
            identical=report["digests"] == bare["digests"],
            stolen_s=stolen_s,
            steps_us=break_down(stamps, watch.seen, lengths, rate) if watch else None,
            slow_steps_us=break_down(slow, watch.seen, lengths, rate) if watch else None,
            bare_steps_us=bare_steps,
        )


def print_steps(row: Row) -> None:
    """What the steps of its jobs took, if that is known."""
    parts = {"slow": row.slow_steps_us or {}, "alone": row.bare_steps_us or {}}
    median = row.steps_us or {}
    for step in median | parts["slow"]:
        line = f"    {step:<34}" + (f"{median[step]:>8.0f} us" if step in median else " " * 11)
        for name, steps in parts.items():
            line += f"{steps[step]:>10.0f} us {name}" if step in steps else " " * 18
        print(line.rstrip(), flush=True)


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["resnet152", "vit-giant", "llama-7b"])
    parser.add_argument("--mode", nargs="+", default=["eager", "graph"])
    parser.add_argument("--share", nargs="+", type=float, default=[0.0, 0.25, 0.5, 1.0])
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--extent-mib", type=int, default=32)
    parser.add_argument("--host-gib", type=int, default=20, help="pinned memory")
    parser.add_argument(
        "--spare", nargs="+", type=int, default=[1], help="slots of the ring beyond a layer's"
    )
    parser.add_argument("--breakdown", action="store_true", help="say what a job's time goes into")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    about = {**describe(), "gpu": torch.cuda.get_device_name()}
    print_head(about)
    print(
        f"{'model':<12}{'mode':<7}{'resident':>9}{'fast':>10}{'streamed':>11}{'copy':>10}"
        f"{'compute':>10}{'worst':>10}{'limit':>10}{'job p50':>10}{'p99':>10}{'worst':>10}"
        f"{'ratio':>8}  outputs"
    )
    kept: list[Row] = []
    plans = list(itertools.product(arguments.share, arguments.spare))
    with agent(arguments.extent_mib << 20, 40 << 30, arguments.host_gib << 30) as (local, admin):
        for model, mode in itertools.product(arguments.model, arguments.mode):
            measured = rows(
                *(local, admin, model, mode, plans, arguments.jobs),
                breakdown=arguments.breakdown,
            )
            for row in measured:
                kept.append(row)
                limit_s = max(row.compute_s, row.streamed_bytes / row.copy_bytes_per_s)
                print(
                    f"{model:<12}{mode:<7}{row.resident:>8.0%}{row.fast_bytes / 2**20:>6.0f} MiB"
                    f"{row.streamed_bytes / 2**20:>7.0f} MiB{row.copy_bytes_per_s / 1e9:>5.1f} GB/s"
                    f"{row.compute_s * 1e3:>7.2f} ms{row.compute_worst_s * 1e3:>7.2f} ms"
                    f"{limit_s * 1e3:>7.2f} ms{row.job_median_s * 1e3:>7.2f} ms"
                    f"{row.job_p99_s * 1e3:>7.2f} ms{row.job_worst_s * 1e3:>7.2f} ms"
                    f"{row.ratio:>8.3f}  {'identical' if row.identical else 'DIFFERENT'}"
                    + (f", fetched {row.fetched_bytes >> 20} MiB" if row.fetched_bytes else ""),
                    flush=True,
                )
                print_steps(row)
                keep(arguments.json, {**about, "rows": [asdict(one) for one in kept]})


if __name__ == "__main__":
    main()
