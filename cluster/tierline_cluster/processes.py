"""Starts daemons, waits for them, ends them, and recognises them later.

A process is known by its pid *and* the time at which it started, so that a folder of an earlier
boot or a reused pid never makes anyone signal a stranger.
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Final

from .errors import ClusterError

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)
_given: Final[set[int]] = set()
"""Ports for daemons that may not listen yet."""


@dataclass(frozen=True)
class Daemon:
    """A process that was started here, by this program or an earlier one."""

    name: str
    pid: int
    started: int
    """When it started, in clock ticks since the machine's boot; names it together with `pid`."""
    log: Path

    @property
    def alive(self) -> bool:
        """Say whether it runs: neither gone nor a zombie."""
        state, started = _stat(self.pid)
        return started == self.started and state != "Z"


def start(
    name: str,
    arguments: Sequence[str],
    logs: Path,
    *,
    environment: Mapping[str, str] | None = None,
    outlives_us: bool = False,
) -> Daemon:
    """Start a daemon whose output goes to `logs`/`name`.log, added to what is there.

    It is killed when this thread ends, however that happens, unless `outlives_us`.
    """
    log = logs / f"{name}.log"
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent was gone before prctl
            os._exit(1)

    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=None if outlives_us else die_with_parent,  # noqa: PLW1509 - it only calls prctl
        )
    _, started = _stat(process.pid)
    process.returncode = 0  # it is waited for by pid; Popen must not warn that it still runs
    return Daemon(name, process.pid, started, log)


def stop(daemon: Daemon, patience_s: float = 10.0) -> None:
    """End `daemon` by SIGTERM, after `patience_s` by SIGKILL; returns when it is gone."""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 60.0)):
        if daemon.alive:
            _signal(daemon, number, wait_s)
    with suppress(ChildProcessError):  # an earlier program's child has another parent by now
        os.waitpid(daemon.pid, os.WNOHANG)
    if daemon.alive:
        raise ClusterError(f"cannot end {daemon.name} (pid {daemon.pid}): it ignores SIGKILL")


def _signal(daemon: Daemon, number: signal.Signals, wait_s: float) -> None:
    try:
        descriptor = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return
    try:
        # From here on the descriptor is the process; it is ours if it still is what was started.
        if daemon.alive:
            signal.pidfd_send_signal(descriptor, number)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(wait_s * 1000)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def wait_until(
    what: str,
    condition: Callable[[], bool],
    daemons: Sequence[Daemon] = (),
    timeout_s: float = 120.0,
) -> None:
    """Wait until `condition` holds; raises ClusterError when a daemon ends or time runs out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for daemon in daemons:
            if not daemon.alive:
                raise ClusterError(
                    f"{what}: {daemon.name} has ended; its log {daemon.log} ends:\n{tail(daemon)}"
                )
        if time.monotonic() > deadline:
            ends = "".join(f"\n{d.log} ends:\n{tail(d)}" for d in daemons)
            raise ClusterError(f"{what}: not within {timeout_s:.0f} s{ends}")
        time.sleep(0.05)


def tail(daemon: Daemon, lines: int = 8) -> str:
    """Return the last lines of its log."""
    text = daemon.log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(line[:300] for line in text.splitlines()[-lines:])


def processes_of(module: str, group: str) -> list[int]:
    """The processes of a cluster's control group, in any container, that are `python -m MODULE`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            inside = f"/{group}/" in (process / "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if inside and words[:3] == [b"python", b"-m", module.encode()]:
            found.append(int(process.name))
    return found


def started(pid: int) -> int:
    """When process `pid` started, in clock ticks since the machine's boot; -1: there is none."""
    return _stat(pid)[1]


def free_port(address: str = "127.0.0.1") -> int:
    """Return a TCP port that nobody uses on `address`, and that was not returned before.

    Below the range from which the kernel takes ports for outgoing connections, so that none of
    those can take it before the daemon does.
    """
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        _given.add(port)
        return port


def _stat(pid: int) -> tuple[str, int]:
    """Return the state and the start time of process `pid`, ("", -1) if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "", -1
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19])
