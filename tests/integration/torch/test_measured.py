"""A program with a loop of its own, measured on a node: it writes its profile, then makes room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan, wait_until

from tierline_agent.transport.protocol import NO_ARENA

_PATIENCE_S = 300.0
_ENDS_TO_START_AGAIN = 75
_PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).eval()
with torch.inference_mode():
    while True:
        model(torch.zeros(1, 64))
        print("ran", flush=True)
"""
_TRAINS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("ran", flush=True)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the program as its container does."""

    def start(program: str = _PROGRAM, **more: str) -> subprocess.Popen[str]:
        trains = {"TIERLINE_TRAINING": "1"} if program == _TRAINS else {}
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "TIERLINE_OBSERVE": str(tmp_path / "profile.jsonl"),
                "TIERLINE_OBSERVE_JOBS": "3",
                "TIERLINE_PLANNED": str(tmp_path / "planned"),
                **trains,
                **more,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(program: subprocess.Popen[str]) -> tuple[str, str]:
    """What a program printed and said that ends to be started again."""
    try:
        printed, said = program.communicate(timeout=_PATIENCE_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == _ENDS_TO_START_AGAIN, said
    return printed, said


@pytest.mark.slow
@pytest.mark.parametrize("text", [_PROGRAM, _TRAINS], ids=["serves", "trains"])
def test_a_loop_without_end_is_measured_makes_room_and_waits_for_its_plan(
    tmp_path: Path, start: Start, text: str
) -> None:
    printed, said = ended(start(text))
    assert "it ends, to leave the device to others" in said
    measured = (tmp_path / "profile.jsonl").read_text()
    (profile,) = [
        line["profile"] for line in map(json.loads, measured.splitlines()) if "profile" in line
    ]
    weights_bytes = 4 * (64 * 65 + 8 * 65)
    held_bytes = sum(layer["bytes"] for layer in profile["layers"])
    assert profile.get("state_bytes", held_bytes) >= weights_bytes
    assert printed.count("ran") < 20, "it runs no job for nothing"

    again = start(text)
    assert again.stderr is not None
    first = again.stderr.readline()
    (tmp_path / "planned").touch()
    printed, said = ended(again)
    assert "it waits for its plan" in first
    assert "it ends, to start by its plan" in said
    assert not printed, "it has run no job"
    assert (tmp_path / "profile.jsonl").read_text() == measured


@pytest.mark.slow
def test_a_program_ends_when_its_measuring_is_given_up(tmp_path: Path, start: Start) -> None:
    (tmp_path / "unmeasured").touch()

    _, said = ended(start())

    assert "it was not measured in time" in said


@pytest.mark.slow
@pytest.mark.parametrize("text", [_PROGRAM, _TRAINS], ids=["serves", "trains"])
def test_measured_among_others_it_takes_the_lease_for_each_job(
    tmp_path: Path, start: Start, text: str
) -> None:
    agent = AgentProcess(tmp_path)
    agent.start()
    try:
        agent.register("other", plan(2))
        mine = plan(0, ring=0)
        more = {"criticality": "BestEffort", "job_limit_ns": 10**12, "training": text == _TRAINS}
        answer = agent.register("new", mine, **more)
        assert answer["ok"], answer
        other = agent.client("other")
        held = other.begin(NO_ARENA)
        program = start(text, TIERLINE_SOCKET=answer["socket"], TIERLINE_REQUIRED="1")
        wait_until(lambda: agent.task("new")["clients"], "the program is there")
        told_to = tmp_path / "profile.jsonl"
        wait_until(lambda: told_to.exists() and told_to.read_text(), "it begins to be measured")
        (told,) = told_to.read_text().splitlines()
        assert list(json.loads(told)) == ["began"], "it waits for the lease"
        other.end(held)

        _, said = ended(program)
        assert "it ends, to leave the device to others" in said
        assert '"profile"' in (tmp_path / "profile.jsonl").read_text()
        assert agent.task("new")["warmup_jobs"] >= 5, "three to learn, and those that counted"
        assert agent.task("new")["jobs"] == agent.task("new")["misses"] == 0
    finally:
        agent.stop()
