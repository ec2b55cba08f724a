"""How evenly the agent keeps a GPU's link supplied, also while its metrics are scraped.

    python -m tests.bench.gpu_gaps [--extents N] [--jobs N] [--h2d BYTES_PER_S]

The real agent on the simulated driver, whose link is throttled so that an extent takes as long as
32 MiB take on PCIe 5. The client does nothing but wait for each extent and give it back, on its
stream, and notes when each arrives. A gap is what lies between two arrivals beyond the copy's own
time. Other processes scrape /metrics as fast as they can.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import urllib.request
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from tests.bench.machine import describe, print_head
from tests.integration.agent.agent_process import AgentProcess, content
from tests.integration.agent.gpu_agent import EXTENT_BYTES, gpu_agent, gpu_plan
from tests.integration.agent.gpu_client import GEQ, GpuArena, GpuClient, ok, start_cuda
from tests.native_builds import simulated_machine

_RING = 8


def scrape(address: str, stop: Event) -> None:
    """Read the metrics, over and over."""
    while not stop.is_set():
        with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310 - the agent's own
            answer.read()


def arrivals_ms(arena: GpuArena) -> list[float]:
    """When each extent of a job arrived, milliseconds since the first."""
    events: list[Any] = []
    for count in range(1, len(arena.streamed) + 1):
        ok(driver.cuStreamWaitValue32(arena.stream, arena.published_there, count, GEQ))
        event = ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(event, arena.stream))
        ok(driver.cuStreamWriteValue32(arena.stream, arena.consumed_there, count, 0))
        events.append(event)
    arena.synchronise()
    return [float(ok(driver.cuEventElapsedTime(events[0], event))) for event in events]


def bare_ms(copies: int) -> list[float]:
    """When each of so many copies ended that one process enqueues at once, without any agent."""
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    host, device = ok(driver.cuMemHostAlloc(EXTENT_BYTES, 0)), ok(driver.cuMemAlloc(EXTENT_BYTES))
    events: list[Any] = []
    for _ in range(copies):
        ok(driver.cuMemcpyHtoDAsync(device, int(host), EXTENT_BYTES, stream))
        event = ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(event, stream))
        events.append(event)
    ok(driver.cuStreamSynchronize(stream))
    return [float(ok(driver.cuEventElapsedTime(events[0], event))) for event in events]


def client(path: Path, extents: int, jobs: int, commands: Connection) -> None:
    """Runs so many jobs at each command, `bare` or `jobs`; answers the times between arrivals."""
    start_cuda()
    connection = GpuClient(path)
    connection.hello()
    arena = connection.load_arena(content(1, extents, EXTENT_BYTES, extent_bytes=EXTENT_BYTES))
    commands.send([])
    while command := commands.recv():
        between: list[float] = []
        for _ in range(jobs):
            if command == "bare":
                at = bare_ms(extents)
            else:
                job = connection.begin(0)
                at = arrivals_ms(arena)
                connection.end(job)
            between += [later - earlier for earlier, later in pairwise(at)]
        commands.send(between)


def row(name: str, between_ms: list[float], copy_ms: float) -> None:
    """Print what is left of the times between arrivals when the copies are taken off."""
    gaps = sorted(time - copy_ms for time in between_ms)
    p99 = gaps[int(len(gaps) * 0.99)]
    print(
        f"{name:<24}{len(gaps):>8}{copy_ms:>9.3f} ms{statistics.median(gaps):>9.3f} ms"
        f"{p99:>9.3f} ms{gaps[-1]:>9.3f} ms",
        flush=True,
    )


def measure(agent: AgentProcess, options: argparse.Namespace) -> None:
    """Load a task, run its jobs undisturbed and then while scrapers run, print a line for each."""
    agent.register("probe", gpu_plan(options.extents, ring=_RING), period_ns=10**11)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    path = agent.run_dir / "tasks" / "probe" / "tierline.sock"
    program = spawn.Process(target=client, args=(path, options.extents, options.jobs, there))
    program.start()
    here.recv()
    copy_ms = EXTENT_BYTES / options.h2d * 1e3
    for name, command, scrapers in (
        ("the simulator alone", "bare", 0),
        ("undisturbed", "jobs", 0),
        ("one scraper", "jobs", 1),
        ("two scrapers", "jobs", 2),
    ):
        stop = spawn.Event()
        running = [
            spawn.Process(target=scrape, args=(agent.metrics_address(), stop))
            for _ in range(scrapers)
        ]
        for scraper in running:
            scraper.start()
        here.send(command)
        row(name, here.recv(), copy_ms)
        stop.set()
        for scraper in running:
            scraper.join()
    here.send("")
    program.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extents", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=25)
    parser.add_argument("--h2d", type=int, default=3 << 30, help="bytes per second")
    options = parser.parse_args()
    print_head(describe())
    columns = ("copy", "gap p50", "gap p99", "worst")
    print(f"{'':<24}{'copies':>8}" + "".join(f"{column:>12}" for column in columns))
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated_machine() as machine,
        gpu_agent(
            *(Path(folder), machine),
            gpu={"H2D": str(options.h2d)},
            metrics_port=0,
        ) as agent,
    ):
        os.environ.update(agent.environment)  # for the processes that are started from here
        measure(agent, options)


if __name__ == "__main__":
    main()
