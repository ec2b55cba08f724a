"""The figures of docs/benchmarks/schedulability.md, part by part.

    python -m tests.bench.schedulability attacks [--runs 1000000] [--resume]
    python -m tests.bench.schedulability curves [--sets 400] [--shapes NAME] [--jobs N] [--resume]
    python -m tests.bench.schedulability growth
    python -m tests.bench.schedulability optimum [--sets 210]

Each part prints the machine, the command and its table, and writes JSON and plots to --folder
while it goes on, so what an interrupted run has found is not lost. Exit status 1: a proof is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tests.bench.machine import describe, print_head
from tests.bench.schedulability.shapes import SOURCES

PARTS = {
    "attacks": "soundness",
    "curves": "acceptance",
    "growth": "growth",
    "optimum": "optimum",
}
"""The module of each part: what one needs to be installed, the others do without."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part."""
    options = _options(arguments)
    about = describe()
    print_head(about)
    options.folder.mkdir(parents=True, exist_ok=True)
    status: int = import_module(f"{__package__}.{PARTS[options.part]}").run(options, about)
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.schedulability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parts = parser.add_subparsers(dest="part", required=True)
    attacks = parts.add_parser("attacks", help="attack just-admitted sets")
    attacks.add_argument("--runs", type=int, default=1_000_000)
    attacks.add_argument("--resume", action="store_true", help="go on from what the JSON holds")
    attacks.add_argument("--each", type=int, default=2000, help="runs for one set")
    curves = parts.add_parser("curves", help="share of sets admitted")
    curves.add_argument("--sets", type=int, default=400, help="for each utilisation")
    curves.add_argument("--resume", action="store_true", help="go on from what the JSON holds")
    curves.add_argument("--jobs", type=int, default=1, help="processes that examine sets")
    curves.add_argument("--shapes", choices=sorted(SOURCES), default="families")
    more = parts.add_parser("growth", help="time for one more task than a hundred")
    more.add_argument("--times", type=int, default=200, help="tasks asked for")
    best = parts.add_parser("optimum", help="distance from the optimum of small sets")
    best.add_argument("--sets", type=int, default=210, help="over all utilisations")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
