"""One agent at a time owns a node; the next opens nothing before the last one's process is gone."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent import succession
from tierline_agent.config import AgentConfig, parse_config
from tierline_agent.errors import AlreadyRunning
from tierline_agent.preparation import Prepared, prepare
from tierline_agent.succession import AgentLock, sole_agent

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

    monkeypatch.setattr(succession, "prepare", prepares_when_it_may)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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
