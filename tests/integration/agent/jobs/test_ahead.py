"""What the agent copies for a task's next job before it comes, seen from its clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    AgentProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.gpu_agent import EXTENT_BYTES as GPU_EXTENT_BYTES
from tests.integration.agent.gpu_agent import GPU_PROGRAM, gpu_agent, gpu_plan
from tests.integration.agent.raw_client import Loaded, RawClient
from tests.native_builds import simulated_machine

from tierline_agent.transport import protocol as p

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLOTS = 3


class StreamedTask:
    """A client with its content, and with a ring of SLOTS slots."""

    def __init__(self, agent: AgentProcess, name: str, seed: int, extents: int) -> None:
        agent.register(name, plan(extents, ring=SLOTS, resident=(1,)))
        self.data = content(seed, extents)
        self.client: RawClient = agent.client(name)
        self.arena: Loaded = self.client.load(self.data)
        self.jobs = 0

    def run_job(self) -> int:
        """Run a job that reads everything; returns what had been published when it was granted."""
        job = self.client.begin(0)
        published = self.arena.published()
        assert self.arena.read_in_job() == self.data
        self.client.end(job)
        self.jobs += 1
        return published

    def wait_ahead(self) -> None:
        """Until the first streamed extents lie in the ring again."""
        wait_until(lambda: all(map(self._lies, self.arena.streamed[:SLOTS])), "the ring is filled")

    def _lies(self, extent: int) -> bool:
        here = self.arena.read_extent(extent)
        return here == self.data[extent * EXTENT_BYTES :][: len(here)]


def test_the_next_job_finds_its_first_extents(shared_agent: AgentProcess) -> None:
    vision = StreamedTask(shared_agent, "vision", 1, 9)
    for number in range(4):
        # The last of them may have arrived, and not be counted yet.
        assert vision.run_job() >= (SLOTS - 1 if number else 0)
        vision.wait_ahead()
        assert vision.arena.published() == 8, "nothing is published before the next job"
    seen = shared_agent.task("vision")
    assert seen["streamed_bytes"] == 4 * (7 * EXTENT_BYTES + 100)
    assert seen["revoked"] == 0


def test_what_its_client_does_between_its_jobs_leaves_them_alone(agent: AgentProcess) -> None:
    vision = StreamedTask(agent, "vision", 1, 9)
    vision.run_job()
    for _ in range(10):
        warmup = vision.client.begin(p.NO_ARENA, warmup=True)
        vision.wait_ahead()
        vision.client.end(warmup)
        assert vision.run_job() >= SLOTS - 1


def test_whoever_takes_the_ring_reads_right_bytes(shared_agent: AgentProcess) -> None:
    """Two arenas in one ring, and a task that needs the device alone."""
    vision = StreamedTask(shared_agent, "vision", 1, 9)
    speech = StreamedTask(shared_agent, "speech", 2, 7)
    shared_agent.register("plain", plan(2, resident=(0, 1)))
    plain = shared_agent.client("plain")

    def published_after_a_plain_job() -> int:
        vision.run_job()
        vision.wait_ahead()
        plain.end(plain.begin(p.NO_ARENA))
        return vision.run_job()

    # A job that streams nothing leaves them where they are. They do not count for one that is
    # granted before the copies that it stopped have ended, which a busy machine makes likely.
    wait_until(lambda: published_after_a_plain_job() >= SLOTS - 1, "they are found")
    for _ in range(3):
        speech.run_job()
        speech.run_job()
        vision.run_job()
        vision.wait_ahead()
        speech.run_job()
        speech.wait_ahead()
    for name, task, streamed in (("vision", vision, 8), ("speech", speech, 6)):
        seen = shared_agent.task(name)
        assert seen["streamed_bytes"] == task.jobs * ((streamed - 1) * EXTENT_BYTES + 100)
        assert seen["revoked"] == 0


def test_an_arena_is_given_back_while_its_next_job_is_copied_for(
    shared_agent: AgentProcess,
) -> None:
    vision = StreamedTask(shared_agent, "vision", 1, 9)
    vision.run_job()
    assert vision.client.ask(p.Free(0), p.Freed).arena == 0
    vision.arena = vision.client.load(vision.data)
    vision.run_job()
    vision.wait_ahead()
    vision.client.close()
    wait_until(lambda: not shared_agent.task("vision")["clients"], "the client is gone")
    assert shared_agent.call("remove", name="vision")["ok"]


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[AgentProcess]:
    tiers = ("dram", "nvme")
    with simulated_machine() as machine, gpu_agent(tmp_path, machine, tiers=tiers) as process:
        yield process


def test_a_gpu_copies_ahead_from_memory_and_from_a_disk(gpu: AgentProcess) -> None:
    gpu.register("vision", gpu_plan(9, ring=SLOTS, resident=(1,)))
    gpu.register("speech", gpu_plan(7, ring=2, homes=(("nvme", 7),)))
    vision = gpu.program("vision", 1, 9, GPU_PROGRAM)
    speech = gpu.program("speech", 2, 7, GPU_PROGRAM)
    for _ in range(2):
        assert vision.do("job") == vision.expected
        # What has arrived, and was not seen yet to be there, does not count.
        wait_until(lambda: int(vision.do("granted")) >= SLOTS - 1, "they are found")
        assert speech.do("job") == speech.expected
        wait_until(lambda: int(speech.do("granted")) >= 1, "the first is found")
        assert speech.do("passes 3") == speech.expected
    assert gpu.task("vision")["revoked"] + gpu.task("speech")["revoked"] == 0


@pytest.fixture(scope="module")
def slow_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """A copy takes longer than a client needs from the end of a job to the next one's begin."""
    link = {"H2D": str(GPU_EXTENT_BYTES * 50)}
    folder = tmp_path_factory.mktemp("slow")
    with simulated_machine() as machine, gpu_agent(folder, machine, gpu=link) as process:
        yield process


@pytest.mark.parametrize(("extents", "first"), [(7, 1), (7, 2), (8, 2), (6, 1), (4, 2)])
def test_a_gpu_reads_right_bytes_whichever_extent_came_first(
    slow_gpu: AgentProcess, extents: int, first: int
) -> None:
    """The first one's slot is free early, or only when the job before is over."""
    name = f"vision-{extents}-{first}"
    slow_gpu.register(name, gpu_plan(extents, ring=SLOTS, resident=()))
    vision = slow_gpu.program(name, extents, extents, GPU_PROGRAM)

    def came_early() -> bool:
        """Nothing does after the link has stood still: its process had read the last too late."""
        *late, digest = vision.do(f"early {first}").split()
        assert digest == vision.expected
        return not late

    for _ in range(3):
        wait_until(came_early, "that extent came first")
        assert vision.do("passes 3") == vision.expected
    assert slow_gpu.task(name)["revoked"] == 0


def test_of_two_extents_on_their_way_a_gpu_counts_each_as_it_arrives(
    slow_gpu: AgentProcess,
) -> None:
    slow_gpu.register("counts", gpu_plan(6, ring=SLOTS, resident=()))
    vision = slow_gpu.program("counts", 5, 6, GPU_PROGRAM)
    # Its process may look too seldom to see every count.
    wait_until(lambda: vision.do("counts") == "0 1 2 3", "each of them is counted")
