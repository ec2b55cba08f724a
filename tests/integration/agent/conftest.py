from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """A running agent of 16 extents and one tier."""
    process = AgentProcess(tmp_path)
    process.start()
    yield process
    assert process.stop() in (0, -9), process.log.read_text()
