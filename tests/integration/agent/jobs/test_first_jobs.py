"""Jobs without rank and jobs with deadlines, on a real agent: first ones, and left-out ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan, wait_until

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

_PROGRAM = Path(__file__).with_name("slow_start.py")


def _waits(agent: AgentProcess, first: dict[str, str]) -> None:
    """A first job has the device for 0.1 s in which one with a deadline waits."""
    agent.register("starts", plan(4) | first)
    agent.register("urgent", plan(4), criticality="Hard")
    starts, urgent = agent.client("starts"), agent.client("urgent")
    job = starts.begin(p.NO_ARENA, warmup=True)
    urgent.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "the urgent job waits")
    waits = time.monotonic()  # the agent had its request before
    wait_until(lambda: time.monotonic() > waits + 0.1, "0.1 s have passed")
    starts.end(job)
    urgent.end(urgent.expect(p.Grant).job)


@pytest.mark.parametrize(
    ("first", "planned"),
    [({}, "nothing was planned"), ({"first": "20ms"}, "20 ms were planned")],
    ids=["unmeasured", "measured"],
)
def test_a_first_job_that_takes_more_than_was_charged_is_counted_and_told(
    agent: AgentProcess, first: dict[str, str], planned: str
) -> None:
    _waits(agent, first)
    wait_until(lambda: agent.task("starts")["late_firsts"] == 1, "it is counted")
    seen = agent.task("starts")
    assert seen["first_blocked_worst_ns"] > 50_000_000
    (notice,) = seen["notices"]
    assert planned in notice["text"]


def test_one_within_what_was_charged_is_no_fault(agent: AgentProcess) -> None:
    _waits(agent, {"first": "1000s"})
    wait_until(lambda: agent.task("starts")["first_blocked_worst_ns"], "it is counted")
    seen = agent.task("starts")
    assert (seen["late_firsts"], seen["notices"]) == (0, [])


@pytest.mark.parametrize("when", ["called", "waited"])
@pytest.mark.parametrize("left_out", [False, True], ids=["learns", "left out"])
def test_a_program_without_an_arena_gives_the_device_away_between_modules(
    agent: AgentProcess, left_out: bool, when: str
) -> None:
    """Its jobs take 12 times as long as the longest wait that one may cost another.

    Also where the device lags after the program, as a GPU does.
    """
    layers, seconds = 24, 0.25
    granted = plan(0, ring=0) if left_out else plan(8, resident=tuple(range(8)))
    yields = {
        "scheduling": "RingKeeping",
        "layer_ns": 250_000_000,
        "penalty_ns": 0,
        "parked_bytes": 0,
    }
    socket = agent.register("starts", granted, preemption=yields)["socket"]
    agent.register("urgent", plan(4), criticality="Hard")
    urgent = agent.client("urgent")
    waits_s = []
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(layers), str(seconds), str(2 * left_out), when],
        env={**os.environ, "TIERLINE_SOCKET": socket, "TIERLINE_REQUIRED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begins\n"
        while program.poll() is None:
            asked = time.monotonic()
            job = urgent.begin(p.NO_ARENA)
            waits_s.append(time.monotonic() - asked)
            urgent.end(job)
    assert program.returncode == 0
    assert max(waits_s) > seconds / 2, "they never met"
    assert max(waits_s) < layers * seconds / 2
    seen = agent.task("starts")
    assert seen["first_blocked_worst_ns"] / 1e9 < layers * seconds / 2
    assert seen["jobs"] == 2 * left_out
    assert any("stays resident" in notice["text"] for notice in seen["notices"]) == left_out
