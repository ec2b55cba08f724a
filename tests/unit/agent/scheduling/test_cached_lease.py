"""The lease that is left open to a client: the real files and locks, and the manager on top.

What a client does is what the library's cached_lease.c does, on an open file of its own.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tierline_agent.policy.leases import Rank
from tierline_agent.processes.identity import Process, start_ticks
from tierline_agent.processes.state import LeaseMark
from tierline_agent.scheduling.cached_lease import CachedLease, close_all
from tierline_agent.scheduling.leases import LeaseManager, Ticket

SELF = Process(os.getpid(), start_ticks(os.getpid()) or 0)
ARENA = 3


class Taker:
    """A client's side of a lease."""

    def __init__(self, lease: CachedLease) -> None:
        self.descriptor = lease.export()

    def take(self, job: int, arena: int = ARENA) -> bool:
        return self.lock() and self.look(job, arena)

    def lock(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def look(self, job: int, arena: int = ARENA) -> bool:
        last_job, of_arena, _ = struct.unpack("<QII", os.pread(self.descriptor, 16, 0))
        if last_job >= job and of_arena == arena:
            return True
        self.unlock()
        return False

    def unlock(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.descriptor)


class Pair:
    """A lease and its taker."""

    def __init__(self, folder: Path, token: int = 1, process: Process = SELF) -> None:
        self.lease = CachedLease(folder, token, process)
        self.taker = Taker(self.lease)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.taker.close()
    made.lease.remove()
    assert not list(tmp_path.iterdir())


def test_it_is_closed_at_first(pair: Pair) -> None:
    assert not pair.taker.take(1)


def test_it_is_open_to_the_next_jobs_of_one_arena(pair: Pair) -> None:
    assert pair.lease.open(1, ARENA)
    assert not pair.taker.take(2, ARENA + 1)
    for job in range(2, 10):
        assert pair.taker.take(job)
        pair.taker.unlock()
    assert not pair.taker.take(10)  # the agent has counted none of these
    pair.lease.counted(2)
    assert pair.taker.take(10)
    pair.taker.unlock()


def test_it_is_closed_unless_it_is_taken(pair: Pair) -> None:
    assert pair.lease.open(1, ARENA)
    assert pair.lease.close()
    assert not pair.taker.take(2)
    assert pair.lease.open(1, ARENA)
    assert pair.taker.take(2)
    assert not pair.lease.close()
    pair.taker.unlock()
    assert not pair.taker.take(3)
    assert pair.lease.close()


def test_who_locked_before_it_was_closed_finds_it_closed(pair: Pair) -> None:
    """The one moment in which both sides think that it may be the client's: both keep off."""
    assert pair.lease.open(1, ARENA)
    assert pair.taker.lock()
    assert not pair.lease.close()
    assert not pair.taker.look(2)
    assert pair.lease.close()


def test_it_is_not_left_open_to_who_has_the_lock(pair: Pair) -> None:
    assert pair.taker.lock()
    assert not pair.lease.open(1, ARENA)
    pair.taker.unlock()
    assert not pair.taker.take(2)


def test_the_highest_job_has_a_number(pair: Pair) -> None:
    assert pair.lease.open((1 << 64) - 1, ARENA)
    assert pair.taker.take((1 << 64) - 1)
    pair.taker.unlock()


# -- after the death of an agent


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[LeaseMark]:
    made = LeaseMark(tmp_path / "mark")
    yield made
    made.close()


def test_an_idle_client_of_before_is_no_holder(tmp_path: Path, mark: LeaseMark) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    before = Pair(folder)
    assert before.lease.open(1, ARENA)
    close_all(folder, mark)
    assert mark.read() is None
    assert not before.taker.take(2)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("wanted", [False, True])
def test_who_has_taken_it_is_the_holder(tmp_path: Path, mark: LeaseMark, wanted: bool) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    before = Pair(folder, token=7)
    assert before.lease.open(1, ARENA)
    assert before.taker.take(2)
    if wanted:
        assert not before.lease.close()
    close_all(folder, mark)
    assert mark.read() == (7, SELF)


def test_a_lock_on_what_was_closed_makes_nobody_the_holder(tmp_path: Path, mark: LeaseMark) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    before = Pair(folder)
    assert before.lease.open(1, ARENA)
    assert before.lease.close()
    assert before.taker.lock()
    close_all(folder, mark)
    assert mark.read() is None


def test_the_dead_hold_nothing_and_the_mark_goes_first(tmp_path: Path, mark: LeaseMark) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    gone = Process(SELF.pid, SELF.start_ticks - 1)
    for token, process in ((1, gone), (2, SELF)):
        before = Pair(folder, token, process)
        assert before.lease.open(1, ARENA)
        assert before.taker.take(2)
    mark.set(3, SELF)
    close_all(folder, mark)
    assert mark.read() == (3, SELF)


def test_the_lock_of_a_process_dies_with_it(tmp_path: Path) -> None:
    lease = CachedLease(tmp_path, 1, SELF)
    assert lease.open(1, ARENA)
    descriptor = lease.export()
    script = (
        f"import fcntl; fcntl.flock({descriptor}, fcntl.LOCK_SH); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        os.close(descriptor)
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert not lease.close()
        process.kill()
    assert lease.close()
    lease.remove()


# -- the manager


def test_who_took_it_twice_is_waited_for_twice(pair: Pair) -> None:
    """Two jobs began before it was closed, and the agent hears of the first one's end."""
    leases, granted = LeaseManager(lambda: 0), list[int]()
    assert pair.lease.open(1, ARENA)
    leases.leave_open(pair.lease, leases.ticket(1, Rank.GUARANTEED))
    assert pair.taker.take(2)
    pair.taker.unlock()
    assert pair.taker.take(3)
    leases.request(leases.ticket(1, Rank.GUARANTEED), granted.append)
    assert not leases.returned(pair.lease)
    assert granted == []
    pair.taker.unlock()
    assert not leases.returned(pair.lease)
    assert granted == [0]


# -- against a model


class Model:
    """Two clients that may take, jobs of others that ask, and a reason to grant nothing.

    A step of a client's is one call at the kernel, and what it says is heard of later, so that
    everything comes between two.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.leases = LeaseManager(lambda: 0)
        self.pairs = [Pair(folder, token) for token in (1, 2)]
        self.locked: set[int] = set()
        self.inside: set[int] = set()
        """Clients that run a job for which they took the lease."""
        self.said: list[list[Callable[[], object]]] = [[], []]
        """What they said and nobody heard yet."""
        self.asking: set[int] = set()
        self.own: dict[int, Ticket] = {}
        """Their jobs that were granted, as the agent knows."""
        self.ended: set[Ticket] = set()
        self.jobs = [1, 1]
        self.taken = 0
        self.waiting: list[Ticket] = []
        self.granted: list[Ticket] = []

    def close(self) -> None:
        for pair in self.pairs:
            pair.taker.close()
            pair.lease.remove()

    def running(self, who: int) -> bool:
        return who in self.own and self.own[who] not in self.ended

    def leave_open(self, who: int) -> None:
        pair = self.pairs[who]
        after = self.own.get(who) or self.leases.ticket(0, Rank.GUARANTEED)
        if self.leases.may_leave_open(after) and pair.lease.open(self.jobs[who], ARENA):
            self.leases.leave_open(pair.lease, after)

    def step(self, who: int) -> None:
        """What a client does next."""
        pair = self.pairs[who]
        if who in self.locked:
            self.look(who)
        elif who in self.inside:
            pair.taker.unlock()
            self.inside.discard(who)
            self.said[who].append(lambda: self.returned(who, self.jobs[who]))
        elif self.running(who):
            ticket = self.own[who]
            self.ended.add(ticket)
            self.said[who].append(lambda: self.release(who, ticket))
        elif self.leases.opened is pair.lease:
            self.try_it(who)

    def try_it(self, who: int) -> None:
        """A client does not know whether it is open."""
        busy = {who} & (self.locked | self.inside | self.asking) or self.running(who)
        if not busy and self.pairs[who].taker.lock():
            self.locked.add(who)

    def look(self, who: int) -> None:
        self.locked.discard(who)
        if self.pairs[who].taker.look(self.jobs[who] + 1):
            self.inside.add(who)
            self.taken += 1
        else:
            self.asking.add(who)
            self.said[who].append(lambda: self.asked(who))
        self.jobs[who] += 1

    def hear(self, who: int) -> None:
        if self.said[who]:
            self.said[who].pop(0)()

    def returned(self, who: int, job: int) -> None:
        if self.leases.returned(self.pairs[who].lease):
            self.pairs[who].lease.counted(job)

    def release(self, who: int, ticket: Ticket) -> None:
        del self.own[who]
        self.granted.remove(ticket)
        self.leases.release(ticket)

    def asked(self, who: int) -> None:
        self.leases.withdraw(self.pairs[who].lease)
        ticket = self.leases.ticket(0, Rank.GUARANTEED)

        def granted(_now_ns: int) -> None:
            self.waiting.remove(ticket)
            self.asking.discard(who)
            self.own[who] = ticket
            self.granted.append(ticket)

        self.waiting.append(ticket)
        self.leases.request(ticket, granted)

    def die(self, who: int) -> None:
        """And be replaced by another client of that number."""
        pair = self.pairs[who]
        if who in self.asking:
            return  # its ticket is the model's to give up
        if who in self.own:
            self.release(who, self.own[who])
        pair.taker.close()
        self.leases.withdraw(pair.lease)
        pair.lease.remove()
        self.locked.discard(who)
        self.inside.discard(who)
        self.said[who].clear()
        self.pairs[who] = Pair(self.folder, who + 1)

    def ask(self, deadline_ns: int) -> None:
        ticket = self.leases.ticket(deadline_ns, Rank.GUARANTEED)
        self.waiting.append(ticket)

        def granted(_now_ns: int) -> None:
            self.waiting.remove(ticket)
            self.granted.append(ticket)

        self.leases.request(ticket, granted)

    def end(self) -> None:
        if self.granted and self.granted[0] not in self.own.values():
            self.leases.release(self.granted.pop())

    def check(self) -> None:
        self.one_at_a_time_has_the_device()
        self.nobody_waits_for_a_free_device()
        assert self.leases.holder is (self.granted[0] if self.granted else None)

    def one_at_a_time_has_the_device(self) -> None:
        ordinary = [ticket for ticket in self.granted if ticket not in self.ended]
        assert len(self.inside) + len(ordinary) <= 1

    def nobody_waits_for_a_free_device(self) -> None:
        """Unless a client is about to look, or to be heard."""
        speechless = self.locked or self.inside or any(self.said)
        if self.waiting and not self.granted and not self.leases.blocked:
            assert speechless, "the lease is lost"


def walk(folder: Path, random: Random) -> int:
    """Eighty events in some order; returns how often the lease was taken."""
    model = Model(folder)
    events: tuple[tuple[int, Callable[[int], object]], ...] = (
        (24, model.step),
        (6, model.leave_open),
        (2, lambda _: model.ask(random.randrange(3))),
        (1, model.try_it),
        (6, lambda _: model.end()),
        (8, model.hear),
        (1, lambda _: model.leases.block("test")),
        (4, lambda _: model.leases.unblock("test")),
        (1, lambda _: model.leases.recall()),
        (1, model.die),
    )
    weights, calls = zip(*events, strict=True)
    for call in random.choices(calls, weights, k=80):
        call(random.randrange(2))
        model.check()
    model.close()
    return model.taken


def test_whatever_comes_between_one_at_a_time_has_the_device(tmp_path: Path) -> None:
    random = Random(1)  # noqa: S311 - any order will do
    assert sum(walk(tmp_path, random) for _ in range(1500)) > 1000
