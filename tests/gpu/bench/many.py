"""Many tasks on one GPU, at the shortest periods that admission proves: every job is counted.

    python -m tests.gpu.bench.many [--copies N] [--duration S] [--fast-gib F] [--json FILE]

Each model is profiled once and runs as `copies` tasks, each a process of its own. Their weights
have `fast-gib` together; their workspaces come on top. All have the same period, the smallest, to
one percent, at which `tierline run`'s own admission test passes. Then the tasks run for `duration`
seconds as `tierline run` runs them: misses, the worst response against the proven one, and every
output against that of the model alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.machine import describe, print_head

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.fast_memory import OVERLAY, Workspace, charge
from tierline_api.manifests.files import Manifests
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memtask import MemTask
from tierline_cli.errors import CommandError
from tierline_cli.local.run import LocalRun, RunOptions
from tierline_cli.planning import decide
from tierline_cli.reporting.results import TaskResult
from tierline_cli.reporting.verdicts import Outputs, Verdict
from tierline_operator.planning.answer import Admitted

_GIB = 1 << 30
_NAMESPACE = "many"
_LONGEST_S = 1000.0
_WATCH_S = 5.0


def task(name: str, model: str, kind: str, profile: str | None, period_s: float) -> MemTask:
    """A MemTask that runs `tests.gpu.periodic MODEL`, as a manifest would say it."""
    execution = {"execution": "CapturedGraph"} if kind == "cuda" else {}
    container = {
        "name": "task",
        "image": "tests",
        "command": [sys.executable, "-m", "tests.gpu.periodic", model],
    }
    return MemTask.from_api(
        {
            "apiVersion": "tierline.io/v1alpha1",
            "kind": "MemTask",
            "metadata": {"name": name, "namespace": _NAMESPACE},
            "spec": {
                "realtime": {"period": f"{round(period_s * 1e6)}us"},
                "memory": {"budget": "16Gi"},
                "swap": {"tiers": ["dram"]},
                "device": {"kind": kind, **execution},
                **({"profile": profile} if profile else {}),
                "template": {"spec": {"containers": [container]}},
            },
        }
    )


def measured(models: Sequence[str], kind: str, options: RunOptions) -> LocalRun:
    """A run of one task a model that has taken their profiles and outputs; not started."""
    tasks = tuple(task(model, model, kind, None, _LONGEST_S) for model in models)
    run = LocalRun(Manifests(tasks=tasks), options)
    run.measured.take(options.profile_jobs, lambda *_: None, print)
    return run


def tightest(
    run: LocalRun, node: MemNode, names: Mapping[str, str], kind: str
) -> tuple[MemTask, ...]:
    """The tasks at the shortest common period that is admitted.

    `names` gives each task its model.
    """
    margin = run.options.margin

    def tasks_at(period_s: float) -> tuple[MemTask, ...]:
        return tuple(task(name, model, kind, model, period_s) for name, model in names.items())

    low, high = 0.0, 1.0
    while not isinstance(
        answer := decide.decide(tasks_at(high), run.measured.profiles, node, margin), Admitted
    ):
        low, high = high, high * 2
        if high > _LONGEST_S:
            raise CommandError(f"not even long periods are admitted: {answer.sentence}")
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        answer = decide.decide(tasks_at(middle), run.measured.profiles, node, margin)
        if isinstance(answer, Admitted):
            high = middle
        else:
            low = middle
    return tasks_at(high)


def show(results: Sequence[TaskResult], outputs: Mapping[str, Outputs], duration_s: float) -> None:
    """Print a line a task."""
    print(
        f"{'task':<16}{'period':>10}{'jobs':>7}{'misses':>8}{'p50':>10}{'p99':>10}{'worst':>10}"
        f"{'proven':>10}{'streamed a job':>17}  outputs"
    )
    for one in results:
        proven = f"{one.predicted_worst_s * 1e3:.1f}" if one.predicted_worst_s else "-"
        print(
            f"{one.name:<16}{one.period_s * 1e3:>7.1f} ms{one.jobs:>7}{one.misses:>8}"
            f"{one.response_p50_s * 1e3:>7.1f} ms{one.response_p99_s * 1e3:>7.1f} ms"
            f"{one.response_worst_s * 1e3:>7.1f} ms{proven:>7} ms"
            f"{one.streamed_bytes_per_job / 2**20:>13.0f} MiB"
            f"  {outputs[one.name].verdict}"
        )
    moved = sum(one.streamed_bytes_per_job * one.jobs for one in results)
    print(f"streamed {moved / 2**30:.1f} GiB, {moved / duration_s / 1e9:.1f} GB/s on average")


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["resnet152", "llama-small", "vit-giant"])
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--duration", type=float, default=120.0, help="seconds")
    parser.add_argument("--fast-gib", type=float, default=3.0)
    parser.add_argument("--extent-mib", type=int, default=16)
    parser.add_argument("--margin", type=float, help="as planned for the kind if left out")
    parser.add_argument("--kind", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    options = RunOptions(
        fast_bytes=round(arguments.fast_gib * _GIB),
        tier_paths={},
        extent_bytes=arguments.extent_mib << 20,
        metrics_port=None,
        profile_jobs=12,
        margin=arguments.margin,
    )
    names = {
        f"{model}-{copy}": model for model in arguments.model for copy in range(arguments.copies)
    }
    with measured(arguments.model, arguments.kind, options) as alone:
        about: dict[str, Any] = {**describe(), "device": alone.place.product()}
        print_head(about)
        profiles = tuple(alone.measured.profiles.values())
        workspaces = charge(
            (
                Workspace(_NAMESPACE, alone.measured.profiles[model].spec.workspace_bytes, False)
                for model in names.values()
            ),
            arguments.extent_mib << 20,
            overlay=OVERLAY[DeviceKind(arguments.kind)],
        ).total_bytes
        options = replace(options, fast_bytes=options.fast_bytes + workspaces)
        tasks = tuple(
            task(name, model, arguments.kind, model, _LONGEST_S) for name, model in names.items()
        )
        with LocalRun(Manifests(tasks=tasks, profiles=profiles), options) as run:
            run.measured.take(options.profile_jobs, lambda *_: None, print)
            for name, model in names.items():
                run.measured.references[name] = alone.measured.references[model]
                run.measured.compute_only_s[name] = alone.measured.compute_only_s[model]
            node = run.start_agent()
            run.tasks = tightest(run, node, names, arguments.kind)
            answer = run.admit(node)
            if not isinstance(answer, Admitted):
                raise CommandError("what was admitted a moment ago no longer is")
            weights = run.measured.weights_bytes
            print(
                f"{len(tasks)} tasks, {weights / _GIB:.1f} GiB of weights in"
                f" {arguments.fast_gib:.1f} GiB of fast memory"
                f" ({weights / (arguments.fast_gib * _GIB):.1f} times), workspaces of"
                f" {workspaces / 2**20:.0f} MiB in addition to them;"
                f" {decide.slack_sentence(answer)}",
                flush=True,
            )
            run.load(lambda _: None, print)
            for _ in run.release(arguments.duration).watch(_WATCH_S):
                pass
            snapshot = run.finish()
            run.compare(lambda *_: None, print)
            results, outputs = run.results(final=True), run.outputs()
    show(results, outputs, arguments.duration)
    if arguments.json is not None:
        kept = {
            **about,
            "fast_bytes": options.fast_bytes,
            "workspace_bytes": workspaces,
            "weight_bytes": weights,
            "duration_s": arguments.duration,
            "utilisation": answer.utilisation,
            "links": snapshot["links"],
            "tasks": [{**one.as_json(), "outputs": outputs[one.name].as_json()} for one in results],
        }
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    wrong = any(one.verdict is not Verdict.IDENTICAL for one in outputs.values())
    if wrong or any(one.misses for one in results):
        raise SystemExit(4)


if __name__ == "__main__":
    main()
