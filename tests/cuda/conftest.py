"""The agent of a simulated GPU, one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cuda.programs import end_those_left
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.gpu_agent import gpu_agent
from tests.native_builds import simulated_machine


@pytest.fixture(scope="module")
def agent_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    folder = tmp_path_factory.mktemp("agent")
    with (
        simulated_machine() as machine,
        gpu_agent(folder, machine, fast_extents=40, revoke_grace_s=600) as process,
    ):
        yield process


@pytest.fixture
def agent(agent_of_module: AgentProcess) -> Iterator[AgentProcess]:
    """An agent without tasks that served other tests before."""
    yield agent_of_module
    end_those_left()
    agent_of_module.forget_tasks()
