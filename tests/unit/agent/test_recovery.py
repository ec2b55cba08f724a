from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop, in_virtual_time

from tierline_agent.identity import Process, ProcessWatch, start_ticks
from tierline_agent.kills import Kills
from tierline_agent.leases import LeaseManager
from tierline_agent.policy.leases import Rank
from tierline_agent.recovery import ClientBook, ClientRecord, Recovery
from tierline_agent.state import LeaseMark


def process_of(pid: int) -> Process:
    ticks = start_ticks(pid)
    assert ticks is not None
    return Process(pid, ticks)


SELF = process_of(os.getpid())


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends, or it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


class Restarted:
    """An agent that finds what an earlier one wrote down."""

    def __init__(self, folder: Path, *records: ClientRecord, holder: int | None = None) -> None:
        before = ClientBook(folder / "clients")
        for record in records:
            before.note(record)
        self.mark = LeaseMark(folder / "mark")
        if holder is not None:
            process = next(record.process for record in records if record.token == holder)
            self.mark.set(holder, process)
        self.leases = LeaseManager(lambda: 0)
        self.watch = ProcessWatch(asyncio.get_running_loop())
        self.book = ClientBook(folder / "clients")
        self.recovery = Recovery(
            book=self.book,
            devices=[(self.mark, self.leases)],
            watch=self.watch,
            kills=Kills(self.watch),
            recovery_s=2,
            holder_grace_s=30,
        )

    def grants(self) -> bool:
        """Whether a request would be granted now."""
        granted: list[int] = []
        ticket = self.leases.ticket(0, Rank.GUARANTEED)
        self.leases.request(ticket, granted.append)
        self.leases.release(ticket)
        return bool(granted)

    def close(self) -> None:
        self.recovery.close()
        self.watch.close()
        self.mark.close()


@in_virtual_time
async def test_without_clients_of_before_leases_are_granted_at_once(tmp_path: Path) -> None:
    agent = Restarted(tmp_path)
    assert agent.grants()
    await agent.recovery.settled()
    agent.close()


@in_virtual_time
async def test_leases_wait_until_all_arenas_of_all_clients_are_back(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 2), ClientRecord(2, "b", SELF, 0))
    agent.recovery.attached(1, 1)
    agent.recovery.attached(2, 0)
    assert not agent.grants()
    agent.recovery.attached(1, 2)
    assert agent.grants()
    agent.close()


@in_virtual_time
async def test_leases_wait_for_a_bounded_time(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1))
    await asyncio.sleep(1.9)
    assert not agent.grants()
    await asyncio.sleep(0.2)
    assert agent.grants()
    assert agent.recovery.record_of(1, "a", SELF) is not None  # it may still come back
    agent.close()


@in_virtual_time
async def test_nobody_passes_a_live_holder_however_long_it_takes(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1), holder=1)
    await asyncio.sleep(20)
    assert not agent.grants()
    assert agent.recovery.may_resume(1)
    assert not agent.recovery.may_resume(2)
    agent.recovery.attached(1, 1)
    assert agent.grants()
    assert agent.mark.read() is None
    assert not agent.recovery.may_resume(1)
    agent.close()


@in_loop
async def test_a_holder_that_dies_holds_nothing(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", process_of(child.pid), 1), holder=1)
    assert not agent.grants()
    child.kill()
    await asyncio.wait_for(agent.recovery.settled(), 10)
    assert agent.grants()
    assert agent.mark.read() is None
    agent.close()


@in_virtual_time
async def test_a_holder_that_never_comes_back_is_killed(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", process_of(child.pid), 1), holder=1)
    await asyncio.sleep(29)
    assert child.poll() is None
    await asyncio.sleep(2)
    assert await asyncio.to_thread(child.wait, 10) == -9
    agent.close()


@in_virtual_time
async def test_the_dead_are_not_expected(tmp_path: Path) -> None:
    gone = Process(SELF.pid, SELF.start_ticks - 1)  # the pid was used again
    agent = Restarted(tmp_path, ClientRecord(1, "a", gone, 3), holder=1)
    assert agent.grants()
    assert agent.mark.read() is None
    agent.close()


@in_virtual_time
async def test_a_token_belongs_to_one_process_of_one_task(tmp_path: Path) -> None:
    record = ClientRecord(1, "a", SELF, 1)
    agent = Restarted(tmp_path, record)
    assert agent.recovery.record_of(1, "a", SELF) == record
    assert agent.recovery.record_of(1, "b", SELF) is None
    assert agent.recovery.record_of(1, "a", Process(SELF.pid, 1)) is None
    assert agent.recovery.record_of(2, "a", SELF) is None
    agent.close()
