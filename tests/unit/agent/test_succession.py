"""One agent at a time owns a node; the next opens nothing before the last one's process is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.errors import AlreadyRunning
from tierline_agent.succession import AgentLock

pytestmark = pytest.mark.timeout(60)
HOLDS = """
import asyncio, fcntl, pathlib, sys
from tierline_agent.succession import AgentLock

async def hold():
    with AgentLock(pathlib.Path(sys.argv[1])) as lock:
        print(lock.held, flush=True)
        sys.stdin.readline()
    print("given back", flush=True)
    sys.stdin.readline()

asyncio.run(hold())
"""
"""Holds the lock, gives it back at the first line, and lives on to the second."""


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
        waiting = asyncio.create_task(lock.wait(looks.set))
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
