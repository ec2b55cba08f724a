"""Programs that the plugin cannot serve run as if it were not there, with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tierline_torch import calls
from tierline_torch.backends import managed, observed
from tierline_torch.learning import site

MODEL = """
import torch
model = torch.nn.Linear(2, 2).eval()
with torch.inference_mode():
    print(model(torch.ones(2)).shape)
print(torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl)
"""
JOBS = """
import tierline
for _ in tierline.periodic(0.001, jobs=2):
    with tierline.job(), torch.inference_mode():
        print(model(torch.ones(2)).shape)
"""
SPOILT = "import sys; sys.modules[{!r}] = None\n"
OLD = "import sys; sys.version_info = (3, 9, 2, 'final', 0)\n"
MANAGED = {"TIERLINE_SOCKET": "/nowhere/tierline.sock"}
OBSERVED = {"TIERLINE_OBSERVE": os.devnull}
ASIDE = "this program runs without Tierline\n"


def run(program: str, **environment: str) -> tuple[int, str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIERLINE_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("environment", [MANAGED, OBSERVED], ids=["managed", "observed"])
@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        (OLD, "tierline: a program of Python 3.9 cannot be managed"),
        (SPOILT.format(calls.__name__), "tierline: the plugin cannot be loaded into this program"),
        (SPOILT.format(site.__name__), "tierline: the plugin cannot be loaded into this program"),
        (
            SPOILT.format(observed.__name__) + SPOILT.format(managed.__name__),
            "tierline: the plugin cannot be",
        ),
    ],
    ids=["version", "hook", "most", "backend"],
)
def test_it_stands_aside_with_one_sentence(
    environment: dict[str, str], spoilt: str, told: str
) -> None:
    code, said, errors = run(spoilt + MODEL + JOBS, **environment)
    assert (code, errors.count("\n")) == (0, 1), errors
    assert errors.startswith(told)
    assert errors.endswith(ASIDE)
    shapes, unchanged = said.replace("torch.Size([2])\n", ""), "True\n"
    assert said.count("torch.Size([2])\n") == 3
    if "observed" not in spoilt:
        assert shapes == unchanged, "modules are as PyTorch made them"


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        (OLD, "tierline: a program of Python 3.9 cannot be managed"),
        (SPOILT.format(site.__name__), "tierline: the plugin cannot be loaded into this program"),
        (
            SPOILT.format(managed.__name__),
            "TierlineError: the plugin cannot be loaded into this program",
        ),
    ],
)
def test_a_program_that_must_be_managed_is_refused(spoilt: str, told: str) -> None:
    code, said, errors = run(spoilt + MODEL, **MANAGED, TIERLINE_REQUIRED="1")
    assert (code, said) == (1, ""), errors
    assert told in errors
    assert errors.count("\n") == 1 or told.startswith("TierlineError")
