"""Shapes of real models on a GPU, and how long their jobs take as planned and as measured.

    python -m tests.gpu.bench.shapes [--models NAME...] [--plans] [--json FILE]

Each model runs as a captured graph in a process of its own, observed by the product's profiler: its
layers in order, their bytes and times, and its workspace. tests.bench.schedulability draws sets
from them. With --plans it runs under an agent with 0 %, 25 %, 50 % and all of its extents resident,
spread, and the smallest ring: 1000 jobs, or as many as --seconds allow. Of each job the agent says
how long it had the device. Held against that:

* *recursion*: planning/jobs/pipeline.py with the profile's mean times and the link's typical rate,
  nothing added: how far is it from the median?
* *planned*: what admission charges a job of it alone, with the margins and overheads of
  `tierline run`: is it ever below the 99.9th percentile (of fewer than 1000 jobs: the worst), and
  how many of all jobs are above it?

All processes import what they need before anything is measured, and wait: during their imports
jobs took up to five times as long. FILE is written after each model. What it holds of other models
stays in it, and a model that it holds is not measured again: a run that was cut short goes on where
it stood. `llama-7b` takes minutes by itself and has to be asked for.
tests.gpu.bench.shapes_plot draws FILE.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.machine import describe, print_head
from tests.gpu.bench.many import task
from tests.gpu.bench.streaming import (
    Progress,
    agent,
    learned,
    observation,
    observing,
    plan_for,
    registered,
    under_agent,
)
from tests.gpu.models import kind
from tests.gpu.paced import Paced

from tierline_api.layout import LayerShape
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.observed import ObservedLayer
from tierline_api.objects.plan import Plan, Tier
from tierline_cli.errors import CommandError
from tierline_cli.local import profiling
from tierline_cli.local.admin_client import AdminClient
from tierline_cli.local.agent import LocalAgent
from tierline_cli.local.place import Place
from tierline_cli.planning import decide
from tierline_client.library import library_path
from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.jobs.pipeline import LinkRate, Pipeline
from tierline_operator.planning.jobs.waits import yields_within_s
from tierline_operator.planning.planner import prepare
from tierline_operator.planning.search.options import Task

SHARES = (0.0, 0.25, 0.5, 1.0)
USUAL = (
    "resnet50",
    "resnet152",
    "efficientnet-b7",
    "convnext-large",
    "swin-large",
    "vit-large",
    "vit-giant",
    "bert-large",
    "t5-large-encoder",
    "whisper-large-encoder",
    "gpt2-xl",
    "llama-3b",
)
_LARGE = frozenset({"llama-7b"})
_HOST_GIB, _LARGE_HOST_GIB = 8, 16
_GIB = 1 << 30
_MODE = "graph"
_PROFILED_JOBS = 30
_MOST_JOBS = 1000
_ROUND = 10
_LONG_S = 100.0
_PATIENCE_S = 10.0
_NO_JOB_YET = 1 << 61
"""After all job records that there can be: the answer says where the next one will be."""
_TOGETHER_BYTES = 24 * _GIB
"""Models under several plans load at once if they take no more; then they are timed in turn."""


@dataclass(frozen=True)
class Row:
    """One model under one plan. Times in seconds."""

    resident: float
    streamed_bytes: int
    ring_extents: int
    jobs: int
    median_s: float
    p999_s: float
    worst_s: float
    program_median_s: float
    """As the program sees it, from the call to the end of the GPU's work."""
    recursion_s: float
    planned_s: float
    above: int
    """Jobs that took longer than planned."""

    @property
    def error(self) -> float:
        """Of the bare recursion, as a share of the median."""
        return self.recursion_s / self.median_s - 1

    @property
    def holds(self) -> bool:
        """What is charged is not below what was measured."""
        return self.planned_s >= self.p999_s


@dataclass(frozen=True)
class Predictor:
    """What planning makes of one model's profile on a node."""

    name: str
    profile: MemProfile
    node: MemNode

    @classmethod
    def after(cls, name: str, seen: profiling.Observation, node: MemNode) -> Predictor:
        """Of a model that was observed."""
        asked = task(name, name, kind(), None, _LONG_S)
        return cls(name, profiling.as_profile(asked, seen, Place(kind()).product()), node)

    def _charged(self) -> Task:
        asked = task(self.name, self.name, kind(), None, _LONG_S)
        demand, capacity = decide.question_of(asked, self.profile, self.node, None)
        prepared = prepare([demand], capacity)
        if isinstance(prepared, Infeasible):
            raise SystemExit(prepared.sentence)
        return prepared[0].tasks[0]

    def yields_within_s(self, plan: Plan) -> float:
        """Seconds from a gate to the next one, as admission charges others for them."""
        charged, resident = self._charged(), frozenset(plan.resident_extents)
        longest_s = max(charged.worst.compute_s)
        waits_s = yields_within_s(charged.worst, resident, plan.ring_extents)
        return max(longest_s, waits_s) + charged.dispatch_s

    def of(self, plan: Plan) -> tuple[float, float]:
        """Seconds of a job: by the bare recursion, and as admission charges it."""
        charged = self._charged()
        demand, resident = charged.demand, frozenset(plan.resident_extents)
        planned_s = charged.worst.total_s(resident, plan.ring_extents) + charged.dispatch_s
        homes = [0] * demand.layout.extent_count
        usual = self._usual_share()
        compute_s = [seconds * usual for seconds in demand.compute_s]
        bare = Pipeline(demand.layout, compute_s, homes, [typical_link(self.node)])
        return bare.total_s(resident, plan.ring_extents), planned_s

    def _usual_share(self) -> float:
        """The profile's mean job over its worst, which is what admission takes."""
        layers = self.profile.spec.layers
        worst_s = sum(layer.compute_time_s for layer in layers)
        return sum(layer.mean_compute_time_s or layer.compute_time_s for layer in layers) / worst_s


def typical_link(node: MemNode) -> LinkRate:
    """From pinned host memory to the first device, as the agent measured it."""
    link = node.read_link(Tier.DRAM, node.status.devices[0].name)
    if link is None:
        raise SystemExit("the agent measured no link from its dram")
    return LinkRate(float(link.typical_bandwidth or link.bandwidth), link.overhead_s)


class Waiting:
    """The processes of one model that wait to be told to load it."""

    def __init__(self, model: str, local: LocalAgent, *, plans: bool) -> None:
        preloaded = {"LD_PRELOAD": str(library_path())}
        environment = preloaded | observing(model, _MODE, _PROFILED_JOBS)
        self.model = model
        self.observed = Paced(model, _MODE, _PROFILED_JOBS, environment, prepared=True)
        self.planned: list[tuple[float, str, Paced]] = []
        for share in SHARES if plans else ():
            name = f"{model}-{round(100 * share)}"
            environment = under_agent(local.task_socket(name)) | learned(model, _MODE)
            process = Paced(model, _MODE, _ROUND, environment, prepared=True)
            self.planned.append((share, name, process))

    def prepared(self) -> None:
        """Wait until they have imported what they need."""
        for process in (self.observed, *(process for *_, process in self.planned)):
            process.prepared()

    def end(self) -> None:
        """End all of them."""
        self.observed.end()
        for *_, process in self.planned:
            process.end()


def profiled(waiting: Waiting) -> profiling.Observation:
    """The model's profile, by itself."""
    waiting.observed.load()
    waiting.observed.ready()
    waiting.observed.round()
    waiting.observed.end()
    return as_observed(observation(waiting.model, _MODE))


def as_observed(seen: dict[str, Any]) -> profiling.Observation:
    """What a program wrote of itself."""
    return profiling.Observation(
        layers=[ObservedLayer(**layer) for layer in seen["layers"]],
        workspace_bytes=seen["workspace_bytes"],
        weights_digest=seen["weights_digest"],
        compute_s=seen["compute_s"],
    )


def as_shape(seen: profiling.Observation) -> dict[str, Any]:
    """As docs/benchmarks/shapes-cpu.json has them."""
    return {
        "compute_s": sum(layer.compute_s for layer in seen.layers),
        "weight_bytes": seen.weights_bytes,
        "workspace_bytes": seen.workspace_bytes,
        "layers": [[one.bytes, round(one.compute_s, 9), one.pinned] for one in seen.layers],
    }


def run_for(process: Paced, seconds: float) -> list[float]:
    """Run jobs for so long, but not more than enough; seconds of each."""
    times: list[float] = []
    until = time.monotonic() + seconds
    while len(times) < _MOST_JOBS and time.monotonic() < until:
        times += process.round()
    return times


def compared(
    waiting: Waiting,
    local: LocalAgent,
    admin: AdminClient,
    seen: profiling.Observation,
    at: Predictor,
    seconds: float,
) -> list[Row]:
    """The model under each plan."""
    extent_bytes = at.node.status.devices[0].extent_bytes
    shapes = [LayerShape(one.bytes, one.pinned, one.arena) for one in seen.layers]
    together = len(SHARES) * seen.weights_bytes <= _TOGETHER_BYTES
    rows = []
    with ExitStack() as running:
        loaded: list[tuple[float, str, Plan, Paced]] = []
        for share, name, process in waiting.planned:
            plan = plan_for(shapes, extent_bytes, share, seen.workspace_bytes)
            running.enter_context(registered(local, admin, name, plan))
            running.callback(process.end)
            process.load()
            loaded.append((share, name, plan, process))
            if not together:
                process.ready()
        if together:
            for *_, process in loaded:
                process.ready()
        for share, name, plan, process in loaded:
            cursor = next_record(admin)
            by_program = run_for(process, seconds)
            jobs = records(admin, cursor, name, len(by_program))
            times = sorted(map(held_s, jobs))
            recursion_s, planned_s = at.of(plan)
            rows.append(
                Row(
                    resident=share,
                    streamed_bytes=max(job["streamed_bytes"] for job in jobs),
                    ring_extents=plan.ring_extents,
                    jobs=len(times),
                    median_s=statistics.median(times),
                    p999_s=times[math.ceil(0.999 * len(times)) - 1],
                    worst_s=times[-1],
                    program_median_s=statistics.median(by_program),
                    recursion_s=recursion_s,
                    planned_s=planned_s,
                    above=sum(seconds > planned_s for seconds in times),
                )
            )
            show(at.name, rows[-1])
    return rows


def next_record(admin: AdminClient) -> int:
    """The cursor of the next job's record."""
    cursor: int = admin.call("jobs", since=_NO_JOB_YET)["cursor"]
    return cursor


def held_s(job: dict[str, Any]) -> float:
    """How long a job had the device, by its record; seconds."""
    return float(job["end_ns"] - job["granted_ns"] - job["parked_ns"]) / 1e9


def records(admin: AdminClient, cursor: int, name: str, count: int) -> list[dict[str, Any]]:
    """The agent's records of the last `count` jobs of a task, once it has them all."""
    patience = time.monotonic() + _PATIENCE_S
    found: list[dict[str, Any]] = []
    while True:
        answer = admin.call("jobs", since=cursor)
        cursor = answer["cursor"]
        found += [job for job in answer["jobs"] if job["task"] == name]
        if len(found) >= count:
            return found[-count:]
        if time.monotonic() > patience:
            tasks = admin.call("snapshot")["snapshot"]["tasks"]
            said = [note["text"] for one in tasks if one["name"] == name for note in one["notices"]]
            raise SystemExit(f"{name}: the agent saw {len(found)} of {count} jobs; {said}")
        time.sleep(0.02)


def show(model: str, row: Row) -> None:
    """Print a line a plan."""
    print(
        f"{model:<22}{row.resident:>9.0%}{row.streamed_bytes / 2**20:>8.0f} MiB{row.jobs:>6}"
        f"{row.median_s * 1e3:>10.3f}{row.p999_s * 1e3:>10.3f}{row.recursion_s * 1e3:>11.3f}"
        f"{row.error:>8.1%}{row.planned_s * 1e3:>10.3f}{row.above:>7}"
        f"  {'holds' if row.holds else 'BELOW what was measured'}",
        flush=True,
    )


def summary(plans: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Over all models and plans."""
    fields = Row.__dataclass_fields__
    rows = [
        Row(**{name: row[name] for name in fields}) for found in plans.values() for row in found
    ]
    if not rows:
        return {}
    return {
        "models": len(plans),
        "plans": len(rows),
        "median_error": statistics.median(abs(row.error) for row in rows),
        "worst_error": max((row.error for row in rows), key=abs),
        "plans_of_1000_jobs": sum(row.jobs >= _MOST_JOBS for row in rows),
        "planned_below_p999": sum(not row.holds for row in rows),
        "jobs": sum(row.jobs for row in rows),
        "jobs_above_planned": sum(row.above for row in rows),
        "median_planned_over_p999": statistics.median(row.planned_s / row.p999_s for row in rows),
    }


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(USUAL))
    parser.add_argument("--plans", action="store_true", help="run each under four plans, too")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each plan, at most")
    parser.add_argument("--extent-mib", type=int, default=32)
    parser.add_argument("--fast-gib", type=int, default=40, help="of the GPU's memory")
    parser.add_argument("--host-gib", type=int, help="pinned memory")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    about = {**describe(), "gpu": Place(kind()).product()}
    print_head(about)
    kept: dict[str, Any] = {"shapes": {}, "plans": {}}
    if arguments.json is not None and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())
    failed: list[str] = []
    tell = Progress()
    tell("starting the agent")
    extent_bytes = arguments.extent_mib << 20
    large = not _LARGE.isdisjoint(arguments.models)
    host_gib = arguments.host_gib or (_LARGE_HOST_GIB if large else _HOST_GIB)
    have = kept["plans"] if arguments.plans else kept["shapes"]
    models = [model for model in arguments.models if model not in have]
    with ExitStack() as ending:
        local, admin = ending.enter_context(
            agent(extent_bytes, arguments.fast_gib * _GIB, host_gib * _GIB)
        )
        node = MemNode.from_api(admin.call("node")["node"])
        link = asdict(typical_link(node))

        def start(model: str) -> Waiting:
            waiting = Waiting(model, local, plans=arguments.plans)
            ending.callback(waiting.end)
            return waiting

        print(
            f"{'times in ms':<22}{'resident':>9}{'streamed':>12}{'jobs':>6}{'median':>10}"
            f"{'p99.9':>10}{'recursion':>11}{'error':>8}{'planned':>10}{'above':>7}",
            flush=True,
        )
        tell("imports")
        upcoming = [start(model) for model in models]
        for waiting in upcoming:
            waiting.prepared()
        for waiting in upcoming:
            model = waiting.model
            try:
                tell(f"{model}: profiled")
                seen = profiled(waiting)
                kept["shapes"][model] = as_shape(seen)
                print(
                    f"{model:<22}{seen.weights_bytes / 2**20:>6.0f} MiB in {len(seen.layers)}"
                    f" layers, {sum(one.compute_s for one in seen.layers) * 1e3:.3f} ms",
                    flush=True,
                )
                if arguments.plans:
                    tell(f"{model}: under {len(SHARES)} plans")
                    at = Predictor.after(model, seen, node)
                    rows = compared(waiting, local, admin, seen, at, arguments.seconds)
                    kept["plans"][model] = [{**asdict(row), "error": row.error} for row in rows]
            except (SystemExit, CommandError, OSError, ValueError) as ended:
                failed.append(f"{model}: {ended}")
                tell(failed[-1])
            waiting.end()
            kept = {
                **about,
                "measured": f"captured graph, worst of {_PROFILED_JOBS} jobs",
                "extent_bytes": extent_bytes,
                "link": link,
                "summary": summary(kept["plans"]),
                "shapes": kept["shapes"],
                "plans": kept["plans"],
            }
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(kept) + "\n")
    print(json.dumps(kept.get("summary", {}), indent=1))
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
