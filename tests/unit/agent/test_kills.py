"""Who was killed is kept for whoever tells the pods."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import closing

from tierline_agent.identity import Process, ProcessWatch, start_ticks
from tierline_agent.kills import KillReason, Kills


def test_each_kill_is_told_once_and_a_dead_process_is_none() -> None:
    with closing(asyncio.new_event_loop()) as loop:
        _tell(ProcessWatch(loop))


def _tell(watch: ProcessWatch) -> None:
    kills = Kills(watch)
    ended = []
    for task in ("first", "second"):
        program = subprocess.Popen(["sleep", "600"])
        ticks = start_ticks(program.pid)
        assert ticks is not None
        process = Process(program.pid, ticks)
        kills.kill(task, process, KillReason.JOB_TOO_LONG, "why")
        assert program.wait() == -signal.SIGKILL
        ended.append(process)
    kills.kill("second", ended[1], KillReason.JOB_TOO_LONG, "dead already")

    answer = kills.since(0)
    assert [(one["task"], one["pid"]) for one in answer["kills"]] == [
        ("first", ended[0].pid),
        ("second", ended[1].pid),
    ]
    assert kills.since(1)["kills"] == answer["kills"][1:]
    for cursor in (answer["cursor"], 100):
        assert kills.since(cursor) == {"kills": [], "cursor": 2}
    watch.close()
