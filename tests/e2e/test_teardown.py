"""A cluster that is removed leaves the machine as it was, also while another one runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.busybox import busybox_image
from tests.e2e.conftest import FOLDER, Running, phase, pod
from tests.e2e.installed import PATIENCE_S
from tests.integration.operator.running import until

from tierline_cluster.build import ProgramFolders
from tierline_cluster.cluster import Cluster
from tierline_cluster.errors import ClusterError
from tierline_cluster.node import FIXED
from tierline_cluster.versions import SOURCES

pytestmark = pytest.mark.e2e
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")


def mentions(folder: Path) -> list[str]:
    """Return the processes and mounts of the machine that name `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command:
            found.append(command)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [mount for mount in mounts if str(folder) in mount]


def groups(cluster: Cluster) -> list[Path]:
    """Return the control groups of `cluster`."""
    return [
        path
        for path in Path("/sys/fs/cgroup").glob("**/")
        if cluster.group in path.parts and path.name == cluster.group
    ]


def test_nothing_is_left_of_a_cluster_in_which_a_pod_still_ran(
    cluster: Running, programs: ProgramFolders
) -> None:
    outside = {path: Path(path).exists() for path in FIXED}
    settings = {name: Path("/proc/sys", name).read_text() for name in SETTINGS}
    second = Cluster(FOLDER.with_name("e2e-second"))
    with second.guarded():
        plane, node = second.up(programs)
        node.import_image(busybox_image().write(node.folder / "busybox.tar"))
        runs = pod("default", "runs", "sleep 86398")
        plane.api.create(runs)
        plane.api.wait(runs, lambda found: phase(found) == "Running")
        assert mentions(second.folder)
        assert groups(second)
        assert second.is_up()
        second.down()

    assert mentions(second.folder) == []
    assert groups(second) == []
    assert not second.folder.exists()
    assert not second.is_up()
    assert not Path("/sys/class/net", second.bridge).exists()
    assert {path: Path(path).exists() for path in FIXED} == outside
    assert {name: Path("/proc/sys", name).read_text() for name in SETTINGS} == settings
    assert cluster.api.request("GET", "/readyz") == "ok"

    second.down()  # again: nothing happens


def test_a_kubelet_that_ends_as_it_begins_is_started_again(
    programs: ProgramFolders, tmp_path: Path
) -> None:
    once = tmp_path / "programs"
    once.mkdir()
    for program in programs.kubernetes.iterdir():
        (once / program.name).symlink_to(program)
    (once / "kubelet").unlink()
    ended = tmp_path / "ended"
    (once / "kubelet").write_text(
        f"""#!/bin/sh
test -e '{ended}' || {{ touch '{ended}'; echo 'ends at once' >&2; exit 1; }}
exec '{programs.kubernetes}/kubelet' "$@"
"""
    )
    (once / "kubelet").chmod(0o755)
    again = Cluster(FOLDER.with_name("e2e-again"))
    with again.guarded():
        again.up(replace(programs, kubernetes=once))
        assert ended.exists()
        assert again.is_up()
        again.down()


@pytest.mark.slow
def test_a_cluster_ends_with_the_process_that_started_it(programs: ProgramFolders) -> None:
    folder = FOLDER.with_name("e2e-orphan")
    orphan = Cluster(folder)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tierline_cluster.build import ProgramFolders\n"
        "from tierline_cluster.cluster import Cluster\n"
        "cluster = Cluster(Path(sys.argv[1]))\n"
        "with cluster.guarded():\n"
        "    cluster.up(ProgramFolders(*map(Path, sys.argv[2:])))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    paths = (folder, programs.kubernetes, programs.containerd)
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)], env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL

    until("it is there", lambda: not groups(orphan) and not mentions(folder), PATIENCE_S)
    orphan.down()  # the logs
    assert not folder.exists()


def test_what_a_crash_left_is_removed_by_the_next_start(programs: ProgramFolders) -> None:
    broken = Cluster(FOLDER.with_name("e2e-broken"))
    (broken.folder / "etcd").mkdir(parents=True, exist_ok=True)
    (broken.folder / "etcd" / "member").write_text("of another cluster")
    without_node = ProgramFolders(programs.kubernetes, Path("/nowhere"))
    with pytest.raises(FileNotFoundError):
        broken.up(without_node)
    assert mentions(broken.folder)

    broken.down()
    assert mentions(broken.folder) == []
    assert not broken.folder.exists()


def test_a_folder_with_other_things_is_not_touched(
    programs: ProgramFolders, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    mistaken = Cluster(tmp_path)
    for act in (mistaken.down, lambda: mistaken.up(programs)):
        with pytest.raises(ClusterError, match=r"is no folder of a cluster: it holds thesis\.txt"):
            act()

    assert (tmp_path / "thesis.txt").read_text() == "years of work"
