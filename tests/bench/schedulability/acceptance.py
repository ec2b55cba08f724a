"""The part `curves`: sets by the hundred, tables of the share admitted, and a plot."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.schedulability.curves import LOADS, RATIOS, SCHEMES, Examined, examine, share
from tests.bench.schedulability.shapes import SOURCES

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


def run(options: argparse.Namespace, about: dict[str, Any]) -> int:
    """Examine `--sets` sets for each utilisation, or until the time is over."""
    source = SOURCES[options.shapes](options.folder)
    begun = time.monotonic()
    seen: list[Examined] = []
    for number in range(options.seed, options.seed + options.sets):
        for load in LOADS:
            tasks = source.draw(number, load)
            seen.append(examine(tasks, source.device_for(tasks, 1.0), load))
        took_s = time.monotonic() - begun
        each = number - options.seed + 1
        print(f"{each} sets each, {took_s:.0f} s", file=sys.stderr, flush=True)
        over = took_s > options.seconds
        if over or each % 20 == 0 or each == options.sets:
            _write(options, {**about, "shapes": source.about, "sets_each": each}, seen)
        if over:
            break
    print(tables(seen))
    return 0


def tables(seen: Sequence[Examined]) -> str:
    """Markdown: by memory demand over the usual utilisations; at the target demand by each."""
    usual = [one for one in seen if one.load in USUAL_LOADS]
    names = list(SCHEMES)
    lines = [f"{len(seen) // len(LOADS)} sets for each utilisation", ""]
    lines += [f"admitted, %, mean over utilisation {USUAL_LOADS[0]} to {USUAL_LOADS[-1]}:", ""]
    lines += _head(["memory demand", *(f"{ratio:g}" for ratio in RATIOS)])
    for name in names:
        cells = [f"{share(usual, name, ratio):.1f}" for ratio in RATIOS]
        lines.append(f"| {SCHEMES[name]} | " + " | ".join(cells) + " |")
    lines += ["", f"admitted, %, at memory demand {TARGET_RATIO:g}:", ""]
    lines += _head(["utilisation", *(f"{load:g}" for load in LOADS)])
    for name in names:
        by_load = [[one for one in seen if one.load == load] for load in LOADS]
        cells = [f"{share(inside, name, TARGET_RATIO):.0f}" for inside in by_load]
        lines.append(f"| {SCHEMES[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _head(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]


def _write(options: argparse.Namespace, about: dict[str, Any], seen: Sequence[Examined]) -> None:
    stem = options.folder / f"schedulability-{options.shapes}"
    shares = {
        name: {
            f"{load:g}": {
                f"{ratio:g}": round(share([e for e in seen if e.load == load], name, ratio), 2)
                for ratio in RATIOS
            }
            for load in LOADS
        }
        for name in SCHEMES
    }
    usual = [one for one in seen if one.load in USUAL_LOADS]
    at_target = {name: round(share(usual, name, TARGET_RATIO), 2) for name in SCHEMES}
    report = {**about, "mean_at_demand_2_utilisation_to_0.6": at_target, "admitted_percent": shares}
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(tables(seen) + "\n")
    _plot(stem.with_suffix(".png"), seen)


def _plot(path: Any, seen: Sequence[Examined]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and needed at the end only

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    usual = [one for one in seen if one.load in USUAL_LOADS]
    by_load = {load: [one for one in seen if one.load == load] for load in LOADS}
    for name, label in SCHEMES.items():
        colour, line = STYLES[name]
        ours = [share(usual, name, ratio) for ratio in RATIOS]
        left.plot(RATIOS, ours, color=colour, linestyle=line, marker=".", label=label)
        shares = [share(by_load[load], name, TARGET_RATIO) for load in LOADS]
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
