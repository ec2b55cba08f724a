"""A plan of thousands of extents: no turn of the agent's event loop grows with it.

A turn that does something for each extent of a plan keeps everybody waiting for it, and whoever may
say how large its budget is may say how long. `measured_agent` says which turns were long.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, content, plan, wait_until
from tests.integration.agent.hostile import measured_agent

from tierline_agent.transport import protocol as p

EXTENTS, RESIDENT, RING = 2048, 1500, 500
START = "run.<locals>.wrapper()"
"""In the name of the task in which an agent starts, and nobody waits for it yet."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_turn_grows_with_a_plan(tmp_path: Path) -> None:
    agent = AgentProcess(
        tmp_path,
        module=measured_agent.__name__,
        fresh=True,
        fast_extents=EXTENTS,
        dram_bytes=256 << 20,
    )
    large = plan(EXTENTS, resident=tuple(range(RESIDENT)), ring=RING)
    data = content(1, EXTENTS)
    agent.start()
    try:
        assert agent.register("large", large)["ok"]
        for _ in range(2):
            client = agent.client("large")
            loaded = client.load(data)
            job = client.begin(0)
            assert loaded.read_in_job() == data
            client.end(job)
            agent.kill()
            client.close()
            agent.start()
            assert client.welcome is not None
            client = agent.client("large", client.welcome.reattach_token)
            client.attach(loaded)
            job = client.begin(0)
            assert loaded.read_in_job() == data
            client.end(job)
            client.ask(p.Free(0), p.Freed)
            client.close()
            wait_until(lambda: not agent.task("large")["clients"], "it has left")
        assert agent.call("remove", name="large")["ok"]
    finally:
        assert agent.stop() == 0
    log = agent.log.read_text(errors="replace").splitlines()
    turns = [line for line in log if measured_agent.WORDS in line]
    assert [turn for turn in turns if START not in turn] == []
