"""Plain CUDA programs under policy Swap, with the real agent on a simulated GPU.

The programs (gpu_swap.c) check every byte of their memory. Here several of them, which together
need more than the fast memory, take turns; and the agent, or one of them, is killed meanwhile.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cuda.programs import PATIENCE_S, Running, left
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.gpu_agent import EXTENT_BYTES, gpu_agent, gpu_plan
from tests.interposer.test_interposer import library
from tests.native_builds import FLAVOURS, ROOT, run, simulated_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXTENTS = 9  # of each program's workspace, of which it uses seven at the least
FAST_EXTENTS = 12  # one for each program's weights, of which there are none
WAYS_OF_WORDS = 20  # in gpu_flags.c
KINDS_OF_STREAMS = 5  # there, too
COMMANDS = ("check", "copy", "graph", "write", "renew")
ALONE = {
    "attributes": "cuIpcGetMemHandle refused: the 3145728 bytes",
    "chosen": "",
    "overflowing": "do not fit into the 4194304 bytes of swapped memory",
    "threads": "",
    "explicit_jobs": "",
    "forking": "",
    "resetting": "",
}
SMALL = {"TIERLINE_SWAP": "4Mi", "TIERLINE_BUDGET": "12Mi"}
SETTINGS = {
    "attributes": SMALL,
    "chosen": {**SMALL, "TIERLINE_SWAP_OBJECTS": "1,3-4"},
    "overflowing": SMALL,
}


class Program(Running):
    """One running scenario of gpu_swap.c, or of another program."""

    def __init__(
        self,
        agent: AgentProcess,
        flavour: str,
        task: str,
        scenario: str,
        *,
        program: str = "gpu_swap",
        **settings: str,
    ) -> None:
        swapping = {
            "TIERLINE_SOCKET": str(agent.run_dir / "tasks" / task / "tierline.sock"),
            "TIERLINE_REQUIRED": "1",
            "TIERLINE_RECONNECT_S": "300",
            "TIERLINE_SWAP": str(EXTENTS * EXTENT_BYTES),
        }
        arguments = (scenario, str(len(task)))
        super().__init__(agent, flavour, program, *arguments, **(swapping | settings))

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said == word, (said, self.process.communicate(timeout=PATIENCE_S))

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.stdin = None
            pytest.fail(f"it has ended: {self.process.communicate(timeout=PATIENCE_S)}")

    def do(self, command: str) -> None:
        self.tell(command)
        self.expect("done")

    def held(self) -> str:
        """Wait for a good end. Returns what it complained of."""
        return self.ends()[1]


@pytest.fixture(scope="module")
def agent_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    folder = tmp_path_factory.mktemp("agent")
    with (
        simulated_machine() as machine,
        gpu_agent(folder, machine, fast_extents=FAST_EXTENTS) as process,
    ):
        yield process


def register(agent: AgentProcess, *tasks: str) -> None:
    for task in tasks:
        plan = gpu_plan(0, ring=0, workspace=EXTENTS * EXTENT_BYTES)
        assert agent.register(task, plan)["ok"]


def served(
    agent: AgentProcess, flavour: str, *tasks: str, source: str = "gpu_swap"
) -> dict[str, Program]:
    register(agent, *tasks)
    programs = {task: Program(agent, flavour, task, "serve", program=source) for task in tasks}
    for program in programs.values():
        program.expect("ready")
    return programs


def end(programs: dict[str, Program]) -> None:
    for program in programs.values():
        program.tell("end")
        said = program.held()  # where its pieces lie depends on when its frees are reached
        assert said == "" or "do not fit" in said


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("scenario", ALONE)
def test_alone(agent: AgentProcess, scenario: str, flavour: str) -> None:
    register(agent, "alone")
    said = Program(agent, flavour, "alone", scenario, **SETTINGS.get(scenario, {})).held()
    assert ALONE[scenario] in said
    assert bool(said) == bool(ALONE[scenario])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_programs_take_turns(agent: AgentProcess, flavour: str) -> None:
    programs = served(agent, flavour, "a", "bb", "ccc")
    dice = random.Random(flavour)  # noqa: S311 - which turn is next
    for _ in range(20):
        programs[dice.choice(list(programs))].do(dice.choice(COMMANDS))
    for _ in range(3):  # at once, as the leases allow
        for program in programs.values():
            program.tell("check")
        for program in programs.values():
            program.expect("done")
    end(programs)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_words_of_swapped_memory_are_written_and_awaited_under_the_lease(
    agent: AgentProcess, flavour: str
) -> None:
    """Each way is a program's first call after another one had the device.

    Without the lease a write went into the other's memory, and a wait saw the other's words.
    """
    programs = served(agent, flavour, "a", "bb", source="gpu_flags")
    for _ in range(WAYS_OF_WORDS):
        for command in ("touch", "check"):
            for program in programs.values():
                program.do(command)
    end(programs)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_no_stream_is_forgotten_when_a_job_ends(agent: AgentProcess, flavour: str) -> None:
    """Work that nobody waits for is done before another program has the device.

    And a stream that stands at a flag does not keep the call from coming that sets it.
    """
    programs = served(agent, flavour, "a", "bb", source="gpu_flags")
    for _ in range(KINDS_OF_STREAMS):
        programs["a"].do("write")
        programs["bb"].do("check")
        programs["a"].do("check")
        programs["bb"].do("stand")
        programs["a"].do("check")
        programs["bb"].do("check")
    end(programs)


def test_a_killed_program_takes_only_its_own_with_it(agent: AgentProcess) -> None:
    programs = served(agent, "plain", "a", "bb", "ccc")
    killed = programs.pop("bb")
    killed.tell("long")
    killed.expect("running")
    killed.process.kill()
    killed.process.communicate()
    for _ in range(2):
        for program in programs.values():
            program.do("check")
    end(programs)


@pytest.mark.parametrize("flavour", ["plain", "thread"])
def test_the_agent_is_killed_in_mid_job_and_between_jobs(flavour: str, tmp_path: Path) -> None:
    with (
        simulated_machine() as machine,
        gpu_agent(
            tmp_path, machine, fast_extents=FAST_EXTENTS, recovery_s=60, holder_grace_s=300
        ) as agent,
    ):
        programs = served(agent, flavour, "a", "bb", "ccc")
        programs["bb"].tell("long")
        programs["bb"].expect("running")
        agent.kill()
        agent.start()
        programs["bb"].expect("done")
        for command in ("check", "write"):
            for program in programs.values():
                program.do(command)
        agent.kill()
        agent.start()
        for program in programs.values():
            program.do("copy")
        end(programs)


PYTHON_PROGRAM = """
import tierline
from cuda.bindings import driver
from tests.integration.agent.gpu_client import ok, start_cuda

start_cuda()
size = 3 << 20
address = ok(driver.cuMemAlloc(size))
for value in range(1, 4):
    with tierline.job():
        ok(driver.cuMemsetD8(address, value, size))
        with tierline.job():
            copy = bytearray(size)
            ok(driver.cuMemcpyDtoH(copy, address, size))
    assert copy == bytes([value]) * size
"""


def test_python_without_torch_has_explicit_jobs(agent: AgentProcess) -> None:
    register(agent, "python")
    socket = agent.run_dir / "tasks" / "python" / "tierline.sock"
    run(
        sys.executable,
        "-c",
        PYTHON_PROGRAM,
        env={
            **agent.environment,
            "LD_PRELOAD": library("plain"),
            "TIERLINE_LIBRARY": library("plain"),
            "TIERLINE_SOCKET": str(socket),
            "TIERLINE_REQUIRED": "1",
            "TIERLINE_SWAP": str(EXTENTS * EXTENT_BYTES),
            "PYTHONPATH": str(ROOT),
        },
    )
    assert left(agent, "python")["jobs"] == 3


def test_the_example_gets_each_picture_back_while_another_has_the_device(
    agent: AgentProcess,
) -> None:
    others = served(agent, "plain", "a")
    register(agent, "left")
    run(
        *(sys.executable, "-m", "tierline_examples.history", "--pictures", "3", "--jobs", "7"),
        env={
            **agent.environment,
            "LD_PRELOAD": library("plain"),
            "TIERLINE_LIBRARY": library("plain"),
            "TIERLINE_SOCKET": str(agent.run_dir / "tasks" / "left" / "tierline.sock"),
            "TIERLINE_REQUIRED": "1",
            "TIERLINE_SWAP": str(EXTENTS * EXTENT_BYTES),
        },
    )
    assert left(agent, "left")["jobs"] == 7
    others["a"].do("check")
    end(others)


@pytest.mark.parametrize(
    ("settings", "scenario", "said"),
    [
        ({"TIERLINE_REQUIRED": "0"}, "without_agent", "this program runs without Tierline"),
        ({"TIERLINE_SWAP": "1Ti"}, "refused", "could not borrow the 1099511627776 bytes"),
        (
            {"TIERLINE_SWAP": "1Ti", "TIERLINE_REQUIRED": "0"},
            "without_agent",
            "this program runs without Tierline",
        ),
        ({"TIERLINE_SWAP": "much"}, "not_understood", "TIERLINE_SWAP='much'"),
        ({"TIERLINE_SWAP_OBJECTS": "4-2"}, "not_understood", "TIERLINE_SWAP_OBJECTS='4-2'"),
    ],
    ids=["no agent", "more than planned", "more than planned, not required", "bytes", "objects"],
)
def test_what_is_said(
    agent: AgentProcess, settings: dict[str, str], scenario: str, said: str
) -> None:
    register(agent, "alone")
    absent = scenario == "without_agent" and "TIERLINE_SWAP" not in settings
    place = {"TIERLINE_SOCKET": "/nowhere/tierline.sock"} if absent else {}
    settings = {name: value.replace("1Ti", "1024Gi") for name, value in settings.items()}
    program = Program(agent, "plain", "alone", scenario, **settings, **place)
    assert said in program.held()
