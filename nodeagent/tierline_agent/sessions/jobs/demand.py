"""What a client's job needs of the device, by the plan of its task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tierline_agent.policy.preemption import Allowance
from tierline_agent.scheduling.execution import DeviceJob, Yielding
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.charging import Charging
from tierline_agent.sessions.jobs.job import Job
from tierline_agent.sessions.jobs.standing import Standing
from tierline_agent.sessions.workspace import ClientWorkspace
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import OVERHEADS


class Demand:
    """Of the jobs of one client."""

    def __init__(
        self,
        client: Client,
        workspace: ClientWorkspace,
        charging: Charging,
        standing: Standing,
        wanted: Callable[[], None],
    ) -> None:
        """`wanted` is told that others wait for what is no job."""
        self._client = client
        self._workspace = workspace
        self._charging = charging
        self._standing = standing
        self._wanted = wanted

    def of_device(self, job: Job, prepare: Callable[[], Awaitable[bool]] | None) -> DeviceJob:
        """The job as its device sees it; `prepare` is awaited before it is granted."""
        client, task = self._client, self._client.task
        arena = job.arena
        storage, unit = client.node.storage, client.unit.name
        sources = arena.sources(storage, unit, client.domain, task.name) if arena else []
        yielding = self._yielding(job)
        # None for the first ones: in them a program's layers are learned, and they have no rank
        gateless_ns = None if job.warmup or yielding is not None else self._layer_ns
        return DeviceJob(
            token=client.token,
            process=client.process,
            domain=client.domain,
            deadline_ns=job.due_ns,
            rank=self._standing.rank(job, gateless_ns),
            eligible_ns=job.eligible_ns,
            # one in extents is counted with them, that of a step as long as its program is there
            workspace_bytes=0
            if self._workspace.lent or task.registration.training
            else max(task.plan.workspace_bytes, task.counters.workspace_peak_bytes),
            sources=sources,
            ring=[pooled.extent for pooled in arena.ring] if arena else [],
            words=arena.words if arena else None,
            prepare=prepare,
            yielding=yielding,
            gateless_ns=gateless_ns,
            planned_ns=0 if job.warmup else int(task.plan.call_time_s * 1e9),
            charged_ns=self._charging.charged_ns(warmup=job.warmup),
            wanted=self._wanted if job.warmup else None,
            task=task.name,
        )

    @property
    def _layer_ns(self) -> int | None:
        """How long a job of the task was planned to take to its next gate; None: to its end."""
        preemption = self._client.task.registration.preemption
        return None if preemption is None else preemption.layer_ns

    def _yielding(self, job: Job) -> Yielding | None:
        """How the job gives the device away, if its plan says so and it has gates."""
        client, task = self._client, self._client.task
        preemption = task.registration.preemption
        if preemption is None or job.arena is None or self._workspace.lent:
            return None
        overheads = OVERHEADS[DeviceKind(client.unit.device.kind)]
        allowance = Allowance(
            planned_ns=int(task.plan.call_time_s * 1e9),
            resume_ns=round(overheads.dispatch_s * 1e9),
            penalty_ns=preemption.penalty_ns,
        )
        return Yielding(job.arena.words, preemption.terms, allowance)
