"""Which process a peer is, and when it dies, with real processes."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.agent.loops import in_loop

from tierline_agent.errors import ConnectionViolation
from tierline_agent.processes import identity
from tierline_agent.processes.identity import Process, ProcessWatch

BEYOND_SELECT = 1024
"""The first descriptor that select(2) cannot ask about."""
NO_OPTION = 9999
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def descriptors_in_use(count: int) -> Iterator[None]:
    """New descriptors have numbers from `count` on, as in an agent with many extents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * count), hard))
    taken = [os.dup(0)]
    try:
        while taken[-1] < count:
            taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def identify_this_process() -> None:
    before = open_descriptors()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = ProcessWatch(asyncio.get_running_loop()).identify(ours)
    assert peer.process == Process(os.getpid(), identity.start_ticks(os.getpid()) or 0)
    assert peer.uid == os.geteuid()
    assert open_descriptors() == before


@in_loop
async def test_a_death_is_reported_however_many_descriptors_are_in_use() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["message"]))
    watch = ProcessWatch(loop)
    child = subprocess.Popen(["sleep", "1000"])
    ticks = identity.start_ticks(child.pid)
    assert ticks is not None
    process, dead = Process(child.pid, ticks), asyncio.Event()
    with descriptors_in_use(BEYOND_SELECT):
        watch.on_death(process, lambda _: dead.set())
        child.kill()
        while not (dead.is_set() or failures):
            await asyncio.sleep(0)
        watch.close()
    child.wait()
    assert not failures


@in_loop
async def test_a_peer_is_the_process_that_connected() -> None:
    identify_this_process()


@in_loop
async def test_it_is_found_where_the_kernel_gives_no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_SO_PEERPIDFD", NO_OPTION)
    identify_this_process()


@in_loop
async def test_a_process_with_the_pid_of_a_dead_peer_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "socket")
    watch = ProcessWatch(asyncio.get_running_loop())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        subprocess.run([sys.executable, "-c", CONNECT, path], check=True)
        connection, _ = listener.accept()
        monkeypatch.setattr(identity, "start_ticks", lambda _pid: 1)  # another one's by now
        with connection, pytest.raises(ConnectionViolation, match="cannot identify the peer"):
            watch.identify(connection)


WITHOUT_LEADER = """
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.readline).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # this thread only
"""


def test_a_process_lives_as_long_as_any_of_its_threads() -> None:
    """What the main thread leaves has its memory still: extents, a ring, descriptors."""
    with subprocess.Popen([sys.executable, "-c", WITHOUT_LEADER], stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        while stat.read_text().split()[2] != "Z":
            os.sched_yield()
        process = Process(child.pid, int(stat.read_text().split()[21]))
        assert identity.is_alive(process)
        assert not identity.is_itself(process)
        child.communicate(b"\\n")
    assert not identity.is_alive(process)
