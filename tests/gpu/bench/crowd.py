"""Twelve tasks of the kinds that people run (tests/crowd), on one GPU for two minutes.

    python -m tests.gpu.bench.crowd [--duration S] [--unit-ms MS] [--fast-memory SIZE] [--json FILE]

Two run two models a release, one generates sixteen tokens, one crashes every few seconds, one asks
far more often than its period allows. A line for each says what was proven and what was seen; then
comes whatever did not hold, also by the programs' own logs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.machine import describe, keep, print_head
from tests.crowd.tasks import command, shortfalls


def main() -> int:
    """Run them, print a table, keep it as JSON; 4 if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=120.0, help="seconds")
    parser.add_argument("--unit-ms", type=int, default=100, help="periods are 3 to 12 of them")
    parser.add_argument("--fast-memory", default="1536Mi")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about: dict[str, Any] = describe()
    print_head(about)
    with tempfile.TemporaryDirectory(prefix="crowd-") as name:
        folder = Path(name)
        run = command(
            arguments.device, arguments.unit_ms, arguments.fast_memory, arguments.duration, folder
        )
        done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=False)
        report = json.loads(done.stdout)
        found = list(shortfalls(report, folder)) if "tasks" in report else ["not admitted"]
    print(f"{'task':<12}{'period':>9}{'jobs':>7}{'misses':>8}{'worst':>11}{'proven':>11}")
    for task in report.get("tasks", ()):
        print(
            f"{task['name']:<12}{task['period_s'] * 1e3:>6.0f} ms{task['jobs']:>7}"
            f"{task['misses']:>8}{task['response_worst_s'] * 1e3:>8.1f} ms"
            f"{task['predicted_worst_s'] * 1e3:>8.1f} ms"
        )
    print("\n".join(found) or "all held")
    keep(arguments.json, {**about, "did not hold": found, "report": report})
    return 4 if found or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
