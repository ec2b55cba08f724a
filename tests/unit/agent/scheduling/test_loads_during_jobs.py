"""A load begins on no link over which a job streams for the same device, however idle the link is.

The planner's recursion charges a job what is in flight when it is dispatched, once. Without this
rule a load would begin each time that the stream waits for a slot, and cost a flight each time.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.unit.agent.loops import in_loop

from tierline_agent.devices.cpu import CpuDevice, CpuWords
from tierline_agent.links.link import Link
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.preemption import Allowance, Scheduling, Terms
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.processes.identity import Process
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling.execution import DeviceJob, Execution, Yielding
from tierline_agent.scheduling.executor import Executor
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.telemetry.accounting import FastMemory
from tierline_agent.tiers.sources import Source
from tierline_client import words

EXTENT_BYTES = 64 << 10
HOUR_NS = 3600 * 10**9
TIMEOUT_S = 60.0
CONSUMED_OFFSET = 64
FREELY = Allowance(0, 0, 0)


class Stalled:
    """A job of four extents through two slots; its client has not read the first yet."""

    def __init__(self, link: Link, flags: CpuWords) -> None:
        self.link = link
        self.order: list[str] = []
        """What the link moved."""
        self._flags = flags

    def start(self, executor: Executor, execution: Execution) -> None:
        self.executor, self.execution = executor, execution
        executor.begin(execution, lambda _now_ns: None)

    def move(self, what: str, _target: memoryview | None = None) -> int:
        self.order.append(what)
        return 1

    async def load(self, what: str, device: str) -> None:
        await self.link.run(BACKGROUND_NS, functools.partial(self.move, what), device=device)

    async def published(self, count: int) -> None:
        assert await asyncio.to_thread(words.wait, self._flags._address, count, TIMEOUT_S)

    async def finish(self) -> None:
        words.publish(self._flags._address + CONSUMED_OFFSET, 2)
        await self.published(4)


@asynccontextmanager
async def stalled(folder: Path, planned_ns: int) -> AsyncIterator[Stalled]:
    device = CpuDevice(EXTENT_BYTES, 4 * EXTENT_BYTES)
    flags = device.create_words()
    assert isinstance(flags, CpuWords)
    mark, link = LeaseMark(folder / "mark"), Link("h2d")
    job = Stalled(link, flags)
    executor = Executor(
        device=device, leases=LeaseManager(time.monotonic_ns), mark=mark, memory=FastMemory(1 << 30)
    )
    sources = [
        Source(link, functools.partial(job.move, str(number)), f"extent {number}", None, "cpu")
        for number in range(4)
    ]
    execution = executor.prepare(
        DeviceJob(
            token=1,
            process=Process(1, 1),
            domain="default",
            deadline_ns=time.monotonic_ns() + HOUR_NS,
            rank=Rank.GUARANTEED,
            eligible_ns=0,
            workspace_bytes=0,
            sources=sources,
            ring=[device.create_extent() for _ in range(2)],
            words=flags,
            planned_ns=planned_ns,
            yielding=Yielding(flags, Terms(Scheduling.RING_KEEPING, HOUR_NS, 1), FREELY),
        ),
        lambda failure: job.order.append(str(failure)),
    )
    try:
        job.start(executor, execution)
        await job.published(2)
        yield job
    finally:
        executor.end(execution)
        executor.is_over(execution)
        await executor.quiet(flags)
        executor.close()
        link.close()
        mark.close()


@in_loop
async def test_a_load_waits_until_the_stream_is_over(tmp_path: Path) -> None:
    async with stalled(tmp_path, HOUR_NS) as job:
        load = asyncio.ensure_future(job.load("load", "cpu"))
        await job.load("another device's", "gpu-0")
        await job.finish()
        await asyncio.wait_for(load, TIMEOUT_S)
        moved = [job.order.index(what) for what in ("another device's", "2", "3", "load")]
        assert moved == sorted(moved)


@in_loop
async def test_a_job_that_has_had_its_time_is_not_waited_for(tmp_path: Path) -> None:
    async with stalled(tmp_path, 1) as job:
        await asyncio.wait_for(job.load("load", "cpu"), TIMEOUT_S)
        assert sorted(job.order) == ["0", "1", "load"]
        await job.finish()


@in_loop
async def test_a_parked_jobs_stream_counts_on_its_link_while_others_have_the_device(
    tmp_path: Path,
) -> None:
    async with stalled(tmp_path, 1) as job:
        urgent = job.executor.prepare(
            DeviceJob(
                token=2,
                process=Process(1, 1),
                domain="default",
                deadline_ns=0,
                rank=Rank.GUARANTEED,
                eligible_ns=0,
                workspace_bytes=0,
                sources=[],
                ring=[],
                words=None,
                planned_ns=HOUR_NS,
            ),
            lambda failure: job.order.append(str(failure)),
        )
        job.executor.begin(urgent, lambda _now_ns: None)
        job.executor.park(job.execution, 0, lambda: None)
        load = asyncio.ensure_future(job.load("load", "cpu"))
        await job.load("another device's", "gpu-0")
        await job.finish()
        await asyncio.wait_for(load, TIMEOUT_S)
        moved = [job.order.index(what) for what in ("another device's", "2", "3", "load")]
        assert moved == sorted(moved)
        job.executor.end(urgent)
