"""Looks after a job that waits: does the job that has the lease wait for it? See `policy.nested`.

On `cpu` only. There the call computes with what it finds, and weights that are not there are
fetched as they are touched. On a GPU two jobs at once might need more memory than there is, and a
workspace in extents is the holder's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tierline_agent.policy.nested import LOOK_S, Wait
from tierline_agent.processes.identity import ticks_computed
from tierline_agent.scheduling.execution import Execution
from tierline_agent.sessions.client import Client


class Nesting:
    """Of the job with which one client waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._timer: asyncio.TimerHandle | None = None
        self._wait: Wait | None = None
        self._before = False
        """Whether a job of this client was nested."""

    def waits(self, nested: Callable[[int], None]) -> None:
        """A job waits from now on; `nested` is told the process whose job waits for it."""
        client = self._client
        if client.unit.device.kind == "cpu":
            self._wait = None
            self._look(nested)

    def stop(self) -> None:
        """It does not wait any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, nested: Callable[[int], None]) -> None:
        client, now_ns = self._client, time.monotonic_ns()
        holder = client.unit.executor.holder
        if holder is None or not self._is_of_another_process(holder):
            self._wait = None
        else:
            job = holder.job
            ticks = ticks_computed(job.process)
            wait = self._wait
            if wait is None or wait.holder is not holder:
                self._wait = Wait(holder, now_ns, ticks)
            elif wait.is_nested(
                ticks, now_ns, planned_ns=job.planned_ns, nested_before=self._before
            ):
                self._timer, self._before = None, True
                nested(job.process.pid)
                return
        self._timer = client.node.loop.call_later(LOOK_S, self._look, nested)

    def _is_of_another_process(self, holder: Execution) -> bool:
        client = self._client
        return holder.job.task == client.task.name and holder.job.process != client.process
