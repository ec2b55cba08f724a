"""What `import torch` and an unreachable agent do to a program, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_UNREACHABLE = """
import os, torch
model = torch.nn.Linear(2, 2).eval()
with torch.inference_mode():
    model(torch.ones(2))
    print(model(torch.ones(2)).shape)
os.environ["TIERLINE_REQUIRED"] = "1"
from tierline_torch import process
process._process = process.Process()
import tierline
try:
    model(torch.ones(2))
    with torch.inference_mode():
        model(torch.ones(2))
except tierline.TierlineError as error:
    print(error)
"""


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIERLINE_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_an_ordinary_process_loads_nothing() -> None:
    program = (
        "import sys, torch\n"
        "print(sorted(name for name in sys.modules if name.startswith('tierline')),"
        " torch.nn.Module.__call__.__module__)"
    )
    assert _python(program).stdout == "['tierline_torch'] torch.nn.modules.module\n"


@pytest.mark.slow
def test_an_unreachable_agent_is_told_once_and_the_program_runs() -> None:
    done = _python(_UNREACHABLE, TIERLINE_SOCKET="/nowhere/tierline.sock")
    shape, error = done.stdout.splitlines()
    assert shape == "torch.Size([2])"
    assert error.startswith("could not connect to the agent at TIERLINE_SOCKET=/nowhere/")
    assert done.stderr.count("tierline: could not connect to the agent") == 1
    assert "this program runs without Tierline" in done.stderr


@pytest.mark.slow
def test_a_job_may_begin_before_the_program_loads_pytorch() -> None:
    program = (
        "import tierline\n"
        "with tierline.job():\n"
        "    import torch\n"
        "print(torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl)"
    )
    done = _python(program, TIERLINE_OBSERVE=os.devnull)
    assert (done.stdout, done.stderr) == ("False\n", "")
