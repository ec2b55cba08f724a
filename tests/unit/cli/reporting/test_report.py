"""The sentences after the table: what went otherwise than planned, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tierline_api.objects.memtask import MemTask
from tierline_api.objects.realtime import Criticality
from tierline_cli.commands.verify import why_many
from tierline_cli.reporting.remeasured import JobTimes
from tierline_cli.reporting.report import TaskReport, sentences
from tierline_cli.reporting.results import TaskResult
from tierline_cli.reporting.verdicts import Outputs, Verdict


def report(name: str, *, worst_s: float, overruns: int = 0) -> TaskReport:
    """A task with a bound of a second."""
    spec = {
        "realtime": {"period": "2s"},
        "memory": {"budget": "1Gi"},
        "device": {"kind": "cpu"},
    }
    about = {"apiVersion": "tierline.io/v1alpha1", "kind": "MemTask", "metadata": {"name": name}}
    task = MemTask.model_validate({**about, "spec": spec})
    result = TaskResult(
        name, Criticality.HARD, 2.0, 9, 0, worst_s, worst_s, worst_s, 1.0, 0.1, 0, 0, False, 0
    )
    outputs = Outputs(Verdict.IDENTICAL, 9, 9)
    return TaskReport(task, result, outputs, JobTimes(9, overruns, 0.1, 0.1), "")


@pytest.mark.parametrize(
    ("period", "done", "why"),
    [("10ms", 601, "its period is 10.0 ms"), ("2s", 601, "does not wait for its releases")],
)
def test_verify_says_why_a_task_did_far_more_jobs(period: str, done: int, why: str) -> None:
    slow, quick = report("slow", worst_s=0.1), report("quick", worst_s=0.1)
    slow = replace(slow, result=replace(slow.result, jobs=3))
    realtime = quick.task.spec.realtime.model_validate({"period": period})
    spec = quick.task.spec.model_copy(update={"realtime": realtime})
    task = quick.task.model_copy(update={"spec": spec})
    quick = replace(quick, task=task, result=replace(quick.result, jobs=done))
    (sentence,) = why_many([slow, quick], 3)
    assert sentence.startswith(f"quick: {done} jobs in 6.00 s, the time of 3 releases of slow: ")
    assert why in sentence
    assert not list(why_many([slow], 3))


def told(who: str, kind: str) -> dict[str, Any]:
    """A snapshot in which a task has a notice."""
    notices = {who: [{"kind": kind}]}
    tasks = [{"name": name, "notices": notices.get(name, [])} for name in ("fast", "slow")]
    return {"tasks": tasks, "fast_peak_bytes": 0, "fast_limit_bytes": 1, "fast_start_peak_bytes": 0}


def test_releases_without_a_job_are_told_apart_from_late_jobs() -> None:
    """A program that ends and is started again misses releases, though no job of it is late."""
    one = report("slow", worst_s=0.1)
    crashing = replace(one, result=replace(one.result, misses=3, unanswered=2))
    (sentence,) = sentences([crashing, one], told("", ""))
    assert sentence.startswith("slow: 2 of its 3 misses are releases for which no job began")


@pytest.mark.parametrize(
    ("who", "kind", "overruns", "cause"),
    [
        ("slow", "too-often", 0, "slow released jobs more often than planned"),
        ("fast", "too-often", 0, "no job had the device for longer than planned"),
        ("fast", "late-first", 0, "fast kept others waiting in first jobs"),
        ("", "", 1, "jobs of fast had the device for longer than planned"),
        ("", "", 0, "no job had the device for longer than planned"),
    ],
)
def test_a_bound_that_was_exceeded_names_its_cause(
    who: str, kind: str, overruns: int, cause: str
) -> None:
    reports = [report("fast", worst_s=0.2, overruns=overruns), report("slow", worst_s=1.7)]
    said = [one for one in sentences(reports, told(who, kind)) if "proven bound" in one]
    (sentence,) = said
    assert sentence.startswith("the proven bound was exceeded by slow (1700.0 ms, 1000.0 proven)")
    assert cause in sentence
