"""A job is rewound while its stream waits for one that is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from tests.unit.agent.loops import in_loop
from tests.unit.agent.virtual_device import VirtualLink, VirtualStream, VirtualWords

from tierline_agent.devices.base import Device, StreamOrder
from tierline_agent.policy.leases import Rank
from tierline_agent.processes.identity import Process
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling.execution import DeviceJob, Execution, StreamStart
from tierline_agent.scheduling.executor import Executor
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.telemetry.accounting import FastMemory
from tierline_agent.tiers.sources import Source

EXTENTS = 2


class Streams:
    """A device with copies that arrive when the test says so."""

    copies_itself = False

    def __init__(self) -> None:
        self.opened: list[VirtualStream] = []

    def open_stream(self, order: StreamOrder) -> VirtualStream:
        loop = asyncio.get_running_loop()
        self.opened.append(VirtualStream(order, [VirtualLink(EXTENTS)], loop, goes_ahead=True))
        self.opened[-1].ask()
        return self.opened[-1]


def job(token: int) -> DeviceJob:
    return DeviceJob(
        token=token,
        process=Process(token, 1),
        domain="a",
        deadline_ns=token,
        rank=Rank.GUARANTEED,
        eligible_ns=0,
        workspace_bytes=0,
        sources=cast("list[Source]", [(0, 0.0)] * EXTENTS),
        ring=[None] * EXTENTS,  # type: ignore[list-item] # only their number counts
        words=VirtualWords(),
    )


@pytest.fixture
def mark(tmp_path: Path) -> LeaseMark:
    return LeaseMark(tmp_path / "mark")


@in_loop
async def test_a_stream_that_waits_begins_when_its_job_is_rewound(mark: LeaseMark) -> None:
    device = Streams()
    executor = Executor(
        device=cast(Device, device),
        leases=LeaseManager(lambda: 0),
        mark=mark,
        memory=FastMemory(1 << 40),
        clock_ns=lambda: 0,
    )

    def begin(token: int) -> Execution:
        execution = executor.prepare(job(token), lambda _failure: None)
        executor.begin(execution, lambda _now_ns: None)
        return execution

    first = begin(1)
    (stream,) = device.opened
    for extent in range(EXTENTS):
        stream.arrived(extent)
    assert stream.tell_if_over()
    executor.end(first)
    ahead = stream.follower
    assert ahead is not None, "the next job's extents are copied ahead"
    second = begin(2)
    assert device.opened == [stream], "its stream waits for what is under way"
    rewound = executor.rewind(second, second.job, StreamStart())
    assert ahead.tell_if_over()
    assert await rewound
    assert [one.words for one in device.opened[1:]] == [second.job.words]
    assert second.stream is device.opened[-1]
    assert executor.mend() == []
    mark.close()
