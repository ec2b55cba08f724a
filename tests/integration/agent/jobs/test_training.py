"""A loop that trains under a real agent: it keeps its bits, whoever has the device meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import EXTENT_BYTES, AgentProcess, plan, wait_until

from tierline_client import Client

_PROGRAM = Path(__file__).with_name("training_program.py")
_STEPS = 6
_TIMEOUT_S = 600
_HOUR_NS = 3600 * 10**9


def _run(results: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(results), str(_STEPS)],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program writes without Tierline."""
    results = tmp_path_factory.mktemp("training") / "alone"
    _ended(_run(results))
    return results.read_text()


def _register(agent: AgentProcess) -> dict[str, str]:
    """The training task; what its program needs to know."""
    answer = agent.register(
        "finetune",
        {**plan(0, ring=0, workspace=EXTENT_BYTES), "first": "10s"},
        criticality="BestEffort",
        training=True,
        record_outputs=True,
        period_ns=_HOUR_NS,
        deadline_ns=_HOUR_NS,
    )
    assert answer["ok"], answer
    return {
        "TIERLINE_SOCKET": str(agent.run_dir / "tasks" / "finetune" / "tierline.sock"),
        "TIERLINE_REQUIRED": "1",
        "TIERLINE_TRAINING": "1",
    }


class _Jobs(threading.Thread):
    """Job after job of a task with deadlines: one always has the device, or waits for it."""

    def __init__(self, agent: AgentProcess) -> None:
        super().__init__()
        assert agent.register("urgent", plan(0, ring=0), criticality="Hard")["ok"]
        self._client = Client(agent.run_dir / "tasks" / "urgent" / "tierline.sock", "urgent")
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            job = self._client.job_begin(None, 0, _HOUR_NS)
            self._client.job_end(job)

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._client.close()


def _turns(agent: AgentProcess) -> tuple[int, Counter[int]]:
    """How many steps were counted, and by release how many turns a step took."""
    jobs = [one for one in agent.call("jobs", since=0)["jobs"] if one["task"] == "finetune"]
    steps = {one["release_ns"] for one in jobs if not one["warmup"]}
    turns = Counter(one["release_ns"] for one in jobs if one["warmup"])
    return len(steps), Counter({release: turns[release] for release in steps})


def test_a_step_takes_one_turn_where_nobody_else_is(
    agent: AgentProcess, tmp_path: Path, undisturbed: str
) -> None:
    results = tmp_path / "results"
    _ended(_run(results, **_register(agent)))
    assert results.read_text() == undisturbed
    steps, turns = _turns(agent)
    assert steps == _STEPS
    # A step is cut where the program computed nothing of it for a while; no message asks for it.
    assert all(one < 8 for one in turns.values())


def test_steps_among_jobs_with_deadlines_keep_their_bits(
    agent: AgentProcess, tmp_path: Path, undisturbed: str
) -> None:
    environment = _register(agent)
    others = _Jobs(agent)
    others.start()
    try:
        results = tmp_path / "results"
        _ended(_run(results, **environment))
    finally:
        others.stop()
    assert results.read_text() == undisturbed
    told = agent.task("finetune")
    assert told["jobs"] == _STEPS
    assert told["warmup_jobs"] >= _STEPS  # how many turns more depends on the machine
    assert told["misses"] == 0
    assert agent.snapshot()["fast_peak_bytes"] == EXTENT_BYTES  # stays while others have the device
    assert agent.task("urgent")["jobs"] > 0


def test_an_agent_that_is_killed_costs_no_step(
    agent: AgentProcess, tmp_path: Path, undisturbed: str
) -> None:
    results = tmp_path / "results"
    process = _run(results, **_register(agent))
    wait_until(lambda: results.exists() and results.read_text(), "a step is over")
    agent.kill()
    agent.start()
    _ended(process)
    assert results.read_text() == undisturbed


def test_weights_are_reported_after_each_step(agent: AgentProcess, tmp_path: Path) -> None:
    _ended(_run(tmp_path / "results", **_register(agent)))
    observed = tmp_path / "observed.jsonl"
    _ended(_run(tmp_path / "seen", TIERLINE_OBSERVE=str(observed), TIERLINE_TRAINING="1"))
    jobs = [one for one in agent.call("jobs", since=0)["jobs"] if not one["warmup"]]
    told = [one["output_digest"] for one in jobs]
    assert len(set(told)) == _STEPS
    assert all(f'"{digest}"' in observed.read_text() for digest in told)


def test_a_training_task_with_a_deadline_is_refused(agent: AgentProcess) -> None:
    answer = agent.register("finetune", plan(0, ring=0), training=True)
    assert "a task that trains has the criticality BestEffort" in answer["error"]


def test_what_a_step_keeps_is_counted_in_addition_to_all_workspaces(agent: AgentProcess) -> None:
    whole = 16 * EXTENT_BYTES
    assert agent.register("other", plan(0, ring=0, workspace=whole // 2))["ok"]
    terms = {"criticality": "BestEffort", "training": True}
    answer = agent.register("big", plan(0, ring=0, workspace=whole // 2 + 1), **terms)
    assert "1 bytes are missing" in answer["error"]
    assert agent.register("fits", plan(0, ring=0, workspace=whole // 2), **terms)["ok"]
