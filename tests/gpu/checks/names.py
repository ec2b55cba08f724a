"""Launches of a streamed model that name weights out of turn: each costs a fetch or a second pass.

    python -m tests.gpu.checks.names [--model NAME] [--mode eager|graph] [--share F]
        [--extent-mib N]

The model runs under an agent as in tests.gpu.bench.streaming. Then one more job is watched: a
weight that is named again after others were read first is out of turn. Printed are, for each, the
launches between, and how much of the model was read between.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.gpu.bench.streaming import agent, learned, observed, observer, plan_for, registered
from tests.gpu.models import make

_GIB = 1 << 30
_JOBS_BEFORE = 3
_MOST_LINES = 60


def again(reads: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """(weight, first launch, launch that names it again, weights read first between the two)."""
    first: dict[int, tuple[int, int]] = {}
    found = []
    for launch, weight in reads:
        if weight not in first:
            first[weight] = (launch, len(first))
            continue
        began, place = first[weight]
        if launch != began and len(first) - place > 1:
            found.append((weight, began, launch, len(first) - place - 1))
    return found


def watch(name: str, mode: str) -> None:
    """In the task's process: run, watch one job, print."""
    import tierline  # noqa: PLC0415  # the plugin belongs into this process alone
    from tierline_client.launches import Launches  # noqa: PLC0415

    shape = make(name)
    model: Callable[..., Any] = tierline.captured(shape.model) if mode == "graph" else shape.model
    with torch.inference_mode():
        for _ in range(_JOBS_BEFORE):
            model(*shape.inputs)
        # The library watches the arena by itself, and numbers its weights as they lie there.
        named = sorted(shape.model.named_parameters(), key=lambda one: one[1].data_ptr())
        launches = Launches()
        before = len(launches.reads())
        model(*shape.inputs)
        torch.cuda.synchronize()
        reads = launches.reads()[before:]
    first = named[0][1].data_ptr()
    print(f"{name}, {mode}: {len(named)} weights from {first:#x} on, {len(reads)} reads")
    found = again(reads)
    size = sum(named[weight][1].nbytes for weight in {row[0] for row in found})
    print(f"named again out of turn: {len(found)} times, {size / 2**20:.0f} MiB of weights")
    for weight, began, launch, between in found[:_MOST_LINES]:
        print(f"  {named[weight][0]:<48} read by {began}, named by {launch}, {between} between")


def main() -> None:
    """Profile, register, and start this module as the task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="llama-7b")
    parser.add_argument("--mode", choices=("eager", "graph"), default="graph")
    parser.add_argument("--share", type=float, default=0.0)
    parser.add_argument("--extent-mib", type=int, default=32)
    parser.add_argument("--host-gib", type=int, default=14, help="pinned memory")
    parser.add_argument("--task", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        watch(arguments.model, arguments.mode)
        return
    extent_bytes = arguments.extent_mib << 20
    alone, layers = observed(observer(arguments.model, arguments.mode, _JOBS_BEFORE))
    plan = plan_for(layers, extent_bytes, arguments.share, alone["workspace_bytes"])
    with (
        agent(extent_bytes, 40 * _GIB, arguments.host_gib * _GIB) as (local, admin),
        registered(local, admin, "named", plan) as known,
    ):
        environment = known | learned(arguments.model, arguments.mode)
        command = [sys.executable, "-m", "tests.gpu.checks.names", "--task"]
        command += ["--model", arguments.model, "--mode", arguments.mode]
        subprocess.run(command, check=True, env={**os.environ, **environment})


if __name__ == "__main__":
    main()
