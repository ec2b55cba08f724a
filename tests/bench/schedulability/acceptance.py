"""The part `curves`: sets by the hundred, tables of the share admitted, and a plot.

Counts are kept, not sets: they follow from the percentages in the JSON, so that a run can go on
from what an earlier one wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from tests.bench.schedulability.curves import LOADS, RATIOS, SCHEMES, Examined, examine
from tests.bench.schedulability.shapes import SOURCES, Source

USUAL_LOADS = tuple(load for load in LOADS if load <= 0.6)
TARGET_RATIO = 2.0
STYLES: Mapping[str, tuple[str, str]] = {
    "resident": ("0.6", ":"),
    "swap": ("tab:red", "-"),
    "swap-partial": ("tab:red", "--"),
    "copy": ("tab:orange", "-"),
    "copy-partial": ("tab:orange", "--"),
    "stream": ("tab:cyan", "-"),
    "layers": ("tab:blue", "--"),
    "rings": ("tab:blue", "-"),
    "possible": ("black", ":"),
}
DIGITS = 3
"""Of a percentage in the JSON: enough to tell the count of up to 50,000 sets."""


@dataclass
class Counted:
    """How many sets each scheme admitted, by utilisation and memory demand."""

    sets: int = 0
    """For each utilisation."""
    admitted: dict[tuple[str, float, float], int] = field(
        default_factory=lambda: {
            (name, load, ratio): 0 for name in SCHEMES for load in LOADS for ratio in RATIOS
        }
    )

    def add(self, examined: Examined) -> None:
        """Count one set."""
        for name in SCHEMES:
            for ratio in RATIOS:
                key = (name, examined.load, ratio)
                self.admitted[key] += examined.admitted(name, ratio)

    def share(self, name: str, loads: Sequence[float], ratio: float) -> float:
        """Percent of the sets of these utilisations."""
        found = sum(self.admitted[name, load, ratio] for load in loads)
        return 100 * found / (len(loads) * self.sets)

    def as_percent(self) -> dict[str, dict[str, dict[str, float]]]:
        """By scheme, utilisation and memory demand."""
        return {
            name: {
                f"{load:g}": {
                    f"{ratio:g}": round(self.share(name, [load], ratio), DIGITS) for ratio in RATIOS
                }
                for load in LOADS
            }
            for name in SCHEMES
        }

    @classmethod
    def of_percent(cls, sets: int, percent: Mapping[str, Any]) -> Counted:
        """What `as_percent` of so many sets came from."""
        counted = cls(sets)
        for name, load, ratio in counted.admitted:
            found = sets * percent[name][f"{load:g}"][f"{ratio:g}"] / 100
            counted.admitted[name, load, ratio] = round(found)
        return counted


def run(options: argparse.Namespace, about: dict[str, Any]) -> int:
    """Examine `--sets` sets for each utilisation, or until the time is over."""
    source = SOURCES[options.shapes](options.folder)
    begun = time.monotonic()
    counted = Counted()
    stem = options.folder / f"schedulability-{options.shapes}"
    if options.resume:
        before = json.loads(stem.with_suffix(".json").read_text())
        counted = Counted.of_percent(before["sets_each"], before["admitted_percent"])
    about = {**about, "shapes": source.about}
    with Pool(options.jobs, _work, (options.shapes, options.folder)) as pool:
        numbers = range(options.seed + counted.sets, options.seed + options.sets)
        for examined in pool.imap(_examined, numbers):
            for one in examined:
                counted.add(one)
            counted.sets += 1
            took_s = time.monotonic() - begun
            print(f"{counted.sets} sets each, {took_s:.0f} s", file=sys.stderr, flush=True)
            if counted.sets % 20 == 0:
                _write(stem, about, counted)
            if took_s > options.seconds:
                break
    _write(stem, about, counted)
    print(tables(counted))
    _plot(stem.with_suffix(".png"), counted)
    return 0


_source: Source
"""Of a process of the pool."""


def _work(shapes: str, folder: Path) -> None:
    global _source  # noqa: PLW0603 - set once, when a process begins
    _source = SOURCES[shapes](folder)


def _examined(number: int) -> list[Examined]:
    """A set of that number for each utilisation."""
    sets = [(load, _source.draw(number, load)) for load in LOADS]
    return [examine(tasks, _source.device_for(tasks, 1.0), load) for load, tasks in sets]


def tables(counted: Counted) -> str:
    """Markdown: by memory demand over the usual utilisations; at the target demand by each."""
    lines = [f"{counted.sets} sets for each utilisation", ""]
    lines += [f"admitted, %, mean over utilisation {USUAL_LOADS[0]} to {USUAL_LOADS[-1]}:", ""]
    lines += _head(["memory demand", *(f"{ratio:g}" for ratio in RATIOS)])
    for name, label in SCHEMES.items():
        cells = [f"{counted.share(name, USUAL_LOADS, ratio):.1f}" for ratio in RATIOS]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", f"admitted, %, at memory demand {TARGET_RATIO:g}:", ""]
    lines += _head(["utilisation", *(f"{load:g}" for load in LOADS)])
    for name, label in SCHEMES.items():
        cells = [f"{counted.share(name, [load], TARGET_RATIO):.0f}" for load in LOADS]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _head(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]


def _write(stem: Path, about: dict[str, Any], counted: Counted) -> None:
    means = {name: round(counted.share(name, USUAL_LOADS, TARGET_RATIO), 2) for name in SCHEMES}
    report = {
        **about,
        "sets_each": counted.sets,
        "mean_at_demand_2_utilisation_to_0.6": means,
        "admitted_percent": counted.as_percent(),
    }
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(tables(counted) + "\n")


def _plot(path: Path, counted: Counted) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and needed at the end only

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    for name, label in SCHEMES.items():
        colour, line = STYLES[name]
        ours = [counted.share(name, USUAL_LOADS, ratio) for ratio in RATIOS]
        left.plot(RATIOS, ours, color=colour, linestyle=line, marker=".", label=label)
        shares = [counted.share(name, [load], TARGET_RATIO) for load in LOADS]
        right.plot(LOADS, shares, color=colour, linestyle=line, marker=".")
    left.set(
        xlabel="memory demand / fast memory",
        ylabel="task sets admitted, %",
        title=f"utilisation {USUAL_LOADS[0]} to {USUAL_LOADS[-1]}",
        ylim=(-2, 102),
    )
    right.set(xlabel="utilisation (computing alone)", title=f"memory demand {TARGET_RATIO:g}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
