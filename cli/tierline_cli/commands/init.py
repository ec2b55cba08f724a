"""`tierline init`: a first manifest and a first program, which `tierline run` runs as they are."""

import re
import shlex
from pathlib import Path
from typing import Final

import click

from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.output import writing

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
"""A DNS label, as Kubernetes wants it, with room for what is added to names of pods."""

_TASK: Final = """\
# One periodic task. On this machine:  tierline run tasks.yaml --fast-memory 64Mi --duration 20
# In a cluster:                        kubectl apply -f tasks.yaml; the image holds program.py
apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata:
  name: {name}
  namespace: default
spec:
  realtime:
    period: 2s            # one release of the program's loop
    deadline: 2s          # by when its job has ended; proved before it starts
  memory:
    budget: 256Mi         # device memory that it may have at most
  swap:
    tiers: [dram]         # where its weights live: dram, pmem, nvme; the preferred one first
  device:
    kind: cpu             # or cuda
  template:
    spec:
      containers:
        - name: {name}
          image: registry.example.com/{name}
          command: [python, program.py]
"""

_PROGRAM: Final = '''\
"""A periodic task: ordinary PyTorch, and one loop over releases."""

import torch
from torch import nn

import tierline

torch.set_num_threads(1)  # leave processors to the agent, which copies meanwhile
torch.manual_seed(0)

# 128 MiB of weights, twice the fast memory that tasks.yaml's first line gives. Put yours here.
blocks = [(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)]
model = nn.Sequential(*(layer for block in blocks for layer in block)).eval()

with torch.inference_mode():
    for release in tierline.periodic(2.0):  # seconds, without Tierline; with it the task's period
        output = model(torch.randn(8, 1024))
'''


@click.command(name="init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option("--name", default="first", show_default=True, help="Name of the task.")
def command(folder: Path, name: str) -> None:
    """Write a first manifest and program into FOLDER (made if it is missing; default: here)."""
    if not _NAME.fullmatch(name):
        raise CommandError(
            f"--name {name!r} is no name of a task: write at most 40 lower-case letters, digits "
            "and dashes, a letter or digit at both ends",
            EXIT_BAD_INPUT,
        )
    files = {
        folder / "tasks.yaml": _TASK.format(name=name),
        folder / "program.py": _PROGRAM,
    }
    for path in files:
        if path.exists() or path.is_symlink():
            raise CommandError(
                f"{path} exists, and is not overwritten; name another folder", EXIT_BAD_INPUT
            )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with writing(path):
            path.write_text(text)
        click.echo(f"wrote {path}")
    change = "" if folder == Path() else f"cd {shlex.quote(_as_argument(folder))} && "
    click.echo(f"next: {change}tierline run tasks.yaml --fast-memory 64Mi --duration 20")


def _as_argument(folder: Path) -> str:
    """The folder as a shell's `cd` takes it, which reads a dash at the start as an option."""
    return f"./{folder}" if str(folder).startswith("-") else str(folder)
