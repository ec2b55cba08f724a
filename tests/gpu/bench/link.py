"""What the agent's stream does to the link: a job that only waits and gives back, extent by extent.

    python -m tests.gpu.bench.link [--extent-mib N...] [--ring N] [--mib N] [--jobs N] [--json FILE]

The client is `tests.integration.agent.gpu_client`: no model, no library. Job time (from GRANT to
the last extent consumed) against a bare copy of the same bytes from pinned memory in pieces of an
extent.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from cuda.bindings import driver
from tests.bench.machine import describe, keep, print_head
from tests.gpu.bench.streaming import agent, copy_rate
from tests.integration.agent.gpu_client import GEQ, GpuArena, GpuClient, ok, start_cuda

from tierline_agent.transport import protocol as p
from tierline_api.objects.plan import Home, Plan, Tier


def consume(arena: GpuArena) -> None:
    """Wait for each streamed extent and give it back, on the GPU."""
    streamed = sum(not word & p.RESIDENT_BIT for word in arena.placement)
    for count in range(1, streamed + 1):
        ok(driver.cuStreamWaitValue32(arena.stream, arena.published_there, count, GEQ))
        ok(driver.cuStreamWriteValue32(arena.stream, arena.consumed_there, count, 0))
    arena.synchronise()


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extent-mib", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--ring", type=int, default=4)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = {**describe(), "gpu": torch.cuda.get_device_name()}
    print_head(about)
    print(
        f"{'extent':>10}{'ring':>6}{'bare copy':>12}{'job p50':>12}{'worst':>12}{'ratio':>8}  bytes"
    )
    start_cuda()
    rows = []
    for mib in arguments.extent_mib:
        extent_bytes = mib << 20
        count = (arguments.mib << 20) // extent_bytes
        size = count * extent_bytes
        plan = Plan(
            extent_bytes=extent_bytes,
            extent_count=count,
            ring_extents=arguments.ring,
            homes=(Home(tier=Tier.DRAM, extents=count),),
            predicted_job_time_s=1.0,
            predicted_response_time_s=1.0,
        )
        with agent(extent_bytes, 8 << 30, size + (1 << 30)) as (local, admin):
            admin.call(
                "register",
                name="probe",
                domain="bench",
                period_ns=10**10,
                deadline_ns=10**10,
                plan=plan.to_api(),
            )
            client = GpuClient(local.task_socket("probe"))
            client.hello()
            content = torch.randint(0, 256, (size,), dtype=torch.uint8).numpy().tobytes()
            arena = client.load_arena(content)
            job = client.begin(0)
            right = arena.read_in_job() == content
            client.end(job)
            times = []
            for _ in range(arguments.jobs):
                job = client.begin(0)
                begin = time.perf_counter()
                consume(arena)
                times.append(time.perf_counter() - begin)
                client.end(job)
            rate = copy_rate(extent_bytes)
            client.close()
        bare = size / rate
        row = {
            "extent_bytes": extent_bytes,
            "ring": arguments.ring,
            "bytes": size,
            "bare_copy_s": bare,
            "job_median_s": statistics.median(times),
            "job_worst_s": max(times),
            "right": right,
        }
        rows.append(row)
        print(
            f"{mib:>6} MiB{arguments.ring:>6}{bare * 1e3:>9.2f} ms"
            f"{statistics.median(times) * 1e3:>9.2f} ms{max(times) * 1e3:>9.2f} ms"
            f"{statistics.median(times) / bare:>8.3f}  {'right' if right else 'WRONG'}",
            flush=True,
        )
    keep(arguments.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
