"""Runs in the guest: the real agent with its pmem tier on /dev/dax0.0, and two tasks that stream.

The agent and its clients are those of tests/integration/agent, processes of their own that speak
through libtierline.so; only the tier is another one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

os.environ["TIERLINE_LIBRARY"] = "/tierline/libtierline.so"

from tests.integration.agent.agent_process import EXTENT_BYTES, AgentProcess, plan

EXTENTS = {"vision": 20, "speech": 30}
RESIDENT = {"vision": (0, 9), "speech": (5,)}
JOBS = 3


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def plan_on_pmem(task: str) -> dict[str, object]:
    homes = [{"tier": "pmem", "extents": EXTENTS[task]}]
    return {**plan(EXTENTS[task], resident=RESIDENT[task], ring=2), "homes": homes}


def streamed_bytes(task: str) -> int:
    """Of one job: all but the resident extents; the last extent has 100 bytes."""
    return (EXTENTS[task] - 1 - len(RESIDENT[task])) * EXTENT_BYTES + 100


def main() -> None:
    folder = Path("/job/agent")
    folder.mkdir()
    agent = AgentProcess(
        folder,
        fast_extents=8,
        tiers=[{"name": "pmem", "path": "/dev/dax0.0", "size_bytes": 16 << 20}],
    )
    agent.start()
    say(started_s=time.monotonic())
    for name in EXTENTS:
        answer = agent.register(name, plan_on_pmem(name), period_ns=60 * 10**9)
        assert answer["ok"], answer
    programs = {name: agent.program(name, seed, EXTENTS[name]) for seed, name in enumerate(EXTENTS)}
    say(loaded_s=time.monotonic())
    for _ in range(JOBS):
        for program in programs.values():
            program.tell("job")  # both at once: the agent lends the device to one after the other
        for name, program in programs.items():
            assert program.answer() == program.expected, name
    say(streamed_s=time.monotonic())
    for name in EXTENTS:
        counters = agent.task(name)
        assert counters["jobs"] == JOBS, counters
        assert counters["streamed_bytes"] == JOBS * streamed_bytes(name), counters
    say(extents=agent.extents(), tiers=agent.snapshot()["tiers"])
    assert agent.stop() == 0
    say(passed="two tasks streamed from devdax")


if __name__ == "__main__":
    main()
