"""One agent at a time owns a node; the next opens nothing before the last one's process is gone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.config import AgentConfig, parse_config
from tierline_agent.devices.preparation import Prepared, prepare
from tierline_agent.errors import AlreadyRunning
from tierline_agent.lifecycle import handover
from tierline_agent.lifecycle import lock as subject
from tierline_agent.lifecycle.handover import sole_agent
from tierline_agent.lifecycle.lock import AgentLock
from tierline_agent.processes.identity import start_ticks
from tierline_cluster.processes import free_port

pytestmark = pytest.mark.timeout(60)
THREAD_STAYS = """
import asyncio, ctypes, os, pathlib, sys, threading
from tierline_agent.lifecycle.lock import AgentLock

async def hold():
    return AgentLock(pathlib.Path(sys.argv[1]))

lock = asyncio.run(hold())
print(lock.held, flush=True)
threading.Thread(target=threading.Event().wait).start()
number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
# The main thread ends, as after a kill, and another one does not.
ctypes.CDLL(None).syscall(number, 0)
"""
HOLDS = """
import asyncio, fcntl, pathlib, sys
from tierline_agent.lifecycle.lock import AgentLock

async def hold():
    with AgentLock(pathlib.Path(sys.argv[1])) as lock:
        print(lock.held, flush=True)
        sys.stdin.readline()
    print("given back", flush=True)
    sys.stdin.readline()

asyncio.run(hold())
"""
"""Holds the lock, gives it back at the first line, and lives on to the second."""


def until_dead(pid: int) -> None:
    """Until the main thread has ended."""
    while start_ticks(pid) is not None:
        os.sched_yield()


def holder(folder: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDS, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert answer(started) == "True"
    return started


def answer(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def go_on(one: subprocess.Popen[str]) -> None:
    assert one.stdin is not None
    one.stdin.write("\n")
    one.stdin.flush()


@in_loop
async def test_one_that_may_not_wait_is_refused(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with AgentLock(tmp_path) as lock, pytest.raises(AlreadyRunning, match="another agent does"):
            lock.refuse()
        first.kill()
    for _ in range(2):  # by the same process, which need not end before
        with AgentLock(tmp_path) as lock:
            lock.refuse()
            await lock.alone()


@in_loop
async def test_the_lock_is_not_enough_while_the_process_that_had_it_lives(tmp_path: Path) -> None:
    with holder(tmp_path) as first, AgentLock(tmp_path) as lock:
        looks = asyncio.Event()

        async def looked() -> None:
            looks.set()

        waiting = asyncio.create_task(lock.wait(looked))
        await looks.wait()
        go_on(first)
        assert answer(first) == "given back"
        await waiting
        alone = asyncio.create_task(lock.alone())
        await asyncio.sleep(0)
        assert not alone.done()
        first.send_signal(signal.SIGKILL)
        await alone
        first.wait()


DIES = """
import asyncio, os, pathlib, sys
from tierline_agent.lifecycle.lock import AgentLock

async def hold():
    lock = AgentLock(pathlib.Path(sys.argv[1]))
    if os.fork() == 0:
        print("left", flush=True)
    sys.stdin.readline()

asyncio.run(hold())
"""
"""Holds the lock, and so does a child of it, as a thread does that does not end."""


@contextmanager
def dead_and_not_gone(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that was killed, and whose lock is still held by what is left of it."""
    with subprocess.Popen(
        [sys.executable, "-c", DIES, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert answer(owner) == "left"
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        with (folder / "agent.lock").open() as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield owner
        assert owner.stdin is not None
        owner.stdin.close()  # the child ends


@in_loop
async def test_a_lock_counts_while_its_owner_runs(tmp_path: Path) -> None:
    with dead_and_not_gone(tmp_path), AgentLock(tmp_path) as lock:
        lock.refuse()
        await lock.alone()
        with AgentLock(tmp_path) as another, pytest.raises(AlreadyRunning):
            another.refuse()
    with AgentLock(tmp_path) as lock:
        lock.refuse()
    assert [path.name for path in tmp_path.iterdir()] == ["agent.lock"]


@in_loop
async def test_one_that_waits_takes_over_from_one_that_dies_and_is_not_gone(tmp_path: Path) -> None:
    async def looked() -> None:
        pass

    with AgentLock(tmp_path) as serving, AgentLock(tmp_path) as waiting:
        assert not waiting.held
        serving.close()
        with dead_and_not_gone(tmp_path):
            await waiting.wait(looked)
            assert waiting.held


TAKES = """
import asyncio, pathlib, sys
from tierline_agent.lifecycle.lock import AgentLock

async def take():
    sys.stdin.readline()
    lock = AgentLock(pathlib.Path(sys.argv[1]))
    print(lock.held, flush=True)
    sys.stdin.readline()

asyncio.run(take())
"""


@in_loop
async def test_of_many_that_find_the_owner_dead_one_takes_over(tmp_path: Path) -> None:
    with dead_and_not_gone(tmp_path), ExitStack() as stack:
        takers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TAKES, tmp_path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        for taker in takers:
            go_on(taker)
        assert sorted(answer(taker) for taker in takers) == ["False"] * 3 + ["True"]
        for taker in takers:
            taker.kill()


@in_loop
async def test_one_that_cannot_be_looked_at_lives(tmp_path: Path) -> None:
    """Its pid counts in another namespace, or it did not say where."""
    path = tmp_path / "agent.lock"
    for note in ("1 1 pid:[1]", "99999999 1", ""):
        path.write_text(note)
        with path.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with AgentLock(tmp_path) as lock:
                assert not lock.held


@in_loop
async def test_the_threads_of_a_dead_agent_are_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "REMAINS_S", 0.05)
    with subprocess.Popen(
        [sys.executable, "-c", THREAD_STAYS, tmp_path], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert answer(owner) == "True"
        until_dead(owner.pid)
        with AgentLock(tmp_path) as lock:
            lock.refuse()
            await lock.alone()
        assert owner.poll() is None, "a thread of it is left"
        owner.kill()


def settings(folder: Path, port: int) -> AgentConfig:
    values = {
        "state_dir": str(folder),
        "run_dir": str(folder),
        "device": {"kind": "cpu", "fast_bytes": 1 << 20, "extent_bytes": 1 << 16},
        "tiers": [{"name": "nvme", "path": str(folder / "nvme"), "size_bytes": 1 << 20}],
        "metrics_port": port,
        "kubernetes": {"hand_over": True},
    }
    return parse_config(json.dumps(values), "here")


def ready(port: int) -> int:
    """What a readiness probe is answered; 0 if nobody is there."""
    probe = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        probe.request("GET", "/readyz")
        return probe.getresponse().status
    except OSError:
        return 0
    finally:
        probe.close()


@in_loop
async def test_one_that_stands_by_is_ready_when_it_has_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, looks = threading.Event(), 0

    def prepares_when_it_may(*arguments: Any) -> Prepared:
        may.wait()
        return prepare(*arguments)

    monkeypatch.setattr(handover, "prepare", prepares_when_it_may)
    port = free_port()
    with holder(tmp_path) as first:
        standing = asyncio.create_task(sole_agent(settings(tmp_path, port)))
        while not (status := await asyncio.to_thread(ready, port)):
            await asyncio.sleep(0.01)
        while looks < 3 and status == HTTPStatus.SERVICE_UNAVAILABLE:
            status = await asyncio.to_thread(ready, port)
            looks += 1
        assert status == HTTPStatus.SERVICE_UNAVAILABLE
        may.set()
        while await asyncio.to_thread(ready, port) != HTTPStatus.OK:
            await asyncio.sleep(0.01)
        assert not standing.done()
        first.kill()
    lock, prepared = await standing
    with lock:
        assert [name for name, _ in prepared.devices.values()] == ["cpu"]
    assert not (tmp_path / "nvme").exists()
