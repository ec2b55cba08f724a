"""What `tierline top` shows of an agent that runs."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner
from tests.integration.agent.agent_process import AgentProcess, plan

from tierline_api.objects.memnode import MemNode
from tierline_cli.main import cli


def test_what_top_shows_of_a_running_agent(
    agent: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.register("vision", plan(4))
    here = ("top", "--run-dir", str(agent.run_dir))
    once = CliRunner().invoke(cli, [*here, "--once"])
    assert (once.exit_code, "vision" in once.output) == (0, True), once.output
    node = CliRunner().invoke(cli, [*here, "--node"])
    assert MemNode.from_api(yaml.safe_load(node.output)).status.devices[0].name == "cpu"

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)
    live = CliRunner().invoke(cli, [*here, "--interval", "0.3"])
    assert (pauses, "vision" in live.output) == ([0.3, 0.3], True)
