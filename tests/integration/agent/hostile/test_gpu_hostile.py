"""Clients of a GPU that keep no rule: none of them holds the lease, the stream or other memory."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, content, wait_until
from tests.integration.agent.gpu_agent import EXTENT_BYTES, GPU_PROGRAM, gpu_agent, gpu_plan
from tests.integration.agent.gpu_client import CONSUMED_OFFSET, GpuClient
from tests.integration.agent.raw_client import ClosedError, Lent, RefusedError
from tests.native_builds import simulated_machine

from tierline_agent.transport import protocol as p

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def agent_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    folder = tmp_path_factory.mktemp("gpu-agent")
    with simulated_machine() as machine, gpu_agent(folder, machine) as process:
        yield process


@pytest.fixture
def agent(agent_of_module: AgentProcess) -> Iterator[AgentProcess]:
    yield agent_of_module
    agent_of_module.forget_tasks()


def load(agent: AgentProcess, task: str, seed: int, extents: int) -> tuple[GpuClient, Lent]:
    """A client that never touches a GPU, with a sealed arena."""
    client = agent.connect(task, GpuClient)
    assert isinstance(client, GpuClient)
    client.hello()
    data = content(seed, extents, extent_bytes=EXTENT_BYTES)
    lent = Lent(*client.borrow(len(data)))
    client.fill(lent, data)
    return client, lent


@pytest.mark.parametrize("value", [0, 1, 0x80000000, 0xFFFFFFFF])
def test_a_job_ends_whatever_its_client_writes(agent: AgentProcess, value: int) -> None:
    agent.register("liar", gpu_plan(10, ring=2))
    agent.register("other", gpu_plan(6, ring=2))
    other = agent.program("other", 2, 6, GPU_PROGRAM)
    client, lent = load(agent, "liar", 1, 10)
    words = mmap.mmap(lent.control, mmap.PAGESIZE)
    job = client.begin(0)
    done = threading.Event()

    def scribble() -> None:
        while not done.is_set():
            words[CONSUMED_OFFSET : CONSUMED_OFFSET + 4] = value.to_bytes(4, "little")

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        client.end(job)
        assert other.do("job") == other.expected
    finally:
        done.set()
        scribbler.join()


def test_a_job_that_stands_still_keeps_nobody_from_leaving(agent: AgentProcess) -> None:
    """Unpinning memory waits for the device, and the device waits for a client."""
    agent.register("still", gpu_plan(10, ring=2))
    agent.register("leaver", gpu_plan(6, ring=2))
    still, _ = load(agent, "still", 1, 10)
    leaver, _ = load(agent, "leaver", 2, 6)
    job = still.begin(0)
    leaver.ask(p.Free(0), p.Freed)
    leaver.close()
    wait_until(lambda: not agent.task("leaver")["clients"], "the agent notices that one left")
    still.end(job)
    other = agent.program("leaver", 2, 6, GPU_PROGRAM)
    assert other.do("job") == other.expected


def test_a_rewind_needs_no_consumption(agent: AgentProcess) -> None:
    agent.register("writer", gpu_plan(10, ring=2))
    client, _ = load(agent, "writer", 1, 10)
    job = client.begin(0)
    for _ in range(5):
        client.rewind(job)
    client.end(job)
    with pytest.raises((RefusedError, ClosedError)):
        client.rewind(job)


@pytest.mark.parametrize("what", ["memfd", "null device", "another arena's extent"])
def test_other_memory_is_not_taken_back(agent: AgentProcess, what: str) -> None:
    agent.register("forger", gpu_plan(6, ring=2, resident=(0,)))
    agent.register("owner", gpu_plan(6, ring=2, resident=(0,)))
    client, lent = load(agent, "forger", 1, 6)
    _, other = load(agent, "owner", 2, 6)
    if what == "memfd":
        forged = os.memfd_create("forged")
        os.ftruncate(forged, EXTENT_BYTES)
    elif what == "null device":
        forged = os.open("/dev/null", os.O_RDWR)
    else:
        forged = other.residents[0]
    assert client.welcome is not None
    client.close()
    again = agent.connect("forger", GpuClient)
    again.hello(client.welcome.reattach_token)
    lent.residents[0] = forged
    with pytest.raises(RefusedError) as refused:
        again.attach(lent)
    assert refused.value.code is p.ErrorCode.NOT_ADMITTED
    assert again.ask(p.Stats(), p.Statistics).jobs == 0


def test_a_job_that_stands_still_keeps_nobody_waiting_while_another_one_loads(
    tmp_path: Path,
) -> None:
    """Making device memory may wait for the jobs there: not in the loop, which must end them."""
    with (
        simulated_machine() as machine,
        gpu_agent(
            tmp_path, machine, gpu={"CALLS_WAIT": "1"}, job_limit_s=1, revoke_grace_s=1
        ) as agent,
    ):
        for task in ("still", "good", "newcomer"):
            agent.register(task, gpu_plan(6, ring=2))
        good = agent.program("good", 2, 6, GPU_PROGRAM)
        ours, theirs = os.pipe()
        still = os.fork()
        if still == 0:
            load(agent, "still", 1, 6)[0].begin(0)
            os.write(theirs, b"a job")
            signal.pause()
        assert os.read(ours, 5)
        newcomer = agent.connect("newcomer", GpuClient)
        newcomer.hello()
        newcomer.send(p.Reserve(0, 1, 6 * EXTENT_BYTES, 0))
        assert good.do("job") == good.expected
        assert os.waitstatus_to_exitcode(os.waitpid(still, 0)[1]) == -signal.SIGKILL
        assert newcomer.expect(p.Reserved).ring_slots == 2
