"""A fixed share of the schedules; `python -m tests.cuda.schedules` plays the others."""

from __future__ import annotations

import pytest
from tests.cuda.schedules import play
from tests.integration.agent.agent_process import AgentProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARE = 40


@pytest.mark.parametrize("number", range(SHARE))
def test_a_schedule(agent: AgentProcess, number: int) -> None:
    play(agent, number)
