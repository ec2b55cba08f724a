"""What a job that streams waits for when it takes a GPU from another one that does."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, content, wait_until
from tests.integration.agent.gpu_agent import EXTENT_BYTES, gpu_agent, gpu_plan
from tests.integration.agent.raw_client import Lent, RawClient
from tests.native_builds import simulated_machine

from tierline_agent.policy.transfers import IN_FLIGHT
from tierline_agent.transport import protocol as p

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COPIES_PER_S = 50
EXTENTS, SLOTS = 12, 8
LATE_S, EARLY_S = 3000, 1000
TERMS = {"scheduling": "RingKeeping", "layer_ns": 10**12, "penalty_ns": 10**9, "parked_bytes": 1}


class Streams(RawClient):
    """It needs no CUDA itself: it looks at what is published, and never consumes anything."""

    device = p.Device.CUDA

    def load_words(self, seed: int, extents: int) -> memoryview:
        """Load an arena; its flag words."""
        data = content(seed, extents, extent_bytes=EXTENT_BYTES)
        lent = Lent(*self.borrow(len(data)))
        self.fill(lent, data)
        return memoryview(mmap.mmap(lent.control, mmap.PAGESIZE)).cast("I")


def client(agent: AgentProcess, task: str) -> Streams:
    """A client of the task."""
    streams = agent.connect(task, Streams)
    assert isinstance(streams, Streams)
    streams.hello()
    return streams


def test_it_waits_for_no_more_copies_than_its_plan_has_in_flight(tmp_path: Path) -> None:
    """What stands in the copy stream of a GPU cannot be taken back, and runs when it is let go."""
    link = {"H2D": str(EXTENT_BYTES * COPIES_PER_S)}
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, gpu=link) as agent:
        agent.register("long", gpu_plan(EXTENTS, ring=SLOTS), preemption=TERMS)
        agent.register("short", gpu_plan(4, ring=2))
        long, short = client(agent, "long"), client(agent, "short")
        of_long, of_short = long.load_words(1, EXTENTS), short.load_words(2, 4)
        job = long.begin(0, deadline_s=LATE_S)
        wait_until(lambda: of_long[0] > 0, "its first extent is there")
        short.begin(0, deadline_s=EARLY_S, wait=False)
        wait_until(lambda: agent.snapshot()["devices"][0]["waiting_jobs"] == 1, "another one waits")
        long.send(p.Yield(job, 0, 0, 0, 0, p.JobFlags(0)))
        held = short.expect(p.Grant).job
        there = of_long[0]
        wait_until(lambda: of_short[0] > 0, "what was displaced has run out")
        assert of_long[0] <= there + IN_FLIGHT
        short.end(held)
        assert long.expect(p.Resumed).job == job
        long.end(job)
