"""What jobs of a client were charged, may take, and owe: see `policy.excess` and `policy.stuck`."""

from __future__ import annotations

import time

from tierline_agent.policy import stuck
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.job import Job
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import OVERHEADS


class Charging:
    """The account of one client's jobs, which is its task's."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def charged_ns(self, *, warmup: bool) -> int:
        """How long others were charged for a job, at most."""
        client, task = self._client, self._client.task
        dispatch_s = OVERHEADS[DeviceKind(client.unit.device.kind)].dispatch_s
        planned_s = task.plan.first_s if warmup else task.plan.call_time_s
        return max(round(max(planned_s, dispatch_s) * 1e9), task.registration.job_limit_ns or 0)

    def limit_ns(self, job: Job | None) -> int:
        """How long it may have the device; None is any job."""
        least_ns, plan = self._client.node.job_limit_ns, self._client.task.plan
        if job is None:
            return least_ns
        planned_s = plan.first_s if job.warmup else plan.call_time_s
        return stuck.limit_ns(least_ns, round(planned_s * 1e9), warmup=job.warmup)

    def throttled_ns(self, job: Job) -> int:
        """How long the job is throttled for what others waited beyond its task's plan."""
        client, task = self._client, self._client.task
        excess = client.unit.debts.of(task.key)
        if excess is None:
            return 0
        free_ns, share = self.limit_ns(job), client.node.registry.share_of(task)
        return excess.throttled_ns(time.monotonic_ns(), free_ns, share, warmup=job.warmup)

    def note_throttled(self, job: Job, throttled_ns: int) -> None:
        """Count a job that is throttled, once."""
        client, task = self._client, self._client.task
        if job.throttled:
            return
        job.throttled = True
        task.counters.throttled += 1
        client.node.metrics.of(task.key).throttled.inc()
        task.note_once(
            "throttled",
            f"job {job.number} of {client} was throttled for {throttled_ns / 1e9:.1f} s: those "
            f"before it kept others waiting for over {self.limit_ns(job) / 1e9:g} s beyond the "
            f"plan, and may do so for {client.node.registry.share_of(task):.1%} of the time; "
            "profile the task again",
        )

    def owe(self, job: Job | None, cost_ns: int) -> None:
        """What a job cost others is its task's to owe, but for what was the agent's to end.

        That is what it had the device beyond its limit until it was revoked. From then on it is the
        client's to give it back, also if it is killed for it.
        """
        client, task, now_ns = self._client, self._client.task, time.monotonic_ns()
        most_ns = self.limit_ns(job)
        if job is not None and job.revoked_ns is not None:
            most_ns += now_ns - job.revoked_ns
        if cost_ns:
            client.unit.debts.costs(
                task.key,
                now_ns,
                min(cost_ns, most_ns),
                client.node.registry.share_of(task),
                warmup=job is not None and job.warmup,
            )

    def owe_since(self, taken_ns: int) -> None:
        """The client gives back a lease that it took by then at the latest, and tells of no job."""
        client = self._client
        kept_ns = client.unit.leases.kept_waiting_ns(taken_ns, besides=client.task.name)
        self.owe(None, max(0, kept_ns - self.charged_ns(warmup=False)))
