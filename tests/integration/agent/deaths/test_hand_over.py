"""The next agent prepares while the one before serves, and takes nothing of it before its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, TaskProcess, wait_until
from tests.integration.agent.gpu_agent import (
    EXTENT_BYTES,
    GPU_PROGRAM,
    gpu_agent,
    gpu_plan,
)
from tests.native_builds import simulated_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MIB = 1 << 20
CONTEXT_BYTES = 32 * MIB
FAST_EXTENTS = 24
EXTENTS = 12
USED = """
from cuda.bindings import driver
import pynvml
driver.cuInit(0)
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
"""


@contextmanager
def serving(folder: Path, contexts: int = 8) -> Iterator[tuple[AgentProcess, Path]]:
    """An agent of a GPU with room for so many contexts next to fast memory, and its machine."""
    memory = FAST_EXTENTS * EXTENT_BYTES + contexts * CONTEXT_BYTES
    gpu = {"MEMORY": str(memory), "CONTEXT": str(CONTEXT_BYTES)}
    with simulated_machine() as machine, gpu_agent(folder, machine, FAST_EXTENTS, gpu) as agent:
        yield agent, machine


def used_bytes(agent: AgentProcess) -> int:
    """Memory of the GPU that is in use."""
    asked = [sys.executable, "-c", USED]
    return int(subprocess.run(asked, env=agent.environment, check=True, capture_output=True).stdout)


def started(agent: AgentProcess, name: str = "vision", seed: int = 1) -> TaskProcess:
    """A task that streams all its weights, and has run a job."""
    assert agent.register(name, gpu_plan(EXTENTS, ring=3))["ok"]
    program = agent.program(name, seed, EXTENTS, GPU_PROGRAM)
    assert program.do("job") == program.expected
    return program


def comes_back(program: TaskProcess) -> None:
    """Its next job, with the agent that is there now, reads what it loaded."""
    assert program.do("reattach") == "back"
    for _ in range(2):
        assert program.do("job") == program.expected


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_context_and_pins_are_there_when_the_agent_ends(tmp_path: Path, end: str) -> None:
    once = {"SIMCUDA_FAULTS": "call cuDevicePrimaryCtxRetain 2+ OUT_OF_MEMORY"}
    with serving(tmp_path) as (agent, machine):
        vision, speech = started(agent), started(agent, "speech", 2)
        before = used_bytes(agent)
        following = agent.stand_by({**once, "SIMCUDA_FAULT_FILE": ""})
        assert used_bytes(agent) == before + CONTEXT_BYTES
        mapped = following.maps(machine / "dram")
        assert len(mapped) == 2, "its own mapping, and the one that is pinned"
        for program in (vision, speech):
            assert program.do("job") == program.expected

        assert vision.do("half") == "half"
        agent.kill() if end == "kill" else agent.terminate()
        agent.take_over(following)
        assert following.maps(machine / "dram") == mapped
        assert vision.do("reattach") == "back"
        assert vision.do("rest") == vision.expected
        comes_back(speech)
        assert vision.do("job") == vision.expected
        context = agent.snapshot()["devices"][0]["context_bytes"]
        assert context == CONTEXT_BYTES
        assert "later" not in following.said()


def test_nothing_is_left_of_one_that_dies_while_it_stands_by(tmp_path: Path) -> None:
    with serving(tmp_path) as (agent, machine):
        vision = started(agent)
        before, files = used_bytes(agent), there(agent, machine)
        for _ in range(2):
            following = agent.stand_by()
            assert vision.do("job") == vision.expected
            following.kill()
            assert used_bytes(agent) == before
            assert there(agent, machine) == files
        assert vision.do("job") == vision.expected
        agent.kill()
        agent.start()
        comes_back(vision)


def there(agent: AgentProcess, machine: Path) -> set[Path]:
    """The files of an agent, and of its tier."""
    folders = (agent.run_dir, agent.folder / "state")
    return {path for folder in folders for path in folder.rglob("*")} | {*machine.glob("dram*")}


def test_a_context_is_left_to_tasks_that_were_promised_the_memory(tmp_path: Path) -> None:
    with serving(tmp_path, contexts=3) as (agent, machine):  # the agent's, and two tasks'
        vision = started(agent)
        one = used_bytes(agent)
        following = agent.stand_by()
        assert used_bytes(agent) == one + CONTEXT_BYTES
        assert agent.register("speech", gpu_plan(EXTENTS, ring=3))["ok"]
        following.await_words("gpu-0 is left to the tasks")
        assert used_bytes(agent) == one
        speech = agent.program("speech", 2, EXTENTS, GPU_PROGRAM)
        assert len(following.maps(machine / "dram")) == 1
        following.kill()

        following = agent.stand_by()  # has no room from the start
        assert "gpu-0 has no room for another context" in following.said()
        agent.terminate()
        agent.take_over(following)
        for program in (vision, speech):
            comes_back(program)


def test_a_context_is_given_back_also_while_tiers_are_pinned(tmp_path: Path) -> None:
    with serving(tmp_path, contexts=3) as (agent, machine):
        vision = started(agent)
        one, held = used_bytes(agent), machine / "held"
        held.touch()
        slow = {"SIMCUDA_FAULTS": f"hold cuMemHostRegister 2+ {held}", "SIMCUDA_FAULT_FILE": ""}
        following = agent.stand_by(slow, until="made 1 of 1 devices")
        wait_until(lambda: len(following.maps(machine / "dram")) == 2, "it pins the tier")
        assert agent.register("speech", gpu_plan(EXTENTS, ring=3))["ok"]
        speech = agent.program("speech", 2, EXTENTS, GPU_PROGRAM)
        assert speech.do("job") == speech.expected
        assert "pinned tiers" not in following.said()
        held.unlink()
        following.await_words("gpu-0 is left to the tasks")
        following.await_words("ready for the end")
        assert used_bytes(agent) == one + CONTEXT_BYTES, "the one of speech"
        assert len(following.maps(machine / "dram")) == 1
        agent.terminate()
        agent.take_over(following)
        assert agent.snapshot()["devices"][0]["context_bytes"] == CONTEXT_BYTES
        for program in (vision, speech):
            comes_back(program)


def test_a_context_for_which_memory_is_lacking_is_made_later(tmp_path: Path) -> None:
    fails = {"SIMCUDA_FAULTS": "call cuDevicePrimaryCtxRetain 1 OUT_OF_MEMORY"}
    with serving(tmp_path) as (agent, _machine):
        vision = started(agent)
        following = agent.stand_by({**fails, "SIMCUDA_FAULT_FILE": ""})
        assert "a device is opened later: cannot make a context on GPU 0" in following.said()
        agent.terminate()
        agent.take_over(following)
        comes_back(vision)
        assert agent.snapshot()["devices"][0]["context_bytes"] == CONTEXT_BYTES


def test_a_device_that_is_lost_meanwhile_is_made_again(tmp_path: Path) -> None:
    with serving(tmp_path) as (agent, machine):
        vision = started(agent)
        following = agent.stand_by()
        agent.kill()
        vision.kill()
        agent.take_over(following)
        following = agent.stand_by()
        faults = machine / "faults"
        faults.write_text("device 0 lost\n")
        wait_until(lambda: agent.snapshot()["devices"][0]["lost"], "it is lost")
        faults.write_text("device 0 restored\n")
        agent.terminate()
        agent.take_over(following)
        assert started(agent, "speech", 2)


@pytest.mark.parametrize("size_bytes", [64 * MIB, 128 * MIB])
def test_a_tier_that_gets_another_size_is_not_what_was_there(
    tmp_path: Path, size_bytes: int
) -> None:
    with serving(tmp_path) as (agent, machine):
        vision = started(agent)
        tiers = [{"name": "dram", "path": str(machine / "dram"), "size_bytes": size_bytes}]
        following = agent.stand_by(tiers=tiers)
        assert len(following.maps(machine / "dram")) == 0
        assert vision.do("job") == vision.expected
        agent.terminate()
        agent.take_over(following)
        comes_back(vision)
        assert (machine / "dram").stat().st_size == size_bytes


def test_a_tier_that_was_replaced_is_let_go_and_pinned_again(tmp_path: Path) -> None:
    with serving(tmp_path) as (agent, machine):
        vision = started(agent)
        store, copied = machine / "dram", machine / "copy"
        following = agent.stand_by()
        assert len(following.maps(store)) == 2
        shutil.copyfile(store, copied)
        copied.chmod(0o600)
        copied.replace(store)
        removed = Path(f"{store} (deleted)")
        assert len(following.maps(removed)) == 2
        agent.kill()
        agent.take_over(following)
        assert not following.maps(removed)
        assert len(following.maps(store)) == 2
        comes_back(vision)


def test_who_stands_by_writes_and_makes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as (agent, machine):
        vision = started(agent)
        store, aside = machine / "dram", machine / "aside"
        before = store.read_bytes()
        agent.stand_by().kill()
        assert store.read_bytes() == before
        store.rename(aside)
        following = agent.stand_by()
        assert not store.exists()
        aside.rename(store)
        agent.kill()
        agent.take_over(following)
        comes_back(vision)
