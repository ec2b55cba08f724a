"""Takes the device from a job that cannot go on, or that keeps it from others beyond its limit.

The client is told by REVOKE, and ends the job by ACK or JOB_END. One that does neither within the
grace is killed.

Invariants: of a job that was revoked nothing is answered but that; a job is revoked once, so that
one grace ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from tierline_agent.errors import StreamFailed
from tierline_agent.processes.interventions import KillReason
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.job import Job
from tierline_agent.transport.protocol import Error, ErrorCode, Revoke

_log = logging.getLogger(__name__)
_NOT_STREAMED = "its weights could not be streamed"


class Revocation:
    """Of the jobs of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._number: int | None = None
        """The job that was revoked last."""
        self._why = _NOT_STREAMED
        self._stuck: Job | None = None
        """The job that was found to be stuck."""
        self._grace: asyncio.TimerHandle | None = None

    def is_of(self, number: int) -> bool:
        """Whether the job of this number was revoked last."""
        return number == self._number

    def refuse(self, sequence: int, number: int) -> None:
        """Answer a request for a job that was revoked."""
        reason = f"job {number} was revoked: {self._why}"
        self._client.reply(sequence, Error(code=ErrorCode.REVOKED, reason=reason))

    def over(self) -> None:
        """The client has no job any more."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def look(self, job: Job, now_ns: int, limit_ns: int) -> None:
        """See that a job does not keep the device from others for ever."""
        client = self._client
        if job.revoked or job.granted_ns is None or job.execution is None:
            return
        if job.execution.held_for_ns(now_ns) <= limit_ns:
            return
        why = f"it had the device for more than {limit_ns / 1e9:g} s"
        if self._stuck is not job:
            self._stuck = job
            _log.error("job %d of %s is stuck: %s", job.number, client, why)
            client.task.add_notice("stuck", 0, f"job {job.number} of {client}: {why}")
        if client.unit.leases.waiting and client.unit.executor.has_device(job.execution):
            self._revoke(job, why, ErrorCode.QUOTA, KillReason.JOB_TOO_LONG)

    def stream_failed(self, job: Job, failure: StreamFailed) -> None:
        """The job cannot go on."""
        if job.revoked:
            return
        self._client.task.add_notice("revoked", 0, str(failure))
        _log.error("cannot stream for %s: %s", self._client, failure)
        code = ErrorCode.CORRUPT if failure.corrupt else ErrorCode.IO
        self._revoke(job, _NOT_STREAMED, code, KillReason.REVOCATION_IGNORED)

    def _revoke(self, job: Job, why: str, code: ErrorCode, kill: KillReason) -> None:
        client, node = self._client, self._client.node
        _log.error("revoking job %d of %s: %s", job.number, client, why)
        if client.task.is_new_revocation(why):
            told = f"job {job.number} of process {client.process.pid} was revoked because {why}"
            node.interventions.revoked(client.task.name, client.process, told)
        job.revoked_ns = time.monotonic_ns()
        self._number, self._why = job.number, why
        client.task.counters.revoked += 1
        node.metrics.of(client.task.key).revoked.inc()
        client.reply(0, Revoke(job.number, code))
        if job.yielded is not None:
            sequence, job.yielded = job.yielded, None
            self.refuse(sequence, job.number)
        sentence = (
            f"job {job.number} was revoked because {why}, the program did not acknowledge that "
            f"within {node.config.revoke_grace_s:g} s, and was killed"
        )
        self._grace = node.loop.call_later(
            node.config.revoke_grace_s,
            partial(node.interventions.kill, client.task.name, client.process, kill, sentence),
        )
