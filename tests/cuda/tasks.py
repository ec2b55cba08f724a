"""The scenarios of gpu_task and gpu_graphs, and the plans under which they run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cuda.programs import PATIENCE_S, Running
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.gpu_agent import gpu_plan

HERE = Path(__file__).parent
EXTENTS = 12
PROGRAMS = ("gpu_task", "gpu_graphs")
SCENARIOS = [
    (program, name)
    for program in PROGRAMS
    for name in re.findall(
        r'^ {8}\{"(\w+)", \1\}', (HERE / f"{program}.c").read_text(), re.MULTILINE
    )
]
FAILING = ("refused_launch", "unreadable", "revoked_early")
"""Those that have the driver refuse calls of their own."""
UNSEEN = {
    "unseen_table": "sim_gemm_array",
    "unseen_distance": "sim_gemm_offsets",
    "unseen_later": "sim_gemm_array",
    "unseen_between": "sim_gemm_array",
    "old_addresses": "sim_gemm_array",
}
"""Those that end with a fault, and the kernel that reads where nobody can see it."""
DIALOGUES = (
    *("agent_killed", "revoked", "revoked_slow", "revoked_early", "unswappable", "held", "reader"),
    *UNSEEN,
)
BY_THEMSELVES = [scenario for scenario in SCENARIOS if scenario[1] not in DIALOGUES]
PLANS = {
    "all streamed": gpu_plan(EXTENTS, ring=4),
    "some resident": gpu_plan(EXTENTS, ring=3, resident=(0, 3, 4, 9)),
    "the smallest ring": gpu_plan(EXTENTS, ring=3),
}


SYNCHRONOUS = {
    "SIMCUDA_FAULT_FILE": "",  # faults are the agent's
    "SIMCUDA_CALLS_WAIT": "1",
}


class Task(Running):
    """One running scenario."""

    def __init__(
        self, agent: AgentProcess, flavour: str, program: str, name: str, **settings: str
    ) -> None:
        socket = agent.run_dir / "tasks" / "vision" / "tierline.sock"
        arguments = (name, str(socket), str(EXTENTS))
        self.faults = agent.folder / f"faults-of-{name}"
        own = {"SIMCUDA_FAULT_FILE": str(self.faults)} if name in FAILING else {}
        self.faults.write_text("")  # of an earlier one
        super().__init__(agent, flavour, program, *arguments, **(SYNCHRONOUS | own | settings))

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said == word, (said, self.process.communicate(timeout=PATIENCE_S))

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def held(self) -> str:
        """Wait for the end; every claim held. Returns what it complained of."""
        return self.ends()[1]
