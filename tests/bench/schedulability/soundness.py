"""The part `attacks`: runs by kind of device and way of scheduling, and how many went wrong."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from itertools import count, product
from typing import Any

from tests.bench.schedulability.attacks import DEVICES, LOADS, Tally, examine

from tierline_api.devices.device import DeviceKind
from tierline_operator.admission.preemption import Scheduling

NAME = "schedulability-attacks.json"
Tallies = dict[tuple[DeviceKind, Scheduling], Tally]
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
    tallies: Tallies = {key: Tally() for key in product(sorted(set(DEVICES)), Scheduling)}
    first = 0
    if options.resume:
        before = json.loads(path.read_text())
        tallies = {(kind, way): Tally(**before["tight"][kind][way]) for kind, way in tallies}
        first = before["drawn"]
    begun = time.monotonic()
    for drawn in count(first):
        number, load = options.seed + drawn // len(LOADS), LOADS[drawn % len(LOADS)]
        for way in Scheduling:
            kind = DEVICES[number % len(DEVICES)]
            tallies[kind, way].add(examine(number, load, way, options.each))
        runs = sum(tally.runs for tally in tallies.values())
        took_s = time.monotonic() - begun
        print(f"{runs} runs, {took_s:.0f} s", file=sys.stderr, flush=True)
        tight: dict[str, dict[str, Any]] = {kind.value: {} for kind, _ in tallies}
        for (kind, way), tally in tallies.items():
            tight[kind][way] = asdict(tally)
        report = {**about, "loads": LOADS, "drawn": drawn + 1, "runs": runs, "tight": tight}
        path.write_text(json.dumps(report, indent=1) + "\n")
        if runs >= options.runs or took_s > options.seconds:
            break
    print(table(tallies))
    return 0 if all(tally.sound for tally in tallies.values()) else 1


def table(tallies: Tallies) -> str:
    """Markdown: a row for each kind of device and way of scheduling."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    total = Tally()
    for (kind, way), tally in tallies.items():
        total.add(tally)
        lines.append(_row(f"`{kind}`, {way}", tally))
    return "\n".join([*lines, _row("together", total)])


def _row(name: str, tally: Tally) -> str:
    cells = [f"{getattr(tally, field):,}" for field in COLUMNS]
    return f"| {name} | " + " | ".join(cells) + " |"
