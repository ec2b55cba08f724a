"""Programs whose jobs must give what they give without Tierline, job by job, each forward once.

    tests/gpu/site.sh python3 -m tests.gpu.once [CASE...] [--fast-memory 1Gi] [--foreign 2]

Each case of programs/once.py runs plain, then twice by `tierline run`: observed, and managed. The
table says for each process how many jobs ended, how many gave something else than plain, and the
median time of the last ten; below it is what Tierline said. Meanwhile `--foreign` processes that
are not Tierline's compute and copy on the GPU. Ends with 1 if any job differs. The
cases `kept-0`, `kept-1` and so on are drawn from their numbers (programs/kept.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu import runs
from tests.gpu.programs.once import CASES

PROGRAM = Path(__file__).parent / "programs" / "once.py"
LIMIT_S = 100
FOREIGN = """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.half)
b, c = torch.empty(2**27, device="cuda"), torch.empty(2**27).pin_memory()
while True:
    for _ in range(20):
        a @ a
    b.copy_(c, non_blocking=True)
    torch.cuda.synchronize()
"""
Rows = dict[int, tuple[str, float]]


def command(case: str, jobs: int, path: Path) -> list[str]:
    """The program by itself."""
    return [sys.executable, str(PROGRAM), case, str(jobs), str(path)]


def rows(path: Path) -> list[Rows]:
    """Of each process that wrote there, in the order of their beginning."""
    found = sorted(path.parent.glob(f"{path.name}.*"), key=lambda one: one.stat().st_ctime_ns)
    lines = [[line.split() for line in one.read_text().splitlines()] for one in found]
    return [{int(n): (d, float(ms)) for n, d, ms in each} for each in lines]


@contextmanager
def foreign_load(count: int) -> Iterator[None]:
    """With so many other processes that use the GPU."""
    others = [subprocess.Popen([sys.executable, "-c", FOREIGN]) for _ in range(count)]
    try:
        yield
        assert all(one.poll() is None for one in others), "another process has ended"
    finally:
        for one in others:
            one.kill()
            one.wait()


def judge(case: str, plain: Rows, folder: Path, fast: str) -> dict[str, Any]:
    """Run a case, and compare each process with plain."""
    ended, said = runs.run(
        folder / f"task-{case}.yaml",  # no name that `rows` looks for
        [str(PROGRAM), case, str(len(plain)), str(folder / case)],
        *("--duration", "30", "--fast-memory", fast),
        timeout_s=LIMIT_S,
    )
    processes = []
    for number, found in enumerate(rows(folder / case)):
        taken, before = (
            statistics.median([ms for _, ms in list(each.values())[-10:]] or [0])
            for each in (found, plain)
        )
        processes.append(
            {
                "process": "observed" if number == 0 else "managed",
                "jobs": len(found),
                "different": [n for n, (digest, _) in found.items() if digest != plain[n][0]],
                "ms": round(taken, 2),
                "plain_ms": round(before, 2),
            }
        )
    words = [line[:180] for line in said.splitlines() if line.strip()][-14:]
    return {"case": case, "ended": ended, "processes": processes, "said": words}


def report(judged: dict[str, Any]) -> bool:
    """A line a process; whether all is as plain."""
    for one in judged["processes"]:
        other = one["different"]
        print(
            f"{judged['case']:12} {one['process']:9} jobs {one['jobs']:3} "
            f"different {len(other):3} {other[:8]} ms {one['ms']:8.2f} "
            f"plain {one['plain_ms']:8.2f}  {judged['ended']}",
            flush=True,
        )
    for line in judged["said"]:
        print("    |", line, flush=True)
    processes = judged["processes"]
    return len(processes) > 1 and not any(one["different"] for one in processes)


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--fast-memory", default="1Gi")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--foreign", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    right = True
    with tempfile.TemporaryDirectory() as name:
        plain, under = Path(name) / "plain", Path(name) / "under"
        plain.mkdir()
        under.mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TIERLINE")}
        running = {
            case: subprocess.Popen(
                command(case, arguments.jobs, plain / case),
                env={**environment, "TIERLINE_LIBRARY": os.environ.get("TIERLINE_LIBRARY", "")},
            )
            for case in arguments.cases
        }
        for case, process in running.items():
            if process.wait() != 0:
                print(f"{case:12} fails without Tierline")
        known = {case: found[0] for case in arguments.cases if (found := rows(plain / case))}
        whole = [case for case, found in known.items() if len(found) == arguments.jobs]
        judged = []
        with (
            foreign_load(arguments.foreign),
            ThreadPoolExecutor(arguments.parallel) as threads,
        ):
            for one in threads.map(
                lambda case: judge(case, known[case], under, arguments.fast_memory), whole
            ):
                right = report(one) and right
                judged.append(one)
                if arguments.json:
                    arguments.json.write_text(json.dumps(judged, indent=1))
    print("all as without Tierline" if right else "NOT as without Tierline")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
