"""Interventions are kept for the part that tells the pods."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import closing

from tierline_agent.processes.identity import Process, ProcessWatch, start_ticks
from tierline_agent.processes.interventions import Interventions, KillReason
from tierline_agent.processes.killing import Killing
from tierline_agent.telemetry.metrics import Metrics


def test_each_kill_is_told_once_and_a_dead_process_is_none() -> None:
    with closing(asyncio.new_event_loop()) as loop:
        watch = ProcessWatch(loop)
        _tell(watch, Killing(watch, loop))


def counted(metrics: Metrics) -> dict[str, float]:
    (family,) = metrics.kills.collect()
    totals = [one for one in family.samples if one.name.endswith("_total")]
    return {one.labels["reason"]: one.value for one in totals}


def _tell(watch: ProcessWatch, killing: Killing) -> None:
    metrics = Metrics("")
    interventions = Interventions(killing, metrics)
    ended = []
    for task in ("first", "second"):
        program = subprocess.Popen(["sleep", "600"])
        ticks = start_ticks(program.pid)
        assert ticks is not None
        process = Process(program.pid, ticks)
        interventions.kill(task, process, KillReason.JOB_TOO_LONG, "why")
        assert program.wait() == -signal.SIGKILL
        ended.append(process)
    interventions.kill("second", ended[1], KillReason.JOB_TOO_LONG, "dead already")
    interventions.revoked("third", ended[1], "a job of it")

    answer = interventions.since(0)
    assert [(one["task"], one["pid"], one["action"]) for one in answer["interventions"]] == [
        ("first", ended[0].pid, "Kill"),
        ("second", ended[1].pid, "Kill"),
        ("third", ended[1].pid, "Revoke"),
    ]
    assert counted(metrics) == {reason: 2 * (reason == "JobTooLong") for reason in KillReason}
    assert interventions.since(1)["interventions"] == answer["interventions"][1:]
    for cursor in (answer["cursor"], 100):
        assert interventions.since(cursor) == {"interventions": [], "cursor": 3}
    killing.close()
    watch.close()
