"""The records of one client's jobs, and what is counted with them: JOB_END's sums, OUTPUT.

A record waits for its digests, so that nobody reads it without them.

Invariant: every job that is given to `count` gets exactly one record, in that order.
"""

from __future__ import annotations

from typing import Final

from tierline_agent.policy.preemption import has_rank
from tierline_agent.scheduling.execution import Execution
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.job import Job
from tierline_agent.telemetry.accounting import JobRecord
from tierline_agent.transport.protocol import Output
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import OVERHEADS

_GRANULE_BYTES: Final = 2 << 20
"""In which a GPU's driver gives memory: weights that move may leave one of these in use."""


class Records:
    """The records of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unclaimed: Output | None = None
        self._held: JobRecord | None = None

    def count(
        self, job: Job, *, end_ns: int, stall_ns: int, fetched_bytes: int, workspace_bytes: int
    ) -> None:
        """Count a job that was granted and is over."""
        node, task = self._client.node, self._client.task
        execution = job.execution
        record = JobRecord(
            task=task.name,
            job=job.number,
            release_ns=job.release_ns,
            granted_ns=job.granted_ns or end_ns,
            end_ns=end_ns,
            deadline_ns=job.deadline_ns,
            missed=not job.warmup and (end_ns > job.deadline_ns or job.revoked),
            warmup=job.warmup,
            streamed_bytes=execution.streamed_bytes if execution else 0,
            fetched_bytes=fetched_bytes,
            stall_ns=stall_ns,
            workspace_bytes=workspace_bytes,
        )
        planned_ns = allowed_ns = int(task.plan.call_time_s * 1e9)
        if execution is not None and execution.job.yielding is not None:
            allowed_ns = self._count_yields(record, execution)
        if execution is not None and execution.job.within_ns is not None:
            self._count_late(record, execution, execution.job.within_ns)
        if 0 < allowed_ns < record.job_time_ns and not job.revoked:
            record.overrun_ns = record.job_time_ns - (allowed_ns - planned_ns)
        if execution is not None and job.warmup:
            self._count_first(record, execution.blocked_ns)
        overruns = task.counters.overruns
        granule_bytes = _GRANULE_BYTES if self._client.unit.device.kind == "cuda" else 0
        allowed_bytes = task.plan.workspace_bytes + granule_bytes
        task.counters.count(record, allowed_ns or None, allowed_bytes)
        node.metrics.of(task.key).count(record, overrun=task.counters.overruns > overruns)
        self._hold(record)

    def _count_yields(self, record: JobRecord, execution: Execution) -> int:
        """Add what preemption did to a job; returns how long it might have the device."""
        task = self._client.task
        counters = task.counters
        record.preemptions = execution.preemptions
        held_ns = min(execution.held_ns, record.end_ns - record.granted_ns)
        record.parked_ns = record.end_ns - record.granted_ns - held_ns if record.preemptions else 0
        counters.preemptions += execution.preemptions
        counters.rings_lost += execution.rings_lost
        counters.contained += execution.contained
        self._client.node.metrics.of(task.key).count_yields(
            preemptions=execution.preemptions, contained=execution.contained
        )
        return execution.budget_ns

    def _count_late(self, record: JobRecord, execution: Execution, within_ns: int) -> None:
        """Count how late a job gave the device away, and what one without gates took."""
        task = self._client.task
        counters = task.counters
        counters.late_yields += execution.late_yields
        self._client.node.metrics.of(task.key).late_yields.inc(execution.late_yields)
        counters.yield_worst_ns = max(counters.yield_worst_ns, execution.yield_worst_ns)
        if execution.late_yields:
            task.note_once(
                "late-yield",
                f"job {record.job} of {self._client} gave the device away "
                f"{execution.yield_worst_ns} ns after it was asked, and was planned to within "
                f"{within_ns} ns; profile the task again",
            )
        if execution.job.gateless_ns is None:
            return
        task.gateless_ns = record.job_time_ns
        if not has_rank(task.gateless_ns, within_ns):
            task.note_once(
                "not-preemptible",
                f"job {record.job} of {self._client} has no arena, had the device for "
                f"{record.job_time_ns / 1e6:.1f} ms, and its task was planned to give it away "
                f"within {within_ns / 1e6:g} ms; such jobs run after all others until one is as "
                "short; profile the task again",
            )

    def _count_first(self, record: JobRecord, blocked_ns: int) -> None:
        """Count how long a first job kept others waiting, against what they were charged."""
        task = self._client.task
        charged_ns = round(task.plan.first_s * 1e9)
        counters = task.counters
        counters.first_blocked_worst_ns = max(counters.first_blocked_worst_ns, blocked_ns)
        overheads = OVERHEADS[DeviceKind(self._client.unit.device.kind)]
        if blocked_ns <= (charged_ns or round(overheads.dispatch_s * 1e9)):
            return
        counters.late_firsts += 1
        self._client.node.metrics.of(task.key).late_firsts.inc()
        planned = f"{charged_ns / 1e6:g} ms were planned" if charged_ns else "nothing was planned"
        task.note_once(
            "late-first",
            f"job {record.job} of {self._client}, which has no rank, kept jobs with "
            f"deadlines waiting for {blocked_ns / 1e6:.1f} ms, and {planned} for that; profile the "
            "task again",
        )

    def output(self, _sequence: int, message: Output) -> None:
        """The digests of what a job read and computed."""
        if self._held is not None and self._held.job == message.job:
            self._held.input_digest = message.input_digest.hex()
            self._held.output_digest = message.output_digest.hex()
            self.publish()
        else:
            self._unclaimed = message

    def _hold(self, record: JobRecord) -> None:
        self.publish()
        early, self._unclaimed = self._unclaimed, None
        if early is not None and early.job == record.job:
            record.input_digest = early.input_digest.hex()
            record.output_digest = early.output_digest.hex()
        self._held = record
        if record.output_digest or not self._client.task.registration.record_outputs:
            self.publish()

    def publish(self) -> None:
        """Show the record that waits, with digests or without."""
        if self._held is not None:
            self._client.node.jobs.append(self._held)
            self._held = None
