"""Runs in a guest with control groups v2: makes a cluster's group, fills it, removes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tierline_cluster import cgroups

ROOT = Path("/sys/fs/cgroup")
NAME = "tierline-guest"


def say(**values: object) -> None:
    print(json.dumps(values))


def waiting(prefix: list[str]) -> subprocess.Popen[str]:
    """Start a process by a command after `prefix`; returns when it runs."""
    command = [*prefix, "/bin/sh", "-c", "echo; read never"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def main() -> None:
    subprocess.run(["mount", "-t", "cgroup2", "none", str(ROOT)], check=True)
    cgroups.create(NAME)
    cgroups.create(NAME)  # again, as after a crash
    daemon = waiting(cgroups.entering(NAME))
    members = (ROOT / NAME / "daemons" / "cgroup.procs").read_text().split()
    say(daemon_inside=str(daemon.pid) in members)

    pod = ROOT / NAME / "kubepods" / "pod1"
    pod.mkdir(parents=True)
    say(controllers=(ROOT / NAME / "kubepods" / "cgroup.controllers").read_text().split())
    stranger, program = waiting([]), waiting([])
    (pod / "cgroup.procs").write_text(str(program.pid))
    cgroups.kill_all(NAME)
    say(killed=[daemon.wait(), program.wait()], stranger=stranger.poll())

    cgroups.remove(NAME)
    say(exists=cgroups.exists(NAME), left=[path.name for path in ROOT.glob("tierline*")])
    stranger.kill()


main()
