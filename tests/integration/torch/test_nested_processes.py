"""A pipeline of two processes: a forward of the one waits for a forward of the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan

pytestmark = pytest.mark.slow

_PROGRAM = """
import multiprocessing, os, torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

def stage():
    return nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)]).eval()

class Pipeline(nn.Module):
    def __init__(self, first, pipe):
        super().__init__()
        self.first, self.pipe = first, pipe
    def forward(self, x):
        self.pipe.send(self.first(x).numpy())
        if not self.pipe.poll(60):
            raise RuntimeError("the other stage does not answer")
        return torch.from_numpy(self.pipe.recv())

first, second = stage(), stage()
ours, theirs = multiprocessing.Pipe()
with torch.no_grad():
    for i in range(6):
        first(torch.ones(4, 128))
        second(torch.ones(4, 128))
    child = os.fork()
    if child == 0:
        while (x := theirs.recv()) is not None:
            theirs.send(second(torch.from_numpy(x)).numpy())
        os._exit(0)
    pipeline = Pipeline(first, ours)
    for i in range(6):
        print(i, pipeline(torch.full((4, 128), i / 10)).sum().item(), flush=True)
    ours.send(None)
    os.waitpid(child, 0)
"""


def _run(**environment: str) -> tuple[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIERLINE_")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_forward_may_wait_for_one_of_another_process(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path)
    agent.start()
    try:
        task = agent.register("pipeline", plan(12, ring=4))
        printed, said = _run(TIERLINE_SOCKET=task["socket"], TIERLINE_REQUIRED="1")
        notices = agent.task("pipeline")["notices"]
    finally:
        agent.stop()
    assert printed == _run()[0]
    assert "runs as a part of a job of another process of its task" in said
    assert "nested" in [one["kind"] for one in notices]
