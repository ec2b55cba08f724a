"""A cluster's control group in cgroup v2, in a guest: this machine may have v1."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.devdax import guest
from tests.devdax.backing import make_backing

from tierline_cluster.versions import REPOSITORY

INSIDE = Path(__file__).parent / "inside" / "cgroups_v2.py"


@pytest.mark.slow
def test_a_group_of_v2_holds_daemons_and_pods_and_goes_without_trace(tmp_path: Path) -> None:
    backing = tmp_path / "unused"  # every guest has a persistent memory
    make_backing(backing, 64 << 20)
    report = guest.boot(
        backing,
        {
            "job/main.py": INSIDE,
            "tierline/tierline_cluster": REPOSITORY / "cluster" / "tierline_cluster",
        },
        {},
    )

    assert report.status == 0, report
    assert report.values("daemon_inside") == [True]
    (controllers,) = report.values("controllers")
    assert {"cpu", "cpuset", "memory", "pids"} <= set(controllers)  # type: ignore[call-overload]
    assert report.values("killed") == [[-9, -9]]
    assert report.values("stranger") == [None]
    assert report.values("exists") == [False]
    assert report.values("left") == [[]]
