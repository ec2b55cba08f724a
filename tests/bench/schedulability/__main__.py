"""The figures of docs/benchmarks/schedulability.md, part by part.

    python -m tests.bench.schedulability attacks [--runs 1000000] [--seconds S]

Each part prints the machine, the command and its table, and writes JSON and plots to --folder
while it goes on, so what an interrupted run has found is not lost. Exit status 1: a proof is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import describe, print_head
from tests.bench.schedulability import soundness


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part."""
    options = _options(arguments)
    about = describe()
    print_head(about)
    options.folder.mkdir(parents=True, exist_ok=True)
    run = {"attacks": soundness.run}[options.part]
    return run(options, about)


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
    attacks.add_argument("--each", type=int, default=2000, help="runs for one set")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
