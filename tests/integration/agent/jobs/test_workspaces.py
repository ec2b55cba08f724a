"""Workspaces that the tasks of a domain have in turns, on the host and on a simulated GPU."""

from __future__ import annotations

import mmap
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.agent import gpu_agent
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    LEAVING_PROGRAM,
    AgentProcess,
    ProgramKind,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.raw_client import TIMEOUT_S, RawClient
from tests.native_builds import simulated_machine

from tierline_agent.scheduling.recovery import ClientBook
from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

GPU_PROGRAM = ProgramKind("tests.integration.agent.gpu_workspace_program", gpu_agent.EXTENT_BYTES)
FIRST, SECOND = b"first", b"other"


@dataclass
class Tenant:
    """A client and its workspace as it maps it."""

    client: RawClient
    memory: list[mmap.mmap]
    job: int = 0

    def begin(self) -> None:
        self.job = self.client.begin(p.NO_ARENA)

    def end(self, reach: int = 1 << 40) -> None:
        self.client.ask(p.JobEnd(self.job, time.monotonic_ns(), reach, 0, 0), p.Ended)

    def write(self, mark: bytes) -> None:
        for number, extent in enumerate(self.memory):
            extent[: len(mark) + 1] = mark + bytes([number])

    def reads(self, mark: bytes, extents: int | None = None) -> bool:
        return all(
            extent[: len(mark) + 1] == mark + bytes([number])
            for number, extent in enumerate(self.memory[:extents])
        )


def tenant(
    agent: AgentProcess, name: str, extents: int, *, preserve: bool = True, domain: str = "default"
) -> Tenant:
    own = plan(1, resident=(0,), ring=0, workspace=extents * EXTENT_BYTES)
    assert agent.register(name, own, domain=domain)["ok"]
    client = agent.client(name)
    flags = p.WorkspaceFlags.PRESERVE if preserve else p.WorkspaceFlags(0)
    lent = client.ask(p.Workspace(extents * EXTENT_BYTES - 1, flags), p.WorkspaceLent)
    descriptors = client.expect_descriptors(p.DescriptorKind.WORKSPACE, lent.extent_count)
    memory = [mmap.mmap(descriptor, EXTENT_BYTES) for descriptor in descriptors]
    if preserve:
        descriptors += client.expect_descriptors(p.DescriptorKind.BACKUP, 1)
    for descriptor in descriptors:
        os.close(descriptor)
    assert len(memory) == extents
    return Tenant(client, memory)


def test_a_preserved_workspace_comes_back(shared_agent: AgentProcess) -> None:
    one, two = tenant(shared_agent, "one", 3), tenant(shared_agent, "two", 2)
    one.begin()
    one.write(FIRST)
    one.end()
    two.begin()
    assert two.reads(FIRST)  # the same memory, of the same domain
    two.write(SECOND)
    two.end()
    one.begin()
    assert one.reads(FIRST)
    one.end()
    two.begin()
    assert two.reads(SECOND)
    two.end()


def test_memory_is_taken_once_for_a_domain(agent: AgentProcess) -> None:
    assert agent.register("weights", plan(8, resident=tuple(range(8)), ring=0))["ok"]
    tenant(agent, "one", 6)
    tenant(agent, "two", 4)
    # Of 16 extents; what was reserved for workspaces is what they are made of.
    agent.client("weights").load(content(1, 8))


def test_only_what_a_job_says_is_preserved(shared_agent: AgentProcess) -> None:
    one = tenant(shared_agent, "one", 3)
    two = tenant(shared_agent, "two", 3, preserve=False)
    one.begin()
    one.write(FIRST)
    one.end(reach=EXTENT_BYTES + 1)
    two.begin()
    two.write(SECOND)
    two.end()
    one.begin()
    assert one.reads(FIRST, 2)
    assert not one.reads(FIRST)
    one.end()


def test_nobody_begins_while_one_that_left_in_its_job_may_still_write(agent: AgentProcess) -> None:
    one = tenant(agent, "one", 3)
    one.begin()
    one.write(FIRST)
    one.end()
    assert agent.register("two", plan(1, resident=(0,), ring=0, workspace=3 * EXTENT_BYTES))["ok"]
    leaving = agent.program("two", 0, 3, LEAVING_PROGRAM)
    assert leaving.do("job") == "left"
    job = one.client.begin(p.NO_ARENA, wait=False)
    wait_until(lambda: agent.task("two")["clients"] == [], "the agent knows that one has left")
    alive_ns = time.monotonic_ns()
    leaving.kill()
    granted = one.client.expect(p.Grant)
    assert granted.granted_ns > alive_ns
    assert one.reads(FIRST)
    one.job = job
    one.end()


def test_one_that_left_in_its_job_and_lives_on_is_killed(agent: AgentProcess) -> None:
    agent.restart_with(holder_grace_s=0.05)
    one = tenant(agent, "one", 3)
    assert agent.register("two", plan(1, resident=(0,), ring=0, workspace=3 * EXTENT_BYTES))["ok"]
    leaving = agent.program("two", 0, 3, LEAVING_PROGRAM)
    leaving.tell("job")  # its end may come before its answer
    assert leaving.process.wait(TIMEOUT_S) == -signal.SIGKILL
    one.begin()
    one.end()


def test_another_domain_sees_nothing(agent: AgentProcess) -> None:
    one = tenant(agent, "one", 3)
    stranger = tenant(agent, "stranger", 3, domain="elsewhere")
    one.begin()
    one.write(FIRST)
    one.end()
    stranger.begin()
    assert all(extent[:] == bytes(EXTENT_BYTES) for extent in stranger.memory)
    stranger.end()


@pytest.mark.timeout(600)
def test_programs_on_a_gpu_are_swapped_whole(tmp_path: Path) -> None:
    with (
        simulated_machine() as machine,
        gpu_agent.gpu_agent(tmp_path, machine, fast_extents=8) as agent,
    ):
        names = ("one", "two", "three")
        for name in names:
            size = 5 * gpu_agent.EXTENT_BYTES
            plan_of = gpu_agent.gpu_plan(0, workspace=size, ring=0)
            assert agent.register(name, plan_of)["ok"]
        # Of 8 extents.
        programs = {name: agent.program(name, 0, 5, GPU_PROGRAM) for name in names}
        for mark, name in enumerate(names, start=1):
            assert programs[name].do(f"write {mark}") == "written"
        for _ in range(2):
            for mark, name in enumerate(names, start=1):
                assert programs[name].do("read") == str(mark)
        programs["two"].kill()
        assert programs["one"].do("read") == "1"
        assert programs["three"].do("read") == "3"


class GpuTenant(RawClient):
    """A client that uses a GPU, and maps nothing."""

    device = p.Device.CUDA


def test_one_that_left_while_its_workspace_was_made_is_not_waited_for(tmp_path: Path) -> None:
    with simulated_machine() as machine, gpu_agent.gpu_agent(tmp_path, machine) as agent:
        size = 3 * gpu_agent.EXTENT_BYTES
        assert agent.register("one", gpu_agent.gpu_plan(0, workspace=size, ring=0))["ok"]
        client = agent.connect("one", GpuTenant)
        client.hello()
        held = machine / "held"
        held.touch()
        (machine / "faults").write_text(f"hold cuMemHostRegister 1+ {held}\n")
        client.send(p.Workspace(size, p.WorkspaceFlags.PRESERVE))
        client.close()
        wait_until(lambda: agent.task("one")["clients"] == [], "the client has left")
        held.unlink()
        wait_until(lambda: "has a workspace" in agent.log.read_text(), "the workspace is there")
        assert ClientBook(agent.run_dir / "clients.json").load() == []


@pytest.mark.parametrize(
    ("requests", "code", "reason"),
    [
        ([4 * EXTENT_BYTES + 1], p.ErrorCode.QUOTA, "the task's plan has"),
        ([1, 1], p.ErrorCode.OUT_OF_ORDER, "WORKSPACE was sent twice"),
    ],
    ids=["more than planned", "twice"],
)
def test_what_is_refused(
    shared_agent: AgentProcess, requests: list[int], code: p.ErrorCode, reason: str
) -> None:
    shared_agent.register("one", plan(2, workspace=4 * EXTENT_BYTES))
    client = shared_agent.client("one")
    for size in requests:
        client.send(p.Workspace(size, p.WorkspaceFlags(0)))
    answers = iter(client.receive, None)
    error = next(message for _, message, _ in answers if isinstance(message, p.Error))
    assert error.code is code
    assert reason in error.reason
