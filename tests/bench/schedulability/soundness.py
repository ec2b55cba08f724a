"""The part `attacks`: how many runs, by way of scheduling, and how many of them went wrong."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from itertools import count
from typing import Any

from tests.bench.schedulability.attacks import LOADS, Tally, examine

from tierline_operator.admission.preemption import Scheduling

COLUMNS = {
    "sets": "sets",
    "runs": "runs",
    "jobs": "jobs",
    "preemptions": "preemptions",
    "rings_lost": "rings lost",
    "missed_runs": "runs with a miss",
    "failed_runs": "deadlocks",
    "broken_bounds": "responses above their bound",
}


def run(options: argparse.Namespace, about: dict[str, Any]) -> int:
    """Attack until there were enough runs, or the time is over."""
    tallies = {way: Tally() for way in Scheduling}
    begun = time.monotonic()
    for number in count(options.seed):
        for load in LOADS:
            for way, tally in tallies.items():
                tally.add(examine(number, load, way, options.each))
            runs = sum(tally.runs for tally in tallies.values())
            took_s = time.monotonic() - begun
            print(f"{runs} runs, {took_s:.0f} s", file=sys.stderr, flush=True)
            done = runs >= options.runs or took_s > options.seconds
            if done or number % 4 == 0:
                _write(options, about, tallies)
            if done:
                print(table(tallies))
                return 0 if all(tally.sound for tally in tallies.values()) else 1
    raise AssertionError("there are always more sets")


def table(tallies: dict[Scheduling, Tally]) -> str:
    """Markdown: a row for each way of scheduling."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    total = Tally()
    for way, tally in tallies.items():
        total.add(tally)
        lines.append(_row(way.value, tally))
    return "\n".join([*lines, _row("together", total)])


def _row(name: str, tally: Tally) -> str:
    cells = [f"{getattr(tally, field):,}" for field in COLUMNS]
    return f"| {name} | " + " | ".join(cells) + " |"


def _write(
    options: argparse.Namespace, about: dict[str, Any], tallies: dict[Scheduling, Tally]
) -> None:
    report = {**about, "loads": LOADS, "tight": {w.value: asdict(t) for w, t in tallies.items()}}
    path = options.folder / "schedulability-attacks.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
