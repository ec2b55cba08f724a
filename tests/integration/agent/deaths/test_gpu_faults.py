"""A GPU's agent and clients dying, on the simulated driver: right bytes, and no bytes of others."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, TaskProcess, wait_until
from tests.integration.agent.gpu_agent import (
    EXTENT_BYTES,
    GPU_PROGRAM,
    gpu_agent,
    gpu_plan,
)
from tests.integration.agent.gpu_client import GpuClient
from tests.integration.agent.raw_client import ClosedError, RefusedError
from tests.native_builds import ROOT, simulated_machine

from tierline_agent.transport import protocol as p

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def machine() -> Iterator[Path]:
    with simulated_machine() as folder:
        yield folder


@pytest.fixture
def agent(tmp_path: Path, machine: Path) -> Iterator[AgentProcess]:
    with gpu_agent(tmp_path, machine, metrics_port=0) as process:
        yield process


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_job_goes_on_after_the_agent_was_restarted(agent: AgentProcess, end: str) -> None:
    agent.register("vision", gpu_plan(10, ring=3, resident=(0, 6)))
    agent.register("speech", gpu_plan(8, ring=2))
    vision = agent.program("vision", 1, 10, GPU_PROGRAM)
    speech = agent.program("speech", 2, 8, GPU_PROGRAM)
    assert vision.do("half") == "half"
    if end == "kill":
        agent.kill()
    else:
        assert agent.terminate() == 0
    agent.start()
    assert speech.do("reattach") == "back"
    assert vision.do("reattach") == "back"
    assert vision.do("rest") == vision.expected
    for _ in range(2):
        assert speech.do("job") == speech.expected
        assert vision.do("job") == vision.expected
    assert agent.task("vision")["revoked"] == 0
    assert agent.extents() == {"free": 0, "resident": 2, "ring": 3, "workspace": 0, "draining": 0}


def test_what_was_offered_back_is_destroyed_when_it_is_given_up(agent: AgentProcess) -> None:
    agent.register("vision", gpu_plan(6, ring=2, resident=(0,)))
    vision = agent.program("vision", 1, 6, GPU_PROGRAM)
    agent.kill()
    agent.start()
    assert vision.do("reattach") == "back"
    assert agent.extents()["resident"] == 1
    vision.kill()
    wait_until(lambda: agent.extents()["resident"] == 0, "the resident extent is given up")
    assert agent.call("remove", name="vision")["ok"]
    wait_until(lambda: not any(agent.extents().values()), "all extents are gone")


def test_a_client_killed_while_it_streams_costs_nobody_a_job(agent: AgentProcess) -> None:
    agent.register("victim", gpu_plan(12, ring=2, resident=(3,)))
    agent.register("other", gpu_plan(9, ring=2))
    victim = agent.program("victim", 1, 12, GPU_PROGRAM)
    other = agent.program("other", 2, 9, GPU_PROGRAM)
    assert victim.do("stall") == "stalled"
    other.tell("job")
    victim.kill()
    assert other.answer() == other.expected
    left = {"free": 1, "resident": 0, "ring": 2, "workspace": 0, "draining": 0}
    wait_until(lambda: agent.extents() == left, "the victim's extents are free")
    seen = agent.task("victim")
    assert seen["broken"] == 1
    assert agent.task("other")["misses"] == 0
    line = "tierline_reclaim_seconds_count 1.0"
    wait_until(lambda: line in metrics(agent), "the reclaim is counted")


def metrics(agent: AgentProcess) -> str:
    """What the agent's endpoint says now."""
    with urllib.request.urlopen(agent.metrics_address(), timeout=60) as answer:  # noqa: S310
        text: str = answer.read().decode()
    return text


LOOK = """
import ctypes, hashlib, sys
from pathlib import Path
from tests.integration.agent.gpu_client import GpuArena, GpuClient, ok, start_cuda
from cuda.bindings import driver
start_cuda(0)
client = GpuClient(Path(sys.argv[1]))
client.hello()
arena = GpuArena(*client.borrow(int(sys.argv[2])))
size = len(arena.placement) * arena.extent_bytes
host = ctypes.create_string_buffer(size)
ok(driver.cuMemcpyDtoH(ctypes.addressof(host), arena.base, size))
print(len(arena.placement), sum(1 for byte in host.raw if byte))
"""


def look(agent: AgentProcess, task: str, size_bytes: int) -> tuple[int, int] | str:
    """What a new process of a task is lent: extents, and how many of their bytes are not zero.

    If it is refused, why.
    """
    path = str(agent.run_dir / "tasks" / task / "tierline.sock")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, path, str(size_bytes)],
        cwd=ROOT,
        env=agent.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return done.stderr
    extents, other = done.stdout.split()
    return int(extents), int(other)


def test_no_extent_shows_one_domains_bytes_to_another(agent: AgentProcess) -> None:
    """The fast memory holds 24 extents; `a` fills 22 of them, then `b` gets as many."""
    agent.register("a", gpu_plan(22, ring=2, resident=tuple(range(20))), domain="a")
    first = agent.program("a", 1, 22, GPU_PROGRAM)
    assert first.do("job") == first.expected
    first.kill()
    wait_until(lambda: agent.extents()["free"] == 20, "the extents of a are free")
    assert agent.call("remove", name="a")["ok"]
    agent.register("b", gpu_plan(22, ring=2, resident=tuple(range(20))), domain="b")
    assert look(agent, "b", 22 * EXTENT_BYTES) == (22, 0)


def test_memory_of_a_living_process_is_not_given_away(agent: AgentProcess) -> None:
    agent.register("a", gpu_plan(22, ring=2, resident=tuple(range(20))), domain="a")
    first = agent.program("a", 1, 22, GPU_PROGRAM)
    assert agent.call("remove", name="a")["ok"]
    assert agent.extents()["draining"] == 22
    agent.register("b", gpu_plan(22, ring=2, resident=tuple(range(20))), domain="b")
    refused = look(agent, "b", 22 * EXTENT_BYTES)
    assert "still mapped by processes that gave them up" in str(refused)
    first.kill()
    wait_until(lambda: agent.extents()["draining"] == 0, "the extents of a are free")
    assert look(agent, "b", 22 * EXTENT_BYTES) == (22, 0)


@pytest.fixture
def two_gpus(
    tmp_path: Path, machine: Path, request: pytest.FixtureRequest
) -> Iterator[AgentProcess]:
    """An agent with two GPUs and a task on each, left and right; tiers as a test asks for."""
    size = {"fast_bytes": 8 * EXTENT_BYTES, "extent_bytes": EXTENT_BYTES}
    devices = [{"kind": "cuda", "index": index, **size} for index in range(2)]
    with gpu_agent(
        *(tmp_path, machine),
        gpu={"DEVICES": "2", "CONTEXT": "4Mi"},
        tiers=getattr(request, "param", ("dram",)),
        device=None,
        devices=devices,
        metrics_port=0,
    ) as agent:
        yield agent


def on_gpu(agent: AgentProcess, index: int, task: str) -> TaskProcess:
    """A program of a task on one of two GPUs."""
    agent.environment["TASK_GPU"] = str(index)
    return agent.program(task, index, 9, GPU_PROGRAM)


@pytest.mark.parametrize("two_gpus", [("dram", "nvme")], indirect=True, ids=["one disk"])
def test_two_gpus_stream_at_once(two_gpus: AgentProcess) -> None:
    agent = two_gpus
    node = agent.call("node")["node"]
    uuids = [device["uuid"] for device in node["status"]["devices"]]
    assert [device["name"] for device in node["status"]["devices"]] == ["gpu-0", "gpu-1"]
    assert {tuple(device["preemption"]) for device in node["status"]["devices"]} == {
        ("LayerPreemptive", "RingKeeping")
    }
    homes = (("nvme", 6), ("dram", 3))
    assert agent.register("left", gpu_plan(9, ring=3, homes=homes), device="gpu-0")["ok"]
    assert agent.register("right", gpu_plan(9, ring=3, homes=homes), device=uuids[1])["ok"]
    left, right = on_gpu(agent, 0, "left"), on_gpu(agent, 1, "right")
    assert left.do("half") == "half"  # the lease of one is not that of the other
    assert right.do("job") == right.expected
    assert left.do("rest") == left.expected
    for _ in range(3):
        left.tell("job")
        right.tell("job")
        assert left.answer() == left.expected
        assert right.answer() == right.expected
    listed = agent.call("node")["node"]["status"]["links"]
    sharing = {(link["name"], link["device"]): link["devices"] for link in listed}
    gpus = ("gpu-0", "gpu-1")
    assert {sharing["h2d", gpu] for gpu in gpus} == {1}
    assert {sharing["nvme-read", gpu] for gpu in gpus} == {2}
    rates = {link["bandwidth"] for link in listed if link["name"] == "nvme-read"}
    assert len(rates) == 1  # of all that both read together


def test_a_lost_gpu_costs_only_its_own_tasks(two_gpus: AgentProcess, machine: Path) -> None:
    agent = two_gpus
    agent.register("left", gpu_plan(9, ring=3, resident=(2,)), device="0")
    agent.register("right", gpu_plan(9, ring=3), device="1")
    left, right = on_gpu(agent, 0, "left"), on_gpu(agent, 1, "right")
    assert left.do("stall") == "stalled"
    assert right.do("half") == "half"
    witness = agent.connect("left", GpuClient)
    witness.hello()

    (machine / "faults").write_text("device 0 lost\n")
    _, told, _ = witness.receive()
    assert isinstance(told, p.Error)
    assert "gpu-0 was lost" in told.reason
    with pytest.raises(ClosedError):
        witness.receive()
    assert right.do("rest") == right.expected
    assert right.do("job") == right.expected
    health = {one["name"]: one["lost"] for one in agent.snapshot()["devices"]}
    assert health == {"gpu-0": True, "gpu-1": False}
    with pytest.raises(RefusedError, match="is lost"):
        agent.connect("left", GpuClient).hello()
    left.kill()

    (machine / "faults").write_text("device 0 restored\n")
    wait_until(lambda: not agent.snapshot()["devices"][0]["lost"], "the GPU works again")
    assert agent.snapshot()["devices"][0]["extents"]["resident"] == 0
    left = on_gpu(agent, 0, "left")
    for _ in range(2):
        assert left.do("job") == left.expected
        assert right.do("job") == right.expected
    assert 'tierline_device_losses_total{device="gpu-0"} 1.0' in metrics(agent)


def test_errors_that_the_driver_reports_are_counted(two_gpus: AgentProcess, machine: Path) -> None:
    agent = two_gpus
    agent.register("left", gpu_plan(9, ring=2), device="0")
    (machine / "faults").write_text("device 1 xid 13\n")
    left = on_gpu(agent, 0, "left")  # its calls let the simulated driver read the faults
    line = 'tierline_device_last_xid{device="gpu-1"} 13.0'
    wait_until(lambda: line in metrics(agent), "the error is counted")
    assert left.do("job") == left.expected
    devices = agent.snapshot()["devices"]
    assert not any(device["lost"] for device in devices)
    assert {device["context_bytes"] for device in devices} == {4 << 20}


def test_an_illegal_access_of_the_agent_costs_a_reload(agent: AgentProcess, machine: Path) -> None:
    agent.register("vision", gpu_plan(9, ring=3, resident=(2,)))
    vision = agent.program("vision", 1, 9, GPU_PROGRAM)
    assert vision.do("job") == vision.expected
    (machine / "faults").write_text("call cuMemcpyHtoDAsync 3 ILLEGAL_ADDRESS\n")
    vision.tell("job")
    wait_until(lambda: 'losses_total{device="gpu-0"} 1.0' in metrics(agent), "the loss is noticed")
    vision.kill()
    wait_until(lambda: not agent.snapshot()["devices"][0]["lost"], "the GPU works again")
    vision = agent.program("vision", 1, 9, GPU_PROGRAM)
    for _ in range(3):
        assert vision.do("job") == vision.expected
    assert agent.extents() == {"free": 0, "resident": 1, "ring": 3, "workspace": 0, "draining": 0}


@pytest.mark.parametrize(
    "refused",
    ["cuMemcpyHtoDAsync 2", "cuStreamWriteValue32 2", "cuEventRecord 3"],
    ids=["copy", "publish", "end"],
)
def test_what_was_enqueued_of_a_refused_extent_holds_nobody_up(
    agent: AgentProcess, machine: Path, refused: str
) -> None:
    """The second extent waits for the first one to be consumed, and its client never does that."""
    agent.register("victim", gpu_plan(6, ring=1, resident=(0,)))
    agent.register("other", gpu_plan(9, ring=2))
    victim = agent.program("victim", 1, 6, GPU_PROGRAM)
    other = agent.program("other", 2, 9, GPU_PROGRAM)
    (machine / "faults").write_text(f"call {refused} INVALID_VALUE\n")
    assert victim.do("stall") == "stalled"  # it reads the resident extent alone
    victim.kill()
    left = {"free": 1, "resident": 0, "ring": 2, "workspace": 0, "draining": 0}
    wait_until(lambda: agent.extents() == left, "the victim's extents are free")
    (machine / "faults").write_text("")  # they are the other one's too
    for _ in range(2):
        assert other.do("job") == other.expected
    assert agent.task("other")["revoked"] == 0
