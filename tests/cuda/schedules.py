"""Schedules from numbers: what a task on a simulated GPU does while all work ends late.

A number decides when work ends (SIMCUDA_LATE of the program, and of an agent started again),
which scenario runs under which plan, and what befalls it: the agent's copies fail and the job is
revoked, the agent or the program is killed in mid-job. The programs check every byte that their
kernels read; the simulated driver ends whoever changes memory under work that has not ended.

    python -m tests.cuda.schedules --count 10000
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.cuda.tasks import BY_THEMSELVES, FAILING, PLANS, PROGRAMS, Task
from tests.integration.agent.agent_process import AgentProcess, wait_until
from tests.integration.agent.gpu_agent import gpu_agent
from tests.native_builds import simulated_machine

_PEACEFUL = [scenario for scenario in BY_THEMSELVES if scenario[1] not in FAILING]
_KINDS = ("by itself", "copies fail", "agent killed", "program killed")
_WEIGHTS = (8, 1, 1, 1)
_MOST_COPIES = 12
_PER_AGENT = 200


def play(agent: AgentProcess, number: int) -> str:
    """Run one; a claim that does not hold raises. Returns what it was."""
    drawn = random.Random(number)  # noqa: S311  # schedules, no secrets
    late = {"SIMCUDA_LATE": str(number + 1), "SIMCUDA_CALLS_WAIT": drawn.choice("01")}
    kind = drawn.choices(_KINDS, _WEIGHTS)[0]
    plan = drawn.choice(list(PLANS)) if kind == "by itself" else "all streamed"
    program, scenario = drawn.choice(_PEACEFUL)
    agent.register("vision", PLANS[plan])
    if kind == "by itself":
        assert Task(agent, "plain", program, scenario, **late).held() == ""
    elif kind == "copies fail":
        program, scenario = drawn.choice(PROGRAMS), "revoked"
        _revoke(agent, Task(agent, "plain", program, scenario, **late), drawn)
    elif kind == "agent killed":
        program, scenario = drawn.choice(PROGRAMS), "agent_killed"
        agent.environment["SIMCUDA_LATE"] = late["SIMCUDA_LATE"]
        kill_agent(agent, Task(agent, "plain", program, scenario, **late))
    else:
        program, scenario = "gpu_task", "revoked_slow"
        _kill(agent, Task(agent, "plain", program, scenario, **late))
    return f"{number}: {kind}, {program} {scenario}, {plan}"


def kill_agent(agent: AgentProcess, task: Task) -> None:
    """In mid-job and between jobs, twice."""
    for _ in range(2):
        task.wait_for("streaming")
        agent.kill()
        task.go_on()
        agent.start()
        task.wait_for("between")
        agent.kill()
        agent.start()
        task.go_on()
    task.held()


def _revoke(agent: AgentProcess, task: Task, drawn: random.Random) -> None:
    task.wait_for("loaded")
    faults = Path(agent.environment["SIMCUDA_FAULT_FILE"])
    faults.write_text(f"call cuMemcpyHtoDAsync {drawn.randint(1, _MOST_COPIES)} INVALID_VALUE\n")
    try:
        task.go_on()
        task.held()
    finally:
        faults.write_text("")


def _kill(agent: AgentProcess, task: Task) -> None:
    """While its GPU still reads the ring."""
    task.wait_for("loaded")
    task.go_on()
    task.wait_for("launched")
    task.process.kill()
    task.process.communicate()
    wait_until(lambda: not agent.task("vision")["clients"], "its death is known")


def _main() -> int:
    parser = argparse.ArgumentParser(prog="tests.cuda.schedules", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    begin, faults = time.monotonic(), 0
    end = options.first + options.count
    for first in range(options.first, end, _PER_AGENT):
        with (
            simulated_machine() as machine,
            tempfile.TemporaryDirectory() as folder,
            gpu_agent(
                Path(folder), machine, fast_extents=40, gpu={"LATE": str(first + 1)}
            ) as agent,
        ):
            for number in range(first, min(first + _PER_AGENT, end)):
                try:
                    play(agent, number)
                except AssertionError as fault:
                    faults += 1
                    print(f"{number}: {str(fault)[:4000]}", flush=True)
                agent.forget_tasks()
        print(f"{number + 1} schedules, {faults} at fault, {time.monotonic() - begin:.0f} s")
    return min(faults, 100)


if __name__ == "__main__":
    raise SystemExit(_main())
