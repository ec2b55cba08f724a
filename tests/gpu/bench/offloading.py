"""What users do today when a model's weights are not on the GPU: what streaming is held against.

    python -m tests.gpu.bench.offloading [--model NAME...] [--jobs N] [--json FILE]

All but Tierline in one process on the same model and input, with cuDNN's deterministic kernels;
job time from the call to the end of the GPU's work:

resident          everything on the GPU: the lower bound
to, pinned        every parameter copied by `.to()` from pinned memory, then the forward
to, pageable      the same from ordinary memory
accelerate        Hugging Face accelerate's `cpu_offload`
copy, compute     one copy of all weights, then the forward: no overlap
layer by layer    each module's weights copied when it is called, computed, dropped: no ring
tierline, P %     so much resident, the rest through the smallest ring; eager, in another process
tierline graph    the same as a captured graph, with nothing resident

What is called *identical* is so bit by bit: to the resident model of the same process, and for
Tierline to the same program without it. FILE is written after each way; what it holds of other
models stays in it. tests.gpu.bench.offloading_plot draws FILE.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tests.bench.machine import describe, keep, print_head
from tests.gpu.bench.streaming import agent, rows
from tests.gpu.models import Shape, first_tensor, make

Job = Callable[[], Any]

_WHOLE = ("resident", "to, pinned", "to, pageable", "copy, compute")
"""Ways that hold all weights on the GPU while they compute."""
_EXTENT_BYTES = 32 << 20
_FAST_BYTES = 40 << 30
_HOST_BYTES = 20 << 30


@dataclass(frozen=True)
class Row:
    """One way to run one model. Times in seconds."""

    model: str
    way: str
    weight_bytes: int
    jobs: int
    job_median_s: float
    job_worst_s: float
    fast_bytes: int
    """Device memory for weights."""
    identical: bool


def _parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return list(model.parameters())


@contextmanager
def resident(shape: Shape) -> Iterator[Job]:
    """As it is."""
    yield lambda: shape.model(*shape.inputs)


@contextmanager
def _moved(shape: Shape, *, pinned: bool) -> Iterator[Job]:
    parameters = _parameters(shape.model)
    kept = [one.data for one in parameters]
    away = [one.cpu().pin_memory() if pinned else one.cpu() for one in kept]

    def job() -> Any:
        for parameter, host in zip(parameters, away, strict=True):
            parameter.data = host.to("cuda", non_blocking=True)
        output = shape.model(*shape.inputs)
        torch.cuda.synchronize()
        for parameter in parameters:
            parameter.data = parameter.data.new_empty(0)
        return output

    try:
        yield job
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data


@contextmanager
def to_pinned(shape: Shape) -> Iterator[Job]:
    """`.to()` from pinned memory."""
    with _moved(shape, pinned=True) as job:
        yield job


@contextmanager
def to_pageable(shape: Shape) -> Iterator[Job]:
    """`.to()` from ordinary memory."""
    with _moved(shape, pinned=False) as job:
        yield job


@contextmanager
def copy_then_compute(shape: Shape) -> Iterator[Job]:
    """All weights in one copy, then the forward."""
    parameters = _parameters(shape.model)
    kept = [one.data for one in parameters]
    slots = [-(-one.nbytes // 512) * 512 for one in kept]
    there = torch.empty(sum(slots), dtype=torch.uint8, device="cuda")
    offset = 0
    for parameter, size in zip(parameters, slots, strict=True):
        part = there[offset : offset + parameter.nbytes].view(parameter.dtype)
        place = part.view(parameter.shape)
        place.copy_(parameter.data)
        parameter.data = place
        offset += size
    host = there.cpu().pin_memory()

    def job() -> Any:
        there.copy_(host, non_blocking=True)
        return shape.model(*shape.inputs)

    try:
        yield job
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data


@contextmanager
def layer_by_layer(shape: Shape) -> Iterator[Job]:
    """Each module's own weights when it is called."""
    own = {
        module: [
            (one, one.data, one.data.cpu().pin_memory())
            for one in module._parameters.values()
            if one is not None
        ]
        for module in shape.model.modules()
    }

    def before(module: torch.nn.Module, _args: Any) -> None:
        for parameter, _, host in own[module]:
            parameter.data = host.to("cuda", non_blocking=True)

    def after(module: torch.nn.Module, _args: Any, _output: Any) -> None:
        for parameter, data, _ in own[module]:
            parameter.data = data.new_empty(0)  # of its dtype, which models ask for

    hooks = [
        hook
        for module in own
        for hook in (
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after),
        )
    ]
    try:
        yield lambda: shape.model(*shape.inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for entries in own.values():
            for parameter, data, _ in entries:
                parameter.data = data


@contextmanager
def accelerate_offload(shape: Shape) -> Iterator[Job]:
    """`accelerate.cpu_offload`; the model cannot be used without it afterwards."""
    accelerate = import_module("accelerate")  # only this way needs it
    shape.model.cpu()
    accelerate.cpu_offload(shape.model, execution_device=torch.device("cuda"))
    yield lambda: shape.model(*shape.inputs)


WAYS: dict[str, Callable[[Shape], Any]] = {
    "resident": resident,
    "to, pinned": to_pinned,
    "to, pageable": to_pageable,
    "copy, compute": copy_then_compute,
    "layer by layer": layer_by_layer,
    "accelerate": accelerate_offload,
}


def measure(name: str, jobs: int) -> Iterator[Row]:
    """Every way in turn."""
    shape = make(name)
    reference: torch.Tensor | None = None
    for way, prepare in WAYS.items():
        with prepare(shape) as job, torch.inference_mode():
            for _ in range(2):
                output = first_tensor(job()).clone()
            reference = output if reference is None else reference
            times = []
            for _ in range(jobs):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                job()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
        yield Row(
            model=name,
            way=way,
            weight_bytes=shape.weight_bytes,
            jobs=jobs,
            job_median_s=statistics.median(times),
            job_worst_s=max(times),
            fast_bytes=shape.weight_bytes if way in _WHOLE else _largest_module(shape),
            identical=torch.equal(reference, output),
        )


def _largest_module(shape: Shape) -> int:
    """The most bytes of weights that one module itself has."""
    return max(
        sum(one.nbytes for one in module.parameters(recurse=False))
        for module in shape.model.modules()
    )


def streamed(name: str, jobs: int) -> Iterator[Row]:
    """The same model under an agent."""
    with agent(_EXTENT_BYTES, _FAST_BYTES, _HOST_BYTES) as (local, admin):
        for mode, shares in (("eager", (0.0, 0.25, 0.5)), ("graph", (0.0,))):
            for row in rows(local, admin, name, mode, [(share, 1) for share in shares], jobs):
                kind = "tierline graph" if mode == "graph" else "tierline"
                yield Row(
                    model=name,
                    way=f"{kind}, {row.resident:.0%}",
                    weight_bytes=row.weight_bytes,
                    jobs=row.jobs,
                    job_median_s=row.job_median_s,
                    job_worst_s=row.job_worst_s,
                    fast_bytes=row.fast_bytes,
                    identical=row.identical,
                )


def of_others(file: Path | None, models: list[str]) -> list[Row]:
    """What the file holds of models that are not measured now."""
    if file is None or not file.exists():
        return []
    rows = json.loads(file.read_text())["rows"]
    return [Row(**row) for row in rows if row["model"] not in models]


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["resnet152", "vit-giant", "llama-7b"])
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--streamed-jobs", type=int, default=20, help="for each of Tierline's ways")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about: dict[str, Any] = {**describe(), "gpu": torch.cuda.get_device_name()}
    print_head(about)
    print(
        f"{'model':<12}{'way':<20}{'weights':>11}{'on the GPU':>12}{'job p50':>12}{'worst':>12}"
        "  outputs"
    )
    torch.backends.cudnn.deterministic = True
    kept = of_others(arguments.json, arguments.model)
    for name in arguments.model:
        for row in itertools.chain(
            measure(name, arguments.jobs), streamed(name, arguments.streamed_jobs)
        ):
            kept.append(row)
            print(
                f"{row.model:<12}{row.way:<20}{row.weight_bytes / 2**20:>7.0f} MiB"
                f"{row.fast_bytes / 2**20:>8.0f} MiB"
                f"{row.job_median_s * 1e3:>9.2f} ms{row.job_worst_s * 1e3:>9.2f} ms"
                f"  {'identical' if row.identical else 'DIFFERENT'}",
                flush=True,
            )
            keep(arguments.json, {**about, "rows": [asdict(one) for one in kept]})


if __name__ == "__main__":
    main()
