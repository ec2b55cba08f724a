"""The bound of a job of which nothing is known: it was never measured.

Others were admitted next to jobs that end by then, and nothing else ends this one: its program is
killed at once.
"""

from __future__ import annotations

import asyncio

from tierline_agent.processes.interventions import KillReason
from tierline_agent.sessions.client import Client


class Bound:
    """Ends the program of one client, if a job has the device for too long."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A job has the device from now on."""
        limit_ns = self._client.task.registration.job_limit_ns
        if limit_ns is not None:
            self._timer = self._client.node.loop.call_later(
                limit_ns / 1e9, self._is_too_long, limit_ns
            )

    def end(self) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_too_long(self, limit_ns: int) -> None:
        client = self._client
        sentence = (
            f"a job had the device for more than {limit_ns / 1e6:g} ms, its "
            "realtime.measuringLimit, and the program was killed: state a longer one, or apply a "
            "MemProfile"
        )
        client.task.note_once("too-long", sentence)
        client.node.interventions.kill(
            client.task.name, client.process, KillReason.JOB_TOO_LONG, sentence
        )
