"""Jobs: JOB_BEGIN, YIELD, REWIND, JOB_END, ACK.

A client has at most one job. It waits for the lease, runs, and ends by JOB_END; or it is a part of
another process's job, and none (`nesting`); or it is revoked
because its weights cannot be streamed or it keeps the device from others beyond its limit
(`policy.stuck`), and ends by ACK, by JOB_END, or with its connection when neither comes in time.
Asked by its flag words, a job gives the lease away by YIELD and waits for RESUMED. One that never
does so runs to its end and is counted; one that does so unasked is refused. A job that took its
client's cached lease (`cached_lease_jobs`) is told of when it has begun, by JOB_TAKEN, and ends by
JOB_RETURNED.

A program that runs job after job begins the next one as soon as it has ended one. What nobody waits
for then is done after that: the device is given away at once, and granted again if its client has
asked, and the job is counted last (`settle`). Only JOB_BEGIN overtakes it.

Times come from the client and are clamped to what is possible. Its releases and deadlines say what
is counted as missed; among others a job is served by what admission charged (`policy.releases`).

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

from tierline_agent.errors import ConnectionViolation, StreamFailed
from tierline_agent.memory.arenas import Arena
from tierline_agent.policy import stuck
from tierline_agent.policy.leases import Claim, Rank
from tierline_agent.policy.preemption import Allowance, has_rank
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.processes.interventions import KillReason
from tierline_agent.scheduling.execution import DeviceJob, Execution, Yielding
from tierline_agent.sessions.bound import Bound
from tierline_agent.sessions.cached_lease_jobs import CachedLeaseJobs
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.job import Job
from tierline_agent.sessions.nesting import Nesting
from tierline_agent.sessions.records import Records
from tierline_agent.sessions.workspace import ClientWorkspace
from tierline_agent.transport.protocol import (
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
from tierline_api.devices.device import DeviceKind
from tierline_api.devices.overheads import OVERHEADS

_log = logging.getLogger(__name__)
_LATEST_NS = 1 << 62
_WORD_NS = 100_000_000
"""A job is not believed to have ended longer than this before its JOB_END is read."""
_NOT_STREAMED = "its weights could not be streamed"


def _part(job: Job) -> int | None:
    """What a job is of its release: a plan has a task's arenas for one process at a time."""
    return None if job.arena is None else job.arena.index


class Jobs:
    """The jobs of one client."""

    def __init__(self, client: Client, workspace: ClientWorkspace, leased: CachedLeaseJobs) -> None:
        self._client = client
        self._workspace = workspace
        self._cached_lease_jobs = leased
        self.records = Records(client)
        self._job: Job | None = None
        self._kept: Claim | None = None
        """The claim for the release of which the device is kept."""
        self._revoked: int | None = None
        self._why_revoked = _NOT_STREAMED
        self._stuck: Job | None = None
        """The job that was found to be stuck."""
        self._unsettled: tuple[Job, Callable[[], None]] | None = None
        """The job that is over, and what counts it."""
        self._unanswered: tuple[int, Ended] | None = None
        """The answer to its JOB_END."""
        self._grace: asyncio.TimerHandle | None = None
        self._throttled: asyncio.TimerHandle | None = None
        """Begins its job, whose task owes others too much until then."""
        self._bound = Bound(client)
        self._nesting = Nesting(client)
        self._ended_ns = 0
        """When its last job ended."""
        self._release_ns = 0
        """The release that its jobs are for; a program may run several for one."""
        self._late = False
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
        self._check_none()
        self._owe_for_untold()
        self._cached_lease_jobs.asked()
        job = self._new(message)
        self._ask(sequence, job)
        self._let_go()
        if self._job is job and job.granted_ns is None:
            self._nesting.waits(partial(self._nest, sequence, job))

    def _ask(self, sequence: int, job: Job) -> None:
        """Ask for the device, or throttle the job, which asks when it is let go."""
        client = self._client
        self._job, client.job_arena = job, job.arena
        throttled_ns = self._throttled_ns(job)
        if throttled_ns:
            if not job.throttled:
                self._note_throttled(job, throttled_ns)
            client.deadline_ns = BACKGROUND_NS
            self._throttled = client.node.loop.call_later(
                throttled_ns / 1e9, self._ask, sequence, job
            )
            return
        self._serve_in_turn(job, client.unit.leases.idle_ns)
        prepare = partial(self._bring_in, sequence, job) if self._workspace.lent else None
        execution = self._adopt(job, prepare)
        client.unit.executor.begin(execution, partial(self._granted, sequence, job))

    def _granted(self, sequence: int, job: Job, now_ns: int) -> None:
        client, execution = self._client, job.execution
        if execution is not None and self._throttled_ns(job):
            # since it asked, jobs of other processes of its task have ended that took too long
            client.unit.executor.end(execution)
            client.unit.executor.is_over(execution)
            self._ask(sequence, job)
            return
        job.granted_ns = now_ns
        self._nesting.stop()
        self._bound.begin()
        client.reply(sequence, Grant(job.number, now_ns))
        self._cached_lease_jobs.granted(job, alone=not self._workspace.lent)

    def _throttled_ns(self, job: Job) -> int:
        """How long the job is throttled for what others waited beyond its task's plan."""
        client, task = self._client, self._client.task
        excess = client.unit.debts.of(task.key)
        if excess is None:
            return 0
        free_ns, share = self._limit_ns(job), client.node.registry.share_of(task)
        return excess.throttled_ns(time.monotonic_ns(), free_ns, share, warmup=job.warmup)

    def _note_throttled(self, job: Job, throttled_ns: int) -> None:
        client, task = self._client, self._client.task
        job.throttled = True
        task.counters.throttled += 1
        client.node.metrics.of(task.key).throttled.inc()
        task.note_once(
            "throttled",
            f"job {job.number} of {client} was throttled for {throttled_ns / 1e9:.1f} s: those "
            f"before it kept others waiting for over {self._limit_ns(job) / 1e9:g} s beyond the "
            f"plan, and may do so for {client.node.registry.share_of(task):.1%} of the time; "
            "profile the task again",
        )

    def _nest(self, sequence: int, job: Job, pid: int) -> None:
        """A job of another process of the task waits for this one, which is a part of it then."""
        client = self._client
        self._leave(job)
        why = f"a job of process {pid} of its task has the device, and waits for it"
        client.task.note_once(
            "nested",
            f"a job of {client} runs as a part of another one, and is not counted: {why}",
        )
        client.reply(sequence, Error(code=ErrorCode.NESTED, reason=why))

    def take(self, _sequence: int, message: JobTaken) -> None:
        """A job has begun without asking; it may be over by now."""
        self._check_none()
        now_ns = time.monotonic_ns()
        job = self._new(message)
        self._serve_in_turn(job, now_ns)  # nobody else wanted the device when it was taken
        lease = self._cached_lease_jobs.took(message)
        latest_ns = min(now_ns, self._cached_lease_jobs.taken_by_ns or now_ns)
        job.granted_ns = max(min(message.taken_ns, latest_ns), self._ended_ns)
        self._client.task.counters.uncontended += not job.warmup
        self._client.unit.executor.took(self._adopt(job), lease, job.granted_ns)
        self._let_go()

    def _check_none(self) -> None:
        if self._job is not None:
            raise ConnectionViolation(f"job {self._job.number} has not ended", out_of_order=True)

    def _new(self, message: JobBegin | JobTaken) -> Job:
        client = self._client
        if message.deadline_ns < message.release_ns:
            raise ConnectionViolation("a deadline lies before its release")
        arena = None if message.arena == NO_ARENA else client.sealed_arena(message.arena)
        self.records.publish()
        job = Job(
            number=message.job,
            arena=arena,
            release_ns=message.release_ns,
            deadline_ns=min(message.deadline_ns, _LATEST_NS),
            warmup=JobFlags.WARMUP in message.flags,
        )
        job.due_ns = job.deadline_ns
        return job

    def _serve_in_turn(self, job: Job, idle_ns: int) -> None:
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
        job.due_ns = min(due.deadline_ns, _LATEST_NS)
        job.eligible_ns = due.eligible_ns

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
        self._check_none()
        due_ns, training = min(deadline_ns, _LATEST_NS), client.task.registration.training
        job = Job(number, arena, release_ns, due_ns, warmup=training)  # of a step it ends none
        self._adopt_release(job)
        execution = self._adopt(job)
        job.granted_ns = time.monotonic_ns()
        if not node.recovery.may_resume(client.token) or not client.unit.executor.resume(execution):
            # it computes from its ring until it knows
            job.fences = True
            client.unit.executor.fence(client.domain)
            self._revoke(
                job, StreamFailed("others have used its ring or its device", corrupt=False)
            )
        else:
            self._bound.begin()

    def _adopt(self, job: Job, prepare: Callable[[], Awaitable[bool]] | None = None) -> Execution:
        self._job = job
        execution = job.execution = self._client.unit.executor.prepare(
            self._of_device(job, prepare), self._stream_failed
        )
        self._client.job_arena = job.arena
        self._client.deadline_ns = job.due_ns
        return execution

    def _adopt_release(self, job: Job) -> None:
        """A job that began with the agent before this one is due when its program says."""
        job.due_ns = job.deadline_ns
        if not job.warmup:
            self._client.task.releases.adopts(
                now_ns=time.monotonic_ns(), release_ns=job.release_ns, part=_part(job)
            )

    def _part_ends(self, job: Job) -> None:
        """The device is kept for the next job of the release, if one is to come."""
        client, task = self._client, self._client.task
        if job.execution is None or job.granted_ns is None:
            return
        task.releases.ends(time.monotonic_ns())
        if client.connection.closed:
            return
        kept_ns = task.releases.kept_ns(task.plan.calls, round(task.plan.between_s * 1e9))
        if kept_ns is not None:
            self._kept = job.execution.ticket.claim
            heard_ns = round(OVERHEADS[DeviceKind(client.unit.device.kind)].dispatch_s * 1e9)
            client.unit.leases.keep(self._kept, time.monotonic_ns() + kept_ns + heard_ns)

    def _let_go(self) -> None:
        """The next job has asked, or none will."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._client.unit.leases.let_go(kept.key)

    def _stream_failed(self, failure: StreamFailed) -> None:
        if self._job is not None:
            self._revoke(self._job, failure)

    def _of_device(self, job: Job, prepare: Callable[[], Awaitable[bool]] | None) -> DeviceJob:
        client, task = self._client, self._client.task
        arena = job.arena
        storage, unit = client.node.storage, client.unit.name
        sources = arena.sources(storage, unit, client.domain, task.name) if arena else []
        return DeviceJob(
            token=client.token,
            process=client.process,
            domain=client.domain,
            deadline_ns=job.due_ns,
            rank=self._rank(job),
            eligible_ns=job.eligible_ns,
            # one in extents is counted with them, that of a step as long as its program is there
            workspace_bytes=0
            if self._workspace.lent or task.registration.training
            else max(task.plan.workspace_bytes, task.counters.workspace_peak_bytes),
            sources=sources,
            ring=[pooled.extent for pooled in arena.ring] if arena else [],
            words=arena.words if arena else None,
            prepare=prepare,
            yielding=self._yielding(job),
            gateless_ns=self._gateless_ns(job),
            planned_ns=0 if job.warmup else int(task.plan.call_time_s * 1e9),
            charged_ns=self._charged_ns(warmup=job.warmup),
            wanted=self._cached_lease_jobs.wanted if job.warmup else None,
            task=task.name,
        )

    def _charged_ns(self, *, warmup: bool) -> int:
        """How long others were charged for a job, at most."""
        client, task = self._client, self._client.task
        dispatch_s = OVERHEADS[DeviceKind(client.unit.device.kind)].dispatch_s
        planned_s = task.plan.first_s if warmup else task.plan.call_time_s
        return max(round(max(planned_s, dispatch_s) * 1e9), task.registration.job_limit_ns or 0)

    def _rank(self, job: Job) -> Rank:
        """How the job stands among others.

        A Soft task that yields is admitted by its mean, one job a period. After a long job the next
        ones come late and in a row: until they are on time again, they run in what others leave.
        """
        task = self._client.task
        registration = task.registration
        layer_ns = self._gateless_ns(job)
        if registration.training:
            return registration.rank  # also of what ends no step (`registry`)
        if job.warmup or (layer_ns is not None and not has_rank(task.gateless_ns, layer_ns)):
            return Rank.WARMUP
        if job.release_ns != self._release_ns:
            self._release_ns, self._late = job.release_ns, job.release_ns < self._ended_ns
        by_mean = registration.criticality == "Soft" and registration.preemption is not None
        return Rank.BEST_EFFORT if by_mean and self._late else registration.rank

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

    def _gateless_ns(self, job: Job) -> int | None:
        """How long it was planned for at most, if it cannot give the device away as it was planned.

        None for the first ones: in them a program's layers are learned, and they have no rank.
        """
        preemption = self._client.task.registration.preemption
        if preemption is None or job.warmup or self._yielding(job) is not None:
            return None
        return preemption.layer_ns

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
        self._adopt_release(job)
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
        on_device = execution.job
        if arena is not job.arena:
            if execution.took is not None:
                raise ConnectionViolation(f"job {message.job} was taken: it streams nothing")
            job.arena = self._client.job_arena = arena
            on_device = self._of_device(job, None)
        begun = self._client.unit.executor.rewind(execution, on_device)
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
        # one that came back may have ended while no agent was there
        since_ns = 0 if self.returned else time.monotonic_ns() - _WORD_NS
        self._end(job, max(job.granted_ns, since_ns), message)
        self._unanswered = sequence, Ended(message.job)
        self._cached_lease_jobs.over(job, alone=not self._workspace.lent)

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
        self._cached_lease_jobs.over(job, alone=not self._workspace.lent)

    def _end(self, job: Job, earliest_ns: int, message: JobEnd | JobReturned) -> None:
        """Count what the client says, as far as it can be: it holds the device until it says so."""
        end_ns = min(max(message.end_ns, earliest_ns), time.monotonic_ns())
        has_had_ns = end_ns - (job.granted_ns or end_ns)
        self._workspace.job_ended(message.workspace_peak_bytes)
        self._finish(
            job,
            end_ns=end_ns,
            stall_ns=min(message.stall_ns, has_had_ns),
            fetched_bytes=min(message.fetched_bytes, _LATEST_NS),
            workspace_bytes=self._workspace_bytes(message.workspace_peak_bytes),
        )

    def _workspace_bytes(self, said_bytes: int) -> int:
        """What the job's process had in addition to weights; on a GPU it is known before."""
        client = self._client
        known_bytes = client.unit.memory.besides_weights(client.task.name, client.token)
        if known_bytes is not None and not self._workspace.lent:
            said_bytes = known_bytes
        return min(said_bytes, client.unit.device.memory_bytes)

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
        self._let_go()
        with ExitStack() as leaving:  # from the last one to the first
            leaving.callback(self.records.publish)
            if job is None:
                self._owe_for_untold()
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
        if not job.warmup:
            unit.memory.started(self._client.task.name, self._client.token)
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
        self._nesting.stop()
        if not job.warmup:
            self._part_ends(job)
        client.job_arena = None
        client.deadline_ns = BACKGROUND_NS
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None
        self._bound.end()
        if job.fences:
            client.unit.executor.unfence(client.domain)
        if job.execution is not None:
            # it owes before another process of its task may be granted the device
            client.unit.executor.end(job.execution, partial(self._owe, job))

    def _owe(self, job: Job | None, cost_ns: int) -> None:
        """What a job cost others is its task's to owe, but for what was the agent's to end.

        That is what it had the device beyond its limit until it was revoked. From then on it is the
        client's to give it back, also if it is killed for it.
        """
        client, task, now_ns = self._client, self._client.task, time.monotonic_ns()
        most_ns = self._limit_ns(job)
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

    def _owe_for_untold(self) -> None:
        """The client gives back a lease that it had taken, and tells of no job."""
        client, taken_ns = self._client, self._cached_lease_jobs.taken_by_ns
        if taken_ns is not None:
            kept_ns = client.unit.leases.kept_waiting_ns(taken_ns, besides=client.task.name)
            self._owe(None, max(0, kept_ns - self._charged_ns(warmup=False)))

    # -- the limit of every job

    def look(self, now_ns: int) -> None:
        """See that no job keeps the device from others for ever."""
        job, client = self._job, self._client
        limit_ns = self._limit_ns(job)
        self._cached_lease_jobs.look(now_ns, limit_ns)
        if job is None or job.revoked or job.granted_ns is None or job.execution is None:
            return
        if job.execution.held_for_ns(now_ns) <= limit_ns:
            return
        why = f"it had the device for more than {limit_ns / 1e9:g} s"
        if self._stuck is not job:
            self._stuck = job
            _log.error("job %d of %s is stuck: %s", job.number, client, why)
            client.task.add_notice("stuck", 0, f"job {job.number} of {client}: {why}")
        if client.unit.leases.waiting and client.unit.executor.has_device(job.execution):
            self._revoke_for(job, why, ErrorCode.QUOTA, KillReason.JOB_TOO_LONG)

    def _limit_ns(self, job: Job | None) -> int:
        """How long it may have the device; None is any job."""
        least_ns, plan = self._client.node.job_limit_ns, self._client.task.plan
        if job is None:
            return least_ns
        planned_s = plan.first_s if job.warmup else plan.call_time_s
        return stuck.limit_ns(least_ns, round(planned_s * 1e9), warmup=job.warmup)

    # -- revocation

    def _revoke(self, job: Job, failure: StreamFailed) -> None:
        self._client.task.add_notice("revoked", 0, str(failure))
        _log.error("cannot stream for %s: %s", self._client, failure)
        code = ErrorCode.CORRUPT if failure.corrupt else ErrorCode.IO
        self._revoke_for(job, _NOT_STREAMED, code, KillReason.REVOCATION_IGNORED)

    def _revoke_for(self, job: Job, why: str, code: ErrorCode, kill: KillReason) -> None:
        client, node = self._client, self._client.node
        _log.error("revoking job %d of %s: %s", job.number, client, why)
        if client.task.is_new_revocation(why):
            told = f"job {job.number} of process {client.process.pid} was revoked because {why}"
            node.interventions.revoked(client.task.name, client.process, told)
        job.revoked_ns = time.monotonic_ns()
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
            partial(node.interventions.kill, client.task.name, client.process, kill, sentence),
        )
