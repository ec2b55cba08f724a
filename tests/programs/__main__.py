"""`python -m tests.programs --count 10000`: runs programs, and tells what differs.

A program that differs is told with its number. `--seeds N --modes managed` runs it alone, and
`python -m tests.programs.generator N` prints it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.programs import modes
from tests.programs.comparing import difference
from tests.programs.kinds import KINDS, load

Run = Callable[[str, Sequence[int]], modes.Results]


def main() -> int:
    """Run programs, and print what differs; returns the number of those that do."""
    options = _options()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="programs-")))
        python = modes.OWN
        if options.python is not None:
            python = modes.Interpreter.of_an_image(options.python, folder / "plugin")
        agent = stack.enter_context(modes.Agent(folder, options.kind, python))
        runs: dict[str, Run] = {
            "observed": lambda kind, seeds: modes.observed(folder, kind, seeds, python),
            "managed": agent.managed,
        }
        faults = _all(
            options,
            lambda kind, seeds: modes.plain(folder, kind, seeds, python),
            {key: runs[key] for key in options.modes},
        )
        print(f"{agent.jobs} jobs, {agent.streamed_bytes >> 10:,} KiB streamed")
        for text, count in Counter(agent.notices).most_common(options.notices):
            print(f"  {count} {text}")
    return min(faults, 100)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.programs", description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), default="programs")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batch", type=int, default=200, help="programs in one process")
    parser.add_argument("--seeds", type=int, nargs="*", help="these alone")
    parser.add_argument("--modes", nargs="*", default=["observed", "managed"])
    parser.add_argument("--notices", type=int, default=0, help="print so many kinds of notices")
    parser.add_argument("--python", type=Path, help="of an image; it needs PyTorch and no more")
    parser.add_argument("--json", type=Path, help="a line for each that differs")
    return parser.parse_args()


def _all(options: argparse.Namespace, run_plain: Run, runs: dict[str, Run]) -> int:
    kind = load(options.kind)
    seeds = options.seeds or kind.numbers(options.first, options.count)
    begin, faults, tags = time.monotonic(), 0, Counter[str]()
    for start in range(0, len(seeds), options.batch):
        batch = list(seeds[start : start + options.batch])
        plain = run_plain(options.kind, batch)
        for name, run in runs.items():
            under = run(options.kind, batch)
            for seed in batch:
                if (text := difference(plain[seed], under[seed])) is None:
                    continue
                if difference(plain[seed], run_plain(options.kind, [seed])[seed]) is not None:
                    print(f"{seed:6} differs from itself", flush=True)
                    continue
                faults += 1
                tags.update(kind.tags(seed))
                print(f"{seed:6} {name:8} {' '.join(kind.tags(seed))}\n       {text}", flush=True)
                _keep(options.json, {"seed": seed, "mode": name, "text": text})
        done = start + len(batch)
        print(f"{done} programs, {faults} differ, {time.monotonic() - begin:.0f} s", flush=True)
    for tag, count in tags.most_common(20):
        print(f"  {count:4} {tag}")
    return faults


def _keep(path: Path | None, line: dict[str, object]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
