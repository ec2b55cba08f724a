"""Jobs: JOB_BEGIN, YIELD, REWIND, JOB_END, ACK.

A client has at most one job. It waits for the lease, runs, and ends by JOB_END; or it is a part of
another process's job, and none (`nesting`); or it is revoked
because its weights cannot be streamed or it keeps the device from others beyond its limit
(`revocation`), and ends by ACK, by JOB_END, or with its connection when neither comes in time.
Asked by its flag words, a job gives the lease away by YIELD and waits for RESUMED. One that never
does so runs to its end and is counted; one that does so unasked is refused. A job that took its
client's cached lease (`cached_lease_jobs`) is told of when it has begun, by JOB_TAKEN, and ends by
JOB_RETURNED.

A program that runs job after job begins the next one as soon as it has ended one. What nobody waits
for then is done after that: the device is given away at once, and granted again if its client has
asked, and the job is counted last (`settle`). Only JOB_BEGIN overtakes it.

Times come from the client and are clamped to what is possible. Its releases and deadlines say what
is counted as missed; among others a job is served by what admission charged (`standing`), and what
it costs them beyond that is owed (`charging`).

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
from tierline_agent.policy.transfers import BACKGROUND_NS
from tierline_agent.scheduling.execution import DeviceJob, Execution, StreamStart
from tierline_agent.sessions.bound import Bound
from tierline_agent.sessions.client import Client
from tierline_agent.sessions.jobs.cached_lease_jobs import CachedLeaseJobs
from tierline_agent.sessions.jobs.charging import Charging
from tierline_agent.sessions.jobs.demand import Demand
from tierline_agent.sessions.jobs.job import LATEST_NS, Job
from tierline_agent.sessions.jobs.nesting import Nesting
from tierline_agent.sessions.jobs.revocation import Revocation
from tierline_agent.sessions.jobs.standing import Standing
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
    Rewind,
    Rewound,
    Yield,
)

_log = logging.getLogger(__name__)
_WORD_NS = 100_000_000
"""A job is not believed to have ended longer than this before its JOB_END is read."""


class Jobs:
    """The jobs of one client."""

    def __init__(self, client: Client, workspace: ClientWorkspace, leased: CachedLeaseJobs) -> None:
        self._client = client
        self._workspace = workspace
        self._cached_lease_jobs = leased
        self.records = Records(client)
        self._job: Job | None = None
        self._unsettled: tuple[Job, Callable[[], None]] | None = None
        """The job that is over, and what counts it."""
        self._unanswered: tuple[int, Ended] | None = None
        """The answer to its JOB_END."""
        self._throttled: asyncio.TimerHandle | None = None
        """Begins its job, whose task owes others too much until then."""
        self._bound = Bound(client)
        self._nesting = Nesting(client)
        self._revocation = Revocation(client)
        self._charging = Charging(client)
        self._standing = Standing(client)
        self._demand = Demand(client, workspace, self._charging, self._standing, leased.wanted)
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
        self._standing.let_go()
        if self._job is job and job.granted_ns is None:
            self._nesting.waits(partial(self._nest, sequence, job))

    def _ask(self, sequence: int, job: Job) -> None:
        """Ask for the device, or throttle the job, which asks when it is let go."""
        client = self._client
        self._job, client.job_arena = job, job.arena
        throttled_ns = self._charging.throttled_ns(job)
        if throttled_ns:
            self._charging.note_throttled(job, throttled_ns)
            client.deadline_ns = BACKGROUND_NS
            self._throttled = client.node.loop.call_later(
                throttled_ns / 1e9, self._ask, sequence, job
            )
            return
        self._standing.serve_in_turn(job, client.unit.leases.idle_ns)
        prepare = partial(self._bring_in, sequence, job) if self._workspace.lent else None
        execution = self._adopt(job, prepare)
        client.unit.executor.begin(execution, partial(self._granted, sequence, job))

    def _granted(self, sequence: int, job: Job, now_ns: int) -> None:
        client, execution = self._client, job.execution
        if execution is not None and self._charging.throttled_ns(job):
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
        self._standing.serve_in_turn(job, now_ns)  # nobody else wanted the device when it was taken
        lease = self._cached_lease_jobs.took(message)
        latest_ns = min(now_ns, self._cached_lease_jobs.taken_by_ns or now_ns)
        job.granted_ns = max(min(message.taken_ns, latest_ns), self._standing.ended_ns)
        self._client.task.counters.uncontended += not job.warmup
        self._client.unit.executor.took(self._adopt(job), lease, job.granted_ns)
        self._standing.let_go()

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
            deadline_ns=min(message.deadline_ns, LATEST_NS),
            warmup=JobFlags.WARMUP in message.flags,
        )
        job.due_ns = job.deadline_ns
        return job

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
        due_ns, training = min(deadline_ns, LATEST_NS), client.task.registration.training
        job = Job(number, arena, release_ns, due_ns, warmup=training)  # of a step it ends none
        self._standing.adopt(job)
        execution = self._adopt(job)
        job.granted_ns = time.monotonic_ns()
        if not node.recovery.may_resume(client.token) or not client.unit.executor.resume(execution):
            # it computes from its ring until it knows
            job.fences = True
            client.unit.executor.fence(client.domain)
            self._revocation.stream_failed(
                job, StreamFailed("others have used its ring or its device", corrupt=False)
            )
        else:
            self._bound.begin()

    def _adopt(self, job: Job, prepare: Callable[[], Awaitable[bool]] | None = None) -> Execution:
        self._job = job
        execution = job.execution = self._client.unit.executor.prepare(
            self._demand.of_device(job, prepare), self._stream_failed
        )
        self._client.job_arena = job.arena
        self._client.deadline_ns = job.due_ns
        return execution

    def _stream_failed(self, failure: StreamFailed) -> None:
        if self._job is not None:
            self._revocation.stream_failed(self._job, failure)

    # -- YIELD

    def give_away(self, sequence: int, message: Yield) -> None:
        """The job stands at a gate; the answer is sent when it has the device again."""
        job = self._job
        if self._revocation.is_of(message.job):
            self._revocation.refuse(sequence, message.job)
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
            deadline_ns=min(message.deadline_ns, LATEST_NS),
            warmup=bool(message.flags & JobFlags.WARMUP),
            granted_ns=time.monotonic_ns(),
            yielded=sequence,
        )
        self._standing.adopt(job)
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
        """Stream an arena for the running job from a position: its own again, or another one."""
        job = self._job
        if self._revocation.is_of(message.job):
            self._revocation.refuse(sequence, message.job)
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
            on_device = self._demand.of_device(job, None)
        begun = self._client.unit.executor.rewind(
            execution, on_device, self._start_of(message, on_device)
        )
        self._client.spawn(sequence, self._rewind(sequence, job, begun))

    def _start_of(self, message: Rewind, on_device: DeviceJob) -> StreamStart:
        if message.position > len(on_device.sources):
            raise ConnectionViolation(f"arena {message.arena} has no position {message.position}")
        if not 0 <= message.position - message.consumed <= len(on_device.ring):
            raise ConnectionViolation(
                f"position {message.position} with {message.consumed} consumed is no state of "
                f"a ring of {len(on_device.ring)}"
            )
        return StreamStart(message.position, message.consumed)

    async def _rewind(self, sequence: int, job: Job, begun: Awaitable[bool]) -> None:
        if await begun and not job.revoked:
            self._client.reply(sequence, Rewound(job.number))
        else:
            self._revocation.refuse(sequence, job.number)

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
            fetched_bytes=min(message.fetched_bytes, LATEST_NS),
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
        if self._revocation.is_of(message.job):
            self._revocation.refuse(sequence, message.job)
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
        self._standing.let_go()
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
        self._standing.ended_ns = end_ns
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
        self._standing.part_ends(job)
        client.job_arena = None
        client.deadline_ns = BACKGROUND_NS
        self._revocation.over()
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None
        self._bound.end()
        if job.fences:
            client.unit.executor.unfence(client.domain)
        if job.execution is not None:
            # it owes before another process of its task may be granted the device
            client.unit.executor.end(job.execution, partial(self._charging.owe, job))

    def _owe_for_untold(self) -> None:
        """The client gives back a lease that it had taken, and tells of no job."""
        taken_ns = self._cached_lease_jobs.taken_by_ns
        if taken_ns is not None:
            self._charging.owe_since(taken_ns)

    # -- the limit of every job

    def look(self, now_ns: int) -> None:
        """See that no job keeps the device from others for ever."""
        job = self._job
        limit_ns = self._charging.limit_ns(job)
        self._cached_lease_jobs.look(now_ns, limit_ns)
        if job is not None:
            self._revocation.look(job, now_ns, limit_ns)
