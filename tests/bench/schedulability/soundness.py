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

NAME = "schedulability-attacks.json"
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
    """Attack until there were enough runs or time is over; `--resume` goes on from the JSON."""
    path = options.folder / NAME
    tallies, first = {way: Tally() for way in Scheduling}, 0
    if options.resume:
        before = json.loads(path.read_text())
        tallies = {way: Tally(**before["tight"][way.value]) for way in Scheduling}
        first = before["drawn"]
    begun = time.monotonic()
    for drawn in count(first):
        number, load = options.seed + drawn // len(LOADS), LOADS[drawn % len(LOADS)]
        for way, tally in tallies.items():
            tally.add(examine(number, load, way, options.each))
        runs = sum(tally.runs for tally in tallies.values())
        took_s = time.monotonic() - begun
        print(f"{runs} runs, {took_s:.0f} s", file=sys.stderr, flush=True)
        tight = {way.value: asdict(tally) for way, tally in tallies.items()}
        report = {**about, "loads": LOADS, "drawn": drawn + 1, "runs": runs, "tight": tight}
        path.write_text(json.dumps(report, indent=1) + "\n")
        if runs >= options.runs or took_s > options.seconds:
            break
    print(table(tallies))
    return 0 if all(tally.sound for tally in tallies.values()) else 1


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
