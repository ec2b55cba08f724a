from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess


def running(folder: Path) -> Iterator[AgentProcess]:
    """An agent of 16 extents and one tier, as long as it is needed."""
    process = AgentProcess(folder, metrics_port=0)
    process.start()
    yield process
    assert process.stop() in (0, -9), process.log.read_text()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent for this test alone."""
    yield from running(tmp_path)


@pytest.fixture(scope="module")
def agent_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    yield from running(tmp_path_factory.mktemp("agent"))


@pytest.fixture
def shared_agent(agent_of_module: AgentProcess) -> Iterator[AgentProcess]:
    """An agent without tasks that served other tests before: it starts a second faster."""
    yield agent_of_module
    agent_of_module.forget_tasks()
