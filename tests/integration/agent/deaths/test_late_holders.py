"""A restart waits for no program that was inside a job, but with what it computes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, content, plan
from tests.integration.agent.raw_client import Loaded, RawClient

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

EXTENTS, RING = 5, 2
OURS, FELLOWS, OTHERS = 1, 2, 3
"""Whose content it is."""


class Restarted:
    """An agent that was killed with a client inside a job, which has not come back."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder, recovery_s=0.2)
        self.agent.start()
        for task, domain in (("late", "alone"), ("fellow", "alone"), ("other", "others")):
            self.agent.register(task, plan(EXTENTS, ring=RING), domain=domain)
        self.late = self.agent.client("late")
        self.lent = self.late.load(content(OURS, EXTENTS))
        self.job = self.late.begin(0)
        assert self.lent.wait_published(RING)
        self.fellow = self.agent.client("fellow")
        self.fellows = self.fellow.load(content(FELLOWS, EXTENTS))
        self.agent.kill()
        self.agent.start()

    def comes_back(self, task: str, before: RawClient) -> RawClient:
        assert before.welcome is not None
        return self.agent.client(task, before.welcome.reattach_token)

    def has_its_ring(self) -> bool:
        """Whether what the late one computes from is as it was."""
        size = self.lent.extent_bytes
        read = b"".join(self.lent.read_extent(extent) for extent in range(RING))
        return read == content(OURS, EXTENTS)[: RING * size]


def run(client: RawClient, loaded: Loaded, seed: int) -> None:
    client.end(read(client, loaded, seed))


def read(client: RawClient, loaded: Loaded, seed: int) -> int:
    job = client.begin(0)
    assert loaded.read_in_job() == content(seed, EXTENTS)
    return job


@pytest.fixture
def restarted(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path)


def test_others_go_on_and_its_domain_waits(restarted: Restarted) -> None:
    other = restarted.agent.client("other")
    run(other, other.load(content(OTHERS, EXTENTS)), OTHERS)
    fellow = restarted.comes_back("fellow", restarted.fellow)
    fellow.attach(restarted.fellows)
    waiting = fellow.begin(0, wait=False)
    fellow.ask(p.Stats(), p.Statistics)  # and no GRANT before it
    late = restarted.comes_back("late", restarted.late)
    assert restarted.has_its_ring()
    late.attach(restarted.lent, job=restarted.job)
    restarted.lent.consume(RING)
    assert restarted.lent.wait_published(RING + 1), "its stream goes on"
    late.end(restarted.job)
    assert fellow.expect(p.Grant).job == waiting
    assert restarted.fellows.read_in_job() == content(FELLOWS, EXTENTS)
    fellow.end(waiting)
    assert restarted.agent.stop() == 0


def test_one_that_is_too_late_keeps_its_ring_until_it_knows(restarted: Restarted) -> None:
    other = restarted.agent.client("other")
    job = read(other, other.load(content(OTHERS, EXTENTS)), OTHERS)
    fellow = restarted.comes_back("fellow", restarted.fellow)
    fellow.attach(restarted.fellows)
    waiting = fellow.begin(0, wait=False)
    late = restarted.comes_back("late", restarted.late)
    late.offer(restarted.lent, job=restarted.job)
    assert late.expect(p.Attached)
    assert late.expect(p.Revoke).job == restarted.job
    other.end(job)
    fellow.ask(p.Stats(), p.Statistics)  # and no GRANT before it
    assert restarted.has_its_ring()
    late.send(p.Ack(restarted.job))
    assert fellow.expect(p.Grant).job == waiting
    assert restarted.fellows.read_in_job() == content(FELLOWS, EXTENTS)
    fellow.end(waiting)
    run(late, restarted.lent, OURS)
    assert restarted.agent.stop() == 0
