"""What the library and the plugin cost a program whose weights all stay on the GPU.

    python -m tests.gpu.bench.overhead [--model NAME...] [--jobs N] [--rounds N]
        [--served copied|worked] [--json FILE]

First a program that does nothing but allocate and free device memory, with and without the library
and a budget, a few times in turn; the least of each counts. Then each model runs alternately
without Tierline, with the library preloaded and nothing else, and under an agent with all of its
weights resident: eager and as a captured graph, in processes that take turns, so that the clock of
the GPU is the same for all. Their launching threads have one and the same core, as cores differ; a
second process without Tierline (`again`) shows what two equal ones differ by, below which a cost
says nothing. A round's figure is the median of its jobs, a row's the median of its rounds. The last
column says how many jobs of the resident program took the lease where it was left open to them,
without asking the agent. With --served each job's inputs come from host memory and its outputs go
there, as in a server, `worked` after a softmax on the GPU; else they stay on the GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tests.bench.machine import describe, keep, print_head
from tests.gpu.bench.streaming import agent, learned, observed, observer, plan_for, registered
from tests.gpu.paced import Paced

from tierline_client.library import library_path

_GIB = 1 << 30
_WAYS = ("without", "again", "preloaded", "resident")
_ALLOCATION_ROUNDS = 3

_ALLOCATIONS = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code):
    assert code == 0, code
ok(cuda.cuInit(0))
context = ctypes.c_void_p()
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
at = ctypes.c_uint64()
rounds, times = 3000, []
for size in (4096, 1 << 20, 64 << 20):
    for number in range(rounds + 100):
        if number == 100:
            began = time.perf_counter()
        ok(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)))
        ok(cuda.cuMemFree_v2(at))
    times.append((time.perf_counter() - began) / rounds * 1e6)
print(*times)
"""


def allocations(environment: dict[str, str]) -> list[float]:
    """Microseconds of an allocation and its free: of 4 KiB, 1 MiB, 64 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _ALLOCATIONS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return [float(word) for word in done.stdout.split()]


def alternately(processes: dict[str, Paced], rounds: int) -> dict[str, list[float]]:
    """Median seconds of a job in each round, of each process in turn, forth and back; ends them."""
    core = max(os.sched_getaffinity(0))
    times: dict[str, list[float]] = {way: [] for way in processes}
    with ExitStack() as running:
        for process in processes.values():
            running.callback(process.end)
        for process in processes.values():
            process.ready()
            os.sched_setaffinity(process.process.pid, {core})
        for number in range(rounds):
            for way in list(processes)[:: 1 if number % 2 == 0 else -1]:
                times[way].append(statistics.median(processes[way].round()))
    return times


def task_named(admin: Any, name: str) -> dict[str, Any]:
    """What the agent's snapshot says of a task."""
    tasks = admin.call("snapshot")["snapshot"]["tasks"]
    found: dict[str, Any] = next(task for task in tasks if task["name"] == name)
    return found


def main() -> None:
    """Measure, print tables, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["resnet152", "vit-giant", "llama-7b"])
    parser.add_argument("--mode", nargs="+", default=["eager", "graph"])
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--extent-mib", type=int, default=32)
    parser.add_argument("--served", choices=("copied", "worked"), help="as tests.gpu.task has it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about: dict[str, Any] = {**describe(), "gpu": torch.cuda.get_device_name()}
    print_head(about)
    preload = {"LD_PRELOAD": str(library_path())}
    extent_bytes = arguments.extent_mib << 20
    options = ("--served", arguments.served) if arguments.served else ()
    kinds = {
        "without": {},
        "preloaded": preload,
        "with a budget": {**preload, "TIERLINE_BUDGET": str(8 * _GIB)},
    }
    print(f"{'cuMemAlloc + cuMemFree':<24}{'4 KiB':>12}{'1 MiB':>12}{'64 MiB':>12}")
    rounds = [
        {name: allocations(environment) for name, environment in kinds.items()}
        for _ in range(_ALLOCATION_ROUNDS)
    ]
    allocated = {
        name: [min(times) for times in zip(*(one[name] for one in rounds), strict=True)]
        for name in kinds
    }
    for name in kinds:
        print(f"{name:<24}" + "".join(f"{value:>9.2f} us" for value in allocated[name]), flush=True)
    about["allocations_us"] = allocated
    rows = []
    print(
        f"\n{'model':<12}{'mode':<7}"
        + "".join(f"{way:>14}" for way in _WAYS)
        + f"{'noise':>9}{'cost':>9}  took it"
    )
    with agent(extent_bytes, 40 * _GIB, 20 * _GIB) as (local, admin):
        for model in arguments.model:
            for mode in arguments.mode:
                alone, layers = observed(observer(model, mode, 6))
                plan = plan_for(layers, extent_bytes, 1.0, alone["workspace_bytes"])
                with registered(local, admin, "resident", plan) as resident:
                    ways = {
                        "without": {},
                        "again": {},
                        "preloaded": preload,
                        "resident": resident | learned(model, mode),
                    }
                    times = alternately(
                        {
                            way: Paced(model, mode, arguments.jobs, environment, *options)
                            for way, environment in ways.items()
                        },
                        arguments.rounds,
                    )
                    task = task_named(admin, "resident")
                median = {way: statistics.median(times[way]) for way in _WAYS}
                cost = median["resident"] / median["without"] - 1
                noise = median["again"] / median["without"] - 1
                took = {key: task[key] for key in ("jobs", "uncontended")}
                about_row = {"model": model, "mode": mode, "served": arguments.served}
                rows.append({**about_row, "rounds_s": times, "cost": cost, **took})
                print(
                    f"{model:<12}{mode:<7}"
                    + "".join(f"{median[way] * 1e3:>11.3f} ms" for way in _WAYS)
                    + f"{noise:>9.1%}{cost:>9.1%}  {took['uncontended']} of {took['jobs']}",
                    flush=True,
                )
                keep(arguments.json, about | {"rows": rows})


if __name__ == "__main__":
    main()
