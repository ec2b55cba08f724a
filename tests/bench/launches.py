"""What launches, copies, allocations and jobs cost a program more than the driver takes.

A C program on a simulated GPU: without the library, with it preloaded and no agent, with a budget,
and in jobs under an agent with all weights resident. Launches are such as the simulated driver
refuses at once, so the difference is what the library does; questions that it asks the driver are
the simulated one's, and cost what they cost there.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.machine import describe, keep, print_head
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.gpu_agent import gpu_agent, gpu_plan
from tests.native_builds import build, simulated_machine

_EXTENTS = 30
_FAR_NS = 10**13


def measure(
    agent: AgentProcess, program: str, *arguments: str, **settings: str
) -> dict[str, dict[str, float]]:
    """Nanoseconds of each call, the best round's and the median one's."""
    folder = build("plain") / "interposer-tests"
    surroundings = {**os.environ, **agent.environment, **settings}
    surroundings.pop("SIMCUDA_FAULT_FILE")  # the simulated driver looks at it in each call
    done = subprocess.run(
        [str(folder / "cuda-tests" / program), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings,
    )
    return {row.pop("call"): row for row in map(json.loads, done.stdout.splitlines())}


def main() -> None:
    """Time all ways, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the figures here")
    arguments = parser.parse_args()
    about = describe()
    print_head(about)
    preload = {"LD_PRELOAD": str(build("plain") / "libtierline.so")}
    plan = gpu_plan(_EXTENTS, resident=tuple(range(_EXTENTS)), ring=0)
    figures: dict[str, Any] = {}
    with (
        TemporaryDirectory() as folder,
        simulated_machine() as machine,
        gpu_agent(Path(folder), machine, fast_extents=_EXTENTS + 2) as agent,
    ):
        assert agent.register("vision", plan, period_ns=_FAR_NS, deadline_ns=_FAR_NS)["ok"]
        socket = agent.run_dir / "tasks" / "vision" / "tierline.sock"
        ways: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
            "without": (("calls_alone",), {}),
            "preloaded": (("calls_alone",), preload),
            "budget": (("calls_alone",), preload | {"TIERLINE_BUDGET": "512Mi"}),
            "resident": (("calls_in_jobs", str(socket), str(_EXTENTS)), preload),
        }
        for way, (words, settings) in ways.items():
            figures[way] = measure(agent, *words, **settings)
    print(f"{'ns a call, best round (median)':<32}" + "".join(f"{way:>20}" for way in ways))
    for call in figures["resident"]:
        print(f"{call:<32}", end="")
        for way in ways:
            row = figures[way].get(call)
            text = f"{row['best_ns']:.0f} ({row['median_ns']:.0f})" if row else ""
            print(f"{text:>20}", end="")
        print()
    keep(arguments.json, {**about, **figures})


if __name__ == "__main__":
    main()
