"""How long a verdict takes on one device with hundreds of tasks, admitted or refused.

    python -m tests.bench.refusals [--counts 100,200,500] [--seeds 1] [--soft 0.5] [--json FILE]

Sets of several families (tests/simulation/crowds.py), each at several loads and demands for memory,
are asked as the operator asks them. Who takes longer than the limit is ended there, and counts with
the limit. Then one more task is asked for on devices that are full of admitted ones, and its
refusal too. Processor time, as a busy machine would tell of other work.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import FrameType

from tests.bench.machine import describe, keep, print_head
from tests.simulation.crowds import CROWDS, crowd, crowded, softened

from tierline_operator.planning.answer import Infeasible
from tierline_operator.planning.incremental import ProvenSet, admit, settle
from tierline_operator.planning.planner import plan

LOADS = (0.1, 0.4, 0.7, 0.95, 1.1)
RATIOS = (1.2, 2.0, 4.0)
MORE = 20
"""How many more tasks are asked for on a full device."""


@dataclass(frozen=True)
class Asked:
    """One question."""

    family: str
    count: int
    load: float
    ratio: float
    seed: int
    soft: float
    """Which share of the tasks is Soft."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside when so much processor time is gone."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def ask(asked: Asked, limit_s: float) -> tuple[str, float]:
    """The verdict, or that there was none, and the processor seconds that it took."""
    tasks = softened(
        crowd(asked.family, asked.seed, asked.count, asked.load), asked.soft, asked.seed
    )
    device = crowded(tasks, asked.ratio)
    begun = time.process_time()
    try:
        with ended_after(limit_s):
            answer = plan(tasks, device)
    except TimeoutError:
        return "none in time", limit_s
    took_s = time.process_time() - begun
    return ("admitted" if answer.ok else getattr(answer, "reason", "")), took_s


def one_more(
    family: str, count: int, seed: int, limit_s: float, soft: float
) -> dict[str, list[float]]:
    """How long one more task takes in addition to `count` admitted ones, by what was said of it."""
    tasks = softened(crowd(family, seed, count, 0.2), soft, seed)
    device = crowded(tasks, 1.5)
    took: dict[str, list[float]] = {}
    try:
        with ended_after(limit_s):
            now = settle(tasks, device)
    except TimeoutError:
        return took
    if isinstance(now, Infeasible):
        return took
    more = crowd(family, seed + 1000, MORE, 0.02)
    for number, drawn in enumerate(more):
        # Every second one cannot be admitted, whatever else runs.
        hopeless = number % 2 == 1
        times = (drawn.deadline_s,) if hopeless else drawn.compute_s
        asked = replace(drawn, name=f"more-{number}")
        if hopeless:
            scale = times[0] * 1.01 / sum(drawn.compute_s)
            asked = replace(asked, compute_s=tuple(s * scale for s in drawn.compute_s))
        begun = time.process_time()
        try:
            with ended_after(limit_s):
                after = admit(now, asked)
        except TimeoutError:
            took.setdefault("none in time", []).append(limit_s)
            continue
        said = "refused" if isinstance(after, Infeasible) else "admitted"
        took.setdefault(said, []).append(time.process_time() - begun)
        if isinstance(after, ProvenSet):
            now = after
    return took


def main() -> int:
    """Ask, and print."""
    options = _options()
    about = describe()
    print_head(about)
    counts = [int(count) for count in options.counts.split(",")]
    families = options.families.split(",") if options.families else list(CROWDS)
    figures: dict[str, dict[str, list[float]]] = {}
    for count, family in product(counts, families):
        row = figures.setdefault(f"{count} {family}", {})
        for load, ratio, seed in product(LOADS, RATIOS, range(1, options.seeds + 1)):
            said, took_s = ask(Asked(family, count, load, ratio, seed, options.soft), options.limit)
            row.setdefault(said, []).append(took_s)
            if options.each:
                print(f"  {count} {family} {load:g} {ratio:g} {seed}: {said} {took_s:.2f} s")
        _print(f"{count} {family}", row)
        if not options.skip_more:
            more = {
                f"one more, {k}": v
                for k, v in one_more(family, count, 1, options.limit, options.soft).items()
            }
            _print(f"{count} {family}", more)
            row.update(more)
        keep(options.json, {**about, "seconds": figures})
    return 0


def _print(name: str, row: dict[str, list[float]]) -> None:
    for said, took in sorted(row.items()):
        print(
            f"{name:<20} {said:<22} {len(took):>3} of them, seconds: median"
            f" {statistics.median(took):7.3f}, least {min(took):7.3f}, worst {max(took):7.3f}",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.refusals", description=__doc__)
    parser.add_argument("--counts", default="100,200,500", help="tasks on the device")
    parser.add_argument("--families", default="", help=f"of {', '.join(CROWDS)}; all by default")
    parser.add_argument("--seeds", type=int, default=1, help="sets for each load and demand")
    parser.add_argument("--soft", type=float, default=0.0, help="share of Soft tasks, with means")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one answer")
    parser.add_argument("--each", action="store_true", help="print every answer")
    parser.add_argument("--skip-more", action="store_true", help="leave out one more task")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
