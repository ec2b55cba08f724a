"""Admission on random task sets: is it sound, how much does it admit, how pessimistic is it?

    python -m tests.bench.admission [--sets 1000] [--json FILE] [--plot FILE.png]

Every set is planned at every memory ratio. Plans of admitted sets are attacked in the two-engine
simulation (all tasks at once, each task as blocker an instant before, aligned to the critical time,
held back until another job has just been dispatched, random sporadic arrivals; jobs in full and
shortened): a single miss is an unsound test. The nearest plans of refused sets are attacked too,
first with the witness the verdict names: those that survive are the test's pessimism. Sets, and so
the table, depend only on --seed; the time depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tests.simulation.attack import attack, sim_tasks, witness
from tests.simulation.tasksets import device_for, random_set

from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.planner import plan

LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
RATIOS = (1.0, 1.5, 2.0, 3.0, 4.0)
CRITICAL_WINDOWS = 3


@dataclass(frozen=True)
class Cell:
    """Compute utilisation, and memory demand over capacity."""

    load: float
    ratio: float


@dataclass(frozen=True)
class Examined:
    """What became of one set."""

    cell: Cell
    seed: int
    admitted: bool
    reason: str
    plan_s: float
    hopeless: bool = False
    """Refused although memory were unlimited."""
    runs: int = 0
    jobs: int = 0
    missed_runs: int = 0
    latest_s: float = -math.inf
    simulated_refusal: bool = False
    held_in_simulation: bool = False


def examine(cell: Cell, seed: int) -> Examined:
    """Draw, plan and attack one set; the set depends on load and seed, not on the ratio."""
    rng = np.random.default_rng((seed, round(cell.load * 100)))
    tasks = random_set(rng, cell.load)
    device = device_for(tasks, cell.ratio)
    begun = time.perf_counter()
    answer = plan(tasks, device)
    plan_s = time.perf_counter() - begun
    windows = sorted({task.deadline_s for task in tasks})[:CRITICAL_WINDOWS]
    if isinstance(answer, Admitted):
        sims = sim_tasks(tasks, answer.plans, device, rng)
        seen = attack(sims, [answer.critical_time_s, *windows], rng)
        return Examined(
            cell,
            seed,
            True,
            "",
            plan_s,
            runs=seen.runs,
            jobs=seen.jobs,
            missed_runs=seen.missed_runs,
            latest_s=seen.latest_s,
        )
    hopeless = answer.kind == "deadline" and answer.missing_bytes is None
    late = answer.shortfall_s is not None and math.isfinite(answer.shortfall_s)
    if not answer.nearest or not late or answer.critical_time_s is None:
        # Without a plan that fits, or beyond full utilisation, there is nothing to simulate.
        return Examined(cell, seed, False, answer.reason, plan_s, hopeless)
    sims = sim_tasks(tasks, answer.nearest, device, rng)
    names = [task.name for task in tasks]
    blocker = None if answer.blocker is None else names.index(answer.blocker)
    shown = witness(sims, blocker, answer.critical_time_s)
    held, runs, jobs = shown.misses == 0, 1, shown.jobs
    if held:
        tried = attack(sims, [answer.critical_time_s, *windows], rng)
        held, runs, jobs = tried.missed_runs == 0, runs + tried.runs, jobs + tried.jobs
    return Examined(
        cell,
        seed,
        False,
        answer.reason,
        plan_s,
        hopeless,
        runs,
        jobs,
        simulated_refusal=True,
        held_in_simulation=held,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit 1 if an admitted set missed."""
    options = _options(arguments)
    work = [
        (LOADS[number % len(LOADS)], options.seed + number // len(LOADS))
        for number in range(options.sets)
    ]
    begun = time.perf_counter()
    results = _run(work, options.processes)
    took_s = time.perf_counter() - begun
    report = _report(results, took_s, options)
    _print(report, results)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        _plot(results, options.plot)
    return 1 if report["missed_runs"] else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.admission", description=__doc__)
    parser.add_argument("--sets", type=int, default=1000, help="task sets, over all cells")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw the share admitted here (PNG)")
    return parser.parse_args(arguments)


def _run(work: Sequence[tuple[float, int]], processes: int) -> list[Examined]:
    results: list[Examined] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        for count, done in enumerate(pool.imap_unordered(_examine, work, chunksize=2), start=1):
            results += done
            if sys.stderr.isatty() or count % 100 == 0 or count == len(work):
                end = "\r" if sys.stderr.isatty() and count < len(work) else "\n"
                print(f"{count} of {len(work)} sets", end=end, file=sys.stderr, flush=True)
    return sorted(results, key=lambda r: (r.cell.load, r.cell.ratio, r.seed))


def _examine(job: tuple[float, int]) -> list[Examined]:
    load, seed = job
    return [examine(Cell(load, ratio), seed) for ratio in RATIOS]


def _report(
    results: Sequence[Examined], took_s: float, options: argparse.Namespace
) -> dict[str, object]:
    refused = [r for r in results if not r.admitted]
    simulated = [r for r in refused if r.simulated_refusal]
    reasons = sorted({r.reason for r in refused})
    times = sorted(r.plan_s for r in results)
    return {
        "command": f"python -m tests.bench.admission --sets {options.sets} --seed {options.seed}",
        "machine": _machine(),
        "seconds": round(took_s, 1),
        "cpu_seconds": round(_cpu_s(), 1),
        "sets": options.sets,
        "memory_ratios": RATIOS,
        "plans": len(results),
        "admitted": len(results) - len(refused),
        "runs": sum(r.runs for r in results if r.admitted),
        "jobs": sum(r.jobs for r in results if r.admitted),
        "missed_runs": sum(r.missed_runs for r in results),
        "least_slack_s": -max((r.latest_s for r in results if r.admitted), default=-math.inf),
        "refused": len(refused),
        "refused_by_reason": {name: sum(r.reason == name for r in refused) for name in reasons},
        "refused_at_any_memory": sum(r.hopeless for r in refused),
        "refused_simulated": len(simulated),
        "refused_held_in_simulation": sum(r.held_in_simulation for r in simulated),
        "plan_s_median": times[len(times) // 2],
        "plan_s_worst": times[-1],
        "cells": [
            {
                **asdict(cell),
                "sets": len(inside),
                "admitted": sum(r.admitted for r in inside),
                "missed_runs": sum(r.missed_runs for r in inside),
                "refused_at_any_memory": sum(r.hopeless for r in inside),
                "refused_simulated": sum(r.simulated_refusal for r in inside),
                "refused_held_in_simulation": sum(r.held_in_simulation for r in inside),
            }
            for cell, inside in _by_cell(results).items()
        ],
    }


def _by_cell(results: Sequence[Examined]) -> dict[Cell, list[Examined]]:
    cells: dict[Cell, list[Examined]] = {}
    for result in results:
        cells.setdefault(result.cell, []).append(result)
    return cells


def _machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    return f"{model}, {multiprocessing.cpu_count()} cores, Python {platform.python_version()}"


def _cpu_s() -> float:
    """Processor time of this process and its workers: what other work on the machine leaves."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _print(report: dict[str, object], results: Sequence[Examined]) -> None:
    cells = _by_cell(results)
    ratios = sorted({cell.ratio for cell in cells})
    print(
        f"{report['command']}\n{report['machine']},"
        f" {report['seconds']} s ({report['cpu_seconds']} s of processor time)\n"
    )
    print("admitted, % of sets (in brackets: refused, but no attack breaks the nearest plan)\n")
    heads = ["utilisation", *(f"memory x {ratio:g}" for ratio in ratios), "any memory"]
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    for load in sorted({cell.load for cell in cells}):
        row = [f"{load:g}"]
        for ratio in ratios:
            inside = cells[Cell(load, ratio)]
            held = sum(r.held_in_simulation for r in inside)
            row.append(f"{_share(inside):.0f} ({held})")
        possible = [r for r in cells[Cell(load, ratios[-1])] if not r.hopeless]
        row.append(f"{100 * len(possible) / len(inside):.0f}")
        print("| " + " | ".join(row) + " |")
    print(
        f"\n{report['admitted']} of {report['plans']} admitted; {report['missed_runs']} of"
        f" {report['runs']} attacks on them ({report['jobs']} jobs) missed a deadline\n"
        f"{report['refused']} refused ({report['refused_by_reason']}), of which"
        f" {report['refused_at_any_memory']} at any memory size:"
        f" {report['refused_held_in_simulation']} of the {report['refused_simulated']} whose"
        f" nearest plan can be simulated held\n"
        f"planning: median {1e3 * float(str(report['plan_s_median'])):.0f} ms,"
        f" worst {1e3 * float(str(report['plan_s_worst'])):.0f} ms"
    )


def _share(results: Sequence[Examined]) -> float:
    return 100 * sum(r.admitted for r in results) / len(results)


def _plot(results: Sequence[Examined], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only this option needs it, and it is slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    cells = _by_cell(results)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    ratios = sorted({cell.ratio for cell in cells})
    for load in sorted({cell.load for cell in cells}):
        shares = [_share(cells[Cell(load, ratio)]) for ratio in ratios]
        axes.plot(ratios, shares, marker="o", label=f"{load:g}")
    axes.set(
        xlabel="memory demand / capacity",
        ylabel="task sets admitted, %",
        ylim=(0, 102),
        title="Random task sets, streamed weights, non-preemptive EDF",
    )
    figure.legend(title="compute\nutilisation", loc="outside right upper")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
