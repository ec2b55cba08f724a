"""The examples of a set that is refused, of a loop that trains and of Swap, as their pages say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tierline_cli.errors import EXIT_INFEASIBLE, EXIT_OK

EXAMPLES = Path(__file__).parents[3] / "examples"
NODE = """
apiVersion: tierline.io/v1alpha1
kind: MemNode
metadata: {name: node-1}
status:
  devices:
    - {name: gpu-0, kind: cuda, product: GPU, fastBytes: 134217728, extentBytes: 2097152}
  tiers:
    - {name: dram, capacityBytes: 4294967296, durability: Agent}
  links:
    - {name: h2d, device: gpu-0, bandwidth: 20000000000, overhead: 20us}
    - {name: d2h, device: gpu-0, bandwidth: 20000000000, overhead: 20us}
  agentVersion: 0.1.0
"""


def run(example: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierline_cli", "run", str(EXAMPLES / example / "tasks.yaml")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_set_that_no_machine_can_compute_is_refused_before_anything_starts() -> None:
    done = run("2-refused", "--fast-memory", "256Mi", "--profile-jobs", "3")
    assert done.returncode == EXIT_INFEASIBLE, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "not admitted (Overload): the tasks need" in said
    assert "running" not in said


@pytest.mark.slow
def test_an_ordinary_loop_trains_and_keeps_its_bits() -> None:
    done = run("6-training", "--fast-memory", "512Mi", "--duration", "5", "--json")
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    [trained] = report["trainings"]
    assert trained["steps"] > 0
    assert trained["weights"]["verdict"] == "identical", trained


def test_two_programs_without_layers_have_one_memory_in_turns(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(NODE)
    set_ = str(EXAMPLES / "7-swap" / "tasks.yaml")
    command = [sys.executable, "-m", "tierline_cli", "admit", set_]
    done = subprocess.run(
        [*command, "--node", str(tmp_path / "node.yaml"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    tasks = json.loads(done.stdout)["tasks"]
    assert [task["plan"]["workspaceBytes"] for task in tasks] == [100 << 20] * 2
