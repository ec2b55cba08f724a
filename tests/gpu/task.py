"""A task of the GPU tests: one model, one job after another, its times and its outputs as JSON.

    python -m tests.gpu.task MODEL --mode eager|graph --jobs N [--paced] [--prepared] [--digests]
        [--served copied|worked] [--illegal]

It is an ordinary program: what it is to Tierline comes from its environment. Without that it does
not even import the plugin, unless to capture a graph. A paced one says that it is ready, then runs
so many jobs at each line of its standard input and prints their times. With --digests it looks at
the output of each job, else at the last one's. A served one is given its inputs in host memory and
has its outputs there, as a server does, and if they are worked with, by a softmax on the GPU after
the model; else both stay on the GPU. A prepared one imports
what takes long, says so, and waits for a line before it touches the GPU or the agent.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import sys
import time
from typing import Any

import torch
from tests.gpu import wild
from tests.gpu.bench.breakdown import Stamps, stamp_jobs
from tests.gpu.models import first_tensor, kind, make, synchronize

_WARM_UPS = 10
"""Learning takes a few jobs, and so does what comes before a capture."""


def digest(output: object) -> str:
    """A digest of all bytes of an output."""
    raw = first_tensor(output).contiguous().view(torch.uint8).cpu().numpy()
    return hashlib.blake2b(raw.tobytes()).hexdigest()


def in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A copy there, pinned if there is a GPU that it is for."""
    copy = tensor.cpu()
    return copy.pin_memory() if kind() == "cuda" else copy


def _modules(model: str, mode: str) -> list[str]:
    """What a model imports that takes seconds."""
    of_model = ["torchvision"] if model == "resnet152" else ["transformers.modeling_utils"]
    return [*of_model, "torch._inductor.compile_fx"] if mode == "compile" else of_model


def main() -> None:
    """Run the model, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--mode", choices=("eager", "graph", "compile"), default="eager")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--paced", action="store_true", help="wait for lines")
    parser.add_argument("--prepared", action="store_true", help="import, then wait for a line")
    parser.add_argument("--stamps", action="store_true", help="when each job did what")
    parser.add_argument("--digests", action="store_true", help="of all outputs, not the last")
    parser.add_argument(
        "--served", choices=("copied", "worked"), help="inputs, outputs on the host"
    )
    parser.add_argument("--illegal", action="store_true", help="then write where nothing is")
    arguments = parser.parse_args()
    if "TIERLINE_SOCKET" in os.environ or "TIERLINE_OBSERVE" in os.environ:
        importlib.import_module("tierline")
    if arguments.prepared:
        for module in _modules(arguments.model, arguments.mode):
            importlib.import_module(module)
        print("prepared", flush=True)
        if not sys.stdin.readline():
            return
    shape = make(arguments.model)
    model: Any = shape.model
    if arguments.mode == "graph":
        model = importlib.import_module("tierline").captured(shape.model)
    elif arguments.mode == "compile":
        model = torch.compile(shape.model)
    stamps = stamp_jobs(synchronize) if arguments.stamps else Stamps()
    begin = time.perf_counter()
    with torch.inference_mode():
        digests = [digest(model(*shape.inputs)) for _ in range(_WARM_UPS)]
        ready_s = time.perf_counter() - begin
        gc.collect()
        gc.freeze()  # as tierline.periodic does

        given = [in_host_memory(one) for one in shape.inputs] if arguments.served else []

        def served() -> object:
            output = first_tensor(model(*(one.to(kind(), non_blocking=True) for one in given)))
            return (output.softmax(-1) if arguments.served == "worked" else output).cpu()

        def jobs() -> tuple[list[float], object]:
            times_s = []
            for _ in range(arguments.jobs):
                begin = time.perf_counter()
                stamps.now("call")
                output = served() if arguments.served else model(*shape.inputs)
                synchronize()
                stamps.now("over")
                times_s.append(time.perf_counter() - begin)
                stamps.next_job()
                if arguments.digests:
                    digests.append(digest(output))
            return times_s, output

        if arguments.paced:
            print("ready", flush=True)
            for _ in sys.stdin:
                print(json.dumps(jobs()[0]), flush=True)
            return
        times_s, output = jobs()
        digests.append(digest(output))
        if arguments.illegal:
            wild.access()
            model(*shape.inputs)
            torch.cuda.synchronize()
    report = {
        "model": arguments.model,
        "mode": arguments.mode,
        "weight_bytes": shape.weight_bytes,
        "ready_s": ready_s,
        "digests": list(dict.fromkeys(digests)),
        "looks": arguments.mode == "graph" and model.looks,
        "times_s": times_s,
        "stamps": stamps.jobs,
        "reserved_bytes": torch.cuda.memory_reserved(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
