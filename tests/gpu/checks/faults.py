"""What befalls one streamed PyTorch task, or the agent, and what another one sees of it: nothing.

Run by `make gpu-test`; needs a GPU. The same on the agent's own level: tests/gpu/checks/agent.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.bench.streaming import learned, observed, observer, plan_for, under_agent
from tests.integration.agent.agent_process import AgentProcess, wait_until

_EXTENT_BYTES = 8 << 20
_MODEL, _MODE = "llama-small", "graph"
_MANY = 1_000_000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent of the first GPU with room for the rings and little more."""
    store = Path("/dev/shm") / f"tierline-faults-{os.getpid()}"  # noqa: S108 - dram is a tmpfs
    process = AgentProcess(
        tmp_path,
        device={
            "kind": "cuda",
            "index": 0,
            "fast_bytes": 2 << 30,
            "extent_bytes": _EXTENT_BYTES,
        },
        tiers=[{"name": "dram", "path": str(store), "size_bytes": 4 << 30}],
        metrics_port=0,
    )
    process.start()
    try:
        yield process
    finally:
        process.stop()
        store.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, Any], dict[str, Any]]:
    """What the model gives by itself, and a plan that streams all that may be streamed."""
    report, layers = observed(observer(_MODEL, _MODE, 6))
    plan = plan_for(layers, _EXTENT_BYTES, 0.0, report["workspace_bytes"])
    return report, plan.to_api()


class Task:
    """A process of `tests.gpu.task`."""

    def __init__(
        self, agent: AgentProcess, name: str, plan: dict[str, Any], jobs: int, *more: str
    ) -> None:
        assert agent.register(name, plan, period_ns=10**10, deadline_ns=10**10)["ok"]
        self.agent, self.name = agent, name
        self.log = agent.folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.gpu.task", _MODEL, "--mode", _MODE),
                    *("--jobs", str(jobs), *more),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    **under_agent(agent.run_dir / "tasks" / name / "tierline.sock"),
                    **learned(_MODEL, _MODE),
                },
            )

    def streams(self) -> None:
        """Wait until it has run some jobs more than now."""
        before = self.agent.task(self.name)["jobs"]
        wait_until(lambda: self._jobs() > before + 5, f"{self.name} runs jobs")

    def _jobs(self) -> int:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return int(self.agent.task(self.name)["jobs"])

    def report(self) -> dict[str, Any]:
        """Wait for its good end."""
        out, _ = self.process.communicate()
        assert self.process.returncode == 0, self.log.read_text()[-4000:]
        report: dict[str, Any] = json.loads(out.splitlines()[-1])
        return report


def reclaims(agent: AgentProcess, what: str) -> float:
    """Of how many dead processes extents are free again (`count`), or after how long (`sum`)."""
    with urllib.request.urlopen(agent.metrics_address(), timeout=60) as answer:  # noqa: S310
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(f"tierline_reclaim_seconds_{what}"))
    return float(line.split()[-1])


def test_a_task_killed_while_it_streams(
    agent: AgentProcess, alone: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    report, plan = alone
    victim = Task(agent, "victim", plan, _MANY)
    other = Task(agent, "other", plan, 300)
    victim.streams()
    other.streams()
    began_s = time.monotonic()
    victim.process.kill()
    wait_until(lambda: reclaims(agent, "count") > 0, "the victim's extents are free")
    took_s = time.monotonic() - began_s
    victim.process.communicate()
    assert other.report()["digests"] == report["digests"]
    assert agent.extents()["draining"] == 0
    assert agent.task("victim")["broken"] <= 1
    own_s = reclaims(agent, "sum")
    print(
        f"extents reusable {took_s * 1e3:.0f} ms after the kill, {own_s * 1e3:.1f} after the death"
    )


def test_an_illegal_access_in_one_task(
    agent: AgentProcess, alone: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    report, plan = alone
    other = Task(agent, "other", plan, 400)
    other.streams()
    wild = Task(agent, "wild", plan, 20, "--illegal")
    wild.process.communicate()
    assert wild.process.returncode != 0
    assert "illegal" in wild.log.read_text().lower()
    assert other.report()["digests"] == report["digests"]
    assert not agent.snapshot()["devices"][0]["lost"]


def test_the_agent_killed_and_restarted_under_load(
    agent: AgentProcess, alone: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    report, plan = alone
    tasks = [Task(agent, name, plan, 300) for name in ("one", "other")]
    for task in tasks:
        task.streams()
    agent.kill()
    agent.start()
    for task in tasks:
        assert task.report()["digests"] == report["digests"]
