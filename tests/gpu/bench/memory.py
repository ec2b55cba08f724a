"""What programs hold of a GPU, as NVML shows it, against what the agent says.

    tests/gpu/site.sh python3 -m tests.gpu.bench.memory [--size large] [--fast-memory 384Mi]

A program of 768 MiB (or of 384 MiB, in weights of 2 MiB) runs by `tierline run`. Of its managed
process each row has what the library counts, what NVML shows in addition (its context), and the
agent's own, its context left out. Ends with 1 if, once kernels are loaded, what is in addition
moves by more than a piece of 2 MiB, if the agent's peak differs from NVML's by more than that for
each process, or if the fast memory was exceeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.gpu import runs

PROGRAM = Path(__file__).parents[1] / "programs" / "memory.py"
PIECE = 2 << 20


def run(size: str, fast: str, folder: Path) -> dict[str, Any]:
    """The report of a run; prints what it said."""
    report = folder / "report.json"
    _, said = runs.run(
        folder / "held.yaml",
        [str(PROGRAM), str(folder / "rows")],
        *("--duration", "16", "--fast-memory", fast, "--json-file", str(report)),
        timeout_s=200,
        environment={"SIZE": size},
    )
    print(said)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def judge(rows: list[dict[str, Any]], report: dict[str, Any]) -> bool:
    """Print a table; whether the agent's figures are NVML's."""
    mine, context, contexts, peak = str(rows[0]["pid"]), 0, [], 0
    print("job    held  shown less held  of the agent  MiB")
    for row in rows:
        others = sum(bytes_ for pid, bytes_ in row["shown"].items() if pid != mine)
        context = context or others  # before it has an extent
        extents, more = others - context, row["shown"][mine] - row["held"]
        print(f"{row['job']:3} {row['held'] >> 20:7} {more >> 20:16} {extents >> 20:13}")
        if row["job"] >= 1:
            contexts.append(more)
            peak = max(peak, extents + row["held"])
    told, limit = report["fast_memory_peak_bytes"], report["fast_memory_limit_bytes"]
    print(f"peak {peak >> 20} MiB by NVML, {told >> 20} by the agent, of {limit >> 20}")
    moved = max(contexts) - min(contexts)
    return moved <= PIECE and abs(told - peak) <= 2 * PIECE and told <= limit


def main() -> int:
    """Run one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("large", "small"), default="large")
    parser.add_argument("--fast-memory", default="384Mi")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report = run(arguments.size, arguments.fast_memory, Path(name))
        right = judge(
            [json.loads(line) for line in (Path(name) / "rows").read_text().splitlines()], report
        )
    print("as the driver shows it" if right else "NOT as the driver shows it")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
