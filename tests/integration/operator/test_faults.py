"""Two minutes of what docs/benchmarks/cluster-faults.md does for thirty, on a smaller cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.cluster_faults import cluster, parser, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SMALL = (
    *("--minutes", "1.5", "--nodes", "5", "--tasks", "45", "--seed", "7"),
    *("--every-s", "3", "--kill-every-s", "30", "--patience-s", "240"),
)


def test_after_faults_all_that_can_run_runs_and_nothing_is_promised_twice(tmp_path: Path) -> None:
    with cluster(tmp_path / "plane") as plane:
        result = run(plane, tmp_path, parser().parse_args(SMALL))

    assert result.promised_twice == []
    assert result.looks_at_claims > 3
    assert result.not_running == []
    assert result.faults["the operator that leads is killed"] >= 1
    assert result.operator_events <= result.most_operator_events
    assert result.holds
