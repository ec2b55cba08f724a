"""What the programs' own logs say of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.crowd.log import Between, Job, Log, differences, figures, overlaps, read

MS = 1_000_000


def job(
    task: str, release: int, due: int, asked: int, returned: int, *spans: tuple[int, int]
) -> Job:
    """A counted job; times in milliseconds."""
    in_ns = tuple((begin * MS, end * MS) for begin, end in spans)
    return Job(task, True, release * MS, due * MS, asked * MS, returned * MS, in_ns)


RUN = [
    job("fast", 0, 50, 1, 31, (10, 20), (20, 30)),
    job("fast", 100, 150, 100, 152, (131, 149)),  # its layers ended in time, its call did not
    job("slow", 0, 900, 0, 200, (0, 5), (35, 60), (60, 90), (155, 195)),  # preempted twice
]


def test_a_figure_lies_between_the_last_layer_and_the_return_of_the_call() -> None:
    seen = figures("fast", RUN, planned_s=0.019)
    assert seen.jobs == 2
    assert seen.misses == Between(0, 1)
    assert seen.response_worst_s == Between(0.049, 0.052)
    assert seen.job_time_worst_s == Between(0.020, 0.052)
    assert seen.overruns == Between(1, 2)


def test_a_preempted_job_has_the_device_no_longer_than_others_leave_it() -> None:
    seen = figures("slow", RUN, planned_s=0.05)
    assert seen.job_time_worst_s == Between(0.100, 0.162)
    assert seen.overruns == Between(0, 1), "its preemptions may be why it took longer"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jobs", 1),
        ("misses", 2),
        ("response_worst_s", 0.048),
        ("job_time_worst_s", 0.019),
        ("overruns", 0),
    ],
)
def test_what_the_agent_counted_otherwise_is_told(name: str, value: float) -> None:
    counted: dict[str, Any] = {
        "name": "fast",
        "jobs": 2,
        "misses": 1,
        "response_worst_s": 0.050,
        "job_time_worst_s": 0.021,
        "job_time_planned_s": 0.019,
        "overruns": 1,
    }
    assert list(differences(counted, RUN)) == []
    (told,) = differences(counted | {name: value}, RUN)
    assert name in told


@pytest.mark.parametrize(
    ("begin", "end", "at_once"),
    [(30, 35, None), (25, 35, "5.000 ms"), (61, 62, "1.000 ms"), (34, 91, "25.000 ms")],
)
def test_two_layers_at_once_are_told(begin: int, end: int, at_once: str | None) -> None:
    told = list(overlaps([*RUN, job("third", 0, 99, 0, 99, (begin, end))]))
    assert any(str(at_once) in line for line in told) == (at_once is not None)
    assert bool(told) == (at_once is not None)


def test_a_log_is_read_as_it_was_written_up_to_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    with log.job(1, 2, counts=True):
        log.layer(3)
        log.layer(4)
    with log.job(5, 6, counts=False):
        pass
    log.close()
    path.write_text(path.read_text() + "1 7 8 9")
    first, second = read(path, "fast")
    assert (first.counts, first.release_ns, first.due_ns) == (True, 1, 2)
    assert [begin for begin, _ in first.spans] == [3, 4]
    assert first.asked_ns <= first.ended_ns <= first.returned_ns
    assert (second.counts, second.spans) == (False, ())
