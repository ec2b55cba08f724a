"""How far placements of weights in scarce tiers are from the optimum, and how long they take.

    python -m tests.bench.placement [--counts 10,30,100] [--sets 12] [--json FILE]

For each number of tasks and each size of dram and pmem so many random sets. The optimum is that of
a mixed-integer program; sets in which it keeps no deadline are counted and left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.machine import describe, keep, print_head
from tests.bench.placement.exact import optimum
from tests.bench.placement.orders import by, density, given, rate
from tests.bench.placement.sets import Asked, Shares, random_set

SIZES = ((0.5, 0.0), (0.25, 0.0), (0.1, 0.0), (0.5, 0.3), (0.25, 0.25), (0.1, 0.3), (0.1, 0.1))
"""Of dram and pmem, as shares of all bytes."""
FILLS: dict[str, Callable[[Asked], Shares]] = {
    "rule": Asked.by_rule,
    "in order": given,
    "by rate": by(rate),
    "by gain a byte": by(density),
}
ALONE = "in order, one link at a time"


def measure(tasks: int, dram: float, pmem: float, sets: int) -> dict[str, object]:
    """One row: percent above the optimum, median and worst; late tasks; milliseconds."""
    above: dict[str, list[float]] = {name: [] for name in (*FILLS, ALONE)}
    late: dict[str, list[float]] = {name: [] for name in (*FILLS, ALONE)}
    took_s: list[float] = []
    impossible = 0
    for number in range(sets):
        asked = random_set(tasks, 1000 * tasks + number, dram, pmem)
        best = optimum(asked)
        if best is None:
            impossible += 1
            continue
        begun = time.process_time()
        asked.by_rule()
        took_s.append(time.process_time() - begun)
        for name, percent in above.items():
            shares, alone = FILLS.get(name, given)(asked), name == ALONE
            percent.append(100 * (asked.load(shares, one_at_a_time=alone) / best - 1))
            late[name].append(100 * asked.late(shares, one_at_a_time=alone))
    return {
        "tasks": tasks,
        "dram": dram,
        "pmem": pmem,
        "without a solution": impossible,
        "above": {n: [statistics.median(v), max(v)] for n, v in above.items() if v},
        "late": {n: statistics.mean(v) for n, v in late.items() if v},
        "rule ms": [1e3 * statistics.median(took_s), 1e3 * max(took_s)] if took_s else [],
    }


def main() -> int:
    """Measure, and print the table."""
    options = _options()
    about = describe()
    print_head(about)
    names = [*FILLS, ALONE]
    _print(["tasks", "dram, pmem", *names, "ms", "none"])
    _print(["---"] * (len(names) + 4))
    rows = []
    for tasks in (int(count) for count in options.counts.split(",")):
        for dram, pmem in SIZES:
            row = measure(tasks, dram, pmem, options.sets)
            rows.append(row)
            _print_row(row, names)
            keep(options.json, {**about, "rows": rows})
    return 0


def _print_row(row: dict[str, object], names: Sequence[str]) -> None:
    above, late, took = row["above"], row["late"], row["rule ms"]
    assert isinstance(above, dict)
    assert isinstance(late, dict)
    assert isinstance(took, list)
    cells = [
        f"{above[name][0]:.1f} / {above[name][1]:.1f}"
        + (f" ({late[name]:.0f})" if late[name] else "")
        for name in names
        if name in above
    ]
    times = f"{took[0]:.1f}" if took else ""
    where = f"{row['dram']}, {row['pmem']}"
    _print([str(row["tasks"]), where, *cells, times, str(row["without a solution"])])


def _print(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="10,30,100")
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
