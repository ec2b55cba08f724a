"""How jobs of a client stand among others: their rank, when they are due, what is kept for them.

See `policy.releases`: among others a job is served by what admission charged, whatever its program
says.
"""

from __future__ import annotations

import time

from tierline_agent.policy.leases import Claim, Rank
from tierline_agent.policy.preemption import has_rank
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.job import LATEST_NS, Job
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import OVERHEADS


def _part(job: Job) -> int | None:
    """What a job is of its release: a plan has a task's arenas for one process at a time."""
    return None if job.arena is None else job.arena.index


class Standing:
    """Of one client's jobs, by the releases of its task."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: Claim | None = None
        """The claim for the release of which the device is kept."""
        self.ended_ns = 0
        """When its last job ended."""
        self._release_ns = 0
        """The release that its jobs are for; a program may run several for one."""
        self._late = False
        """Whether that was before the end of the jobs for the one before it."""

    def serve_in_turn(self, job: Job, idle_ns: int) -> None:
        """Say when the job's time among others is, whatever its program says."""
        client, task = self._client, self._client.task
        terms = task.registration
        if job.warmup or terms.training:
            return
        due = task.releases.begins(
            now_ns=time.monotonic_ns(),
            release_ns=job.release_ns,
            deadline_ns=job.deadline_ns,
            part=_part(job),
            period_ns=terms.period_ns,
            relative_ns=terms.deadline_ns,
            jitter_ns=round(task.plan.jitter_s * 1e9),
            calls=task.plan.calls,
            idle_ns=idle_ns,
            throttled=job.throttled,
        )
        if due.too_soon and job.execution is None:  # else it asks again, after it was throttled
            task.counters.put_off += 1
            client.node.metrics.of(task.key).put_off.inc()
            task.note_once(
                "too-often",
                f"job {job.number} of {client} is one more than a period of "
                f"{terms.period_ns / 1e6:g} ms is planned with, and was served after others'; "
                "give the task the period that it has",
            )
        if due.too_urgent:
            task.note_once(
                "too-urgent",
                f"job {job.number} of {client} names a deadline of "
                f"{(job.deadline_ns - job.release_ns) / 1e6:g} ms and its task has "
                f"{terms.deadline_ns / 1e6:g} ms, by which it is served; give the task that one",
            )
        job.due_ns = min(due.deadline_ns, LATEST_NS)
        job.eligible_ns = due.eligible_ns

    def adopt(self, job: Job) -> None:
        """A job that began with the agent before this one is due when its program says."""
        job.due_ns = job.deadline_ns
        if not job.warmup:
            self._client.task.releases.adopts(
                now_ns=time.monotonic_ns(), release_ns=job.release_ns, part=_part(job)
            )

    def rank(self, job: Job, gateless_ns: int | None) -> Rank:
        """How the job stands among others.

        `gateless_ns` is how long it was planned for at most, if it has no gate and was to have one.

        A Soft task that yields is admitted by its mean, one job a period. After a long job the next
        ones come late and in a row: until they are on time again, they run in what others leave.
        """
        task = self._client.task
        registration = task.registration
        if registration.training:
            return registration.rank  # also of what ends no step (`registry`)
        if job.warmup or (gateless_ns is not None and not has_rank(task.gateless_ns, gateless_ns)):
            return Rank.WARMUP
        if job.release_ns != self._release_ns:
            self._release_ns, self._late = job.release_ns, job.release_ns < self.ended_ns
        by_mean = registration.criticality == "Soft" and registration.preemption is not None
        return Rank.BEST_EFFORT if by_mean and self._late else registration.rank

    def part_ends(self, job: Job) -> None:
        """The device is kept for the next job of the release, if one is to come."""
        client, task = self._client, self._client.task
        if job.warmup or job.execution is None or job.granted_ns is None:
            return
        task.releases.ends(time.monotonic_ns())
        if client.connection.closed:
            return
        kept_ns = task.releases.kept_ns(task.plan.calls, round(task.plan.between_s * 1e9))
        if kept_ns is not None:
            self._kept = job.execution.ticket.claim
            heard_ns = round(OVERHEADS[DeviceKind(client.unit.device.kind)].dispatch_s * 1e9)
            client.unit.leases.keep(self._kept, time.monotonic_ns() + kept_ns + heard_ns)

    def let_go(self) -> None:
        """The next job has asked, or none will."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._client.unit.leases.let_go(kept.key)
