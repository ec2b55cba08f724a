"""One control group for all processes of a cluster, in cgroup v1 or v2.

Every daemon starts in it and pods' groups lie below it, so that it knows each process of the
cluster, also those whose parents have gone: what is in it is ours, and nothing else is.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from .errors import ClusterError

_ROOT: Final = Path("/sys/fs/cgroup")
_NEEDED: Final = frozenset({"cpu", "cpuset", "memory", "pids"})
"""Controllers of v2 that a kubelet must have; a kernel may refuse to hand down others."""


def create(name: str) -> None:
    """Make the group `name` with a group `daemons` below it, in each hierarchy."""
    for root in _hierarchies():
        for group in (root / name, root / name / "daemons"):
            group.mkdir(exist_ok=True)
            for key in ("cpuset.cpus", "cpuset.mems"):
                inherited = group.parent / key
                if _is_v1() and inherited.exists():
                    # A group of v1 takes no process before these are set.
                    (group / key).write_text(inherited.read_text())
        if not _is_v1():
            _hand_down(root, root / name)


def _hand_down(*groups: Path) -> None:
    """Let what lies below `groups` use their controllers, as v2 asks."""
    controllers = (groups[0] / "cgroup.controllers").read_text(encoding="ascii").split()
    for group in groups:
        control = group / "cgroup.subtree_control"
        for word in controllers:
            try:
                control.write_text(f"+{word}", encoding="ascii")
            except OSError as error:
                if word in _NEEDED:
                    raise ClusterError(
                        f"cannot use the control groups below {group}: {error}; run it on the"
                        " machine itself, not in a container"
                    ) from error


def entering(name: str) -> list[str]:
    """Return the words to put in front of a command so that it runs in the group `name`."""
    files = [str(root / name / "daemons" / "cgroup.procs") for root in _hierarchies()]
    script = 'for file in {}; do echo $$ > "$file" || exit; done; exec "$@"'
    return ["/bin/sh", "-c", script.format(" ".join(files)), "in-group"]


def kill_all(name: str, patience_s: float = 60.0) -> None:
    """Kill every process of the group `name` and of those below it; returns when none is left."""
    deadline = time.monotonic() + patience_s
    while pids := _pids(name):
        for pid in pids:
            _kill(pid, name)
        if time.monotonic() > deadline:
            raise ClusterError(f"cannot end the processes {sorted(pids)}: they ignore SIGKILL")
        time.sleep(0.02)


def remove(name: str) -> None:
    """Remove the group `name` and those below it; they hold no process any more."""
    for root in _hierarchies():
        if (root / name).is_dir():
            groups = [Path(folder) for folder, _, _ in os.walk(root / name, topdown=False)]
            for group in groups:
                _remove_soon(group)


def exists(name: str) -> bool:
    """Say whether the group is there."""
    return any((root / name).is_dir() for root in _hierarchies())


def _remove_soon(group: Path, patience_s: float = 60.0) -> None:
    """Remove a group; the kernel may take a moment to forget the last process in it."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"cannot remove the control group {group}: {error}") from error
            time.sleep(0.02)
        else:
            return


def _kill(pid: int, name: str) -> None:
    """Kill the process `pid` if it is in the group `name`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The number may have become another process's since it was listed; the descriptor cannot.
        if f"/{name}" in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii"):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass
    finally:
        os.close(descriptor)


def _pids(name: str) -> set[int]:
    pids: set[int] = set()
    for root in _hierarchies():
        for folder, _, _ in os.walk(root / name):
            with suppress(OSError):  # a pod's group may go while it is being read
                listed = Path(folder, "cgroup.procs").read_text(encoding="ascii").split()
                pids.update(int(pid) for pid in listed)
    return pids - {0}


def _is_v1() -> bool:
    return not (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """Return the roots of all hierarchies: several of v1, perhaps with one of v2 that systemd and
    runc use for processes alone, or only v2.
    """
    roots = [
        Path(line.split()[4])
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        if line.partition(" - ")[2].split()[0] in {"cgroup", "cgroup2"}
    ]
    if not roots:
        raise ClusterError("cannot run pods: no control groups are mounted in /sys/fs/cgroup")
    return roots
