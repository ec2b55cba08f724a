"""Programs of many kinds give the same results under the library as without it, in a budget.

Run by `make gpu-test`; needs a GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tierline_client.library import library_path

PROGRAMS = Path(__file__).parents[1] / "programs"
BUDGET = 8 << 30
PYTHON = {
    "eager": ("torch_model.py", ["eager"], {}),
    "compile": ("torch_model.py", ["compile"], {}),
    "graph": ("torch_model.py", ["graph"], {}),
    "expandable segments": (
        "torch_model.py",
        ["eager"],
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "cudaMallocAsync": (
        "torch_model.py",
        ["eager"],
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    ),
    "triton": ("triton_add.py", [], {}),
    "cupy": ("cupy_matmul.py", [], {}),
    "jax": ("jax_mlp.py", [], {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}),  # else it races kernels
    "numba": ("numba_saxpy.py", [], {}),
}


def run(command: list[str], environment: dict[str, str]) -> tuple[str, int]:
    """The digest and the total memory that a program prints."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    digest, total = done.stdout.split()[-2:]
    return digest, int(total)


def compare(command: list[str], environment: dict[str, str]) -> None:
    plain, _ = run(command, environment)
    preloaded = {"LD_PRELOAD": str(library_path()), "TIERLINE_BUDGET": str(BUDGET)}
    under, total = run(command, {**environment, **preloaded})
    assert under == plain
    assert total in (0, BUDGET)  # 0: the program cannot tell


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_program(name: str) -> None:
    program, arguments, environment = PYTHON[name]
    compare([sys.executable, str(PROGRAMS / program), *arguments], environment)


def test_a_program_with_a_static_runtime(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    binary = tmp_path / "static"
    subprocess.run(
        [nvcc, "-O2", "-arch=native", "-o", str(binary), str(PROGRAMS / "static.cu")], check=True
    )
    compare([str(binary)], {})


def test_nvidia_smi_shows_the_budget() -> None:
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_PRELOAD": str(library_path()), "TIERLINE_BUDGET": str(BUDGET)},
    )
    assert int(done.stdout.split()[0]) == BUDGET >> 20
