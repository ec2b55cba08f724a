"""Jobs: JOB_BEGIN, YIELD, REWIND, JOB_END, ACK.

A client has at most one job. It waits for the lease, runs, and ends by JOB_END; or it is revoked
because its weights cannot be streamed or it keeps the device from others beyond its limit
(`policy.stuck`), and ends by ACK, by JOB_END, or with its connection when neither comes in time.
Asked by its flag words, a job gives the lease away by YIELD and waits for RESUMED. One that never
does so runs to its end and is counted; one that does so unasked is refused. A job that took the
lease where it was left open (`open_jobs`) is told of when it has begun, by JOB_TAKEN, and ends by
JOB_RETURNED.

A program that runs job after job begins the next one as soon as it has ended one. What nobody waits
for then is done behind that: the device is given away at once, and granted again if its client has
asked, and the job is counted after that (`settle`). Only JOB_BEGIN overtakes it.

Times come from the client and are clamped to what is possible. Its releases and deadlines order the
jobs of all: admission believes that a task's are a period apart, and nothing here enforces it.

Invariant: a granted job is counted exactly once: by a record if its client lived to end it, else
as broken; before the client is told that it ended, if it waits for that, and before anybody else's
message is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

from tierline_agent.arenas import Arena
from tierline_agent.devices.base import YieldWords
from tierline_agent.errors import ConnectionViolation, StreamFailed
from tierline_agent.kills import KillReason
from tierline_agent.policy import stuck
from tierline_agent.policy.leases import Rank
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.protocol import (
    NO_ARENA,
    Ack,
    Ended,
    Error,
    ErrorCode,
    Grant,
    JobBegin,
    JobEnd,
    JobFlags,
    JobReturned,
    JobTaken,
    Resumed,
    Revoke,
    Rewind,
    Rewound,
    Yield,
)
from tierline_agent.sessions.bound import Bound
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.job import Job
from tierline_agent.sessions.open_jobs import OpenJobs
from tierline_agent.sessions.records import Records
from tierline_agent.sessions.workspace import ClientWorkspace
from tierline_agent.work import Execution, Yielding
from tierline_agent.work import Job as Demand

_log = logging.getLogger(__name__)
_LATEST_NS = 1 << 62
_NOT_STREAMED = "its weights could not be streamed"


class Jobs:
    """The jobs of one client."""

    def __init__(self, client: Client, workspace: ClientWorkspace, open_jobs: OpenJobs) -> None:
        self._client = client
        self._workspace = workspace
        self._open_jobs = open_jobs
        self.records = Records(client)
        self._job: Job | None = None
        self._revoked: int | None = None
        self._why_revoked = _NOT_STREAMED
        self._stuck: Job | None = None
        """The job that was found to be stuck."""
        self._unsettled: tuple[Job, Callable[[], None]] | None = None
        """The job that is over, and what counts it."""
        self._unanswered: tuple[int, Ended] | None = None
        """The answer to its JOB_END."""
        self._grace: asyncio.TimerHandle | None = None
        self._bound = Bound(client)
        self._ended_ns = 0
        """When its last job ended."""
        self._release_ns = 0
        """The release that its jobs are for; a program may run several for one."""
        self._behind = False
        """Whether that was before the end of the jobs for the one before it."""
        self.returned = False
        """The client came back after a restart: its JOB_END may be for a job that nobody knows."""

    @property
    def in_progress(self) -> bool:
        """Whether it has a job, or waits for one."""
        return self._job is not None

    # -- JOB_BEGIN

    def begin(self, sequence: int, message: JobBegin) -> None:
        """Ask for the device; the answer is sent when the job has it."""
        client = self._client
        self._answer_end()
        if client.connection.closed:  # found out by telling it
            return
        job = self._new(message)
        self._open_jobs.asked()

        def granted(now_ns: int) -> None:
            job.granted_ns = now_ns
            self._bound.begin()
            client.reply(sequence, Grant(job.number, now_ns))
            self._open_jobs.granted(job, alone=not self._workspace.lent)

        prepare = partial(self._bring_in, sequence, job) if self._workspace.lent else None
        client.unit.executor.begin(self._adopt(job, prepare), granted)

    def take(self, _sequence: int, message: JobTaken) -> None:
        """A job has begun without asking; it may be over by now."""
        job, now_ns = self._new(message), time.monotonic_ns()
        lease = self._open_jobs.took(message)
        job.granted_ns = min(max(message.taken_ns, self._ended_ns), now_ns)
        self._client.task.counters.uncontended += not job.warmup
        self._client.unit.executor.took(self._adopt(job), lease)

    def _new(self, message: JobBegin | JobTaken) -> Job:
        client = self._client
        if self._job is not None:
            raise ConnectionViolation(f"job {self._job.number} has not ended", out_of_order=True)
        if message.deadline_ns < message.release_ns:
            raise ConnectionViolation("a deadline lies before its release")
        arena = None if message.arena == NO_ARENA else client.sealed_arena(message.arena)
        self.records.publish()
        return Job(
            number=message.job,
            arena=arena,
            release_ns=message.release_ns,
            deadline_ns=min(message.deadline_ns, _LATEST_NS),
            warmup=JobFlags.WARMUP in message.flags,
        )

    async def _bring_in(self, sequence: int, job: Job) -> bool:
        try:
            await self._workspace.bring_in()
        except OSError as failure:
            _log.error("could not bring in the workspace of %s: %s", self._client, failure)
            if self._job is job:
                self._client.refuse(sequence, failure)
                self._leave(job)
            return False
        return True

    def resume(self, arena: Arena | None, number: int, release_ns: int, deadline_ns: int) -> None:
        """Go on with a job that was in progress when the agent ended, or revoke it.

        Raises:
            ConnectionViolation: the client has another job, which nobody would end then.
        """
        client, node = self._client, self._client.node
        if self._job is not None:
            raise ConnectionViolation(f"job {self._job.number} has not ended", out_of_order=True)
        job = Job(number, arena, release_ns, min(deadline_ns, _LATEST_NS), warmup=False)
        execution = self._adopt(job)
        job.granted_ns = time.monotonic_ns()
        if not node.recovery.may_resume(client.token) or not client.unit.executor.resume(execution):
            self._revoke(job, StreamFailed("its ring was used by others", corrupt=False))
        else:
            self._bound.begin()

    def _adopt(self, job: Job, prepare: Callable[[], Awaitable[bool]] | None = None) -> Execution:
        self._job = job
        execution = job.execution = self._client.unit.executor.prepare(
            self._demand(job, prepare), self._stream_failed
        )
        self._client.job_arena = job.arena
        self._client.deadline_ns = job.deadline_ns
        return execution

    def _stream_failed(self, failure: StreamFailed) -> None:
        if self._job is not None:
            self._revoke(self._job, failure)

    def _demand(self, job: Job, prepare: Callable[[], Awaitable[bool]] | None) -> Demand:
        client, task = self._client, self._client.task
        arena = job.arena
        storage, unit = client.node.storage, client.unit.name
        sources = arena.sources(storage, unit, client.domain, task.name) if arena else []
        return Demand(
            token=client.token,
            process=client.process,
            domain=client.domain,
            deadline_ns=job.deadline_ns,
            rank=self._rank(job),
            # one in extents is counted with them
            workspace_bytes=0
            if self._workspace.lent
            else max(task.plan.workspace_bytes, task.counters.workspace_peak_bytes),
            sources=sources,
            ring=[pooled.extent for pooled in arena.ring] if arena else [],
            words=arena.words if arena else None,
            prepare=prepare,
            yielding=self._yielding(job),
            planned_ns=0 if job.warmup else int(task.plan.predicted_job_time_s * 1e9),
            wanted=self._open_jobs.wanted if job.warmup else None,
        )

    def _rank(self, job: Job) -> Rank:
        """How the job stands among others.

        A Soft task that yields is admitted by its mean, one job a period. After a long job the next
        ones come late and in a row: until they are on time again, they run in what others leave.
        """
        registration = self._client.task.registration
        if job.warmup:
            return Rank.WARMUP
        if job.release_ns != self._release_ns:
            self._release_ns, self._behind = job.release_ns, job.release_ns < self._ended_ns
        by_mean = registration.criticality == "Soft" and registration.preemption is not None
        return Rank.BEST_EFFORT if by_mean and self._behind else registration.rank

    def _yielding(self, job: Job) -> Yielding | None:
        """How the job gives the device away, if its plan says so and its client can."""
        client, task = self._client, self._client.task
        preemption = task.registration.preemption
        if preemption is None:
            return None
        words = job.arena.words if job.arena else None
        # a workspace in extents is others' as soon as they run
        if not client.can_yield or self._workspace.lent or not isinstance(words, YieldWords):
            why = "has no arena" if words is None else "cannot give the device away in the middle"
            if not job.warmup:  # the first ones are those in which a program's layers are learned
                task.note_once("not-preemptible", f"a job of {client} {why}")
            return None
        planned_ns = int(task.plan.predicted_job_time_s * 1e9)
        return Yielding(words, preemption.terms, planned_ns)

    # -- YIELD

    def give_away(self, sequence: int, message: Yield) -> None:
        """The job stands at a gate; the answer is sent when it has the device again."""
        job = self._job
        if message.job == self._revoked:
            self._refuse_revoked(sequence, message.job)
            return
        if job is None and self.returned:
            self._adopt_parked(sequence, message)
            return
        if job is None or job.number != message.job or job.granted_ns is None:
            raise ConnectionViolation(f"job {message.job} is not running", out_of_order=True)
        execution, arena = job.execution, job.arena
        if execution is None or arena is None or execution.job.yielding is None:
            raise ConnectionViolation(f"job {message.job} keeps the device to its end")
        if job.yielded is not None or execution.rewinding:
            raise ConnectionViolation(f"job {message.job} waits already", out_of_order=True)
        if not execution.asked and not self.returned:  # an earlier agent may have asked
            raise ConnectionViolation(f"job {message.job} was not asked to yield")
        self._check_position(message, arena, execution)
        job.yielded = sequence
        self._client.unit.executor.park(execution, message.position, partial(self._go_on, job))

    def _check_position(self, message: Yield, arena: Arena, execution: Execution) -> None:
        """A position lies in the job's stream, and not before one that it gave earlier."""
        if message.arena != arena.index:
            raise ConnectionViolation(f"job {message.job} does not read arena {message.arena}")
        if not execution.position <= message.position <= len(execution.job.sources):
            raise ConnectionViolation(f"job {message.job} cannot go on at {message.position}")

    def _adopt_parked(self, sequence: int, message: Yield) -> None:
        """The job yielded to an agent that is gone, or to one that lost this client meanwhile."""
        client = self._client
        if message.deadline_ns < message.release_ns:
            raise ConnectionViolation("a deadline lies before its release")
        job = Job(
            number=message.job,
            arena=client.sealed_arena(message.arena),
            release_ns=message.release_ns,
            deadline_ns=min(message.deadline_ns, _LATEST_NS),
            warmup=bool(message.flags & JobFlags.WARMUP),
            granted_ns=time.monotonic_ns(),
            yielded=sequence,
        )
        execution = self._adopt(job)
        if execution.job.yielding is None or job.arena is None:
            self._leave(job)
            raise ConnectionViolation(f"job {message.job} keeps the device to its end")
        self._check_position(message, job.arena, execution)
        client.unit.executor.adopt_parked(execution, message.position, partial(self._go_on, job))

    def _go_on(self, job: Job) -> None:
        if job.yielded is not None:
            sequence, job.yielded = job.yielded, None
            self._client.reply(sequence, Resumed(job.number))

    # -- REWIND

    def rewind(self, sequence: int, message: Rewind) -> None:
        """Stream an arena for the running job from its start: its own again, or another one."""
        job = self._job
        if message.job == self._revoked:
            self._refuse_revoked(sequence, message.job)
            return
        if job is None or job.number != message.job or job.granted_ns is None:
            raise ConnectionViolation(f"job {message.job} is not running", out_of_order=True)
        if job.yielded is not None:
            raise ConnectionViolation(f"job {message.job} waits for the device", out_of_order=True)
        execution, arena = job.execution, self._client.sealed_arena(message.arena)
        if execution is None or execution.rewinding:
            raise ConnectionViolation(f"job {message.job} is being rewound", out_of_order=True)
        demand = execution.job
        if arena is not job.arena:
            if execution.took is not None:
                raise ConnectionViolation(f"job {message.job} was taken: it streams nothing")
            job.arena = self._client.job_arena = arena
            demand = self._demand(job, None)
        begun = self._client.unit.executor.rewind(execution, demand)
        self._client.spawn(sequence, self._rewind(sequence, job, begun))

    async def _rewind(self, sequence: int, job: Job, begun: Awaitable[bool]) -> None:
        if await begun and not job.revoked:
            self._client.reply(sequence, Rewound(job.number))
        else:
            self._refuse_revoked(sequence, job.number)

    def _refuse_revoked(self, sequence: int, number: int) -> None:
        reason = f"job {number} was revoked: {self._why_revoked}"
        self._client.reply(sequence, Error(code=ErrorCode.REVOKED, reason=reason))

    # -- the end

    def end(self, sequence: int, message: JobEnd) -> None:
        """The job is over."""
        job = self._job
        if job is None or job.number != message.job or job.granted_ns is None:
            self._end_unknown(sequence, message)
            return
        if job.yielded is not None:
            raise ConnectionViolation(f"job {message.job} waits for the device", out_of_order=True)
        if job.execution is not None and job.execution.took is not None:
            raise ConnectionViolation(f"job {message.job} was taken, and is to be returned")
        self._end(job, job.granted_ns, message)
        self._unanswered = sequence, Ended(message.job)
        self._open_jobs.over(job, alone=not self._workspace.lent)

    def give_back(self, _sequence: int, message: JobReturned) -> None:
        """A job that took the lease is over, and has given it back."""
        job = self._job
        if (
            job is None
            or job.number != message.job
            or job.granted_ns is None
            or job.execution is None
            or job.execution.took is None
        ):
            raise ConnectionViolation(f"job {message.job} was not taken", out_of_order=True)
        self._end(job, job.granted_ns, message)
        self._open_jobs.over(job, alone=not self._workspace.lent)

    def _end(self, job: Job, granted_ns: int, message: JobEnd | JobReturned) -> None:
        now_ns = time.monotonic_ns()
        self._workspace.job_ended(message.workspace_peak_bytes)
        self._finish(
            job,
            end_ns=min(max(message.end_ns, granted_ns), now_ns),
            stall_ns=min(message.stall_ns, _LATEST_NS),
            fetched_bytes=min(message.fetched_bytes, _LATEST_NS),
            workspace_bytes=min(message.workspace_peak_bytes, _LATEST_NS),
        )

    def _end_unknown(self, sequence: int, message: JobEnd) -> None:
        if message.job == self._revoked:
            self._refuse_revoked(sequence, message.job)
        elif self.returned and self._job is None:
            self._client.reply(sequence, Ended(message.job))
        else:
            raise ConnectionViolation(f"job {message.job} is not running", out_of_order=True)

    def acknowledge(self, _sequence: int, message: Ack) -> None:
        """The client knows that its job was revoked."""
        job = self._job
        if job is not None and job.revoked and job.number == message.job:
            self._finish(job, end_ns=time.monotonic_ns())

    def close(self) -> None:
        """The client is gone: so is its job, and the lease goes on."""
        job = self._job
        with ExitStack() as leaving:  # from the last one to the first
            leaving.callback(self.records.publish)
            if job is None:
                return
            if job.granted_ns is not None:
                _log.warning("%s left in the middle of job %d", self._client, job.number)
                self._client.task.counters.broken += 1
                leaving.callback(self._give_ring_back, job)
            leaving.callback(self._leave, job)
            if job.granted_ns is not None:
                leaving.callback(self._workspace.left_inside)

    def _finish(
        self,
        job: Job,
        *,
        end_ns: int,
        stall_ns: int = 0,
        fetched_bytes: int = 0,
        workspace_bytes: int = 0,
    ) -> None:
        unit, plan = self._client.unit, self._client.task.plan
        has_device = job.execution is not None and unit.executor.has_device(job.execution)
        if has_device and workspace_bytes > plan.workspace_bytes and not self._workspace.lent:
            unit.memory.set_workspace(workspace_bytes)
        self._leave(job)
        self._ended_ns = end_ns
        count = partial(
            self.records.count,
            job,
            end_ns=end_ns,
            stall_ns=stall_ns,
            fetched_bytes=fetched_bytes,
            workspace_bytes=workspace_bytes,
        )
        self._unsettled = job, count

    def settle(self) -> None:
        """Count the job that is over, and answer its JOB_END, if that is still to be done."""
        if self._unsettled is not None:
            (job, count), self._unsettled = self._unsettled, None
            self._give_ring_back(job)
            count()
        self._answer_end()

    def _give_ring_back(self, job: Job) -> None:
        if job.execution is not None:
            self._client.unit.executor.is_over(job.execution)

    def _answer_end(self) -> None:
        if self._unanswered is not None:
            (sequence, ended), self._unanswered = self._unanswered, None
            self._client.reply(sequence, ended)

    def _leave(self, job: Job) -> None:
        client = self._client
        self._job = None
        client.job_arena = None
        client.deadline_ns = BACKGROUND_NS
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._bound.end()
        if job.execution is not None:
            client.unit.executor.end(job.execution)

    # -- the limit of every job

    def look(self, now_ns: int) -> None:
        """See that no job keeps the device from others for ever."""
        job, client = self._job, self._client
        self._open_jobs.look(now_ns)
        if job is None or job.revoked or job.granted_ns is None or job.execution is None:
            return
        held_ns, least_ns = job.execution.held_for_ns(now_ns), client.node.job_limit_ns
        limit_ns = stuck.limit_ns(least_ns, job.execution.job.planned_ns, warmup=job.warmup)
        if held_ns <= limit_ns:
            return
        why = f"it had the device for more than {limit_ns / 1e9:g} s"
        if self._stuck is not job:
            self._stuck = job
            _log.error("job %d of %s is stuck: %s", job.number, client, why)
            client.task.add_notice("stuck", 0, f"job {job.number} of {client}: {why}")
        if client.unit.leases.waiting and client.unit.executor.has_device(job.execution):
            self._revoke_for(job, why, ErrorCode.QUOTA, KillReason.JOB_TOO_LONG)

    # -- revocation

    def _revoke(self, job: Job, failure: StreamFailed) -> None:
        self._client.task.add_notice("revoked", 0, str(failure))
        _log.error("cannot stream for %s: %s", self._client, failure)
        code = ErrorCode.CORRUPT if failure.corrupt else ErrorCode.IO
        self._revoke_for(job, _NOT_STREAMED, code, KillReason.REVOCATION_IGNORED)

    def _revoke_for(self, job: Job, why: str, code: ErrorCode, kill: KillReason) -> None:
        client, node = self._client, self._client.node
        _log.error("revoking job %d of %s: %s", job.number, client, why)
        job.revoked = True
        self._revoked, self._why_revoked = job.number, why
        client.task.counters.revoked += 1
        node.metrics.of(client.task.key).revoked.inc()
        client.reply(0, Revoke(job.number, code))
        if job.yielded is not None:
            sequence, job.yielded = job.yielded, None
            self._refuse_revoked(sequence, job.number)
        sentence = (
            f"job {job.number} was revoked because {why}, the program did not acknowledge that "
            f"within {node.config.revoke_grace_s:g} s, and was killed"
        )
        self._grace = node.loop.call_later(
            node.config.revoke_grace_s,
            partial(node.kills.kill, client.task.name, client.process, kill, sentence),
        )
