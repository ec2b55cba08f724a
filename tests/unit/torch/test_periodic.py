from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise

import pytest

import tierline


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERLINE_SOCKET", raising=False)
    monkeypatch.delenv("TIERLINE_OBSERVE", raising=False)


def test_releases_come_when_they_are_due() -> None:
    before = time.monotonic_ns()
    late = []
    releases = []
    for release in tierline.periodic(0.002, deadline=0.001, jobs=5):
        late.append(time.monotonic_ns() - release.release_ns)
        releases.append(release)
    assert [release.index for release in releases] == [0, 1, 2, 3, 4]
    assert {b.release_ns - a.release_ns for a, b in pairwise(releases)} == {2_000_000}
    assert {release.deadline_ns - release.release_ns for release in releases} == {1_000_000}
    assert releases[0].release_ns >= before
    assert min(late) >= 0


def test_a_late_release_is_not_left_out() -> None:
    begins = []
    for release in tierline.periodic(0.001, jobs=4):
        begins.append((release.index, time.monotonic_ns() >= release.release_ns))
        while release.index == 0 and time.monotonic_ns() < release.release_ns + 3_000_000:
            pass
    assert begins == [(0, True), (1, True), (2, True), (3, True)]


def test_without_tierline_a_period_is_needed() -> None:
    with pytest.raises(tierline.TierlineError, match=r"give tierline\.periodic\(period=seconds\)"):
        tierline.periodic()


def test_a_program_under_swap_is_told_that_it_keeps_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIERLINE_SOCKET", "/nowhere")
    monkeypatch.setenv("TIERLINE_SWAP", "1")
    with pytest.raises(tierline.TierlineError, match=r"under policy Swap .*\(period=seconds\)"):
        tierline.periodic()
    assert [release.index for release in tierline.periodic(1e-6, jobs=2)] == [0, 1]


@pytest.mark.parametrize(
    ("period", "deadline", "jobs"), [(0, None, None), (-1, None, None), (1, 0, None), (1, None, 0)]
)
def test_times_must_be_positive(period: float, deadline: float | None, jobs: int | None) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        tierline.periodic(period, deadline=deadline, jobs=jobs)


def test_a_job_without_tierline_does_nothing() -> None:
    with tierline.job(deadline=0.1, name="any"):
        pass


def test_the_package_needs_no_torch() -> None:
    program = (
        "import sys, tierline\n"
        "with tierline.job(): pass\n"
        "print([r.index for r in tierline.periodic(0.001, jobs=2)], 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[0, 1] False\n"
