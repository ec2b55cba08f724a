"""Two GPUs of one host under one agent: what streaming on both at once costs each.

    python -m tests.gpu.bench.two_gpus [--mib N] [--extent-mib N] [--seconds S] [--json FILE]

A client a GPU reads its arena job after job as `tests.gpu.bench.link` does, first one GPU alone,
then the other, then both at once; every job's bytes of the first pass are compared. Next to it
stands what the agent measured at its start and plans with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tests.bench.machine import describe, keep, print_head
from tests.gpu.bench.link import consume
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.gpu_agent import gpu_plan
from tests.integration.agent.gpu_client import GpuArena, GpuClient, start_cuda

from tierline_cli.local.place import Place

_RING = 4


@dataclass(frozen=True)
class Row:
    """What one GPU did in one phase."""

    phase: str
    gpu: int
    jobs: int
    bytes_per_s: float
    worst_job_s: float


def client(socket: Path, gpu: int, size_bytes: int) -> None:
    """Load an arena, then stream it for as many seconds as each line of standard input says."""
    start_cuda(gpu)
    GpuArena.ordinal = gpu
    connection = GpuClient(socket)
    connection.hello()
    torch.manual_seed(gpu)
    content = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8).numpy().tobytes()
    arena = connection.load_arena(content)
    job = connection.begin(0)
    right = arena.read_in_job() == content
    connection.end(job)
    print("right" if right else "WRONG", flush=True)
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end:
            job = connection.begin(0)
            begin = time.perf_counter()
            consume(arena)
            times.append(time.perf_counter() - begin)
            connection.end(job)
        print(json.dumps({"jobs": len(times), "busy_s": sum(times), "worst_s": max(times)}))
        sys.stdout.flush()
    connection.close()


class Client:
    """That process."""

    def __init__(self, agent: AgentProcess, gpu: int, size_bytes: int) -> None:
        self.gpu, self.size_bytes = gpu, size_bytes
        socket = agent.run_dir / "tasks" / f"task-{gpu}" / "tierline.sock"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.gpu.bench.two_gpus", "--client", str(socket)),
                *("--gpu", str(gpu), "--mib", str(size_bytes >> 20)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"the client of GPU {self.gpu} ended")
        return line

    def tell(self, seconds: float) -> None:
        """Let it stream."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def row(self, phase: str) -> Row:
        """What it did since."""
        seen: dict[str, Any] = json.loads(self.answer())
        rate = seen["jobs"] * self.size_bytes / seen["busy_s"]
        return Row(phase, self.gpu, seen["jobs"], rate, seen["worst_s"])

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(agent: AgentProcess, size_bytes: int, extent_bytes: int, seconds: float) -> list[Row]:
    """Each GPU alone, then both at once."""
    plan = gpu_plan(size_bytes // extent_bytes, ring=_RING, extent_bytes=extent_bytes)
    clients = []
    try:
        for gpu in range(2):
            agent.register(f"task-{gpu}", plan, device=f"gpu-{gpu}", period_ns=10**10)
            clients.append(Client(agent, gpu, size_bytes))
        for one in clients:
            if one.answer() != "right":
                raise SystemExit(f"GPU {one.gpu} streamed wrong bytes")
        rows = []
        for one in clients:
            one.tell(seconds)
            rows.append(one.row("alone"))
        for one in clients:
            one.tell(seconds)
        rows += [one.row("both") for one in clients]
        return rows
    finally:
        for one in clients:
            one.close()


def main() -> None:
    """Measure, print a table, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--extent-mib", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--gpu", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size_bytes, extent_bytes = arguments.mib << 20, arguments.extent_mib << 20
    if arguments.client is not None:
        client(arguments.client, arguments.gpu, size_bytes)
        return
    about = {**describe(), "gpu": f"2 x {Place('cuda').product()}"}
    print_head(about)
    fast = {"fast_bytes": 2 * _RING * extent_bytes, "extent_bytes": extent_bytes}
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as ram,
    ):
        agent = AgentProcess(
            Path(folder),
            device=None,
            devices=[{"kind": "cuda", "index": gpu, **fast} for gpu in range(2)],
            tiers=[
                {"name": "dram", "path": f"{ram}/dram", "size_bytes": 2 * size_bytes + (1 << 30)}
            ],
        )
        agent.start()
        try:
            node = agent.call("node")["node"]["status"]
            links = [link for link in node["links"] if link["name"] == "h2d"]
            rows = measure(agent, size_bytes, extent_bytes, arguments.seconds)
        finally:
            agent.stop()
    for link in links:
        print(f"{link['device']}: planned with {link['bandwidth'] / 1e9:.1f} GB/s")
    print(f"{'GPU':<6}{'phase':<8}{'jobs':>6}{'streamed':>14}{'worst job':>14}")
    for row in rows:
        print(
            f"{row.gpu:<6}{row.phase:<8}{row.jobs:>6}{row.bytes_per_s / 1e9:>9.1f} GB/s"
            f"{row.worst_job_s * 1e3:>11.2f} ms"
        )
    keep(arguments.json, {**about, "links": links, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
