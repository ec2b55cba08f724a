"""Daemons are started, waited for, recognised and ended; strangers are never touched."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tierline_cluster.errors import ClusterError
from tierline_cluster.processes import Daemon, free_port, start, stop, tail, wait_until
from tierline_cluster.versions import REPOSITORY


def sleeper(logs: Path, script: str = "echo ready; exec sleep 600") -> Daemon:
    daemon = start("sleeper", ["/bin/sh", "-c", script], logs)
    wait_until("it says nothing", lambda: "ready" in tail(daemon))
    return daemon


def test_a_daemon_lives_until_it_is_stopped(tmp_path: Path) -> None:
    daemon = sleeper(tmp_path)
    wait_until("it does not live", lambda: daemon.alive)
    stop(daemon)

    assert not daemon.alive
    stop(daemon)  # again: nothing happens


def test_one_that_ignores_being_told_is_killed(tmp_path: Path) -> None:
    daemon = sleeper(tmp_path, "trap '' TERM; echo ready; while :; do sleep 600; done")
    stop(daemon, patience_s=0.1)

    assert not daemon.alive


def test_a_stranger_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    daemon = sleeper(tmp_path)
    earlier = dataclasses.replace(daemon, started=daemon.started - 1)
    assert not earlier.alive
    stop(earlier)

    assert daemon.alive
    stop(daemon)


def test_waiting_ends_when_the_daemon_does_and_shows_its_log(tmp_path: Path) -> None:
    daemon = start("broken", ["/bin/sh", "-c", "echo no such port >&2"], tmp_path)

    with pytest.raises(ClusterError, match=r"not up: broken has ended(.|\n)*no such port"):
        wait_until("not up", lambda: False, [daemon])
    stop(daemon)


def test_waiting_ends_when_time_is_up(tmp_path: Path) -> None:
    daemon = sleeper(tmp_path)
    with pytest.raises(ClusterError, match=r"not up: not within 0 s(.|\n)*ready"):
        wait_until("not up", lambda: False, [daemon], timeout_s=0)
    stop(daemon)


def test_a_daemon_dies_with_the_program_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tierline_cluster.processes import start\n"
        f"d = start('sleeper', ['/bin/sleep', '600'], Path({str(tmp_path)!r}))\n"
        "print(d.pid, d.started, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "cluster")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid, started = map(int, parent.stdout.readline().split())
    daemon = Daemon("sleeper", pid, started, tmp_path / "sleeper.log")
    assert daemon.alive
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    wait_until("it lives on", lambda: not daemon.alive, timeout_s=60)


def test_a_free_port_is_free_and_not_one_that_connections_take() -> None:
    low, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))

    assert port < low
