from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop, in_virtual_time

from tierline_agent.policy.leases import Rank
from tierline_agent.processes.identity import Process, ProcessWatch, start_ticks
from tierline_agent.processes.interventions import Interventions
from tierline_agent.processes.killing import Killing
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling import recovery
from tierline_agent.scheduling.leases import LeaseManager
from tierline_agent.scheduling.recovery import ClientBook, ClientRecord, Recovery
from tierline_agent.telemetry.metrics import Metrics


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

    def __init__(
        self,
        folder: Path,
        *records: ClientRecord,
        holder: int | None = None,
        unreadable: bytes | None = None,
    ) -> None:
        before = ClientBook(folder / "clients")
        for record in records:
            before.note(record)
        self.mark = LeaseMark(folder / "mark")
        if holder is not None:
            record = next(record for record in records if record.token == holder)
            self.mark.set(holder, record.process, record.task)
        if unreadable is not None:
            (folder / "clients").write_bytes(unreadable)
        self.other_mark = LeaseMark(folder / "other")
        self.other_leases = LeaseManager(lambda: 0)
        self.all_back = 0
        self.fenced: list[str] = []
        """Domains."""
        self.left_inside: list[tuple[str, Process]] = []
        self.leases = LeaseManager(lambda: 0)
        self.watch = ProcessWatch(asyncio.get_running_loop())
        self.book = ClientBook(folder / "clients")
        self.recovery = Recovery(
            book=self.book,
            devices=[
                self._device("a", self.mark, self.leases),
                self._device("b", self.other_mark, self.other_leases),
            ],
            watch=self.watch,
            interventions=Interventions(
                Killing(self.watch, asyncio.get_running_loop()), Metrics("")
            ),
            recovery_s=2,
            holder_grace_s=30,
            domain_of={"a": "alone", "b": "both"}.get,
            all_back=self.note_all_back,
        )

    def _device(self, name: str, mark: LeaseMark, leases: LeaseManager) -> recovery.Restarted:
        return recovery.Restarted(
            *(name, mark, leases, self.fenced.append, self.fenced.remove),
            lambda domain, process: self.left_inside.append((domain, process)),
        )

    def note_all_back(self) -> None:
        self.all_back += 1

    def grants(self, *, other: bool = False) -> bool:
        """Whether a request would be granted now, of the device or the other one."""
        leases = self.other_leases if other else self.leases
        granted: list[int] = []
        ticket = leases.ticket(0, Rank.GUARANTEED)
        leases.request(ticket, granted.append)
        leases.release(ticket)
        return bool(granted)

    def close(self) -> None:
        self.recovery.close()
        self.watch.close()
        self.mark.close()
        self.other_mark.close()


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
async def test_all_but_the_domain_of_a_live_holder_go_on(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1), holder=1)
    await asyncio.sleep(1.9)
    assert not agent.grants(), "it is expected"
    assert not agent.grants(other=True), "content may be evicted once others store theirs"
    await asyncio.sleep(0.2)
    assert agent.grants()
    assert agent.grants(other=True)
    assert agent.fenced == ["alone"]
    await agent.recovery.settled()
    assert agent.recovery.may_resume(1)
    assert not agent.recovery.may_resume(2)
    agent.recovery.attached(1, 1)
    assert agent.fenced == []
    assert agent.mark.read() is None
    assert not agent.recovery.may_resume(1)
    agent.close()


@in_virtual_time
async def test_a_holder_is_known_to_each_agent_until_it_is_back(tmp_path: Path) -> None:
    """The mark of the lease is another one's by then, whose client returns first."""
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1), holder=1)
    await asyncio.sleep(2.1)
    agent.book.note(ClientRecord(2, "b", SELF, 1))
    agent.mark.set(2, SELF)
    agent.close()
    agent = Restarted(tmp_path)
    assert (agent.recovery.may_resume(1), agent.recovery.may_resume(2)) == (True, True)
    agent.recovery.attached(1, 1)
    assert agent.mark.read() == (2, SELF)
    await asyncio.sleep(2.1)
    assert agent.fenced == ["both"]
    agent.close()


@in_virtual_time
async def test_a_holder_of_no_known_domain_is_waited_for(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "gone", SELF, 1), holder=1)
    await asyncio.sleep(20)
    assert not agent.grants()
    assert agent.grants(other=True)
    agent.recovery.attached(1, 1)
    assert agent.grants()
    agent.close()


@in_virtual_time
async def test_a_holder_that_outlives_being_killed_computes_no_more(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1), holder=1)
    await asyncio.sleep(2.1)
    agent.recovery.outlived(SELF)
    assert (agent.fenced, agent.left_inside) == ([], [("alone", SELF)])
    assert not agent.recovery.may_resume(1)
    assert agent.book.records == []
    agent.close()


UNREADABLE = [b"", b"{", b"\xff" * 4000, b"[" * 100_000, b'{"boot": 5}']


@in_virtual_time
@pytest.mark.parametrize("content", UNREADABLE, ids=["empty", "cut", "garbage", "deep", "no book"])
async def test_of_a_book_that_cannot_be_read_anybody_may_come_back(
    tmp_path: Path, content: bytes
) -> None:
    record = ClientRecord(1, "a", SELF, 1)
    for _ in range(2):  # the agent that finds it so dies, and the next one comes
        agent = Restarted(tmp_path, unreadable=content)
        await asyncio.sleep(1.9)
        assert (agent.grants(), agent.all_back, agent.recovery.pending) == (False, 0, True)
        agent.book.note(record)
        agent.close()
        content = (tmp_path / "clients").read_bytes()
    await asyncio.sleep(0)
    agent = Restarted(tmp_path)
    assert agent.recovery.record_of(1, "a", SELF) == record
    agent.recovery.attached(1, 1)
    assert (agent.grants(), agent.all_back) == (False, 0)
    await asyncio.sleep(2.1)
    assert (agent.grants(), agent.all_back, agent.recovery.pending) == (True, 1, False)
    agent.close()
    agent = Restarted(tmp_path, ClientRecord(2, "a", SELF, 0))
    assert not agent.book.has_unknown
    agent.close()


@in_virtual_time
async def test_a_holder_that_the_book_does_not_have_goes_on(tmp_path: Path) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1), holder=1, unreadable=b"")
    assert agent.recovery.record_of(1, "a", Process(SELF.pid, 1)) is None
    assert agent.recovery.record_of(2, "a", SELF) is None
    assert agent.recovery.record_of(1, "a", SELF) is not None
    agent.recovery.attached(1, 0)
    await asyncio.sleep(2.1)
    assert agent.recovery.may_resume(1)
    agent.recovery.has_offered_all(1)
    assert agent.grants()
    agent.close()


@in_virtual_time
async def test_only_its_domain_waits_for_a_holder_that_the_book_does_not_have(
    tmp_path: Path,
) -> None:
    agent = Restarted(tmp_path, ClientRecord(1, "a", SELF, 1), holder=1, unreadable=b"")
    await asyncio.sleep(2.1)
    assert (agent.grants(), agent.fenced) == (True, ["alone"])
    agent.close()


@in_virtual_time
async def test_a_device_waits_for_a_holder_of_whom_nothing_is_known(tmp_path: Path) -> None:
    mark = LeaseMark(tmp_path / "mark")
    mark.set(1, SELF)
    mark.close()
    agent = Restarted(tmp_path)
    await asyncio.sleep(2.1)
    assert (agent.grants(), agent.grants(other=True), agent.fenced) == (False, True, [])
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
